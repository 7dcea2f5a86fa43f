"""A written ``.pt2`` says what PyTorch must have imported to load it, and a text what a ``.pt2`` held besides."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest
import torch

from commcc.base.errors import OutputError
from commcc.graph.ops.libraries import IMPORTED_BY_NAME, REGISTERED_BY
from commcc.serialization import load, save

TEXT = """class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[4, 8][8, 1]cpu", b: "f32[4, 8][8, 1]cpu"):
        fma: "f32[4, 8][8, 1]cpu" = torch.ops.prims.fma.default(a, b, b)
        convert: "f64[4, 8][8, 1]cpu" = torch.ops.prims.convert_element_type.default(fma, torch.float64)
        return (convert,)
"""
LOADS = """import sys, torch
{more}
{name} = torch.export.load(sys.argv[1])
print(*sorted(sys.modules))
"""


def loaded(path, more=""):
    script = LOADS.format(more=more, name="program")
    return subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)


@pytest.mark.full
def test_the_import_that_is_named_is_the_one_that_loading_needs(tmp_path):
    source, target = tmp_path / "g.fx.txt", tmp_path / "g.pt2"
    source.write_text(TEXT)
    save(load(source), target)
    assert loaded(target).returncode
    after = loaded(target, "import torch._inductor.inductor_prims")
    assert after.returncode == 0
    source.write_text(TEXT.replace("torch.ops.prims.fma.default(a, b, b)", "torch.ops.aten.mul.Tensor(a, b)"))
    plain = tmp_path / "plain.pt2"
    save(load(source), plain)
    modules = set(loaded(plain).stdout.split())
    registering = {module for names in REGISTERED_BY.values() for module in names}
    assert registering - modules == IMPORTED_BY_NAME


def test_imports_that_loading_needs_are_said(tmp_path):
    source = tmp_path / "g.fx.txt"
    source.write_text(TEXT)
    notes = [note.text for note in save(load(source), tmp_path / "g.pt2")]
    said = "torch.export.load needs torch._inductor.inductor_prims imported before it, for prims.fma"
    assert [text for text in notes if text.startswith("torch.export.load")] == [said]


def test_an_op_that_is_not_registered_is_an_error_for_pt2_alone(tmp_path):
    source = tmp_path / "g.fx.txt"
    source.write_text(TEXT.replace("prims.fma", "mylib.twice"))
    program = load(source)
    save(program, tmp_path / "other.fx.txt")
    with pytest.raises(OutputError, match=r"mylib.twice.default is not registered.*--import MODULE"):
        save(program, tmp_path / "g.pt2")


class Named(torch.nn.Module):
    def forward(self, x, *, scale, more):
        return {"out": x * scale, "pair": (more["a"], x + 1)}


class Single(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Plain(torch.nn.Module):
    def forward(self, x, y):
        return x * 2, y


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "lost"),
    [
        (Single(), 1, {}, "the one result becomes a tuple of it"),
        (Plain(), 2, {}, None),
        (
            Named(),
            1,
            {"scale": torch.ones(2), "more": {"a": torch.ones(2)}},
            "keywords (scale and more) become inputs by position, nested inputs become flat ones, "
            "nested results become a flat tuple",
        ),
    ],
)
def test_a_text_says_which_calling_convention_is_lost(tmp_path, module, args, kwargs, lost):
    exported = torch.export.export(module, tuple(torch.ones(2) for _ in range(args)), kwargs, strict=False)
    torch.export.save(exported, tmp_path / "g.pt2")
    notes = [note.text for note in save(load(tmp_path / "g.pt2"), tmp_path / "g.fx.txt")]
    assert notes == ([] if lost is None else [f"a text holds no calling convention: {lost}"])


def test_containers_of_other_libraries_are_said(tmp_path):
    exported = torch.export.export(Named(), (torch.ones(2),), {"scale": torch.ones(2), "more": {"a": torch.ones(2)}})
    torch.export.save(exported, tmp_path / "g.pt2")
    with zipfile.ZipFile(tmp_path / "g.pt2") as source, zipfile.ZipFile(tmp_path / "other.pt2", "w") as target:
        for name in source.namelist():
            text = source.read(name)
            if name.endswith("models/model.json"):
                # The outermost container of what is returned.
                at = text.index(b"out_spec")
                text = text[:at] + text[at:].replace(b"builtins.dict", b"mylib.Output", 1)
            target.writestr(name, text)
    notes = [note.text for note in save(load(tmp_path / "other.pt2"), tmp_path / "again.pt2")]
    assert notes == ["torch.export.load needs the library of mylib.Output imported before it, for what it returns"]
