"""What a graph would be with buckets merged, as arrays made from those of the graph before.

    sketches = Sketches(problem, model)             # of the graph without buckets
    sketch = sketches.merged(buckets)
    glance(sketch, limits, 2)                       # as on a Problem

The same units, nodes and buffers as :mod:`commcc.schedule.merged` has, for planners that compare many bucketings: what
no bucket concerns is copied from one array to another, and only what buckets consist of is made one by one. Copies are
priced alone, as :mod:`commcc.planning.merge_cost` does.

Limits: chains of pointwise ops that a merge splits or joins keep their prices; ``merged`` sees that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.graph.memory import resized
from commcc.planning.bucket_model import BucketModel, Kernel, Member, flat, strided
from commcc.schedule.arrays import TABLES, Graph, Ints
from commcc.schedule.drawing import Drawing
from commcc.schedule.paths import path_bound
from commcc.schedule.problem import Bounds, Limits, kernel_bounds
from commcc.timing.cost.types import Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def bounds(self, limits: Limits) -> Bounds:
        """Limits for kernels."""
        return kernel_bounds(limits, self.own_in_flight)


class Piece(NamedTuple):
    """What one bucket consists of, whatever stands around it. ns and bytes of its nodes.

    sources: for each part the node that it is read from, and bytes of the copy of it, -1 for a view, -2 for the node
    itself. cast_bytes: -1 without a shared cast. results: ns and bytes of copies of each member's slice, the last of
    which has the buffers of the member's wait; none where it is a view.
    """

    launches: tuple[int, ...]
    waits: tuple[int, ...]
    inputs: tuple[int, ...]
    sources: tuple[tuple[int, int, int], ...]
    joined: tuple[int, int]
    cast: tuple[int, int]
    received: int
    transfer: int
    flight: int
    results: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def launch_size(self) -> int:
        """Nodes of the launch, what makes its input included."""
        return sum(made > -2 for _, made, _ in self.sources) + (self.joined[0] >= 0) + (self.cast[0] >= 0) + 1


class Sketches:
    """Arrays of one graph, from which merged ones are made; and prices of buckets, each asked for once."""

    def __init__(self, problem: Problem, model: CostModel) -> None:
        index, graph = problem.index, problem.graph
        self.problem, self.model = problem, model
        count = len(index)
        self.own = {name: self._table(graph, name) for name in TABLES}
        owners, items = self.own["preds"]
        last = np.array(index.preds(count - 1), np.int64)  # the others are there only since nobody needs them
        kept = owners < count - 1
        self.own["preds"] = np.append(owners[kept], np.full(len(last), count - 1)), np.append(items[kept], last)
        self.resizes = {node: resized(index, node) for node in index.estimates.resizes}
        self.free_ns = round(1000 * model.settings.free_us)
        self._members: dict[int, Member] = {}
        self._pieces: dict[Bucket, Piece] = {}
        self._prices: dict[Operation, int] = {}

    @staticmethod
    def _table(graph: Graph, name: str) -> tuple[Ints, Ints]:
        """One of :data:`TABLES` as pairs of a node and what stands in its row."""
        begins = graph.rows[name]
        return np.repeat(np.arange(len(begins) - 1), np.diff(begins)), graph.items[begins[0] : begins[-1]]

    def merged(self, buckets: Sequence[Bucket]) -> Sketch:
        """The graph with these buckets merged; :class:`commcc.apply.order.WaitsForItself` where that has a cycle."""
        graph, in_flight = Drawing(self, buckets).drawn()
        return Sketch(graph, path_bound(graph), bool(graph.nodes.ends.any()), in_flight)

    def piece(self, bucket: Bucket) -> Piece:
        """What a bucket consists of."""
        if bucket not in self._pieces:
            self._pieces[bucket] = self._piece(bucket)
        return self._pieces[bucket]

    def _piece(self, bucket: Bucket) -> Piece:
        index = self.problem.index
        for launch in bucket.members:
            if launch not in self._members:
                self._members[launch] = Member.of(index, launch)
        members = tuple(self._members[launch] for launch in bucket.members)
        model = BucketModel(members, bucket.shared_cast, bucket.as_bytes, bucket.copies, bucket.coalesced)
        sent, got = sum(m.sends.bytes for m in members), sum(m.result.bytes for m in members)
        if bucket.coalesced:
            price = self.model.group_call([self.model.transfer_of(index, n)[0] for n in bucket.members])
        else:
            first = self.model.transfer_of(index, bucket.members[0])[0]
            price = self.model.transfer(replace(first, input_bytes=sent, output_bytes=got))
        made = [(kernel[1].bytes, self._price(kernel)) for kernel in model.kernels()] + [(-1, 0), (-1, 0)]
        results = tuple(
            tuple((self._price((op, m.result, m.result.bytes)), m.result.bytes) for op in model.result_copies(place))
            for place, m in enumerate(members)
        )
        return Piece(
            launches=bucket.members,
            waits=tuple(m.wait for m in members),
            inputs=tuple(m.input for m in members),
            sources=self._sources(model),
            joined=made[0],
            cast=made[1],
            received=got,
            transfer=price.ns,
            flight=max(sent, got),
            results=results,
        )

    def _sources(self, model: BucketModel) -> tuple[tuple[int, int, int], ...]:
        """See :class:`Piece`."""
        sources: list[tuple[int, int, int]] = []
        seen: set[int] = set()
        for source, part in zip(model.nodes, model.parts, strict=True):
            if model.coalesced:
                sources.append((source, -2, 0))
            elif strided(part):
                sources.append((source, part.bytes, self._price(("aten.reshape", flat([part]), part.bytes))))
            else:
                viewed = source in seen and len(part.shape) > 1
                sources.append((source, -1, self.free_ns) if viewed else (source, -2, 0))
            seen.add(source)
        return tuple(sources)

    def _price(self, kernel: Kernel) -> int:
        op, to, read = kernel
        asked = Operation(op, (to,), (to,), read_bytes=read, written_bytes=to.bytes)
        if asked not in self._prices:
            self._prices[asked] = self.model.operation(asked).ns
        return self._prices[asked]
