"""What merging collectives costs and saves, before anything is simulated.

    worth = Worth(index, model, costs, timeline)
    worth.copies(members)       # ns on the compute stream: copies in and out of the bucket
    worth.latency(members)      # ns on the group's queue: what one transfer is shorter than several
    relief.take(members, ns)    # how much of that the step can gain at most

Copies are those of the merged form (see :mod:`commcc.apply.merge`): one concatenation, a copy before it for
each input that does not lie in a row, one cast in place of the members' where they share it, and a copy of
each slice that is in pieces or returned. A launch less on the compute stream is counted with what is saved.

A shorter transfer makes the step shorter by no more than what is exposed of it and of the transfers that
queue behind it without a pause: that much relief there is, and it is given out once.

Limits: an estimate by which planners choose; neighbours that a compiler would fuse with the copies count as
if they were not fused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.timing.cost.types import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.graph.index.graph import Tensor
    from commcc.timing.cost import CostModel, Costs
    from commcc.timing.simulate import Timeline


@dataclass(frozen=True)
class _Own:
    """What one member adds to a bucket's copies. sent, cast: of the tensor that is concatenated, before and after a
    cast that it could share; cast_ns: what its own cast takes; ns: its other copies.
    """

    sent: Tensor
    cast: Tensor
    cast_key: object
    cast_ns: int
    ns: int


class Worth:
    """Prices of buckets of one graph."""

    def __init__(self, index: GraphIndex, model: CostModel, costs: Costs) -> None:
        self._index, self._model, self._costs = index, model, costs
        self._own: dict[int, _Own] = {}
        self._priced: dict[Operation, int] = {}

    def transfer(self, members: Sequence[Collective]) -> int:
        """Time of the merged transfer, in ns."""
        if len(members) == 1:
            return self._costs.ns[members[0].launch]
        transfer, _ = self._model.transfer_of(self._index, members[0].launch)
        sent = sum(c.input_bytes for c in members)
        got = sum(c.output_bytes for c in members)
        return self._model.transfer(replace(transfer, input_bytes=sent, output_bytes=got)).ns

    def latency(self, members: Sequence[Collective]) -> int:
        """What the merged transfer is shorter than the members' together, in ns; 0 if it is longer."""
        return max(0, sum(self._costs.ns[c.launch] for c in members) - self.transfer(members))

    def launches(self, members: Sequence[Collective]) -> int:
        """What launching takes less of the compute stream, in ns."""
        return (len(members) - 1) * self._costs.launch_ns

    def copies(self, members: Sequence[Collective]) -> int:
        """Time of copies into and out of a bucket, in ns, less the time of casts that it replaces."""
        own = [self._member(c) for c in members]
        keys = {each.cast_key for each in own}
        shared = len(keys) == 1 and None not in keys
        parts = [each.sent if shared else each.cast for each in own]
        mixed = len({part.dtype for part in parts}) > 1
        total = self._copy("aten.cat", _whole(parts)) + sum(each.ns for each in own)
        if shared:
            whole = _whole([each.cast for each in own])
            total += self._copy("aten._to_copy", whole, read=_whole(parts).bytes) - sum(each.cast_ns for each in own)
        if mixed:
            total += sum(self._copy("aten.clone", each.cast) for each in own)
        return total

    def _member(self, member: Collective) -> _Own:
        if member.launch not in self._own:
            self._own[member.launch] = self._measured(member)
        return self._own[member.launch]

    def _measured(self, member: Collective) -> _Own:
        index = self._index
        node = index.launches[member.launch].inputs[0]
        key = index.casts.get(node) if len(index.users[node]) == 1 else None
        source = index.data_preds[node][0] if key is not None else node
        cast, sent, result = index.tensors[node], index.tensors[source], index.tensors[member.waits[0]]
        assert cast is not None
        assert result is not None
        scattered = member.kind is Kind.ALL_GATHER and (member.group_size or 0) > 1
        returned = not scattered and not index.output_storages.isdisjoint(index.storages[member.waits[0]])
        ns = self._copy("aten.reshape", cast) if not cast.contiguous and len(cast.shape) > 1 else 0
        ns += self._copy("aten.reshape", result) if scattered else 0
        ns += self._copy("aten.clone", result) if returned else 0
        return _Own(sent or cast, cast, key if sent is not None else None, self._costs.ns[node], ns)

    def _copy(self, op: str, tensor: Tensor, read: int | None = None) -> int:
        """Time of a kernel that writes a tensor, and reads as much if nothing else is said."""
        size = tensor.bytes
        asked = Operation(op, (tensor,), (tensor,), read_bytes=size if read is None else read, written_bytes=size)
        if asked not in self._priced:
            self._priced[asked] = self._model.operation(asked).ns
        return self._priced[asked]


class Relief:
    """How much a step can gain from shorter transfers, for each stretch in which a lane does not pause."""

    def __init__(self, timeline: Timeline) -> None:
        self._stretch: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        lanes: dict[str, list[int]] = {}
        for launch, span in timeline.spans.items():
            lanes.setdefault(span.lane, []).append(launch)
        for queue in lanes.values():
            self._add(sorted(queue, key=lambda n: (timeline.spans[n].start, timeline.spans[n].end, n)), timeline)

    def _add(self, queue: Sequence[int], timeline: Timeline) -> None:
        behind, following = 0, None
        for launch in reversed(queue):
            span = timeline.spans[launch]
            if following is None or span.end < timeline.spans[following].start:
                behind, self._taken[launch] = 0, 0
                stretch = launch
            behind += timeline.exposed.get(launch, 0)
            self._stretch[launch], self._behind[launch] = stretch, behind
            following = launch

    def take(self, members: Sequence[Collective], wanted: int, had: Mapping[int, int]) -> dict[int, int]:
        """As much of ``wanted`` ns as is there for these members, by stretch. had: what they took before."""
        most: dict[int, int] = {}
        for launch in (c.launch for c in members):
            stretch = self._stretch[launch]
            most[stretch] = max(most.get(stretch, 0), self._behind[launch])
        found: dict[int, int] = {}
        for stretch, ns in most.items():
            left = ns - self._taken[stretch] + had.get(stretch, 0)
            found[stretch] = max(0, min(left, wanted - sum(found.values())))
        return found

    def settle(self, now: Mapping[int, int], had: Mapping[int, int]) -> None:
        """Note what a bucket takes now in place of what it had."""
        for stretch in now.keys() | had.keys():
            self._taken[stretch] += now.get(stretch, 0) - had.get(stretch, 0)


def _whole(parts: Sequence[Tensor]) -> Tensor:
    """One flat tensor with the bytes of all."""
    itemsize = parts[0].itemsize
    count = sum(part.bytes for part in parts) // itemsize
    return replace(parts[0], shape=(count,), numel=count, contiguous=True)
