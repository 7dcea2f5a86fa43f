"""Long runs of compute are cut by reduce-scatters that are launched sooner: legal, within limits, at the same step."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.base.terms import Kind
from commcc.graph.index import build_index
from commcc.schedule import Limits, Problem, runs, search
from commcc.schedule.judge import judge, late
from commcc.schedule.runs import Cutter
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.effort import examples
from tests.index_maker import IndexMaker, random_order
from tests.schedule_graphs import check_order, scheduled_graph

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
RELAXED = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))


@RELAXED
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from((None, 0, 2)), st.randoms(use_true_random=False))
def test_any_order_stays_legal_and_keeps_its_prefetch(seed, most, prefetch, rng):
    problem = Problem(*scheduled_graph(seed))
    ops, last = problem.index.ops, len(problem.index) - 1
    order = [node for node in random_order(problem.index, rng) if ops[node] != "placeholder"]
    if ops[last] == "output":
        order = [node for node in order if node != last] + [last]
    order = [*problem.index.placeholders, *order]
    made = cut_runs(problem, Limits(None, None, prefetch), order, most).tolist()
    check_order(problem.index, made)
    for launch, waits in ((n, facts.waits) for n, facts in problem.index.launches.items() if facts.waits):
        ahead = [distance(problem.index, each, launch, waits) for each in (order, made)]
        if prefetch is not None and ahead[1] > ahead[0]:
            assert ahead[1] <= max(prefetch, problem.own_prefetch[launch])


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize(
    "name", ["tiny_llama_fsdp4_bw", "tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_bw", "tiny_deepseek_fsdp4_ep2"]
)
def test_what_held_a_reduction_back_is_forgotten_once_it_has_run(monkeypatch, name, most):
    """The same as where every reduce-scatter is looked at anew at every stop, and as in plain Python."""
    look = runs._found

    def anew(graph, cutting, launch, at):
        cutting.rows.blocked = -1
        return look(graph, cutting, launch, at)

    index = build_index(load(SAMPLES / f"{name}.fx.txt.gz"))
    problem = Problem(index, load_model("h100").price(index))
    first = late(problem.graph)
    orders = [first.tolist(), cut_runs(problem, Limits(), first, 6).tolist()]
    made = [cut_runs(problem, Limits(), order, most).tolist() for order in orders]
    assert made[0] != orders[0]
    monkeypatch.setattr(runs, "_cut", runs._cut.python)
    monkeypatch.setattr(runs, "_found", anew)
    assert made == [cut_runs(problem, Limits(), order, most).tolist() for order in orders]


def cut_runs(problem, limits, order, most):
    """The order with its runs cut, for once."""
    return Cutter(problem, limits, np.fromiter(order, np.int64)).cut(most)


def distance(index, order, launch, waits):
    """Compute nodes between a launch and its first wait."""
    place = {node: at for at, node in enumerate(order)}
    between = order[place[launch] : min(place[wait] for wait in waits)]
    return sum(index.compute[node] for node in between)


def problem_of(make, works, scattered):
    """What was made, with these nodes as compute and these launches as reduce-scatters, the others as all-reduces."""
    index = make.index()
    kinds = {n: Kind.REDUCE_SCATTER if n in scattered else Kind.ALL_REDUCE for n in index.launches}
    launches = {node: replace(launch, kind=kinds[node]) for node, launch in index.launches.items()}
    index = replace(index, compute=tuple(n in works for n in range(len(index))), launches=launches)
    return Problem(index, make.costs(0))


def put_off(compute, reductions):
    """Compute nodes, of which some make what a reduce-scatter sends; the order has all of these at the end."""
    make = IndexMaker()
    source = make.input()
    works = [make.op(10, source) for _ in range(compute)]
    launches = [make.launch(5, "g", node) for node in works[:reductions]]
    for launch in launches:
        make.wait(launch)
    return problem_of(make, works, launches)


def test_runs_become_as_short_as_asked_for():
    problem = put_off(12, 6)
    order = range(len(problem.index))
    assert judge(problem.graph, np.array(order, np.int64)).longest_run == 12
    for most in (2, 4, 6):
        assert judge(problem.graph, cut_runs(problem, Limits(), order, most)).longest_run == most


def test_what_needs_compute_stays_behind_it():
    problem = put_off(4, 4)
    made = cut_runs(problem, Limits(), range(len(problem.index)), 1).tolist()
    assert judge(problem.graph, np.array(made, np.int64)).longest_run == 1
    for launch in problem.index.launches:
        assert made.index(problem.index.data_preds[launch][0]) < made.index(launch)


def sent(make, works, *sources):
    """A problem in which these are reduced and scattered at the end, each on a stream of its own."""
    launches = [make.launch(5, f"g{number}", source) for number, source in enumerate(sources)]
    make.op(0, *map(make.wait, launches))
    return launches, problem_of(make, works, launches)


def some_works(count):
    make = IndexMaker()
    source = make.input()
    return make, [make.op(10, source) for _ in range(count)]


def test_one_of_the_next_comes_where_the_first_has_to_stay():
    make, works = some_works(6)
    launches, problem = sent(make, works, works[5], works[0])
    made = cut_runs(problem, Limits(), range(len(problem.index)), 3).tolist()
    assert made.index(launches[1]) == made.index(works[3]) - 1
    assert made.index(launches[0]) > made.index(works[5])


def test_no_other_launch_goes_along():
    make, works = some_works(6)
    _, problem = sent(make, works, make.wait(make.launch(5, "a", works[0])))
    order = [*range(len(problem.index))]
    assert cut_runs(problem, Limits(), order, 3).tolist() == order


@pytest.mark.parametrize("views", [39, 40])
def test_no_more_than_40_nodes_go_along(views):
    make, works = some_works(6)
    node = works[0]
    for _ in range(views):
        node = make.op(0, node)
    _, problem = sent(make, works, node)
    order = [*range(len(problem.index))]
    assert (cut_runs(problem, Limits(), order, 3).tolist() == order) == (views == 40)


def test_short_runs_stay():
    make, works = some_works(2)
    early = make.launch(5, "a", works[0])
    make.wait(early)
    works += [make.op(10, works[0]) for _ in range(2)]
    launches, problem = sent(make, works, works[1])
    problem = problem_of(make, works, [early, *launches])
    order = [*range(len(problem.index))]
    assert cut_runs(problem, Limits(), order, 2).tolist() == order


def held_back(count=30):
    """All-reduces of what compute makes, each ten times as long, and a reduce-scatter of each result."""
    make = IndexMaker()
    source = make.input()
    works = [make.op(10, source) for _ in range(count)]
    scattered = [make.launch(20, "b", make.wait(make.launch(100, "a", node))) for node in works]
    for launch in scattered:
        make.wait(launch)
    return problem_of(make, works, scattered)


def test_a_network_that_is_busy_for_longer_than_compute_leaves_no_long_runs(monkeypatch):
    problem = held_back()
    cut = search(problem, Limits(), 12)
    monkeypatch.setattr(sys.modules["commcc.schedule.search"], "_CUTS", ())
    uncut = search(problem, Limits(), 12)
    assert cut.longest_run <= 6 < uncut.longest_run
    assert cut.step_ns == uncut.step_ns
    check_order(problem.index, cut.order)


def test_long_runs_are_tried_again_with_launches_closer_to_their_waits(monkeypatch):
    """Not for a graph without reduce-scatters, where runs are short, or beyond the effort."""
    module = sys.modules["commcc.schedule.search"]
    problem = Problem(*scheduled_graph(3))
    for feeding, run, effort, expected in (
        ({0: ()}, 9, 40, [10, 10]),
        ({0: ()}, 9, 6, [10]),
        ({}, 9, 40, []),
        ({0: ()}, 4, 40, []),
    ):
        asked = []
        looking = module._Search(problem, Limits(prefetch=40), effort)
        monkeypatch.setitem(problem.__dict__, "feeding", feeding)
        looking.best = replace(looking.start, longest_run=run, settings=((1,), (2,)))
        looking.tried = 5

        def schedule(base, setting, limits, looking=looking, asked=asked):
            asked.append(limits.prefetch)
            looking.tried += 1
            return base

        looking._schedule = schedule
        looking.narrow()
        assert asked == expected
