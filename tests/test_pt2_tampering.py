"""Sidecars that do not fit their file are ignored, with a note."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
import torch

from commcc.serialization.pt2.program import read_pt2
from tests.pt2_graphs import GRAPHS, read, write


def with_sidecar(data, change):
    """The file with its sidecar changed by a function, or replaced by bytes."""
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        entries = {name: source.read(name) for name in source.namelist()}
    name = "archive/extra/commcc.json"
    sidecar = json.loads(entries[name])
    if not isinstance(change, bytes):
        change(sidecar)
    entries[name] = change if isinstance(change, bytes) else json.dumps(sidecar).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        for name, content in entries.items():
            target.writestr(name, content)
    return out.getvalue()


def swap_arguments(sidecar):
    sidecar["graph"]["nodes"][-2][3]["$tuple"][0].reverse()


def hide_a_node(sidecar):
    del sidecar["graph"]["nodes"][2]


def use_before_definition(sidecar):
    sidecar["graph"]["nodes"].insert(0, sidecar["graph"]["nodes"].pop(3))


def add_code(sidecar):
    sidecar["graph"]["nodes"].insert(
        1, ["a=open('m','w')", "placeholder", "x=open('m','w')", {"$tuple": []}, {"$dict": []}]
    )


def add_code_to_a_keyword(sidecar):
    keywords = {"$dict": [["a=open('m','w'),b", 1]]}
    arguments = {"$tuple": [{"$node": "x"}, 2]}
    sidecar["graph"]["nodes"].insert(1, ["a", "call_function", "torch.ops.aten.mul.Tensor", arguments, keywords])


def a_negative_size(sidecar):
    sidecar["groups"] = [{"name": "0", "size": -1, "ranks": None, "description": ""}]


def a_text_as_rank(sidecar):
    sidecar["groups"] = [{"name": "0", "size": 1, "ranks": ["0"], "description": ""}]


def call_something(sidecar):
    sidecar["graph"]["nodes"].insert(1, ["a", "call_function", "os.system", {"$tuple": ["touch m"]}, {"$dict": []}])


def two_groups(sidecar):
    sidecar["groups"] = [{"name": "0", "size": 1, "ranks": None, "description": ""}] * 2


def other_version(sidecar):
    sidecar["commcc"] = 2


def test_keywords_are_checked(tmp_path):
    data, _ = write(GRAPHS["late and doubled getitems"])
    found = read(with_sidecar(data, add_code_to_a_keyword), tmp_path)
    assert "is not a node name" in found.notes[0].text


def test_groups_that_contradict_the_graph(tmp_path):
    data, _ = write(GRAPHS["collectives"])
    found = read(with_sidecar(data, lambda sidecar: sidecar["groups"][0].update(size=3)), tmp_path)
    assert "group '0' has 3 ranks" in found.notes[0].text
    assert found.groups["0"].size == 4


SIDECARS = [
    *(swap_arguments, hide_a_node, use_before_definition, add_code, call_something, two_groups, other_version),
    *(add_code_to_a_keyword, a_negative_size, a_text_as_rank),
    *(b"", b"[]", b"{}", b'{"graph": 1}', b"[" * 100_000, b"\xff", b"NaN", b'{"commcc": 1, "graph": {"nodes": [1]}}'),
    *(b'{"commcc": 1, "graph": {"nodes": [[]]}}', b'{"commcc": 1, "graph": {"metadata": {"x": {"use": {"a": 0}}}}}'),
    *(b'{"commcc": 1, "graph": {"values": {"split": "["}}}', b'{"commcc": 1, "graph": {"nodes": {}}}'),
    *(b'{"commcc": 1, "graph": {}, "symbols": {"x y": [0, 1, 2]}}', b'{"commcc": 1, "graph": {}, "groups": 5}'),
]


@pytest.mark.parametrize("change", SIDECARS)
def test_a_sidecar_that_does_not_fit_is_ignored(change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, _ = write(GRAPHS["late and doubled getitems"])
    bad = read(with_sidecar(data, change), tmp_path)
    assert len(bad.notes) == 1
    assert bad.notes[0].text.startswith("extra/commcc.json does not fit the graph and is ignored")
    assert [node.name for node in bad.graph.nodes] == [
        node.name for node in torch.export.load(io.BytesIO(data)).graph.nodes
    ]
    assert not (tmp_path / "m").exists()


def saved_again(data, change, path):
    """What another tool makes of the file, the sidecar carried along as it was."""
    extra = {"commcc.json": ""}
    exported = torch.export.load(io.BytesIO(data), extra_files=extra)
    change({node.name: node for node in exported.graph.nodes}, exported.graph)
    torch.export.save(exported, path, extra_files=extra)
    return read_pt2(path)


def test_saved_again_by_pytorch(tmp_path):
    data, _ = write(GRAPHS["late and doubled getitems"])

    def change_an_argument(nodes, graph):
        nodes["mul"].args = (nodes["x"], 3)

    def add_a_node(nodes, graph):
        with graph.inserting_before(nodes["mul"]):
            node = graph.call_function(torch.ops.aten.neg.default, (nodes["x"],))
            node.meta = dict(nodes["add"].meta)
        nodes["mul"].args = (node, 3)

    found = saved_again(data, change_an_argument, tmp_path / "a.pt2")
    assert not found.notes  # the sidecar still fits
    assert next(node for node in found.graph.nodes if node.name == "mul").args[1] == 3
    found = saved_again(data, add_a_node, tmp_path / "b.pt2")
    assert "did another tool change it?" in found.notes[0].text
    assert next(node for node in found.graph.nodes if node.name == "mul").args[0].name == "neg_default"
