"""The depth of the waves that the simulator likes best, within a memory budget.

Tried are, for the forward regions and then for the backward ones, every depth from 1 to the number of chunks, the
last of which is the order by phases. Steps that differ by less than 0.1 % count as equal: the one that takes less
memory is then the better one, and of two alike the deeper one. Where no order keeps to the budget, the one with the
least memory is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.ep.schedule.waves import in_waves
from commcc.ep.schedule.whole import arranged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.ep.schedule.local import Local
    from commcc.ep.schedule.waves import RegionOrder
    from commcc.graph.index import GraphIndex
    from commcc.timing.cost.types import Costs

#: Steps closer than this, in parts of a thousand, are equal.
_EQUAL_PERMILLE = 1


@dataclass(frozen=True)
class Depths:
    """Chunks in flight, by direction."""

    forward: int
    backward: int


@dataclass(frozen=True)
class Tried:
    """An order of the whole graph and what the simulator says of it; without costs the figures are None."""

    depths: Depths
    region_orders: tuple[RegionOrder, ...]
    order: tuple[int, ...]
    step_ns: int | None = None
    peak_bytes: int | None = None


def planned(index: GraphIndex, locals_: Sequence[Local], depths: Depths) -> Tried:
    """The order with these depths."""
    region_orders = tuple(
        in_waves(local, depths.backward if local.region.backward else depths.forward) for local in locals_
    )
    return Tried(depths, region_orders, arranged(index, [region_order.order for region_order in region_orders]))


class Chooser:
    """Tries depths of one graph under one set of costs. budget: live bytes, None for no limit."""

    def __init__(self, index: GraphIndex, locals_: Sequence[Local], costs: Costs, budget: int | None) -> None:
        from commcc.graph.memory import MemoryModel
        from commcc.timing.simulate import Simulator

        self.index, self.locals, self.budget = index, locals_, budget
        self.simulator, self.memory = Simulator(index, costs), MemoryModel(index)
        self.tried: dict[Depths, Tried] = {}

    def best(self) -> Tried:
        """The best order found."""
        forward = max((local.region.chunks for local in self.locals if not local.region.backward), default=1)
        backward = max((local.region.chunks for local in self.locals if local.region.backward), default=1)
        first = self._best([Depths(depth, backward) for depth in range(1, forward + 1)])
        return self._best([Depths(first.depths.forward, depth) for depth in range(1, backward + 1)])

    def _best(self, candidates: list[Depths]) -> Tried:
        best: Tried | None = None
        for depths in candidates:
            if depths not in self.tried:
                plain = planned(self.index, self.locals, depths)
                step, peak = self.simulator.run(plain.order).step_ns, self.memory.live(plain.order).peak_bytes
                self.tried[depths] = Tried(depths, plain.region_orders, plain.order, step, peak)
            if best is None or self._better(self.tried[depths], best):
                best = self.tried[depths]
        assert best is not None
        return best

    def _better(self, new: Tried, old: Tried) -> bool:
        assert new.step_ns is not None and old.step_ns is not None
        assert new.peak_bytes is not None and old.peak_bytes is not None
        if self.budget is not None and max(new.peak_bytes, old.peak_bytes) > self.budget:
            return new.peak_bytes < old.peak_bytes
        if abs(new.step_ns - old.step_ns) * 1000 > old.step_ns * _EQUAL_PERMILLE:
            return new.step_ns < old.step_ns
        return new.peak_bytes <= old.peak_bytes
