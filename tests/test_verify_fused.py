"""The verifier on damaged graphs with fused ops of tensor parallelism: neither a crash nor a proof."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load, propagate
from commcc.serialization.fx import parse_text, write_text
from commcc.verify import verify

SAMPLE = Path(__file__).parents[1] / "sample_graphs" / "tiny_llama_fsdp2_tp2_fw.fx.txt.gz"
GATHER = r"(symm_mem\.fused_all_gather_matmul\.default\(\w+, \[\w+, )(\w+)(, \w+\], 1, '3')"
RESTRIDE = r"(inductor_force_stride_order\.default\(\w+, \()(\d+), (\d+), (\d+)\)"


@pytest.fixture(scope="module")
def graphs():
    """A graph, and the text of what async-tp makes of it."""
    before = load(SAMPLE)
    return before, write_text(run(before, parse_pipeline("async-tp")).program)[0]


def status(graphs, text: str) -> str:
    return verify(graphs[0], propagate(parse_text(text, "damaged"))).status


def test_the_whole_one_is_proved(graphs):
    assert status(graphs, graphs[1]) == "proved"


def test_launches_of_before_tell_how_large_a_group_is(graphs):
    before = replace(graphs[0], groups={})
    result = run(before, parse_pipeline("async-tp{groups=3}"))
    assert result.verified == "proved" and "symm_mem.fused" in write_text(result.program)[0]
    # What only AFTER says is nothing that BEFORE has launched.
    claimed = {"3": replace(graphs[0].groups["3"], size=4)}
    assert verify(before, replace(result.program, groups=claimed)).status == "different"


@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        (r"(= fused_all_gather_matmul_default_2)\[0\]", r"\1[2]"),  # there is no third result
        (r"(default_2 = .*)return_A = True", r"\1return_A = False"),  # the whole is None then
        (RESTRIDE, r"\g<1>\2, 7, \4)"),  # strides under which elements overlap
        (RESTRIDE, r"\g<1>\2, \3)"),  # strides of another rank
        (GATHER, r"\g<1>torch.ops.aten.add.Tensor\3"),  # an op where a tensor belongs
        (GATHER, r"\g<1>\2, \2\3"),  # one matmul more than is taken
        (r"(fused_all_gather_matmul\.default\(\w+, \[[^\]]*\], )1(, '3')", r"\g<1>7\2"),  # a dimension out of range
        (r"(fused_matmul_reduce_scatter\.default\(\w+, \w+, 'sum', )1(, '3')", r"\g<1>-9\2"),
        (r"(fused_matmul_reduce_scatter\.default\(\w+, \w+, )'sum'", r"\1'max'"),
    ],
)
def test_damage_is_not_proved(graphs, pattern, by):
    damaged, count = re.subn(pattern, by, graphs[1], count=1)
    assert count == 1 and damaged != graphs[1]
    if by == r"\g<1>\2, \2\3":
        assert status(graphs, damaged) in ("proved", "different", "unproved")  # it is more work, and the same values
    else:
        assert status(graphs, damaged) in ("different", "unproved")
