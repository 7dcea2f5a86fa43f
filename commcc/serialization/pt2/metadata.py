"""Node metadata in a ``.pt2`` file: six keys that the schema has fields for, as strings, and the rest in the sidecar.

Usage::

    write_metadata({"torch_fn": ("mm_1", "function.mm")})       # {"torch_fn": "mm_1;function.mm"}
    read_metadata({"torch_fn": "mm_1;function.mm"})             # {"torch_fn": ("mm_1", "function.mm")}

    writer = MetadataWriter()
    writer.changes(spec, found)         # {"set": {"seq_nr": 4}, "use": {"fwd_nn_module_stack": 0}, "drop": [...]}
    writer.shared                       # {"fwd_nn_module_stack": [{...}]}
    MetadataReader(shared, ctx).restore(spec, changes)

Only what means the same when it comes back is written into the graph; the sidecar has everything else about a node,
and tells lists and tuples apart where that makes a difference. A value that several nodes share is one object after
reading; nobody may edit it.
Limits: a module path or type that holds ``,`` or ``;`` would make the file unloadable and is not written.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.serialization.metadata import DERIVED_KEYS, INLINE, NO_VAL, decode_entry, encode_entry, is_lost
from commcc.serialization.pt2.specs import same_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from commcc.serialization.pt2.specs import Spec
    from commcc.serialization.shapes import ShapeContext

_ACTIONS = frozenset({"", "create", "replace", "create+replace", "replace+create"})
_MAX_DEPTH = 200


def read_metadata(data: Any) -> dict[str, Any]:
    """The metadata of one node; unknown keys are dropped as PyTorch drops them."""
    if not isinstance(data, dict):
        raise InputError("the metadata of a node is not an object")
    out: dict[str, Any] = {}
    for key, value in data.items():
        reader = _READERS.get(key)
        # Empty strings stand for nothing, as in PyTorch.
        if reader is not None and value:
            if not isinstance(value, str):
                raise InputError(f"the metadata {key!r} of a node is not a string")
            out[key] = reader(value)
    return out


def write_metadata(meta: dict[str, Any]) -> dict[str, str]:
    """The part of ``node.meta`` that :func:`read_metadata` gives back, but for tuples that become lists."""
    out: dict[str, str] = {}
    for key, writer in _WRITERS.items():
        if (value := meta.get(key)) and (text := writer(value)) is not None:
            out[key] = text
    return out


@lru_cache(maxsize=8192)
def parse_stack(text: str) -> tuple[tuple[str, str, str], ...]:
    """Key, path and type of each level of a module stack, the outermost first."""
    out = []
    for item in text.split(";"):
        parts = _split(item)
        if len(parts) != 3:
            raise InputError(f"the module stack {item[:60]!r} has {len(parts)} parts, expected 3")
        out.append((parts[0], parts[1], parts[2]))
    return tuple(out)


def stack_text(levels: Iterable[tuple[str, str, str]]) -> str:
    """What :func:`parse_stack` reads."""
    return ";".join([",".join(level) for level in levels])


def _split(text: str) -> list[str]:
    """Split at commas outside brackets, as PyTorch does."""
    # Nearly all of them, and much faster.
    if "(" not in text and "[" not in text:
        return text.split(",")
    out, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "[(":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "," and depth == 0:
            out.append(text[start:position])
            start = position + 1
    out.append(text[start:])
    return out


def _write_stack(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    items = []
    for key, entry in value.items():
        if not _is_pair(entry) or not isinstance(key, str):
            return None
        items.append((key, entry[0], entry[1]))
    text = stack_text(items)
    return text if _comes_back(parse_stack, text, tuple(items)) else None


def _read_sources(text: str) -> list[list[str]]:
    out = []
    for item in text.split(";"):
        name, comma, target = item.partition(",")
        if not comma or "," in target:
            raise InputError(f"the source function {item[:60]!r} is not a name and a target")
        out.append([name, target])
    return out


def _write_sources(value: Any) -> str | None:
    if not isinstance(value, list) or not all(map(_is_pair, value)):
        return None
    text = ";".join(",".join(pair) for pair in value)
    return text if _comes_back(_read_sources, text, [list(pair) for pair in value]) else None


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(part, str) for part in value)


def _write_function(value: Any) -> str | None:
    if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
        return None
    text = ";".join(value)
    return text if tuple(text.split(";")) == value else None


def _comes_back(reader: Callable[[str], Any], text: str, value: Any) -> bool:
    try:
        return bool(reader(text) == value)
    except InputError:
        return False


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"the metadata {text[:60]!r} is not JSON") from None


def _write_custom(value: Any) -> str | None:
    try:
        text = json.dumps(value)
        return text if json.loads(text) == value else None
    except (TypeError, ValueError, RecursionError):
        return None


def _write_origin(value: Any) -> str | None:
    if not isinstance(value, list) or not all(_is_origin(item, 0) for item in value):
        return None
    return json.dumps(value)


def _is_origin(item: Any, depth: int) -> bool:
    """Whether PyTorch can rebuild a ``NodeSource`` from this; anything else would make the file unloadable."""
    if not isinstance(item, dict) or depth > _MAX_DEPTH:
        return False
    strings = all(isinstance(item.get(key), str) for key in ("name", "target", "pass_name"))
    parents = item.get("from_node")
    if not strings or type(item.get("graph_id")) is not int or item.get("action") not in _ACTIONS:
        return False
    return isinstance(parents, list) and len(item) == 6 and all(_is_origin(parent, depth + 1) for parent in parents)


_READERS: dict[str, Callable[[str], Any]] = {
    "stack_trace": str,
    "nn_module_stack": lambda text: {key: [path, kind] for key, path, kind in parse_stack(text)},
    "source_fn_stack": _read_sources,
    "torch_fn": lambda text: tuple(text.split(";")),
    "custom": _read_json,
    "from_node": _read_json,
}
_WRITERS: dict[str, Callable[[Any], str | None]] = {
    "stack_trace": lambda value: value if isinstance(value, str) else None,
    "nn_module_stack": _write_stack,
    "source_fn_stack": _write_sources,
    "torch_fn": _write_function,
    "custom": _write_custom,
    "from_node": _write_origin,
}


class MetadataWriter:
    """Collects the metadata of all graphs of one file.

    shared: the values of each key, equal ones once. lost: nodes whose value of a key cannot be kept, by key.
    """

    def __init__(self) -> None:
        self.shared: dict[str, list[Any]] = {}
        self.lost: dict[str, list[str]] = {}
        self._by_object: dict[tuple[str, int], int] = {}
        self._by_text: dict[tuple[str, str], int] = {}
        self._kept: list[Any] = []

    def changes(self, spec: Spec, restored: Spec) -> dict[str, Any]:
        """How the metadata of ``spec`` differs from what reading gives back; empty if it does not."""
        inline: dict[str, Any] = {}
        use: dict[str, int] = {}
        for key, value in spec.meta.items():
            if key == "val" or key in DERIVED_KEYS or (key in restored.meta and _equal(restored.meta[key], value)):
                continue
            if key in INLINE:
                if (encoded := self._encode(key, value, spec)) is not None:
                    inline[key] = encoded[0]
            elif (number := self._share(key, value, spec)) is not None:
                use[key] = number
        # PyTorch copies metadata to nodes that never had any (getitem).
        drop = [key for key in restored.meta if key not in spec.meta]
        return {key: value for key, value in (("set", inline), ("use", use), ("drop", drop)) if value}

    def _encode(self, key: str, value: Any, spec: Spec) -> tuple[Any] | None:
        encoded = encode_entry(key, value)
        if is_lost(encoded):
            self.lost.setdefault(str(key), []).append(spec.name)
            return None
        return (encoded,)

    def _share(self, key: str, value: Any, spec: Spec) -> int | None:
        known = self._by_object.get((key, id(value)))
        # The very object was seen before: nothing to encode.
        if known is not None:
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
    if not isinstance(left, dict):
        return type(left) is type(right) and bool(left == right)
    if left != right:
        return False
    # Equal for Python is not enough where numbers may differ in type only (1, 1.0, True); most values are texts.
    for value in left.values():
        texts = value if isinstance(value, (list, tuple)) else (value,)
        if not all(isinstance(text, str) for text in texts):
            return same_argument(left, right)
    return True


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
