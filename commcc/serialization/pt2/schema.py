"""The vocabulary of a ``.pt2`` graph: its alternatives, its numbers for dtypes and layouts, the names it may hold.

    union({"as_tensor": {"name": "x"}})        # ("as_tensor", {"name": "x"})
    lookup(DTYPES, 7, "dtype")                  # torch.float32
    check_name("os.system")                     # InputError: names become Python code when PyTorch loads a file

Schema: ``torch/_export/serde/schema.py``, major version 8.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from typing import Any

import torch

from commcc.base.errors import InputError

SCHEMA_MAJOR = 8
#: Oldest minor version that knows all we write, and the one that knows the newer dtypes.
SCHEMA_MINOR = 17
SCHEMA_MINOR_NEW = 20
NEW_DTYPES = frozenset({33, 34, 35})

_DTYPE_NAMES = dict(
    zip(
        (*range(1, 14), *range(28, 36)),
        (
            *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
            *("complex32", "complex64", "complex128", "bool", "bfloat16"),
            *("uint16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
            *("float8_e8m0fnu", "uint32", "uint64"),
        ),
        strict=True,
    )
)
DTYPES: dict[int, torch.dtype] = {n: getattr(torch, name) for n, name in _DTYPE_NAMES.items() if hasattr(torch, name)}
_LAYOUT_NAMES = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "strided")
LAYOUTS: dict[int, torch.layout] = {n: getattr(torch, name) for n, name in enumerate(_LAYOUT_NAMES, 1)}
MEMORY_FORMATS: dict[int, torch.memory_format] = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
DTYPE_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
LAYOUT_NUMBERS = {layout: number for number, layout in LAYOUTS.items()}
MEMORY_FORMAT_NUMBERS = {memory_format: number for number, memory_format in MEMORY_FORMATS.items()}

POSITIONAL, KEYWORD = 1, 2
SYMBOLIC = ("as_sym_int", "as_sym_float", "as_sym_bool")
#: How many results a node has: none, one, a list of tensors, or several.
NONE, ONE, LIST, MANY = "none", "one", "list", "many"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({*keyword.kwlist, "self"})
#: Characters that PyTorch would put between quotes in generated code.
_UNQUOTED = re.compile(r"[^\"'\\\x00-\x1f\x7f]*")


@dataclass(frozen=True)
class OpaqueCall:
    """How a file calls an op that is not registered here.

    arguments: their names. returns: ``none``, ``one``, ``list`` (of tensors) or ``many`` results.
    """

    arguments: tuple[str, ...]
    returns: str


def check_name(name: Any) -> str:
    """``name`` if it may become a variable in generated code: a plain identifier."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED or len(name) > 1000:
        raise InputError(f"{str(name)[:60]!r} is not a node name")
    return name


def check_path(path: Any) -> str:
    """``path`` if it may name a parameter, a buffer or a sub-module (``layers.0.weight``)."""
    if not isinstance(path, str) or not _UNQUOTED.fullmatch(path) or len(path) > 4000:
        raise InputError(f"{str(path)[:60]!r} is not the name of a parameter, buffer or module")
    return path


def union(data: Any) -> tuple[str, Any]:
    """The kind and value of a one-key dictionary, which is how the schema writes alternatives."""
    if not isinstance(data, dict) or len(data) != 1:
        raise InputError(f"expected an object with one key, found {str(data)[:60]!r}")
    return next(iter(data.items()))


def argument_name(argument: dict[str, Any]) -> str | None:
    """The value that an argument of a signature names; None for numbers and texts."""
    kind, value = union(argument)
    if kind in ("as_tensor", "as_custom_obj"):
        return str(value["name"])
    return value.get("as_name") if kind in SYMBOLIC else None


def lookup(table: dict[int, Any], number: Any, what: str) -> Any:
    """The dtype, layout or memory format of a number."""
    value = table.get(number) if type(number) is int else None
    if value is None:
        raise InputError(f"unknown {what} {str(number)[:40]!r}")
    return value


def device_of(data: Any) -> torch.device:
    """A device of the schema; never touches the device."""
    kind, index = data["type"], data.get("index")
    if not isinstance(kind, str) or not (index is None or (type(index) is int and 0 <= index < 128)):
        raise InputError(f"{str(data)[:60]!r} is not a device")
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except RuntimeError:
        raise InputError(f"unknown device {kind[:40]!r}") from None
