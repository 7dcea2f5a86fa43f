"""Simulations of a step in which one thing is different: an order, a queue, a price.

Orders in which one collective's launch stands higher and its waits lower are legal by construction::

    moved(scene, count, above=40, below=95)

    before:  ... 40  a  b  41  launch  x  wait  y  94  95 ...      a feeds the launch, y needs the wait
    after:   ... a  launch  40  b  41  x  94  wait  y  95 ...

What must come before the launch is closed under dependences: it moves up with the launch, in its own
order. What must come after the wait moves down with it in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.timing.simulate import Simulator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.explain.context import Context, Scene
    from commcc.timing.simulate import Timeline

#: A queue that no graph can name: groups come from text without control characters.
OWN = "\x00own"


@dataclass(frozen=True)
class Trial:
    """A simulated step, as far as one collective is concerned.

    exposed_ns, queue_ns: of the collective. in_flight: highest bytes in flight between its launch and
    its last wait. within: compute nodes between its launch and its first wait.
    """

    step_ns: int
    exposed_ns: int
    queue_ns: int
    in_flight: int
    within: int


def trial(context: Context, scene: Scene, order: Sequence[int], simulator: Simulator | None = None) -> Trial:
    """Simulate an order and look at the collective."""
    timeline = (simulator or context.simulator).run(order)
    return look(context, scene, order, timeline)


def look(context: Context, scene: Scene, order: Sequence[int], timeline: Timeline) -> Trial:
    """What a simulated step says about the collective."""
    launch, waits = scene.launch, scene.collective.waits
    begin = order.index(launch)
    places = [order.index(wait) for wait in waits] or [begin]
    span = timeline.spans[launch]
    compute = context.index.compute
    return Trial(
        step_ns=timeline.step_ns,
        exposed_ns=timeline.exposed.get(launch, 0),
        queue_ns=span.start - span.queued_at,
        in_flight=max(timeline.in_flight[begin : max(places) + 1], default=0),
        within=sum(compute[n] for n in order[begin : min(places)]),
    )


def own_stream(context: Context, launches: Iterable[int]) -> Simulator:
    """A simulator in which these launches have a queue of their own."""
    index = context.index
    apart = {n: replace(index.launches[n], group=OWN) for n in launches}
    streams = {**context.costs.streams, OWN: OWN}
    return Simulator(replace(index, launches={**index.launches, **apart}), replace(context.costs, streams=streams))


def with_price(context: Context, launch: int, ns: int) -> Simulator:
    """A simulator in which one collective takes ``ns``."""
    prices = list(context.costs.ns)
    prices[launch] = ns
    return Simulator(context.index, replace(context.costs, ns=tuple(prices)))


def asynchronous(context: Context, scene: Scene) -> Trial:
    """A synchronous collective as if its first user waited for it instead.

    The wait is a node more, behind all others by number, that stands just ahead of the first user.
    """
    index, launch, wait = context.index, scene.launch, len(context.index)
    facts = replace(index.launches[launch], asynchronous=True, waits=(wait,))
    changed = replace(index, launches={**index.launches, launch: facts}, wait_of={**index.wait_of, wait: launch})
    costs = replace(context.costs, ns=(*context.costs.ns, 0))
    user = min(scene.after, default=wait)
    order = [*range(user), wait, *range(user, wait)]
    timeline = Simulator(changed, costs).run(order)
    span = timeline.spans[launch]
    return Trial(timeline.step_ns, timeline.exposed.get(launch, 0), span.start - span.queued_at, 0, 0)


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
