"""Copies between host and device that do not block: what uses their memory stays behind the wait of the host."""

from __future__ import annotations

import pytest

from commcc.api import run
from commcc.serialization import load
from commcc.verify import verify

WIDE, HOST = '"f32[16777216][1]cuda:0"', '"f32[16777216][1]cpu"'
CPU = "device(type='cpu')"
#: By what copies: the lines in which it does, what is read or written behind the wait of the host.
COPIES = {
    "copy_ by position": ("c: {HOST} = aten.copy_.default(b, x, True)", "r: {HOST} = aten.relu.default(c)"),
    "copy_ by keyword": (
        "c: {HOST} = aten.copy_.default(b, x, non_blocking = True)",
        "r: {HOST} = aten.relu.default(b)",
    ),
    "_foreach_copy_": ("c = aten._foreach_copy_.default([b], [x], True)", "r: {HOST} = aten.relu.default(b)"),
    "_to_copy": (
        "c: {HOST} = aten._to_copy.default(x, device = {CPU}, non_blocking = True)",
        "r: {HOST} = aten.relu.default(c)",
    ),
    "device_put": ("c: {HOST} = prims.device_put.default(x, {CPU}, True)", "r: {HOST} = aten.relu.default(c)"),
    "to.device": ("c: {HOST} = aten.to.device(x, {CPU}, torch.float32, True)", "r: {HOST} = aten.relu.default(c)"),
    "a view in between": (
        "c: {HOST} = prims.device_put.default(x, {CPU}, True)\n"
        "        w: {HOST} = torch.ops.aten.view.default(c, [16777216])",
        "r: {HOST} = aten.relu.default(w)",
    ),
    "sent to the device": (
        "c: {WIDE} = aten._to_copy.default(b, device = device(type='cuda', index=0), non_blocking = True)",
        "r: {HOST} = aten.mul_.Tensor(b, 2.0)",
    ),
    "sent by copy_": ("c: {WIDE} = aten.copy_.default(x, b, True)", "r: {HOST} = aten.zero_.default(b)"),
}
SYNC = 'i: "Sym(zuf0)" = aten._local_scalar_dense.default(f)'


def program(folder, name, lines):
    """A step with such a copy, products, and a gather that passes move launches for."""
    lines = [line.format(HOST=HOST, WIDE=WIDE, CPU=CPU) for line in lines]
    lines = [line.replace("= aten.", "= torch.ops.aten.").replace("= prims.", "= torch.ops.prims.") for line in lines]
    text = [
        '# commcc: {"fx_text": 1}',
        '# commcc: {"groups": {"0": {"size": 8, "ranks": [0,1,2,3,4,5,6,7]}}}',
        "class GraphModule(torch.nn.Module):",
        '    def forward(self, z: "bf16[8192, 8192][8192, 1]cuda:0", f: "f32[][]cuda:0", g: "f32[][]cuda:1", '
        f"x: {WIDE}, b: {HOST}):",
        *(f"        {line}" for line in lines),
        '        m: "bf16[8192, 8192][8192, 1]cuda:0" = torch.ops.aten.mm.default(z, z)',
        f"        s: {WIDE} = torch.ops.aten._to_copy.default(r, device = device(type='cuda', index=0))",
        "        a: \"f32[134217728][1]cuda:0\" = torch.ops._c10d_functional.all_gather_into_tensor.default(s, 8, '0')",
        '        v: "f32[134217728][1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(a)',
        '        k: "f32[134217728][1]cuda:0" = torch.ops.aten.mul.Tensor(v, v)',
        "        return (k, m)",
    ]
    file = folder / f"{name}.fx.txt"
    file.write_text("\n".join(text) + "\n")
    return file


@pytest.mark.parametrize("case", COPIES)
def test_use_ahead_of_the_wait_of_the_host_is_not_proved(tmp_path, case):
    copy, use = COPIES[case]
    before = load(program(tmp_path, "before", [copy, SYNC, use]))
    for name, lines in (("early", [copy, use, SYNC]), ("no_wait", [copy, use])):
        assert verify(before, load(program(tmp_path, name, lines))).status == "different"
    assert verify(before, before).status == "proved"


@pytest.mark.parametrize("pipeline", ["reorder", "bucket{strategy=auto},reorder"])
@pytest.mark.parametrize("case", COPIES)
def test_passes_leave_the_use_behind_the_wait_of_the_host(tmp_path, case, pipeline):
    copy, use = COPIES[case]
    result = run(load(program(tmp_path, "before", [copy, SYNC, use])), pipeline)
    names = [node.name for node in result.program.graph.nodes]
    assert names.index("c") < names.index("i") < names.index("r")
    assert result.verified == "proved"


def test_a_wait_for_another_device_is_none(tmp_path):
    copy, use = COPIES["_to_copy"]
    other = 'j: "Sym(zuf1)" = aten._local_scalar_dense.default(g)'
    before = load(program(tmp_path, "before", [copy, SYNC, use, other]))
    assert verify(before, load(program(tmp_path, "after", [copy, other, use, SYNC]))).status == "different"
