"""When launches may go ahead of their place, and when they have to: read off a base order."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.schedule.problem import Problem


def windows(problem: Problem, base: Sequence[int], position: Sequence[int], prefetch: int | None) -> dict[int, int]:
    """For every launch with a wait the first position from which the limit on prefetch lets it go.

    position: of each node in ``base``. No limit gives no entries.
    """
    opens: dict[int, int] = {}
    if prefetch is None:
        return opens
    before = [0, *accumulate(int(problem.index.compute[node]) for node in base)]
    for launch, facts in problem.index.launches.items():
        if facts.waits and facts.asynchronous:
            need = min(position[wait] for wait in facts.waits)
            allowed = max(prefetch, problem.own_prefetch[launch])
            opens[launch] = min(bisect_left(before, before[need] - allowed, 0, need), position[launch])
    return opens


def due(
    problem: Problem,
    position: Sequence[int],
    progress: Sequence[int],
    opens: Mapping[int, int],
    lead_permille: int,
) -> dict[int, int]:
    """For every launch with a wait the progress along the base order, in ns, at which it is to go.

    Launches of a lane are taken in the order in which they are needed; each must be over when the next
    one has to begin, a launch taking ``lead_permille`` of its time. None is due before its window opens.
    progress: time on the compute stream before each position.
    """
    lanes: dict[str, list[tuple[int, int]]] = {}
    for launch, facts in problem.index.launches.items():
        if facts.waits:
            need = min(position[wait] for wait in facts.waits)
            lanes.setdefault(problem.lane[launch], []).append((need, launch))
    found: dict[int, int] = {}
    for queue in lanes.values():
        before = progress[-1]
        for need, launch in sorted(queue, reverse=True):
            before = min(before, progress[need]) - problem.costs.ns[launch] * lead_permille // 1000
            found[launch] = max(before, progress[opens.get(launch, 0)])
    return found
