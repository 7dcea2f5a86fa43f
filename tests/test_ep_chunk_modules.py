"""Which modules ep-chunk cuts where none are named: those around exchanges, whatever a model calls them."""

from __future__ import annotations

from functools import cache

import pytest

from commcc.base.errors import InputError
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.passes.base import PlanContext
from commcc.passes.ep_chunk import EpChunk
from tests.step_graphs import sample

#: A step of two layers of experts (1 and 2) behind a dense one (0), with attention in all of them.
STEP = "tiny_deepseek_fsdp4_ep2"


def renamed(*changes):
    """The step with other module paths: of each pair the first begins a path, the second takes its place."""
    program = sample(STEP)
    index = build_index(program)
    for node, path in zip(program.graph.nodes, index.modules, strict=True):
        if path is not None:
            new = next((new + path[len(old) :] for old, new in changes if f"{path}.".startswith(f"{old}.")), path)
            node.meta["custom"] = {**node.meta.get("custom", {}), "module_fqn": new}
    return program


def report_of(program, **options):
    index = build_index(program)
    return EpChunk(**options).plan(PlanContext(program, index, identify(index))).report


def roots(report):
    return sorted({region.module for region in report.regions})


def bodies(report):
    return [(region.body, region.exchanges, region.split) for region in report.regions]


@cache
def expected_report():
    return report_of(sample(STEP), modules="layers.*.moe", chunks=2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), ["layers.1.moe", "layers.2.moe"]),
        (
            [(f"layers.{i}.moe", f"model.model.blocks.{i}.mlp") for i in (1, 2)],
            ["model.model.blocks.1.mlp", "model.model.blocks.2.mlp"],
        ),
        (
            [("layers.1.moe", "stages.0.h.1.ffn"), ("layers.2.moe", "stages.1.h.0.ffn")],
            ["stages.0.h.1.ffn", "stages.1.h.0.ffn"],
        ),
        ([("layers.1.moe", "first.sparse"), ("layers.2.moe", "second.sparse")], ["first.sparse", "second.sparse"]),
        # Two exchanges launched by a module are all that tells it where nothing is numbered.
        ([("layers.1.moe", "moe"), ("layers.2.moe", "layers.2.moe")], ["layers.2.moe", "moe"]),
    ],
)
def test_modules_around_exchanges_are_found_under_any_name(changes, expected):
    report = report_of(renamed(*changes), chunks=2)
    assert roots(report) == expected
    assert bodies(report) == bodies(expected_report())


def test_the_largest_module_of_a_layer_that_can_be_cut_is_taken():
    inner = [(f"layers.{i}.{name}", f"layers.{i}.block.{name}") for i in (1, 2) for name in ("moe", "attention")]
    whole = report_of(renamed(*inner), chunks=2)
    assert roots(whole) == ["layers.1.block", "layers.2.block"]  # attention keeps samples apart
    assert min(region.body for region in whole.regions) > max(region.body for region in expected_report().regions)
    # Along the sequence attention cannot be cut: what is left are the experts.
    report = report_of(renamed(*inner), chunks=2, dim="seq")
    assert roots(report) == ["layers.1.block.moe", "layers.2.block.moe"]
    assert report.remarks is None


def test_modules_that_cannot_be_cut_stay_whole_and_are_told():
    # In one of the layers attention is in the module that exchanges.
    mixed = [("layers.2.moe", "layers.2.mixed"), ("layers.2.attention", "layers.2.mixed")]
    report = report_of(renamed(*mixed), chunks=2, dim="seq")
    assert roots(report) == ["layers.1.moe"]
    (remark,) = report.remarks
    assert remark.startswith("left whole: region 'layers.2.mixed'")


def test_where_nothing_can_be_cut_the_first_refusal_is_told():
    mixed = [(f"layers.{i}.{name}", f"layers.{i}.mixed") for i in (1, 2) for name in ("moe", "attention")]
    with pytest.raises(InputError, match=r"region 'layers\.1\.mixed'"):
        report_of(renamed(*mixed), chunks=2, dim="seq")
