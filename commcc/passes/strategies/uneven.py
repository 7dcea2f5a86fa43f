"""Buckets of unequal sizes, where a stream of collectives is busy for most of the step.

    best, *others = improved(search, [best, second], stream="1", effort=48)      # search: of strategy ``auto``

A stream that is never idle ends sooner the larger its collectives are, but the first one holds up what waits for it,
the last one begins when its last member is ready, and between them memory limits what is held. So the sizes that
suit best differ along the step. They are found from the buckets of one cap, coarse moves before fine ones. A row holds
the buckets of one key; of the whole row, then of each of its halves, quarters and so on, in turn

* pairs of neighbours are merged;
* buckets are split at half of their bytes;
* all borders are moved by half a bucket;

then the same where half of a part and half of the next are. What makes the step shorter is kept, or what leaves it as
it is and keeps the stream busy for less. A level is gone through again until it brings nothing, and is left where
six bucketings in a row brought nothing. Where compute leaves space for it, several bucketings are begun from: small
buckets end elsewhere than large ones do. With the effort that is left then, single changes of the best one are drawn at
random: neighbours merged, a bucket split, a border moved. They go on where halves and quarters end, since what memory
allows differs from bucket to bucket. What keeps the stream busy for longer than the best step is not looked at.
Deterministic, the numbers drawn are always the same; effort is counted in bucketings judged.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from commcc.base.progress import detail
from commcc.planning.bucket_model import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from commcc.passes.strategies.auto import Search, Tried
    from commcc.plan import Bucket
    from commcc.planning.bucket_model import Key
    from commcc.schedule import Limits, SearchResult
    from commcc.schedule.first_looks import Preferred
    from commcc.schedule.problem import Schedulable
    from commcc.schedule.result import Start

#: Launches that share a bucket, in graph order; one alone is no bucket.
Members = tuple[int, ...]
Row = tuple[Members, ...]
Rows = dict["Key", Row]

#: Stands for the cap of a key whose buckets have unequal sizes.
UNEVEN = -2
#: A step is shorter where it is so by more than one part in _SAME, and as good where it is longer by no more than one
#: part in _LEVEL.
_SAME, _LEVEL = 5000, 5000
#: One that makes the longest run of compute between reduce-scatters longer, and longer than _LONG compute nodes, which
#: ``reorder`` can often cut, has to be shorter by more than one part in _FAR_SHORTER.
_LONG, _FAR_SHORTER = 24, 1000
#: A bucketing is scheduled as the best one before it was. The schedule is given up once it is longer than the best step
#: by more than _LONGER permille.
_LONGER = 1
#: Where that is so, another schedule is made, by its number among those of :mod:`commcc.schedule.first_looks`: from the
#: graph's own order where the first was from an order in which only collectives moved, and the other way round. No more
#: are where _UNSAVED in a row were too long as well.
_FROM_OWN, _FROM_LINE, _UNSAVED = 5, 0, 6
#: Buckets may span so many times ``max_topo_span``, a limit that keeps equal ones from taking memory: here memory is
#: judged.
_SPAN = 4
#: Buckets of each key that are tried to begin from, of the same bytes: where a stream is never idle, more bytes than
#: any cap gives may be best.
_PARTS = (2, 4, 8, 16, 32)
#: Schedules of a bucketing to begin from: the setting that does best for it is the first for all others.
_FIRST = 8
#: Bucketings to begin from: at most _STARTS, longer than the best by no more than BEGIN_WITHIN permille. Two are alike
#: where their steps differ by no more than one part in _ALIKE.
_STARTS, BEGIN_WITHIN, _ALIKE = 6, 100, 1000
#: On further streams ``effort`` are tried, and _MORE times as many where these gain something.
_MORE = 3
#: Steps are as long where one is longer by no more than this share, in permille.
GAIN = 1
#: The step of what cannot run.
NEVER = 1 << 62
#: While there are several starts, bucketings judged from each in a round; and how many in a row without a gain end a
#: level.
_ROUND, _PATIENCE = 8, 6
#: Random changes drawn for each bucketing that may be judged, as some were before, and many keep the stream busy for
#: longer. None are drawn any more where _PATIENT times ``effort`` in a row brought nothing.
_DRAWS, _PATIENT = 30, 3


class Judged(NamedTuple):
    """A bucketing, how its best schedule was made, and for how many ns the stream is busy. The step of one that is not
    scheduled is its lower bound.
    """

    tried: Tried
    start: Start | None
    busy_ns: int

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is better."""
        return self.tried.over, self.tried.step_ns

    def better(self, than: Judged, least: Judged) -> bool:
        """Whether the step is shorter, or much the same as the least one with a stream that is busy for less."""
        mine, other = self.tried, than.tried
        if mine.over != other.over:
            return mine.over < other.over
        longer_run = mine.run > max(other.run, _LONG)
        if (other.step_ns - mine.step_ns) * (_FAR_SHORTER if longer_run else _SAME) > other.step_ns:
            return True
        as_good = (mine.step_ns - least.tried.step_ns) * _LEVEL <= mine.step_ns and not longer_run
        return as_good and self.busy_ns < than.busy_ns


def improved(search: Search, starts: Sequence[Tried], stream: str, effort: int, *, saving: bool = True) -> list[Tried]:
    """Of each start that leads to a better bucketing than the first start, the best that it leads to; best first. The
    first start where none does.

    Bucketings differ from their start in the sizes of buckets on one stream. starts: the best first. All are changed in
    turn, and after each round the worse half is left where it is; what effort is left goes to the best one. effort:
    bucketings judged, of all starts together. saving: whether what is hopeless is scheduled in another way too.
    """
    descents = [_Bucketings(search, start, stream, saving=saving).shapes() for start in starts]
    first, running = starts[0], list(descents)
    while running and effort > 0:
        before = effort
        for shapes in running:
            effort -= shapes.improve(min(effort, _ROUND if len(running) > 1 else effort))
        running = sorted(running, key=lambda descent: descent.best.rank)[: len(running) // 2] if before > effort else []
    if effort > 0:
        min(descents, key=lambda descent: descent.best.rank).wander(effort, _PATIENT * search.options.effort)
    bests = sorted((descent.best for descent in descents), key=lambda best: best.rank)
    return [best.tried for best in bests if best.rank < (first.over, first.step_ns)] or [first]


def on_further_streams(search: Search, best: Tried) -> Tried:
    """The best with other sizes on further streams with buckets as well, the busiest first: all-reduces between copies
    of shards (HSDP), of which the last bucket is waited for at the end.
    """
    effort, busy = search.options.effort, search.busy(best)
    merged = {search.unmerged.stream[bucket.members[0]] for bucket in best.buckets}
    merged.discard(max(busy, key=busy.__getitem__, default=""))
    for stream in sorted(merged, key=lambda stream: (-busy[stream], stream)) if effort > 1 else []:
        first = improved(search, [best], stream, effort)[0]
        best = improved(search, [first], stream, _MORE * effort)[0] if gained(first, best) else first
    return best


def gained(now: Tried, before: Tried) -> bool:
    """Whether a bucketing needs less memory above the budget, or as much and is shorter by enough."""
    shorter = now.step_ns * 1000 <= before.step_ns * (1000 - GAIN)
    return now.over < before.over or (now.over == before.over and shorter)


def improved_from_several(
    search: Search, best: Tried, others: Sequence[Tried], stream: str, effort: int
) -> list[Tried]:
    """As :func:`improved`, from what :func:`begun_from` gives."""
    before = search.unequal
    starts = begun_from(search, best, others, stream)
    return improved(search, starts, stream, effort + before - search.unequal)


def begun_from(search: Search, best: Tried, others: Sequence[Tried], stream: str) -> list[Tried]:
    """What to begin from, the best first: this bucketing, the next best of the others, and the best of those with a few
    buckets of the same bytes for each key on a stream. Of the others one that has the same rung as another for the key
    whose collectives take longest, and much the same step, is left out.
    """
    starts = [best]
    for tried in sorted(others, key=rank):
        alike = (t.choice[0] == tried.choice[0] and (tried.step_ns - t.step_ns) * _ALIKE <= t.step_ns for t in starts)
        if len(starts) < _STARTS and not any(alike):
            starts.append(tried)
    within = best.step_ns * (1000 + BEGIN_WITHIN) // 1000
    parts = [t for t in _in_parts(search, best, stream) if t.over <= best.over and t.step_ns <= within]
    return sorted([*starts, *sorted(parts, key=rank)[:1]], key=rank)


def rank(tried: Tried) -> tuple[int, int, int]:
    """Smaller is better: memory first, then the step, then fewer merges."""
    return tried.over, tried.step_ns, tried.members


def _in_parts(search: Search, best: Tried, stream: str) -> Iterator[Tried]:
    """Bucketings like this one, but for the keys on a stream: each has so many buckets of about the same bytes."""
    from commcc.schedule.first_looks import GLANCED, glance

    bucketings = _Bucketings(search, best, stream)
    for count in _PARTS:
        rows = {key: _cut(_joined(row), count, search.making.size) for key, row in bucketings.rows.items()}
        tried = bucketings.tried(rows, best)
        problem = None if tried is None else search.sketch(tried.buckets)
        if tried is not None and problem is not None:
            yield search.result(tried, glance(problem, bucketings.limits, GLANCED[:_FIRST]))


def _cut(members: Members, count: int, size: Mapping[int, int]) -> Row:
    """So many parts of about the same bytes, fewer where a member is larger than these."""
    whole, before, parts = sum(size[launch] for launch in members), 0, [list[int]() for _ in range(count)]
    for launch in members:
        middle = 2 * before + size[launch]
        parts[min(count - 1, middle * count // max(1, 2 * whole))].append(launch)
        before += size[launch]
    return tuple(tuple(part) for part in parts if part)


class Shapes:
    """Rows of buckets, which are changed for as long as that helps. judge: of rows and the best so far; None where
    it says no.
    """

    def __init__(
        self, rows: Rows, size: Mapping[int, int], judge: Callable[[Rows, Judged], Judged | None], best: Judged
    ) -> None:
        self.rows, self.size, self.judge = rows, size, judge
        self.now = self.best = best
        self.seen = {tuple(rows.values())}
        self.left = self.idle = 0

    def improve(self, effort: int) -> int:
        """Change the rows; so many are judged at most. Returns how many were; what was judged before is not again."""
        self.left, parts = effort, 1
        while self.left > 0 and parts <= max(map(len, self.rows.values())):
            if not self._gone_through(parts):
                parts *= 2
        return effort - self.left

    def _gone_through(self, parts: int) -> bool:
        """Change each of so many parts of each row, and what lies across their borders, for as long as that helps;
        whether it did. Finer changes come next where many in a row did not.
        """
        gained, self.idle = False, 0
        for key in self.rows:
            for place in range(2 * parts - 1):
                while self._changed(key, place, parts):
                    gained, self.idle = True, 0
                if self.idle >= _PATIENCE:
                    return False
        return gained

    def _changed(self, key: Key, place: int, parts: int) -> bool:
        """Take the first change of a part of a row that helps; whether there is one. place: in halves of a part."""
        row = self.rows[key]
        if place < parts:
            begin, end = (len(row) * edge // parts for edge in (place, place + 1))
        else:  # behind all parts, what is half of one and half of the next
            begin, end = (len(row) * (2 * (place - parts) + edge) // (2 * parts) for edge in (1, 3))
        changes = self._changes(row[begin:end])
        return any(self._taken({**self.rows, key: row[:begin] + change + row[end:]}) for change in changes)

    def _taken(self, rows: Rows) -> bool:
        """Judge rows that were not judged before; whether they are the present ones then."""
        known = tuple(rows.values())
        if self.left <= 0 or known in self.seen:
            return False
        self.seen.add(known)
        judged = self.judge(rows, self.now)
        self.left -= judged is not None
        self.idle += judged is not None
        if judged is None or not judged.better(self.now, self.best):
            return False
        self.rows, self.now = rows, judged
        self.best = min(self.best, judged, key=lambda candidate: candidate.rank)
        return True

    def wander(self, effort: int, patience: int) -> None:
        """Merge two neighbours, split a bucket or move a border, drawn at random: a row first, so that one of few
        buckets changes as often, then a bucket. So many rows are judged at most, and no more where so many in a row
        brought nothing.
        """
        self.left, self.idle, draw = effort, 0, Random(0).random
        for _ in range(effort * _DRAWS):
            if self.left <= 0 or self.idle >= patience:
                break
            key = list(self.rows)[int(draw() * len(self.rows))]
            if self._taken({**self.rows, key: _drawn(self.rows[key], draw)}):
                self.idle = 0

    def _changes(self, row: Row) -> Iterator[Row]:
        halves = tuple(half for members in row for half in self._halves(members))
        if len(row) > 1:
            yield tuple(_joined(row[at : at + 2]) for at in range(0, len(row), 2))
        yield halves
        if len(row) > 1 and len(halves) == 2 * len(row):
            between = (_joined(halves[at : at + 2]) for at in range(1, len(halves) - 1, 2))
            yield (halves[0], *between, halves[-1])

    def _halves(self, members: Members) -> Row:
        """A bucket cut where half of its bytes are before; as it is where it has one member."""
        if len(members) < 2:
            return (members,)
        whole, before = sum(self.size[launch] for launch in members), 0
        at = 0
        while at < len(members) - 1 and 2 * before < whole:
            before += self.size[members[at]]
            at += 1
        return members[:at], members[at:]


def _drawn(row: Row, draw: Callable[[], float]) -> Row:
    """A row with one bucket split, two neighbours merged or, as often as both, a border between two moved."""
    at, kind = int(draw() * len(row)), int(draw() * 4)
    end = at + 1 if kind == 0 else at + 2
    members = _joined(row[at:end])
    place = 0 if kind == 1 else 1 + int(draw() * (len(members) - 1))
    parts = (members[:place], members[place:])
    return (*row[:at], *filter(None, parts), *row[end:])


def _joined(row: Row) -> Members:
    return tuple(sorted(launch for members in row for launch in members))


def _longer(bound: int, best: Judged) -> bool:
    """Whether a step of at least so many ns is longer than the best one, not much the same."""
    return bound * _LEVEL > best.tried.step_ns * (_LEVEL + 1)


class _Bucketings:
    """Bucketings like the best one of a search, but for the rows of the keys on one stream."""

    def __init__(self, search: Search, best: Tried, stream: str, *, saving: bool = True) -> None:
        self.search = search
        self.key = {member.launch: key_of(member, search.options.multi_dtype) for member in search.taken}
        self.planned = {tuple(sorted(bucket.members)): bucket for bucket in best.buckets}
        self.transfer: dict[Members, int] = {}
        self.unsaved = 0 if saving else _UNSAVED
        own = {launch: members for members in self.planned for launch in members}
        row: dict[Key, list[Members]] = {key: [] for key in search.keys}
        for launch in sorted(self.key):
            members = own.get(launch, (launch,))
            if search.unmerged.stream[launch] == stream and members[0] == launch:
                row[self.key[launch]].append(members)
        self.rows = {key: tuple(buckets) for key, buckets in row.items() if buckets}
        self.others = tuple(bucket for bucket in best.buckets if self.key[bucket.members[0]] not in self.rows)
        self.forms = {key: rung.form for key, rung in zip(search.keys, best.choice, strict=True)}
        self.choice = tuple(
            rung._replace(cap=UNEVEN) if key in self.rows else rung
            for key, rung in zip(search.keys, best.choice, strict=True)
        )
        self.best = best

    @cached_property
    def first(self) -> Judged:
        """The best bucketing, judged by some more schedules."""
        from commcc.schedule.first_looks import ENOUGH, GLANCED, glance

        problem, busy = self._problem, self._busy(self.rows)
        if problem is None:
            return Judged(self.best, None, busy)
        limits, seen = self._preferred
        schedule = glance(problem, limits, GLANCED[ENOUGH if seen else 0 : _FIRST], begun=seen)
        best = min(self.best, self.search.result(self.best, schedule), key=lambda t: (t.over, t.step_ns))
        return Judged(best, schedule.start, busy)

    @property
    def limits(self) -> Limits:
        """The limits under which bucketings like the best one are judged."""
        return self._preferred.limits

    @cached_property
    def _preferred(self) -> Preferred:
        from commcc.schedule import first_looks

        limits, problem = self.search.limits, self._problem
        return first_looks.Preferred(limits, None) if problem is None else first_looks.preferred(problem, limits)

    @cached_property
    def _problem(self) -> Schedulable | None:
        """The graph with the best bucketing."""
        return self.search.sketch(self.best.buckets)

    def shapes(self) -> Shapes:
        """The rows, to be changed."""
        return Shapes(self.rows, self.search.making.size, self.judged, self.first)

    def judged(self, rows: Rows, best: Judged) -> Judged | None:
        """These rows; None, without any work, where a bucket would be too long or the stream be busy for longer than
        the best step.
        """
        busy = self._busy(rows)
        tried = None if _longer(busy, best) else self.tried(rows, best.tried)
        if tried is None:
            return None
        problem = self.search.sketch(tried.buckets)
        if problem is None or _longer(problem.bound, best):
            return Judged(replace(tried, step_ns=NEVER if problem is None else problem.bound), None, busy)
        schedule = self._schedule(problem, best)
        return Judged(self.search.result(tried, schedule), schedule.start, busy)

    def _schedule(self, problem: Schedulable, best: Judged) -> SearchResult:
        """As the best one before was scheduled; another way where that is hopeless and may be the reason."""
        from commcc.schedule.first_looks import GLANCED, glance
        from commcc.schedule.result import LINE

        limits, first = self.limits, best.start or GLANCED[0]
        hopeless = None if best.tried.over else best.tried.step_ns * (1000 + _LONGER) // 1000
        made = glance(problem, limits, [first], hopeless=hopeless, give_up=True)
        if hopeless is None or made.step_ns <= hopeless or self.unsaved >= _UNSAVED:
            return made
        number = _FROM_OWN if first[0] == LINE else _FROM_LINE
        other = glance(problem, limits, [GLANCED[number]], hopeless=hopeless, give_up=True)
        saved = other.step_ns <= hopeless and (limits.budget is None or other.peak_bytes <= limits.budget)
        self.unsaved = 0 if saved else self.unsaved + 1
        return other if saved else made

    def tried(self, rows: Rows, like: Tried) -> Tried | None:
        """The bucketing with these rows, not judged; None where a bucket would be too long."""
        merged = [members for row in rows.values() for members in row if len(members) > 1]
        span = self.search.options.max_topo_span
        if span is not None and any(m[-1] - m[0] > span * _SPAN and m not in self.planned for m in merged):
            return None
        self.search.unequal += 1
        detail(f"bucketing of unequal sizes {self.search.unequal}")
        buckets = (*self.others, *map(self._bucket, merged))
        members = sum(len(bucket.members) for bucket in buckets)
        return replace(like, choice=self.choice, buckets=buckets, members=members)

    def _bucket(self, members: Members) -> Bucket:
        if members not in self.planned:
            row = [self.search.making.collective[launch] for launch in members]
            self.planned[members] = self.search.making.bucket(row, self.forms[self.key[members[0]]])
        return self.planned[members]

    def _busy(self, rows: Rows) -> int:
        """For how many ns the stream is busy."""
        return sum(self._transfer(members) for row in rows.values() for members in row)

    def _transfer(self, members: Members) -> int:
        if members not in self.transfer:
            search = self.search
            if len(members) > 1:
                row = [self.search.making.collective[launch] for launch in members]
                form = search.making.form[self.forms[self.key[members[0]]]](row)
                self.transfer[members] = search.sketches.pieces.transfer_ns(members, coalesced=form.coalesced)
            else:
                self.transfer[members] = search.costs.ns[members[0]]
        return self.transfer[members]
