"""Pickles inside ``.pt2`` files: refused without being opened, or carried over without being opened."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib

import pytest
import torch

from commcc.serialization.pt2.pickles import check_tensor_file
from commcc.serialization.pt2.program import read_pt2, write_pt2
from tests.pt2_files import CONSTANTS, SAMPLES, WEIGHTS, Payload, changed, refused, saved, saved_tensors


def test_the_payload_is_real(tmp_path):
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(Payload(marker))).close()
    assert marker.exists()


def test_a_plain_export_is_read(tmp_path):
    assert len(read_pt2(changed(tmp_path, {})).graph.nodes) == 27


def test_pickle_in_example_inputs(tmp_path):
    marker = tmp_path / "marker"
    refused(
        changed(tmp_path, {SAMPLES: saved_tensors(((Payload(marker),), {}))}),
        SAMPLES,
        "io.open",
        "--trust",
        marker=marker,
    )


def test_bare_pickle_in_example_inputs(tmp_path):
    marker = tmp_path / "marker"
    refused(changed(tmp_path, {SAMPLES: pickle.dumps(Payload(marker))}), SAMPLES, marker=marker)


@pytest.mark.parametrize("prefix", ["opaque_obj_", "custom_obj_"])
def test_pickled_objects_among_the_constants(tmp_path, prefix):
    marker = tmp_path / "marker"
    path = changed(tmp_path, {f"data/constants/{prefix}0": pickle.dumps(Payload(marker))})
    refused(path, f"{prefix}0", "pickled object", marker=marker)


@pytest.mark.parametrize(("config", "name"), [(WEIGHTS, "linear.bias"), (CONSTANTS, "constant")])
def test_tensors_stored_by_pickle(tmp_path, config, name):
    data = json.loads(saved()[config])
    data["config"][name]["use_pickle"] = True
    refused(changed(tmp_path, {config: json.dumps(data)}), config, name)


def test_legacy_weights_are_checked_like_example_inputs(tmp_path):
    marker = tmp_path / "marker"
    path = changed(
        tmp_path, {WEIGHTS: None, "data/weights/model.pt": saved_tensors({"linear.weight": Payload(marker)})}
    )
    refused(path, "data/weights/model.pt", marker=marker)
    assert read_pt2(
        changed(tmp_path, {WEIGHTS: None, "data/weights/model.pt": saved_tensors({"w": torch.ones(2)})})
    ).graph


def test_trust_carries_pickles_unopened(tmp_path):
    marker = tmp_path / "marker"
    data = saved_tensors(((Payload(marker),), {}))
    program = read_pt2(changed(tmp_path, {SAMPLES: data}), trust=True)
    write_pt2(program, tmp_path / "out.pt2")
    with zipfile.ZipFile(tmp_path / "out.pt2") as written:
        assert written.read(f"archive/{SAMPLES}") == data
    assert not marker.exists()


def test_compiled_code_is_left_out(tmp_path):
    program = read_pt2(
        changed(tmp_path, {"data/aotinductor/model/a.so": b"\x7fELF", "data/aotinductor/model/b.cpp": b""})
    )
    assert any("data/aotinductor (2 entries)" in note.text for note in program.notes)
    write_pt2(program, tmp_path / "out.pt2")
    with zipfile.ZipFile(tmp_path / "out.pt2") as written:
        assert not [name for name in written.namelist() if "aotinductor" in name]


def check(data):
    check_tensor_file(io.BytesIO(data), len(data))


def test_tensor_files_that_pass():
    everything = (torch.ones(2), 3, "a", None, 1.5, True, [1, 10**20], 1 + 2j, torch.Size([2]), torch.device("cpu"))
    check(
        saved_tensors((everything, {"k": torch.ones(2, dtype=torch.bfloat16), "p": torch.nn.Parameter(torch.ones(1))}))
    )
    check(saved_tensors(torch.nn.Linear(2, 2).state_dict()))
    check(b"")


def test_tensor_files_that_do_not_pass():
    class Dictionary(dict):
        pass

    for value in (os.system, {"a": torch.load}, torch.nn.Linear(1, 1), {("a",): 1}, {"'": 1}, {'"': 1}, slice(1)):
        with pytest.raises(ValueError, match="it "):
            check(saved_tensors((value,)))
    with pytest.raises(ValueError, match="it "):
        check(pickle.dumps((torch.ones(1),)))


def test_tensors_with_marks_of_export():
    marked = torch.randn(2, 4)
    marked._specialize_on = {0: []}
    marked._dynamo_dynamic_indices = {0, 1}
    check(saved_tensors((marked,)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requires_grad", True),
        ("__class__", 1),
        ("_backward_hooks", {0: 1}),
        ("_dynamo_method", torch.Size([1])),
        ("_dynamo_function", {0: [torch.Size]}),
    ],
)
def test_tensors_with_other_attributes_do_not_pass(name, value):
    with pytest.raises(ValueError, match=f"sets the attribute '{name}'"):
        check(saved_tensors((_with_state(state={name: value}),)))


def test_tensors_with_marks_are_made_as_tensors_are():
    check(saved_tensors((_with_state(),)))
    with pytest.raises(ValueError, match="unusual way"):
        check(saved_tensors((_with_state(make=torch.Size, args=([1],)),)))
    with pytest.raises(ValueError, match="a class of its own"):
        check(saved_tensors((_with_state(kind=torch.Size),)))
    with pytest.raises(ValueError, match="does not make a tensor"):
        check(saved_tensors((_with_state(make=torch.Tensor),)))


def _with_state(make=None, kind=torch.Tensor, args=None, state=None):
    """Pickled as a tensor that has attributes."""
    usual = torch.ones(2).__reduce_ex__(2)
    call = (make or usual[0], kind, usual[1] if args is None else args, state or {})
    return _Reduced((torch._tensor._rebuild_from_type_v2, call))


class _Reduced:
    """Pickled as the call that it is given."""

    def __init__(self, call):
        self.call = call

    def __reduce_ex__(self, _protocol):
        return self.call


def test_fake_tensors_in_example_inputs_must_be_plain():
    from torch._export.serde.serialize import serialize_torch_artifact
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 3)
    data = serialize_torch_artifact(((fake,), {}))
    check(data)
    hidden = data.replace(b'"as_int": 2', b'"as_exp": 2')
    assert hidden != data
    hidden = _with_new_checksums(hidden)
    with pytest.raises(ValueError, match="evaluates as code"):
        check(hidden)


def _with_new_checksums(data):
    """The same archive with the checksums of its changed contents."""
    out = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            start = info.header_offset + 30 + sum(struct.unpack("<HH", data[info.header_offset + 26 :][:4]))
            crc = struct.pack("<I", zlib.crc32(data[start : start + info.file_size]))
            old = struct.pack("<I", info.CRC)
            while old != crc and (position := out.find(old)) >= 0:
                out[position : position + 4] = crc
    return bytes(out)


@pytest.mark.parametrize("where", ["front", "middle", "end", "comment"])
def test_two_archives_in_one_do_not_pass(where):
    good = saved_tensors((torch.ones(2),))
    bad = saved_tensors((os.system,))
    joined = {
        "front": bad + good,
        "middle": good[:-98] + b"x" * 40 + good[-98:],
        "end": good + bad[-98:],
        "comment": good[:-2] + struct.pack("<H", len(bad)) + bad,
    }[where]
    with pytest.raises(ValueError, match=r"."):
        check(joined)


def test_pickle_instructions_that_call_other_things():
    template = saved_tensors((torch.ones(2),))
    for name in (b"torch.hub\nload_state_d", b"torch.serialization\nlo", b"builtins\nevaluateeeeeee"):
        changed = template.replace(b"torch._utils\n_rebuild_tensor_v2"[: len(name)], name)
        assert changed != template
        with pytest.raises(ValueError, match="it "):
            check(_with_new_checksums(changed))
