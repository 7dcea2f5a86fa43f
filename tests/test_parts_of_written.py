"""Graphs behind Inductor's passes take parts of what ``_foreach_add_`` gives: of the tensors that it has written."""

from __future__ import annotations

import pytest
import torch

from commcc.replay.numeric import Settings, verify_numeric
from commcc.serialization import load, propagate, save
from commcc.serialization.fx import parse_text
from commcc.verify import verify

TEXT = """class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[4][1]cpu", b: "f32[4][1]cpu"):
        _foreach_add = torch.ops.aten._foreach_add_.Scalar([a, b], 1)
        getitem: "f32[4][1]cpu" = _foreach_add[0]
        getitem_1: "f32[4][1]cpu" = _foreach_add[1]
        {}
        {}
        return (neg, getitem_1)
"""
WRITE = 'mul_: "f32[4][1]cpu" = torch.ops.aten.mul_.Tensor({}, 2)'
READ = 'neg: "f32[4][1]cpu" = torch.ops.aten.neg.default({})'


def program(*lines):
    return propagate(parse_text(TEXT.format(*lines), "x.txt"))


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ((WRITE.format("a"), READ.format("getitem")), (WRITE.format("a"), READ.format("a")), "proved"),
        ((WRITE.format("a"), READ.format("getitem")), (READ.format("getitem"), WRITE.format("a")), "different"),
        ((WRITE.format("b"), READ.format("getitem")), (READ.format("getitem"), WRITE.format("b")), "proved"),
    ],
)
def test_parts_of_what_is_written_are_in_its_memory(before, after, status):
    before, after = program(*before), program(*after)
    assert verify(before, after).status == status
    found = verify_numeric(before, after, Settings(ranks=1))
    assert (found.status == "equal") == (status == "proved")


def test_constants_that_nobody_reads_come_back_from_pt2_files(tmp_path):
    text = """class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[4][1]cpu"):
        _tensor_constant0: "f32[][]cpu" = self._tensor_constant0
        neg: "f32[4][1]cpu" = torch.ops.aten.neg.default(a)
        return (neg,)
"""
    before = parse_text(text, "x.txt")
    before.root._buffers["_tensor_constant0"] = torch.tensor(0.5)
    save(before, tmp_path / "x.pt2")
    assert verify(before, load(tmp_path / "x.pt2")).status == "proved"
