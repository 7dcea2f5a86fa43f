"""``.pt2`` archives that were written to do harm: to memory, to files elsewhere, to what is believed.

content = archives()["symlink weights"]()
"""

from __future__ import annotations

import copy
import io
import json
import struct
import zipfile
from typing import TYPE_CHECKING, Any

from tests.pt2_files import CONSTANTS, MODEL, SAMPLES, WEIGHTS, document, saved

if TYPE_CHECKING:
    from collections.abc import Callable

_LINK = 0o120777 << 16


def packed(
    changes: dict[str, Any] | None = None,
    *,
    compression: int = zipfile.ZIP_STORED,
    more: tuple[tuple[str, bytes], ...] = (),
    links: tuple[str, ...] = (),
) -> bytes:
    """The saved model with some entries changed (a document as a dict), others added under their full names."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as target:
        for name, data in {**saved(), **(changes or {})}.items():
            info = zipfile.ZipInfo(f"archive/{name}")
            info.compress_type = compression
            info.external_attr = _LINK if name in links else 0
            if data is not None:
                target.writestr(info, data if isinstance(data, bytes) else json.dumps(data))
        for name, data in more:
            target.writestr(zipfile.ZipInfo(name), data)
    return stream.getvalue()


def edited(change: Callable[[dict[str, Any]], None], entry: str = MODEL) -> bytes:
    """The saved model with its graph file, or another document in it, edited."""
    data = copy.deepcopy(document()) if entry == MODEL else json.loads(saved()[entry])
    change(data)
    return packed({entry: data})


def _central(content: bytes, entry: str, offset: int, *words: int) -> bytes:
    """An archive with 32-bit words of one entry's record in the central directory overwritten."""
    data = bytearray(content)
    at = data.rfind(f"archive/{entry}".encode()) - 46
    struct.pack_into(f"<{len(words)}I", data, at + offset, *words)
    return bytes(data)


def _nodes(data: dict[str, Any]) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = data["graph_module"]["graph"]["nodes"]
    return nodes


def _tensors(data: dict[str, Any]) -> list[dict[str, Any]]:
    return list(data["graph_module"]["graph"]["tensor_values"].values())


def _first(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(config["config"].values()))
    return found


def _weights(change: Callable[[dict[str, Any]], None]) -> Callable[[], bytes]:
    return lambda: edited(lambda config: change(_first(config)), WEIGHTS)


def _model(change: Callable[[dict[str, Any]], None]) -> Callable[[], bytes]:
    return lambda: edited(change)


def _set(target: dict[str, Any], **values: Any) -> None:
    target.update(values)


def _resize(size: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for tensor in _tensors(data):
            tensor["sizes"] = [size for _ in tensor["sizes"]]

    return change


def _deep(depth: int) -> bytes:
    return b'{"graph_module":' + b"[" * depth + b"]" * depth + b"}"


def _entry(weights: bool = True) -> str:
    """The entry of the first weight or constant."""
    config = json.loads(saved()[WEIGHTS if weights else CONSTANTS])
    return f"data/{'weights' if weights else 'constants'}/{_first(config)['path_name']}"


def _first_part(whole: bytes, part: float) -> bytes:
    return whole[: int(len(whole) * part)]


def archives() -> dict[str, Callable[[], bytes]]:
    """By name, what makes each archive."""
    deflated = zipfile.ZIP_DEFLATED
    found: dict[str, Callable[[], bytes]] = {
        "bomb in the graph": lambda: packed({MODEL: b" " * (64 << 20)}, compression=deflated),
        "bomb in a weight": lambda: packed({_entry(): b"\0" * (64 << 20)}, compression=deflated),
        "bomb in the sidecar": lambda: packed({"extra/commcc.json": b" " * (64 << 20)}, compression=deflated),
        "bomb of many small entries": lambda: packed(
            {f"extra/{i}": b"\0" * (1 << 20) for i in range(100)}, compression=deflated
        ),
        "many entries": lambda: packed({f"extra/{i}": b"" for i in range(5000)}),
        "bzip2": lambda: packed(compression=zipfile.ZIP_BZIP2),
        "lzma": lambda: packed(compression=zipfile.ZIP_LZMA),
        "declared size of a weight": lambda: _central(packed(), _entry(), 20, 0xFFFFFFF0, 0xFFFFFFF0),
        "declared size of the graph": lambda: _central(packed(), MODEL, 24, 0x7FFFFFF0),
        "offset behind the end": lambda: _central(packed(), MODEL, 42, 0xFFFFFF00),
        "two entries at one place": lambda: _central(packed(), _entry(weights=False), 42, 0),
        "climbing name": lambda: packed(more=(("archive/../../kept", b"changed"),)),
        "absolute name": lambda: packed(more=(("/tmp/commcc_hostile", b"x"),)),
        "climbing payload": lambda: packed(more=(("archive/data/weights/../../../kept", b"changed"),)),
        "terminal commands in a name": lambda: packed({"extra/\x9b31mred\u202e::error::x": b"x"}),
        "same entry twice": lambda: packed(more=((f"archive/{MODEL}", b"{}"),)),
        "same entry in capitals": lambda: packed(more=((f"archive/{MODEL.upper()}", b"{}"),)),
        "two models": lambda: packed({"models/other.json": saved()[MODEL]}),
        "two roots": lambda: packed(more=(("other/models/model.json", b"{}"),)),
        "symlink graph": lambda: packed({MODEL: b"/etc/passwd"}, links=(MODEL,)),
        "symlink weight": lambda: packed({_entry(): b"/etc/passwd"}, links=(_entry(),)),
        "symlink sidecar": lambda: packed({"extra/commcc.json": b"../kept"}, links=("extra/commcc.json",)),
        "empty": lambda: b"PK\x05\x06" + b"\0" * 18,
        "archive behind a program": lambda: b"#!/bin/sh\ntouch pwned\n" + packed(),
        "nested too deep": lambda: packed({MODEL: _deep(200_000)}),
        "number of a million digits": lambda: packed({MODEL: b'{"a":' + b"9" * 1_000_000 + b"}"}),
        "the same key a million times": lambda: packed({MODEL: b"{" + b'"a":1,' * 1_000_000 + b'"a":1}'}),
        "not json": lambda: packed({MODEL: b"\xff\xfe" * 1000}),
        "NaN": lambda: packed({MODEL: saved()[MODEL].replace(b'"minor":', b'"minor":NaN,"x":', 1)}),
        "weight of another dtype": _weights(lambda first: first["tensor_meta"].update(dtype=8)),
        "weight of an unknown dtype": _weights(lambda first: first["tensor_meta"].update(dtype=99)),
        "huge weight": _weights(lambda first: first["tensor_meta"].update(sizes=[{"as_int": 1 << 40}] * 2)),
        "weight of no size": _weights(lambda first: first["tensor_meta"].update(sizes=[{"as_int": -1}])),
        "strides into the void": _weights(lambda first: first["tensor_meta"].update(strides=[{"as_int": 1 << 60}] * 2)),
        "negative strides": _weights(lambda first: first["tensor_meta"].update(strides=[{"as_int": -1}] * 2)),
        "offset into the void": _weights(lambda first: first["tensor_meta"].update(storage_offset={"as_int": 1 << 62})),
        "weight from elsewhere": _weights(lambda first: _set(first, path_name="../../../../etc/passwd")),
        "weight of the graph": _weights(lambda first: _set(first, path_name="../../models/model.json")),
        "pickled weight": _weights(lambda first: _set(first, use_pickle=True)),
        "weight too short": lambda: packed({_entry(): b"\0"}),
        "weight too long": lambda: packed({_entry(): b"\0" * (8 << 20)}),
        "constant too short": lambda: packed({_entry(weights=False): b""}),
        "example inputs that are no tensors": lambda: packed({SAMPLES: b"cos\nsystem\n(S'touch pwned'\ntR."}),
        "huge sizes": _model(_resize({"as_int": (1 << 62)})),
        "sizes that overflow": _model(_resize({"as_int": 1 << 200})),
        "sizes that are text": _model(_resize({"as_expr": {"expr_str": "9**9**9**9", "hint": None}})),
        "sizes that call": _model(
            _resize({"as_expr": {"expr_str": "__import__('os').system('touch pwned')", "hint": None}})
        ),
        "sizes of many symbols": _model(
            _resize({"as_expr": {"expr_str": "+".join(f"s{i}*s{i + 1}" for i in range(4000)), "hint": None}})
        ),
        "a million dimensions": _model(
            lambda data: [t.update(sizes=[{"as_int": 1}] * 10**6) for t in _tensors(data)[:1]]
        ),
        "guards that call": _model(
            lambda data: data.update(guards_code=["__import__('os').system('touch pwned')", "L" * 100_000])
        ),
        "an op that reads files": _model(
            lambda data: _nodes(data)[0].update(target="torch.ops.aten.from_file.default")
        ),
        "an op that is a function": _model(lambda data: _nodes(data)[0].update(target="os.system")),
        "an op with a line end": _model(
            lambda data: _nodes(data)[0].update(target="torch.ops.aten.x\n::error::y.default")
        ),
        "an op of any module": _model(lambda data: _nodes(data)[0].update(target="_operator.attrgetter")),
        "a stack trace with commands": _model(
            lambda data: _nodes(data)[0].setdefault("metadata", {}).update(stack_trace="\x1b[31m\n::error::x")
        ),
        "a tree of any class": _model(
            lambda data: data["graph_module"].update(
                module_call_graph=json.loads(
                    json.dumps(data["graph_module"]["module_call_graph"]).replace("builtins.tuple", "os.system")
                )
            )
        ),
        "itself as an argument": _model(
            lambda data: (
                _nodes(data)[0]["inputs"][0].update(
                    arg={"as_tensor": {"name": next(iter(_nodes(data)[0]["outputs"][0].values()))["name"]}}
                )
                if "as_tensor" in _nodes(data)[0]["outputs"][0]
                else None
            )
        ),
        "a node ten thousand times": _model(lambda data: _nodes(data).extend([_nodes(data)[-1]] * 10_000)),
        "signature without end": _model(
            lambda data: data["graph_module"]["signature"].update(
                input_specs=data["graph_module"]["signature"]["input_specs"] * 5000
            )
        ),
    }
    for part in (0.1, 0.5, 0.9, 0.99, 0.999):
        found[f"the first {part:.1%}"] = lambda part=part: _first_part(packed(), part)
    return found
