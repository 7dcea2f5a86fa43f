"""Simulations of a step in which one thing is different: an order, a queue, a price."""

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


def own_lane(context: Context, launches: Iterable[int]) -> Simulator:
    """A simulator in which these launches have a queue of their own."""
    index = context.index
    apart = {n: replace(index.launches[n], group=OWN) for n in launches}
    lanes = {**context.costs.lanes, OWN: OWN}
    return Simulator(replace(index, launches={**index.launches, **apart}), replace(context.costs, lanes=lanes))


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
