"""How early a collective could have been launched, and when its result is first needed, in one order.

    ready, needed = slack(index, prediction)[launch]     # node numbers, or None

ready: of all nodes that must come before the launch and take time, the one that ends last. needed:
of all nodes that need the result, the first that takes time, launches or returns it. Nodes that take
no time (views, casts that a compiler fuses away) are looked through.

Limits: facts about the given order, for the picture; ``commcc explain`` says what could be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex
    from commcc.timing.predict import Prediction


def slack(index: GraphIndex, prediction: Prediction) -> dict[int, tuple[int | None, int | None]]:
    """(ready, needed) of every launch."""
    order = prediction.timeline.order
    place = {node: position for position, node in enumerate(order)}
    latest = _latest_before(index, prediction, place)
    first = _first_after(index, prediction, place)
    found: dict[int, tuple[int | None, int | None]] = {}
    for node, launch in index.launches.items():
        ends = launch.waits or (node,)
        users = [first[wait] for wait in ends if first[wait] >= 0]
        ready = latest[node]
        found[node] = (order[ready] if ready >= 0 else None, order[min(users)] if users else None)
    return found


def _takes_time(index: GraphIndex, prediction: Prediction, node: int) -> bool:
    return node in index.wait_of or (node not in index.launches and prediction.costs.ns[node] > 0)


def _latest_before(index: GraphIndex, prediction: Prediction, place: dict[int, int]) -> list[int]:
    """By node, the last place among what must run before it and takes time; -1 for none."""
    latest = [-1] * len(index)
    for node in prediction.timeline.order:
        for p in index.preds(node):
            counts = _takes_time(index, prediction, p) or not _asynchronous(index, p)
            latest[node] = max(latest[node], place[p] if counts else latest[p])
    return latest


def _asynchronous(index: GraphIndex, node: int) -> bool:
    launch = index.launches.get(node)
    return launch is None or launch.asynchronous


def _first_after(index: GraphIndex, prediction: Prediction, place: dict[int, int]) -> list[int]:
    """By node, the first place among the users of its result that do something with it; -1 for none."""
    first = [-1] * len(index)
    for node in reversed(prediction.timeline.order):
        found = []
        for user in index.users[node]:
            acts = user in index.launches or index.ops[user] == "output" or _takes_time(index, prediction, user)
            found.append(place[user] if acts else first[user])
        first[node] = min((at for at in found if at >= 0), default=-1)
    return first
