"""How long the collectives of a program take: what a cost model says of each, at the sizes that it really has.

::

    fares = Fares(prepared.index, load_model("h100"))
    fares.lane(node)                      # 'network': the lane of its group
    fares.ns(node, sent=4096, received=32768)

A collective of the size that the graph states has the price that the simulator uses. One whose size is known only at
run time is priced when it runs, once for each size.

Limits: the model's slow-down of compute beside communication is not part of a collective's time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex
    from commcc.timing.cost import CostModel, Costs, Transfer


@dataclass(frozen=True)
class Fares:
    """Prices of the launches of one graph, given by their node number."""

    index: GraphIndex
    model: CostModel
    _seen: dict[Transfer, int] = field(default_factory=dict)

    @cached_property
    def costs(self) -> Costs:
        return self.model.price(self.index)

    def lane(self, node: int) -> str:
        """The lane that its group waits in; groups that share a link have one."""
        group = self.index.launches[node].group
        return self.costs.lanes.get(group, group)

    def ns(self, node: int, sent: int, received: int) -> int:
        """Nanoseconds of a launch that sends and receives this many bytes on each rank."""
        stated = self._stated[node]
        if (stated.input_bytes, stated.output_bytes) == (sent, received):
            return self.costs.ns[node]
        real = replace(stated, input_bytes=sent, output_bytes=received)
        if real not in self._seen:
            self._seen[real] = self.model.transfer(real).ns
        return self._seen[real]

    @cached_property
    def _stated(self) -> dict[int, Transfer]:
        return {node: self.model.transfer_of(self.index, node)[0] for node in self.index.launches}
