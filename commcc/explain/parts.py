"""What it would take to launch a collective in parts, by simulating the whole graph with it cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.terms import MIB
from commcc.passes.split import CANDIDATES, Split

if TYPE_CHECKING:
    from commcc.explain.context import Context
    from commcc.graph.index import GraphIndex


@dataclass(frozen=True)
class Parts:
    """How many parts make the step shorter, and by how many ns."""

    count: int
    saves_ns: int


def in_parts(context: Context, launch: int) -> Parts | None:
    """The split that ``commcc split`` would make of this collective alone, or of the one whose result it sends on, if
    the step is shorter within the budget.
    """
    from commcc.graph.index import build_index
    from commcc.graph.memory import live_bytes
    from commcc.splitting.planner import Splitter
    from commcc.timing.simulate import Simulator

    exposed = context.timeline.exposed
    if context.program is None or exposed.get(launch, 0) < Split.min_exposed_us * 1000:
        return None
    splitter = Splitter(context.program, context.index, context.model, CANDIDATES, context.costs)
    tried = {launch, _sent_on(context.index, launch)}
    found = [s for s in splitter.splits(exposed, Split.min_mb * MIB, tried) if launch in s.region.body]
    if not found:
        return None
    index = build_index(splitter.cut(found), context.index.estimates.given)
    step = Simulator(index, context.model.price(index)).run().step_ns
    allowed = max(context.budget, context.prediction.memory.peak_bytes)
    if step >= context.timeline.step_ns or live_bytes(index).peak_bytes > allowed:
        return None
    return Parts(len(found[0].region.sizes), context.timeline.step_ns - step)


def _sent_on(index: GraphIndex, launch: int) -> int:
    """The launch whose result a launch sends on, as the all-reduce of HSDP does; itself where it sends another's."""
    node = next(iter(index.launches[launch].inputs), launch)
    while node not in index.wait_of and len(index.data_preds[node]) == 1:
        (node,) = index.data_preds[node]
    return index.wait_of.get(node, launch)
