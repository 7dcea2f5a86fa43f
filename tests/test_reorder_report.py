"""The pass reorder: its report against the graph that comes out, its limits, and the texts of its options."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from commcc.base.errors import OptionError
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.options import parse_pipeline, to_text
from commcc.passes.reorder import GIB, Reorder
from commcc.run.pipeline import run
from commcc.schedule import Problem
from commcc.schedule.judge import judge
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator, lower_bound
from tests.random_graphs import random_program
from tests.virtual_ranks import VirtualRanks, random_inputs, same

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
NAMES = ("tiny_llama_fsdp4_bw", "tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_llama_ddp_bw")
UNLIMITED = Reorder(max_compute_prefetch=None, max_in_flight_gb=None, memory_budget=None)
KEYS = {
    "cost_model",
    "step_ms",
    "exposed_ms",
    "lower_bound_ms",
    "over_bound",
    "peak_bytes",
    "memory_budget_bytes",
    "in_flight_bytes",
    "moved_nodes",
    "moved_launches",
    "schedules_tried",
    "settings",
    "remarks",
}


@cache
def sample(name):
    return load(next(SAMPLES.glob(f"{name}.fx.txt*")))


@cache
def model_of(text="h100"):
    return load_model(text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [Reorder(), UNLIMITED], ids=["limits", "none"])
@pytest.mark.sampled(3)
def test_the_report_is_what_comes_out(name, options):
    """Step, memory and bytes in flight, recomputed on the graph that was made, read back from a file."""
    result = run(sample(name), [options], model=model_of())
    report = result.steps[0].report
    assert set(report) == KEYS
    for program, which in ((sample(name), 0), (result.program, 1)):
        index = build_index(program)
        costs = model_of().price(index)
        timeline = Simulator(index, costs).run()
        # To the ns, though in another order others pay for fused chains.
        assert report["step_ms"][which] == round(timeline.step_ns / 1e6, 6)
        assert report["exposed_ms"][which] == round(timeline.exposed_ns / 1e6, 6)
        assert report["peak_bytes"][which] == live_bytes(index).peak_bytes
        assert report["in_flight_bytes"][which] == timeline.in_flight_bytes
        assert report["lower_bound_ms"] == round(lower_bound(index, costs).ns / 1e6, 6)
        assert report["over_bound"] >= 0
    assert report["step_ms"][1] < report["step_ms"][0]
    assert 0 < report["moved_nodes"] < len(result.first.index)
    assert result.verified == "proved"
    assert sorted(result.first.index.names) == sorted(result.last.index.names)


@pytest.mark.parametrize("options", [Reorder(), Reorder(max_in_flight_gb=1.29491e-07)])
def test_the_step_counts_who_pays_in_the_new_order(options):
    """Prices of the graph's own order, in which others pay for fused chains, say 0.7 % more."""
    result = run(sample("tiny_llama_fsdp2_tp2_fw"), [options], model=model_of())
    index = build_index(result.program)
    costs = model_of().price(index)
    problem = Problem(result.first.index, model_of().price(result.first.index))
    number = {name: node for node, name in enumerate(problem.index.names)}
    order = np.array([number[name] for name in index.names])
    assert judge(problem.graph, order).step_ns != Simulator(index, costs).run().step_ns
    assert result.steps[0].report["step_ms"][1] == round(Simulator(index, costs).run().step_ns / 1e6, 6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_again_is_not_worse(name):
    once = run(sample(name), [Reorder()], model=model_of())
    twice = run(once.program, [Reorder()], model=model_of())
    assert twice.last.prediction.timeline.step_ns <= once.last.prediction.timeline.step_ns
    if not twice.changed:
        assert twice.steps[0].report["moved_nodes"] == 0
        assert twice.steps[0].report["settings"] == []


def test_the_order_survives_a_file(tmp_path):
    result = run(sample(NAMES[0]), [Reorder()], model=model_of())
    path = tmp_path / "after.fx.txt"
    save(result.program, path)
    assert build_index(load(path)).fingerprint == result.last.index.fingerprint


@pytest.mark.parametrize("seed", range(8))
def test_the_same_bits(seed):
    program = random_program(seed, 6)
    result = run(program, [UNLIMITED], model=model_of("h100,launch_us=1"))
    inputs = random_inputs(program.graph, 2, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(result.program.graph, inputs).run())


@pytest.mark.full
def test_more_effort_is_never_worse():
    steps = []
    for effort in (1, 3, 6, 12):
        result = run(sample(NAMES[1]), [Reorder(effort=effort)], model=model_of())
        assert result.steps[0].report["schedules_tried"] <= effort
        steps.append(result.last.prediction.timeline.step_ns)
    assert steps == sorted(steps, reverse=True)


def test_same_input_same_plan():
    context = PlanContext.of(sample(NAMES[0]), model_of())
    plans = [Reorder().plan(context) for _ in range(2)]
    assert plans[0] == plans[1]


# Limits


def test_no_collective_ahead():
    """With nothing in flight allowed the graph's own overlap is all there is: it has none."""
    result = run(sample(NAMES[0]), [Reorder(max_in_flight_gb=0, max_compute_prefetch=0)], model=model_of())
    assert result.steps[0].report["in_flight_bytes"][1] <= result.steps[0].report["in_flight_bytes"][0]


def test_the_budget_is_kept():
    """Between the peak of the graph and that of a schedule without limits."""
    index = build_index(sample(NAMES[0]))
    own = live_bytes(index).peak_bytes
    free = run(sample(NAMES[0]), [UNLIMITED], model=model_of()).steps[0].report["peak_bytes"][1]
    assert free > own
    for budget in (own, (own + free) // 2, free):
        result = run(sample(NAMES[0]), [Reorder(memory_budget=budget / GIB)], model=model_of())
        assert live_bytes(build_index(result.program)).peak_bytes <= budget
        assert result.steps[0].report["memory_budget_bytes"] == budget
        assert result.steps[0].report["remarks"] == []


def test_the_budget_is_that_of_the_first_graph():
    """The first pass makes the peak larger; the second may not count from there."""
    program = sample(NAMES[0])
    own = live_bytes(build_index(program)).peak_bytes
    result = run(program, [UNLIMITED, Reorder(memory_budget="own")], model=model_of())
    assert result.steps[0].report["peak_bytes"][1] > own
    report = result.steps[1].report
    assert report["memory_budget_bytes"] == own
    assert report["peak_bytes"][1] <= own or report["remarks"], "what cannot be met is said"


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.sampled(1)
def test_more_effort_is_never_worse_where_memory_binds(name):
    """Over all rounds of the search, under a budget that binds."""
    program = sample(name)
    costs = [run(program, [Reorder(memory_budget="own", effort=n)], model=model_of()).steps[0] for n in (1, 6, 18, 60)]
    steps = [step.report["step_ms"][1] for step in costs]
    # Steps within 0.1 % of the bound are equal, and the shorter run of compute wins.
    assert all(after <= before * 1.002 for before, after in pairwise(steps))


def test_a_budget_that_cannot_be_met():
    """It says so and by how much, and comes as near as it can."""
    before = live_bytes(build_index(sample(NAMES[0])))
    budget = (before.input_bytes + 1) / GIB
    result = run(sample(NAMES[0]), [Reorder(memory_budget=budget)], model=model_of())
    report = result.steps[0].report
    over = report["peak_bytes"][1] - report["memory_budget_bytes"]
    assert over > 0
    assert report["peak_bytes"][1] <= before.peak_bytes
    assert len(report["remarks"]) == 1
    assert "no order found meets the memory budget" in report["remarks"][0]
    assert "passes it by" in report["remarks"][0]


def test_a_budget_below_the_inputs():
    context = PlanContext.of(sample(NAMES[0]), model_of())
    with pytest.raises(OptionError) as caught:
        Reorder(memory_budget=0.0).plan(context)
    assert "memory_budget=0 GiB is less than the graph's inputs take" in str(caught.value)
    assert "the graph's own peak is" in str(caught.value)


def test_without_a_cost_model():
    context = PlanContext.of(sample(NAMES[0]))
    with pytest.raises(OptionError, match="reorder needs a cost model"):
        Reorder().plan(context)


WRONG = {
    "max_in_flight_gb=0": ["max_in_flight_gb=0", "max_compute_prefetch"],
    "max_compute_prefetch=-1": ["max_compute_prefetch"],
    "effort=0": ["effort"],
    "memory_budget=lots": ["memory_budget"],
    "max_prefetch=3": ["max_prefetch"],
    "effort=0,memory_budget=-1,max_compute_prefetch=x": ["effort", "memory_budget", "max_compute_prefetch"],
}


@pytest.mark.parametrize("text", WRONG)
def test_options_that_are_wrong_are_all_named(text):
    with pytest.raises(OptionError) as caught:
        parse_pipeline(f"reorder{{{text}}}")
    for words in WRONG[text]:
        assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["reorder", "reorder{memory_budget=none}", "reorder{max_compute_prefetch=5,max_in_flight_gb=0.5,effort=12}"],
)
def test_text_and_object_are_the_same(text):
    (made,) = parse_pipeline(text)
    assert to_text(made) == text


def test_nothing_to_move():
    """A graph in its best order stays as it is."""
    from tests.random_graphs import GraphBuilder, aten

    build = GraphBuilder()
    x = build.placeholder("x", (4, 4))
    program = build.program([build.call(aten.mm.default, x, x)], {})
    result = run(program, [Reorder()], model=model_of())
    assert not result.changed
    assert result.steps[0].report["moved_nodes"] == 0
