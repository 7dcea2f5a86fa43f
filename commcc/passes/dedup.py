"""dedup: gathers of the same parameter become one.

    c1 = _to_copy(p)   g1 = all_gather(c1)   w1 = wait(g1)   mm(x, w1)        c1, g1, w1   mm(x, w1)
    c2 = _to_copy(p)   g2 = all_gather(c2)   w2 = wait(g2)   mm(y, w2)   ->                mm(y, w1)

Two gathers are the same when they have the same arguments, the same group among them, and send the same
value: a parameter through the same casts and views, written by nothing in between. The earlier launch and
the earliest wait stay. Left out, with the reason, are gathers

1. whose result is written in place, is used before it is waited for, or is waited for more than once;
2. whose results are both returned: the outputs would come to share storage;
3. that stand further apart than ``max_topo_span``, or between which the result cannot be held: it would
   take the peak past ``memory_budget`` (a graph that gathers again in the backward does so to save memory);
4. between which an op stands that communicates in an unknown way: nothing is known to be the same behind it;
5. with ``when=shorter``, whose removal does not pay: what is held takes memory from gathers that could be launched
   ahead of their use. Under the prices of a cost model all are tried, then a quarter and a sixteenth of the gathers,
   those nearest to what they repeat and others about as near. Each graph is scheduled as ``reorder`` would
   (:func:`commcc.schedule.merged.without`), and the shortest step is taken where it is 1 % shorter than that of the
   graph as it is; merging may gain less in other ways.

Limits: collectives other than all-gathers are not merged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar

from commcc.base.errors import OptionError
from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.base.record import left_out as only_where_known
from commcc.base.terms import GIB
from commcc.passes.base import Pass, PlanContext
from commcc.passes.budget import budget_option
from commcc.passes.options import to_text
from commcc.plan import Duplicate, LeftOut, PassReport, Plan, Removal
from commcc.planning.eligibility import result_obstacle, writers
from commcc.planning.headroom import Headroom

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.schedule import Problem, SearchResult

#: With ``when=shorter``: what parts of the gathers are tried, in how many schedules at first, and by how many permille
#: the step has to be shorter. Others that are at most _ABOUT times as far from what they repeat come along.
_ABOUT = 2
_PARTS, _SCHEDULES, _GAIN = (1, 4, 16), 4, 10


@dataclass(frozen=True)
class DedupReport(PassReport):
    """served: gathers that now serve others. left_out: numbers of gathers by reason. scheduled_step_ms: ``before``
    and ``after``, with ``when=shorter``.
    """

    served: int
    gathers_removed: int
    bytes_not_gathered: int
    nodes_removed: int
    left_out: Mapping[str, int]
    scheduled_step_ms: Mapping[str, float] | None = only_where_known()


@dataclass(frozen=True)
class Dedup(Pass):
    """How far apart duplicates may stand; see the module docstring."""

    name: ClassVar[str] = "dedup"
    summary: ClassVar[str] = "let gathers of the same parameter be one"

    max_topo_span: int | None = option(
        None, "nodes between a gather and one that repeats it", minimum=0, none="no limit"
    )
    when: str = option(
        "always",
        "always: all that the other options allow; shorter: those, or the ones nearest to each other, with which the "
        "schedule of reorder is shorter",
        choices=("always", "shorter"),
    )
    memory_budget: str | float | None = budget_option("peak memory")

    def plan(self, context: PlanContext) -> Plan:
        """What to serve by which gather.

        Raises :class:`OptionError` for ``when=shorter`` without a cost model.
        """
        if self.when == "shorter" and context.model is None:
            raise OptionError("when=shorter needs a cost model", where="pass 'dedup'", hint="as in --cost h100")
        index = context.index
        clusters: dict[int, list[int]] = {}
        for launch in index.launches:
            if launch in index.repeats:
                clusters.setdefault(index.repeats[launch], []).append(launch)
        same = [[first, *others] for first, others in sorted(clusters.items())]
        draft, steps = self.draft(context, same), None
        if self.when == "shorter" and draft.duplicates:
            draft, steps = _Shorter(self, context).of(same, draft)
        removal = draft.removal()
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=removal,
            left_out=tuple(draft.left),
            report=DedupReport(
                served=len(removal.duplicates),
                gathers_removed=sum(len(d.drop) for d in removal.duplicates),
                bytes_not_gathered=sum(d.bytes * len(d.drop) for d in removal.duplicates),
                nodes_removed=sum(len(d.drop) + len(d.waits) + len(d.dead) for d in removal.duplicates),
                left_out=dict(sorted(Counter(entry.reason.general for entry in draft.left).items())),
                scheduled_step_ms=steps,
            ),
        )

    def draft(self, context: PlanContext, same: Sequence[list[int]], nearness: _Nearness | None = None) -> _Draft:
        """What to serve by which gather; same: launches that gather the same."""
        index = context.index
        draft = _Draft(index, self.max_topo_span, nearness)
        if same:  # live bytes of the whole graph are counted only where they matter
            draft.headroom = Headroom.within(index, context.budget(self.memory_budget))
            draft.written = writers(index)
        for launches in same:
            draft.serve(launches)
        return draft


@dataclass(frozen=True)
class _Nearness:
    """Which gathers are near enough to what repeats them. at: ns of the compute stream in front of each node. reach: of
    these, at most so many between the two; less than 0 for no gather at all.
    """

    at: tuple[int, ...]
    reach: int

    def between(self, first: int, second: int) -> int:
        """Nanoseconds of the compute stream from one node to another."""
        return self.at[second] - self.at[first]


class _Shorter:
    """Looks for the draft with which the schedule of ``reorder`` is shortest."""

    def __init__(self, dedup: Dedup, context: PlanContext) -> None:
        from commcc.passes.reorder import Reorder

        costs = context.costs  # once: it is worked out each time that it is asked for
        assert context.model is not None and costs is not None
        self.dedup, self.context, self.model, self.costs = dedup, context, context.model, costs
        reorder, self.budget = Reorder(memory_budget=dedup.memory_budget), context.budget(dedup.memory_budget)
        self.limits, self.effort = reorder.limits(self.budget), reorder.effort

    def of(self, same: Sequence[list[int]], everything: _Draft) -> tuple[_Draft, dict[str, float]]:
        """That draft, which may serve nothing, and the scheduled step in ms before and after.

        What gains nothing in few schedules gets no full search.
        """
        from commcc.schedule import search_once

        index, problem, best = self.context.index, self._problem(), None
        computed = (0 if node in index.launches else ns for node, ns in enumerate(self.costs.ns))
        nearness = _Nearness((0, *accumulate(computed)), -1)
        few, before = self._glanced(problem), search_once(problem, self.limits, self.effort)
        best_ns, enough, fewest = before.step_ns, _shorter(before.step_ns), _shorter(few.step_ns)
        pairs = [pair for each in everything.duplicates for pair in pairwise((each.keep, *each.drop))]
        gaps = sorted(nearness.between(*pair) for pair in pairs)
        seen: list[list[Duplicate]] = [[]]
        for part in _PARTS if nearness.at[-1] < enough else ():  # what compute takes, no step is shorter than
            reach = _ABOUT * gaps[(len(gaps) - 1) // part]
            draft = self.dedup.draft(self.context, same, replace(nearness, reach=reach)) if part > 1 else everything
            if draft.duplicates in seen:
                continue
            seen.append(draft.duplicates)
            problem = self._problem(draft.removal())
            if self._glanced(problem).step_ns > fewest:
                continue
            after = search_once(problem, self.limits, self.effort, enough)
            if self._over(after) <= self._over(before) and after.step_ns <= min(best_ns - 1, enough):
                best, best_ns = draft, after.step_ns
        best = best or self.dedup.draft(self.context, same, nearness)
        return best, {"before": before.step_ns / 1e6, "after": best_ns / 1e6}

    def _problem(self, removal: Removal | None = None) -> Problem:
        """The graph, or what it is without these duplicates."""
        from commcc.schedule import Problem
        from commcc.schedule.merged import without

        index = self.context.index
        return Problem(index, self.costs) if removal is None else Problem(*without(index, self.model, removal))

    def _glanced(self, problem: Problem) -> SearchResult:
        from commcc.schedule.first_looks import GLANCED, glance

        return glance(problem.units, self.limits, GLANCED[:_SCHEDULES])

    def _over(self, result: SearchResult) -> int:
        return 0 if self.budget is None else max(0, result.peak_bytes - self.budget)


def _shorter(step_ns: int) -> int:
    """A step that is shorter by enough."""
    return step_ns * (1000 - _GAIN) // 1000


@dataclass
class _Draft:
    """The plan while it is made."""

    index: GraphIndex
    span: int | None
    nearness: _Nearness | None = None
    headroom: Headroom | None = None
    written: Mapping[int, int] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    left: list[LeftOut] = field(default_factory=list)

    def serve(self, launches: list[int]) -> None:
        """Merge launches that gather the same, in graph order, each with the nearest one that may serve it."""
        index, good = self.index, []
        for launch in launches:
            reason = result_obstacle(index, launch, self.written)
            if reason is None and not index.held.isdisjoint((launch, *index.launches[launch].waits)):
                reason = Reason.of("control_edge")
            if reason is None:
                good.append(launch)
            else:
                self.left.append(LeftOut(launch, reason))
        served: list[int] = []
        for launch in good:
            reason = self._apart(served, launch) if served else None
            if reason is not None:
                self.left.append(LeftOut(launch, reason))
                self._close(served)
                served = []
            served.append(launch)
        self._close(served)

    def _apart(self, served: list[int], launch: int) -> Reason | None:
        """Why the gather that serves others cannot serve this one too."""
        index, keep = self.index, served[0]
        if self.span is not None and launch - keep > self.span:
            return Reason.of("far_apart", nodes=launch - keep, node=index.names[keep])
        if self.nearness is not None and self.nearness.between(served[-1], launch) > self.nearness.reach:
            return Reason.of("pays_not", node=index.names[served[-1]])
        returned = [n for n in served if not index.output_storages.isdisjoint(index.storages[n])]
        if returned and not index.output_storages.isdisjoint(index.storages[launch]):
            return Reason.of("both_returned", node=index.names[returned[0]])
        first = min(keep, *(index.launches[n].waits[0] for n in served))
        last = max(launch, index.launches[launch].waits[0])
        between = next((b for b in index.barriers if first < b < last), None)
        if between is not None:
            return Reason.of("behind_barrier", node=index.names[between])
        # Asked last: what it holds counts from then on.
        over = self.headroom.hold(keep, launch) if self.headroom is not None else 0
        if over:
            return Reason.of("held_too_long", node=index.names[keep], gib=over / GIB)
        return None

    def removal(self) -> Removal:
        """What is removed, with what nothing uses once all duplicates are gone."""
        removed = {n for d in self.duplicates for n in (*d.drop, *d.waits)}
        return Removal(tuple(_with_dead(self.index, duplicate, removed) for duplicate in self.duplicates))

    def _close(self, served: list[int]) -> None:
        if len(served) < 2:  # a gather that serves nothing but its own users
            return
        index = self.index
        keep, *drop = served
        wait, *waits = sorted(index.launches[launch].waits[0] for launch in served)
        result = index.tensors[wait]
        self.duplicates.append(
            Duplicate(
                keep=keep,
                drop=tuple(drop),
                wait=wait,
                waits=tuple(waits),
                reason=Reason.of("one_value", gathers=len(served), nodes=drop[-1] - keep + 1),
                bytes=result.bytes if result is not None else 0,
            )
        )


def _with_dead(index: GraphIndex, duplicate: Duplicate, removed: set[int]) -> Duplicate:
    """The duplicate with the nodes that nothing uses once all duplicates are gone; adds them to ``removed``."""
    dead: list[int] = []
    stack = [pred for launch in duplicate.drop for pred in index.data_preds[launch]]
    while stack:
        node = stack.pop()
        stays = node in index.stays or node in index.held or index.ops[node] == "placeholder" or node in index.launches
        if stays or node in removed or not removed.issuperset(index.users[node]):
            continue
        removed.add(node)
        dead.append(node)
        stack.extend(index.data_preds[node])
    return replace(duplicate, dead=tuple(sorted(dead)))
