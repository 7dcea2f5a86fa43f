"""What a graph would be, and cost, with buckets merged or duplicates gone: numbers only, no graph is made.

    index, costs = merge(index, model, merging)             # then Problem(index, costs) as for any graph
    index, costs = without(index, model, removal)

Units are those of :mod:`commcc.apply.order`, the form of a bucket is :mod:`commcc.planning.bucket_model`'s. A bucket
becomes a node that copies its members' inputs into one row (inputs that do not lie in a row are copied before, a
shared cast comes after), one launch, one wait, and a result for each member, which is a copy of its slice where the
merged form needs one and a view elsewhere; a coalesced one becomes a launch of all inputs, and a wait for each member.
The result is priced like any graph, so chains that a merge splits or joins are seen.

Limits: an estimate for planners, who try many plans. The result can be simulated, and its memory
computed, but has no fingerprint, names for new nodes only, and no facts that neither needs. Strides are
not known here: what is not contiguous counts as copied where a view might do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from commcc.apply.order import LAUNCH, NODE, RESULT, Unit, arrange
from commcc.base.gc_pause import no_collection
from commcc.graph.index.build import users_of
from commcc.graph.ops.collective_table import COALESCED
from commcc.graph.ops.kernels import COPIES, Work
from commcc.planning.bucket_model import BucketModel, flat, strided

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.graph.index import GraphIndex
    from commcc.graph.index.graph import Launch, Tensor
    from commcc.plan import Bucket, Merging, Removal
    from commcc.timing.cost import CostModel
    from commcc.timing.cost.types import Costs


class _Fact(NamedTuple):
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

    Raises :class:`commcc.apply.order.WaitsForItself` when the buckets form a cycle.
    """
    merged = _Merge(index, merging).result()
    return merged, model.price(merged)


@no_collection()
def without(index: GraphIndex, model: CostModel, removal: Removal) -> tuple[GraphIndex, Costs]:
    """Index and costs of the graph in which one gather stands for all that gather the same."""
    from commcc.plan import Merging

    stands_for: dict[int, int | None] = {}
    for each in removal.duplicates:
        stands_for |= dict.fromkeys(each.dead) | dict.fromkeys(each.drop, each.keep)
        stands_for |= dict.fromkeys(each.waits, each.wait)
    reduced = _Merge(index, Merging(()), stands_for).result()
    return reduced, model.price(reduced)


class _Merge:
    """stands_for: of nodes that go, those that have their value; None for those whose value nothing needs."""

    def __init__(self, index: GraphIndex, merging: Merging, stands_for: Mapping[int, int | None] | None = None) -> None:
        self.index = index
        self.gone = stands_for or {}
        self.buckets = merging.buckets
        self.units = arrange(index, merging)
        self.facts: list[_Fact] = []
        self.at: dict[int, int] = {}  # new number of an old node, or of what stands for it
        self.buffer_bytes = list(index.estimates.buffer_bytes)
        self.same_buffer: dict[int, int] = {}
        self.launches: dict[int, Launch] = {}
        self.launch_of: dict[int, int] = {}
        self.wait_of: dict[int, int] = {}
        self.models: dict[int, BucketModel] = {}
        self.parts: dict[int, tuple[Tensor, ...]] = {}

    def result(self) -> GraphIndex:
        for unit in self.units:
            if unit.kind == NODE:
                self._node(unit.number)
            elif unit.kind == LAUNCH:
                self._launch(unit.number, self.buckets[unit.number])
            elif unit.kind == RESULT:
                self._member(unit)
            else:
                self._wait(unit.number, self.buckets[unit.number])
        return self._index()

    def _node(self, node: int) -> None:
        index, estimates = self.index, self.index.estimates
        if node in self.gone:
            other = self.gone[node]
            if other is not None:
                self.at[node] = self.at[other]
                shared = self.facts[self.at[other]].buffers
                self.same_buffer.update(zip(estimates.buffers[node], shared, strict=True))
            return
        buffers = estimates.buffers[node]
        if not self.same_buffer.keys().isdisjoint(buffers):
            buffers = tuple(dict.fromkeys(self.same_buffer.get(b, b) for b in buffers))
        at, order_preds = self.at, index.order_preds[node]
        preds = tuple([at[pred] for pred in index.data_preds[node]])
        fact = _Fact(
            index.names[node],
            index.ops[node],
            tuple(dict.fromkeys(preds)) if len(preds) > 1 else preds,
            # What was left out with a gather did nothing before this node that the other gather does not do.
            self._new(p for p in order_preds if p in at) if order_preds else (),
            index.tensors[node],
            buffers,
            estimates.work[node],
            index.compute[node],
        )
        at[node] = len(self.facts)
        self.facts.append(fact)
        launch = index.launches.get(node)
        if launch is not None:
            self.launches[at[node]] = launch

    def _launch(self, number: int, bucket: Bucket) -> None:
        """The merged launch, and what it sends: the members' inputs in one row, cast if they were."""
        index = self.index
        first = bucket.members[0]
        name = f"{bucket.kind}_bucket_{number}"
        model = self.models[number] = BucketModel.planned(index, bucket)
        if bucket.coalesced:
            self._call(number, name, model)
            return
        parts: list[int] = []
        seen: set[int] = set()
        for place, (source, tensor) in enumerate(zip(model.nodes, model.parts, strict=True)):
            parts.append(self._part(f"{name}_in{place}", source, tensor, again=source in seen))
            seen.add(source)
        order = self._new(p for member in model.members for p in index.order_preds[member.launch])
        sent = self._written(f"{name}_cat", "aten.cat", parts, order, tensor=model.joined)
        if model.shared_cast:
            cast = model.members[0].input
            work = index.estimates.work[cast]
            sent = self._written(f"{name}_cast", index.ops[cast], [sent], (), tensor=model.sent, work=work)
        launched = self._add(
            _Fact(
                name=name,
                op=index.ops[first],
                preds=(sent,),
                order_preds=(),
                tensor=model.received,
                buffers=(self._buffer(model.received.bytes),),
                work=Work.KERNEL,
            )
        )
        self.launch_of[number] = launched
        self.at.update((m, launched) for m in bucket.members)
        self.launches[launched] = replace(index.launches[first], inputs=(sent,))
        if bucket.shared_cast:
            self.at.update((member.input, launched) for member in model.members)

    def _call(self, number: int, name: str, model: BucketModel) -> None:
        """One launch of all members, as they are; each has the buffers that its own launch had."""
        index, launches = self.index, [member.launch for member in model.members]
        op = index.ops[launches[0]] + COALESCED
        buffers = tuple(b for launch in launches for b in index.estimates.buffers[launch])
        sent = self._new(member.input for member in model.members)
        order = tuple(p for p in self._new(p for n in launches for p in index.order_preds[n]) if p not in sent)
        launched = self._add(_Fact(name, op, sent, order, None, buffers, Work.KERNEL))
        self.launch_of[number] = launched
        self.at.update((launch, launched) for launch in launches)
        inputs = tuple(self.at[member.input] for member in model.members)
        self.launches[launched] = replace(index.launches[launches[0]], inputs=inputs, coalesced=True)
        self.parts[launched] = tuple(member.result for member in model.members)

    def _waits(self, number: int) -> None:
        """A coalesced launch's results, each with its own wait."""
        index, launched, waits = self.index, self.launch_of[number], list[int]()
        for place, member in enumerate(self.models[number].members):
            buffers, tensor = index.estimates.buffers[member.launch], index.tensors[member.wait]
            name = f"{self.facts[launched].name}_part{place}"
            part = self._add(_Fact(name, "operator.getitem", (launched,), (), tensor, buffers, Work.FREE))
            after = self._new(p for p in index.order_preds[member.wait] if p in self.at)
            own = index.names[member.wait], index.ops[member.wait]
            waits.append(self._add(_Fact(*own, (part,), after, tensor, buffers, Work.FREE)))
            self.at[member.wait] = waits[-1]
        self.launches[launched] = replace(self.launches[launched], waits=tuple(waits))

    def _part(self, name: str, source: int, tensor: Tensor, *, again: bool) -> int:
        """The new number of an input; of a copy of it where its elements do not lie in a row.

        again: another member sends it too. It is read once more then, through a view of its own.
        """
        if strided(tensor):
            return self._written(name, "aten.reshape", [self.at[source]], (), tensor=flat([tensor]))
        if not again or len(tensor.shape) < 2:
            return self.at[source]
        at = self.at[source]
        return self._add(_Fact(name, "aten.reshape", (at,), (), flat([tensor]), self.facts[at].buffers, Work.FREE))

    def _written(
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

    def _wait(self, number: int, bucket: Bucket) -> None:
        if bucket.coalesced:
            self._waits(number)
            return
        launched = self.launch_of[number]
        waits = [self.index.launches[m].waits[0] for m in bucket.members]
        after = self._new(p for w in waits for p in self.index.order_preds[w] if p in self.at)
        fact = self.facts[launched]
        fact = fact._replace(name=f"{fact.name}_wait", op=self.index.ops[waits[0]], work=Work.FREE)
        wait = self._add(fact._replace(preds=(launched,), order_preds=tuple(p for p in after if p != launched)))
        self.wait_of[number] = wait
        self.launches[launched] = replace(self.launches[launched], waits=(wait,))

    def _member(self, unit: Unit) -> None:
        """One member's result: its slice, and the copies of it that the form has; else a view."""
        index, model = self.index, self.models[unit.number]
        wait = model.members[unit.member].wait
        name, tensor, own = index.names[wait], index.tensors[wait], index.estimates.buffers[wait]
        merged = self.wait_of[unit.number]
        shared = self.facts[merged].buffers
        source = self._add(_Fact(f"{name}_part", "operator.getitem", (merged,), (), tensor, shared, Work.FREE))
        copies = model.result_copies(unit.member)
        for op in copies[:-1]:
            source = self._written(
                f"{name}_own", op, [source], (), tensor=model.members[unit.member].result, work=COPIES[op]
            )
        if copies:
            fact = _Fact(name, copies[-1], (source,), (), tensor, own, COPIES[copies[-1]])
        else:
            self.same_buffer.update((b, shared[0]) for b in own)
            fact = _Fact(name, "aten.reshape", (source,), (), tensor, shared, Work.FREE)
        self.at[wait] = self._add(fact)

    def _add(self, fact: _Fact) -> int:
        self.facts.append(fact)
        return len(self.facts) - 1

    def _new(self, nodes: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(map(self.at.__getitem__, nodes)))

    def _buffer(self, size: int) -> int:
        self.buffer_bytes.append(size)
        return len(self.buffer_bytes) - 1

    def _launches(self) -> dict[int, Launch]:
        """Launches in order; those of buckets have new numbers already."""
        merged = set(self.launch_of.values())
        return {
            node: launch
            if node in merged
            else replace(
                launch,
                inputs=self._new(launch.inputs),
                waits=tuple(self.at[w] for w in launch.waits),
                writes_to=self._new(launch.writes_to),
                splits=self._new(launch.splits),
            )
            for node, launch in sorted(self.launches.items())
        }

    def _merged_from(self) -> dict[int, tuple[str, ...]]:
        """Names of the launches that each merged one stands for."""
        names = self.index.names
        return {
            self.launch_of[number]: tuple(names[launch] for launch in bucket.members)
            for number, bucket in enumerate(self.buckets)
        }

    def _index(self) -> GraphIndex:
        index, facts = self.index, self.facts
        here = self.at
        names, ops, data_preds, order_preds, tensors, buffers, work, compute = zip(*facts, strict=True)
        launches = self._launches()
        estimates = replace(
            index.estimates,
            parts={here[n]: parts for n, parts in index.estimates.parts.items() if n in here} | self.parts,
            buffers=buffers,
            buffer_bytes=tuple(self.buffer_bytes),
            resizes={here[n]: size for n, size in index.estimates.resizes.items() if n in here},
            work=work,
            flops={here[n]: flops for n, flops in index.estimates.flops.items() if n in here},
            unmasked=frozenset(here[n] for n in index.estimates.unmasked if n in here),
        )
        return replace(
            index,
            fingerprint="",
            names=names,
            ops=ops,
            data_preds=data_preds,
            order_preds=order_preds,
            users=users_of(data_preds),
            storages=buffers,
            tensors=tensors,
            modules=(None,) * len(facts),
            compute=compute,
            casts={},
            custom={},
            descriptors={},
            outputs=tuple(None if n is None else here[n] for n in index.outputs),
            tags={},
            merged_from={here[n]: names for n, names in index.merged_from.items() if n in here} | self._merged_from(),
            launches=launches,
            wait_of={wait: node for node, launch in launches.items() for wait in launch.waits},
            writes={here[n]: self._new(targets) for n, targets in index.writes.items()},
            barriers=tuple(here[n] for n in index.barriers),
            host_syncs=frozenset(here[n] for n in index.host_syncs),
            host_copies={here[n]: free for n, free in index.host_copies.items()},
            estimates=estimates,
            inside={here[n]: graphs for n, graphs in index.inside.items() if n in here},
        )
