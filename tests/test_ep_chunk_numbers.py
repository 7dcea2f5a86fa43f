"""Whole training steps, cut: the same numbers on virtual ranks in float64, and the counts that go with it."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from commcc.apply import apply_plan
from commcc.graph.annotations import annotations_of
from commcc.graph.index import build_index
from commcc.serialization import load, save
from commcc.verify import verify
from commcc.verify.chunks import folded
from commcc.verify.verdict import Report
from tests.chunk_graphs import ops_of, plan_of
from tests.corruptions import copied
from tests.effort import FULL
from tests.step_graphs import on_cpu, rank_inputs, run_ranks, sample
from tests.virtual_ranks import same

EXACT = 1e-12
STEPS = {"tiny_deepseek_ep2": 1, "tiny_deepseek_fsdp4_ep2": 2}
RUNS: dict[str, tuple] = {}


def whole(name):
    """Inputs of a sample's ranks, and what comes out."""
    if name not in RUNS:
        program = on_cpu(sample(name), torch.float64)
        inputs = rank_inputs(program, STEPS[name])
        RUNS[name] = inputs, run_ranks(program, inputs=inputs)
    return RUNS[name]


@lru_cache(maxsize=4)
def cut(name, modules="layers.*.moe", **options):
    program = sample(name)
    return apply_plan(program, build_index(program), plan_of(program, modules, **options))


def worst(name, after):
    """The largest difference of a tensor, relative to its largest number; loss, gradients and buffers."""
    inputs, before = whole(name)
    found = run_ranks(on_cpu(after, torch.float64), inputs=inputs)
    pairs = [pair for one, other in zip(before, found, strict=True) for pair in zip(one, other, strict=True)]
    floats = [(a, b) for a, b in pairs if a.is_floating_point()]
    assert len(floats) > 80 and not any(b.isnan().any() for _, b in floats)
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in floats)


@pytest.mark.parametrize(
    ("name", "chunks", "dim"),
    [
        *(("tiny_deepseek_ep2", chunks, "batch") for chunks in (1, 2, 3, 4, 5, 7)),
        *(("tiny_deepseek_fsdp4_ep2", chunks, "batch") for chunks in (2, 3)),
        ("tiny_deepseek_ep2", 4, "seq"),
    ],
)
@pytest.mark.sampled(1)
def test_a_step_in_chunks(name, chunks, dim):
    after = cut(name, chunks=chunks, dim=dim)
    assert worst(name, after) < EXACT
    launches = ops_of(after, "_c10d_functional.all_to_all_single")
    assert len(launches) == 10 * chunks
    for kind in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        assert len(ops_of(after, f"_c10d_functional.{kind}")) == len(ops_of(sample(name), f"_c10d_functional.{kind}"))


@pytest.mark.full
def test_whole_layers_are_cut_by_sample():
    after = cut("tiny_deepseek_ep2", "layers.*", chunks=2)
    assert worst("tiny_deepseek_ep2", after) < EXACT


@pytest.mark.full
def test_a_step_is_the_same_from_a_file(tmp_path):
    after = cut("tiny_deepseek_ep2", chunks=3)
    save(after, tmp_path / "cut.fx.txt.gz")
    again = load(tmp_path / "cut.fx.txt.gz")
    assert again.notes == () and build_index(again).fingerprint == build_index(after).fingerprint
    assert annotations_of(again, build_index(again)) == annotations_of(after, build_index(after))
    inputs, _ = whole("tiny_deepseek_ep2")
    runs = [run_ranks(on_cpu(each, torch.float64), inputs=inputs) for each in (after, again)]
    assert same(*runs)


def test_every_chunk_reads_sizes_of_its_own():
    """Eight sizes in each of three chunks; hints and bounds are those of the whole, scaled."""
    before, after = sample("tiny_deepseek_ep2"), cut("tiny_deepseek_ep2", chunks=3)
    assert len(before.header["symbols"]) == 8 and before.header["symbols"]["u0"] == [0, 120, 60]
    assert len(after.header["symbols"]) == 24 and after.header["symbols"]["u8"] == [0, 40, 20]
    used = {name for node in after.graph.nodes for name in re.findall(r"\bu\d+", str(node.meta.get("val")))}
    assert used == set(after.header["symbols"])


def test_bodies_are_what_the_module_computes():
    """67 nodes forward, 98 backward in each chunk; gathers of parameters, casts and reductions stay out."""
    plan = plan_of(sample("tiny_deepseek_ep2"))
    assert [(r.root, r.backward, len(r.body)) for r in plan.rewrite.chunked] == [
        ("layers.1.moe", False, 67),
        ("layers.2.moe", False, 67),
        ("layers.2.moe", True, 98),
        ("layers.1.moe", True, 98),
    ]
    backward = plan.rewrite.chunked[2]
    assert sorted((join.how, join.dim) for join in backward.joins if join.how == "sum") == [("sum", None)] * 7
    assert [join.how for join in backward.joins].count("rows") == 1


def folding(change):
    """What the verifier says of a cut graph that was changed by hand."""
    before, after = sample("tiny_deepseek_ep2"), cut("tiny_deepseek_ep2", chunks=3)
    after = replace(after, graph=copied(after.graph))
    change({node.name: node for node in after.graph.nodes})
    return verify(before, after)


def swap(nodes):
    """Chunk 1 reads an activation of chunk 0."""
    nodes["silu_2_chunk1"].args = (nodes["mm_12_chunk0"],)


def resize(nodes):
    nodes["new_zeros_chunk1"].args = (nodes["new_zeros_chunk1"].args[0], [41])


def exchange(nodes):
    nodes["mul_19_chunk2"].args = (nodes["mul_19_chunk2"].args[0], nodes["silu_1_chunk2"])


def disorder(nodes):
    cat = next(node for name, node in nodes.items() if name.endswith("_chunk_materialized"))
    cat.args = ([cat.args[0][1], cat.args[0][0], cat.args[0][2]], *cat.args[1:])


def forget(nodes):
    """A sum without its last part."""
    total = next(
        node for name, node in nodes.items() if name.endswith("chunk_materialized") and "add" in str(node.target)
    )
    total.replace_all_uses_with(total.args[0])


def unchain(nodes):
    nodes["add__chunk2"].args = (nodes["add__chunk0"], nodes["add__chunk2"].args[1])


def reshare(nodes):
    split = next(node for name, node in nodes.items() if name.endswith("_chunk_split"))
    split.args = (split.args[0], [20, 21, 19])


@pytest.mark.parametrize("change", [swap, resize, exchange, disorder, forget, unchain, reshare])
@pytest.mark.sampled(1)
def test_the_verifier_sees_unfaithful_chunks(change):
    assert folding(lambda nodes: None).status == "proved"
    verdict = folding(change)
    assert verdict.status == "different" and verdict.findings[0].node


def edits_of_numbers(node: fx.Node):
    """Each number in the arguments of a node doubled, halved and with one more: the new arguments."""
    flat, spec = tree_flatten((node.args, node.kwargs))
    for at, number in enumerate(flat):
        others = {2 * number, number // 2, number + 1} - {number} if type(number) is int else ()
        yield from (tree_unflatten([*flat[:at], other, *flat[at + 1 :]], spec) for other in others)


@pytest.mark.full
def test_no_number_of_a_clone_can_be_another_one():
    """How many experts a token goes to, bins, parts, hidden sizes: a few of 672 edits, all of them with --full."""
    before, after = sample("tiny_deepseek_ep2"), cut("tiny_deepseek_ep2", chunks=2)
    assert folded(before, after, Report()) is not None
    kept = {node.name for node in before.graph.nodes}
    clones = [node for node in after.graph.nodes if node.op == "call_function" and node.name not in kept]
    edits = [(node, edit) for node in clones for edit in edits_of_numbers(node)]
    assert len(edits) > 600
    for node, (args, kwargs) in random.Random(5).sample(edits, len(edits) if FULL else 16):
        old = node.args, node.kwargs
        node.args, node.kwargs = tuple(args), kwargs
        report = Report()
        assert folded(before, after, report) is None and report.findings, (node.name, args)
        node.args, node.kwargs = old


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("_softmax_2", -1, 0),  # over the tokens, not the experts
        ("sum_1", [1], [0]),  # counts by expert, where those by rank are needed
        ("histc", 8, 4),  # two experts in one bin
        ("floor_divide", 2, 1),  # slots taken for tokens
        ("cumsum", 0, -1),
        ("index_2", "getitem_15", "floor_divide"),  # weights of other slots
        ("index_copy", "getitem_21", "repeat_interleave"),  # not where the rows were
        ("all_to_all_single_2", "_local_scalar_dense", "_local_scalar_dense_2"),
        ("_grouped_mm_2", "mul_19", "silu_1"),
        ("mul_20", "wait_tensor_21", "wait_tensor_20"),  # rows in the order in which they came
    ],
)
@pytest.mark.sampled(1)
def test_a_module_that_mixes_tokens_is_not_proved(name, old, new):
    """The module of both graphs is changed alike, so that its clones are faithful."""
    before, after = (
        replace(p, graph=copied(p.graph)) for p in (sample("tiny_deepseek_ep2"), cut("tiny_deepseek_ep2", chunks=2))
    )
    equal = name in ("cumsum", "_grouped_mm_2")  # another way to write it; other numbers, row by row
    for program, suffix in ((before, ""), (after, "_chunk0"), (after, "_chunk1")):
        nodes = {node.name: node for node in program.graph.nodes}
        node = nodes[name + suffix]
        if isinstance(old, str):
            swap = {nodes[old + suffix]: nodes[new + suffix]}
            node.args = fx.node.map_arg(node.args, lambda n, swap=swap: swap.get(n, n))
        else:
            node.args = tuple(new if arg == old else arg for arg in node.args)
    report = Report()
    whole = folded(before, after, report)
    assert (whole is not None and not report.unproved) == equal, (report.findings, report.unproved, report.notes)
