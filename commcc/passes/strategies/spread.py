"""Shorter runs of compute between reduce-scatters, for steps that are as long.

    best = spread(search, none, best)               # search: of strategy ``auto``

Merging reduce-scatters makes fewer of them, and the compute between two of them longer: gradients leave late. Where
the step does not need the merging of a key, its buckets are made smaller: none at all are tried first, as they need no
copies, then caps in the middle of those that are left, since smaller buckets take longer and make shorter runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.passes.strategies.choices import CAPS, Rung, with_rung
from commcc.passes.strategies.uneven import GAIN, UNEVEN
from commcc.planning.bucket_model import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.passes.strategies.auto import Search, Tried

#: ``effort`` divided by this is tried at most.
_FEWER = 4
#: Runs of more compute nodes than _LONG are long; shorter by far are those of no more than so many tenths.
_LONG, _FAR = 24, 9


def spread(search: Search, none: Tried, best: Tried) -> Tried:
    """This bucketing; where merging made runs of compute longer one with smaller buckets of reduce-scatters: the
    one with the shortest runs, of those as fast. none: no merging.
    """
    first, left = best, search.options.effort // _FEWER
    for place, (key, rung) in enumerate(zip(search.keys, best.choice, strict=True)):
        if key[0] != Kind.REDUCE_SCATTER.value or rung.cap in (0, UNEVEN):
            continue
        mib = search.mib(best, place)
        caps = [cap for cap in (0, *CAPS) if cap < mib]
        middle = 0
        while caps and best.run > none.run and left:
            left -= 1
            tried = _with_cap(search, best, place, caps[middle])
            best = calmer([first, best, tried])
            caps = caps[:middle] if as_fast(tried, first) else caps[middle + 1 :]
            middle = len(caps) // 2
    return best


def _with_cap(search: Search, best: Tried, place: int, cap: int) -> Tried:
    """The same buckets, but for those of one key."""
    key_of_launch = {c.launch: key_of(c, search.options.multi_dtype) for c in search.taken}
    alone = tuple(Rung(cap if at == place else 0, rung.form) for at, rung in enumerate(best.choice))
    others = (bucket for bucket in best.buckets if key_of_launch[bucket.members[0]] != search.keys[place])
    buckets = (*others, *search.making.of(search.keys, alone))
    members = sum(len(bucket.members) for bucket in buckets)
    problem = search.sketch(buckets)
    if problem is None:
        return best
    tried = replace(best, choice=with_rung(best.choice, place, cap=cap), buckets=buckets, members=members)
    return search.first_look(tried, problem)


def shorter_runs(seen: Iterable[Tried], best: Tried) -> list[Tried]:
    """Of all that was tried and is as fast as this bucketing, the one with the shortest runs of compute, where these
    are shorter by far and its own are long.
    """
    if best.run <= _LONG:
        return []
    calm = min((t for t in seen if as_fast(t, best)), key=lambda t: (t.run, t.step_ns, t.members), default=best)
    return [calm] if calm.run * 10 <= best.run * _FAR else []


def calmer(settled: Sequence[Tried]) -> Tried:
    """Of the shortest steps within the budget the one with the shortest runs of compute."""
    least = min(settled, key=lambda t: (t.over, t.step_ns))
    fast = [t for t in settled if as_fast(t, least)]
    return min(fast, key=lambda t: (t.run, t.step_ns, t.members))


def as_fast(tried: Tried, least: Tried) -> bool:
    """Whether a step within the budget is no longer than the least one, or not by much."""
    return tried.over == least.over and tried.step_ns * 1000 <= least.step_ns * (1000 + GAIN)
