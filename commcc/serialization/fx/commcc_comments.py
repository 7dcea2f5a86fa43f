"""What commcc writes into the comments of a text: a header above the graph, tables and constants below it.

::

    # commcc: {"fx_text": 1}
    # commcc: {"groups": {"0": {"size": 64}}}
    class GraphModule(torch.nn.Module):
        ...
            # {"$at": 3, "seq_nr": 12, "custom": 0}             3 and 0 refer to the tables
            mm: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(x, w)
            ...
        # commcc: meta ["$at", 3, {"original_aten": 0, "partitioner_tag": "is_forward", "stack_trace": 0}]
        # commcc: meta ["stack_trace", 0, "File \\"model.py\\", line 3, in forward"]
        # commcc: constant ["_tensor_constant0", {"dtype": "torch.float32", "shape": [2], ...}]

JSON here is ASCII, so that no string can end a line. Metadata in :data:`INLINE` stands in the comment above its
node; the values of all other keys are kept once, in order of first use. Keys in :data:`WHERE` repeat together, so
that their combinations have a table too. A value that several nodes share is one object after reading; nobody may
edit it. A constant is stored with its bytes if it has at most 64 KiB, else by shape only.
Limits: an unknown version or section is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from commcc.base.errors import InputError, OutputError, located
from commcc.serialization.attributes import constant, element_bytes, flat_tensor
from commcc.serialization.fx.source import COMMCC
from commcc.serialization.fx.values import constants
from commcc.serialization.metadata import INLINE, NO_VAL, decode_entry, decode_json, encode_json, is_lost
from commcc.serialization.sections import group_json, group_of, note_of
from commcc.serialization.shapes import contiguous_stride, format_val, parse_val, requires_grad_of, span
from commcc.serialization.sources import finite_number, refuse_constant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commcc.base.terms import Json
    from commcc.graph.program import Note, ProcessGroup, Program
    from commcc.serialization.shapes import ShapeContext

VERSION = 1
_SECTIONS = frozenset({"fx_text", "groups", "header", "provenance", "notes"})
#: Metadata that says which line of which kind of code a node came from.
WHERE = frozenset({"original_aten", "stack_trace", "partitioner_tag", "autograd_backward", "is_gradient_acc"})
AT = "$at"
MAX_CONSTANT_BYTES = 64 << 10
_META, _CONSTANT = f"{COMMCC} meta ", f"{COMMCC} constant "


_ENCODER = json.JSONEncoder(allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_number)


def dump(data: Any) -> str:
    """One line of ASCII JSON, the same for equal data."""
    try:
        return _ENCODER.encode(data)
    except (ValueError, RecursionError) as error:
        raise OutputError(f"cannot be written as JSON: {error}") from None


@lru_cache(maxsize=1024)
def json_key(key: str) -> str:
    """``key`` as JSON; node after node has the same few."""
    return dump(key)


def _load(text: str) -> Any:
    """JSON from a file; whatever is wrong with it raises :class:`InputError`."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"broken JSON in a commcc comment: {error}") from None


def load_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object from a file; ``what`` it should be is for messages."""
    data = _load(text)
    if not isinstance(data, dict):
        raise InputError(f"{what} is not an object")
    return data


@dataclass
class FileHeader:
    """The sections above the graph."""

    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    provenance: tuple[dict[str, Any], ...] = ()
    notes: tuple[Note, ...] = ()


def read_header(lines: Iterable[tuple[int, str]], where: str) -> FileHeader | None:
    """The sections in the comments above a graph; None if commcc did not write this text."""
    sections: dict[str, Any] = {}
    for number, line in lines:
        if not line.startswith(COMMCC):
            continue
        with located(f"{where}:{number}"):
            parts = _typed(_load(line[len(COMMCC) :]), dict, "a section")
            wrong = [name for name in parts if name not in _SECTIONS or name in sections]
            if wrong:
                raise InputError(f"unknown or repeated section {wrong[0][:40]!r} in a commcc comment")
        sections.update(parts)
    # Without any of our sections it is a text of PyTorch's.
    if not sections:
        return None
    if sections.get("fx_text") != VERSION:
        raise InputError(
            f"format version {str(sections.get('fx_text'))[:20]}, expected {VERSION}",
            where=where,
            hint="it was written by another version of commcc",
        )
    with located(where):
        groups = _typed(sections.get("groups", {}), dict, "groups")
        provenance = _typed(decode_json(sections.get("provenance", [])), list, "provenance")
        return FileHeader(
            groups={name: group_of(name, body) for name, body in groups.items()},
            header=_typed(decode_json(sections.get("header", {})), dict, "header"),
            provenance=tuple(_typed(entry, dict, "provenance") for entry in provenance),
            notes=tuple(note_of(note) for note in _typed(sections.get("notes", []), list, "notes")),
        )


def _typed(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise InputError(f"{what} in a commcc comment is not a {kind.__name__}")
    return value


def header_lines(program: Program, header: Mapping[str, Json], notes: Iterable[Note]) -> list[str]:
    """The comment lines above the graph; sections that would be empty are left out."""
    plain = {"header": encode_json(dict(header)), "provenance": encode_json(list(program.provenance))}
    # What is not JSON cannot be read back.
    for name, encoded in plain.items():
        if is_lost(encoded):
            raise OutputError(f"the {name} holds something that is not JSON")
    sections = {
        "groups": {name: group_json(group) for name, group in sorted(program.groups.items())},
        **plain,
        "notes": [[note.text, note.node] for note in notes],
    }
    lines = [f"{COMMCC} {dump({'fx_text': VERSION})}"]
    return lines + [f"{COMMCC} {dump({name: body})}" for name, body in sections.items() if body]


class TableWriter:
    """Numbers the values of metadata keys in order of first use, equal values once."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, int]] = {}
        self._seen: dict[tuple[str, int], int] = {}
        self._kept: list[Any] = []

    def known(self, key: str, value: Any) -> int | None:
        """The number of this very object, if it was seen before."""
        return self._seen.get((key, id(value)))

    def number(self, key: str, value: Any, encoded: Json) -> int:
        """The number of ``encoded``; ``value`` is remembered, to find it faster next time."""
        number = self.intern(key, dump(encoded))
        self._seen[key, id(value)] = number
        self._kept.append(value)  # an id stays unique only while its object lives
        return number

    def intern(self, key: str, text: str) -> int:
        """The number of a JSON text in the table of ``key``."""
        texts = self._texts.setdefault(key, {})
        return texts.setdefault(text, len(texts))

    def lines(self) -> list[str]:
        """The table as comments, key by key."""
        return [
            f"    {_META}[{dump(key)}, {number}, {text}]"
            for key in sorted(self._texts)
            for text, number in self._texts[key].items()
        ]


def constant_line(path: str, body: Json) -> str:
    """The comment that holds one constant."""
    return f"    {_CONSTANT}{dump([path, body])}"


class TableReader:
    """The tables and constants below a graph; values are decoded on first use and then shared.

    constants: what is said about each constant, by path, with the line number.
    """

    def __init__(self, lines: Iterable[tuple[int, str]], where: str) -> None:
        self.where = where
        self.constants: dict[str, tuple[int, Any]] = {}
        self._raw: dict[tuple[str, int], tuple[int, Any]] = {}
        self._values: dict[tuple[str, int], Any] = {}
        for number, line in lines:
            if not self._line(number, line):
                raise InputError("broken commcc comment", where=f"{where}:{number}", hint="the text is damaged or cut")

    def _line(self, number: int, line: str) -> bool:
        # There are two kinds of lines below a graph.
        prefix = _META if line.startswith(_META) else _CONSTANT
        if not line.startswith(prefix):
            return False
        try:
            entry = _load(line[len(prefix) :])
        except InputError:
            return False
        if not isinstance(entry, list) or len(entry) != (3 if prefix is _META else 2) or type(entry[0]) is not str:
            return False
        if prefix is _CONSTANT:
            self.constants[entry[0]] = (number, entry[1])
            return True
        key = (entry[0], entry[1])
        # The same entry twice would make the result depend on the order.
        if type(entry[1]) is not int or key in self._raw:
            return False
        self._raw[key] = (number, entry[2])
        return True

    def meta(self, data: dict[str, Any], ctx: ShapeContext, val: Any = NO_VAL) -> dict[str, Any]:
        """Metadata from the JSON above a node; ``val`` is what the annotation said."""
        out: dict[str, Any] = {}
        for key, entry in data.items():
            if key in INLINE:
                out[key] = decode_entry(key, entry, ctx, val)
                continue
            known = self._values.get((key, entry)) if type(entry) is int else None
            held = self.value(key, entry, ctx) if known is None else known
            if key == AT:
                out.update(held)
            else:
                out[key] = held
        return out

    def value(self, key: str, index: Any, ctx: ShapeContext) -> Any:
        """Entry ``index`` of the table for ``key``, the same object each time."""
        at = (key, index)
        if type(index) is not int or at not in self._raw:
            raise InputError(f"the table of {key[:40]!r} has no entry {str(index)[:20]}", hint="the text is cut")
        # Decoded once, so that nodes share the value.
        if at not in self._values:
            number, raw = self._raw[at]
            with located(f"{self.where}:{number}"):
                if key != AT:
                    value: Any = decode_entry(key, raw, ctx)
                elif isinstance(raw, dict) and raw.keys() <= WHERE:
                    value = self.meta(raw, ctx)
                else:
                    raise InputError("broken table entry")
                self._values[at] = value
        return self._values[at]


def encode_constant(value: torch.Tensor, size_text: Callable[[object], str]) -> dict[str, Json]:
    """A constant: its bytes if it is real and small enough, else its shape and device only.

    Strides are kept where they only permute the elements; anything else is stored contiguously.
    """
    if not has_value(value):
        return {"val": format_val(value, size_text)}
    with _disable_current_modes():  # a backend may ask while PyTorch traces
        data = element_bytes(value.cpu()).numpy().tobytes() if value.numel() else b""
    shape, stride = list(value.shape), list(value.stride())
    body: dict[str, Any] = {
        "dtype": str(value.dtype),
        "shape": shape,
        "stride": stride if span(shape, stride) == value.numel() else contiguous_stride(shape),
        "data": base64.b64encode(data).decode(),
    }
    if isinstance(value, nn.Parameter):
        body["parameter"] = True
    if requires_grad_of(value):
        body["requires_grad"] = True
    return body


def has_value(value: torch.Tensor) -> bool:
    """Whether the bytes of a constant go into the text."""
    if isinstance(value, FakeTensor) or value.device.type == "meta":
        return False
    return value.numel() * value.element_size() <= MAX_CONSTANT_BYTES


def decode_constant(body: Any, ctx: ShapeContext) -> torch.Tensor:
    """What :func:`encode_constant` encoded, on the CPU; :class:`InputError` for anything else."""
    if isinstance(body, dict) and isinstance(body.get("val"), str):
        val = parse_val(body["val"], ctx)
        if isinstance(val, torch.Tensor):
            return val
    try:
        value = _with_data(body)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, binascii.Error):
        raise InputError("a constant is damaged", hint="write the file again") from None
    return constant(value, parameter=body.get("parameter") is True, requires_grad=body.get("requires_grad") is True)


def _with_data(body: Any) -> torch.Tensor:
    shape, stride, dtype = body["shape"], body["stride"], constants()[body["dtype"]]
    data = base64.b64decode(body["data"], validate=True)
    if len(data) % dtype.itemsize or len(data) > MAX_CONSTANT_BYTES:
        raise ValueError("wrong length")
    numel = len(data) // dtype.itemsize
    if len(shape) != len(stride) or any(type(number) is not int or number < 0 for number in (*shape, *stride)):
        raise ValueError("wrong sizes")
    # Every element has one place, and no place is left over.
    if math.prod(shape) != numel or (numel and span(shape, stride) != numel):
        raise ValueError("wrong sizes")
    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    return tensor.copy_(flat_tensor(data, dtype).reshape(shape))
