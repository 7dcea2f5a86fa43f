"""Strategy auto: merges what makes the scheduled step shorter under the costs given, and nothing else."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from commcc.base.errors import OptionError
from commcc.base.terms import Kind
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.bucket import Bucket
from commcc.passes.options import build, parse_pipeline
from commcc.passes.reorder import Reorder
from commcc.run.pipeline import run
from commcc.schedule import Problem
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.types import Price
from tests.random_graphs import GraphBuilder, aten, random_program
from tests.virtual_ranks import VirtualRanks, random_inputs, same

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
NAMES = ("tiny_llama_fsdp4_bw", "tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_fw")
TINY = sorted({path.name.split(".")[0] for path in SAMPLES.glob("tiny_*.fx.txt*")})
COSTS = Path(__file__).parents[1] / "benchmarks" / "costs"
BANDWIDTH_TABLE, LATENCY_RICH = f"h100,table={COSTS / 'bandwidth-bound.yaml'}", str(COSTS / "latency-rich.yaml")
AUTO = Bucket(strategy="auto", effort=8)


class Line:
    """Collectives cost so much each, and so much a byte; compute so much a byte. Counts as measured."""

    name = "line"
    warnings = ()

    def __init__(self, latency_ns, byte_ns, copy_ns):
        self.latency_ns, self.byte_ns, self.copy_ns = latency_ns, byte_ns, copy_ns

    def facts(self):
        return [self.latency_ns, self.byte_ns, self.copy_ns]

    def operation(self, operation):
        return Price(10 + (operation.read_bytes + operation.written_bytes) * self.copy_ns // 1000, "line")

    def transfer(self, transfer):
        return Price(self.latency_ns + transfer.full_bytes * self.byte_ns // 1000, "line", self.latency_ns)


def model_of(latency_ns, byte_ns, copy_ns=10):
    model = load_model("h100,launch_us=0")
    return replace(model, sources=(Line(latency_ns, byte_ns, copy_ns), *model.sources))


#: Latency is all, or bytes are.
LATENCY, BANDWIDTH = model_of(50_000, 1), model_of(0, 100, 200)


@cache
def sample(name):
    return load(next(SAMPLES.glob(f"{name}.fx.txt*")))


def step_ns(program, text, model):
    return run(program, parse_pipeline(text), model=model).last.prediction.timeline.step_ns


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(1)
def test_latency_is_saved(name):
    result = run(sample(name), [AUTO, *parse_pipeline("reorder")], model=LATENCY)
    report = result.steps[0].report
    steps = report["scheduled_step_ms"]
    assert report["buckets"] > 0
    assert steps["merged"] < steps["unmerged"] / 2
    assert result.verified == "proved"
    assert result.last.prediction.timeline.step_ns < step_ns(sample(name), "reorder", LATENCY)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(1)
def test_copies_are_not_paid_for_nothing(name):
    """Bytes cost the same in one message and in many, and copying them costs more."""
    program = sample(name)
    found = run(program, [AUTO], model=BANDWIDTH)
    report = found.steps[0].report
    assert report["buckets"] == 0
    assert not found.changed
    assert report["remarks"] == ["no merge tried makes the step shorter under this cost model"]
    others = "reduce_scatter: its result is put together with other values, and not only with gradients"
    assert set(report["left_out"]) <= {f"{kind}: merging it does not pay" for kind in Kind} | {others}
    assert step_ns(program, "bucket{groups=all},reorder", BANDWIDTH) > step_ns(program, "reorder", BANDWIDTH)


NO_OTHER = "nothing to merge it with"
NO_OTHER_HERE = f"{NO_OTHER} on its side of 'all_to_all_single_default', across which nothing moves"


@pytest.mark.parametrize(
    ("weights", "buckets", "left"),
    [("a", 0, [NO_OTHER]), ("ab", 0, [NO_OTHER_HERE, NO_OTHER_HERE]), ("abc", 1, [NO_OTHER_HERE])],
)
def test_what_has_nothing_to_be_merged_with_is_said(weights, buckets, left):
    """Alone of its kind, or on its side of an op that communicates in an unknown way; latency would be saved."""
    b = GraphBuilder()
    given = [b.placeholder(name, (64, 128)) for name in weights]
    x = b.placeholder("x", (128, 128))
    for weight in given:
        x = b.call(aten.mm.default, x, b.gather(weight, 2, "0"))
        if weight is given[0]:
            b.call(torch.ops._c10d_functional_autograd.all_to_all_single.default, x, [64, 64], [64, 64], "1")
    program = b.program([x], {"0": 2, "1": 2})
    (step,) = run(program, [Bucket(strategy="auto", effort=8, groups="all")], model=LATENCY).steps
    assert step.report["buckets"] == buckets
    assert [str(each.reason) for each in step.plan.left_out] == left


@pytest.mark.parametrize("model", ["h100", "a100,slowdown=1.2,share_link=all", "cpu,launch_us=40", "h100,fused=no"])
@pytest.mark.parametrize("seed", range(3))
def test_never_slower_and_within_the_budget(seed, model):
    """The figures of the report, and that the graph stays the same."""
    program, costs = random_program(seed, 5), load_model(model)
    result = run(program, [AUTO], model=costs)
    steps = result.steps[0].report["scheduled_step_ms"]
    assert steps["merged"] <= steps["unmerged"]
    inputs = random_inputs(program.graph, 2, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(result.program.graph, inputs).run())
    scheduled = run(result.program, parse_pipeline("reorder"), model=costs)
    assert round(scheduled.last.prediction.timeline.step_ns / 1e6, 9) <= round(steps["merged"] * 1.01, 9)


@pytest.mark.parametrize("cost", ["h100", BANDWIDTH_TABLE, LATENCY_RICH])
@pytest.mark.parametrize("name", TINY)
@pytest.mark.sampled(1)
def test_never_worse_than_reorder_alone(name, cost):
    """The step of the real graphs, whatever bucketing looked good after two schedules."""
    model = load_model(cost)
    assert step_ns(sample(name), "bucket{strategy=auto},reorder", model) <= step_ns(sample(name), "reorder", model)


def test_what_looks_better_at_first_is_compared_with_full_effort(monkeypatch):
    """First schedules of the unmerged graph that end badly do not make a bucketing win."""
    program, model = sample("tiny_llama_fsdp4_bw"), BANDWIDTH
    search = sys.modules["commcc.schedule.search"]
    whole = search.glance

    def glanced(problem, limits, schedules, **more):
        result = whole(problem, limits, schedules, **more)
        return replace(result, step_ns=result.step_ns * 10) if isinstance(problem, Problem) else result

    monkeypatch.setattr(search, "glance", glanced)
    report = run(program, [AUTO], model=model).steps[0].report
    assert report["buckets"] == 0
    assert report["scheduled_step_ms"]["merged"] == report["scheduled_step_ms"]["unmerged"]


def test_more_effort_is_never_worse():
    program = sample("tiny_llama_fsdp4_bw")
    for model in (LATENCY, load_model("h100")):
        found = []
        for effort in (1, 2, 5, 9, 14):
            report = run(program, [replace(AUTO, effort=effort)], model=model).steps[0].report
            assert report["bucketings_tried"] <= (effort if effort == 1 else 2 * effort)  # of each form
            found.append(report["scheduled_step_ms"]["merged"])
        # A longer step is taken only for fewer merges, and only within 0.1 %.
        assert all(later <= earlier * 1.001 for earlier, later in pairwise(found)), found


def test_same_input_same_plan():
    context = PlanContext.of(sample("tiny_llama_hsdp_bw"), load_model("h100"))
    plans = [AUTO.plan(context) for _ in range(2)]
    assert plans[0] == plans[1]


def two_gathers(rows=1 << 15):
    """Two gathered parameters that are used one after the other, each much larger than what comes of it."""
    build = GraphBuilder()
    shards = [build.placeholder(f"p{i}", (rows, 64)) for i in range(2)]
    results = [build.call(aten.sum.default, build.gather(shard, 2, "0")) for shard in shards]
    return build.program(results, {"0": 2})


def test_memory_comes_before_the_step():
    """Merging would hold both gathers at once: with room it is done, without it is not."""
    program, model = two_gathers(), model_of(10_000_000, 1, 1)
    roomy = run(program, [replace(AUTO, memory_budget=None)], model=model)
    assert roomy.steps[0].report["buckets"] == 1
    own = live_bytes(build_index(program)).peak_bytes
    tight = run(program, [replace(AUTO, memory_budget=own / 2**30)], model=model)
    assert tight.steps[0].report["buckets"] == 0
    assert live_bytes(build_index(tight.program)).peak_bytes <= own


@pytest.mark.full
@pytest.mark.parametrize("name", ["tiny_llama_fsdp2_tp2_bw", "tiny_moe_ep2_bw"])
def test_a_budget_that_nothing_meets_leads_to_as_short_a_step_as_the_one_that_is_reached(name):
    program, model = load(SAMPLES / f"{name}.fx.txt.gz"), load_model("h100")

    def found(budget):
        passes = [replace(AUTO, memory_budget=budget / 2**30), Reorder(memory_budget=budget / 2**30)]
        report = run(program, passes, model=model).steps[-1].report
        return report["step_ms"][1], report["peak_bytes"][1]

    own = live_bytes(build_index(program)).peak_bytes
    step, peak = found(own * 9 // 10)
    assert own * 9 // 10 < peak <= own
    assert step <= found(peak)[0] * 1.005


@pytest.mark.parametrize(
    ("passes", "told"),
    [
        ("bucket{strategy=auto,memory_budget=0.0001}", ["bucket"]),
        ("split{memory_budget=0.0001},tag", ["split"]),
        ("bucket{strategy=auto,memory_budget=0.0001},reorder{memory_budget=0.0001}", []),
        ("bucket{strategy=auto,memory_budget=0.0001},reorder", ["bucket"]),
        ("bucket{strategy=auto,memory_budget=1}", []),
        ("bucket{strategy=auto}", []),
    ],
)
def test_budgets_that_the_result_passes_are_told(passes, told):
    program = load(SAMPLES / "tiny_llama_fsdp4_fw.fx.txt.gz")
    result = run(program, parse_pipeline(passes), model=load_model("h100"))
    warned = [text for text in result.warnings if "memory_budget" in text]
    assert [text.split("'")[1] for text in warned] == told
    peak = live_bytes(build_index(result.program)).peak_bytes
    assert all(f"{peak / 2**30:.3g} GiB at its peak, more than memory_budget=0.0001" in text for text in warned)
    remarks = result.steps[-1].report.get("remarks", [])
    assert told or "0.0001" not in passes or any("meets the memory budget" in remark for remark in remarks)


def test_a_graph_without_collectives():
    build = GraphBuilder()
    x = build.placeholder("x", (4, 4))
    program = build.program([build.call(aten.mm.default, x, x)], {})
    result = run(program, [AUTO], model=load_model("h100"))
    assert not result.changed
    assert result.steps[0].report["caps_mb"] == {}


def test_without_a_cost_model():
    context = PlanContext.of(sample("tiny_llama_fsdp4_bw"))
    with pytest.raises(OptionError, match="strategy auto needs a cost model"):
        AUTO.plan(context)


def test_options_of_other_strategies():
    with pytest.raises(OptionError, match="bucket_cap_mb is an option of strategy greedy and overlap, not of auto"):
        build(Bucket, {"strategy": "auto", "bucket_cap_mb": "10"})
    with pytest.raises(OptionError, match="effort"):
        build(Bucket, {"strategy": "auto", "effort": "0"})


def test_buckets_by_block_come_first(monkeypatch):
    """With effort for one bucketing beside none at all, those of strategy module are what is tried."""
    strategy = importlib.import_module("commcc.passes.strategies.auto")
    monkeypatch.setattr(strategy, "improved", lambda search, starts, *_: [starts[0]])
    monkeypatch.setattr(strategy, "improved_from_several", lambda search, best, *_: [best])
    program = sample("tiny_moe_fsdp4_ep2_bw")
    auto = run(program, [Bucket(strategy="auto", form="copy", effort=2)], model=LATENCY)
    report = auto.steps[0].report
    by_module = run(program, [Bucket(strategy="module", modules="transformer_block", include_all_reduce=True)])
    assert set(report["caps_mb"].values()) == {"by block"}
    formed = [sorted(b.members for b in result.steps[0].plan.rewrite.buckets) for result in (auto, by_module)]
    assert formed[0] == formed[1]
    assert auto.verified == "proved"


@pytest.mark.parametrize("kept", [Kind.ALL_GATHER, Kind.REDUCE_SCATTER])
def test_blocks_without_collectives_of_one_key(monkeypatch, kept):
    """As where only gradients are reduced inside blocks, and parameters are gathered ahead of them."""
    strategy = importlib.import_module("commcc.passes.strategies.auto")
    making = importlib.import_module("commcc.passes.strategies.making")
    whole = making.by_block

    def some(*args):
        return {key: buckets for key, buckets in whole(*args).items() if key[0] == kept.value}

    monkeypatch.setattr(making, "by_block", some)
    monkeypatch.setattr(strategy.Search, "_starts", lambda search, _best, form: [search._all(strategy.BY_BLOCK, form)])
    result = run(sample("tiny_llama_fsdp4_bw"), [Bucket(strategy="auto", effort=12)], model=LATENCY)
    assert result.verified == "proved"
    assert result.steps[0].report["buckets"] > 0


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ({0: (1002, 3), 2: (1001, 5), 8: (1000, 7)}, 2),  # 0.1 % longer is as fast
        ({0: (1002, 3), 2: (1001, 5), 8: (990, 7)}, 8),
        ({0: (1002, 3), 2: (1003, 5), 8: (1004, 7)}, None),
        ({0: (1000, 9), 2: (1000, 9), 8: (1000, 9)}, None),
        ({0: (1000, 6), 2: (1000, 1), 8: (1000, 1)}, 0),  # no longer than without merging is short enough
    ],
)
def test_of_buckets_as_fast_those_with_short_runs_of_compute(monkeypatch, tried, expected):
    auto = importlib.import_module("commcc.passes.strategies.auto")
    spread = importlib.import_module("commcc.passes.strategies.spread")
    search = auto.Search.__new__(auto.Search)
    search.options = Bucket(strategy="auto")
    search.keys = [("all_gather", "0", "", "f32"), ("reduce_scatter", "0", "sum", "f32")]
    choice = (auto.Rung(512, "copy"), auto.Rung(16, "copy"))
    best, none = (auto.Tried(choice, (), 0, 1000, 0, 0, run) for run in (8, 6))

    def with_cap(_search, best, place, cap):
        assert place == 1
        step, run = tried[cap]
        return replace(best, choice=auto.with_rung(best.choice, place, cap=cap), step_ns=step, run=run)

    monkeypatch.setattr(spread, "_with_cap", with_cap)
    assert spread.spread(search, none, best).choice[1].cap == (16 if expected is None else expected)


@pytest.mark.parametrize(
    ("best", "tried", "expected"),
    [
        ((1000, 40), [(1001, 36), (1000, 38), (999, 39)], 36),
        ((1000, 40), [(1002, 10), (1000, 37)], None),  # longer, or not shorter by far
        ((1000, 24), [(1000, 3)], None),  # short as it is
        ((1000, 40), [], None),
    ],
)
def test_what_was_tried_and_has_shorter_runs_is_looked_at_again(best, tried, expected):
    spread = importlib.import_module("commcc.passes.strategies.spread")
    auto = importlib.import_module("commcc.passes.strategies.auto")
    of = [auto.Tried((), (), number, step, 0, 0, run) for number, (step, run) in enumerate([best, *tried])]
    over = auto.Tried((), (), 9, 900, 0, 1, 1)
    found = spread.shorter_runs([*of, over], of[0])
    assert [each.run for each in found] == ([] if expected is None else [expected])


def test_other_forms_are_tried_where_compute_fills_the_step(monkeypatch):
    """Of its own, the strategy looks beyond copies where these cost something, and on small graphs."""
    program = sample("tiny_llama_fsdp4_bw")

    def reports(model):
        forms = [replace(AUTO, form=form) for form in ("own", "copy")]
        return [run(program, [options], model=model).steps[0].report for options in forms]

    own, copies = reports(LATENCY)
    assert own["coalesced"] and own["scheduled_step_ms"]["merged"] < copies["scheduled_step_ms"]["merged"]
    monkeypatch.setattr("commcc.passes.strategies.auto._LARGE", 1)
    waiting, alike = reports(LATENCY)  # for collectives, so that copies are free
    assert waiting == alike
    own, copies = reports(load_model("h100"))
    assert own["coalesced"] and own["scheduled_step_ms"]["merged"] < copies["scheduled_step_ms"]["merged"]


def test_blocks_are_the_same_in_each_form():
    strategy = importlib.import_module("commcc.passes.strategies.auto")
    program = sample("tiny_moe_fsdp4_ep2_bw")
    context = PlanContext.of(program, LATENCY)
    search = strategy.Search(Bucket(strategy="auto"), context, LATENCY, list(context.ident.collectives))
    copies, calls = search.making.by_block("copy"), search.making.by_block("coalesced")
    assert copies and [[b.members for b in row] for row in copies.values()] == [
        [b.members for b in row] for row in calls.values()
    ]
    assert all(bucket.coalesced for row in calls.values() for bucket in row)
    module = Bucket(strategy="module", form="coalesced", prefetch=None, include_all_reduce=True)
    planned = run(program, [module]).steps[0].plan.rewrite.buckets
    assert sorted(b.members for b in planned) == sorted(b.members for row in calls.values() for b in row)
    assert {b.members: b.launch_at for b in planned} == {b.members: b.launch_at for row in calls.values() for b in row}


@pytest.mark.parametrize(("cost", "first"), [("h100", True), ("h100,fused=no", False)])
def test_casts_come_first_where_a_compiler_writes_them_to_their_places(cost, first):
    """Gradients that are cast and reduced behind compute; without a compiler one cast for all moves fewer bytes."""
    g, size = GraphBuilder(), 2048
    x, sums = g.placeholder("x", (size, size), torch.bfloat16), []
    for number in range(12):
        x = g.call(aten.mm.default, x, g.placeholder(f"w{number}", (size, size), torch.bfloat16))
        gradient = g.call(aten.mm.default, g.call(aten.t.default, x), x)
        sums.append(g.scatter(g.call(aten._to_copy.default, gradient, dtype=torch.float32), 256, "0"))
    result = run(
        g.program([x, *sums], {"0": 256}), parse_pipeline("bucket{strategy=auto},reorder"), model=load_model(cost)
    )
    (bucket,) = result.steps[0].plan.rewrite.buckets
    assert len(bucket.members) >= 11
    assert (bucket.shared_cast, bucket.coalesced) == (not first, False)
    assert result.verified == "proved"


def test_a_graph_that_costs_nothing():
    """Views, and communication of nothing: there is no collective to change a bucket of."""
    build = GraphBuilder()
    x = build.placeholder("x", (8, 8))
    program = build.program([build.call(aten.view.default, x, [64])], {})
    result = run(program, parse_pipeline("bucket{strategy=auto},reorder"), model=LATENCY)
    assert (result.verified, result.changed) == ("proved", False)
