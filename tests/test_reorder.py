"""The pass `reorder`: the same program, verified, with the report that other code computes; bad use."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.apply import apply_plan
from commcc.base.errors import OptionError
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.options import parse_pipeline
from commcc.passes.reorder import GIB, Reorder
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator, lower_bound
from commcc.verify import verify
from tests.effort import examples
from tests.random_graphs import random_program
from tests.schedule_graphs import check_order, made_up_costs
from tests.virtual_ranks import VirtualRanks, random_inputs, same

RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
MODEL = load_model("h100")
SAMPLES = ("tiny_llama_fsdp2_tp2_bw", "tiny_llama_hsdp_bw", "tiny_llama_joint", "tiny_moe_fsdp4_ep2_bw")
#: Tight and loose; memory_budget is set from the graph's own peak.
OPTIONS = st.builds(
    Reorder,
    max_compute_prefetch=st.sampled_from([None, 0, 1, 3, 50]),
    max_in_flight_gb=st.sampled_from([None, 2.0, 300 / GIB]),
    effort=st.sampled_from([1, 2, 6, 14]),
)
BUDGETS = st.sampled_from([None, "auto", 1.0, 1.1, 2.0])


class MadeUp:
    """A model with prices at random."""

    def __init__(self, seed):
        self.seed = seed

    def price(self, index):
        return made_up_costs(index, random.Random(self.seed))


def with_budget(options, index, budget):
    """``budget``: in multiples of the graph's own peak."""
    own = live_bytes(index).peak_bytes
    return replace(options, memory_budget=budget if budget in (None, "auto") else int(own * budget) / GIB)


@RELAXED
@given(st.integers(0, 10_000), st.integers(2, 9), st.sampled_from([2, 4, 8]), OPTIONS, BUDGETS)
def test_reordering_keeps_the_program(seed, layers, world, options, budget):
    program = random_program(seed, layers, world)
    index = build_index(program)
    options = with_budget(options, index, budget)
    plan = options.plan(PlanContext(program, index, identify(index), MadeUp(seed)))
    after = apply_plan(program, index, plan)
    after.graph.lint()
    inputs = random_inputs(program.graph, world, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(after.graph, inputs).run())
    verdict = verify(program, after)
    assert verdict.status == "proved", verdict.findings or verdict.unproved
    assert [n.name for n in after.graph.nodes if n.op == "placeholder"] == [index.names[n] for n in index.placeholders]
    check_report(index, MadeUp(seed).price(index), plan, build_index(after))


def check_report(index, costs, plan, after):
    """Figures of the report, from the graph that came out."""
    order = plan.rewrite.order if plan.rewrite else tuple(range(len(index)))
    check_order(index, order)
    assert [after.position[index.names[node]] for node in order] == list(range(len(index)))
    moved = Simulator(index, costs).run(order)
    own = Simulator(index, costs).run()
    report = plan.report.to_json()
    assert report["step_ms"] == [own.step_ns / 1e6, moved.step_ns / 1e6]
    assert report["exposed_ms"] == [own.exposed_ns / 1e6, moved.exposed_ns / 1e6]
    assert report["in_flight_bytes"] == [own.in_flight_bytes, moved.in_flight_bytes]
    assert report["peak_bytes"] == [live_bytes(index).peak_bytes, live_bytes(after).peak_bytes]
    assert report["lower_bound_ms"] == lower_bound(index, costs).ns / 1e6 <= moved.step_ns / 1e6
    assert moved.step_ns <= own.step_ns
    budget = report["memory_budget_bytes"]
    assert budget is None or report["peak_bytes"][1] <= budget
    assert report["remarks"] == []


@RELAXED
@given(st.integers(0, 10_000), st.integers(2, 6), OPTIONS)
def test_the_pipeline_proves_it_and_a_second_run_is_not_worse(seed, layers, options):
    program = random_program(seed, layers, 2)
    first = run(program, [options], model=MODEL)
    assert first.verified == "proved"
    before, after = first.predictions
    assert after.timeline.step_ns <= before.timeline.step_ns
    inputs = random_inputs(program.graph, 2, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(first.program.graph, inputs).run())
    again = run(first.program, [options], model=MODEL)
    assert again.predictions[1].timeline.step_ns <= after.timeline.step_ns


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_get_shorter_and_are_proved(name):
    program = load(f"sample_graphs/{name}.fx.txt.gz")
    result = run(program, [Reorder()], model=MODEL)
    assert result.changed
    assert result.verified == "proved"
    before, after = result.predictions
    assert after.timeline.step_ns < before.timeline.step_ns
    assert after.memory.peak_bytes <= before.memory.peak_bytes + GIB


@pytest.mark.full
def test_a_sample_with_no_more_memory_than_its_own():
    program = load("sample_graphs/llama3_8b_fsdp64_bw.fx.txt.gz")
    index = build_index(program)
    own = live_bytes(index)
    plan = Reorder(memory_budget=own.peak_bytes / GIB).plan(PlanContext(program, index, identify(index), MODEL))
    costs = MODEL.price(index)
    assert live_bytes(index, plan.rewrite.order).peak_bytes <= own.peak_bytes
    assert Simulator(index, costs).run(plan.rewrite.order).step_ns < Simulator(index, costs).run().step_ns


def test_a_budget_below_the_own_peak_is_told():
    program = random_program(4, 6, 2)
    index = build_index(program)
    own = live_bytes(index)
    options = Reorder(memory_budget=(own.input_bytes + 1) / GIB)
    plan = options.plan(PlanContext(program, index, identify(index), MODEL))
    assert len(plan.report.remarks) == 1
    assert "no order found meets the memory budget" in plan.report.remarks[0]
    assert plan.report.peak_bytes[1] <= own.peak_bytes


@pytest.mark.parametrize("passes", ["reorder{", "bucket{strategy=auto,"])
def test_a_budget_below_the_inputs_is_an_error(passes):
    program = random_program(4, 6, 2)
    index = build_index(program)
    context = PlanContext(program, index, identify(index), MODEL)
    for below, told in ((1, True), (0, False)):
        (asked,) = parse_pipeline(f"{passes}memory_budget={(live_bytes(index).input_bytes - below) / GIB!r}}}")
        with pytest.raises(OptionError, match="less than the graph's inputs take") if told else nullcontext():
            asked.plan(context)


def test_without_a_model_there_is_nothing_to_judge_by():
    context = PlanContext.of(random_program(1, 2, 2))
    with pytest.raises(OptionError, match="reorder needs a cost model"):
        Reorder().plan(context)


def test_contradicting_limits_are_named():
    with pytest.raises(OptionError, match="max_in_flight_gb=0 leaves room for no collective"):
        parse_pipeline("reorder{max_in_flight_gb=0}")
    parse_pipeline("reorder{max_in_flight_gb=0,max_compute_prefetch=0}")
