"""The least step of a small graph within memory limits, exactly, by constraint programming (OR-tools).

    best = solve(index, costs, budget=40 << 30)     # budget: live bytes; in_flight: bytes, as the timeline counts them
    best.step_ns, best.order, best.bound_ns         # proved where step and bound are equal; order None: none found

Shares nothing with :mod:`commcc.timing.simulate`, :mod:`commcc.graph.memory` and :mod:`commcc.schedule`; reads
the index's edges and buffers. Every node is an interval on the compute stream, every transfer one on its lane, in order
of launch; a wait begins when its transfer has ended. Nodes that take no time still have places in the order,
and memory depends on places: so one ns is ``scale`` units, every node takes one unit more than it does, and
the step is the makespan divided by ``scale``, rounded down: all units together are less than one ns. A buffer
is then an interval from the begin of the node that makes it to the end of the last node that touches it.

Limits: no slow-down of compute, no resizes of storages. Small graphs: up to 40 nodes take about a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import pytest


def solver_library():
    """OR-tools, imported by the tests that solve: it takes two seconds. They are skipped where it is missing."""
    return pytest.importorskip("ortools.sat.python.cp_model", reason="OR-tools is not installed: pip install ortools")


@dataclass(frozen=True)
class Best:
    """order: None where none was found. bound_ns: no order is shorter; None where no order is within the limits."""

    step_ns: int | None
    order: tuple[int, ...] | None
    bound_ns: int | None

    @property
    def proved(self):
        return self.step_ns == self.bound_ns


def solve(index, costs, budget=None, in_flight=None, effort=4.0) -> Best:
    """``effort``: where to give up, in the solver's own units, about seconds, that do not depend on the machine."""
    assert costs.slowdown_permille == 1000
    assert not index.estimates.resizes
    return _Model(index, costs, budget, in_flight).best(effort)


class _Model:
    def __init__(self, index, costs, budget, in_flight):
        self.index, self.costs = index, costs
        self.fixed = [i for i, op in enumerate(index.ops) if op in ("placeholder", "get_attr")]
        self.nodes = [i for i in range(len(index)) if i not in set(self.fixed)]
        self.scale = len(index) + 1
        self.horizon = (sum(costs.ns) + costs.launch_ns * len(index.launches) + 1) * self.scale
        self.model = solver_library().CpModel()
        self.step = self.time("step")
        self.start = {i: self.time(f"start{i}") for i in self.nodes}
        self.end = {i: self.time(f"end{i}") for i in self.nodes}
        self.landed = {i: self.time(f"landed{i}") for i in index.launches}
        self.stream()
        self.lanes()
        self.edges()
        if budget is not None:
            self.memory(budget)
        if in_flight is not None:
            self.flying(in_flight)
        self.model.minimize(self.step)

    def time(self, name):
        return self.model.new_int_var(0, self.horizon, name)

    def stream(self):
        """One node at a time; a synchronous collective holds the stream until it has landed."""
        index, add, intervals = self.index, self.model.add, []
        for i in self.nodes:
            launch = index.launches.get(i)
            work = self.costs.launch_ns if launch else 0 if i in index.wait_of else self.costs.ns[i]
            least = work * self.scale + 1
            length = self.model.new_int_var(least, self.horizon, f"length{i}")
            if launch is None or launch.asynchronous:
                add(length == least)
            else:
                add(self.end[i] >= self.landed[i])
            intervals.append(self.model.new_interval_var(self.start[i], length, self.end[i], f"node{i}"))
            add(self.step >= self.end[i])
        self.model.add_no_overlap(intervals)

    def lanes(self):
        """Transfers of a lane one at a time, in the order of their launches."""
        index, add, lanes, begin = self.index, self.model.add, {}, {}
        for i, launch in index.launches.items():
            lanes.setdefault(self.costs.streams.get(launch.group, launch.group), []).append(i)
            begin[i] = self.time(f"begin{i}")
            add(self.landed[i] == begin[i] + self.costs.ns[i] * self.scale)
            # The unit that a launch takes besides may be part of the launch or not: it is there while it runs.
            add(begin[i] >= self.start[i] + self.costs.launch_ns * self.scale)
            add(self.step >= self.landed[i])
        for queue in lanes.values():
            for one, other in combinations(queue, 2):
                first = self.model.new_bool_var(f"first{one}_{other}")
                for a, b, holds in ((one, other, first), (other, one, ~first)):
                    add(self.end[a] <= self.start[b]).only_enforce_if(holds)
                    add(self.landed[a] <= begin[b]).only_enforce_if(holds)
            self.model.add_no_overlap(
                [
                    self.model.new_interval_var(begin[i], self.costs.ns[i] * self.scale, self.landed[i], f"lane{i}")
                    for i in queue
                ]
            )

    def edges(self):
        index, add = self.index, self.model.add
        for i in self.nodes:
            for p in index.preds(i):
                if p in self.end:
                    add(self.start[i] >= self.end[p])
            if i in index.wait_of:
                launch = index.wait_of[i]
                add(self.start[i] >= self.end[launch])
                add(self.start[i] >= self.landed[launch])
        if index.ops[-1] == "output":
            for i in self.nodes[:-1]:
                add(self.end[i] <= self.start[self.nodes[-1]])

    def touched(self, node):
        buffers = self.index.estimates.buffers
        return {b for near in (node, *self.index.data_preds[node]) for b in buffers[near]}

    def memory(self, budget):
        index, sizes = self.index, self.index.estimates.buffer_bytes
        inputs = {b for i in self.fixed for b in index.estimates.buffers[i]}
        touches: dict[int, set[int]] = {}
        forever = {b for i in index.outputs if i is not None for b in index.estimates.buffers[i]}
        for i in self.nodes:
            for b in self.touched(i):
                touches.setdefault(b, set()).add(i)
        for launch, facts in index.launches.items():
            for b in self.touched(launch) if facts.asynchronous else ():
                touches[b] = touches.get(b, set()) | set(facts.waits)
                if not facts.waits:
                    forever.add(b)
        made: dict[int, int] = {}
        for i in self.nodes:
            for b in index.estimates.buffers[i]:
                made.setdefault(b, i)
        left = budget - sum(sizes[b] for b in inputs)
        kept = [b for b in made if b not in inputs and sizes[b]]
        lives = [self.life(f"buffer{b}", made[b], None if b in forever else touches[b]) for b in kept]
        self.at_most(lives, [sizes[b] for b in kept], left)

    def flying(self, limit):
        index, held = self.index, [i for i, facts in self.index.launches.items() if facts.asynchronous]
        lives, sizes = [], []
        for i in held:
            facts = index.launches[i]
            sent = sum(index.tensors[n].bytes for n in facts.inputs if index.tensors[n] is not None)
            got = [index.tensors[i], *index.estimates.parts.get(i, ())]
            sizes.append(max(sent, sum(t.bytes for t in got if t is not None)))
            lives.append(self.life(f"flying{i}", i, set(facts.waits), until_start=True))
        self.at_most(lives, sizes, limit)

    def life(self, name, maker, last, until_start=False):
        """From the begin of ``maker`` to the end (begin) of the last of ``last``; to the end of the step without."""
        end, length = self.time(f"{name}end"), self.time(f"{name}length")
        if last is None or (until_start and not last):
            self.model.add(end == self.step)
        else:
            times = self.start if until_start else self.end
            self.model.add_max_equality(end, [times[i] for i in last])
        return self.model.new_interval_var(self.start[maker], length, end, name)

    def at_most(self, lives, sizes, limit):
        if limit < 0:
            self.model.add_bool_or([])
        elif lives:
            self.model.add_cumulative(lives, sizes, limit)

    def best(self, effort) -> Best:
        cp_model = solver_library()
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.search_branching = cp_model.PORTFOLIO_WITH_QUICK_RESTART_SEARCH
        solver.parameters.max_deterministic_time = effort
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return Best(None, None, None)
        bound = int(solver.best_objective_bound) // self.scale
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Best(None, None, bound)
        order = (*self.fixed, *sorted(self.nodes, key=lambda i: solver.value(self.start[i])))
        return Best(solver.value(self.step) // self.scale, order, bound)
