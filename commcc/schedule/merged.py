"""What a graph would be, and cost, with buckets merged: numbers only, no graph is made.

    index, costs = merge(index, model, merging)     # then Problem(index, costs) as for any graph

Units are those of :mod:`commcc.apply.order`. A bucket becomes a node that copies its members' inputs
side by side (inputs that do not lie in a row are copied before, a shared cast comes after), one launch, one
wait, and a result for each member, which is a copy of its slice where the merged form needs one and a view
elsewhere. The result is priced like any graph, so chains that a merge splits or joins are seen.

Limits: an estimate for planners, who try many plans. The result can be simulated, and its memory
computed, but has no fingerprint, names for new nodes only, and no facts that neither needs. Strides are
not known here: what is not contiguous counts as copied where a view might do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.apply.order import LAUNCH, NODE, RESULT, Unit, arrange
from commcc.base.gc_pause import no_collection
from commcc.base.terms import Kind
from commcc.graph.index.build import users_of
from commcc.graph.ops.kernels import Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.graph.index import GraphIndex
    from commcc.graph.index.graph import Launch, Tensor
    from commcc.plan import Bucket, Merging
    from commcc.timing.cost import CostModel
    from commcc.timing.cost.types import Costs


@dataclass(frozen=True)
class _Fact:
    """All that is known of one node of the merged graph; preds are node numbers there."""

    name: str
    op: str
    preds: tuple[int, ...]
    order_preds: tuple[int, ...]
    tensor: Tensor | None
    buffers: tuple[int, ...]
    work: Work
    compute: bool = False


@no_collection()
def merge(index: GraphIndex, model: CostModel, merging: Merging) -> tuple[GraphIndex, Costs]:
    """Index and costs of the graph with buckets merged.

    Raises :class:`commcc.base.errors.InternalError` when the buckets form a cycle.
    """
    merged = _Merge(index, merging).result()
    return merged, model.price(merged)


class _Merge:
    def __init__(self, index: GraphIndex, merging: Merging) -> None:
        self.index = index
        self.buckets = merging.buckets
        self.units = arrange(index, merging)
        self.facts: list[_Fact] = []
        self.at: dict[int, int] = {}  # new number of an old node, or of what stands for it
        self.buffer_bytes = list(index.estimates.buffer_bytes)
        self.same_buffer: dict[int, int] = {}
        self.launches: dict[int, Launch] = {}
        self.launch_of: dict[int, int] = {}
        self.wait_of: dict[int, int] = {}

    def result(self) -> GraphIndex:
        for unit in self.units:
            if unit.sort == NODE:
                self._node(unit.number)
            elif unit.sort == LAUNCH:
                self._launch(unit.number, self.buckets[unit.number])
            elif unit.sort == RESULT:
                self._member(unit, self.buckets[unit.number])
            else:
                self._wait(unit.number, self.buckets[unit.number])
        return self._index()

    def _node(self, node: int) -> None:
        index, estimates = self.index, self.index.estimates
        buffers = tuple(dict.fromkeys(self.same_buffer.get(b, b) for b in estimates.buffers[node]))
        self.at[node] = self._add(
            _Fact(
                name=index.names[node],
                op=index.ops[node],
                preds=self._new(index.data_preds[node]),
                order_preds=self._new(index.order_preds[node]),
                tensor=index.tensors[node],
                buffers=buffers,
                work=estimates.work[node],
                compute=index.compute[node],
            )
        )
        launch = index.launches.get(node)
        if launch is not None:
            self.launches[self.at[node]] = launch

    def _launch(self, number: int, bucket: Bucket) -> None:
        index = self.index
        first = bucket.members[0]
        name = f"{bucket.kind}_bucket_{number}"
        copy = self._copied_in(name, bucket)
        results = _whole([t for m in bucket.members if (t := index.tensors[m]) is not None], bucket.as_bytes)
        launched = self._add(
            _Fact(
                name=name,
                op=index.ops[first],
                preds=(copy,),
                order_preds=(),
                tensor=results,
                buffers=(self._buffer(results.bytes),),
                work=Work.KERNEL,
            )
        )
        self.launch_of[number] = launched
        self.at.update((m, launched) for m in bucket.members)
        self.launches[launched] = replace(index.launches[first], inputs=(copy,))
        if bucket.shared_cast:
            self.at.update((index.launches[m].inputs[0], launched) for m in bucket.members)

    def _copied_in(self, name: str, bucket: Bucket) -> int:
        """The node that the merged launch sends: the members' inputs side by side, cast if they were."""
        index = self.index
        sources = [s for m in bucket.members for s in self._sources(bucket, m)]
        tensors = [index.tensors[s] for s in sources]
        first = {source: place for place, source in reversed(list(enumerate(sources)))}
        parts = [self._flat(f"{name}_in{n}", source, again=first[source] < n) for n, source in enumerate(sources)]
        order = self._new(p for m in bucket.members for p in index.order_preds[m])
        together = _whole([t for t in tensors if t is not None], bucket.as_bytes)
        copy = self._made(f"{name}_cat", "aten.cat", parts, order, tensor=together)
        if not bucket.shared_cast:
            return copy
        casts = [index.launches[m].inputs[0] for m in bucket.members]
        whole = _whole([t for c in casts if (t := index.tensors[c]) is not None], as_bytes=False)
        return self._made(
            f"{name}_cast", index.ops[casts[0]], [copy], (), tensor=whole, work=index.estimates.work[casts[0]]
        )

    def _flat(self, name: str, source: int, *, again: bool) -> int:
        """The new number of an input; of a copy of it where its elements do not lie in a row.

        again: another member sends it too. It is read once more then, through a view of its own.
        """
        tensor = self.index.tensors[source]
        if tensor is None or len(tensor.shape) < 2 or (tensor.contiguous and not again):
            return self.at[source]
        if tensor.contiguous:
            at, flat = self.at[source], _whole([tensor], as_bytes=False)
            return self._add(_Fact(name, "aten.reshape", (at,), (), flat, self.facts[at].buffers, Work.FREE))
        return self._made(name, "aten.reshape", [self.at[source]], (), tensor=_whole([tensor], as_bytes=False))

    def _made(
        self,
        name: str,
        op: str,
        preds: Iterable[int],
        after: tuple[int, ...],
        *,
        tensor: Tensor,
        work: Work = Work.KERNEL,
    ) -> int:
        """Add a node that writes a tensor of its own."""
        buffers = (self._buffer(tensor.bytes),)
        return self._add(_Fact(name, op, tuple(dict.fromkeys(preds)), after, tensor, buffers, work))

    def _sources(self, bucket: Bucket, member: int) -> tuple[int, ...]:
        inputs = self.index.launches[member].inputs
        return self.index.data_preds[inputs[0]] if bucket.shared_cast else inputs

    def _wait(self, number: int, bucket: Bucket) -> None:
        launched = self.launch_of[number]
        waits = [self.index.launches[m].waits[0] for m in bucket.members]
        after = self._new(p for w in waits for p in self.index.order_preds[w] if p in self.at)
        fact = replace(
            self.facts[launched], name=f"{self.facts[launched].name}_wait", op=self.index.ops[waits[0]], work=Work.FREE
        )
        wait = self._add(replace(fact, preds=(launched,), order_preds=tuple(p for p in after if p != launched)))
        self.wait_of[number] = wait
        self.launches[launched] = replace(self.launches[launched], waits=(wait,))

    def _member(self, unit: Unit, bucket: Bucket) -> None:
        index, member = self.index, bucket.members[unit.member]
        wait = index.launches[member].waits[0]
        name, tensor, own = index.names[wait], index.tensors[wait], index.estimates.buffers[wait]
        merged = self.wait_of[unit.number]
        shared = self.facts[merged].buffers
        copies, scattered = bucket.copies[unit.member], _scattered(index.launches[member])
        source = self._add(_Fact(f"{name}_part", "operator.getitem", (merged,), (), tensor, shared, Work.FREE))
        if bucket.as_bytes and copies and tensor is not None:  # one copy in a row, one to return
            source = self._made(f"{name}_own", "aten.clone", [source], (), tensor=tensor, work=Work.FUSABLE)
        if copies or bucket.as_bytes:
            fact = _Fact(name, "aten.clone", (source,), (), tensor, own, Work.FUSABLE)
        elif scattered:
            fact = _Fact(name, "aten.reshape", (source,), (), tensor, own, Work.KERNEL)
        else:
            self.same_buffer.update((b, shared[0]) for b in own)
            fact = _Fact(name, "aten.reshape", (source,), (), tensor, shared, Work.FREE)
        self.at[wait] = self._add(fact)

    def _add(self, fact: _Fact) -> int:
        self.facts.append(fact)
        return len(self.facts) - 1

    def _new(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.at[node] for node in nodes))

    def _buffer(self, size: int) -> int:
        self.buffer_bytes.append(size)
        return len(self.buffer_bytes) - 1

    def _launches(self) -> dict[int, Launch]:
        """Launches in order; those of buckets have new numbers already."""
        made = set(self.launch_of.values())
        return {
            node: launch
            if node in made
            else replace(
                launch,
                inputs=self._new(launch.inputs),
                waits=tuple(self.at[w] for w in launch.waits),
                writes_to=self._new(launch.writes_to),
                splits=self._new(launch.splits),
            )
            for node, launch in sorted(self.launches.items())
        }

    def _index(self) -> GraphIndex:
        index, facts = self.index, self.facts
        here = self.at
        data_preds = tuple(fact.preds for fact in facts)
        launches = self._launches()
        estimates = replace(
            index.estimates,
            parts={here[n]: parts for n, parts in index.estimates.parts.items() if n in here},
            buffers=tuple(fact.buffers for fact in facts),
            buffer_bytes=tuple(self.buffer_bytes),
            resizes={here[n]: size for n, size in index.estimates.resizes.items()},
            work=tuple(fact.work for fact in facts),
            flops={here[n]: flops for n, flops in index.estimates.flops.items()},
        )
        return replace(
            index,
            fingerprint="",
            names=tuple(fact.name for fact in facts),
            ops=tuple(fact.op for fact in facts),
            data_preds=data_preds,
            order_preds=tuple(fact.order_preds for fact in facts),
            users=users_of(data_preds),
            storages=tuple(fact.buffers for fact in facts),
            tensors=tuple(fact.tensor for fact in facts),
            modules=(None,) * len(facts),
            compute=tuple(fact.compute for fact in facts),
            casts={},
            custom={},
            descriptors={},
            outputs=tuple(None if n is None else here[n] for n in index.outputs),
            tags={},
            merged_from={},
            launches=launches,
            wait_of={wait: node for node, launch in launches.items() for wait in launch.waits},
            writes={here[n]: self._new(targets) for n, targets in index.writes.items()},
            barriers=tuple(here[n] for n in index.barriers),
            host_syncs=frozenset(here[n] for n in index.host_syncs),
            host_copies={here[n]: free for n, free in index.host_copies.items()},
            estimates=estimates,
        )


def _whole(parts: list[Tensor], as_bytes: bool) -> Tensor:
    """One flat tensor with the elements of all."""
    if as_bytes:
        count = sum(t.bytes for t in parts)
        return replace(parts[0], dtype="uint8", itemsize=1, shape=(count,), numel=count, contiguous=True)
    count = sum(t.numel or 0 for t in parts)
    return replace(parts[0], shape=(count,), numel=count, contiguous=True)


def _scattered(launch: Launch) -> bool:
    """Whether a member's slice of the merged result is in pieces: it has to be copied together."""
    return launch.kind is Kind.ALL_GATHER and (launch.group_size or 0) > 1
