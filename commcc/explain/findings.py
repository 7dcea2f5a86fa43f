"""What simulations of changed steps find out about one collective.

Each constraint is lifted alone, the others kept: the prefetch window, the limits on memory and on bytes
in flight, the dependences above the launch and below the wait, the queue, the latency.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from commcc.explain.trials import asynchronous, own_stream, postponed, torn, trial, with_price

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commcc.explain.moves import Move, Search
    from commcc.explain.types import Side

#: Share of a collective's time, in percent, from which on its latency is simulated.
LATENT = 20
LIFTABLE = ("window", "in_flight", "memory")


@dataclass(frozen=True)
class Untied:
    """What would be saved without a dependence, and what with a queue of its own as well."""

    ns: int = 0
    with_queue_ns: int = 0


@dataclass(frozen=True)
class Findings:
    """See the module docstring. Savings are of the step, in ns, at least 0.

    best: the best move of the collective alone, of the ``moves`` that were tried. beyond: the best one
    when independent compute also trades places with the nodes that stop the launch or the wait.
    lifted: what lifting one of ``LIFTABLE`` would save on top of ``best`` and ``beyond``, and the move
    that it allows. above, below: what would be saved on top of ``best`` if no dependence held the
    launch, or the wait. queue, queue_after: what a queue of its own would save as the graph stands,
    and after the best move. latency, cost: what no latency, or no time at all, would save.
    asynchronous: what a wait at the first user would save. rivals: launches that are in its queue at
    the same time after the best move. joint: where no move and no queue of its own saves anything,
    what both together would, and that move.
    """

    best: Move | None = None
    moves: tuple[Move, ...] = ()
    beyond: Move | None = None
    lifted: dict[str, tuple[int, Move]] = field(default_factory=dict)
    above: Untied = Untied()
    below: Untied = Untied()
    queue: int = 0
    queue_after: int = 0
    latency: int = 0
    cost: int = 0
    asynchronous: int = 0
    rivals: tuple[int, ...] = ()
    joint: tuple[int, Move] | None = None

    @property
    def left(self) -> int:
        """What the best move leaves of the collective's cost."""
        return max(0, self.cost - (self.best.saves_ns if self.best is not None else 0))


def investigate(search: Search, sides: tuple[Side, Side]) -> Findings:
    """Run the simulations that can tell something about this collective."""
    context, scene = search.context, search.scene
    if not search.exposed_ns:
        return Findings()
    plain, total = range(len(context.index)), context.costs.ns[scene.launch]
    free = trial(context, scene, plain, with_price(context, scene.launch, 0))
    cost, latency = max(0, context.timeline.step_ns - free.step_ns), context.costs.latency_ns.get(scene.launch, 0)
    if latency * 100 < total * LATENT:
        latency = 0
    else:
        quick = trial(context, scene, plain, with_price(context, scene.launch, total - latency))
        latency = max(0, context.timeline.step_ns - quick.step_ns)
    # Without a wait there is nothing to move: being synchronous is the one thing to change.
    if not context.index.launches[scene.launch].asynchronous:
        saved = context.timeline.step_ns - asynchronous(context, scene).step_ns
        return Findings(cost=cost, latency=latency, asynchronous=max(0, saved))
    moves = search.explore(sides[0].position, sides[1].position)
    best = search.best(moves)
    findings = Findings(best=best, moves=tuple(moves), queue=_queue(search, None), latency=latency, cost=cost)
    # Little is left to explain, so the search through the whole graph is not made.
    if not search.notable(findings.left):
        return replace(findings, lifted=_lifted(search, moves, best))
    wider = search.explore(context.first, context.last)
    # The best move that may also part compute nodes, when it saves more.
    beyond = search.best(wider)
    if beyond is not None and not search.notable(beyond.saves_ns - (best.saves_ns if best is not None else 0)):
        beyond = None
    return replace(
        findings,
        beyond=beyond,
        lifted=_lifted(search, [*moves, *wider], beyond or best),
        above=_untied(search, best, up=True) if scene.blocker is not None else Untied(),
        below=_untied(search, best, up=False) if scene.need is not None else Untied(),
        queue_after=0 if best is None else _queue(search, best),
        rivals=() if best is None else _rivals(search, best),
        joint=_joint(search, moves) if best is None and not search.notable(findings.queue) else None,
    )


def _lifted(search: Search, moves: list[Move], best: Move | None) -> dict[str, tuple[int, Move]]:
    saved = best.saves_ns if best is not None else 0
    lifted = {}
    for name in LIFTABLE:
        freed = search.best(moves, without=(name,))
        if freed is not None and search.notable(freed.saves_ns - saved):
            lifted[name] = (freed.saves_ns - saved, freed)
    if not lifted:  # two limits may each stop what the other would let pass
        freed = search.best(moves, without=LIFTABLE)
        if freed is not None and search.notable(freed.saves_ns - saved):
            lifted = dict.fromkeys(search.broken(freed), (freed.saves_ns - saved, freed))
    return lifted


def _queue(search: Search, move: Move | None) -> int:
    """What a queue of its own would save, in the order of a move."""
    context, scene = search.context, search.scene
    order = search.order(move)
    shared = len(context.stream_members[context.timeline.spans[scene.launch].stream]) > 1
    if not shared:
        return 0
    alone = trial(context, scene, order, own_stream(context, [scene.launch]))
    step = context.timeline.step_ns - (0 if move is None else move.saves_ns)
    return max(0, step - alone.step_ns)


def _joint(search: Search, moves: list[Move]) -> tuple[int, Move] | None:
    """The best of the moves inside the limits with a queue of its own."""
    context, scene = search.context, search.scene
    legal = [move for move in moves if not search.broken(move)]
    if not legal or len(context.stream_members[context.timeline.spans[scene.launch].stream]) < 2:
        return None
    alone = own_stream(context, [scene.launch])
    step = context.timeline.step_ns
    gains = [(step - trial(context, scene, search.order(move), alone).step_ns, move) for move in legal]
    best = max(gains, key=lambda gain: gain[0])
    return best if search.notable(best[0]) else None


def _rivals(search: Search, move: Move) -> tuple[int, ...]:
    """Launches of the same queue that wait or run while this one does, in the order of a move."""
    context, launch = search.context, search.scene.launch
    spans = context.simulator.run(search.order(move)).spans
    own = spans[launch]
    stream = [n for n in context.stream_members[own.stream] if n != launch]
    rivals = [n for n in stream if spans[n].queued_at < own.end and spans[n].end > own.queued_at]
    return tuple(sorted(rivals, key=lambda n: spans[n].start))


def _untied(search: Search, move: Move | None, *, up: bool) -> Untied:
    """What would be saved on top of a move if the launch (or the waits) could stand where others' work is."""
    context, scene = search.context, search.scene
    order = search.order(move)
    step = context.timeline.step_ns - (0 if move is None else move.saves_ns)
    launch, waits = scene.launch, scene.collective.waits
    saves, best = 0, order
    for place in _places(search, order, up=up):
        changed = torn(order, launch, place) if up else postponed(order, waits, place)
        saved = step - trial(context, scene, changed).step_ns
        # The first place is kept even where it saves nothing: with a queue of its own it may.
        if saved > saves or best is order:
            saves, best = max(saves, saved), changed
    alone = own_stream(context, [launch])
    return Untied(saves, max(0, step - trial(context, scene, best, alone).step_ns))


def _places(search: Search, order: list[int], *, up: bool) -> Iterator[int]:
    """Where it is put: past as much compute as there is to hide, and past more, inside the window."""
    context, scene = search.context, search.scene
    start = order.index(scene.launch if up or scene.first_wait is None else scene.first_wait)
    away: Iterable[int] = range(start - 1, context.first - 1, -1) if up else range(start + 1, context.last)
    limit = context.limits.max_compute_prefetch
    marks = [search.exposed_ns, search.exposed_ns * 5 // 2]
    passed = compute = 0
    last = None
    for place in away:
        node = order[place]
        compute += context.index.compute[node]
        if not marks or (limit is not None and compute > limit):
            break
        passed += context.costs.ns[node] if context.works[node] else 0
        # Small work between two compute nodes makes no place of its own.
        if not context.index.compute[node] and not search.large(context.costs.ns[node]):
            continue
        last = place
        if passed >= marks[0]:
            marks.pop(0)
            yield place
            last = None
    if last is not None:
        yield last
