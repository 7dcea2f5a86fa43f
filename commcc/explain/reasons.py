"""The reasons why a collective is exposed, each with what the step would gain if it alone were not so.

==================== =====================================================================
kind                 the collective is exposed because ...
==================== =====================================================================
order                it is launched later, or waited for earlier, than it has to be
dependence           a compute node or another collective feeds its launch, or needs its wait
nothing_independent  too little work in the whole graph neither feeds it nor needs it
queue                others run ahead of it in its queue, or are waited for behind it
window               no more compute nodes may stand between a launch and its wait
in_flight            no more bytes may be in flight
memory               holding it longer needs more memory than the budget
synchronous          the op holds the compute stream until it is done
latency              most of its time does not depend on its size
others               without it, the compute stream would stall for another one
end_of_step          it still runs when the compute stream has finished
several              of several things together; no single change that was tried saves anything
==================== =====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.terms import GIB
from commcc.base.text import duration, least_size, listed, plural, size
from commcc.explain.types import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commcc.explain.context import Scene
    from commcc.explain.findings import Findings, Untied
    from commcc.explain.moves import Move, Search
    from commcc.explain.types import Possible, Side, Timing

#: Of equal weight, the more telling ones first.
KINDS = (
    *("synchronous", "nothing_independent", "order", "dependence", "queue", "window", "memory", "in_flight"),
    *("latency", "end_of_step", "others", "several"),
)


class Case:
    """Everything that is known about one collective when its reasons are put into words."""

    def __init__(
        self, search: Search, findings: Findings, timing: Timing, possible: Possible, sides: tuple[Side, Side]
    ) -> None:
        self.search = search
        self.findings = findings
        self.timing = timing
        self.possible = possible
        self.above, self.below = sides

    @property
    def scene(self) -> Scene:
        return self.search.scene

    @property
    def total_ns(self) -> int:
        return self.search.context.costs.ns[self.scene.launch]

    @property
    def exposed_ns(self) -> int:
        return self.search.exposed_ns

    def name(self, node: int | None) -> str | None:
        return None if node is None else self.search.context.index.names[node]


def reasons(case: Case) -> tuple[Reason, ...]:
    """All reasons that weigh something, the heaviest first."""
    if not case.exposed_ns:
        return ()
    all_reasons = [reason for make in _MAKERS for reason in make(case)] or [_several(case)]
    return tuple(sorted(all_reasons, key=lambda r: (-r.saves_ns, KINDS.index(r.kind))))


def move_words(case: Case, move: Move) -> str:
    """What a move does: ``launched 3 compute nodes earlier, above mm_40, and waited for ...``."""
    parts = []
    if move.above is not None:
        how = f"{plural(move.earlier, 'compute node')} earlier" if move.earlier else "earlier"
        parts.append(f"launched {how}, above {case.name(move.above)}")
    if move.below is not None:
        how = f"{plural(move.later, 'compute node')} later" if move.later else "later"
        parts.append(f"waited for {how}, below {case.name(move.below - 1)}")
    return " and ".join(parts)


def _synchronous(case: Case) -> Iterator[Reason]:
    if case.search.context.index.launches[case.scene.launch].asynchronous:
        return
    saves = case.findings.asynchronous
    text = f"The op is synchronous: the compute stream stalls until it is done, {duration(case.total_ns)}. "
    user = case.name(min(case.scene.after, default=None))
    first = "nothing in the graph needs it" if user is None else f"the first to need it is {user}"
    text += f"As an asynchronous launch with a wait it could overlap with compute ({first}); without moving any other "
    text += f"node that would save {duration(saves)} of the step."
    yield Reason("synchronous", text, (), saves)


def _nothing(case: Case) -> Iterator[Reason]:
    stays = min(case.possible.stays_ns, case.exposed_ns)
    if not case.search.notable(stays) or not case.search.context.index.launches[case.scene.launch].asynchronous:
        return
    if case.possible.ns:
        compute = plural(case.possible.compute_nodes, "compute node")
        text = f"It takes {duration(case.total_ns)}, and only {duration(case.possible.ns)} of work ({compute}) in the "
        text += "whole graph neither feeds it nor needs it."
    else:
        text = "No work in the whole graph is independent of it: all of it feeds the launch or needs the wait."
    text += f" In every order the compute stream stalls for at least {duration(stays)} while it runs."
    path = (*case.above.path, *case.below.path)
    yield Reason("nothing_independent", text, path, stays, simulated=False)


def _order(case: Case) -> Iterator[Reason]:
    best = case.findings.best
    if best is None:
        return
    between = case.search.context.index.compute[case.scene.launch : case.scene.first_wait]
    stand = "stands" if sum(between) == 1 else "stand"
    now = f"only {plural(sum(between), 'compute node')} {stand}" if any(between) else "no compute node stands"
    text = f"In the graph's order {now} between its launch and its wait, though nothing but the order forbids more: "
    text += f"{move_words(case, best)}, it would save {duration(best.saves_ns)} of the step."
    yield Reason("order", text, (), best.saves_ns)


def _dependence(case: Case) -> Iterator[Reason]:
    above, below = case.above, case.below
    findings = case.findings
    if _held(case, findings.above):
        text = f"It can only be launched after {_done(case, case.scene.blocker)}: {_arrows(above.path)}."
        yield Reason("dependence", f"{text} {_without(case, findings.above)}", above.path, _gain(case, findings.above))
    if _held(case, findings.below):
        op = case.search.context.index.ops[case.scene.need or 0]
        text = f"It has to be waited for before {below.limit}{'' if op == below.limit else f' ({op})'}: "
        text += f"{_arrows(below.path)}."
        yield Reason("dependence", f"{text} {_without(case, findings.below)}", below.path, _gain(case, findings.below))


def _arrows(path: Sequence[str], most: int = 6) -> str:
    """A path on one line, its middle left out where it is long."""
    if len(path) <= most:
        return " -> ".join(path)
    head, tail = most // 2, most - most // 2
    return " -> ".join([*path[:head], f"({len(path) - most} more)", *path[-tail:]])


def _held(case: Case, untied: Untied) -> bool:
    return case.search.notable(untied.ns) or case.search.notable(untied.with_queue_ns - case.findings.queue_after)


def _gain(case: Case, untied: Untied) -> int:
    return untied.ns if case.search.notable(untied.ns) else untied.with_queue_ns


def _without(case: Case, untied: Untied) -> str:
    more = "" if case.findings.best is None else " more"
    alone = f"Without that it could save {duration(untied.ns)}{more} of the step"
    both = f"{duration(untied.with_queue_ns)}{more}"
    if not case.search.notable(untied.ns):
        return f"Without that, and with a queue of its own besides, it could save {both} of the step."
    if case.search.notable(untied.with_queue_ns - untied.ns):
        return f"{alone}, and {both} with a queue of its own besides."
    return f"{alone}."


def _done(case: Case, blocker: int | None) -> str:
    """What has to be over before the launch."""
    index = case.search.context.index
    if blocker is None:
        return "the graph's inputs"
    launch = index.wait_of.get(blocker)
    if launch is not None:
        return f"{index.names[launch]} has ended (waited for at {index.names[blocker]})"
    return f"{index.names[blocker]} ({index.ops[blocker]})"


def _queue(case: Case) -> Iterator[Reason]:
    stream = case.search.context.timeline.spans[case.scene.launch].stream
    findings = case.findings
    if case.search.notable(findings.queue):
        text = _queued(case, stream)
        text += f" With a queue of its own it would save {duration(findings.queue)} of the step."
        yield Reason("queue", text, (), findings.queue)
    elif findings.best is not None and case.search.notable(findings.queue_after):
        rivals = listed(case.search.context.names(findings.rivals)) or "others"
        text = f"Moved like that (see order), it shares the queue of {_group(stream)} with {rivals}. "
        text += f"With a queue of its own the move would save {duration(findings.queue_after)} more of the step."
        yield Reason("queue", text, (), findings.queue_after)
    elif findings.joint is not None:
        saves, move = findings.joint
        text = f"{_queued(case, stream)} Neither a move nor a queue of its own saves anything alone; with both, "
        text += f"{move_words(case, move)}, it would save {duration(saves)} of the step."
        yield Reason("queue", text, (), saves)


def _group(stream: str) -> str:
    return f"group {stream}" if stream.isdigit() else stream


def _queued(case: Case, stream: str) -> str:
    timing = case.timing
    behind = [s for s in timing.stalls if s.wait is not None and s.waits_for != case.name(case.scene.launch)]
    parts = []
    if timing.queue:
        names = [name for name, _ in timing.queue]
        parts.append(f"waits {duration(timing.queue_ns)} in the queue of {_group(stream)} behind {listed(names)}")
    if behind:
        names = [stall.waits_for for stall in behind]
        parts.append(f"holds up {listed(names)} there for {duration(sum(s.ns for s in behind))}")
    return f"It {' and '.join(parts) or f'shares the queue of {_group(stream)} with others'}."


def _limits(case: Case) -> Iterator[Reason]:
    for name, (saves, move) in case.findings.lifted.items():
        yield Reason(
            name, f"{_limit_words(case, name, move)} That would save {duration(saves)} more of the step.", (), saves
        )


def _limit_words(case: Case, name: str, move: Move) -> str:
    search, limits = case.search, case.search.context.limits
    what = move_words(case, move)
    if name == "window":
        return (
            f"At most {plural(limits.max_compute_prefetch or 0, 'compute node')} may stand between launch and wait; "
            f"{what}, it would have {move.trial.within:,} of them there."
        )
    if name == "in_flight":
        return (
            f"At most {limits.max_in_flight_gb:g} GiB may be in flight; {what}, "
            f"{move.trial.in_flight / GIB:.1f} GiB would be."
        )
    context = search.context
    unknown = len(context.index.estimates.unknown)
    peaks = (context.prediction.memory.peak_bytes, search.peak(move))
    now, then = (least_size(peak, unknown, brief=True) for peak in peaks)
    return f"Peak memory may be at most {size(context.budget)} (now {now}); {what}, it would be {then}."


def _latency(case: Case) -> Iterator[Reason]:
    latency = case.search.context.costs.latency_ns.get(case.scene.launch, 0)
    if not case.search.notable(case.findings.latency):
        return
    text = f"{duration(latency)} of its {duration(case.total_ns)} is latency, which does not depend on its size and "
    text += (
        f"is paid once for a merged collective; without it the step would be {duration(case.findings.latency)} shorter."
    )
    yield Reason("latency", text, (), case.findings.latency)


def _others(case: Case) -> Iterator[Reason]:
    """Shortening it alone would not shorten the step by as much as it is exposed."""
    lost = case.exposed_ns - case.findings.cost
    # Some of that is always so; only when it is most of the exposed time does it explain anything.
    if lost * 2 < case.exposed_ns:
        return
    text = f"If it took no time at all, the step would be {duration(case.findings.cost)} shorter, not "
    text += f"{duration(case.exposed_ns)}: the compute stream would stall for other collectives instead."
    yield Reason("others", text)


def _end(case: Case) -> Iterator[Reason]:
    # A stall without a wait is the time after the last node.
    tail = sum(stall.ns for stall in case.timing.stalls if stall.wait is None)
    if case.search.notable(tail):
        text = f"For {duration(tail)} it runs when the compute stream has finished: nothing is left to overlap with it."
        yield Reason("end_of_step", text)


def _several(case: Case) -> Reason:
    text = "No single change that was tried makes the step shorter: neither a move of its launch or its wait, nor a "
    text += "queue of its own, nor one limit or dependence less."
    permille = case.search.context.costs.slowdown_permille
    if permille > 1000:
        slower = f"{permille / 1000:g} times as long under this cost model"
        text += f" Compute that overlaps with a collective takes {slower}."
    return Reason("several", text)


_MAKERS = (_synchronous, _nothing, _order, _dependence, _queue, _limits, _latency, _others, _end)
