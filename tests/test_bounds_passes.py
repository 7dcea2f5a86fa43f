"""The lower bound against what passes make: random programs and small samples, orders by brute force."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from commcc.graph.index import build_index
from commcc.passes import registry
from commcc.passes.options import parse_pipeline
from commcc.run import pipeline
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator, lower_bound
from tests.brute_force import all_orders, optimum
from tests.index_maker import random_order
from tests.random_graphs import random_program

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
PIPELINES = (
    "bucket{groups=all}",
    "bucket{groups=all,bucket_cap_mb=none}",
    "bucket{groups=all,max_topo_span=none}",
    "reorder",
    "reorder{max_in_flight_gb=none,max_compute_prefetch=none,memory_budget=none}",
    "bucket{groups=all},reorder",
    "reorder,bucket{strategy=overlap}",
    "bucket{strategy=auto,effort=4}",
    "bucket{strategy=auto,effort=4},reorder",
    "bucket{strategy=module},reorder",
    "split",
)
#: Pipelines that need a graph of their own kind.
ON_SAMPLES = (
    ("tiny_deepseek_ep2", "ep-chunk{chunks=3},ep-schedule,ep-dense"),
    ("tiny_deepseek_fsdp4_ep2", "ep-chunk,ep-schedule{order=auto},reorder"),
    ("tiny_llama_fsdp2_tp2_fw", "async-tp"),
)
MODELS = (
    "h100",
    "h100,launch_us=0,fused=no",
    "a100,slowdown=1.4,share_link=all",
    "cpu,share_link=topology,launch_us=40",
)


def test_every_pass_that_moves_something_is_here():
    texts = (*PIPELINES, *(text for _, text in ON_SAMPLES))
    named = {each.name for text in texts for each in parse_pipeline(text)}
    assert set(registry.names()) - named <= {"inline", "tag", "groups", "dedup", "cleanup", "ep-concretize"}


def check(index, costs, bound, seed, orders=6):
    """Graph order, random orders and the first few of all orders."""
    simulator, rng = Simulator(index, costs), random.Random(seed)
    tried = [None, *(random_order(index, rng) for _ in range(orders)), *all_orders(index, orders)]
    for order in tried:
        assert bound.ns <= simulator.run(order).step_ns
    assert bound.ns == max(bound.parts.values())


@pytest.mark.parametrize("text", PIPELINES)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sampled(10)
def test_results_of_passes_on_random_programs(text, seed):
    program = random_program(seed, 5, 2)
    model = load_model(MODELS[seed % len(MODELS)])
    result = pipeline.run(program, parse_pipeline(text), model=model)
    for snapshot in (result.first, result.last):
        assert snapshot.prediction.bound == lower_bound(snapshot.index, snapshot.prediction.costs)
        check(snapshot.index, snapshot.prediction.costs, snapshot.prediction.bound, seed)
    if "bucket" not in text:
        assert result.first.prediction.bound.ns <= result.last.prediction.timeline.step_ns, "only the order changed"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((n, t) for n in ("tiny_llama_fsdp2_tp2_bw", "tiny_llama_fsdp4_fw", "tiny_moe_ep2_fw") for t in PIPELINES),
        *ON_SAMPLES,
    ],
)
@pytest.mark.sampled(3)
def test_results_of_passes_on_samples(name, text):
    result = pipeline.run(load(SAMPLES / f"{name}.fx.txt.gz"), parse_pipeline(text), model=load_model("h100"))
    first, last = result.predictions
    assert 0 < last.bound.ns <= last.timeline.step_ns
    assert result.changed or text == "split"  # which leaves whole what gains nothing, as on graphs this small
    if {each.name for each in parse_pipeline(text)} <= {"reorder"}:
        assert first.bound.ns <= last.timeline.step_ns
        assert first.bound.ns == last.bound.ns, "the bound asks for dependences, not for an order"


@pytest.mark.parametrize("seed", range(10))
def test_the_best_order_of_a_bucketed_program(seed):
    """All orders of two layers, before and after bucketing."""
    program = random_program(2 * seed, 2, 2)
    result = pipeline.run(program, parse_pipeline("bucket{groups=all}"), model=load_model("h100,launch_us=3"))
    for snapshot in (result.first, result.last):
        index, costs = snapshot.index, snapshot.prediction.costs
        best = optimum(index, costs)
        assert snapshot.prediction.bound.ns <= best <= snapshot.prediction.timeline.step_ns


def test_a_better_order_of_a_pass_is_one_of_all_orders():
    """What reorder makes of a small program is not below the best of its orders."""
    for seed in range(6):
        program = random_program(2 * seed + 1, 2, 2)
        result = pipeline.run(program, parse_pipeline("reorder"), model=load_model("h100,launch_us=3"))
        index = build_index(program)
        best = optimum(index, result.first.prediction.costs)
        assert best <= result.last.prediction.timeline.step_ns <= result.first.prediction.timeline.step_ns
