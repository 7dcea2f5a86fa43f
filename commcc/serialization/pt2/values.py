"""The values of a ``.pt2`` graph: tensor descriptions to fake tensors and back.

Usage::

    values = ValueReader(ctx, graph)                 # one graph of the schema
    values.of("mm")                                  # FakeTensor, SymInt, ...
    write_tensor(fake)                               # {"dtype": 7, "sizes": [{"as_int": 4}, ...], ...}

Limits: dense tensors.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import CustomObjArgument

from commcc.base.errors import InputError, OutputError
from commcc.serialization.pt2.schema import DTYPE_NUMBERS, DTYPES, NEW_DTYPES, check_name, device_of, lookup
from commcc.serialization.pt2.symbols import write_scalar
from commcc.serialization.shapes import requires_grad_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.serialization.pt2.symbols import ExpressionReader

#: The value of everything when a graph is read for its nodes only.
UNKNOWN = object()
_STRIDED = 7
_MAX_DIMS = 64
_TABLES = ("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values", "custom_obj_values")


class ValueReader:
    """Values of one graph, by name; each is made when it is first asked for.

    Without ``symbols`` nothing is made: every value is the same opaque object.
    """

    def __init__(self, symbols: ExpressionReader | None, graph: dict[str, Any]) -> None:
        self._symbols = symbols
        self._tables = {name: graph.get(name) or {} for name in _TABLES}
        if not all(isinstance(table, dict) for table in self._tables.values()):
            raise InputError("a table of values is not an object")
        if symbols is not None:
            for expression in _symbolic_sizes(self._tables):
                symbols.declare_hint(expression)

    def of(self, name: str) -> Any:
        """The value called ``name``; :class:`InputError` if the graph does not describe it."""
        if self._symbols is None:
            return UNKNOWN
        return self._of(name, self._symbols)

    def _of(self, name: str, symbols: ExpressionReader) -> Any:
        tensor = self._tables["tensor_values"].get(name)
        if tensor is not None:
            return _read_tensor(tensor, symbols)
        if (number := self._tables["sym_int_values"].get(name)) is not None:
            return symbols.integer(number)
        if (number := self._tables["sym_float_values"].get(name)) is not None:
            return symbols.scalar(number, float)
        if (number := self._tables["sym_bool_values"].get(name)) is not None:
            return symbols.scalar(number, bool)
        if (custom := self._tables["custom_obj_values"].get(name)) is not None:
            return CustomObjArgument(name=check_name(custom["name"]), class_fqn=str(custom["class_fqn"]))
        raise InputError(f"nothing says what {name[:60]!r} is")


def _read_tensor(meta: dict[str, Any], symbols: ExpressionReader) -> Any:
    integer = symbols.integer
    sizes, strides = meta["sizes"], meta["strides"]
    if len(sizes) > _MAX_DIMS or meta["layout"] != _STRIDED:
        raise InputError(f"a tensor with {len(sizes)} dimensions and layout {meta['layout']} is not supported")
    return symbols.ctx.tensor(
        [integer(size) for size in sizes],
        [integer(stride) for stride in strides],
        lookup(DTYPES, meta["dtype"], "dtype"),
        _device(meta["device"]["type"], meta["device"].get("index")),
        requires_grad=meta["requires_grad"] is True,
        storage_offset=integer(meta["storage_offset"]),
    )


@lru_cache(maxsize=256)
def _device(kind: str, index: int | None) -> torch.device:
    return device_of({"type": kind, "index": index})


def _symbolic_sizes(tables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for meta in tables["tensor_values"].values():
        for size in (*meta["sizes"], *meta["strides"], meta["storage_offset"]):
            if "as_expr" in size:
                yield size["as_expr"]
    for value in tables["sym_int_values"].values():
        if "as_expr" in value:
            yield value["as_expr"]


def write_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """What the schema says about a tensor; :class:`OutputError` for a dtype it has no number for."""
    number = DTYPE_NUMBERS.get(tensor.dtype)
    if number is None or tensor.layout is not torch.strided:
        raise OutputError(f"a .pt2 file cannot hold a tensor of {tensor.dtype}, {tensor.layout}")
    return {
        "dtype": number,
        "sizes": [{"as_int": n} if type(n) is int else write_scalar(n) for n in tensor.shape],
        "requires_grad": requires_grad_of(tensor),
        "device": {"type": tensor.device.type, "index": tensor.device.index},
        "strides": [{"as_int": n} if type(n) is int else write_scalar(n) for n in tensor.stride()],
        "storage_offset": write_scalar(tensor.storage_offset()),
        "layout": _STRIDED,
    }


def needs_new_schema(tensor: dict[str, Any]) -> bool:
    return tensor["dtype"] in NEW_DTYPES
