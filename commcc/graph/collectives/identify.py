"""Gives each collective its role; see the package docstring."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

from commcc.base.terms import Kind, Role
from commcc.graph.collectives.derive import (
    Sink,
    Source,
    fed_by_scatter,
    gathered_inputs,
    launched,
    made_of_inputs,
    reduces_scale,
    walk_back,
    walk_forward,
)
from commcc.graph.collectives.facts import Collective, GroupFacts, Identification
from commcc.graph.collectives.owner import module_of
from commcc.graph.collectives.pieces import REDUCTIONS, Pieces, operands
from commcc.graph.collectives.updates import Updates, updates_input
from commcc.graph.ops.views import GATHERING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex, Launch

_FLOATS = ("float", "bfloat", "complex")
_PARAMETERS = ("ParamAOTInput", "BufferAOTInput")


def identify(index: GraphIndex) -> Identification:
    """Roles, evidence and groups of every collective in the graph."""
    context = _Context(index)
    collectives = tuple(_collective(context, number, launch) for number, launch in index.launches.items())
    groups = _groups(index, collectives)
    return Identification(collectives, groups, _primary(collectives), _warnings(index, groups, collectives))


class _Context:
    """Facts about the whole graph that single roles need."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self.has_parameters = any(_is_parameter(d) for d in index.descriptors.values())
        self.after_compute = _reaches(index, forward=True)
        self.before_compute = _reaches(index, forward=False)
        self.pieces = Pieces(index)
        self.updates = Updates(index)
        self.has_gradients = any("GradAOTOutput" in d for d in index.output_descriptors if d)
        self.gathered = frozenset(gathered_inputs(index))

    def may_be_parameter(self, placeholder: int) -> bool:
        """With descriptors only parameters and buffers count; a tangent never does."""
        if self.has_parameters:
            return _is_parameter(self.index.descriptors.get(placeholder, ""))
        return not self.index.names[placeholder].startswith("tangents")

    def are_gradients(self, sink: Sink) -> bool:
        """With output descriptors, every slot reached must be a gradient; without, all slots count."""
        reached = (self.index.output_descriptors[s] for s in sink.slots)
        return not self.has_gradients or all("GradAOTOutput" in d for d in reached if d is not None)


def _is_parameter(descriptor: str) -> bool:
    return any(word in descriptor for word in _PARAMETERS)


def _reaches(index: GraphIndex, *, forward: bool) -> list[bool]:
    """For every node, whether a compute node comes before it (forward) or after it in the dataflow."""
    reached = list(index.compute)
    order = range(len(index)) if forward else range(len(index) - 1, -1, -1)
    neighbours = index.data_preds if forward else index.users
    for node in order:
        reached[node] = reached[node] or any(reached[n] for n in neighbours[node])
    return reached


def _collective(context: _Context, number: int, launch: Launch) -> Collective:
    index = context.index
    verdict = (
        _annotated(index, number, launch)
        or _told_by_ends(context, number, launch)
        or _recorded(context, number, launch)
        or _activation(context, number, launch)
    )
    role, evidence = verdict.role, verdict.evidence
    tag = index.tags.get(number)
    if tag is not None and tag[0] is not role:
        role, evidence = tag[0], f"tagged: {tag[1]}"
    sent = [index.tensors[i] for i in launch.inputs]
    sent_bytes = sum(t.bytes for t in sent if t is not None)
    entry = index.groups.get(launch.group)
    return Collective(
        launch=number,
        waits=launch.waits,
        kind=launch.kind,
        group=launch.group,
        group_size=launch.group_size or (entry.size if entry else None),
        reduction=launch.reduction,
        dtype=sent[0].dtype if sent and sent[0] is not None else "unknown",
        input_bytes=sent_bytes,
        output_bytes=_output_bytes(index, number, launch, sent_bytes),
        role=role,
        evidence=evidence,
        module=module_of(index, number, launch, verdict.derived, verdict.anchor),
        derived=verdict.derived,
        anchor=verdict.anchor,
        chain=verdict.chain,
        stands_for=len(index.merged_from.get(number, ())) or verdict.stands_for,
        at_end=not (context.after_compute if launch.kind is Kind.ALL_GATHER else context.before_compute)[number],
        unknown=not index.estimates.unknown.isdisjoint((number, *launch.inputs)) or (not sent_bytes and None in sent),
    )


def _output_bytes(index: GraphIndex, number: int, launch: Launch, sent: int) -> int:
    result = index.tensors[number]
    if result is not None:
        return result.bytes
    waited = [index.tensors[w] for w in launch.waits]
    known = sum(t.bytes for t in waited if t is not None)
    return known or sent


class _Verdict(NamedTuple):
    """A role and its evidence; the other fields are those of :class:`Collective`."""

    role: Role
    evidence: str
    derived: str | None = None
    anchor: int | None = None
    chain: tuple[int, ...] = ()
    stands_for: int = 1


def _told_by_ends(context: _Context, number: int, launch: Launch) -> _Verdict | None:
    """What the inputs that a gather comes from tell, or the outputs that a reduction leads to, when that is all."""
    if launch.kind is Kind.ALL_GATHER:
        source = walk_back(context.index, launch.inputs, joining=True)
        if source is None:
            return _prepared(context, number, launch) or _updated(context, number, launch)
        if source.inputs and all(map(context.may_be_parameter, source.inputs)):
            return _gather(context.index, launch, source)
    elif launch.kind in REDUCTIONS:
        sink = walk_forward(context.pieces, launch.waits) if launch.waits else None
        if sink is None:
            return _scale(context, number, launch) or _averaged(context, number, launch)
        if context.are_gradients(sink):
            return _gradient(context.index, number, launch, sink)
    return _activation(context, number, launch)


def _recorded(context: _Context, number: int, launch: Launch) -> _Verdict | None:
    """The role on which the tags of all that was merged agreed, unless the graph contradicts it.

    Parameters come from no compute node, or lead to none where they were updated, and reduced gradients lead to none.
    """
    index = context.index
    role = index.merged_roles.get(number)
    possible = role is Role.FSDP or (role is Role.DDP and launch.kind is Kind.ALL_REDUCE)
    contradicted = context.before_compute[number]
    if launch.kind is Kind.ALL_GATHER:
        contradicted = context.after_compute[number] and (contradicted or not updates_input(index, launch.waits))
    if role is None or not possible or contradicted:
        return None
    return _Verdict(role, f"recorded as {role} when {len(index.merged_from[number])} collectives were merged")


def _annotated(index: GraphIndex, number: int, launch: Launch) -> _Verdict | None:
    """Expert-parallel roles from annotations, or from where an all-to-all's split sizes come from."""
    custom = index.custom.get(number, {})
    if "EP_token_count_exchange" in custom:
        return _Verdict(Role.EP_COUNT, "annotated EP_token_count_exchange")
    if launch.kind is not Kind.ALL_TO_ALL:
        return None
    dtype = _dtype(index, launch)
    phase = custom.get("EP_token_exchange") or custom.get("EP")
    if phase is not None:
        if "EP_token_exchange" not in custom and not dtype.startswith(_FLOATS):
            return _Verdict(Role.EP_COUNT, f"integers exchanged inside the annotated EP {phase}")
        return _Verdict(Role.EP, f"annotated EP {phase}")
    if launch.splits:
        return _Verdict(Role.EP, "split sizes are read from the device")
    if not dtype.startswith(_FLOATS) and _feeds_host(index, launch.waits):
        return _Verdict(Role.EP_COUNT, "integers that the host reads as split sizes")
    return None


def _dtype(index: GraphIndex, launch: Launch) -> str:
    tensor = index.tensors[launch.inputs[0]] if launch.inputs else None
    return tensor.dtype if tensor is not None else "unknown"


def _feeds_host(index: GraphIndex, starts: Sequence[int], limit: int = 200) -> bool:
    """Whether the host reads what is exchanged, soon after: the nearest users are looked at first."""
    queue, seen = deque(starts), set(starts)
    while queue and len(seen) < limit:
        node = queue.popleft()
        if node in index.host_syncs:
            return True
        fresh = [u for u in index.users[node] if u not in seen]
        seen.update(fresh)
        queue.extend(fresh)
    return False


def _gather(index: GraphIndex, launch: Launch, source: Source) -> _Verdict:
    names = [index.names[i] for i in source.inputs]
    if len(names) > 1:
        evidence = f"gathers {len(names)} parameters in one launch, {names[0]} first"
        return _Verdict(Role.FSDP, evidence, "bucket", source.inputs[0], source.chain, len(names))
    steps = f"through {len(source.chain)} op{'s' if len(source.chain) != 1 else ''}" if source.chain else "directly"
    return _Verdict(Role.FSDP, f"gathers {names[0]} {steps}", "param", source.inputs[0], source.chain)


def _prepared(context: _Context, number: int, launch: Launch) -> _Verdict | None:
    """Of a gather of what several parameters, or a parameter and scales, were made into."""
    index, source = context.index, _made_of_parameters(context, number, launch)
    if source is None:
        return None
    parameters = [node for node in source.inputs if context.may_be_parameter(node)]
    others = [index.tensors[node] for node in source.inputs if node not in parameters]
    if not all(tensor is not None and tensor.numel == 1 for tensor in others):
        return None
    joined = [len(operands(index, node)) for node in source.chain if index.ops[node] in GATHERING]
    if len(source.inputs) == 1 and not joined and len(launch.inputs) == 1:
        return _gather(index, launch, source)
    if joined or len(launch.inputs) > 1:
        return _gather(index, launch, source)._replace(stands_for=max([*joined, len(launch.inputs)]))
    sizes = {node: tensor.bytes for node in parameters if (tensor := index.tensors[node]) is not None}
    anchor = max(parameters, key=lambda node: (sizes.get(node, 0), -node))
    more = len(source.inputs) - 1
    evidence = f"gathers {index.names[anchor]} with {more} other input{'s' if more != 1 else ''}"
    return _Verdict(Role.FSDP, evidence, "param", anchor, source.chain)


def _updated(context: _Context, number: int, launch: Launch) -> _Verdict | None:
    """Of a gather of parameters that were updated: whole ones are written, or computed with in the next step. Or of
    what they are updated by.
    """
    if not context.before_compute[number] and updates_input(context.index, launch.waits):
        evidence = "gathers what is written over an input, as a parameter that was updated in shards"
        return _Verdict(Role.FSDP, evidence, "updated")
    source = walk_back(context.index, launch.inputs, joining=True, ends=context.updates.new_values)
    if source is None or not source.inputs or not all(map(context.may_be_parameter, source.inputs)):
        if context.before_compute[number] or not context.updates.are_all_behind(launch.waits):
            return None
        evidence = "gathers what updates of inputs depend on, as compressed gradients, and nothing else does"
        return _Verdict(Role.FSDP, evidence, "updated")
    verdict = _gather(context.index, launch, source)
    evidence = verdict.evidence.replace("gathers", "gathers new values of", 1)
    return verdict._replace(derived="updated", evidence=evidence, chain=())


def _scale(context: _Context, number: int, launch: Launch) -> _Verdict | None:
    """Of an all-reduce of one number that parameters were made into, as the largest element of a weight in shards, by
    which it is scaled before it is gathered.
    """
    if not reduces_scale(context.index, number):
        return None
    source = _made_of_parameters(context, number, launch)
    if source is None or not all(map(context.may_be_parameter, source.inputs)):
        return None
    first, count = context.index.names[source.inputs[0]], launched(context.index, number)
    evidence = f"reduces {count} scales in one launch, of {first} first" if count > 1 else f"reduces a scale of {first}"
    return _Verdict(Role.FSDP, evidence, "scale", source.inputs[0], source.chain)


def _averaged(context: _Context, number: int, launch: Launch) -> _Verdict | None:
    """Of a reduction behind which nothing is computed but what clips gradients, and updates parameters: neither
    multiplies matrices. Activations are added up, and written over no input. Or of one that updates inputs in spite of
    compute behind it (:mod:`commcc.graph.collectives.updates`).
    """
    if not context.after_compute[number]:
        return None
    evidence = "averages what no compute comes behind, as gradients"
    if context.before_compute[number]:
        evidence = "reduces what an input is updated by, and nothing else is made of"
        if not context.updates.are_made_of(launch.waits):
            return None
    elif launch.reduction != "avg":
        evidence = "reduces what an input is updated by"
        if not updates_input(context.index, launch.waits):
            return _norm(context, launch)
    scatters = launch.kind is Kind.REDUCE_SCATTER or fed_by_scatter(context.index, number)
    return _Verdict(Role.FSDP if scatters else Role.DDP, evidence, "terminal")


def _norm(context: _Context, launch: Launch) -> _Verdict | None:
    """Of a reduction of what only scales updates, as the norm of a parameter, or of gradients that are clipped. Where
    parameters are gathered over the group, it is of shards.
    """
    if not context.updates.are_all_behind(launch.waits):
        return None
    shards = any(group == launch.group for _, group in context.gathered)
    evidence = "reduces what updates of inputs depend on, as the norm of a parameter, and nothing else does"
    return _Verdict(Role.FSDP if shards else Role.OTHER, evidence, "terminal")


def _made_of_parameters(context: _Context, number: int, launch: Launch) -> Source | None:
    """What a launch sends, where that is made of parameters, and perhaps of others. Where the graph does not say what
    its parameters are, activations that a backward is given look the same: of one of its inputs, and numbers, by a
    scale that all ranks agree on, or that is gathered too.
    """
    index = context.index
    if context.after_compute[number]:
        return None
    source = made_of_inputs(index, launch.inputs)
    if source is None or not any(map(context.may_be_parameter, source.inputs)):
        return None
    if context.has_parameters:
        return source
    tensors = [index.tensors[node] for node in source.inputs]
    several = sum(tensor is None or tensor.numel != 1 for tensor in tensors) > launched(index, number)
    scales = {number, *source.chain}.intersection(index.launches)
    scaled = any(index.launches[node].reduction == "max" and reduces_scale(index, node) for node in scales)
    group = index.launches[number].group
    scaled = scaled or (len(source.inputs) == 1 and (source.inputs[0], group) in context.gathered)
    return source if scaled and not several else None


def _gradient(index: GraphIndex, number: int, launch: Launch, sink: Sink) -> _Verdict:
    scatters = launch.kind is Kind.REDUCE_SCATTER or any(
        index.launches[r].kind is Kind.REDUCE_SCATTER for r in sink.reductions
    )
    role = Role.FSDP if scatters or fed_by_scatter(index, number) else Role.DDP
    first, count = sink.slots[0] if sink.slots else None, len(sink.slots)
    if first is None:
        evidence = "reduces an accumulated gradient"
    elif sink.mixed:
        evidence = f"leads, joined with others, only to outputs, output {first} first"
    elif count > 1:
        evidence = f"reduces {count} outputs in one launch, output {first} first"
    else:
        evidence = f"reduces output {first}"
    # HSDP reduces in two steps; the second one is of a bucket, or of many gradients, in more than one launch.
    if sink.reductions:
        evidence += " ahead of another reduction" if len(sink.reductions) == 1 else " ahead of other reductions"
    return _Verdict(role, evidence, "terminal", first)


def _activation(context: _Context, number: int, launch: Launch) -> _Verdict:
    index = context.index
    floating = _dtype(index, launch).startswith(_FLOATS)
    if not floating or launch.kind is Kind.BROADCAST:
        return _Verdict(Role.OTHER, f"moves {_dtype(index, launch)} that is neither parameter nor gradient")
    if launch.kind is Kind.ALL_TO_ALL and "_dtensor" not in index.ops[number]:
        return _Verdict(Role.OTHER, "all-to-all without expert-parallel marks or data-dependent splits")
    before, after = context.after_compute[number], context.before_compute[number]
    if before or after:
        where = "between" if before and after else "after" if before else "before"
        return _Verdict(Role.TP, f"activation {where} compute")
    return _Verdict(Role.OTHER, "no compute before or after it")


def _groups(index: GraphIndex, collectives: tuple[Collective, ...]) -> tuple[GroupFacts, ...]:
    facts: list[GroupFacts] = []
    by_ranks: dict[tuple[int, ...], str] = {}
    for name in dict.fromkeys(c.group for c in collectives):
        members = [c for c in collectives if c.group == name]
        entry = index.groups[name]
        twin = by_ranks.setdefault(tuple(sorted(entry.ranks)), name) if entry.ranks else name
        facts.append(
            GroupFacts(
                name=name,
                size=entry.size,
                ranks=entry.ranks,
                description=entry.description,
                roles=dict(Counter(c.role.value for c in members)),
                kinds=dict(Counter(c.kind.value for c in members)),
                wire_bytes=sum(c.wire_bytes for c in members),
                same_ranks_as=twin if twin != name else None,
                origin=entry.origin,
                high_priority=entry.high_priority,
            )
        )
    return tuple(facts)


def _primary(collectives: tuple[Collective, ...]) -> str | None:
    """The group with the most fsdp all-gathers, the first one on a tie; without any, reduce-scatters.

    A bucket counts for all that it was made from, so that bucketing does not change the answer.
    """
    for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
        counts: Counter[str] = Counter()
        for c in collectives:
            if c.role is Role.FSDP and c.kind is kind:
                counts[c.group] += c.stands_for
        if counts:
            return max(counts, key=lambda group: counts[group])  # the first of equals: insertion order
    return None


def _warnings(
    index: GraphIndex, groups: tuple[GroupFacts, ...], collectives: tuple[Collective, ...]
) -> tuple[str, ...]:
    twins = tuple(
        f"groups '{g.same_ranks_as}' and '{g.name}' are the same ranks on different streams"
        for g in groups
        if g.same_ranks_as is not None and g.origin is None
    )
    unsized = sum(c.unknown and max(c.input_bytes, c.output_bytes) == 0 for c in collectives)
    told = f"{unsized} collective{' of unknown size counts' if unsized == 1 else 's of unknown size count'} 0 bytes"
    sizes = (told,) if unsized else ()
    return index.warnings + twins + sizes
