"""The least step time of a small graph, over all legal orders. Shares nothing with :mod:`commcc.timing.simulate`.

    for order in all_orders(index): ...
    optimum(index, costs)       # without slow-down of compute

``optimum`` goes through the sets of nodes that can have run, and keeps for each the clocks that no
other clocks beat: a set of nodes and earlier clocks can do whatever later clocks can.
"""

from __future__ import annotations


def all_orders(index, limit=None):
    """Every legal order, the first ``limit`` of them."""
    count = len(index)
    missing = [len(set(index.preds(node))) for node in range(count)]
    users = [[u for u in range(count) if node in index.preds(u)] for node in range(count)]
    ready = [node for node in range(count) if not missing[node]]
    order: list[int] = []
    found = 0

    def extend():
        nonlocal found
        if limit is not None and found >= limit:
            return
        if len(order) == count:
            found += 1
            yield tuple(order)
            return
        for node in list(ready):
            ready.remove(node)
            order.append(node)
            fresh = []
            for user in users[node]:
                missing[user] -= 1
                if not missing[user]:
                    fresh.append(user)
            ready.extend(fresh)
            yield from extend()
            for user in users[node]:
                missing[user] += 1
            for user in fresh:
                ready.remove(user)
            order.pop()
            ready.append(node)

    return extend()


class Clocks:
    """Advances the clocks of a state: now, then when each lane is free, then when each launch has ended."""

    def __init__(self, index, costs):
        self.index, self.costs = index, costs
        self.launches = sorted(index.launches)
        groups = [costs.streams.get(index.launches[n].group, index.launches[n].group) for n in self.launches]
        self.lanes = sorted(set(groups))
        self.lane = {n: 1 + self.lanes.index(group) for n, group in zip(self.launches, groups, strict=True)}
        self.ends = {n: 1 + len(self.lanes) + k for k, n in enumerate(self.launches)}
        self.size = 1 + len(self.lanes) + len(self.launches)

    def after(self, clocks, node):
        times = list(clocks)
        if node in self.index.launches:
            times[0] += self.costs.launch_ns
            end = max(times[0], times[self.lane[node]]) + self.costs.ns[node]
            times[self.lane[node]] = times[self.ends[node]] = end
            if not self.index.launches[node].asynchronous:
                times[0] = end
        elif node in self.index.wait_of:
            times[0] = max(times[0], times[self.ends[self.index.wait_of[node]]])
        else:
            times[0] += self.costs.ns[node]
        return tuple(max(t, times[0]) if k else t for k, t in enumerate(times))


def optimum(index, costs) -> int:
    """Least step time; only for costs without slow-down."""
    assert costs.slowdown_permille == 1000
    clocks = Clocks(index, costs)
    needs = [sum(1 << p for p in set(index.preds(node))) for node in range(len(index))]
    states = {0: [(0,) * clocks.size]}
    for _ in range(len(index)):
        reached: dict[int, list[tuple[int, ...]]] = {}
        for done, node in _next_nodes(states, needs):
            for times in states[done]:
                _keep(reached.setdefault(done | 1 << node, []), clocks.after(times, node))
        states = reached
    return min(max(times[: 1 + len(clocks.lanes)]) for kept in states.values() for times in kept)


def _next_nodes(states, needs):
    """Every set of nodes that have run with every node that can run next."""
    for done in states:
        for node, need in enumerate(needs):
            if not done >> node & 1 and not need & ~done:
                yield done, node


def _keep(kept, times):
    """Add a state unless another is at least as good; drop those that it beats."""
    if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in kept):
        return
    kept[:] = [other for other in kept if not all(b <= a for a, b in zip(other, times, strict=True))]
    kept.append(times)
