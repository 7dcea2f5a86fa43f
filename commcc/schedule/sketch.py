"""What a graph would be with buckets merged, as arrays made from those of the graph before.

    sketches = Sketches(problem, model)             # of the graph without buckets
    sketch = sketches.merged(buckets)
    glance(sketch, limits, GLANCED[:2])             # as on a Problem

The same units, nodes and buffers as :mod:`commcc.schedule.merged` has, for planners that compare many bucketings: what
no bucket concerns is copied from one array to another, and only what buckets consist of is made one by one. Copies are
priced alone, as :mod:`commcc.planning.merge_cost` does.

Where schedules are all that is asked for, nodes that take no time go along with their neighbours
(:mod:`commcc.schedule.folding`), all but collectives and what they send: two fifths of the nodes are gone.

Limits: chains of pointwise ops that a merge splits or joins keep their prices; ``merged`` sees that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commcc.graph.ops.kernels import Work
from commcc.schedule.arrays import Graph, Ints, records
from commcc.schedule.drawing import Drawing
from commcc.schedule.drawing_units import Rows
from commcc.schedule.folding import fold
from commcc.schedule.paths import path_bound
from commcc.schedule.pieces import Numbers, Piece, Pieces
from commcc.schedule.problem import Bounds, Limits, kernel_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.plan import Bucket
    from commcc.schedule.problem import Problem
    from commcc.timing.cost import CostModel


@dataclass(frozen=True)
class Sketch:
    """What a schedule needs of a merged graph; nodes have the numbers of their places in its own order.

    bound: from longest paths, as :func:`commcc.timing.simulate.bound.path_bound`. feeding: whether there are
    reduce-scatters. own_in_flight: bytes in flight at most in the graph's own order.
    """

    graph: Graph
    bound: int
    feeding: bool
    own_in_flight: int

    @property
    def compute_ns(self) -> int:
        """What the compute stream does, launches included."""
        return int(np.sum(self.graph.nodes.compute_ns))

    def own_step(self, order: Ints, step: int) -> int:
        """The step itself: who pays for fused chains in other orders is not looked at."""
        return step

    def bounds(self, limits: Limits) -> Bounds:
        """Limits for kernels."""
        return kernel_bounds(limits, self.own_in_flight)


class Sketches:
    """Arrays of one graph, from which merged ones are made; see :class:`commcc.schedule.drawing_units.Draft`."""

    def __init__(self, problem: Problem, model: CostModel, merged: Iterable[int] | None = None) -> None:
        """merged: launches that buckets may hold, where schedules are all that is asked for: units are drawn then."""
        index, self.graph = problem.index, problem.graph
        self.problem, self.model = problem, model
        self.numbers: Numbers | None = None
        last = np.array(index.preds(len(index) - 1), np.int64)
        own = np.arange(len(index))
        if merged is not None:
            launches = {launch: index.launches[launch] for launch in merged}
            pinned = {node for launch, facts in launches.items() for node in (launch, *facts.waits, *facts.inputs)}
            folded = fold(self.graph, sorted(pinned))
            self.graph, folds = folded.graph, folded.folds
            own = np.flatnonzero(folds.root == own)
            self.numbers = Numbers(folds.unit.tolist(), np.searchsorted(own, np.arange(len(index))).tolist())
            last = np.unique(folds.unit[last])
        rows = self.graph.rows
        begins = rows.preds - rows.preds[0]
        # What the last node needs besides is there only since nobody else needs it.
        items = np.append(self.graph.items[rows.preds[0] :][: begins[-2]], last)
        self.preds = Rows(np.append(begins[:-1], len(items)), items)
        self.facts = records(len(own), ("kernel",))
        self.facts.kernel = [index.estimates.work[node] is Work.KERNEL for node in own.tolist()]
        self.pieces = Pieces(problem, model, self.numbers)

    def merged(self, buckets: Sequence[Bucket]) -> Sketch:
        """The graph with these buckets merged; :class:`commcc.apply.order.WaitsForItself` where that has a cycle."""
        graph, in_flight = Drawing(self, buckets).drawn()
        return Sketch(graph, path_bound(graph), bool(graph.nodes.ends.any()), in_flight)

    def piece(self, bucket: Bucket) -> Piece:
        """What a bucket consists of."""
        return self.pieces.of(bucket)
