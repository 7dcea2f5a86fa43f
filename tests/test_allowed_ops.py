"""Graph files that want something done: no command does it, and replay says which op it does not run."""

from __future__ import annotations

import operator
import os
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from commcc.base.errors import InputError, OptionError
from commcc.cli.main import run
from commcc.graph.ops.allowed import imported_ops, refusal
from commcc.graph.ops.functions import plain_functions
from commcc.graph.ops.libraries import NATIVE
from commcc.replay.prepare import prepare
from commcc.serialization import load, save
from tests.verify_graphs import Graph

if TYPE_CHECKING:
    from pathlib import Path

aten = torch.ops.aten
TEXT = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4][1]cpu"):
        {line}
        neg: "f32[4][1]cpu" = torch.ops.aten.neg.default({used})
        all_reduce: "f32[4][1]cpu" = torch.ops._c10d_functional.all_reduce.default(neg, 'sum', '0')
        wait_tensor: "f32[4][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
        return (wait_tensor,)
"""
INSIDE = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4][1]cpu"):
        body_0 = self.body_0
        got = torch.ops.higher_order.{op}({arguments})
        getitem: "f32[4][1]cpu" = got[0]
        return (getitem,)
    class body_0(torch.nn.Module):
        def forward(self, y: "f32[4][1]cpu"):
            {line}
            return (hostile,)
"""
#: A call, and what it is not run for.
HOSTILE = [
    ("torch.ops.aten.from_file.default('{mark}', True, 4)", "text"),
    ("torch.ops.aten.from_file('{mark}', True, 4)", "text"),
    ("torch.ops.aten.save.default(x, '{mark}')", "Python's objects"),
    ("torch.ops.aten.save(x, '{mark}')", "Python's objects"),
    ("torch.ops.aten._print.default('{mark}')", "text"),
    ("torch.ops.aten.warn.default('{mark}')", "Python's objects"),
    ("torch.ops.debugprims.load_tensor.default('{mark}', [4], [1])", "PyTorch's"),
    ("torch.ops.profiler._record_function_enter.default('{mark}')", "PyTorch's"),
    ("torch.ops.prim.Print.default('{mark}')", "PyTorch's"),
    ("torch.ops.aten._reshape_alias.default(x, [4], [1000000])", "memory"),
    ("torch.ops.inductor._reinterpret_tensor.default(x, [4], [1], 1000000)", "memory"),
    ("torch.ops.aten.record_stream.default(x, 0)", "object"),
    ("torch.ops.quantized.add.default(x, x, 1.0, 0)", "PyTorch's"),
    ("torch.ops.image.write_file.default('{mark}', x)", None),
    ("torch.ops.mylib.write.default('{mark}', x)", None),
    ("torch.ops.higher_order.print('{mark}')", None),
]


def graph(folder: Path, call: str) -> Path:
    mark = folder / "kept"
    mark.write_text("precious contents\n")
    text = TEXT.format(line=f'hostile: "f32[4][1]cpu" = {call.format(mark=mark)}', used="hostile")
    file = folder / "evil.fx.txt"
    file.write_text(text)
    return file


def untouched(folder: Path, *names: str) -> None:
    assert (folder / "kept").read_text() == "precious contents\n"
    assert {path.name for path in folder.iterdir()} <= {"kept", "evil.fx.txt", *names}


def said(capsys, *words: object) -> tuple[int, str]:
    code = run([str(word) for word in words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(("call", "why"), HOSTILE, ids=[call.split("(")[0][10:] for call, _ in HOSTILE])
def test_replay_refuses_by_name(tmp_path, monkeypatch, capsys, call, why):
    monkeypatch.chdir(tmp_path)
    file = graph(tmp_path, call)
    op = call.removeprefix("torch.ops.").split("(")[0].removesuffix(".default")
    for words in (
        ("verify", file, file, "--numeric", "--virtual-ranks", 2),
        ("verify", file, file, "--numeric", "--nproc", 2),
        ("bench", file, "--nproc", 2, "--device", "cpu"),
        ("bench", file, "--nproc", 2, "--device", "emulated-cpu", "--compile"),
        ("profile", file, "--nproc", 2, "--device", "cpu"),
    ):
        code, error = said(capsys, *words)
        assert code == 2, error
        assert op in error and len(error.splitlines()) == 1
        if why is not None:
            assert f"op {op} of node 'hostile' is not run: " in error
            assert why in error
            assert ("--import MODULE" in error) == (op.partition(".")[0] not in NATIVE)
    untouched(tmp_path)


COMMANDS = (
    *(("inspect",), ("simulate",), ("explain",), ("lint",), ("convert", "-o", "out.pt2"), ("sweep", "bucket")),
    *(("bucket", "-o", "a.fx.txt"), ("reorder", "-o", "b.fx.txt"), ("dedup", "-o", "c.fx.txt")),
    *(("cleanup", "-o", "d.fx.txt"), ("run", "-o", "e.fx.txt", "--preset", "auto"), ("ep-overlap", "-o", "f.fx.txt")),
)


@pytest.mark.parametrize("form", ["text", "pt2", "no values"])
def test_no_command_runs_it(tmp_path, monkeypatch, capfd, form):
    monkeypatch.chdir(tmp_path)
    file = graph(tmp_path, "torch.ops.aten.from_file.default('{mark}', True, 4)")
    if form == "pt2":
        save(load(file), tmp_path / "evil.pt2")
        file = tmp_path / "evil.pt2"
    if form == "no values":
        file.write_text(file.read_text().replace(': "f32[4][1]cpu" =', " ="))
    for name, *options in COMMANDS:
        assert run([name, str(file), *options]) in (0, 1, 2)
    for words in (("verify", file, file), ("diff", file, file), ("verify", file, file, "--numeric")):
        assert run([*map(str, words)]) in (0, 1, 2)
    assert "precious" not in "".join(capfd.readouterr())
    untouched(tmp_path, *(f"{letter}.fx.txt" for letter in "abcdef"), "evil.pt2", "out.pt2")


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("invoke_subgraph", "body_0, 'body_0', x"),
        ("cond", "True, body_0, body_0, (x,)"),
        ("control_deps", "(x,), body_0, x"),
        ("with_effects", "x, torch.ops.aten.from_file.default, '{mark}', True, 4"),
        ("auto_functionalized", "torch.ops.aten.from_file.default, filename = '{mark}'"),
    ],
)
def test_sub_graphs_and_ops_that_are_handed_on(tmp_path, capsys, op, arguments):
    file = graph(tmp_path, "x")
    mark = tmp_path / "kept"
    line = f"""hostile: "f32[4][1]cpu" = torch.ops.aten.from_file.default('{mark}', True, 4)"""
    file.write_text(INSIDE.format(op=op, arguments=arguments.format(mark=mark), line=line))
    for words in (
        ("inspect", file),
        ("verify", file, file, "--numeric", "--virtual-ranks", 2),
        ("bench", file, "--nproc", 2, "--device", "cpu"),
    ):
        code, error = said(capsys, *words)
        if words[0] != "inspect":
            assert code == 2
            assert "op aten.from_file of node '" in error
    untouched(tmp_path)


def test_what_is_allowed():
    c10d = torch.ops._c10d_functional
    fine = (aten.mm.default, aten.view.default, aten.gelu.default, aten.normal.Tensor_float, aten.randn.generator)
    fine += (aten.set_.source_Tensor, aten._assert_scalar.default, torch.ops.prims.iota.default, aten.einsum.default)
    fine += (c10d.all_reduce.default, c10d.wait_tensor.default, c10d.wait_tensor, aten.mm)
    assert [refusal(op) for op in (*fine, *plain_functions().values())] == [None] * (len(fine) + len(plain_functions()))
    for function in (os.system, eval, torch.load, torch.from_file, operator.attrgetter, operator.methodcaller, getattr):
        assert refusal(function) == "it is neither an op nor arithmetic"


def test_programs_in_memory_are_asked_too(tmp_path):
    g = Graph()
    x = g.input("x", 4)
    program = g.program(g(os.system, f"touch {tmp_path / 'mark'}", val=0), x)
    with pytest.raises(InputError, match=r"op posix.system of node '\w+' is not run: it is neither an op"):
        prepare(program)
    assert list(tmp_path.iterdir()) == []


MODULE = """
import torch
library = torch.library.Library("{name}", "DEF")
library.define("double(Tensor x) -> Tensor")
library.impl("double", lambda x: x + x, "CPU")
library.impl("double", lambda x: torch.empty_like(x), "Meta")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "commcc_own_ops.py").write_text(MODULE.format(name="commcc_own_ops"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "commcc_own_ops"


def test_libraries_of_pytorch_that_are_not_run(tmp_path, capsys):
    file = graph(tmp_path, "torch.ops.rngprims.philox_rand.default([4], x, x, None, 'cpu', torch.float32)")
    code, error = said(capsys, "verify", file, file, "--numeric", "--virtual-ranks", 2)
    assert (code, "the library 'rngprims' is none whose ops are run" in error) == (2, True)


@pytest.mark.full
def test_a_module_that_is_named_may_run(tmp_path, capsys, module):
    file = graph(tmp_path, f"torch.ops.{module}.double.default(x)")
    code, error = said(capsys, "verify", file, file, "--numeric", "--virtual-ranks", 2)
    assert (code, f"{module}.double" in error) == (2, True)
    named = ("--import", module)
    assert said(capsys, "verify", file, file, "--numeric", "--virtual-ranks", 2, *named) == (0, "")
    # It is known now, and still nobody's but the user's.
    code, error = said(capsys, "verify", file, file, "--numeric", "--virtual-ranks", 2)
    assert (code, f"the library '{module}' is not PyTorch's" in error) == (2, True)
    assert said(capsys, "verify", file, file, "--numeric", "--nproc", 2, *named) == (0, "")
    assert said(capsys, "bench", file, "--device", "cpu", "--nproc", 2, "--repeat", 1, "--warmup", 0, *named)[0] == 0


@pytest.mark.parametrize(
    ("op", "description", "what"),
    [
        ("mylib.f", "arguments: [a, b]\n  like: aten.from_file(a, True, b)", "aten.from_file is not called for a file"),
        ("mylib.f", "arguments: [a, b]\n  like: aten.save.default(b, a)", "aten.save.default is not called for a file"),
        ("aten.from_file", "shape: 4", "aten.from_file is PyTorch's: only ops of other libraries are described"),
        ("profiler._record_function_enter", "shape: '4'", "is PyTorch's: only ops of other libraries are described"),
        ("mylib.f", "arguments: [a, b]\n  shape: '4'", "mylib.f is not registered"),
    ],
)
def test_files_that_describe_ops_reach_nothing_else(tmp_path, monkeypatch, capsys, op, description, what):
    monkeypatch.chdir(tmp_path)
    file = graph(tmp_path, f"torch.ops.{op}.default('{{mark}}', 400)")
    (tmp_path / "ops.yaml").write_text(f"{op}:\n  {description}\n")
    for words in (("inspect", file), ("verify", file, file, "--numeric", "--virtual-ranks", 2)):
        code, error = said(capsys, *words, "--ops", "ops.yaml")
        assert (code == 2 and what in error) or (code == 0 and words[0] == "inspect"), error
        assert "Traceback" not in error
    untouched(tmp_path, "ops.yaml")


def test_a_module_that_gives_nothing(tmp_path, capsys):
    file = graph(tmp_path, "torch.ops.aten.abs.default(x)")
    for name, words in (("no_such_module", "ModuleNotFoundError"), ("json", "it registers no op")):
        with pytest.raises(OptionError, match=words):
            imported_ops((name,))
        code, error = said(capsys, "verify", file, file, "--numeric", "--import", name)
        assert (code, error.startswith(f"commcc: error: --import {name}: ")) == (2, True)
    assert "--import needs --numeric" in said(capsys, "verify", file, file, "--import", "json")[1]


def test_no_configuration_names_modules(tmp_path, monkeypatch, capsys, module):
    monkeypatch.chdir(tmp_path)
    file = graph(tmp_path, f"torch.ops.{module}.double.default(x)")
    (tmp_path / "commcc.yaml").write_text(f"import: [{module}]\n")
    monkeypatch.delitem(sys.modules, module, raising=False)
    code, error = said(capsys, "bench", file, "--nproc", 2, "--device", "cpu")
    assert (code, f"{module}.double" in error, "--import" in error) == (2, True, True), error
    assert module not in sys.modules


@pytest.mark.full
def test_ranks_do_not_import_from_the_folder_they_start_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = graph(tmp_path, "torch.ops.aten.abs.default(x)")
    (tmp_path / "random.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    assert said(capsys, "verify", file, file, "--numeric", "--nproc", 2) == (0, "")
    untouched(tmp_path, "random.py")
