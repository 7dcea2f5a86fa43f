"""Small graphs as text, and what single rules say of them.

text = graph("a b", "ag = gather(a)", "w = wait(ag)", "m = mm(w, b)", returns="m")
findings("wait-after-launch", text)

A line ``name = op(operands)`` uses the short ops below; one with ``torch.`` in it is taken as it is. All tensors
are 8 by 8 floats on the device, what gathers give 16 by 8.
"""

from __future__ import annotations

import re

from commcc.lint.registry import BY_ID
from commcc.lint.types import Subject
from commcc.serialization.fx import parse_text
from commcc.serialization.propagate import propagate
from commcc.timing.cost import load_model
from commcc.timing.snapshot import take

SMALL, LARGE = '"f32[8, 8][8, 1]cuda:0"', '"f32[16, 8][8, 1]cuda:0"'
_C10D = "torch.ops._c10d_functional."
_OPS = {
    "gather": (LARGE, _C10D + "all_gather_into_tensor.default({0}, 2, '0')"),
    "scatter": (SMALL, _C10D + "reduce_scatter_tensor.default({0}, 'avg', 2, '0')"),
    "reduce": (SMALL, _C10D + "all_reduce.default({0}, 'sum', '0')"),
    "reduce_tp": (SMALL, _C10D + "all_reduce.default({0}, 'sum', '1')"),
    "wait": (SMALL, _C10D + "wait_tensor.default({0})"),
    "wait_wide": (LARGE, _C10D + "wait_tensor.default({0})"),
    "mm": (SMALL, "torch.ops.aten.mm.default({0}, {1})"),
    "mul": (SMALL, "torch.ops.aten.mul.Tensor({0}, {1})"),
    "wide": (LARGE, "torch.ops.aten.cat.default([{0}, {1}])"),
    "add_": (SMALL, "torch.ops.aten.add_.Tensor({0}, {1})"),
    "view": (SMALL, "torch.ops.aten.view.default({0}, [8, 8])"),
    "half": (SMALL, "torch.ops.aten.slice.Tensor({0}, 0, 0, 8)"),
}
_LINE = re.compile(r"(\w+) = (\w+)\((.*)\)")


def graph(inputs: str, *lines: str, returns: str) -> str:
    """The text of a graph."""
    signature = ", ".join(f"{name}: {SMALL}" for name in inputs.split())
    body = "".join(f"        {_statement(line)}\n" for line in lines)
    head = f"class GraphModule(torch.nn.Module):\n    def forward(self, {signature}):\n"
    return f"{head}{body}        return ({returns},)\n"


def _statement(line: str) -> str:
    if "torch." in line:
        return line
    match = _LINE.fullmatch(line)
    assert match is not None, line
    name, op, operands = match.groups()
    shape, call = _OPS[op]
    return f"{name}: {shape} = {call.format(*(each.strip() for each in operands.split(',')))}"


def subject(text: str, *, cost: str | None = "h100", hints: dict[str, int] | None = None, **more) -> Subject:
    """A graph under test."""
    program = propagate(parse_text(text, "g.fx.txt"))
    return Subject("g.fx.txt", program, take(program, load_model(cost) if cost else None, hints), **more)


def findings(rule: str, text: str | Subject, **options) -> list:
    """What one rule finds; options are given as the values they are read to."""
    under_test = subject(text) if isinstance(text, str) else text
    found = BY_ID[rule]
    return list(found.check(under_test, found.options(**options)))


def healthy() -> str:
    """Three layers of a sharded model in an order that hides communication."""
    return graph(
        "p1 p2 p3 x",
        "ag1 = gather(p1)",
        "ag2 = gather(p2)",
        "m0 = mm(x, x)",
        "w1 = wait_wide(ag1)",
        "h1 = half(w1)",
        "m1 = mm(m0, h1)",
        "ag3 = gather(p3)",
        "w2 = wait_wide(ag2)",
        "h2 = half(w2)",
        "m2 = mm(m1, h2)",
        "g1 = wide(m1, m2)",
        "rs1 = scatter(g1)",
        "m3 = mm(m2, m2)",
        "w3 = wait_wide(ag3)",
        "h3 = half(w3)",
        "m4 = mm(m3, h3)",
        "d1 = wait(rs1)",
        returns="m4, d1",
    )
