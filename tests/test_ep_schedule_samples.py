"""Schedules of chunked training steps: bitwise the same values on virtual ranks, whatever the order."""

from __future__ import annotations

import functools

import pytest
import torch

from commcc.base.terms import Kind
from commcc.passes.ep_chunk import EpChunk
from commcc.passes.ep_dense import EpDense
from commcc.passes.ep_schedule import EpSchedule
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from tests.step_graphs import on_cpu, run_ranks, sample
from tests.virtual_ranks import same

SHARDED = "tiny_deepseek_fsdp4_ep2"


@functools.cache
def chunked(name: str, chunks: int):
    return run(sample(name), [EpChunk(chunks=chunks)]).program


@functools.cache
def values(name: str, chunks: int):
    return run_ranks(on_cpu(chunked(name, chunks), torch.float64), 5)


def scheduled(name: str, chunks: int, **options: object):
    return run(chunked(name, chunks), [EpSchedule(**options)], model=load_model("h100"))


@pytest.mark.parametrize(
    ("name", "chunks", "options"),
    [
        ("tiny_deepseek_ep2", 2, {}),
        ("tiny_deepseek_ep2", 3, {"order": "wavefront", "in_flight": 1}),
        ("tiny_deepseek_ep2", 4, {"order": "wavefront", "in_flight": 2}),
        (SHARDED, 2, {"order": "auto"}),
        (SHARDED, 3, {}),
        (SHARDED, 4, {"order": "auto"}),
    ],
)
@pytest.mark.full
def test_values_stay_bit_for_bit(name: str, chunks: int, options: dict[str, object]):
    """Copies to the host that do not block are poisoned until one does, launches until their wait."""
    result = scheduled(name, chunks, **options)
    assert result.verified == "proved" and result.changed
    assert same(values(name, chunks), run_ranks(on_cpu(result.program, torch.float64), 5))
    hidden = result.steps[0].report["hidden_share_of_exchanges"]
    assert hidden[1] > hidden[0]
    assert result.steps[0].report["step_ms"][1] < result.steps[0].report["step_ms"][0]


@pytest.mark.full
def test_every_region_goes_as_the_strip_says():
    report = scheduled(SHARDED, 2).steps[0].report
    strips = {(region["root"], region["direction"]): region["strip"] for region in report["regions"]}
    forward = "[2 mm] h0 h0 h1 h1! D0 D1 [6 mm] wD0 [3 mm] C0 wD1 [3 mm] C1 wC0 wC1"
    backward = "C1 C0 [16 mm] wC1 [3 mm] D1 wC0 [3 mm] D0 [6 mm] wD1 wD0"
    assert strips == {
        (f"layers.{n}.moe", d): s for n in (1, 2) for d, s in (("forward", forward), ("backward", backward))
    }


@pytest.mark.full
def test_copies_of_all_chunks_wait_once():
    program = scheduled(SHARDED, 3).program
    copies = [n for n in program.graph.nodes if "EP_token_count_sync" in n.meta.get("custom", {})]
    flags = [
        bool(n.kwargs.get("non_blocking"))
        for n in copies
        if "device" in n.kwargs and n.meta["val"].device.type == "cpu"
    ]
    assert flags == [True, True, True, True, True, False] * 2


@pytest.mark.full
def test_collectives_of_parameters_keep_their_order_among_themselves():
    """Only exchanges move; gathers and reductions run on their own queue in the old order."""
    before, after = chunked(SHARDED, 2), scheduled(SHARDED, 2).program

    def launches(program) -> list[str]:
        return [n.name for n in program.graph.nodes if n.name.startswith(("all_gather", "reduce_scatter"))]

    assert sorted(launches(before)) == sorted(launches(after))
    assert launches(before)[:8] == launches(after)[:8]


@pytest.mark.full
def test_the_whole_pipeline():
    """Chunked, bucketed, scheduled, dense regions, and the free scheduler behind it all."""
    text = "tag,dedup,bucket{strategy=module,modules=transformer_block}"
    first = run(chunked(SHARDED, 2), parse_pipeline(text), model=load_model("h100"))
    result = run(first.program, [EpSchedule(order="auto"), EpDense()], model=load_model("h100"))
    assert result.verified == "proved"
    assert same(run_ranks(on_cpu(first.program, torch.float64), 2), run_ranks(on_cpu(result.program, torch.float64), 2))
    exchanges = [c for c in result.last.ident.collectives if c.kind is Kind.ALL_TO_ALL]
    assert len(exchanges) == 2 * 10
    before, after = (step.report for step in result.steps)
    assert before["regions"] and after["blocked"] == 0
    again = run(result.program, [EpSchedule(order="phase")])
    strips = [region["strip"] for region in again.steps[0].report["regions"]]
    assert len(strips) == 4
