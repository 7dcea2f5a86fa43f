"""Exported models read node for node as PyTorch reads them, and written so that they compute the same."""

from __future__ import annotations

import copy
import json
import zipfile
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import fx

from commcc.base.errors import OutputError
from commcc.graph.ops import is_getitem
from commcc.serialization.pt2.program import read_pt2, write_pt2
from tests.pt2_compare import assert_bitwise, described, differences
from tests.pt2_models import MAKERS, make

NAMES = list(MAKERS)


@cache
def case(name):
    return make(name)


@pytest.fixture(params=NAMES)
def saved(request, tmp_path):
    """(name, path) of a saved model."""
    path = tmp_path / f"{request.param}.pt2"
    torch.export.save(case(request.param).exported, path)
    return request.param, path


def run(path, name):
    """Outputs, inputs afterwards and buffers afterwards of the program in ``path``."""
    known = case(name)
    args, kwargs = copy.deepcopy((known.args, known.kwargs))
    module = torch.export.load(path).module()
    torch.manual_seed(1)
    return module(*args, **kwargs), args, kwargs, dict(module.named_buffers())


def entries(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.sampled(6)
def test_reads_what_pytorch_loads(saved):
    _, path = saved
    ours, theirs = read_pt2(path), torch.export.load(path)
    assert [node.name for node in ours.graph.nodes] == [node.name for node in theirs.graph.nodes]
    _same_nodes(ours.graph, theirs.graph)
    assert not ours.notes
    for name, module in theirs.graph_module.named_children():
        _same_nodes(getattr(ours.root, name).graph, module.graph)


def _same_nodes(ours, theirs):
    for a, b in zip(ours.nodes, theirs.nodes, strict=True):
        assert (a.name, a.op, a.target) == (b.name, b.op, b.target)
        assert repr(a.args) == repr(b.args)
        assert repr(a.kwargs) == repr(b.kwargs)
        if a.op != "output":
            assert _without_offsets(described(a.meta.get("val"))) == described(b.meta.get("val"))
        for key in ("stack_trace", "torch_fn", "custom"):
            assert a.meta.get(key) == b.meta.get(key)


def _without_offsets(val):
    """PyTorch forgets storage offsets when it loads a file; we do not."""
    if isinstance(val, tuple) and val and isinstance(val[0], str) and val[0].startswith("torch."):
        return (*val[:-1], 0)
    return type(val)(map(_without_offsets, val)) if isinstance(val, (list, tuple)) else val


def test_storage_offsets_are_kept(tmp_path):
    torch.export.save(case("indices").exported, tmp_path / "a.pt2")
    offsets = {
        node.name: node.meta["val"].storage_offset()
        for node in read_pt2(tmp_path / "a.pt2").graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    }
    assert (offsets["getitem_2"], offsets["getitem_3"], offsets["getitem_4"]) == (0, 4, 8)


@pytest.mark.sampled(3)
def test_written_again_it_computes_the_same(saved, tmp_path):
    name, path = saved
    first, second = tmp_path / "first.pt2", tmp_path / "second.pt2"
    program = read_pt2(path)
    remarks = [note.text for note in write_pt2(program, first)]
    assert all("commcc_test" in text for text in remarks) and bool(remarks) == name.startswith("custom")
    again = read_pt2(first)
    assert not differences(program, again)
    write_pt2(again, second)
    assert first.read_bytes() == second.read_bytes()
    before, after = entries(path), entries(first)
    assert {n: d for n, d in before.items() if "/models/" not in n} == {
        n: d for n, d in after.items() if "/models/" not in n and not n.endswith("commcc.json")
    }
    assert_bitwise(run(path, name), run(first, name))


def rewritten(program):
    """The same program in another order and under other names: getitems late and doubled, nodes renamed."""
    graph = fx.Graph()
    new = {}

    def use(node):
        if is_getitem(node.target) and node not in new:
            new[node] = graph.node_copy(node, use)
            again = graph.node_copy(node, use)
            for copied in (new[node], again):
                copied.meta = dict(node.meta)
            return again
        return new[node]

    for node in program.graph.nodes:
        if is_getitem(node.target):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), use)
        name = node.name if node.op in ("placeholder", "output") else f"n_{node.name}"
        new[node] = graph.create_node(node.op, node.target, args, kwargs, name)
        new[node].name = name
        new[node].meta = dict(node.meta)
    return replace(program, graph=graph)


@pytest.mark.sampled(3)
def test_rewritten_programs_compute_the_same(saved, tmp_path):
    name, path = saved
    program = rewritten(read_pt2(path))
    write_pt2(program, tmp_path / "first.pt2")
    again = read_pt2(tmp_path / "first.pt2")
    assert not again.notes
    assert not differences(program, again)
    write_pt2(again, tmp_path / "second.pt2")
    assert (tmp_path / "first.pt2").read_bytes() == (tmp_path / "second.pt2").read_bytes()
    assert_bitwise(run(path, name), run(tmp_path / "first.pt2", name))


@pytest.mark.sampled(2)
def test_signature_and_calling_convention_are_kept(saved, tmp_path):
    _, path = saved
    write_pt2(rewritten(read_pt2(path)), tmp_path / "first.pt2")
    before, after = torch.export.load(path), torch.export.load(tmp_path / "first.pt2")
    assert before.graph_signature.input_specs == after.graph_signature.input_specs
    assert [(s.kind, s.target) for s in before.graph_signature.output_specs] == [
        (s.kind, s.target) for s in after.graph_signature.output_specs
    ]
    assert before.call_spec == after.call_spec
    assert str(before.range_constraints) == str(after.range_constraints)
    assert before.verifiers == after.verifiers
    assert before._guards_code == after._guards_code


def test_a_changed_number_of_outputs_is_refused(tmp_path):
    torch.export.save(case("tied").exported, tmp_path / "a.pt2")
    program = read_pt2(tmp_path / "a.pt2")
    graph = fx.Graph()
    new = {}
    for node in program.graph.nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
    output = new[list(program.graph.nodes)[-1]]
    output.args = ((*output.args[0], output.args[0][0]),)
    with pytest.raises(OutputError, match="2 outputs, the exported program 1"):
        write_pt2(replace(program, graph=graph), tmp_path / "b.pt2")
    assert not (tmp_path / "b.pt2").exists()


def test_the_source_must_be_unchanged(tmp_path):
    path = tmp_path / "a.pt2"
    torch.export.save(case("tied").exported, path)
    program = read_pt2(path)
    torch.export.save(case("indices").exported, path)
    with pytest.raises(OutputError, match="has changed since it was read"):
        write_pt2(program, tmp_path / "b.pt2")
    assert not (tmp_path / "b.pt2").exists()


def test_extra_files_and_graph_metadata_are_kept(tmp_path):
    exported = case("tied").exported
    torch.export.save(exported, tmp_path / "a.pt2", extra_files={"notes.txt": "hello", "deep/er.json": "{}"})
    write_pt2(read_pt2(tmp_path / "a.pt2"), tmp_path / "b.pt2")
    found = {"notes.txt": "", "deep/er.json": "", "commcc.json": ""}
    torch.export.load(tmp_path / "b.pt2", extra_files=found)
    assert (found["notes.txt"], found["deep/er.json"]) == ("hello", "{}")
    assert json.loads(found["commcc.json"])["commcc"] == 1


def test_texts_among_the_outputs_are_read(tmp_path):
    class Named(torch.nn.Module):
        def forward(self, x):
            return x + 1, "name"

    torch.export.save(torch.export.export(Named(), (torch.ones(2),)), tmp_path / "a.pt2")
    program = read_pt2(tmp_path / "a.pt2")
    assert program.graph.output_node().args[0][1] == "name"
    with pytest.raises(OutputError, match="cannot return"):  # PyTorch would not load it
        write_pt2(program, tmp_path / "b.pt2")


def test_ops_that_are_not_registered_are_carried(tmp_path):
    path = tmp_path / "a.pt2"
    torch.export.save(case("custom").exported, path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "b.pt2", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"commcc_test", b"commcc_lost"))
    program = read_pt2(tmp_path / "b.pt2")
    unknown = [note.text.split()[0] for note in program.notes]
    assert unknown == ["commcc_lost.split_add.default", "commcc_lost.fill.default"]
    write_pt2(rewritten(program), tmp_path / "c.pt2")
    assert not differences(rewritten(program), read_pt2(tmp_path / "c.pt2"))
    with zipfile.ZipFile(tmp_path / "c.pt2") as source, zipfile.ZipFile(tmp_path / "d.pt2", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"commcc_lost", b"commcc_test"))
    assert_bitwise(run(path, "custom"), run(tmp_path / "d.pt2", "custom"))


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) + 1


def test_preserved_calling_conventions(tmp_path):
    args = (torch.ones(2, 4),)
    exported = torch.export.export(Outer(), args, preserve_module_call_signature=("inner",), strict=False)
    torch.export.save(exported, tmp_path / "a.pt2")
    program = read_pt2(tmp_path / "a.pt2")
    assert write_pt2(program, tmp_path / "b.pt2") == ()
    again = torch.export.unflatten(torch.export.load(tmp_path / "b.pt2"))
    assert_bitwise(again(*args), exported.module()(*args))
    (note,) = write_pt2(rewritten(program), tmp_path / "c.pt2")
    assert note.text.startswith("modules 'inner' no longer take and give only what their calling convention says")
    again = torch.export.unflatten(torch.export.load(tmp_path / "c.pt2"))
    assert_bitwise(again(*args), exported.module()(*args))


def test_the_source_is_not_overwritten(tmp_path, monkeypatch):
    torch.export.save(case("tied").exported, tmp_path / "a.pt2")
    before = (tmp_path / "a.pt2").read_bytes()
    monkeypatch.chdir(tmp_path)
    program = read_pt2("a.pt2")
    monkeypatch.chdir("/")
    with pytest.raises(OutputError, match="choose another name"):
        write_pt2(program, tmp_path / "a.pt2")
    assert (tmp_path / "a.pt2").read_bytes() == before
    write_pt2(program, tmp_path / "b.pt2")
    (tmp_path / "a.pt2").unlink()
    with pytest.raises(OutputError, match="is gone: no such file"):
        write_pt2(program, tmp_path / "c.pt2")
    assert not (tmp_path / "c.pt2").exists()
