"""The other passes on chunked graphs: groups of their own, cleaned metadata, files; and the whole pipeline."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from commcc.base.terms import Kind, Role
from commcc.ep.regions import regions_of
from commcc.graph.annotations import annotations_of
from commcc.passes.options import parse_pipeline
from commcc.run.forms import from_preset
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from commcc.verify import verify
from tests.corruptions import copied
from tests.step_graphs import on_cpu, run_ranks, sample


@pytest.fixture(scope="module")
def chunked():
    return run(sample("tiny_deepseek_ep2"), parse_pipeline("ep-chunk{chunks=3}")).program


def regions(program):
    from commcc.graph.index import build_index

    index = build_index(program)
    return regions_of(index, annotations_of(program, index))


@pytest.mark.full
def test_exchanges_of_all_chunks_get_a_group_of_their_own(chunked):
    result = run(chunked, parse_pipeline("groups"))
    assert result.verified == "proved" and result.steps[0].report["moved"] == 3 * 10
    for each in result.last.ident.collectives:
        exchange = each.kind is Kind.ALL_TO_ALL
        assert (each.group == "ep_extra") == exchange, "and nothing but exchanges"
        assert not exchange or each.role in (Role.EP, Role.EP_COUNT)
    assert not run(result.program, parse_pipeline("groups")).changed


@pytest.mark.full
def test_a_group_that_only_exchanges_is_left():
    program = run(sample("tiny_deepseek_fsdp4_ep2"), parse_pipeline("ep-chunk")).program
    assert not run(program, parse_pipeline("groups")).changed


@pytest.mark.full
def test_cleaned_graphs_can_still_be_scheduled(chunked):
    cleaned = run(chunked, parse_pipeline("cleanup{metadata=all,stack_traces=no}"))
    assert cleaned.verified == "proved"
    before, after = regions(chunked), regions(cleaned.program)
    assert [(r.name, r.chunks, r.labels) for r in before] == [(r.name, r.chunks, r.labels) for r in after]
    assert run(cleaned.program, parse_pipeline("ep-schedule")).verified == "proved"


@pytest.mark.full
@pytest.mark.parametrize("ending", ["fx.txt.gz", "pt2"])
def test_chunks_survive_files(chunked, ending, tmp_path):
    save(chunked, tmp_path / f"c.{ending}")
    again = load(tmp_path / f"c.{ending}")
    assert [r.bodies for r in regions(again)] == [r.bodies for r in regions(chunked)]


@pytest.mark.full
def test_the_whole_pipeline_computes_the_same():
    """In float64: only the order in which chunks' gradients are added up is another."""
    program = on_cpu(sample("tiny_deepseek_fsdp4_ep2"), torch.float64)
    result = run(program, from_preset("ep-overlap"), model=load_model())
    assert result.verified == "proved"
    assert [step.name for step in result.steps if step.changed] == [*("tag", "ep-chunk", "bucket", "ep-schedule")]
    for old, new in zip(run_ranks(program, 3), run_ranks(result.program, 3), strict=True):
        for a, b in zip(old, new, strict=True):
            if isinstance(a, torch.Tensor):
                scale = float(a.abs().max()) if a.numel() else 1.0
                assert float((a - b).abs().max() if a.numel() else 0.0) <= 1e-12 * max(scale, 1e-30), scale


@pytest.mark.full
def test_the_whole_pipeline_is_judged_at_once():
    """Against the graph as it came: groups split off, chunks out of order and host copies on their way included."""
    before = sample("tiny_deepseek_ep2")
    after = run(before, from_preset("ep-overlap"), model=load_model()).program
    verdict = verify(before, after)
    assert verdict.status == "proved", (verdict.findings, verdict.unproved)
    assert sum("do not depend on each other" in note.text for note in verdict.notes) == 2


@pytest.mark.full
def test_an_early_read_in_a_chunk_is_found():
    """Folding replaces clones by their originals; what only AFTER does wrong is looked for first."""
    before = sample("tiny_deepseek_ep2")
    passes = "ep-chunk{modules=layers.*.moe,chunks=2},ep-schedule"
    after = run(before, parse_pipeline(passes), model=load_model()).program
    graph = copied(after.graph)
    copies = [n for n in graph.nodes if n.kwargs.get("device") == torch.device("cpu") and "_chunk" in n.name]
    assert any(n.kwargs.get("non_blocking") for n in copies)
    for node in copies:
        node.kwargs = {**node.kwargs, "non_blocking": True}
    verdict = verify(before, replace(after, graph=graph))
    assert verdict.status == "different"
    assert any("before the host has waited" in finding.text for finding in verdict.findings)
