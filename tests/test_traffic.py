"""Bytes that ops read and write on their own, worked out by hand; the host beside a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from commcc.graph.index import build_index
from commcc.serialization import load
from commcc.timing.cost.operations import operations
from tests.cost_graphs import Graph, N, T
from tests.random_graphs import aten

if TYPE_CHECKING:
    from pathlib import Path


def plain_bytes(target, *arguments, **options) -> tuple[int, int]:
    g = Graph()
    made = g.call(target, *[argument(g) if callable(argument) else argument for argument in arguments], **options)
    output = made if made.meta["val"] is not None else None
    read, written, _ = g.costs(output, fused=False)[made.name]
    return read, written


def floats(*shape: int):
    return lambda g: g.input(*shape)


def ints(*shape: int):
    return lambda g: g.input(*shape, dtype=torch.int64)


def test_lookups_do_not_read_the_whole_table():
    assert plain_bytes(aten.embedding.default, floats(1000, N), ints(4)) == (4 * N * 8 + 4 * 8, 4 * N * 8)
    assert plain_bytes(aten.index_select.default, floats(1000, N), 0, ints(4)) == (4 * N * 8 + 4 * 8, 4 * N * 8)
    assert plain_bytes(aten.gather.default, floats(1000, N), 0, ints(1, N)) == (2 * N * 8, N * 8)
    assert plain_bytes(aten.gather.default, floats(2, N), 0, ints(50, N)) == (2 * N * 8 + 50 * N * 8, 50 * N * 8)


def test_writes_in_place():
    assert plain_bytes(aten.copy_.default, floats(N, N), floats(N, N)) == (T, T)
    assert plain_bytes(aten.add_.Tensor, floats(N, N), floats(N, N)) == (2 * T, T)
    assert plain_bytes(aten.zero_.default, floats(N, N)) == (0, T)


def test_an_in_place_scatter_touches_what_it_is_given():
    g = Graph()
    table, where, rows = g.input(1000, N), g.input(4, dtype=torch.int64), g.input(4, N)
    put = g.call(aten.index_put_.default, table, [where], rows, True)
    given = 4 * N * 8
    assert g.costs(put, fused=False)["index_put_"] == (given + 4 * 8 + given, given, 1)


def test_an_out_op_does_not_read_what_it_overwrites():
    g = Graph()
    x, out = g.input(), g.input()
    made = g.call(aten.mul.out, x, x, out=out)
    assert g.costs(made, fused=False) == {"mul": (T, T, 1)}


def test_an_expanded_tensor_is_as_small_as_it_is():
    g = Graph()
    row, x = g.input(1, N), g.input()
    wide = g.call(aten.expand.default, row, [N, N])
    assert g.costs(g.call(aten.mul.Tensor, wide, x), fused=False) == {"mul": (N * 8 + T, T, 1)}


def test_a_reshape_that_copies_is_a_kernel():
    g = Graph()
    flat = g.call(aten.reshape.default, g.call(aten.t.default, g.input()), [N * N])
    assert g.costs(flat) == {"reshape": (T, T, 1)}


HOST = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[1024][1]cuda:0", n: "i64[8][1]cuda:0", h: "i64[64][1]cpu"):
        add: "f32[1024][1]cuda:0" = torch.ops.aten.add.Tensor(x, x)
        mul: "i64[8][1]cuda:0" = torch.ops.aten.mul.Tensor(n, 2)
        counts: "i64[8][1]cpu" = torch.ops.aten._to_copy.default(mul, device = device(type='cpu'))
        twice: "i64[8][1]cpu" = torch.ops.aten.mul.Tensor(counts, 2)
        back: "i64[64][1]cuda:0" = torch.ops.aten._to_copy.default(h, device = device(type='cuda', index=0))
        early: "i64[8][1]cpu" = torch.ops.aten._to_copy.default(n, device = device(type='cpu'), non_blocking = True)
        one: "Sym(s0)" = torch.ops.aten._local_scalar_dense.default(twice)
        return (add, twice, back, early, one)
"""


@pytest.mark.parametrize("fused", [False, True])
def test_the_host_beside_a_device(tmp_path: Path, fused: bool):
    path = tmp_path / "host.fx.txt"
    path.write_text(HOST)
    index = build_index(load(path))
    found = {index.names[i]: o for i, o in operations(index, fused=fused).items()}
    shown = {n: (o.read_bytes, o.written_bytes, o.kernels, o.host_bytes, o.host_sync) for n, o in found.items()}
    assert shown == {
        "add": (4096, 4096, 1, 0, False),
        "mul": (64, 64, 1, 0, False),
        "counts": (0, 0, 0, 64, True),
        "twice": (0, 0, 0, 0, False),
        "back": (0, 0, 0, 512, False),
        "early": (0, 0, 0, 64, False),
        "one": (0, 0, 0, 0, False),
    }
