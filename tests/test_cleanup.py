"""Dead nodes and metadata: what goes, what has to stay, and what the verifier says when it does not."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from commcc.apply import apply_plan
from commcc.base.errors import InternalError
from commcc.cli.main import run as command
from commcc.graph.collectives import identify
from commcc.graph.copying import copy_node
from commcc.graph.index import build_index
from commcc.graph.ops import OpaqueOp, only_computes
from commcc.graph.program import META_KEY, NodeRecord, ProcessGroup
from commcc.passes.base import PlanContext
from commcc.passes.cleanup import NEEDED, TRACING, Cleanup
from commcc.passes.options import parse_pipeline
from commcc.plan import Dead, Plan, Removal
from commcc.run.forms import from_preset
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from commcc.verify import verify
from tests.corruptions import copied
from tests.effort import examples
from tests.random_graphs import GraphBuilder, random_program
from tests.virtual_ranks import VirtualRanks, random_inputs, same

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))


def cleaned(program, **options):
    index = build_index(program)
    plan = Cleanup(**options).plan(PlanContext(program, index, identify(index)))
    return apply_plan(program, index, plan), plan


def with_dead(program, rng):
    """The program with chains of compute, views and collectives in a group of one rank that nothing needs."""
    graph, env, count = fx.Graph(), {}, 0

    def add(target, arguments, like):
        nonlocal count
        count += 1
        made = graph.create_node("call_function", target, arguments, {}, f"dead_{count}")
        made.meta = {"val": like}
        return made

    for node in program.graph.nodes:
        env[node] = copy_node(graph, node, env)
        val = node.meta.get("val")
        if node.op == "output" or not isinstance(val, torch.Tensor) or rng.random() > 0.3:
            continue
        if "all_gather" in str(node.target) or "reduce" in str(node.target):
            continue  # in flight
        at = add(aten.mul.Tensor, (env[node], 3), val)
        if rng.random() < 0.5:
            at = add(c10d.wait_tensor.default, (add(c10d.all_reduce.default, (at, "sum", "alone"), val),), val)
        if rng.random() < 0.5:
            at = add(aten.view.default, (at, list(val.shape)), val)
    return replace(program, graph=graph, groups={**program.groups, "alone": ProcessGroup("alone", 1)}), count


@RELAXED
@given(st.integers(0, 10_000), st.sampled_from([2, 4]))
def test_exactly_the_dead_goes(seed, world):
    program, _ = cleaned(random_program(seed, 5, world))
    grown, count = with_dead(program, random.Random(seed))
    after, plan = cleaned(grown)
    after.graph.lint()
    assert plan.report.nodes_removed == count
    assert [n.name for n in after.graph.nodes] == [n.name for n in program.graph.nodes]
    inputs = random_inputs(program.graph, world, seed)
    assert same(VirtualRanks(grown.graph, inputs).run(), VirtualRanks(after.graph, inputs).run())
    for before in (grown, program):
        verdict = verify(before, after)
        assert verdict.status == "proved", verdict.findings or verdict.unproved
    assert not cleaned(after)[1].changes


def test_collectives_stay_that_only_other_ranks_need():
    """The first rank of causal ring attention: it passes keys on, and needs nothing of what it receives."""
    b = GraphBuilder()
    q, k = b.placeholder("q", (8, 8)), b.placeholder("k", (8, 8))
    sent = k
    for _ in range(3):
        launch = b.call(c10d.all_to_all_single.default, sent, [0, 8], [8, 0], "0")
        sent = b.call(c10d.wait_tensor.default, launch)
    whole = b.call(c10d.wait_tensor.default, b.call(c10d.all_gather_into_tensor.default, k, 2, "0"))
    b.call(aten.view.default, whole, [2, 64])
    program = b.program([b.call(aten.mm.default, q, k)], {"0": 2})
    result = run(program, from_preset("auto"), model=load_model())
    kept = Counter(node.target for node in result.program.graph.nodes)
    assert (kept[c10d.all_to_all_single.default], kept[c10d.all_gather_into_tensor.default]) == (3, 1)
    assert kept[aten.view.default] == 0
    for target in (c10d.all_to_all_single.default, c10d.all_gather_into_tensor.default):
        without = replace(program, graph=copied(program.graph))
        nodes = list(without.graph.nodes)
        gone = {node for node in nodes if node.target == target}
        gone.update(node for node in nodes if node.target == aten.view.default)
        gone.update(node for node in nodes if not gone.isdisjoint(node.all_input_nodes))
        for node in reversed(nodes):
            if node in gone:
                without.graph.erase_node(node)
        verdict = verify(program, without)
        assert verdict.status == "unproved" and "other ranks" in str(verdict.unproved)


def test_an_exchange_in_a_group_of_one_rank_goes():
    b = GraphBuilder()
    x = b.placeholder("x", (8, 8))
    b.call(c10d.wait_tensor.default, b.call(c10d.all_to_all_single.default, x, [8], [8], "0"))
    program = b.program([b.call(aten.mm.default, x, x)], {"0": 1})
    after, plan = cleaned(program)
    assert plan.report.collectives_removed == 1 and verify(program, after).status == "proved"


def effects():
    """One of everything that has to stay although nothing uses it."""
    b = GraphBuilder()
    p, x = b.placeholder("p", (8, 8)), b.placeholder("x", (8, 8))
    b.call(aten.copy_.default, p, x)
    b.call(aten.rand.default, [4], device="cpu", pin_memory=False)
    b.call(aten._assert_async.msg, b.call(aten.all.default, b.call(aten.gt.Scalar, x, 0)), "positive")
    launch = b.call(c10d.all_reduce_.default, p, "sum", "0")
    b.call(c10d.wait_tensor.default, launch)
    unknown = b.graph.call_function(OpaqueOp("lost.op.default"), (x,))
    unknown.meta["val"] = x.meta["val"]
    return b.program([x], {"0": 2})


def test_what_has_to_stay():
    program = effects()
    assert not cleaned(program)[1].changes
    index = build_index(program)
    for node, op in enumerate(index.ops):
        if op not in ("placeholder", "output") and not index.users[node] and op != "_c10d_functional.wait_tensor":
            with pytest.raises(InternalError):
                apply_plan(program, index, Plan("cleanup", index.fingerprint, Removal(dead=(Dead((node,), ""),))))


def test_a_wait_for_what_an_unknown_op_started_stays():
    b = GraphBuilder()
    x = b.placeholder("x", (8, 8))
    unknown = b.graph.call_function(OpaqueOp("c10d.lost.default"), (x,))
    unknown.meta["val"] = x.meta["val"]
    b.graph.call_function(c10d.wait_tensor.default, (unknown,)).meta["val"] = x.meta["val"]
    assert not cleaned(b.program([x], {}))[1].changes


def test_waits_for_what_an_unknown_op_started_stay_as_often_as_they_are():
    """Nobody can say that the first one has ended it."""
    b = GraphBuilder()
    x = b.placeholder("x", (8, 8))
    at = b.graph.call_function(OpaqueOp("c10d.lost.default"), (x,))
    at.meta["val"] = x.meta["val"]
    for _ in range(3):
        at = b.graph.call_function(c10d.wait_tensor.default, (at,))
        at.meta["val"] = x.meta["val"]
    assert not cleaned(b.program([b.call(aten.mul.Tensor, x, 2)], {}))[1].changes


def test_waits_again_for_what_a_launch_started_go():
    b = GraphBuilder()
    x = b.placeholder("x", (8, 8))
    at = b.call(c10d.all_reduce.default, x, "sum", "0")
    for _ in range(4):
        at = b.call(c10d.wait_tensor.default, at)
    program, plan = cleaned(b.program([b.call(aten.mul.Tensor, at, 2)], {"0": 2}))
    assert plan.changes
    assert sum(node.target == c10d.wait_tensor.default for node in program.graph.nodes) == 1


@pytest.mark.parametrize("target", ["copy_", "rand", "_assert_async", "wait_tensor"])
def test_the_verifier_misses_it_when_it_goes(target):
    program = effects()
    graph = copied(program.graph)
    node = next(n for n in graph.nodes if target in str(n.target))
    graph.erase_node(node)
    assert verify(program, replace(program, graph=graph)).status == "different"


def test_an_op_that_is_needed_is_missed():
    b = GraphBuilder()
    x = b.placeholder("x", (8, 8))
    y = b.call(aten.add.Tensor, x, 1)
    z = b.call(aten.mul.Tensor, y, 2)
    program = b.program([z], {})
    graph = copied(program.graph)
    nodes = {n.name: n for n in graph.nodes}
    nodes[y.name].replace_all_uses_with(nodes[x.name])
    graph.erase_node(nodes[y.name])
    assert verify(program, replace(program, graph=graph)).status == "different"


@pytest.mark.parametrize(
    ("path", "pure"),
    [
        ("aten.mm.default", True),
        ("aten.view.default", True),
        ("aten.copy_.default", False),
        ("aten.rand.default", False),
        ("aten._local_scalar_dense.default", False),
        ("aten._assert_async.msg", False),
        ("aten.sym_size.int", True),
        ("_c10d_functional.all_gather_into_tensor.default", True),
        ("_c10d_functional.all_gather_into_tensor_out.default", False),
        ("_c10d_functional.all_reduce_.default", False),
        ("_dtensor.shard_dim_alltoall.default", False),
    ],
)
def test_ops_that_only_compute(path, pure):
    import torch.distributed._functional_collectives
    import torch.distributed.tensor  # noqa: F401

    namespace, op, overload = path.split(".")
    assert only_computes(getattr(getattr(getattr(torch.ops, namespace), op), overload)) == pure


def test_ops_that_nobody_knows_stay():
    assert not only_computes(OpaqueOp("lost.op.default"))
    assert not only_computes(torch.ops.higher_order.cond)


# Metadata


def annotated():
    b = GraphBuilder()
    x = b.placeholder("x", (8, 8))
    y = b.call(aten.add.Tensor, x, 1)
    x.meta["desc"] = "PlainAOTInput(idx=0)"
    kept = {
        "custom": {"module_fqn": "layers.0", "EP": "compute"},
        "nn_module_stack": {"a": ("layers.0", "M")},
        "stack_trace": "File x",
        "chunk_id": 1,
        META_KEY: NodeRecord("fsdp", "because"),
    }
    y.meta |= {**kept, "original_aten": "aten.add", "from_node": [], "tensor_meta": 3, "mine": 1}
    return b.program([y], {}), set(kept)


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({}, {"original_aten", "from_node", "tensor_meta"}),
        ({"metadata": "all"}, {"original_aten", "from_node", "tensor_meta", "mine"}),
        ({"metadata": "keep"}, set()),
        ({"metadata": "keep", "stack_traces": False}, {"stack_trace"}),
    ],
)
def test_metadata(options, gone):
    program, kept = annotated()
    after, plan = cleaned(program, **options)
    before_keys, keys = (set(list(p.graph.nodes)[1].meta) for p in (program, after))
    assert before_keys - keys == gone == set(plan.rewrite.metadata)
    assert (kept | {"val"}) - {"stack_trace"} <= keys
    assert next(iter(after.graph.nodes)).meta["desc"] == "PlainAOTInput(idx=0)"
    assert verify(program, after).status == "proved"
    assert list(program.graph.nodes)[1].meta["from_node"] == []  # the graph before is not touched


def test_nothing_needed_is_called_tracing():
    assert TRACING.isdisjoint(NEEDED)


@pytest.mark.parametrize("key", ["val", META_KEY])
def test_values_and_records_cannot_be_dropped(key):
    program, _ = annotated()
    index = build_index(program)
    with pytest.raises(InternalError):
        apply_plan(program, index, Plan("cleanup", index.fingerprint, Removal(metadata=(key,))))


# Real graphs


@pytest.mark.parametrize(
    "name", ["tiny_llama_fsdp2_fw", "tiny_moe_ep2_fw", "tiny_moe_fsdp4_ep2_bw", "tiny_llama_joint"]
)
@pytest.mark.parametrize("extension", ["fx.txt", "pt2"])
@pytest.mark.sampled(3)
def test_samples(name, extension, tmp_path):
    ending = "" if name.endswith("fsdp2_fw") else ".gz"
    program = load(SAMPLES / f"{name}.fx.txt{ending}")
    result = run(program, parse_pipeline("cleanup{metadata=all},cleanup{metadata=all}"))
    assert result.verified == "proved"
    assert [step.changed for step in result.steps] == [True, False]
    for each, target in ((program, "before"), (result.program, "after")):
        save(each, tmp_path / f"{target}.{extension}")
    sizes = [(tmp_path / f"{target}.{extension}").stat().st_size for target in ("before", "after")]
    assert sizes[1] < sizes[0]
    again = load(tmp_path / f"after.{extension}")
    assert verify(program, again).status == "proved"
    for index in (build_index(result.program), build_index(again)):
        old = build_index(program)
        assert [c.role for c in identify(index).collectives] == [c.role for c in identify(old).collectives]
        place = [old.position[name] for name in index.names]
        assert list(index.modules) == [old.modules[node] for node in place]
        assert {place[node]: custom for node, custom in index.custom.items()} == {
            node: custom for node, custom in old.custom.items() if node in place
        }
        assert {place[node]: text for node, text in index.descriptors.items()} == old.descriptors
        # What is waited for a second time needs no second wait.
        assert {old.ops[node] for node in range(len(old)) if node not in place} <= {"_c10d_functional.wait_tensor"}


def test_the_command(tmp_path, capsys):
    source, target = SAMPLES / "tiny_moe_ep2_fw.fx.txt.gz", tmp_path / "out.fx.txt"
    assert command(["cleanup", str(source), "-o", str(target), "--no-stack-traces", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passes"][0]["report"]["metadata_dropped"]["stack_trace"] == 411
    assert "stack_trace" not in build_index(load(target)).metadata
