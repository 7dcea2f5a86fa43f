"""Profiles that are damaged, hostile or of no use: an InputError with file and line, never a traceback."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import InputError
from commcc.timing.cost.profiles import json_stream, load_profile
from commcc.timing.cost.profiles.loading import op_times
from commcc.timing.cost.profiles.trace import read_trace
from tests.effort import examples
from tests.trace_files import F32, gpu_trace

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def event(fields: str) -> str:
    return '[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, ' + fields + "}]"


BROKEN = {
    "": "run.json:1: not JSON: expected an object",
    "[1]": "run.json:1: is no trace: an event is not an object",
    '{"a": 1}': "run.json:1: is no trace: it has no 'traceEvents'",
    '{"traceEvents": [\n{"ph": "X"},\n{"ph": tru}]}': "run.json:3: not JSON: Expecting value (character 8 of the line)",
    '{"traceEvents": [\n{"ph": "X"},\n{"ph"': "run.json:3: the file ends early",
    '{"traceEvents": [{"ph": "X"}': "run.json:1: the file ends early",
    '{"traceEvents": [{"ph": "X"} {}]}': "run.json:1: not JSON: expected ',' or ']'",
    '{"traceEvents": {}}': "run.json:1: not JSON: expected a list",
    '{"traceEvents": []} x': "run.json:1: not JSON: more text after the end",
    "{1: 2}": "run.json:1: not JSON: a key must be a text",
    '{"a": NaN}': "run.json:1: not JSON: NaN is not a number",
    '{"a": ' + "[" * 200_000: "run.json:1: not JSON that can be read: nested too deeply",
    '{"a": ' + "9" * 5000 + "}": "run.json:1: not JSON: Exceeds the limit",
    '{"traceEvents": []}': "run.json: the trace holds no op with tensor inputs and no collective of known size",
    event('"ts": 1'): "run.json:1: is no trace: event 'aten::mm' has no 'ts' and 'dur' in numbers",
    event('"ts": 1, "dur": -1'): "run.json:1: event 'aten::mm' has an impossible time",
    event('"ts": 1e400, "dur": 1'): "run.json:1: event 'aten::mm' has an impossible time",
    event('"ts": 1, "dur": 1'): "run.json: the trace has no input shapes; record with torch.profiler.profile(re",
    '[{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1}]': "run.json:1: is no trace: event '' has no 'pid' and 'tid'",
}


@pytest.mark.parametrize(("text", "message"), BROKEN.items(), ids=range(len(BROKEN)))
def test_broken_traces(tmp_path: Path, text: str, message: str):
    with pytest.raises(InputError) as error:
        load_profile([write(tmp_path / "run.json", text)])
    assert str(error.value).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize("piece", [1, 3, 50])
def test_lines_are_counted_over_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int):
    monkeypatch.setattr(json_stream, "_PIECE", piece)
    text = '{"a": 12,\n"traceEvents": [\n{"ph":\n"X"},\n\n{"ph": tru}]}'
    with pytest.raises(InputError, match=r"run.json:6: not JSON: .* \(character 8 of the line\)"):
        load_profile([write(tmp_path / "run.json", text)])
    with pytest.raises(InputError, match=r"run.json:1: not JSON: .* \(character 38 of the line\)"):
        load_profile([write(tmp_path / "run.json", '{"a": 12, "traceEvents": [{}, {"ph": tru}]}')])


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packed = gzip.compress(b'{"traceEvents": []}')
    cases = {
        write(tmp_path / "a.json", b'{"a": "\xff"}'): "is not UTF-8 text",
        write(tmp_path / "b.json.gz", packed[:-12]): "cannot be read: Compressed file ended",
        write(tmp_path / "c.json.gz", packed[:12] + b"\xff\xff" + packed[14:]): "cannot be read: Error",
        write(tmp_path / "d.txt", "x"): "is not a file that a profile can be read from",
        str(tmp_path / "none.json"): "no such file",
        str(tmp_path): "the folder holds no *.pt.trace.json",
    }
    for path, message in cases.items():
        with pytest.raises(InputError) as error:
            load_profile([path])
        assert message in str(error.value), path
    monkeypatch.setattr(json_stream, "MAX_CHARACTERS", 1 << 20)
    bomb = write(tmp_path / "e.json.gz", gzip.compress(b" " * (2 << 20)))
    for path in (bomb, write(tmp_path / "e.json", " " * (2 << 20))):
        with pytest.raises(InputError, match=r"is larger than .*; record fewer steps"):
            load_profile([path])


def test_one_value_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(json_stream, "MAX_VALUE", 1 << 10)
    monkeypatch.setattr(json_stream, "_PIECE", 100)
    with pytest.raises(InputError, match="not JSON: Unterminated string"):
        load_profile([write(tmp_path / "run.json", '{"a": "' + "x" * 5000 + '"}')])


@pytest.mark.parametrize("piece", [1, 2, 7, 64])
def test_any_cut_between_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int):
    """Numbers, keys and spaces that two pieces of text share."""
    path = gpu_trace().write(tmp_path / "gpu.json")
    whole = load_profile([str(path)]).facts()
    monkeypatch.setattr(json_stream, "_PIECE", piece)
    assert load_profile([str(path)]).facts() == whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGS = ("External id", "correlation", "Input Dims", "Input type", "Concrete Inputs", "Collective name", "In msg nelems")


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_garbage_gives_a_profile_or_an_input_error(tmp_path_factory, data: st.DataObject):
    """One real trace with anything at all put in some places."""
    trace = gpu_trace(rank=0)
    trace.collective(100, 5, "allreduce", (8, 8))
    trace.op("gloo:all_reduce", 10, 20, (F32, [8]), cat="user_annotation")
    for _ in range(data.draw(st.integers(1, 4))):
        event = data.draw(st.sampled_from(trace.events))
        key = data.draw(st.sampled_from(KEYS + ARGS))
        args = event.get("args")
        place = args if key in ARGS and isinstance(args, dict) else event
        place[key] = data.draw(JSON)
        trace.head["distributedInfo"][data.draw(st.sampled_from(["rank", "pg_config", "world_size"]))] = data.draw(JSON)
    path = tmp_path_factory.mktemp("garbage") / "run.json"
    path.write_text(json.dumps({**trace.head, "traceEvents": trace.events}))
    try:
        source = load_profile([str(path)])
    except InputError as error:
        assert str(error).startswith(str(path))
    else:
        json.dumps(source.facts())
        assert all(ns >= 0 for _, _, ns in op_times(read_trace(path)))


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=40), st.integers(0, 3000), st.booleans())
def test_damaged_bytes(tmp_path_factory, junk: bytes, at: int, packed: bool):
    path = tmp_path_factory.mktemp("damaged") / ("run.json.gz" if packed else "run.json")
    content = bytearray(gpu_trace().write(path).read_bytes())
    content[at : at + len(junk)] = junk
    path.write_bytes(bytes(content))
    try:
        load_profile([str(path)])
    except InputError as error:
        assert str(path) in str(error)
