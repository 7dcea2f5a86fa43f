"""Buckets of several dtypes travel as bytes; operands that no bytes can be seen of are copied before."""

from __future__ import annotations

import pytest

from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load

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
