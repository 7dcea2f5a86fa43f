"""Node metadata that a ``.pt2`` file has room for: six keys, packed into strings.

Usage::

    write_metadata({"torch_fn": ("mm_1", "function.mm")})       # {"torch_fn": "mm_1;function.mm"}
    read_metadata({"torch_fn": "mm_1;function.mm"})             # {"torch_fn": ("mm_1", "function.mm")}

Only what means the same when it comes back is written here; the sidecar has everything else about a node,
and tells lists and tuples apart where that makes a difference.
Limits: a module path or type that holds ``,`` or ``;`` would make the file unloadable and is not written.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_ACTIONS = frozenset({"", "create", "replace", "create+replace", "replace+create"})
_MAX_DEPTH = 200


def read_metadata(data: Any) -> dict[str, Any]:
    """The metadata of one node; unknown keys are dropped as PyTorch drops them."""
    if not isinstance(data, dict):
        raise InputError("the metadata of a node is not an object")
    out: dict[str, Any] = {}
    for key, value in data.items():
        reader = _READERS.get(key)
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


def _read_stack(text: str) -> dict[str, list[str]]:
    return {key: [path, kind] for key, path, kind in _parse_stack(text)}


@lru_cache(maxsize=8192)
def _parse_stack(text: str) -> tuple[tuple[str, str, str], ...]:
    out = []
    for item in text.split(";"):
        parts = _split(item)
        if len(parts) != 3:
            raise InputError(f"the module stack {item[:60]!r} has {len(parts)} parts, expected 3")
        out.append((parts[0], parts[1], parts[2]))
    return tuple(out)


def _split(text: str) -> list[str]:
    """Split at commas outside brackets, as PyTorch does."""
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
    text = ";".join([",".join(item) for item in items])
    return text if _comes_back(_parse_stack, text, tuple(items)) else None


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


def _read_function(text: str) -> tuple[str, ...]:
    return tuple(text.split(";"))


def _write_function(value: Any) -> str | None:
    if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
        return None
    text = ";".join(value)
    return text if _read_function(text) == value else None


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
    "nn_module_stack": _read_stack,
    "source_fn_stack": _read_sources,
    "torch_fn": _read_function,
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
