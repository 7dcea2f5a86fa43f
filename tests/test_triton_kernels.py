"""Triton kernels of repro files: the same number may mean another kernel in another file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commcc.serialization import load, save
from commcc.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table"
REPRO = f"""
import torch
import triton
import triton.language as tl

{TABLE}.reset_table()

@triton.jit
def add_0(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, tl.load(x_ptr) + 1)

{TABLE}.add_kernel(add_0)

@triton.jit
def scale_1(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, tl.load(x_ptr) * 2)

{TABLE}.add_kernel(scale_1)
{TABLE}.constant_args={{0: {{'n': 1024, 'BLOCK': 64}}, 1: {{'n': 512, 'BLOCK': 64}}}}

class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, arg0_1):
        kernel = torch.ops.higher_order.triton_kernel_wrapper_functional(kernel_idx = 1, constant_args_idx = 1, grid = [(1, 1, 1)], tma_descriptor_metadata = {{}}, kwargs = {{'x_ptr': arg0_1}}, tensors_to_clone = ['x_ptr']);  arg0_1 = None
        getitem = kernel['x_ptr'];  kernel = None
        return (getitem,)

def load_args(reader):
    buf0 = reader.storage(None, 4096)
    reader.tensor(buf0, (16, 64), is_leaf=True)  # arg0_1
load_args._version = 0
"""  # noqa: E501


def program(folder: Path, text: str):
    (folder / "repro.py").write_text(text)
    return load(folder / "repro.py")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("* 2", "* 3", "Triton kernel 1 is another one"),
        ("'n': 512", "'n': 500", "constants of Triton kernels, number 1, are others"),
        ("+ 1)", "+ 2)", ""),  # a kernel that the graph does not call
        ("'n': 1024", "'n': 1000", ""),
    ],
)
def test_other_kernels_are_not_proved(tmp_path, old, new, what):
    before, after = program(tmp_path, REPRO), program(tmp_path, REPRO.replace(old, new))
    assert verify(before, before).status == "proved"
    save(before, tmp_path / "before.fx.txt")  # what commcc writes still knows
    for one in (before, load(tmp_path / "before.fx.txt")):
        verdict = verify(one, after)
        assert (verdict.status, what in str(verdict.unproved)) == ("unproved" if what else "proved", True)
