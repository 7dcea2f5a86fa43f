"""Buckets merged in numbers against the same buckets merged in the graph, indexed and priced anew; and sketches of them
against the numbers.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.apply import apply_plan
from commcc.apply.order import WaitsForItself
from commcc.base.reasons import Reason
from commcc.base.terms import Kind
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.bucket import Bucket
from commcc.passes.dedup import Dedup
from commcc.passes.options import parse_pipeline
from commcc.plan import Bucket as PlannedBucket
from commcc.plan import Merging
from commcc.planning.bucket_model import FORMS, BucketModel
from commcc.planning.merge_cost import MergeCost
from commcc.schedule import Limits, Problem, drawing, search
from commcc.schedule.first_looks import GLANCED, glance
from commcc.schedule.folding import fold
from commcc.schedule.in_order import in_order
from commcc.schedule.judge import judge, late
from commcc.schedule.merged import merge, without
from commcc.schedule.scheduler import Policy, schedule
from commcc.schedule.sketch import Sketches
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.model import DeviceSource
from commcc.timing.simulate import Simulator
from tests import plain_scheduler
from tests.effort import examples
from tests.random_graphs import GraphBuilder, aten, random_program
from tests.test_dedup import regathered

RELAXED = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
TINY = sorted(path.name.split(".")[0] for path in SAMPLES.glob("tiny_*.fx.txt*"))
BUCKETINGS = (
    "bucket{groups=all}",
    "bucket{groups=all,bucket_cap_mb=0.01}",
    "bucket{groups=all,bucket_cap_mb=0.0005}",
    "bucket{groups=all,max_topo_span=20}",
    "bucket{groups=all,multi_dtype=true}",
    "bucket{groups=all,param_order=true}",
    "bucket{strategy=module}",
    "bucket{strategy=module,include_all_reduce=true,multi_dtype=true,prefetch=none}",
    "bucket{strategy=overlap}",
    "bucket{groups=all,form=coalesced,bucket_cap_mb=0.01}",
    "bucket{groups=all,form=coalesced,multi_dtype=true}",
    "bucket{strategy=module,include_all_reduce=true,form=auto}",
    "bucket{strategy=overlap,form=coalesced}",
)
#: ``slow`` is a device on which every byte counts, whatever else holds.
MODELS = ("slow", "h100,fused=no", "a100,slowdown=1.4,share_link=all", "cpu,launch_us=40,fused=no")


@cache
def model_of(text):
    if text != "slow":
        return load_model(text)
    model = load_model("h100")
    memory, compute = replace(model.device.memory, gb_per_s=0.01), replace(model.device.compute, kernel_us=0.1)
    device = replace(model.device, memory=memory, compute=compute)
    return replace(model, device=device, sources=(DeviceSource(device, model.settings),))


@cache
def sample(name):
    return load(next(SAMPLES.glob(f"{name}.fx.txt*")))


def figures(index, costs):
    timeline = Simulator(index, costs).run()
    return {
        "step": timeline.step_ns,
        "compute": timeline.compute_ns,
        "communication": timeline.communication_ns,
        "launching": timeline.launch_ns,
        "exposed": timeline.exposed_ns,
        "peak": live_bytes(index).peak_bytes,
        "in flight": timeline.in_flight_bytes,
    }


def both(program, bucket, model):
    """Figures of the graph with buckets merged, in the graph and in numbers, and the plan; None without buckets."""
    index = build_index(program)
    plan = bucket.plan(PlanContext(program, index, identify(index), model))
    if not plan.rewrite.buckets:
        return None
    after = build_index(apply_plan(program, index, plan))
    made = merge(index, model, plan.rewrite)
    if not model.settings.fused and not plan.rewrite.moves and not plan.rewrite.before:
        is_sketched(index, model, plan.rewrite.buckets, made)
        is_folded(index, model, plan, Problem(*made, quick=True))
    return figures(after, model.price(after)), figures(*made), plan


def is_sketched(index, model, buckets, merged):
    """Asserts that a sketch of the merged graph is what scheduler and judge take the merged numbers for."""
    wanted = Problem(*merged, quick=True)
    sketch = Sketches(Problem(index, model.price(index), quick=True), model).merged(buckets)
    assert (sketch.bound, sketch.own_in_flight) == (wanted.bound, wanted.own_in_flight)
    graph, expected = sketch.graph, wanted.graph
    for name in set(graph.nodes.dtype.names) - {"stream"}:  # numbers of streams say nothing
        assert graph.nodes[name].tolist() == expected.nodes[name].tolist(), name
    for name in ("preds", "users", "waits", "prepares", "feeds", "needed_by", "resized"):
        assert rows_in(graph, name) == rows_in(expected, name), name
    for name in ("touched", "allocated"):  # buffers have other numbers
        assert [len(row) for row in rows_in(graph, name)] == [len(set(row)) for row in rows_in(expected, name)], name
    limits = Limits(budget=live_bytes(merged[0]).peak_bytes, prefetch=20)
    found, known = (glance(each, limits, GLANCED[:2]) for each in (sketch, wanted))
    assert found == known
    assert in_order(sketch, limits).tolist() == in_order(wanted, limits).tolist()


def is_folded(index, model, plan, wanted):
    """Asserts that a sketch in units is the same problem as the merged graph."""
    launches = [launch for launch, facts in index.launches.items() if len(facts.waits) == 1]
    sketch = Sketches(Problem(index, model.price(index), quick=True), model, launches).merged(plan.rewrite.buckets)
    assert len(sketch.graph.nodes) <= len(wanted.graph.nodes)
    assert (sketch.bound, sketch.own_in_flight) == (wanted.bound, wanted.own_in_flight)
    assert sketch.graph.nodes.compute_ns.sum() == wanted.graph.nodes.compute_ns.sum()
    own, known = (judge(each.graph, np.arange(len(each.graph.nodes))) for each in (sketch, wanted))
    assert own == known
    before = fold(wanted.graph)
    joined = sum(2 * len(bucket.members) - 1 for bucket in plan.rewrite.buckets if bucket.coalesced)
    assert len(before.graph.nodes) <= len(sketch.graph.nodes) + joined  # one wait for all members
    order = late(sketch.graph)
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    preds = rows_in(sketch.graph, "preds")
    assert all(places[pred] < places[node] for node, row in enumerate(preds) for pred in row)


def rows_in(graph, name):
    """All rows of a table; what prepares a launch and what feeds it runs in the order of the row."""
    rows = [graph.items[a:b].tolist() for a, b in pairwise(graph.rows[name].tolist())]
    return rows if name in ("prepares", "feeds", "resized") else [sorted(row) for row in rows]


def same(program, text):
    """Asserts that both are the same, and returns the plan."""
    (bucket,) = parse_pipeline(text)
    for model in MODELS:
        found = both(program, bucket, model_of(model))
        assert found is not None, "nothing was merged"
        in_graph, in_numbers, plan = found
        assert in_numbers == in_graph
    return plan


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("text", BUCKETINGS)
@pytest.mark.sampled(8)
def test_samples(name, text):
    """Fused costs: the chains of pointwise ops that a merge splits are seen too."""
    (bucket,) = parse_pipeline(text)
    found = both(sample(name), bucket, model_of(MODELS[0]))
    if found is not None:
        assert found[1] == found[0]


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("text", BUCKETINGS)
@pytest.mark.sampled(6)
def test_sketches_of_samples(name, text):
    (bucket,) = parse_pipeline(text)
    both(sample(name), bucket, model_of(MODELS[1]))


def test_a_sketch_of_buckets_that_wait_for_each_other():
    build, shards = rows(2, [torch.float32], (2, 2))
    first = build.reduce(build.call(aten.mm.default, shards[0], shards[0]), "0")
    then = build.reduce(build.call(aten.mm.default, first, shards[1]), "0")
    index, model = build_index(build.program([then], {"0": 2})), model_of(MODELS[1])
    a, b = index.launches
    wait = index.launches[b].waits[0]
    bucket = PlannedBucket(Kind.ALL_REDUCE, (a, b), b, wait, Reason.of("entry", members=2), copies=(False, False))
    with pytest.raises(WaitsForItself):
        Sketches(Problem(index, model.price(index)), model).merged([bucket])


OPTIONS = st.builds(
    Bucket,
    groups=st.sampled_from(("all", "primary")),
    bucket_cap_mb=st.sampled_from((200.0, None, 0.001, 0.0005, (0.0005, 0.002))),
    max_topo_span=st.sampled_from((None, 1500, 30)),
    multi_dtype=st.booleans(),
    param_order=st.booleans(),
    form=st.sampled_from(FORMS),
)


@RELAXED
@given(st.integers(0, 10**6), st.integers(2, 8), st.sampled_from((2, 4)), OPTIONS, st.sampled_from(MODELS))
def test_random_programs(seed, layers, world, options, model):
    found = both(random_program(seed, layers, world), options, model_of(model))
    if found is not None:
        assert found[1] == found[0]


# Forms that samples and random programs do not have


def rows(number, dtypes, shape=(3, 5)):
    """A builder and parameters."""
    build = GraphBuilder()
    return build, [build.placeholder(f"p{i}", shape, dtypes[i % len(dtypes)]) for i in range(number)]


def test_inputs_that_do_not_lie_in_a_row_are_copied_first():
    build, shards = rows(4, [torch.float64], (4, 8))
    x, results = build.placeholder("x", (8, 8)), []
    for shard in shards:
        weight = build.call(aten.view.default, build.gather(build.call(aten.t.default, shard), 2, "0"), [8, 8])
        x = build.call(aten.mm.default, x, weight)
        gradient = build.call(aten.mm.default, x, weight)
        results.append(build.scatter(build.call(aten.t.default, gradient), 2, "0"))
        results.append(build.reduce(build.call(aten.t.default, build.call(aten.mm.default, x, x)), "0"))
    plan = same(build.program([x, *results], {"0": 2}), BUCKETINGS[0])
    assert {b.kind.value for b in plan.rewrite.buckets} == {"all_gather", "reduce_scatter", "all_reduce"}


def test_a_launch_that_nobody_waits_for_is_in_flight():
    build, shards = rows(4, [torch.float32], (64, 64))
    x = build.placeholder("x", (256, 256))
    build.call(torch.ops._c10d_functional.all_reduce.default, x, "sum", "0")
    for shard in shards:
        x = build.call(aten.mm.default, x, build.call(aten.view.default, build.gather(shard, 16, "0"), [256, 256]))
    found = both(build.program([x], {"0": 16}), Bucket(groups="all"), model_of("h100,fused=no"))
    assert found is not None and found[1] == found[0]


@pytest.mark.parametrize("form", ["copy", "coalesced"])
def test_views_that_take_time_are_in_sketches(form):
    """Graphs have others than numbers do, so that sketches are held against the numbers alone."""
    assert both(sample("tiny_llama_fsdp2_bw"), Bucket(groups="all", form=form), load_model("h100,fused=no,free_us=0.7"))


@pytest.mark.parametrize("form", ["copy", "coalesced"])
def test_what_a_sketch_has_of_a_bucket_grows_with_its_members(form):
    """Not with their square; results of gathers without copies are no nodes, and a call has one wait for all."""
    words, nodes = [], []
    for members in (40, 80, 160):
        build, shards = rows(members, [torch.float32], (8, 8))
        outputs = [build.call(aten.sin.default, build.gather(shard, 2, "0")) for shard in shards]
        program = build.program(outputs, {"0": 2})
        _, _, plan = both(program, Bucket(groups="all", form=form), model := load_model("h100"))
        index = build_index(program)
        (bucket,) = plan.rewrite.buckets
        sketches = Sketches(Problem(index, model.price(index)), model, list(index.launches))
        words.append(len(sketches.piece(bucket).words))
        nodes.append(len(sketches.merged([bucket]).graph.nodes) - 2 * members)
    assert words[2] - words[1] == 2 * (words[1] - words[0])
    assert nodes[0] == nodes[1] == nodes[2] or form == "copy"


@pytest.mark.parametrize(("members", "fed"), [(20, True), (40, False)])
def test_views_do_not_count_in_what_feeds_a_reduce_scatter(members, fed):
    """The graph has views that numbers do without, and schedules of both are to be the same."""
    build = GraphBuilder()
    x = build.placeholder("x", (8, 8))
    gradients = [build.call(aten.mm.default, x, x) for _ in range(members)]
    program = build.program(
        [build.scatter(build.call(aten.view.default, each, [4, 16]), 2, "0") for each in gradients], {"0": 2}
    )
    plan, index, model = same(program, BUCKETINGS[0]), build_index(program), load_model("h100")
    after = build_index(apply_plan(program, index, plan))
    problems = [Problem(*merge(index, model, plan.rewrite)), Problem(after, model.price(after))]
    sketch = Sketches(Problem(index, model.price(index)), model).merged(plan.rewrite.buckets)
    graphs = [*(each.graph for each in problems), sketch.graph]
    assert [any(rows_in(graph, "feeds")) for graph in graphs] == [fed] * 3
    assert len(after) > len(problems[0].index)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("world", [1, 2])
def test_one_cast_for_all(to, turned, world):
    """Also where the cast is what needs most memory."""
    build, shards = rows(5, [torch.float32])
    results = []
    for shard in shards:
        source = build.call(aten.t.default, shard) if turned else shard
        gathered = build.gather(build.call(aten._to_copy.default, source, dtype=to), world, "0")
        results.append(build.call(aten.add.Tensor, gathered, 1))
    plan = same(build.program(results, {"0": world}), BUCKETINGS[0])
    assert all(bucket.shared_cast for bucket in plan.rewrite.buckets)


@pytest.mark.parametrize("form", ["", "viewed", "turned", "returned", "read", "summed", "twice"])
def test_casts_before_members_are_side_by_side(form):
    """Fused, each cast is written to its place at once, unless somebody else reads it or it is copied in between."""
    build, weights = rows(4, [torch.bfloat16], (8, 8))
    x, results = build.placeholder("x", (8, 8), torch.bfloat16), []
    for weight in weights:
        gradient = build.call(aten.mm.default, x, weight)
        if form == "summed":
            gradient = build.call(aten.add.Tensor, gradient, x)
        sent = cast = build.call(torch.ops.prims.convert_element_type.default, gradient, torch.float32)
        if form == "viewed":
            sent = build.call(aten.view.default, cast, [4, 16])
        if form == "turned":
            sent = build.call(aten.t.default, cast)
        results.append(build.scatter(sent, 2, "0"))
        if form in ("returned", "read"):
            results.append(cast if form == "returned" else build.call(aten.mm.default, cast, cast))
        if form == "twice":
            results.append(build.scatter(sent, 2, "0"))
    program = build.program(results, {"0": 2})
    index, (bucket,) = build_index(program), parse_pipeline(BUCKETINGS[0])
    for text in ("h100", *MODELS):
        model = model_of(text)
        plan, costs = bucket.plan(PlanContext(program, index, identify(index), model)), model.price(index)
        first = Merging(tuple(replace(each, shared_cast=False) for each in plan.rewrite.buckets))
        before, compute = sum(ns for node, ns in enumerate(costs.ns) if node not in index.launches), []
        for merging in (plan.rewrite, first):
            after = build_index(apply_plan(program, index, replace(plan, rewrite=merging)))
            found = figures(*merge(index, model, merging))
            assert found == figures(after, model.price(after))
            compute.append(found["compute"])
            # Of chains that lose their cast, and of a cast that one bucket sends twice, sketches know less.
            if form in ("summed", "twice"):
                continue
            sketch = Sketches(Problem(index, costs), model).merged(merging.buckets)
            assert sketch.compute_ns == found["compute"] + found["launching"]
            copies = sum(
                MergeCost(index, model, costs).copies(BucketModel.planned(index, each)) for each in merging.buckets
            )
            assert found["compute"] == before + copies
        if text == "slow" and plan.rewrite.buckets[0].shared_cast:
            assert (compute[1] < compute[0]) == (form in ("", "viewed", "summed"))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("returned", [False, True])
def test_several_dtypes_in_one_bucket(world, returned):
    build, shards = rows(5, [torch.bfloat16, torch.float32, torch.uint8])
    gathered = [build.gather(shard, world, "0") for shard in shards]
    results = gathered if returned else [build.call(aten.add.Tensor, each, 1) for each in gathered]
    plan = same(build.program(results, {"0": world}), "bucket{groups=all,multi_dtype=true}")
    assert [b.as_bytes for b in plan.rewrite.buckets] == [True]


def test_results_that_are_returned_are_copied():
    build, shards = rows(4, [torch.float64], (4, 8))
    results = []
    for shard in shards:
        weight = build.gather(shard, 2, "0")
        results += [weight, build.reduce(build.call(aten.mm.default, weight, weight), "0")]
        summed = build.reduce(build.call(aten.add.Tensor, weight, weight), "0")
        results += [build.call(aten.view.default, summed, [64]), summed]
    plan = same(build.program(results, {"0": 2}), BUCKETINGS[0])
    assert any(any(bucket.copies) for bucket in plan.rewrite.buckets)


@pytest.mark.parametrize("text", ["bucket{groups=all}", "bucket{groups=all,multi_dtype=true}"])
def test_a_group_of_one(text):
    build, shards = rows(4, [torch.float64], (8, 8))
    x, results = build.placeholder("x", (8, 8)), []
    for shard in shards:
        weight = build.gather(shard, 1, "0")
        x = build.call(aten.mm.default, x, weight)
        results.append(build.scatter(build.call(aten.mm.default, x, weight), 1, "0"))
        results.append(build.reduce(build.call(aten.mm.default, x, x), "0"))
    same(build.program([x, weight, *results], {"0": 1}), text)


# What planners do with the result


@pytest.mark.parametrize("name", ["tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_bw", "tiny_llama_joint"])
def test_the_result_can_be_scheduled(name):
    """The schedule of the merged numbers is about as good as that of the merged graph."""
    program, model = sample(name), model_of(MODELS[0])
    index = build_index(program)
    (bucket,) = parse_pipeline("bucket{groups=all,bucket_cap_mb=0.05}")
    plan = bucket.plan(PlanContext(program, index, identify(index), model))
    after = build_index(apply_plan(program, index, plan))
    in_graph = Problem(after, model.price(after))
    in_numbers = Problem(*merge(index, model, plan.rewrite))
    assert in_numbers.bound == in_graph.bound
    found = [search(each, Limits(), 2) for each in (in_numbers, in_graph)]
    assert abs(found[0].step_ns - found[1].step_ns) * 100 <= found[1].step_ns


def test_nothing_else_is_changed():
    """The index that is merged, and its costs, are as before; a plan without buckets gives the same figures."""
    program, model = sample("tiny_llama_fsdp2_bw"), model_of(MODELS[0])
    index = build_index(program)
    costs = model.price(index)
    (bucket,) = parse_pipeline(BUCKETINGS[0])
    plan = bucket.plan(PlanContext(program, index, identify(index), model))
    before = repr((index, costs))
    first = merge(index, model, plan.rewrite)
    assert repr((index, costs)) == before
    assert repr(first) == repr(merge(index, model, plan.rewrite))
    empty = merge(index, model, Merging())
    assert figures(*empty) == figures(index, costs)


def test_copies_go_along_with_launches(monkeypatch):
    """Kernels and plain Python agree on where a bucket's copies go, with its launch or by themselves."""
    monkeypatch.setattr("commcc.schedule.problem.LIGHT", 0)  # however long the copies take
    program, model = sample("tiny_llama_fsdp4_bw"), model_of(MODELS[1])
    index = build_index(program)
    (bucket,) = parse_pipeline("bucket{groups=all,bucket_cap_mb=0.01}")
    plan = bucket.plan(PlanContext(program, index, identify(index), model))
    problem = Problem(*merge(index, model, plan.rewrite))
    assert set(problem.graph.nodes.prepared.tolist()) == {0, 2}
    orders = []
    for bring in (1, 2):
        policy = Policy(problem.bound, 8000, 1000, 4, bring)
        orders.append(schedule(problem, range(len(problem.index)), policy, Limits(prefetch=20)).tolist())
        assert orders[-1] == plain_scheduler.schedule(problem, range(len(problem.index)), policy, Limits(prefetch=20))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("text", BUCKETINGS[:3])
def test_kernels_and_plain_python_draw_the_same(text, monkeypatch):
    """Plain Python checks the bounds of arrays, which kernels do not."""
    for name in ("lay_out", "in_order", "fill", "feed"):
        monkeypatch.setattr(drawing, name, getattr(drawing, name).python)
    (bucket,) = parse_pipeline(text)
    for name in ("tiny_llama_fsdp4_bw", "tiny_moe_fsdp4_ep2_fw"):
        both(sample(name), bucket, model_of(MODELS[1]))


# Duplicates that are gone


def without_duplicates(program, model):
    """Figures and schedules of the graph without duplicates, in the graph and in numbers; None where it has none."""
    index = build_index(program)
    plan = Dedup(memory_budget=None).plan(PlanContext(program, index, identify(index)))
    if not plan.rewrite.duplicates:
        return None
    real = build_index(apply_plan(program, index, plan))
    made = (real, model.price(real)), without(index, model, plan.rewrite)
    found = [search(Problem(*each), Limits(), 4) for each in made]
    return [(figures(*each), result.step_ns, result.peak_bytes) for each, result in zip(made, found, strict=True)]


@pytest.mark.parametrize("text", MODELS)
@pytest.mark.parametrize("name", ["tiny_deepseek_ep2", "tiny_deepseek_fsdp4_ep2", "library_deepseek_fsdp4_ep2"])
def test_duplicates_are_gone_as_in_the_graph(name, text):
    program = load(SAMPLES / f"{name}.fx.txt.gz")
    real, made = without_duplicates(program, model_of(text))
    assert made == real


@RELAXED
@given(seed=st.integers(0, 100_000), text=st.sampled_from(MODELS))
def test_duplicates_of_random_graphs_are_gone_as_in_the_graph(seed, text):
    found = without_duplicates(regathered(random_program(seed, 6, 2), random.Random(seed), 0.8), model_of(text))
    assert found is None or found[0] == found[1]
