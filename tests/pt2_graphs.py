"""Graphs that no exported program is: what a ``.pt2`` file needs its sidecar for."""

from __future__ import annotations

import io

import torch
from torch import fx

from commcc.graph.program import Program
from commcc.serialization import propagate
from commcc.serialization.fx import parse_text
from commcc.serialization.pt2.program import read_pt2, write_pt2
from commcc.serialization.shapes import ShapeContext

HEAD = "class GraphModule(torch.nn.Module):\n    def forward(self, "


def program_of(arguments, *lines):
    """A program from one line of arguments and the lines of its body."""
    text = f"{HEAD}{arguments}):\n" + "".join(f"        {line}\n" for line in lines)
    return propagate(parse_text(text, "test"))


X = 'x: "f32[4, 4][4, 1]cpu"'
GRAPHS = {
    "late and doubled getitems": program_of(
        X,
        "split = torch.ops.aten.split.Tensor(x, 2, 1)",
        "add = torch.ops.aten.add.Tensor(x, 1)",
        "getitem_7 = split[1]",
        "mul = torch.ops.aten.mul.Tensor(add, 2)",
        "again = split[1]",
        "first = split[0]",
        "cat = torch.ops.aten.cat.default([again, getitem_7, first])",
        "return (cat, mul)",
    ),
    "unused results": program_of(
        X,
        "max_1 = torch.ops.aten.max.dim(x, 0)",
        "getitem = max_1[0]",
        "var_mean = torch.ops.aten.var_mean.correction(x, [0])",
        "unused = torch.ops.aten.relu.default(x)",
        "return [getitem]",
    ),
    "None results": program_of(
        'q: "f32[1, 2, 8, 4][64, 32, 4, 1]cpu"',
        "a = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(q, q, q, 0.0, True)",
        "out = a[0]",
        "lse = a[1]",
        "return (out, None, lse)",
    ),
    "nested and doubled outputs": program_of(
        X,
        "relu = torch.ops.aten.relu.default(x)",
        "return [relu, (x, [relu, None, 2]), x, {'k': relu}]",
    ),
    "one output": program_of(X, "relu = torch.ops.aten.relu.default(x)", "return relu"),
    "odd names": program_of(
        'input: "f32[4][1]cpu", print: "f32[4][1]cpu", relu_7: "f32[4][1]cpu"',
        "relu = torch.ops.aten.relu.default(input)",
        "relu_3 = torch.ops.aten.relu.default(print)",
        "type = torch.ops.aten.add.Tensor(relu, relu_3)",
        "_ = torch.ops.aten.add.Tensor(type, relu_7)",
        "return (_,)",
    ),
    "no mesh": program_of(f"{X}, mesh", "relu = torch.ops.aten.relu.default(x)", "return (relu, mesh, mesh)"),
    "numbers of known value": program_of(
        f'n: "Sym(4)", {X}, mesh, m: "Sym(5)"',
        "relu = torch.ops.aten.relu.default(x)",
        "view = torch.ops.aten.view.default(relu, [n, 4])",
        "return (view, m)",
    ),
    "sizes": program_of(
        'u0: "Sym(u0)", x: "f32[8*u0, 4][4, 1]cpu", s1: "Sym(s1)"',
        'size: "Sym(8*u0)" = torch.ops.aten.sym_size.int(x, 0)',
        'total: "Sym(9*u0 + s1 + 3)" = torch.sym_sum([u0, size, s1, 3])',
        'half: "Sym(((9*u0 + s1 + 3)//2))" = total // 2',
        'more: "Sym(Max(2, u0))" = torch.sym_max(u0, 2)',
        'fine: "Sym(u0 >= 0)" = u0 >= 0',
        "_assert = torch.ops.aten._assert_scalar.default(fine, 'u0 is a size')",
        'zeros: "f32[((9*u0 + s1 + 3)//2), 2][2, 1]cpu" = torch.ops.aten.zeros.default([half, 2])',
        'view: "f32[u0, 8, 4][32, 4, 1]cpu" = torch.ops.aten.view.default(x, [u0, 8, -1])',
        "return (zeros, view, half, more)",
    ),
    "collectives": program_of(
        'x: "bf16[8, 16][16, 1]cuda:0", g: "f32[64][1]cuda:0"',
        "ag = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 4, '0')",
        "w = torch.ops._c10d_functional.wait_tensor.default(ag)",
        "many = torch.ops._c10d_functional.all_reduce_coalesced.default([g, w], 'sum', '1')",
        "g0 = many[0]",
        "w0 = torch.ops._c10d_functional.wait_tensor.default(g0)",
        "rs = torch.ops._c10d_functional.reduce_scatter_tensor.default(g, 'avg', 4, '0')",
        "w1 = torch.ops._c10d_functional.wait_tensor.default(rs)",
        "return (w, w0, w1)",
    ),
    "arguments": program_of(
        X,
        "full = torch.ops.aten.full.default([2], inf, dtype=torch.float64, device=device(type='cpu'))",
        "full_1 = torch.ops.aten.full.default([], nan)",
        "to = torch.ops.aten._to_copy.default(x, dtype=torch.complex64, memory_format=torch.contiguous_format)",
        "c = torch.ops.aten.mul.Scalar(to, (1+2j))",
        "e = torch.ops.aten.sum.dim_IntList(x, [])",
        "sum_1 = torch.ops.aten.sum.dim_IntList(x, [0], keepdim=True)",
        "cat = torch.ops.aten.cat.default([x, x], 1)",
        "i = torch.ops.aten.arange.default(3)",
        "index = torch.ops.aten.index.Tensor(x, [None, i])",
        "add_ = torch.ops.aten.add_.Tensor(sum_1, 1, alpha=2)",
        "s = torch.ops.aten.empty.memory_format([2, 3], layout=torch.strided)",
        "return (full, full_1, c, e, cat, index, add_)",
    ),
    "device copies": program_of(
        'x: "f32[4][1]cuda"', "c = torch.ops.aten._to_copy.default(x, device=device(type='cpu'))", "return (c, x)"
    ),
}
RUNNABLE = ["late and doubled getitems", "unused results", "None results", "one output", "arguments"]


def write(program):
    stream = io.BytesIO()
    notes = write_pt2(program, stream)
    return stream.getvalue(), notes


def read(data, tmp_path):
    path = tmp_path / "read.pt2"
    path.write_bytes(data)
    return read_pt2(path)


def build(make):
    """A program from a function that adds nodes to a graph, given a tensor maker."""
    graph, ctx = fx.Graph(), ShapeContext()

    def tensor(*shape):
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        return ctx.tensor(shape, strides, torch.float32, "cpu")

    def node(op, target, args=(), kwargs=None, val=None, **meta):
        made = graph.create_node(op, target, args, kwargs or {}, name=meta.pop("name", None))
        made.meta = {**meta} if val is None else {**meta, "val": val}
        return made

    root = torch.nn.Module()
    graph.output(make(node, tensor, root))
    return Program(graph, root)
