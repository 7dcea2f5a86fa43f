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
4. between which an op stands that communicates in an unknown way: nothing is known to be the same behind it.

Limits: collectives other than all-gathers are not merged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.base.terms import GIB
from commcc.passes.base import Pass, PlanContext
from commcc.passes.budget import budget_option
from commcc.passes.options import to_text
from commcc.plan import Duplicate, LeftOut, PassReport, Plan, Removal
from commcc.planning.eligibility import result_obstacle, writers
from commcc.planning.headroom import Headroom

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.index import GraphIndex


@dataclass(frozen=True)
class DedupReport(PassReport):
    """served: gathers that now serve others. left_out: numbers of gathers by reason."""

    served: int
    gathers_removed: int
    bytes_not_gathered: int
    nodes_removed: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class Dedup(Pass):
    """How far apart duplicates may stand; see the module docstring."""

    name: ClassVar[str] = "dedup"
    summary: ClassVar[str] = "let gathers of the same parameter be one"

    max_topo_span: int | None = option(
        None, "nodes between a gather and one that repeats it", minimum=0, none="no limit"
    )
    memory_budget: str | float | None = budget_option("peak memory")

    def plan(self, context: PlanContext) -> Plan:
        """What to serve by which gather."""
        index = context.index
        clusters: dict[int, list[int]] = {}
        for launch in index.launches:
            if launch in index.repeats:
                clusters.setdefault(index.repeats[launch], []).append(launch)
        draft = _Draft(index, self.max_topo_span)
        if clusters:  # live bytes of the whole graph are counted only where they matter
            draft.headroom = Headroom.within(index, context.budget(self.memory_budget))
            draft.written = writers(index)
        for first, others in sorted(clusters.items()):
            draft.serve([first, *others])
        removed = {n for d in draft.duplicates for n in (*d.drop, *d.waits)}
        duplicates = tuple(_with_dead(index, duplicate, removed) for duplicate in draft.duplicates)
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Removal(duplicates),
            left_out=tuple(draft.left),
            report=DedupReport(
                served=len(duplicates),
                gathers_removed=sum(len(d.drop) for d in duplicates),
                bytes_not_gathered=sum(d.bytes * len(d.drop) for d in duplicates),
                nodes_removed=sum(len(d.drop) + len(d.waits) + len(d.dead) for d in duplicates),
                left_out=dict(sorted(Counter(entry.reason.general for entry in draft.left).items())),
            ),
        )


@dataclass
class _Draft:
    """The plan while it is made."""

    index: GraphIndex
    span: int | None
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
