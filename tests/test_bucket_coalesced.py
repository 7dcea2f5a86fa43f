"""Buckets without copies: one call of several launches, what it is made of, costs and holds, and who runs it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commcc.base.errors import InputError, OptionError
from commcc.base.terms import Kind
from commcc.graph.collectives import identify
from commcc.graph.ops import op_name
from commcc.passes.base import PlanContext
from commcc.passes.bucket import Bucket
from commcc.passes.options import parse_pipeline
from commcc.planning.merge_cost import MergeCost
from commcc.replay.numeric import Settings, verify_numeric
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.cost.types import Price
from commcc.verify import verify
from tests.random_graphs import GraphBuilder, aten
from tests.verify_graphs import c10d

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
CALLS = Bucket(form="coalesced", groups="all", bucket_cap_mb=None, max_topo_span=None)


def three_kinds(dtype=torch.float32):
    """Two parameters of two shapes that are gathered, and a gradient of each scattered or reduced."""
    build = GraphBuilder()
    shards = [build.placeholder("p0", (2, 4), torch.float32), build.placeholder("p1", (6,), dtype)]
    whole = [build.call(aten.neg.default, build.gather(shard, 2, "0")) for shard in shards]
    scattered = [build.scatter(each, 2, "0") for each in whole]
    reduced = [build.reduce(each, "0") for each in whole]
    return build.program([*scattered, *reduced], {"0": 2})


def called(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_one_call_without_copies_and_a_wait_for_each_member():
    program = three_kinds()
    after = run(program, [CALLS]).program
    names = called(after)
    for op in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
        assert names.count(f"_c10d_functional.{op}_coalesced.default") == 1
        assert f"_c10d_functional.{op}.default" not in names
    assert sorted(n for n in names if n.startswith("aten")) == ["aten.neg.default"] * 2
    waits = [n.name for n in program.graph.nodes if "wait_tensor" in str(n.target)]
    assert {n.name for n in after.graph.nodes if "wait_tensor" in str(n.target)} == set(waits)
    for launch in (n for n in after.graph.nodes if n.name.endswith("bucket_0")):
        assert [val.shape for val in launch.meta["val"]] == [user.meta["val"].shape for user in launch.users]


def test_roles_and_numbers_of_members_are_known_afterwards():
    result = run(three_kinds(), [CALLS])
    found = identify(result.last.index).collectives
    assert [(c.kind, c.stands_for, str(c.role)) for c in found] == [
        (Kind.ALL_GATHER, 2, "fsdp"),
        (Kind.REDUCE_SCATTER, 2, "fsdp"),
        (Kind.ALL_REDUCE, 2, "ddp"),
    ]
    assert result.steps[0].report["coalesced"] == 3
    again = run(result.program, [CALLS])
    assert not again.changed


def test_several_dtypes_in_one_call():
    program = three_kinds(torch.bfloat16)
    apart = run(program, [CALLS])
    assert apart.steps[0].report["buckets"] == 0
    mixed = run(program, [replace(CALLS, multi_dtype=True)])
    assert mixed.verified == "proved"
    assert "_c10d_functional.all_gather_into_tensor_coalesced.default" in called(mixed.program)
    assert not any("view.dtype" in name for name in called(mixed.program))


@pytest.mark.parametrize("damage", ["members", "results", "group"])
def test_the_verifier_sees_what_a_call_gets_wrong(damage):
    program = three_kinds()
    after = run(program, [CALLS]).program
    launch = next(n for n in after.graph.nodes if "all_reduce_coalesced" in str(n.target))
    if damage == "members":
        launch.args = (launch.args[0][::-1], *launch.args[1:])
    elif damage == "results":
        first, second = launch.users
        first.args, second.args = (launch, 1), (launch, 0)
    else:
        launch.args = (launch.args[0], "max", launch.args[2])
    assert verify(program, after).status == "different"


@pytest.mark.parametrize("dead", [(), (0,), (0, 1)])
def test_what_is_written_while_it_is_sent_is_in_no_call(dead):
    """Nobody needs that result, so that the graph is fine; the other member would be waited for behind the write."""
    build = GraphBuilder()
    shards = [build.placeholder(f"p{i}", (4, 4)) for i in range(2)]
    launches = [build.call(c10d.all_gather_into_tensor.default, shard, 2, "0") for shard in shards]
    second = build.call(c10d.wait_tensor.default, launches[1])
    written = build.call(aten.add_.Tensor, shards[0], 1) if dead else shards[0]
    first = build.call(c10d.wait_tensor.default, launches[0])
    gathered = [build.call(aten.neg.default, w) for at, w in enumerate((first, second)) if at not in dead]
    program = build.program([written, *gathered], {"0": 2})
    result = run(program, [CALLS])
    assert result.verified == "proved" and result.steps[0].report["buckets"] == 1
    assert result.steps[0].report.get("coalesced", 0) == (0 if dead else 1)


def test_what_is_sent_is_written_only_after_the_wait():
    """Nothing is copied, so that the call reads its members' own tensors for as long as it runs."""
    build = GraphBuilder()
    shards = [build.placeholder(f"p{i}", (4, 4)) for i in range(3)]
    sent = [build.call(aten.neg.default, shard) for shard in shards[:2]]
    first = build.scatter(sent[0], 2, "0")
    written = build.call(aten.copy_.default, sent[0], shards[2])
    second = build.scatter(sent[1], 2, "0")
    program = build.program([first, second, build.call(aten.neg.default, sent[0])], {"0": 2})
    for text in ("bucket{form=coalesced}", "bucket{form=coalesced},reorder{memory_budget=none}"):
        result = run(program, parse_pipeline(text), model=load_model("h100"))
        names = [node.name for node in result.program.graph.nodes]
        assert result.verified == "proved"
        assert names.index("reduce_scatter_bucket_0") < names.index(first.name) < names.index(written.name)


# What it costs


class Line:
    """So much for each message, and so much for each byte; a message above 100 bytes at half of that."""

    name, warnings = "line", ()

    def facts(self):
        return []

    def operation(self, operation):
        return Price(operation.read_bytes + operation.written_bytes, "line")

    def transfer(self, transfer):
        byte_ns = 10 if transfer.full_bytes > 100 else 20
        return Price(1000 + transfer.full_bytes * byte_ns, "line", 1000)


def line():
    model = load_model("h100,launch_us=1")
    return replace(model, sources=(Line(), *model.sources))


def test_a_call_has_one_latency_and_the_bytes_of_each_member():
    result = run(three_kinds(), [CALLS], model=line())
    index, costs = result.last.index, result.last.prediction.costs
    gathers, scatters, reductions = index.launches
    # 64 and 48 bytes in messages of that size; in one of 112 bytes they would take half as long.
    assert {costs.ns[n] for n in (gathers, scatters, reductions)} == {1000 + (64 + 48) * 20}
    assert result.last.prediction.timeline.launch_ns == 3 * 1000
    assert costs.latency_ns[gathers] == 1000


def test_a_call_takes_no_less_than_one_message_of_all_bytes():
    model = load_model("h100")
    context = PlanContext.of(load(next(SAMPLES.glob("tiny_llama_hsdp_bw.fx.txt*"))), model)
    for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE):
        members = [model.transfer_of(context.index, c.launch)[0] for c in context.ident.collectives if c.kind is kind]
        sent, got = sum(m.input_bytes for m in members), sum(m.output_bytes for m in members)
        together = model.group_call(members).ns
        whole = replace(members[0], input_bytes=sent, output_bytes=got)
        assert model.transfer(whole).ns <= together <= sum(model.transfer(m).ns for m in members)


def test_the_planner_and_the_cost_model_agree():
    program, model = three_kinds(), line()
    context = PlanContext.of(program, model)
    costs = model.price(context.index)
    after = run(program, [CALLS], model=model).last
    for launch, kind in zip(after.index.launches, (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE), strict=True):
        members = [c for c in context.ident.collectives if c.kind is kind]
        cost = MergeCost(context.index, model, costs, "coalesced")
        assert cost.transfer(members) == after.prediction.costs.ns[launch]
        assert cost.copies(cost.bucket(members)) == 0


@pytest.mark.parametrize(("byte_ns", "chosen"), [(10, True), (0.1, False)])
def test_form_auto_takes_what_costs_less(byte_ns, chosen):
    """Copies of 2 x 112 bytes in and out cost more than the slower small messages, or less."""
    model, source = line(), Line()
    source.operation = lambda operation: Price(
        round((operation.read_bytes + operation.written_bytes) * byte_ns), "line"
    )
    model = replace(model, sources=(source, *model.sources[1:]))
    report = run(three_kinds(), [replace(CALLS, form="auto")], model=model).steps[0].report
    assert report["buckets"] == 3
    assert report.get("coalesced", 0) == (3 if chosen else 0)


def test_form_auto_without_prices():
    with pytest.raises(OptionError, match="form auto needs a cost model"):
        run(three_kinds(), [replace(CALLS, form="auto")])


@pytest.mark.parametrize("strategy", ["module", "overlap", "auto"])
def test_every_strategy_has_the_form(strategy):
    program = load(next(SAMPLES.glob("tiny_llama_fsdp4_bw.fx.txt*")))
    result = run(program, [Bucket(strategy=strategy, form="coalesced")], model=load_model("h100"))
    report = result.steps[0].report
    assert report["coalesced"] == report["buckets"] > 0
    assert result.verified == "proved"


def scheduled_ms(name, form, cost):
    """The step as it was scheduled: what is fused in the graph that comes out can make it another one."""
    program = load(next(SAMPLES.glob(f"{name}.fx.txt*")))
    result = run(program, [Bucket(strategy="auto", form=form)], model=load_model(cost))
    return result.steps[0].report["scheduled_step_ms"]["merged"]


def test_the_schedule_gains_from_calls_without_copies():
    name = "tiny_llama_fsdp4_bw"
    assert scheduled_ms(name, "auto", "h100") < 0.95 * scheduled_ms(name, "copy", "h100")


@pytest.mark.full
@pytest.mark.parametrize("cost", ["h100", str(SAMPLES.parent / "benchmarks" / "costs" / "latency-rich.yaml")])
@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in SAMPLES.glob("tiny_*.fx.txt*")))
def test_form_auto_is_never_worse_than_copies(name, cost):
    assert scheduled_ms(name, "auto", cost) <= scheduled_ms(name, "copy", cost)


# Plan files


def test_a_plan_is_read_back(tmp_path):
    program, path = three_kinds(), tmp_path / "plan.yaml"
    result = run(program, [CALLS])
    path.write_text(plan_text(result))
    again = run(program, read_plans(path))
    assert [str(n) for n in again.program.graph.nodes] == [str(n) for n in result.program.graph.nodes]


@pytest.mark.parametrize("wrong", ["as_bytes", "shared_cast"])
def test_what_a_plan_may_not_ask_for(wrong, tmp_path):
    text, path = plan_text(run(three_kinds(), [CALLS])), tmp_path / "plan.yaml"
    assert "    coalesced: true\n" in text
    path.write_text(re.sub(r"^( *)coalesced: true\n", rf"\g<0>\1{wrong}: true\n", text, count=1, flags=re.MULTILINE))
    with pytest.raises(InputError, match="neither cast together nor copied"):
        run(three_kinds(), read_plans(path))


# Who runs it


@pytest.mark.parametrize("name", ["tiny_llama_hsdp_bw", "tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_bw"])
@pytest.mark.sampled(1)
def test_the_same_to_the_bit_on_virtual_ranks(name):
    program = load(next(SAMPLES.glob(f"{name}.fx.txt*")))
    after = run(program, [CALLS]).program
    assert verify_numeric(program, after, Settings()).status == "equal"


@pytest.mark.parametrize("written", [False, True])
def test_casts_stay_apart_where_a_parameter_is_written_between_them(written):
    """One cast behind both would read the first parameter when it is written already."""
    build = GraphBuilder()
    w, v = (build.placeholder(name, (4, 8), torch.float32) for name in ("w", "v"))
    gathered = []
    for parameter in (w, v if not written else w):
        parameter.meta["desc"] = f"ParamAOTInput(target='{parameter.name}')"
        half = build.call(aten._to_copy.default, parameter, dtype=torch.bfloat16)
        gathered.append(build.gather(half, 2, "0"))
        if written and len(gathered) == 1:
            build.call(aten.mul_.Tensor, w, 2)
    program = build.program(gathered, {"0": 2})
    result = run(program, parse_pipeline("bucket{groups=all}"))
    assert result.changed and result.verified == "proved"
    names = [op_name(node.target) for node in result.program.graph.nodes if node.op == "call_function"]
    assert names.count("aten._to_copy") == (2 if written else 1)
