"""What the canonical text says below the graph: tables of metadata that nodes share, and constants.

::

            # {"$at": 3, "seq_nr": 12, "custom": 0}             3 and 0 refer to the tables
            mm: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(x, w)
            ...
        # commcc: meta ["$at", 3, {"original_aten": 0, "partitioner_tag": "is_forward", "stack_trace": 0}]
        # commcc: meta ["stack_trace", 0, "File \\"model.py\\", line 3, in forward"]
        # commcc: constant ["_tensor_constant0", {"dtype": "torch.float32", "shape": [2], ...}]

Keys in :data:`INLINE` stand in the comment above their node; the values of all others are kept once, in
order of first use. Keys in :data:`WHERE` repeat together, so that their combinations have a table too.
A value that several nodes share is one object after reading; nobody may edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.serialization.fx.header import dump, load
from commcc.serialization.fx.source import COMMCC
from commcc.serialization.metadata import NO_VAL, decode_entry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.base.terms import Json
    from commcc.serialization.shapes import ShapeContext

#: Metadata that is short, or different on every node.
INLINE = frozenset(
    {"seq_nr", "recompute", "partitioner_tag", "autograd_backward", "is_gradient_acc", "ac_graph_id", "commcc"}
    | {"val", "desc"}
)
#: Metadata that says which line of which kind of code a node came from.
WHERE = frozenset({"original_aten", "stack_trace", "partitioner_tag", "autograd_backward", "is_gradient_acc"})
AT = "$at"
_META, _CONSTANT = f"{COMMCC} meta ", f"{COMMCC} constant "


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
        prefix = _META if line.startswith(_META) else _CONSTANT
        if not line.startswith(prefix):
            return False
        try:
            entry = load(line[len(prefix) :])
        except InputError:
            return False
        if not isinstance(entry, list) or len(entry) != (3 if prefix is _META else 2) or type(entry[0]) is not str:
            return False
        if prefix is _CONSTANT:
            self.constants[entry[0]] = (number, entry[1])
            return True
        key = (entry[0], entry[1])
        if type(entry[1]) is not int or key in self._raw:
            return False
        self._raw[key] = (number, entry[2])
        return True

    def meta(self, data: dict[str, Any], ctx: ShapeContext, val: Any = NO_VAL) -> dict[str, Any]:
        """Metadata from the JSON above a node; ``val`` is what the annotation said."""
        out: dict[str, Any] = {}
        for key, entry in data.items():
            if key == AT:
                out.update(self.value(AT, entry, ctx))
            elif key in INLINE:
                out[key] = decode_entry(key, entry, ctx, val)
            else:
                out[key] = self.value(key, entry, ctx)
        return out

    def _where(self, data: Any, ctx: ShapeContext) -> dict[str, Any]:
        if not isinstance(data, dict) or not data.keys() <= WHERE:
            raise InputError("broken table entry")
        return {
            key: decode_entry(key, entry, ctx) if key in INLINE else self.value(key, entry, ctx)
            for key, entry in data.items()
        }

    def value(self, key: str, index: Any, ctx: ShapeContext) -> Any:
        """Entry ``index`` of the table for ``key``, the same object each time."""
        if type(index) is not int or (key, index) not in self._raw:
            raise InputError(f"the table of {key[:40]!r} has no entry {str(index)[:20]}", hint="the text is cut")
        if (key, index) not in self._values:
            number, raw = self._raw[key, index]
            try:
                self._values[key, index] = self._where(raw, ctx) if key == AT else decode_entry(key, raw, ctx)
            except InputError as error:
                raise InputError(error.what, where=f"{self.where}:{number}") from None
        return self._values[key, index]
