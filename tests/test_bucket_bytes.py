"""Buckets of several dtypes travel as bytes; operands that no bytes can be seen of are copied before."""

from __future__ import annotations

import pytest
import torch

from commcc.graph.program import ProcessGroup
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.verify import verify
from tests.verify_graphs import WORLD, Graph, aten

DTYPES = (torch.float32, torch.bfloat16)
GATHER = "torch.ops._c10d_functional"
OPERANDS = {
    "strided": ('x: "f32[4][2]cpu"', ""),
    "negated": ('x: "f32[4][1]cpu"', 'k: "f32[4][1]cpu" = torch.ops.aten._neg_view.default(x)'),
    "a view of negated": (
        'x: "f32[4][1]cpu"',
        'n: "f32[4][1]cpu" = torch.ops.aten._neg_view.default(x)\n'
        '        k: "f32[4][1]cpu" = torch.ops.aten.view.default(n, [4])',
    ),
    "conjugated": ('x: "c64[4][1]cpu"', 'k: "c64[4][1]cpu" = torch.ops.aten._conj.default(x)'),
}


@pytest.mark.parametrize("case", OPERANDS)
def test_bytes_of_what_does_not_lie_in_a_row(tmp_path, capfd, case):
    declared, made = OPERANDS[case]
    kind = declared.split('"')[1].split("[")[0]
    file = tmp_path / "graph.fx.txt"
    lines = [
        "class GraphModule(torch.nn.Module):",
        f'    def forward(self, {declared}, y: "bf16[4][1]cpu"):',
        *([f"        {made}"] if made else []),
        f"        a: \"{kind}[8][1]cpu\" = {GATHER}.all_gather_into_tensor.default({'k' if made else 'x'}, 2, '0')",
        f'        v: "{kind}[8][1]cpu" = {GATHER}.wait_tensor.default(a)',
        f"        b: \"bf16[8][1]cpu\" = {GATHER}.all_gather_into_tensor.default(y, 2, '0')",
        f'        w: "bf16[8][1]cpu" = {GATHER}.wait_tensor.default(b)',
        "        return (v, w)",
    ]
    file.write_text("\n".join(lines) + "\n")
    result = run(load(file), parse_pipeline("bucket{multi_dtype=true}"))
    assert result.verified == "proved"
    viewed = [n.args[0] for n in result.program.graph.nodes if "view.dtype" in str(n.target) and "bytes" in n.name]
    assert [("clone" in str(n.target)) for n in viewed] == [True, False]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("used", [(), (0,), (1,), (0, 1)])
def test_results_that_nobody_uses(used):
    g = Graph()
    waits = [g.gather(g.input(f"p{i}", 4, dtype=dtype)) for i, dtype in enumerate(DTYPES)]
    before = g.program(*[g(aten.sin.default, waits[i]) for i in used], groups={"0": ProcessGroup("0", WORLD)})
    result = run(before, parse_pipeline("bucket{multi_dtype=true,groups=all}"))
    assert result.verified == "proved" and result.steps[0].report["buckets"] == 1


def bytes_of(change=""):
    """Two gathers, of which the first is used; after ``change`` also, or only, as bytes."""
    g = Graph()
    xs = [g.input(f"p{i}", 4, dtype=dtype) for i, dtype in enumerate(DTYPES)]
    first = [g.gather(x) for x in xs] if change in ("", "besides", "shared") else []
    raw = [g(aten.view.dtype, x, torch.uint8) for x in xs] if change else []
    sent = {"part": [g(aten.slice.Tensor, raw[0], 0, 0, 15), raw[1]], "twice": [*raw, raw[1]]} if raw else {}
    for _ in range(2 if change == "again" else 1 if change else 0):
        whole = g.gather(g(aten.cat.default, sent.get(change, raw)), size=2 if change == "ranks" else WORLD)
    shown = first[0] if first else None
    if change == "shared":  # one of both is read from the bytes
        parts = g.parts(g(aten.view.default, whole, [WORLD, 24]), [16, 8], 1)
        shown = g.shaped(g(aten.view.dtype, g(aten.clone.default, parts[0]), torch.float32), (16,))
    more = () if change in ("whole", "again", "ranks", "part", "twice") or shown is None else (shown,)
    return g.program(*[g(aten.sin.default, each) for each in more], xs[0], groups={"0": ProcessGroup("0", WORLD)})


@pytest.mark.parametrize("change", ["besides", "shared"])
def test_bytes_that_are_sent_besides_are_seen(change):
    verdict = verify(bytes_of(), bytes_of(change))
    assert verdict.status == "unproved" and any(gap.rule == "duplicated" for gap in verdict.unproved)


def unused(change=""):
    """As above, with no result of a gather that is used."""
    program = bytes_of(change)
    (output,) = program.graph.find_nodes(op="output")
    output.args = ((output.args[0][-1],),)
    return program


def test_bytes_of_results_that_nobody_uses_are_sent_once():
    before = unused()
    assert verify(before, unused("whole")).status == "proved"
    for change in ("again", "ranks", "twice"):
        assert verify(before, unused(change)).status == "unproved", change
    assert verify(unused("whole"), unused("again")).status == "unproved"
