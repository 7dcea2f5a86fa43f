"""What an FX node holds as arguments, in the words of the ``.pt2`` schema; the opposite of ``pt2_arguments``.

Usage::

    write_argument([node, None], scope)         # {"as_optional_tensors": [{"as_tensor": ...}, {"as_none": True}]}
    write_argument([], scope, "as_ints")        # {"as_ints": []}: what is empty needs the op's schema

The order of the questions is PyTorch's, so that both write the same alternative for the same argument.
Limits: lists that mix numbers and tensors, nested tuples and slices have no words; :class:`OutputError`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.export.graph_signature import CustomObjArgument

from commcc.base.errors import OutputError
from commcc.serialization.pt2.schema import DTYPE_NUMBERS, LAYOUT_NUMBERS, MEMORY_FORMAT_NUMBERS
from commcc.serialization.pt2.symbols import write_number
from commcc.serialization.targets import path_of

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT_HINT = "write it as .fx.txt instead"


class Scope(Protocol):
    """What writing arguments needs to know about the graph around them."""

    def effective(self, node: fx.Node) -> Any:
        """The node that stands for ``node`` in the file, or a number if its value is one."""
        ...

    def subgraph(self, node: fx.Node) -> dict[str, Any]:
        """A ``get_attr`` node as an argument."""
        ...


def write_argument(arg: Any, scope: Scope, empty: str = "as_tensors") -> dict[str, Any]:
    """One argument of the schema. empty: the alternative to use for an empty list."""
    if isinstance(arg, fx.Node):
        if arg.op == "get_attr":
            return scope.subgraph(arg)
        found = scope.effective(arg)
        return write_use(found) if isinstance(found, fx.Node) else write_argument(found, scope, empty)
    if isinstance(arg, (list, tuple)):
        return _write_list(arg, scope, empty)
    if isinstance(arg, dict):
        return _write_dictionary(arg, scope)
    return write_constant(arg)


def write_constant(arg: Any) -> dict[str, Any]:
    """A number, string, dtype, device or op."""
    writer = _CONSTANTS.get(type(arg))
    if writer is not None:
        return writer(arg)
    if isinstance(arg, (OpOverload, HigherOrderOperator)):
        return {"as_operator": schema_path(arg)}
    raise OutputError(f"a .pt2 file cannot hold an argument of type {type(arg).__name__}", hint=TEXT_HINT)


def _write_dtype(arg: torch.dtype) -> dict[str, Any]:
    if arg not in DTYPE_NUMBERS:
        raise OutputError(f"a .pt2 file cannot hold {arg}", hint=TEXT_HINT)
    return {"as_scalar_type": DTYPE_NUMBERS[arg]}


_CONSTANTS: dict[type, Callable[[Any], dict[str, Any]]] = {
    bool: lambda arg: {"as_bool": arg},
    str: lambda arg: {"as_string": arg},
    int: lambda arg: {"as_int": arg},
    float: lambda arg: {"as_float": write_number(arg)},
    complex: lambda arg: {"as_complex": {"real": write_number(arg.real), "imag": write_number(arg.imag)}},
    type(None): lambda _arg: {"as_none": True},
    torch.dtype: _write_dtype,
    torch.device: lambda arg: {"as_device": {"type": arg.type, "index": arg.index}},
    torch.memory_format: lambda arg: {"as_memory_format": MEMORY_FORMAT_NUMBERS[arg]},
    torch.layout: lambda arg: {"as_layout": LAYOUT_NUMBERS[arg]},
}


def kind_of_value(val: Any) -> str:
    """``tensor``, ``int``, ``float``, ``bool``, ``custom``, or ``""`` for what is none of them."""
    if isinstance(val, torch.Tensor):
        return "tensor"
    if isinstance(val, (bool, torch.SymBool)):
        return "bool"
    if isinstance(val, (int, torch.SymInt)):
        return "int"
    if isinstance(val, (float, torch.SymFloat)):
        return "float"
    return "custom" if isinstance(val, CustomObjArgument) else ""


def write_use(node: fx.Node) -> dict[str, Any]:
    """A use of a node, by the kind of its value."""
    val: Any = node.meta.get("val")
    kind = kind_of_value(val)
    if kind == "tensor":
        return {"as_tensor": {"name": node.name}}
    if kind == "custom":
        return {"as_custom_obj": {"name": node.name, "class_fqn": val.class_fqn}}
    if not kind:
        what = "results are passed on together" if isinstance(val, (list, tuple)) else "value is not known"
        raise OutputError(f"the {what} ({node.name} as an argument), which a .pt2 file cannot hold", hint=TEXT_HINT)
    return {f"as_sym_{kind}": {"as_name": node.name}}


def _write_dictionary(arg: dict[Any, Any], scope: Scope) -> dict[str, Any]:
    if not all(type(key) is str for key in arg):
        raise OutputError("a .pt2 file cannot hold a dictionary with keys that are no strings", hint=TEXT_HINT)
    return {"as_string_to_argument": {key: write_argument(value, scope) for key, value in arg.items()}}


def _write_list(arg: Any, scope: Scope, empty: str) -> dict[str, Any]:
    if not arg:
        return {empty: []}
    items = [scope.effective(item) if isinstance(item, fx.Node) else item for item in arg]
    kinds = {_kind_of_item(item) for item in items}
    if len(kinds) == 1:
        writer = _HOMOGENEOUS.get(next(iter(kinds)))
        if writer is not None:
            return writer(items)
    for plain, name in (("int", "int"), ("float", "float"), ("bool", "bool")):
        if kinds <= {plain, f"node {name}"}:
            return {f"as_sym_{name}s": [_symbolic(item, name) for item in items]}
    if kinds <= {"node tensor", "NoneType"}:
        return {"as_optional_tensors": [_optional(item) for item in items]}
    if kinds <= {"list", "tuple"}:
        return _write_nested(items, scope)
    words = ", ".join(sorted(kinds))
    raise OutputError(f"a .pt2 file cannot hold a list of {words}", hint=TEXT_HINT)


def _kind_of_item(item: Any) -> str:
    if isinstance(item, fx.Node):
        return f"node {kind_of_value(item.meta.get('val')) or item.op}"
    if isinstance(item, (list, tuple)):
        return "tuple" if isinstance(item, tuple) else "list"
    return type(item).__name__


_HOMOGENEOUS: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
    "bool": lambda items: {"as_bools": items},
    "int": lambda items: {"as_ints": items},
    "float": lambda items: {"as_floats": [write_number(item) for item in items]},
    "str": lambda items: {"as_strings": items},
    "node tensor": lambda items: {"as_tensors": [{"name": item.name} for item in items]},
}


def _symbolic(item: Any, kind: str) -> dict[str, Any]:
    if isinstance(item, fx.Node):
        return {"as_name": item.name}
    return {f"as_{kind}": write_number(item) if kind == "float" else item}


def _optional(item: Any) -> dict[str, Any]:
    return {"as_none": True} if item is None else {"as_tensor": {"name": item.name}}


def _write_nested(items: list[Any], scope: Scope) -> dict[str, Any]:
    rows = [[scope.effective(item) if isinstance(item, fx.Node) else item for item in row] for row in items]
    kinds = {_kind_of_item(item) for row in rows for item in row}
    if kinds <= {"node tensor"}:
        return {"as_nested_tensors": [[{"name": item.name} for item in row] for row in rows]}
    if kinds == {"int"}:
        return {"as_int_lists": rows}
    if kinds == {"float"}:
        return {"as_float_lists": [[write_number(item) for item in row] for row in rows]}
    words = ", ".join(sorted(kinds))
    raise OutputError(f"a .pt2 file cannot hold a list of lists of {words}", hint=TEXT_HINT)


_EMPTY = (
    *((torch.BoolType, "as_bools"), (torch.IntType, "as_ints"), (torch.FloatType, "as_floats")),
    *((torch.StringType, "as_strings"), (torch.TensorType, "as_tensors")),
)


@lru_cache(maxsize=4096)
def op_arguments(target: OpOverload) -> tuple[tuple[str, bool, str], ...]:
    """For each argument of an op: its name, whether it is keyword-only, and how to write it when empty."""
    return tuple((a.name, a.kwarg_only, _empty_of(a.type)) for a in target._schema.arguments)


def _empty_of(kind: Any) -> str:
    for _ in range(3):
        for wanted, word in _EMPTY:
            if isinstance(kind, wanted):
                return word
        if not isinstance(kind, (torch.OptionalType, torch.ListType)):
            break
        kind = kind.getElementType()
    return "as_ints"


def schema_path(target: Any) -> str:
    """The target as PyTorch writes it in ``.pt2`` files."""
    path = path_of(target)
    return f"_{path}" if path.startswith("operator.") else path
