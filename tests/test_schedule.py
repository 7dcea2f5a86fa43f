"""Schedules of random graphs: legal, within limits, never worse than the graph's own order, the same everywhere."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from commcc.base.terms import Kind
from commcc.graph.index import Tensor, build_index
from commcc.graph.memory import MemoryModel, live_bytes
from commcc.graph.metrics import longest_run
from commcc.schedule import Limits, Problem, live, search, search_once, walk
from commcc.schedule.curve import number_at
from commcc.schedule.judge import judge, late
from commcc.schedule.scheduler import Policy, fill, schedule
from commcc.schedule.walk import walk_along
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.types import Costs
from commcc.timing.simulate import Simulator
from tests import plain_scheduler
from tests.effort import examples
from tests.index_maker import IndexMaker, random_order
from tests.plain_live import LiveCurve
from tests.random_graphs import GraphBuilder, aten
from tests.schedule_graphs import check_order, scheduled_graph
from tests.slow_memory import slow_live_bytes
from tests.slow_simulator import SlowSimulator
from tests.test_roles import prepared

#: Of an input in flight at the start.
FLOATS = Tensor("float32", 4, (8,), "cuda:0", 8)
RELAXED = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(RELAXED, max_examples=examples(500))
FEW = settings(RELAXED, max_examples=examples(40))
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
SEEDS = st.integers(0, 10**6)
#: Live bytes over the graph's own peak, in per cent; None for no budget.
MORE = st.sampled_from((None, -10, 0, 0, 5, 30))
#: Bytes in flight, in multiples of the largest collective; compute nodes between a launch and its wait.
FLIGHTS = st.sampled_from((None, None, 0, 1, 2))
PREFETCH = st.sampled_from((None, None, 0, 1, 3))
OWN = st.sampled_from((0, 300, 1000))
RUNS = st.sampled_from((-1, 0, 1, 2, 4))
#: What launches ahead of their place leave of the budget, in permille.
SPARE = st.sampled_from((0, 0, 10, 100, 1000))
QUEUE = st.sampled_from((-1, 0, 1000, 3000))
PUT_OFF = st.sampled_from((0, 500, 2000, 20_000))
EFFORT = st.integers(1, 14)
POLICIES = st.builds(
    lambda share, lead: (share, lead), st.sampled_from((500, 900, 1000)), st.sampled_from((1000, 8000))
)


@lru_cache(maxsize=64)
def problem_of(seed):
    return Problem(*scheduled_graph(seed))


def limits_of(problem, more=None, flights=None, prefetch=None):
    own = live_bytes(problem.index).peak_bytes
    budget = None if more is None else own + own * more // 100
    largest = max(problem.bytes.values(), default=0)
    return Limits(budget, None if flights is None else flights * largest, prefetch)


def one(problem, base, policy, limits):
    """One schedule from ``base``."""
    return schedule(problem, base, Policy(problem.bound * policy[0] // 1000, *policy[1:]), limits).tolist()


def plain(problem, base, policy, limits):
    """The same by the plain scheduler."""
    return plain_scheduler.schedule(problem, base, Policy(problem.bound * policy[0] // 1000, *policy[1:]), limits)


# What a search returns


def test_what_was_asked_last_is_not_searched_again(monkeypatch):
    module, asked = sys.modules["commcc.schedule.search"], []
    monkeypatch.setattr(module, "search", lambda *args: asked.append(args) or search(*args))
    index, costs = scheduled_graph(1)
    first = search_once(Problem(index, costs), Limits(), 4)
    assert search_once(Problem(index, costs), Limits(), 4) is first
    assert len(asked) == 1, "the same graph under the same prices"
    search_once(Problem(index, costs), Limits(1 << 40), 4)
    search_once(Problem(index, replace(costs)), Limits(1 << 40), 4)
    assert len(asked) == 3, "other limits; other prices"


def test_no_work_goes_into_what_cannot_win(monkeypatch):
    module, finished = sys.modules["commcc.schedule.search"], []

    def even(self):
        finished.append(self)

    monkeypatch.setattr(module._Search, "even", even)
    monkeypatch.setattr(module, "_MOVED_NODES", 0)  # on small graphs moves may still make it win
    monkeypatch.setattr(module, "_last", None)
    index, costs = scheduled_graph(1)
    step = search(Problem(index, costs), Limits(), 4).step_ns
    assert len(finished) == 1
    far = step * 100 // 110
    beaten = search_once(Problem(index, costs), Limits(), 4, far)
    assert beaten.step_ns >= step and len(finished) == 1
    assert search_once(Problem(index, costs), Limits(), 4).step_ns == step
    assert len(finished) == 2, "what was left unfinished is not known"
    monkeypatch.setattr(module, "_MOVED_NODES", 1 << 40)
    assert search(Problem(index, costs), Limits(), 4, far) and len(finished) == 3


@MANY
@given(SEEDS, MORE, FLIGHTS, PREFETCH, POLICIES, st.sampled_from((300, 900, 990, 1000, 1001)))
def test_a_schedule_that_takes_too_long_is_given_up_and_no_other(seed, more, flights, prefetch, policy, permille):
    problem = problem_of(seed)
    limits = limits_of(problem, more, flights, prefetch)
    base = range(len(problem.index))
    chosen = Policy(problem.bound * policy[0] // 1000, *policy[1:])
    whole = schedule(problem, base, chosen, limits)
    step = judge(problem.graph, whole).step_ns
    until = step * permille // 1000
    order = schedule(problem, base, chosen, limits, until)
    check_order(problem.index, order.tolist())
    assert order.tolist() == whole.tolist() or judge(problem.graph, order).step_ns > until
    if until >= step:
        assert order.tolist() == whole.tolist()


def test_schedules_that_take_far_too_long_are_given_up_early():
    """Half of the step is never enough for what keeps a stream busy for more."""
    given_up = 0
    for seed in range(40):
        problem = problem_of(seed)
        base = range(len(problem.index))
        chosen = Policy(problem.bound, 1000)
        whole = schedule(problem, base, chosen, Limits())
        order = schedule(problem, base, chosen, Limits(), judge(problem.graph, whole).step_ns // 2)
        given_up += order.tolist() != whole.tolist()
    assert given_up > 20


@RELAXED
@given(SEEDS, MORE, FLIGHTS, PREFETCH, EFFORT)
def test_a_schedule_is_legal_and_never_worse(seed, more, flights, prefetch, effort):
    problem = problem_of(seed)
    limits = limits_of(problem, more, flights, prefetch)
    found = search(problem, limits, effort)
    check_order(problem.index, found.order)
    own = live_bytes(problem.index)
    assert found.peak_bytes == live_bytes(problem.index, found.order).peak_bytes
    step, own_step = (Simulator(problem.index, problem.costs).run(order).step_ns for order in (found.order, None))
    assert found.step_ns == step >= problem.bound
    assert found.tried <= effort
    if limits.budget is None or own.peak_bytes <= limits.budget:
        assert step <= own_step
        assert limits.budget is None or found.peak_bytes <= limits.budget
    else:
        assert found.peak_bytes <= own.peak_bytes


@FEW
@given(SEEDS, st.sampled_from((0, 5, 30)), EFFORT)
def test_the_slow_references_agree(seed, more, effort):
    """Live bytes asked buffer by buffer, the step nanosecond by nanosecond."""
    problem = problem_of(seed)
    limits = limits_of(problem, more)
    found = search(problem, limits, effort)
    live = slow_live_bytes(problem.index, found.order)
    assert max(live, default=0) == found.peak_bytes <= limits.budget
    slow = SlowSimulator(problem.index, problem.costs, found.order)
    slow.run()
    assert slow.step == found.step_ns


@FEW
@given(SEEDS, MORE, FLIGHTS, PREFETCH)
def test_more_effort_is_never_worse(seed, more, flights, prefetch):
    problem = problem_of(seed)
    limits = limits_of(problem, more, flights, prefetch)
    grain = max(1, problem.bound // 1000)
    ranks = []
    for effort in (1, 2, 3, 5, 6, 9, 14):
        found = search(problem, limits, effort)
        over = 0 if limits.budget is None else max(0, found.peak_bytes - limits.budget)
        ranks.append((over, found.step_ns // grain, found.longest_run, found.step_ns))
    assert ranks == sorted(ranks, reverse=True)


def test_schedules_pay():
    """Not only the graph's own order: on most graphs with collectives something better is found."""
    better = 0
    for seed in range(1, 81, 4):
        problem = problem_of(seed)
        better += search(problem, Limits(), 6).step_ns < problem.before.step_ns
    assert better >= 18


@pytest.mark.full
def test_the_same_in_another_interpreter():
    """Nothing depends on the order of sets, on addresses or on what ran before."""
    code = (
        "from tests.test_schedule import *\n"
        "for seed in range(16):\n"
        "    problem = problem_of(seed)\n"
        "    print(seed, search(problem, limits_of(problem, 5, 2, 3), 6))\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path.cwd())},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "77")
    }
    again = "".join(
        f"{seed} {search(problem_of(seed), limits_of(problem_of(seed), 5, 2, 3), 6)}\n" for seed in range(16)
    )
    assert seen == {again}


def test_nothing_to_schedule():
    for make in (IndexMaker(), IndexMaker()):
        found = search(Problem(make.index(), make.costs()), Limits(0, 0, 0), 3)
        assert (found.order, found.step_ns, found.peak_bytes) == ((), 0, 0)


# The limits of one schedule, from any legal order


@RELAXED
@given(SEEDS, POLICIES, MORE, FLIGHTS, PREFETCH)
def test_one_schedule_is_legal_from_any_legal_order(seed, policy, more, flights, prefetch):
    problem = problem_of(seed)
    base = shuffled(problem, seed)
    order = one(problem, base, policy, limits_of(problem, more, flights, prefetch))
    check_order(problem.index, order)


def shuffled(problem, seed):
    """A random legal order with inputs first, output last."""
    index, base = problem.index, random_order(problem.index, random.Random(seed))
    inputs = set(index.placeholders)
    last = {len(index) - 1} if index.ops and index.ops[-1] == "output" else set()
    middle = [node for node in base if node not in inputs | last]
    return [*sorted(inputs), *middle, *last]


@RELAXED
@given(SEEDS, POLICIES, st.booleans(), st.sampled_from((0, 5, 30)))
def test_one_schedule_stays_within_a_budget_that_its_base_meets(seed, policy, other, more):
    problem = problem_of(seed)
    base = shuffled(problem, seed) if other else list(range(len(problem.index)))
    peak = live_bytes(problem.index, base).peak_bytes
    budget = peak + peak * more // 100
    assert live_bytes(problem.index, one(problem, base, policy, Limits(budget))).peak_bytes <= budget


def flown(index, order, sizes):
    """Most bytes of collectives launched and not waited for, of those that somebody waits for."""
    left = {node: len(facts.waits) for node, facts in index.launches.items() if facts.asynchronous and facts.waits}
    flying = most = 0
    for node in order:
        flying += sizes[node] if node in left else 0
        most = max(most, flying)
        launch = index.wait_of.get(node)
        if launch in left:
            left[launch] -= 1
            flying -= 0 if left[launch] else sizes[launch]
    return most


@RELAXED
@given(SEEDS, MORE, st.sampled_from((0, 1, 2)), PREFETCH, EFFORT)
def test_bytes_in_flight(seed, more, flights, prefetch, effort):
    """Within the limit, or what the graph's own order has; where waits are for results and not for views of them.

    A wait for a view cannot make room before the view has run.
    """
    problem = problem_of(seed)
    index, limits = problem.index, limits_of(problem, more, flights, prefetch)
    assume(all(index.data_preds[wait] == (launch,) for wait, launch in index.wait_of.items()))
    own = Simulator(index, problem.costs).run().in_flight_bytes
    order = search(problem, limits, effort).order
    assert flown(index, order, problem.bytes) <= max(limits.in_flight, own)


@RELAXED
@given(SEEDS, MORE, FLIGHTS, st.sampled_from((0, 1, 3)), EFFORT)
def test_compute_between_launch_and_wait(seed, more, flights, prefetch, effort):
    """Compute nodes between a launch and its first wait: within the limit, or as many as in the graph's own order."""
    problem = problem_of(seed)
    index = problem.index
    order = search(problem, limits_of(problem, more, flights, prefetch), effort).order
    place = {node: at for at, node in enumerate(order)}
    for launch, facts in index.launches.items():
        if facts.asynchronous and facts.waits:
            own = sum(index.compute[launch : min(facts.waits)])
            between = order[place[launch] : min(place[wait] for wait in facts.waits)]
            assert sum(index.compute[node] for node in between) <= max(prefetch, own)


# The kernels against plain Python


@MANY
@given(SEEDS, st.tuples(POLICIES, OWN, RUNS, SPARE, QUEUE, PUT_OFF), MORE, FLIGHTS, PREFETCH, st.booleans())
def test_kernels_and_plain_python_make_the_same(seed, policy, more, flights, prefetch, other):
    policy = (*policy[0], *policy[1:3], 2, *policy[3:])
    problem = problem_of(seed)
    base = shuffled(problem, seed) if other else list(range(len(problem.index)))
    limits = limits_of(problem, more, flights, prefetch)
    assert one(problem, base, policy, limits) == plain(problem, base, policy, limits)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("budget", [(1 << 60) + 5, 1 << 70])
def test_a_budget_larger_than_any_memory_is_none(budget):
    for seed in range(20):
        problem = problem_of(seed)
        orders = [one(problem, range(len(problem.index)), (900, 8000, 0, -1, 2, 8), Limits(b)) for b in (budget, None)]
        assert orders[0] == orders[1]


def curve_of(walk):
    return [number_at(walk.live, place) for place in range(len(walk.live.numbers))]


def test_what_is_refused_where_it_was_before_would_be_refused_after_a_look_at_all(monkeypatch):
    """In plain Python: each time that the quick answer is no, the curve is changed and looked at as well."""
    quick, refused, together = live._still_too_much, [], []

    def checked(graph, walk, count):
        too_much = quick(graph, walk, count)
        if too_much:
            before, clock = curve_of(walk), walk.clock[0]
            grows = live._end_of_growth(walk, count)
            most = live._change(graph, walk, count, grows, 1)
            assert most == max(curve_of(walk)[clock.front : grows]) > clock.budget
            live._change(graph, walk, count, grows, -1)
            assert curve_of(walk) == before
            refused.append(count)
            together.append(count > 1)
        return too_much

    monkeypatch.setattr(live, "_still_too_much", checked)
    for seed in range(140):
        problem = problem_of(seed)
        limits = limits_of(problem, more=(-10, 0, 5)[seed % 3])
        walk = walk_along(problem.graph, np.arange(len(problem.index)), problem.bounds(limits))
        clock = walk.clock[0]
        clock.target, clock.lead_permille, clock.most_run, clock.bring = problem.bound // 2, 8000, 2, 2
        fill.python(problem.graph, walk)
    assert len(refused) > 500
    assert any(together)


@pytest.mark.parametrize("slowdown", [1000, 1400])
@pytest.mark.parametrize("arrival", [0, 15, 10_000])
def test_figures_of_an_input_that_is_in_flight_at_the_start(arrival, slowdown):
    make = IndexMaker()
    pending, x = make.input(30), make.input(10)
    first = make.op(20, x)
    waited = make.op(0, pending)
    gather = make.launch(25, "g", x, size=40)
    then = make.op(10, waited, first)
    make.op(5, then, make.wait(gather))
    index = make.index()
    tensors = tuple(FLOATS if node == pending else tensor for node, tensor in enumerate(index.tensors))
    index = replace(index, begun_elsewhere={waited: pending}, tensors=tensors)
    index = replace(index, estimates=replace(index.estimates, arrivals={pending: arrival} if arrival else {}))
    costs, order = make.costs(2, slowdown), np.arange(len(index))
    timeline = Simulator(index, costs).run()
    assert timeline.in_flight_bytes >= FLOATS.bytes
    assert Problem(index, costs).figures(order) == (timeline.step_ns, timeline.exposed_ns, timeline.in_flight_bytes)
    assert bool(timeline.exposed_ns > 15) == (arrival > 15)


def test_what_is_known_of_an_order_does_not_change_a_schedule(monkeypatch):
    """Orders of two graphs in turn, with other aims, as in a search; and each where nothing is known yet."""
    problems = [problem_of(seed) for seed in (5, 5, 6)]
    bases = [(each, base) for each in problems for base in (np.arange(len(each.index)), late(each.graph))]
    policies = [Policy(problems[0].bound * aim // 10, 4000, own, 2) for aim in (5, 9) for own in (0, 700)]
    asked = [(each, base, policy) for policy in policies for each, base in (*bases, *reversed(bases))]
    known = [schedule(each, base, policy, Limits()).tolist() for each, base, policy in asked]
    for (each, base, policy), order in zip(asked, known, strict=True):
        monkeypatch.setattr(walk, "_known", ())
        assert schedule(each, base, policy, Limits()).tolist() == order


@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_bw", "tiny_moe_fsdp4_ep2_bw"])
def test_long_runs_are_cut_where_gradients_wait(name):
    """An early target runs ahead along the long path and leaves gradients for later; rule 0 takes them in between."""
    index = build_index(load(SAMPLES / f"{name}.fx.txt.gz"))
    problem = Problem(index, load_model("h100").price(index))
    runs = []
    for most in (-1, 4):
        policy = Policy(problem.bound // 2, 1000, 0, most, launch_permille=0)
        runs.append(judge(problem.graph, schedule(problem, range(len(index)), policy, Limits())).longest_run)
    assert runs[0] > 20
    assert runs[1] <= 8


@pytest.mark.parametrize("short", [5, 10])
def test_chains_that_do_not_need_each_other_take_turns(short):
    """Of two micro-batches with sequence parallelism each layer is a long and a short stretch of compute, each with a
    reduce behind it. In step, both chains would wait for the one behind the short stretch.
    """
    build, layers, chains = GraphBuilder(), 20, 2
    rows = [build.placeholder(f"x{chain}", (8, 8)) for chain in range(chains)]
    ns = {}
    for chain, stretch in layers * [(chain, stretch) for chain in range(chains) for stretch in (100, short)]:
        for _part in range(4):
            rows[chain] = build.call(aten.mm.default, rows[chain], rows[chain])
            ns[rows[chain].name] = stretch
        rows[chain] = build.reduce(rows[chain], "tp")
    index = build_index(build.program(rows, {"tp": 2}))
    costs = [ns.get(name, 0) for name in index.names]
    for launch in index.launches:
        costs[launch] = 150
    costs = Costs("made", "0", (), tuple(costs), (-1,) * len(costs), {}, {}, 1, 1000, {})
    problem, steps = Problem(index, costs), {}
    for put_off in (0, 2000):
        policy = Policy(problem.bound // 2, 1000, launch_permille=put_off)
        steps[put_off] = judge(problem.graph, schedule(problem, range(len(index)), policy, Limits())).step_ns
    assert steps[2000] * 1000 <= problem.bound * 1020
    assert steps[0] * 1000 >= problem.bound * 1030


@pytest.mark.parametrize(("layers", "gather", "scatter", "reduce"), [(100, 30, 50, 110), (150, 40, 60, 110)])
def test_gathers_leave_a_stream_to_what_another_one_waits_for(layers, gather, scatter, reduce):
    """Gradients are scattered on the stream of gathers, then reduced on one that is never to be idle (HSDP)."""
    build = GraphBuilder()
    x = build.placeholder("x", (8, 8))
    gradients = []
    for shard in [build.placeholder(f"p{layer}", (4, 8)) for layer in range(layers)]:
        x = build.call(aten.mm.default, x, build.gather(shard, 2, "shards"))
        gradient = build.call(aten.mm.default, x, x)
        gradients.append(build.reduce(build.scatter(gradient, 2, "shards"), "copies"))
    index = build_index(build.program([x, *gradients], {"shards": 2, "copies": 2}))
    ns = [30 if op == "aten.mm" else 0 for op in index.ops]
    for launch, facts in index.launches.items():
        ns[launch] = {Kind.ALL_GATHER: gather, Kind.REDUCE_SCATTER: scatter, Kind.ALL_REDUCE: reduce}[facts.kind]
    costs = Costs("made", "0", (), tuple(ns), (-1,) * len(ns), {}, {}, 1, 1000, {})
    problem = Problem(index, costs)
    assert search(problem, Limits(), 50).step_ns * 1000 <= problem.bound * 1010


@RELAXED
@given(SEEDS, st.sampled_from((1000, 1000, 1100, 1500)))
def test_judged_as_by_the_simulator_and_the_memory_model(seed, slowdown):
    index, costs = scheduled_graph(seed)
    costs = replace(costs, slowdown_permille=slowdown)
    problem = Problem(index, costs)
    order = shuffled(problem, seed)
    judged = judge(problem.graph, np.array(order, np.int64))
    assert judged.step_ns == Simulator(index, costs).run(order).step_ns
    assert judged.peak_bytes == live_bytes(index, order).peak_bytes
    timeline = Simulator(index, costs.in_order(np.array(order))).run(order)
    assert problem.figures(np.array(order)) == (timeline.step_ns, timeline.exposed_ns, timeline.in_flight_bytes)
    own = judge(problem.graph, np.arange(len(index)))
    assert own.longest_run == longest_run(index, Kind.REDUCE_SCATTER)


@FEW
@given(SEEDS)
def test_the_late_order_is_legal(seed):
    problem = problem_of(seed)
    check_order(problem.index, late(problem.graph).tolist())


# The memory curve


class CheckedCurve(LiveCurve):
    """Compares the curve with the memory of the plan, computed anew after every node that runs."""

    hoists = 0

    def __init__(self, memory, base, budget):
        super().__init__(memory, base, budget)
        self.memory, self.base, self.order, self.to_run = memory, list(base), [], []
        self.check()

    def hoist(self, nodes, front):
        allowed = super().hoist(nodes, front)
        if allowed:
            assert not self.to_run
            self.to_run = list(nodes)
            CheckedCurve.hoists += 1
        else:
            self.check()
        return allowed

    def ran(self, node):
        super().ran(node)
        self.order.append(node)
        if self.to_run:
            assert self.to_run.pop(0) == node
        if not self.to_run:
            self.check()

    def check(self):
        done = set(self.order)
        rest = [node for node in self.base if node not in done]
        expected = self.memory.live([*self.order, *rest]).live[len(self.order) :]
        place = {node: at for at, node in enumerate(self.base)}
        assert [int(self._live[place[node]]) for node in rest] == list(expected)


@RELAXED
@given(SEEDS, POLICIES, st.booleans(), st.sampled_from((0, 5, 30, 100)))
def test_the_curve_is_the_memory_of_the_plan_at_every_step(seed, policy, other, more):
    problem = problem_of(seed)
    base = shuffled(problem, seed) if other else list(range(len(problem.index)))
    budget = live_bytes(problem.index, base).peak_bytes * (100 + more) // 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_scheduler, "LiveCurve", CheckedCurve)
        plain(problem, base, policy, Limits(budget))


def test_the_curve_was_used():
    """The test above looks at hoists, and some are refused."""
    before = CheckedCurve.hoists
    problem = problem_of(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_scheduler, "LiveCurve", CheckedCurve)
        plain(problem, range(len(problem.index)), (1000, 8000), limits_of(problem, 30))
    assert CheckedCurve.hoists > before
    assert isinstance(problem.memory, MemoryModel)


@pytest.mark.parametrize("described", [False, True])
def test_inputs_may_stand_anywhere_in_a_graph(described):
    """A launch goes ahead with what prepares it, which reads inputs that stand behind: these come first of all."""
    index = build_index(prepared(described=described))
    problem = Problem(index, load_model("h100").price(index))
    assert any(index.ops[node] == "placeholder" != index.ops[node - 1] for node in range(1, len(index)))
    for target, lead, own, run in product((500, 1000), (1000, 16000), (0, 1000), (-1, 2)):
        policy = Policy(problem.bound * target // 1000, lead, own, run)
        order = schedule(problem, range(len(index)), policy, Limits()).tolist()
        assert sorted(order) == list(range(len(index)))
        assert all(order.index(pred) < order.index(node) for node in order for pred in problem.preds[node])
