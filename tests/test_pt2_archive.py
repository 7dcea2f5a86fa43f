"""Damaged and hostile ``.pt2`` archives each get one line."""

from __future__ import annotations

import json
import os
import struct
import zipfile

import pytest

from commcc.serialization.pt2.program import read_pt2, write_pt2
from tests.pt2_files import MODEL, WEIGHTS, changed, document, refused

CLIMBING = ["../x", "archive/../../x", "/etc/x", "everything\\x", "C:/x", "archive//x", "a/\x01"]


@pytest.mark.parametrize("name", CLIMBING)
def test_names_that_leave_the_archive(tmp_path, name):
    path = changed(tmp_path, {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"x")
    if name == "everything\\x":  # zipfile itself turns backslashes into slashes on some systems only
        path.write_bytes(path.read_bytes().replace(b"archive/x", b"everything\\x"))
    refused(path)


def test_the_same_entry_twice(tmp_path):
    path = changed(tmp_path, {})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning):
        archive.writestr(f"archive/{MODEL}", b"{}")
    refused(path, "the same entry twice")
    refused(changed(tmp_path, {"models/MODEL.json": b"{}"}), "the same entry twice")


def test_bombs(tmp_path):
    refused(
        changed(tmp_path, {"data/weights/weight_9": b"\0" * (64 << 20)}, compression=zipfile.ZIP_DEFLATED), "zip bomb"
    )


def test_overlapping_entries(tmp_path):
    path = changed(tmp_path, {"extra/a": os.urandom(5000), "extra/b": b"x" * 10})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        big, small = archive.getinfo("archive/extra/a"), archive.getinfo("archive/extra/b")
    entry = data.rfind(b"archive/extra/b") - 46
    struct.pack_into("<III", data, entry + 16, big.CRC, 5_000_000, 5_000_000)
    assert small.header_offset
    path.write_bytes(bytes(data))
    refused(path)


def test_wrong_size_and_checksum(tmp_path):
    path = changed(tmp_path, {})
    data = path.read_bytes().replace(b'"schema_version"', b'"schemA_version"')
    path.write_bytes(data)
    refused(path, MODEL, "damaged")


@pytest.mark.parametrize("part", [0, 1, 10, 100, 1000, 10_000, -1, -10, -22, -23, -100])
def test_truncated(tmp_path, part):
    path = changed(tmp_path, {})
    path.write_bytes(path.read_bytes()[:part])
    refused(path)


def test_files_that_are_no_archives(tmp_path):
    for name, data in (("a.pt2", b""), ("b.pt2", b"PK\x05\x06" + b"\0" * 18), ("c.pt2", b"hello" * 100)):
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name)
    (tmp_path / "d.pt2").mkdir()
    refused(tmp_path / "d.pt2")
    refused(tmp_path / "missing.pt2", "no such file")


def test_encrypted_entries(tmp_path):
    path = changed(tmp_path, {})
    data = bytearray(path.read_bytes())
    position = data.find(b"PK\x01\x02")
    data[position + 8] |= 1
    path.write_bytes(bytes(data))
    refused(path, "encrypted")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({MODEL: None}, "no models/"),
        ({"models/other.json": b"{}"}, "2 models"),
        ({"archive_format": b"zip"}, "archive_format"),
        ({"archive_format": None}, "archive_format"),
        ({"archive_version": b"1"}, "version"),
        ({MODEL: b""}, "not valid JSON"),
        ({MODEL: b"\xff\xfe"}, "UTF-8"),
        ({MODEL: b"[" * 1_000_000}, "nested too deeply"),
        ({MODEL: b'{"a":' * 100_000}, "nested too deeply"),
        ({MODEL: b"[NaN]"}, "NaN"),
        ({MODEL: b"[" + b"1" * 10_000 + b"]"}, "10000 digits"),
        ({MODEL: b"[1e999]"}, "1e999 is not a JSON number"),
        ({MODEL: b"7"}, "graph_module"),
        ({MODEL: b"null"}, "graph_module"),
        ({MODEL: b'{"graph_module": {}}'}, "version"),
        ({MODEL: b'{"graph_module": {}, "schema_version": {"major": 9, "minor": 1}}'}, "schema version 9"),
        ({WEIGHTS: b"[]"}, "config"),
        ({WEIGHTS: b'{"config": {"a": {"path_name": "../../x", "use_pickle": false}}}'}, "names no entry"),
        (
            {WEIGHTS: b'{"config": {"a": {"path_name": "weight_0", "use_pickle": false, "tensor_meta": [1]}}}'},
            "'a' has a description that is no table",
        ),
    ],
)
def test_broken_entries(tmp_path, entries, words):
    refused(changed(tmp_path, entries), words)


def test_broken_graphs(tmp_path):
    data = document()
    graph = data["graph_module"]["graph"]

    def with_graph(**changes):
        module = {**data["graph_module"], "graph": {**graph, **changes}}
        return changed(tmp_path, {MODEL: json.dumps({**data, "graph_module": module})})

    refused(with_graph(nodes=[*graph["nodes"], graph["nodes"][1]]), "two nodes are called")
    refused(with_graph(nodes=graph["nodes"][::-1]), "used before it is defined", "node 0")
    refused(with_graph(nodes=graph["nodes"][1:]), "used before it is defined")
    refused(with_graph(outputs=[{"as_tensor": {"name": "nobody"}}]), "nobody")
    refused(with_graph(outputs=[{"as_operator": "x"}]), "unknown kind")
    refused(with_graph(inputs=[{"as_graph": 1}]), "unknown kind")
    refused(with_graph(tensor_values={}), "nothing says")
    refused(with_graph(nodes=7), "malformed")
    refused(with_graph(nodes=[{**graph["nodes"][1], "inputs": []}, *graph["nodes"][2:]]), "")
    sizes = {**graph["tensor_values"]["x"], "sizes": [{"as_int": -1}, {"as_int": 1 << 62}]}
    refused(with_graph(tensor_values={**graph["tensor_values"], "x": sizes}), "shape")
    refused(with_graph(tensor_values={**graph["tensor_values"], "x": {**sizes, "sizes": [{"as_int": 1}] * 1000}}), "")


def test_a_program_that_does_not_say_how_it_is_called(tmp_path):
    data = document()
    data["graph_module"]["module_call_graph"] = [{"fqn": "", "signature": None}]
    program = read_pt2(changed(tmp_path, {MODEL: json.dumps(data)}))
    write_pt2(program, tmp_path / "again.pt2")
    assert [node.name for node in read_pt2(tmp_path / "again.pt2").graph.nodes] == [n.name for n in program.graph.nodes]


def test_the_input_is_left_alone_when_refused(tmp_path):
    before = sorted(tmp_path.iterdir())
    path = changed(tmp_path, {MODEL: b"{"})
    refused(path)
    assert sorted(tmp_path.iterdir()) == sorted([*before, path])


def test_data_start_on_64_byte_boundaries(tmp_path):
    write_pt2(read_pt2(changed(tmp_path, {})), tmp_path / "out.pt2")
    data = (tmp_path / "out.pt2").read_bytes()
    with zipfile.ZipFile(tmp_path / "out.pt2") as archive:
        assert not archive.testzip()
        for info in archive.infolist():
            name, extra = struct.unpack("<HH", data[info.header_offset + 26 : info.header_offset + 30])
            assert (info.header_offset + 30 + name + extra) % 64 == 0
            assert (info.date_time, info.compress_type) == ((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED)
