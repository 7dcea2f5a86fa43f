"""Whole steps that are no sample: experts over every rank, and a number of samples that is a symbol."""

from __future__ import annotations

import pytest
import torch

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.passes.ep_chunk import EpChunk
from commcc.run.forms import from_preset
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.serialization.shapes import symbols_of
from commcc.timing.cost import load_model
from tests.captured_steps import captured
from tests.chunk_graphs import plan_of
from tests.step_graphs import on_cpu, rank_inputs, run_ranks
from tests.test_ep_chunk_numbers import EXACT


def pipeline(chunks):
    return [EpChunk(chunks=chunks) if each.name == "ep-chunk" else each for each in from_preset("ep-overlap")]


def overlapped(program, chunks):
    return run(program, pipeline(chunks), model=load_model("h100"))


def worst(one, other):
    """The largest difference of any tensor of any rank, relative to its largest number."""
    pairs = [pair for ranks in zip(one, other, strict=True) for pair in zip(*ranks, strict=True)]
    floats = [(a, b) for a, b in pairs if a.is_floating_point()]
    assert len(floats) > 80 and not any(b.isnan().any() for _, b in floats)
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in floats)


@pytest.mark.full
def test_experts_over_all_ranks():
    """Four ranks exchange tokens on the group that gathers parameters, until the exchanges get one of their own."""
    before = captured(4)
    assert len(before.groups) == 1
    result = overlapped(before, 3)
    exchanges = [c for c in result.last.ident.collectives if c.kind is Kind.ALL_TO_ALL]
    assert len(exchanges) == 30 and {c.group_size for c in exchanges} == {4}
    others = {c.group for c in result.last.ident.collectives if c not in exchanges}
    assert len(others) == 1 and {c.group for c in exchanges} == set(result.program.groups) - others
    inputs = rank_inputs(on_cpu(before, torch.float64), 3)
    expected, found = (run_ranks(on_cpu(each, torch.float64), inputs=inputs) for each in (before, result.program))
    assert worst(expected, found) < EXACT


@pytest.mark.full
def test_a_number_of_samples_that_is_a_symbol(tmp_path):
    """The preset puts the number on record for it, then cuts; the same values as the graph with the symbol."""
    before = captured(2, dynamic=True)
    (symbol,) = symbols_of([n.meta["val"] for n in before.graph.find_nodes(op="placeholder")])
    result = overlapped(before, 3)
    assert (result.steps[1].report["fixed"], result.program.header["fixed"]) == (f"{symbol} = 2", {symbol: 2})
    assert [verdict.status for verdict in result.verdicts].count("unproved") == 0
    assert symbol not in {name for n in result.program.graph.nodes for name in symbols_of(n.meta.get("val"))}
    after = on_cpu(result.program, torch.float64)
    inputs = rank_inputs(after, 7)
    expected = run_ranks(on_cpu(before, torch.float64), inputs=inputs)
    assert worst(expected, run_ranks(after, inputs=inputs)) < EXACT
    save(before, tmp_path / "step.fx.txt")
    again = run(load(tmp_path / "step.fx.txt"), pipeline(3)[:2])
    assert again.steps[1].report["fixed"] == f"{symbol} = 2" and again.program.header["fixed"] == {symbol: 2}


@pytest.mark.full
def test_modules_that_fold_samples_themselves():
    """The sequence is cut in [batch, sequence, dim], before rows of all samples are folded into one dimension."""
    before = captured(2, folding=True)
    after = run(before, [EpChunk(chunks=4, dim="seq")]).program
    piece = next(node for node in after.graph.nodes if "_chunk_split0" in node.name)
    assert list(piece.meta["val"].shape) == [2, 7, 32]
    inputs = rank_inputs(on_cpu(before, torch.float64), 5)
    expected, found = (run_ranks(on_cpu(each, torch.float64), inputs=inputs) for each in (before, after))
    assert worst(expected, found) < EXACT


@pytest.mark.full
def test_cutting_says_how_to_fix_the_symbol():
    with pytest.raises(
        InputError, match=r"'view_\d+' .*\[30\*(s\d+), 32\].* not fixed: \1; .*{symbols=\1=2}, then cut"
    ):
        plan_of(captured(2, dynamic=True))
