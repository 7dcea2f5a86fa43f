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

import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.reasons import Reason
from commcc.base.terms import Kind
from commcc.passes.strategies.entries import choose, with_modules
from commcc.passes.strategies.formed import Formed, bucket_of
from commcc.passes.strategies.prefetch import Prefetched, Unit, prefetch
from commcc.plan import LeftOut
from commcc.planning.bucket_model import key_of, size_of
from commcc.planning.eligibility import eligible, select_groups
from commcc.planning.merge_order import MergeOrder, cycles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.base.terms import Json
    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex
    from commcc.graph.modules import Entry
    from commcc.passes.bucket import Bucket
    from commcc.timing.cost import CostModel

_Covered = list[tuple["Collective", "Entry"]]


def form(options: Bucket, index: GraphIndex, ident: Identification, model: CostModel | None) -> Formed:
    """A bucket for each entry; an :class:`~commcc.base.errors.OptionError` names all that is wrong with the entries."""
    groups, problems = _groups(options, ident)
    taken, left = eligible(index, ident, groups)
    roles = {c.launch for c in taken} | {entry.launch for entry in left} | index.merged_from.keys()
    present, made_up = with_modules(options, [c for c in ident.collectives if c.launch in roles])
    fit = {c.launch for c in taken}
    able = [c for c in present if c.launch in fit and (c.kind is not Kind.ALL_REDUCE or options.include_all_reduce)]
    if not options.include_all_reduce:
        alone = [c for c in taken if c.kind is Kind.ALL_REDUCE]
        left += [LeftOut(c.launch, Reason.of("all_reduce")) for c in alone]
    chosen = choose(options, index, present, able, problems, made_up)

    old = [c for c in present if c.stands_for > 1 and c.group in groups]
    covered = [(c, entry) for c in (*able, *old) if (entry := chosen.find(c.module)) is not None]
    units, apart = _units(options, index, covered)
    made = prefetch(index, units, chosen.prefetch)
    left += [LeftOut(c.launch, _no_entry(c)) for c in able if chosen.find(c.module) is None]
    left += [
        LeftOut(u.launch, Reason.of("alone_in_entry", entry=u.entry.name))
        for u in units
        if u.bucket is None and not u.is_old
    ]
    report: dict[str, Json] = {
        "entries": len(chosen.entries),
        "modules": _rows(units, made),
        "uncovered": [index.names[c.launch] for c in able if chosen.find(c.module) is None],
        "taken_apart": apart,
        "moved": len(made.moves),
    }
    remarks = (*chosen.remarks, *made.remarks)
    buckets = tuple(u.bucket for u in made.units if u.bucket is not None)
    return Formed(buckets, tuple(left), report, remarks, made.moves, made.before)


def _groups(options: Bucket, ident: Identification) -> tuple[frozenset[str], list[str]]:
    """Groups that take part; and what is wrong with them, to be told with what is wrong with the entries."""
    try:
        return select_groups(ident, options.groups_given), []
    except OptionError as error:
        return select_groups(ident, "all"), [error.what]


def _no_entry(collective: Collective) -> Reason:
    if collective.module is None:
        return Reason.of("module_unknown")
    return Reason.of("no_entry", module=collective.module)


def _units(options: Bucket, index: GraphIndex, covered: _Covered) -> tuple[list[Unit], int]:
    """Buckets, lone collectives and old buckets in graph order; and how often one had to be taken apart."""
    rounds = _rounds(covered)
    sets: dict[tuple[object, ...], list[Collective]] = defaultdict(list)
    owner: dict[int, Entry] = {}
    for collective, entry in sorted(covered, key=lambda pair: pair[0].launch):
        owner[collective.launch] = entry
        alone = (collective.launch,) if collective.stands_for > 1 else ()
        key = key_of(collective, options.multi_dtype)
        sets[entry.name, key, rounds[collective.launch], alone].append(collective)
    together, apart = _taken_apart(index, list(sets.values()))
    units = [
        _unit(options, index, owner[members[0].launch], rounds[members[0].launch], members) for members in together
    ]
    return sorted(units, key=lambda u: u.launch), apart


def _unit(options: Bucket, index: GraphIndex, entry: Entry, number: int, members: list[Collective]) -> Unit:
    bucket = None
    if len(members) > 1:
        count, size = len(members), sum(map(size_of, members))
        reason = Reason.of("entry", members=count, entry=entry.name, bytes=size)
        if number:
            reason = Reason.of("entry_again", members=count, entry=entry.name, round=number + 1, bytes=size)
        bucket = bucket_of(index, members, reason, param_order=options.param_order)
    return Unit(entry, number, tuple(members), bucket)


def _rounds(covered: _Covered) -> dict[int, int]:
    """For every launch, how many of its kind, group and entry served the same parameter before it."""
    met: Counter[tuple[object, ...]] = Counter()
    rounds: dict[int, int] = {}
    for collective, entry in sorted(covered, key=lambda pair: pair[0].launch):
        key = (entry.name, collective.kind, collective.group, collective.anchor)
        rounds[collective.launch] = met[key] if collective.anchor is not None else 0
        met[key] += 1
    return rounds


def _taken_apart(index: GraphIndex, sets: list[list[Collective]]) -> tuple[list[list[Collective]], int]:
    """The sets, with those that wait for each other cut in two until none does; and how many cuts that took."""
    cuts = 0
    origin = list(range(len(sets)))
    while found := cycles(index, [[c.launch for c in members] for members in sets], ()):
        wide = {max(cycle.groups, key=lambda g: _span(sets[g])) for cycle in found}
        cuts += len(wide)
        halves = [_cut(members) if at in wide else [members] for at, members in enumerate(sets)]
        origin = [number for number, parts in zip(origin, halves, strict=True) for _ in parts]
        sets = [part for parts in halves for part in parts]
    return _rejoined(index, sets, origin) if cuts else sets, cuts


def _rejoined(index: GraphIndex, sets: list[list[Collective]], origin: list[int]) -> list[list[Collective]]:
    """The sets, with single collectives of one origin put together again where that makes no cycle.

    So no two of them are left that could share a bucket, and running again finds none.
    """
    order = MergeOrder(index, ())
    made = [list(members) for members in sets if len(members) > 1]
    for members in made:
        order.merge_all(members)
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
    return made + [members for each in takers.values() for members in each]


def _span(members: Sequence[Collective]) -> int:
    return members[-1].launch - members[0].launch


def _cut(members: list[Collective]) -> list[list[Collective]]:
    """Two parts, cut where the launches are farthest apart."""
    gaps = [after.launch - before.launch for before, after in itertools.pairwise(members)]
    at = gaps.index(max(gaps)) + 1
    return [members[:at], members[at:]]


def _rows(units: Iterable[Unit], made: Prefetched) -> list[Json]:
    """One row for each entry and kind: its collectives, in how many launches, and beside which module they run."""
    by_row: dict[tuple[str, Kind], list[Unit]] = defaultdict(list)
    for unit in units:
        by_row[unit.entry.name, unit.kind].append(unit)
    rows: list[Json] = []
    for (name, kind), own in by_row.items():
        beside = "prefetched_by" if kind is Kind.ALL_GATHER else "waits_behind"
        row: dict[str, Json] = {
            "entry": name,
            "kind": kind.value,
            "members": sum(c.stands_for for u in own for c in u.members),
            "launches": len(own),
            "bytes": sum(size_of(c) for u in own for c in u.members),
            beside: next((made.beside[u.launch] for u in own if u.launch in made.beside), None),
        }
        rows.append(row)
    return rows
