"""Moves of one collective, tried out one by one, and which of them is best under which limits.

A move puts the launch over one place and the waits under another (:mod:`commcc.explain.trials`). A few
places are tried, at growing distances: where it passes as much independent work as it has exposed time,
where it passes more than twice that, just ahead of the next collective of its queue, and as far as the
prefetch window and the bounds reach.

Limits: the best of the moves that were tried, not of all; each saving is that of a legal order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commcc.base.terms import GIB, Kind
from commcc.explain.trials import moved, trial

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from commcc.explain.context import Context, Scene
    from commcc.explain.trials import Trial

#: Of what is to be hidden, in percent: a move this good ends the search.
ENOUGH = 98
#: Of what is to be hidden, in percent: less than this is not reported.
NOTABLE = 2
#: Of the best move's saving, in percent: a nearer move that saves this much is preferred.
NEARLY = 90


@dataclass(frozen=True)
class Step:
    """A place that the launch or the waits can take. position: of the node that was passed last.
    compute_nodes, ns: independent work passed so far, with the time that the stream stalled there.
    clear: no collective of the same queue was passed."""

    position: int
    compute_nodes: int
    ns: int
    clear: bool


@dataclass(frozen=True)
class Move:
    """A tried move. above, below: as in :func:`commcc.explain.trials.moved`. earlier, later: compute
    nodes passed. saves_ns: of the step."""

    above: int | None
    below: int | None
    earlier: int
    later: int
    saves_ns: int
    trial: Trial

    @property
    def distance(self) -> int:
        return self.earlier + self.later


@dataclass(frozen=True)
class Search:
    """Tries moves of one collective and remembers them."""

    context: Context
    scene: Scene
    exposed_ns: int
    peaks: dict[tuple[int | None, int | None], int] = field(default_factory=dict)

    def order(self, move: Move | None) -> list[int]:
        count = len(self.context.index)
        return list(range(count)) if move is None else moved(self.scene, count, move.above, move.below)

    def attempt(self, up: Step | None, down: Step | None) -> Move:
        """Simulate one move."""
        above = None if up is None else up.position
        below = None if down is None else down.position + 1
        order = moved(self.scene, len(self.context.index), above, below)
        result = trial(self.context, self.scene, order)
        saves = self.context.timeline.step_ns - result.step_ns
        earlier, later = (0 if step is None else step.compute_nodes for step in (up, down))
        return Move(above, below, earlier, later, saves, result)

    def explore(self, above: int, below: int) -> list[Move]:
        """Moves with the launch no higher than position ``above`` and the waits ahead of ``below``."""
        launch, wait = self.scene.launch, self.scene.first_wait
        higher = (n for n in range(launch - 1, above - 1, -1) if n not in self.scene.before)
        lower = (n for n in range(wait + 1, below) if n not in self.scene.after) if wait is not None else ()
        ups = [(step, None) for step in self._places(self._steps(higher))]
        downs = [(None, step) for step in self._places(self._steps(lower))]
        # A gather is best launched earlier, a reduction best waited for later.
        first, second = (ups, downs) if self.scene.collective.kind is Kind.ALL_GATHER else (downs, ups)
        moves: list[Move] = []
        tried: list[tuple[Step | None, Step | None]] = []
        for up, down in (*first, *second):
            tried.append((up, down))
            move = self.attempt(up, down)
            moves.append(move)
            enough = move.saves_ns * 100 >= self.exposed_ns * ENOUGH
            if enough and self.in_window(move) and self.in_flight(move):
                return moves
        if ups and downs:
            best_up = max(range(len(tried)), key=lambda k: (tried[k][0] is not None, moves[k].saves_ns, -k))
            best_down = max(range(len(tried)), key=lambda k: (tried[k][1] is not None, moves[k].saves_ns, -k))
            # Both sides at once: the best of each, and as far as both go.
            pairs = [(tried[best_up][0], tried[best_down][1]), (ups[-1][0], downs[-1][1])]
            moves += [self.attempt(up, down) for up, down in dict.fromkeys(pairs)]
        return moves

    def _steps(self, passed: Iterable[int]) -> Iterator[Step]:
        """Places at compute nodes, at other stretches of work, and at waits for other queues, going away."""
        context, index = self.context, self.context.index
        stream = context.timeline.spans[self.scene.launch].stream
        compute = total = since = 0
        clear = True
        small: Step | None = None
        for node in passed:
            ns = context.stall_elsewhere(node, stream) or (context.costs.ns[node] if context.works[node] else 0)
            compute += index.compute[node]
            total += ns
            launch = index.wait_of.get(node, node)
            if clear and not ns and launch in index.launches and context.stream(launch) == stream:
                yield from filter(None, [small])
                # Past this one it runs behind it in the queue, which changes what it overlaps.
                small, since, clear = None, total, False
            elif ns:
                small = Step(node, compute, total, clear)
                if index.compute[node] or self.large(total - since):
                    yield small
                    small, since = None, total
        yield from filter(None, [small])

    def large(self, ns: int) -> bool:
        """Whether this is a good part of what is to be hidden."""
        return ns * 10 >= self.exposed_ns

    def _places(self, steps: Iterator[Step]) -> list[Step]:
        """The few of them that are tried: the nearest with enough work and with plenty of it, the last
        one ahead of a neighbour in the queue, the last one in the window, the last one."""
        limit = self.context.limits.max_compute_prefetch
        marks = [self.exposed_ns, self.exposed_ns * 5 // 2]
        chosen: dict[str, Step] = {}
        for step in steps:
            chosen["last"] = step
            if limit is None or step.compute_nodes <= limit:
                chosen["window"] = step
            if step.clear:
                chosen["clear"] = step
            for mark in [mark for mark in marks if step.ns >= mark]:
                marks.remove(mark)
                chosen[f"mark {mark}"] = step
        return sorted(dict.fromkeys(chosen.values()), key=lambda step: step.ns)

    def in_window(self, move: Move) -> bool:
        limit = self.context.limits.max_compute_prefetch
        return limit is None or move.trial.within <= limit

    def in_flight(self, move: Move) -> bool:
        limit = self.context.limits.max_in_flight_gb
        if limit is None:
            return True
        # What is in flight together with it in graph order, a move is not blamed for.
        launch = self.scene.launch
        end = max(self.scene.collective.waits, default=launch)
        now = max(self.context.timeline.in_flight[launch : end + 1], default=0)
        return move.trial.in_flight <= max(limit * GIB, now)

    def peak(self, move: Move | None) -> int:
        """Peak memory of the moved order, recomputed."""
        if move is None:
            return self.context.prediction.memory.peak_bytes
        key = (move.above, move.below)
        if key not in self.peaks:
            self.peaks[key] = self.context.memory.live(self.order(move)).peak_bytes
        return self.peaks[key]

    def in_memory(self, move: Move) -> bool:
        now = self.context.prediction.memory.peak_bytes
        most = max(self.context.budget, now)
        # A bound that is cheap decides most cases without the memory of the whole order.
        if not self.context.index.estimates.resizes and now + self.longer(move) <= most:
            return True
        return self.peak(move) <= most

    def longer(self, move: Move) -> int:
        """Bytes of all buffers that live longer after a move: no peak grows by more.

        Those that nodes make which move up, and those that nodes touch which move down. All others are
        made no earlier and freed no later than before. Not for graphs that resize buffers.
        """
        scene, index = self.scene, self.context.index
        buffers = index.estimates.buffers
        up = range(scene.launch if move.above is None else move.above, scene.launch)
        grown = {b for n in (*filter(scene.before.__contains__, up), scene.launch) for b in buffers[n]}
        if move.below is not None and scene.first_wait is not None:
            down = filter(scene.after.__contains__, range(scene.first_wait, move.below))
            # A wait frees what its collective read and wrote, if it was the last to need it.
            grown.update(b for n in (scene.launch, *down) for b in self.context.memory.touched[n])
        return sum(index.estimates.buffer_bytes[b] for b in grown)

    def notable(self, ns: int) -> bool:
        """Whether a saving is more than noise."""
        return ns > 0 and ns * 100 >= self.exposed_ns * NOTABLE

    def broken(self, move: Move) -> list[str]:
        """The limits that a move does not keep."""
        checks = {"window": self.in_window, "in_flight": self.in_flight, "memory": self.in_memory}
        return [name for name, check in checks.items() if not check(move)]

    def best(self, moves: Iterable[Move], without: Collection[str] = ()) -> Move | None:
        """The move that saves most within all limits but those named in ``without``.

        Of moves that save nearly as much (nine tenths), the one that passes the fewest compute nodes.
        """
        cheap = {"window": self.in_window, "in_flight": self.in_flight}
        kept = [check for name, check in cheap.items() if name not in without]
        fitting = [m for m in moves if self.notable(m.saves_ns) and all(check(m) for check in kept)]
        ranked = sorted(fitting, key=lambda m: (-m.saves_ns, m.distance))
        fits = self.in_memory if "memory" not in without else (lambda _move: True)
        top = next(filter(fits, ranked), None)
        if top is None:
            return None
        near = sorted((m for m in ranked if m.distance < top.distance), key=lambda m: m.distance)
        return next((m for m in near if m.saves_ns * 100 >= top.saves_ns * NEARLY and fits(m)), top)
