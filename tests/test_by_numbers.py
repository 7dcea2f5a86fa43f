"""Shapes of ops that ask what a size is that nobody knows: numbers stand in, and the rest of the graph goes on."""

from __future__ import annotations

import pytest
import torch

from commcc.serialization.fx import parse_text
from commcc.serialization.propagate import propagate

HEAD = """class Repro(torch.nn.Module):
    def forward(self, x: "bf16[2048, 64]cuda:0", m: "b8[2048]cuda:0"):
        a = torch.ops.aten.index.Tensor(x, [m])
"""


def shapes(*lines):
    text = HEAD + "".join(f"        {line}\n" for line in lines) + "        return (a,)\n"
    program = propagate(parse_text(text, "graph"))
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    shown = {name: str(list(val.shape)) for name, val in values.items() if isinstance(val, torch.Tensor)}
    return shown, program.notes


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("constant_pad_nd.default(a, [0, 0, 0, 8])", "[u1, 64]"),
        ("tril.default(a)", "[u0, 64]"),
        ("roll.default(a, [1], [0])", "[u0, 64]"),
        ("as_strided.default(a, [10, 64], [64, 1])", "[10, 64]"),
    ],
)
def test_shapes(call, shape):
    found, notes = shapes(f"y = torch.ops.aten.{call}", "z = torch.ops.aten.relu.default(y)")
    assert found["y"] == found["z"] == shape
    assert not any("no shape" in note.text for note in notes)


def test_as_many_results_as_rows_have_none():
    found, notes = shapes("y = torch.ops.aten.split.Tensor(a, 128)", "z = torch.ops.aten.relu.default(x)")
    assert "y" not in found and found["z"] == "[2048, 64]"
    assert any(note.text.startswith("y has no shape: GuardOnDataDependent") for note in notes)
