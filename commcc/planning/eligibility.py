"""Which collectives may be merged at all, and why the others may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.errors import OptionError, closest
from commcc.base.reasons import Reason
from commcc.base.terms import Kind
from commcc.plan import LeftOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex

_REDUCTIONS = (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
_SHARDED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
_BUCKETED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)


def is_taggable(collective: Collective) -> bool:
    """A gather of one parameter, to be used or once it is updated, a reduction that only leads to outputs or updates,
    or an all-reduce of a parameter's scale.
    """
    if collective.kind is Kind.ALL_GATHER:
        return collective.derived in ("param", "updated")
    return collective.kind in _REDUCTIONS and collective.derived in ("terminal", "scale")


def select_groups(ident: Identification, groups: str | tuple[str, ...]) -> frozenset[str]:
    """Names of the groups that take part; an unknown name is an :class:`OptionError`."""
    if groups == "all":
        return frozenset(g.name for g in ident.groups)
    if groups == "primary":
        # With what was split off it, and what it was split off: the groups pass moves collectives between these.
        family = {g.family for g in ident.groups if g.name == ident.primary}
        return frozenset(g.name for g in ident.groups if g.family in family)
    names = (groups,) if isinstance(groups, str) else groups
    known = [g.name for g in ident.groups]
    unknown = [f"no group '{name}' in the graph{closest(name, known)}" for name in names if name not in known]
    if unknown:
        raise OptionError("; ".join(unknown), where="pass 'bucket'", hint=f"groups: {', '.join(known) or 'none'}")
    return frozenset(names)


def eligible(
    index: GraphIndex, ident: Identification, groups: frozenset[str]
) -> tuple[list[Collective], list[LeftOut]]:
    """Collectives to merge, in graph order, and those of their roles that are left out."""
    written = writers(index)
    taken: list[Collective] = []
    left: list[LeftOut] = []
    for collective in ident.collectives:
        # Tags decide when the graph has any, else identification; buckets are told apart from what has no such role.
        tagged = collective.launch in index.tags or collective.launch in index.merged_from
        has_role = tagged if index.tags else is_taggable(collective) or collective.derived == "bucket"
        if not has_role and not index.tags and collective.at_end and collective.kind in _SHARDED:
            gathers = collective.kind is Kind.ALL_GATHER
            left.append(LeftOut(collective.launch, Reason.of("made_of_several" if gathers else "made_into_others")))
        if collective.kind not in _BUCKETED or not has_role:
            continue
        reason = _obstacle(index, collective, written)
        if reason is None and collective.group not in groups:
            reason = Reason.of("group_left_out", group=collective.group)
        if reason is None:
            taken.append(collective)
        else:
            left.append(LeftOut(collective.launch, reason))
    return taken, left


def writers(index: GraphIndex) -> dict[int, int]:
    """For every storage that is written in place, the first writer."""
    first: dict[int, int] = {}
    for writer, targets in index.writes.items():
        for storage in (s for target in targets for s in index.storages[target]):
            first.setdefault(storage, writer)
    return first


def result_obstacle(index: GraphIndex, launch: int, written: Mapping[int, int]) -> Reason | None:
    """Why the result of a launch cannot come from elsewhere; None when it can. written: see :func:`writers`."""
    waits = index.launches[launch].waits
    others = [user for user in index.users[launch] if user not in waits]
    if others:
        returned = index.ops[others[0]] == "output"
        return Reason.of("returned_early") if returned else Reason.of("used_early", node=index.names[others[0]])
    if len(waits) != 1:
        return Reason.of("waits", waits=len(waits))
    writer = next((written[s] for s in index.storages[launch] if s in written), None)
    return None if writer is None else Reason.of("written", node=index.names[writer])


def _obstacle(index: GraphIndex, collective: Collective, written: Mapping[int, int]) -> Reason | None:
    """Why this launch cannot be merged with any other; None when it can."""
    launch = index.launches[collective.launch]
    if collective.launch in index.merged_from or collective.derived == "bucket":
        return Reason.of("is_bucket")
    if launch.coalesced:
        return Reason.of("coalesced")
    if launch.writes_to:
        return Reason.of("writes_buffer")
    if launch.group.startswith("%"):
        return Reason.of("group_from_node")
    # A control edge names a node that merging would remove: the input too, whose cast may be shared.
    if index.held and not index.held.isdisjoint((collective.launch, *launch.inputs, *launch.waits)):
        return Reason.of("control_edge")
    return result_obstacle(index, collective.launch, written) or _bad_shape(index, collective)


def _bad_shape(index: GraphIndex, collective: Collective) -> Reason | None:
    needs_size = collective.kind is not Kind.ALL_REDUCE  # a slice is the same on all ranks
    if needs_size and collective.group_size is None:
        return Reason.of("group_size_unknown")
    for node in (*index.launches[collective.launch].inputs, *collective.waits):
        tensor = index.tensors[node]
        if tensor is None:
            return Reason.of("shape_unknown", node=index.names[node])
        if tensor.symbolic:
            symbols = ", ".join(repr(s) for s in tensor.shape if isinstance(s, str))
            return Reason.of("symbolic", node=index.names[node], symbols=symbols)
        if not tensor.numel:
            return Reason.of("empty")
        rows, ranks = tensor.shape[0] if tensor.shape else 1, collective.group_size or 1
        scattered = collective.kind is Kind.REDUCE_SCATTER and node not in collective.waits
        if scattered and isinstance(rows, int) and rows % ranks:
            return Reason.of("uneven", node=index.names[node], rows=rows, ranks=ranks)
    if not all(tensor is None or tensor.contiguous for tensor in (index.tensors[w] for w in collective.waits)):
        return Reason.of("not_contiguous")
    return None
