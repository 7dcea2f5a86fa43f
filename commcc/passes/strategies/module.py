"""Strategy module: one bucket for each module, kind and group, and the next module's launched ahead.

    modules=layers.*:norm+output

    launch of layers.0 (9 gathers)                 where the first member stood
    launch of layers.1 (9 gathers)                 prefetched: before the wait of layers.0
    wait of layers.0, its compute
    launch of norm+output (2 gathers)
    wait of layers.1, its compute ...

Members of a bucket have one entry, kind, group, reduction and dtype. A parameter that is gathered twice
(forward, and again for the backward) has two buckets. All-reduces take part when ``include_all_reduce``
is set. Buckets that would wait for each other are taken apart, and what is left of them put together again
where it can be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.reasons import Reason
from commcc.base.record import Record
from commcc.base.terms import Kind
from commcc.passes.strategies.entries import BLOCKS, choose, with_modules
from commcc.passes.strategies.limits import GivenUp, within
from commcc.passes.strategies.prefetch import Prefetched, Unit, prefetch
from commcc.passes.strategies.results import BucketResult, bucket_of, form_of
from commcc.plan import LeftOut
from commcc.planning.bucket_model import key_of, size_of
from commcc.planning.eligibility import eligible, select_groups
from commcc.planning.merge_order import MergeOrder, cycles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from commcc.base.terms import Json
    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.graph.modules import Entry
    from commcc.passes.base import PlanContext
    from commcc.passes.bucket import Bucket
    from commcc.plan import Bucket as Planned
    from commcc.planning.bucket_model import Key


@dataclass(frozen=True)
class ModuleRow(Record):
    """Collectives of an entry and kind, in how many launches, and the module that they overlap with: gathers are
    prefetched by it, and results of reductions are waited for behind its launch.
    """

    entry: str
    kind: Kind
    members: int
    launches: int
    bytes: int
    partner: str | None

    def to_json(self) -> dict[str, Json]:
        """See :class:`commcc.base.record.Record`."""
        values = super().to_json()
        partner = values.pop("partner")
        return {**values, "prefetched_by" if self.kind is Kind.ALL_GATHER else "waits_behind": partner}


@dataclass(frozen=True)
class ModuleReport(Record):
    """uncovered: collectives that no entry covers. taken_apart: buckets that would have waited for themselves. moved:
    nodes that are in no bucket.
    """

    entries: int
    modules: tuple[ModuleRow, ...]
    uncovered: tuple[str, ...]
    taken_apart: int
    moved: int


_Covered = list[tuple["Collective", "Entry"]]


def form(options: Bucket, context: PlanContext) -> BucketResult:
    """A bucket for each entry, within the memory budget."""
    budget = context.budget(options.memory_budget)
    return within(budget, context, lambda given_up: _formed(options, context, given_up))


def by_block(options: Bucket, context: PlanContext, keys: Collection[Key]) -> dict[Key, tuple[Planned, ...]]:
    """The buckets of transformer blocks where they stand, by key; none where there are no blocks. Memory is for the
    caller to count.
    """
    like = replace(
        options, strategy="module", modules=BLOCKS, prefetch=None, include_all_reduce=True, memory_budget=None
    )
    try:
        buckets = form(like, context).buckets
    except OptionError:
        return {}
    collective = {c.launch: c for c in context.ident.collectives}
    by_key: dict[Key, list[Planned]] = {}
    for bucket in buckets:
        key = key_of(collective[bucket.members[0]], options.multi_dtype)
        if key in keys:
            by_key.setdefault(key, []).append(bucket)
    return {key: tuple(buckets) for key, buckets in by_key.items()}


def _formed(options: Bucket, context: PlanContext, given_up: GivenUp) -> BucketResult:
    """A bucket for each entry; an :class:`~commcc.base.errors.OptionError` names all that is wrong with the entries."""
    index, ident = context.index, context.ident
    problems: list[str] = []
    try:
        groups = select_groups(ident, options.groups_given)
    except OptionError as error:  # told together with what is wrong with the entries
        groups = select_groups(ident, "all")
        problems.append(error.what)
    taken, left = eligible(index, ident, groups)
    roles = {c.launch for c in taken} | {left_out.launch for left_out in left} | index.merged_from.keys()
    present, synthetic = with_modules(options, [c for c in ident.collectives if c.launch in roles])
    fit = {c.launch for c in taken}
    able = [c for c in present if c.launch in fit and (c.kind is not Kind.ALL_REDUCE or options.include_all_reduce)]
    if not options.include_all_reduce:
        left += [LeftOut(c.launch, Reason.of("all_reduce")) for c in taken if c.kind is Kind.ALL_REDUCE]
    chosen = choose(options, index, present, able, problems, synthetic)

    # Buckets that are there already take part: others are launched ahead of them, and they ahead of others.
    old = [c for c in present if c.stands_for > 1 and c.group in groups]
    covered = [(c, entry) for c in (*able, *old) if (entry := chosen.find(c.module)) is not None]
    uncovered = [c for c in able if chosen.find(c.module) is None]
    units, cuts = _units(options, context, covered, given_up.apart)
    placed = prefetch(index, units, chosen.prefetch, given_up.still)
    for collective in uncovered:
        unknown = collective.module is None
        reason = Reason.of("module_unknown") if unknown else Reason.of("no_entry", module=str(collective.module))
        left.append(LeftOut(collective.launch, reason))
    lone = [u for u in units if u.bucket is None and not u.is_old]
    for unit in lone:
        over = unit.launch in given_up.apart
        left.append(
            LeftOut(unit.launch, Reason("memory") if over else Reason.of("alone_in_entry", entry=unit.entry.name))
        )
    report = ModuleReport(
        entries=len(chosen.entries),
        modules=_rows(units, placed),
        uncovered=tuple(index.names[c.launch] for c in uncovered),
        taken_apart=cuts,
        moved=len(placed.moves),
    )
    remarks = (*chosen.remarks, *placed.remarks)
    buckets = tuple(u.bucket for u in placed.units if u.bucket is not None)
    return BucketResult(buckets, tuple(left), report, remarks, placed.moves, placed.before)


def _units(options: Bucket, context: PlanContext, covered: _Covered, apart: frozenset[int]) -> tuple[list[Unit], int]:
    """Buckets, lone collectives and old buckets in graph order; and how often one had to be taken apart."""
    index, form = context.index, form_of(options, context)
    covered = sorted(covered, key=lambda pair: pair[0].launch)
    # How many of a kind, group and entry served the same parameter before: a gather for the backward is in round 1.
    met: Counter[tuple[object, ...]] = Counter()
    round_of: dict[int, int] = {}
    owner: dict[int, Entry] = {}
    sets: dict[tuple[object, ...], list[Collective]] = defaultdict(list)
    for collective, entry in covered:
        launch = collective.launch
        served = (entry.name, collective.kind, collective.group, collective.anchor)
        round_of[launch] = met[served] if collective.anchor is not None else 0
        met[served] += 1
        owner[launch] = entry
        alone = launch if collective.stands_for > 1 or launch in apart else None
        sets[entry.name, key_of(collective, options.multi_dtype), round_of[launch], alone].append(collective)
    together, cuts = _taken_apart(index, list(sets.values()))
    units: list[Unit] = []
    for members in together:
        entry, again = owner[members[0].launch], round_of[members[0].launch]
        bucket = None
        if len(members) > 1:
            count, size = len(members), sum(map(size_of, members))
            reason = Reason.of("entry", members=count, entry=entry.name, bytes=size)
            if again:
                reason = Reason.of("entry_again", members=count, entry=entry.name, round=again + 1, bytes=size)
            bucket = bucket_of(index, members, reason, param_order=options.param_order, form=form(members))
        units.append(Unit(entry, again, tuple(members), bucket))
    return sorted(units, key=lambda u: u.launch), cuts


def _taken_apart(index: GraphIndex, sets: list[list[Collective]]) -> tuple[list[list[Collective]], int]:
    """The sets, with those that wait for each other cut in two until none does; and how many cuts that took.

    A cut is where the launches of the widest set on a cycle are farthest apart.
    """
    cuts = 0
    origin = list(range(len(sets)))
    while cyclic := cycles(index, [[c.launch for c in members] for members in sets], ()):
        widest = {max(cycle.groups, key=lambda g: sets[g][-1].launch - sets[g][0].launch) for cycle in cyclic}
        cuts += len(widest)
        parts: list[list[Collective]] = []
        origins: list[int] = []
        for at, members in enumerate(sets):
            middle = len(members)
            if at in widest:
                gaps = [after.launch - before.launch for before, after in pairwise(members)]
                middle = gaps.index(max(gaps)) + 1
            for part in filter(None, (members[:middle], members[middle:])):
                parts.append(part)
                origins.append(origin[at])
        sets, origin = parts, origins
    return _rejoined(index, sets, origin) if cuts else sets, cuts


def _rejoined(index: GraphIndex, sets: list[list[Collective]], origin: list[int]) -> list[list[Collective]]:
    """The sets, with single collectives of one origin put together again where that makes no cycle.

    So no two of them are left that could share a bucket, and running again finds none.
    """
    several = [list(members) for members in sets if len(members) > 1]
    order = MergeOrder(index, (), merged=several)
    takers: dict[int, list[list[Collective]]] = defaultdict(list)
    for number, members in zip(origin, sets, strict=True):
        if len(members) > 1:
            continue
        taker = next((t for t in takers[number] if order.may_merge_both(t[0], members[0])), None)
        if taker is None:
            takers[number].append(list(members))
        else:
            taker += members
            order.merge_all(taker[-2:])
    return several + [members for parts in takers.values() for members in parts]


def _rows(units: Iterable[Unit], placed: Prefetched) -> tuple[ModuleRow, ...]:
    """One row for each entry and kind."""
    by_row: dict[tuple[str, Kind], list[Unit]] = defaultdict(list)
    for unit in units:
        by_row[unit.entry.name, unit.kind].append(unit)
    return tuple(
        ModuleRow(
            entry=name,
            kind=kind,
            members=sum(c.stands_for for u in own for c in u.members),
            launches=len(own),
            bytes=sum(size_of(c) for u in own for c in u.members),
            partner=next((placed.partner[u.launch] for u in own if u.launch in placed.partner), None),
        )
        for (name, kind), own in by_row.items()
    )
