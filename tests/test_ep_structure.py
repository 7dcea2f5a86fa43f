"""Steps whose backward pass, or all of it, has no module paths: modules are told by structure."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.base.errors import InputError
from commcc.passes.ep_chunk import EpChunk
from commcc.run.pipeline import run
from tests.chunk_graphs import MOE, Layers, aten, plan_of
from tests.step_graphs import on_cpu, rank_inputs, run_ranks, sample

PATHS = ("custom", "nn_module_stack", "fwd_nn_module_stack", "seq_nr", "stack_trace", "EP")
EXACT = 1e-12


def without_paths(name, *, forward):
    """A sample that says of no backward node, or of none at all, which module it belongs to."""
    program = sample(name)
    for node in program.graph.nodes:
        if node.op == "call_function" and (forward or node.meta.get("autograd_backward")):
            for key in (*PATHS, *(["autograd_backward"] if forward else [])):
                node.meta.pop(key, None)
    return program


def regions(plan):
    found = [(each.direction, each.exchanges, each.sizes) for each in plan.report.regions]
    return sorted(found), {each.module for each in plan.report.regions}


CUT = [("backward", 2, (30, 30))] * 2 + [("forward", 3, (30, 30))] * 2


@pytest.mark.full
@pytest.mark.parametrize("forward", [False, True])
def test_modules_told_by_structure_are_those_of_the_paths(forward):
    """As many exchanges are cut, though what a layer of experts computes again in the backward pass has no path."""
    before = without_paths("tiny_deepseek_fsdp4_ep2", forward=forward)
    cut, modules = regions(plan_of(before))
    assert cut == CUT
    assert modules == ({"exchanges.0", "exchanges.1"} if forward else {"layers.1.moe", "layers.2.moe"})
    result = run(before, [EpChunk(chunks=3)])
    assert result.verified == "proved"


@pytest.mark.full
@pytest.mark.parametrize("forward", [False, True])
def test_their_chunks_compute_the_same(forward):
    before = without_paths("tiny_deepseek_ep2", forward=forward)
    after = run(before, [EpChunk(chunks=4)]).program
    for node in (node for each in (before, after) for node in each.graph.nodes):
        if "_to_copy" in node.name and str(node.kwargs.get("device")) == "cpu":  # what the virtual ranks go by
            node.meta["custom"] = {**node.meta.get("custom", {}), "EP_token_count_sync": "dispatch"}
    inputs = rank_inputs(on_cpu(before, torch.float64), 5)
    one, other = (run_ranks(on_cpu(each, torch.float64), inputs=inputs) for each in (before, after))
    pairs = [pair for ranks in zip(one, other, strict=True) for pair in zip(*ranks, strict=True)]
    floats = [(a, b) for a, b in pairs if a.is_floating_point()]
    assert len(floats) > 40
    assert max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in floats) < EXACT


def test_half_a_step_is_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"it is the backward half of a step: .*; dump forward and backward as one"):
        plan_of(sample("tiny_moe_ep2_bw"), modules="layers.1.moe")
    with pytest.raises(InputError, match=r"has to be whole: dump forward and backward as one graph, as it is before"):
        plan_of(sample("tiny_moe_ep2_fw"), modules="layers.1.moe")


def test_an_assertion_about_all_tokens_is_refused():
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        route = b.dispatch(x)
        claim = b.graph.call_function(operator.eq, (route.sent[0], 8))
        claim.meta.update(val=route.sent[0].meta["val"] == 8, custom={"module_fqn": MOE})
        told = b.graph.call_function(aten._assert_scalar.default, (claim, "all of them"))
        told.meta.update(val=None, custom={"module_fqn": MOE})
        y = b.combine(route.rows, route)
    with pytest.raises(InputError, match=r"asserts how large the whole is \(8\), .*do_not_emit_runtime_asserts"):
        plan_of(b.done([y]))
