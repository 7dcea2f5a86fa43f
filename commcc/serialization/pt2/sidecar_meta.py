"""Metadata in the sidecar: what the graph file does not keep of it, values that nodes share written once.

Usage::

    writer = MetadataWriter()
    writer.changes(spec, found)         # {"set": {"seq_nr": 4}, "use": {"fwd_nn_module_stack": 0}, "drop": [...]}
    writer.shared                       # {"fwd_nn_module_stack": [{...}]}
    MetadataReader(shared, ctx).restore(spec, changes)

A value that several nodes share is one object after reading; nobody may edit it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.serialization.fx.tables import INLINE
from commcc.serialization.metadata import DERIVED_KEYS, NO_VAL, decode_entry, encode_entry, is_lost
from commcc.serialization.pt2.build import same_argument

if TYPE_CHECKING:
    from commcc.serialization.pt2.schema import Spec
    from commcc.serialization.shapes import ShapeContext

_UNKNOWN = -1


class MetadataWriter:
    """Collects the metadata of all graphs of one file.

    shared: values by key, each once. lost: keys that cannot be kept, with the first node that has them.
    """

    def __init__(self) -> None:
        self.shared: dict[str, list[Any]] = {}
        self.lost: dict[str, str] = {}
        self._by_object: dict[tuple[str, int], int] = {}
        self._by_text: dict[tuple[str, str], int] = {}
        self._kept: list[Any] = []

    def changes(self, spec: Spec, found: Spec) -> dict[str, Any]:
        """How the metadata of ``spec`` differs from what reading gives back; empty if it does not."""
        inline: dict[str, Any] = {}
        use: dict[str, int] = {}
        for key, value in spec.meta.items():
            if key == "val" or key in DERIVED_KEYS or (key in found.meta and _equal(found.meta[key], value)):
                continue
            if key in INLINE:
                if (encoded := self._encode(key, value, spec)) is not None:
                    inline[key] = encoded[0]
            elif (number := self._share(key, value, spec)) is not None:
                use[key] = number
        drop = [key for key in found.meta if key not in spec.meta]
        return {key: value for key, value in (("set", inline), ("use", use), ("drop", drop)) if value}

    def _encode(self, key: str, value: Any, spec: Spec) -> tuple[Any] | None:
        encoded = encode_entry(key, value)
        if is_lost(encoded):
            self.lost.setdefault(str(key), spec.name)
            return None
        return (encoded,)

    def _share(self, key: str, value: Any, spec: Spec) -> int | None:
        known = self._by_object.get((key, id(value)), _UNKNOWN)
        if known != _UNKNOWN:
            return known
        encoded = self._encode(key, value, spec)
        if encoded is None:
            return None
        values = self.shared.setdefault(key, [])
        text = json.dumps(encoded[0])
        number = self._by_text.setdefault((key, text), len(values))
        if number == len(values):
            values.append(encoded[0])
        self._by_object[key, id(value)] = number
        self._kept.append(value)  # an id stays unique only while its object lives
        return number


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        # Equal for Python is not enough where numbers may differ in type only (1, 1.0, True).
        return bool(left == right) and (all(map(_is_text, left.values())) or same_argument(left, right))
    return type(left) is type(right) and bool(left == right)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value))


class MetadataReader:
    """Decodes the metadata of all graphs of one file; shared values once."""

    def __init__(self, shared: dict[str, list[Any]], ctx: ShapeContext) -> None:
        self._shared = shared
        self._ctx = ctx
        self._values: dict[tuple[str, int], Any] = {}

    def restore(self, spec: Spec, changes: dict[str, Any]) -> None:
        """Make the metadata of ``spec`` what it was."""
        for key in changes.get("drop", ()):
            spec.meta.pop(key, None)
        for key, entry in changes.get("set", {}).items():
            spec.meta[_checked(key)] = decode_entry(key, entry, self._ctx, NO_VAL)
        for key, number in changes.get("use", {}).items():
            if (key, number) not in self._values:
                self._values[key, number] = decode_entry(key, self._shared[key][number], self._ctx, NO_VAL)
            spec.meta[_checked(key)] = self._values[key, number]


def _checked(key: str) -> str:
    if key == "val":
        raise InputError("a value stands among the metadata")
    return key
