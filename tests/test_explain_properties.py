"""Explanations of random graphs against brute force: paths, independence, legality, savings."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from commcc.explain import Limits, explain, explain_worst
from commcc.explain.context import Context, scene_of
from commcc.explain.moves import Move, Search
from commcc.explain.trials import Trial, moved
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.timing.cost import load_model
from commcc.timing.predict import Prediction, predict
from commcc.timing.simulate import Simulator, lower_bound
from tests.effort import examples
from tests.explain_graphs import FlatModel, Graph, ancestors, is_legal, is_path
from tests.index_maker import Shape, random_costs, random_maker, random_order
from tests.random_graphs import random_program
from tests.slow_simulator import SlowSimulator

RELAXED = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 10**6)
SHAPE = Shape(nodes=16, groups=("a", "b"), depth=5, transfers=(0, 3, 8, 20), durations=(0, 1, 4, 9))
TIGHT = Limits(max_compute_prefetch=2, max_in_flight_gb=2e-8, memory_budget=30)


def random_case(seed, limits=None):
    """A random graph, a third of its work compute nodes, and what is known of it."""
    make = random_maker(seed, SHAPE)
    rng = random.Random(seed + 2)
    index = make.index()
    works = [n for n in range(len(index)) if index.ops[n] == "aten.mul" and make.ns[n]]
    compute = {n for n in works if rng.random() < 0.4}
    index = replace(index, compute=tuple(n in compute for n in range(len(index))))
    costs = random_costs(seed, make)
    costs = replace(costs, latency_ns={n: make.ns[n] // 2 for n in index.launches if rng.random() < 0.3})
    prediction = Prediction(costs, Simulator(index, costs).run(), live_bytes(index), lower_bound(index, costs))
    ident = Graph.ident(_Known(index))
    return Context(index, ident, prediction, FlatModel(2), limits or Limits())


class _Known:
    """As much of a :class:`Graph` as :meth:`Graph.ident` reads."""

    def __init__(self, index):
        self._index, self.roles = index, {}

    def index(self):
        return self._index


def explained(context):
    found = explain_worst(context, 10**6)
    return [(context.ident.by_launch[context.index.position[each.name]], each) for each in found]


def step(context, order, costs=None, index=None):
    return SlowSimulator(index or context.index, costs or context.costs, order).run().step


@RELAXED
@given(SEEDS, st.booleans())
def test_paths_facts_and_json(seed, tight):
    context = random_case(seed, TIGHT if tight else None)
    index = context.index
    for collective, found in explained(context):
        paths = [r.path for r in found.reasons if r.kind == "dependence"]
        for path in (*paths, found.launch_side.path, found.wait_side.path):
            assert is_path(index, path)
        for path in paths:
            assert path[-1] == found.name or path[0] in found.waits
        if found.launch_side.path:
            assert (found.launch_side.path[0], found.launch_side.path[-1]) == (found.launch_side.limit, found.name)
        assert sum(stall.ns for stall in found.timing.stalls) == found.exposed_ns > 0
        assert sum(ns for _, ns in found.timing.queue) == found.timing.queue_ns
        assert found.reasons
        assert found.knobs
        assert json.dumps(found.to_json(), allow_nan=False)
        assert collective.launch == found.timing.launch_position


@RELAXED
@given(SEEDS)
def test_independent_work_is_independent_and_complete(seed):
    context = random_case(seed)
    index = context.index
    for collective, found in explained(context):
        launch = collective.launch
        ends = collective.waits if index.launches[launch].asynchronous else (launch,)
        free = [
            n
            for n in range(len(index))
            if context.costs.ns[n]
            and n not in index.launches
            and n not in index.wait_of
            and n not in ancestors(index, launch)
            and not any(end in ancestors(index, n) for end in ends)
        ]
        assert found.possible.ns == sum(context.costs.ns[n] for n in free)
        assert found.possible.compute_nodes == sum(index.compute[n] for n in free)
        assert {index.position[near.name] for near in (*found.possible.before, *found.possible.after)} <= set(free)


@RELAXED
@example(285)  # another collective's wait moves down, and with it what that collective reads
@given(SEEDS)
def test_every_order_that_can_be_asked_for_is_legal(seed):
    context = random_case(seed)
    index = context.index
    base = context.prediction.memory.peak_bytes
    for collective in context.ident.collectives:
        scene = scene_of(context, collective)
        search = Search(context, scene, 1)
        lows = [None] if scene.first_wait is None else [None, *range(scene.first_wait + 1, context.last + 1)]
        for above in [None, *range(context.first, scene.launch + 1)]:
            for below in lows:
                order = moved(scene, len(index), above, below)
                assert is_legal(index, order)
                move = Move(above, below, 0, 0, 0, Trial(0, 0, 0, 0, 0))
                assert live_bytes(index, order).peak_bytes <= base + search.longer(move)


@RELAXED
@given(SEEDS, st.booleans())
def test_savings_are_those_of_a_fresh_simulation(seed, tight):
    context = random_case(seed, TIGHT if tight else None)
    index, costs = context.index, context.costs
    plain = list(range(len(index)))
    now = step(context, plain)
    for collective, found in explained(context):
        launch = collective.launch
        free = replace(costs, ns=tuple(0 if n == launch else ns for n, ns in enumerate(costs.ns)))
        assert found.cost_ns == max(0, now - step(context, plain, free))
        kinds = {reason.kind: reason for reason in found.reasons}
        if "latency" in kinds:
            quick = [ns - costs.latency_ns[launch] if n == launch else ns for n, ns in enumerate(costs.ns)]
            assert kinds["latency"].saves_ns == now - step(context, plain, replace(costs, ns=tuple(quick)))
        if found.advice is None:
            continue
        above = None if found.advice.above is None else index.position[found.advice.above]
        below = None if found.advice.below is None else index.position[found.advice.below] + 1
        order = moved(scene_of(context, collective), len(index), above, below)
        assert is_legal(index, order)
        assert kinds["order"].saves_ns == found.advice.saves_ns == now - step(context, order) > 0
        assert found.advice.peak_bytes == live_bytes(index, order).peak_bytes
        assert found.advice.peak_bytes <= max(context.budget, context.prediction.memory.peak_bytes)


def test_no_explanation_needs_many_simulations(monkeypatch):
    """Time is nearly all simulation, some four milliseconds for ten thousand nodes."""
    runs = []
    run = Simulator.run
    monkeypatch.setattr(Simulator, "run", lambda self, order=None: runs.append(order) or run(self, order))
    for seed in range(300):
        context = random_case(seed, TIGHT if seed % 2 else None)
        for collective in context.ident.collectives:
            runs.clear()
            explain(context, context.index.names[collective.launch])
            assert len(runs) <= 40


@RELAXED
@given(SEEDS)
def test_a_queue_of_its_own(seed):
    context = random_case(seed)
    index = context.index
    plain = list(range(len(index)))
    for collective, found in explained(context):
        queue = [r for r in found.reasons if r.kind == "queue" and "With a queue of its own it would" in r.text]
        launch = collective.launch
        apart = replace(
            index, launches={**index.launches, launch: replace(index.launches[launch], group="a group of its own")}
        )
        saves = step(context, plain) - step(context, plain, index=apart)
        if queue:
            assert queue[0].saves_ns == saves
        elif index.launches[launch].asynchronous:
            assert saves * 50 < found.exposed_ns or saves <= 0


@RELAXED
@given(SEEDS)
def test_what_stays_exposed_stays_so_in_every_order(seed):
    """While the collective runs, the compute stream stalls for that long at least."""
    context = random_case(seed)
    index, costs = context.index, context.costs
    rng = random.Random(seed)
    orders = [random_order(index, rng) for _ in range(8)]
    for collective, found in explained(context):
        scene = scene_of(context, collective)
        orders.append(moved(scene, len(index), context.first, context.last if scene.first_wait is not None else None))
        for order in orders:
            timeline = Simulator(index, costs).run(order)
            span = timeline.spans[collective.launch]
            busy = 0
            for node in range(len(index)):
                begin, end = timeline.start[node], timeline.end[node] - timeline.stalls.get(node, 0)
                busy += max(0, min(end, span.end) - max(begin, span.start))
            rounding = sum(context.works)  # a node slowed down ends at a whole nanosecond
            assert span.ns - busy >= found.possible.stays_ns - rounding * (costs.slowdown_permille > 1000)


@pytest.mark.parametrize("seed", range(12))
def test_programs_with_mutation_and_several_groups(seed):
    """Graphs of real ops: aliases, in-place writes, three groups, costs by formula."""
    index = build_index(random_program(seed, 8, 2))
    model = load_model("h100,fused=no")
    ident = identify(index)
    context = Context(index, ident, predict(index, model), model, Limits())
    base = context.prediction.memory.peak_bytes
    assert explained(context)
    for collective, found in explained(context):
        scene = scene_of(context, collective)
        for path in (found.launch_side.path, found.wait_side.path):
            assert is_path(index, path)
        order = moved(scene, len(index), found.launch_side.position, found.wait_side.position)
        assert is_legal(index, order)
        wide = Move(context.first, context.last, 0, 0, 0, Trial(0, 0, 0, 0, 0))
        order = moved(scene, len(index), wide.above, wide.below)
        assert is_legal(index, order)
        search = Search(context, scene, found.exposed_ns)
        assert live_bytes(index, order).peak_bytes <= base + search.longer(wide)
