"""Orders in which one collective's launch stands higher and its waits lower. Legal by construction.

    moved(scene, count, above=40, below=95)

    before:  ... 40  a  b  41  launch  x  wait  y  94  95 ...      a feeds the launch, y needs the wait
    after:   ... a  launch  40  b  41  x  94  wait  y  95 ...

What must come before the launch is closed under dependences: it moves up with the launch, in its own
order. What must come after the wait moves down with it in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.explain.context import Scene


def moved(scene: Scene, count: int, above: int | None, below: int | None) -> list[int]:
    """Graph order with the launch over position ``above`` and the waits under ``below - 1``; None leaves a side.

    ``above`` may be any place from the inputs to the launch, ``below`` any from the first wait to the
    output's position.
    """
    launch = scene.launch
    top = launch if above is None else above
    carried = [n for n in range(top, launch) if n in scene.before]
    passed = [n for n in range(top, launch) if n not in scene.before]
    order = [*range(top), *carried, launch, *passed]
    if scene.first_wait is None or below is None:
        return [*order, *range(launch + 1, count)]
    order += range(launch + 1, scene.first_wait)
    order += [n for n in range(scene.first_wait, below) if n not in scene.after]
    order += [n for n in range(scene.first_wait, below) if n in scene.after]
    return [*order, *range(below, count)]


def torn(order: Sequence[int], launch: int, place: int) -> list[int]:
    """The order with the launch alone at ``place`` of it, whatever it depends on: only for what-if."""
    rest = [n for n in order if n != launch]
    return [*rest[:place], launch, *rest[place:]]


def postponed(order: Sequence[int], waits: Sequence[int], place: int) -> list[int]:
    """The order with the waits alone just behind ``place`` of it, whoever needs them: only for what-if."""
    own = set(waits)
    kept = [n for n in order[: place + 1] if n not in own]
    return [*kept, *waits, *(n for n in order[place + 1 :] if n not in own)]
