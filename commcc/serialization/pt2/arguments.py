"""Arguments of a ``.pt2`` node: the schema's thirty alternatives to what FX holds, and back.

Usage::

    read_argument({"as_ints": [4, 8]}, scope)     # [4, 8]
    read_argument({"as_tensor": {"name": "x"}}, scope)            # Ref("x"), if x is defined
    write_argument([node, None], scope)           # {"as_optional_tensors": [{"as_tensor": ...}, {"as_none": True}]}
    write_argument([], scope, "as_ints")          # {"as_ints": []}: what is empty needs the op's schema

When writing, the order of the questions is PyTorch's, so that both write the same alternative for the same argument.
Limits: what the schema cannot say (lists that mix numbers and tensors, slices, nested tuples) raises
:class:`OutputError`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.export.graph_signature import CustomObjArgument

from commcc.base.errors import InputError, OutputError
from commcc.serialization.pt2.schema import (
    DTYPE_NUMBERS,
    DTYPES,
    LAYOUT_NUMBERS,
    LAYOUTS,
    MEMORY_FORMAT_NUMBERS,
    MEMORY_FORMATS,
    check_name,
    device_of,
    lookup,
    union,
)
from commcc.serialization.pt2.values import number, write_number
from commcc.serialization.targets import path_of, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.serialization.pt2.specs import Ref

TEXT_HINT = "write it as .fx.txt instead"


class ReadingScope(Protocol):
    """What reading arguments needs to know about the graph around them."""

    def use(self, name: str) -> Ref:
        """A use of a node that is already defined."""
        ...

    def subgraph(self, name: str, graph: Any) -> Ref:
        """A use of a sub-graph, which is read and kept with the graph."""
        ...


def read_argument(data: Any, scope: ReadingScope) -> Any:
    """One argument; anything that is not in the schema raises :class:`InputError`."""
    kind, value = union(data)
    # By far most arguments.
    if kind == "as_tensor":
        return scope.use(value["name"])
    if kind in _PLAIN:
        return _checked(kind, value, _PLAIN[kind])
    if kind in _PLAIN_LISTS:
        return [_checked(kind, item, _PLAIN_LISTS[kind]) for item in value]
    reader = _READERS.get(kind)
    if reader is None:
        raise InputError(f"unknown kind of argument {kind[:40]!r}")
    return reader(value, scope)


def _checked(kind: str, value: Any, wanted: type) -> Any:
    if type(value) is not wanted:
        raise InputError(f"{kind} holds {str(value)[:40]!r}")
    return value


def _use_or_number(value: Any, scope: ReadingScope) -> Any:
    """SymIntArgument and its like: a node's name, or a number in a list of sizes."""
    kind, item = union(value)
    if kind == "as_name":
        return scope.use(item)
    if kind == "as_float":
        return number(item)
    if kind in ("as_int", "as_bool"):
        return _checked(kind, item, int if kind == "as_int" else bool)
    raise InputError(f"unknown kind of symbolic argument {kind[:40]!r}")


def _use_or_none(value: Any, scope: ReadingScope) -> Any:
    kind, item = union(value)
    if kind not in ("as_tensor", "as_none"):
        raise InputError(f"unknown kind of optional tensor {kind[:40]!r}")
    return scope.use(item["name"]) if kind == "as_tensor" else None


def _list_of(reader: Callable[[Any, ReadingScope], Any]) -> Callable[[Any, ReadingScope], Any]:
    return lambda values, scope: [reader(value, scope) for value in values]


def _tensor(value: Any, scope: ReadingScope) -> Any:
    return scope.use(value["name"])


_PLAIN: dict[str, type] = {"as_int": int, "as_bool": bool, "as_string": str}
_PLAIN_LISTS: dict[str, type] = {"as_ints": int, "as_bools": bool, "as_strings": str}
_READERS: dict[str, Callable[[Any, ReadingScope], Any]] = {
    "as_none": lambda _value, _scope: None,
    "as_tensors": _list_of(_tensor),
    "as_nested_tensors": _list_of(_list_of(_tensor)),
    "as_optional_tensor": _use_or_none,
    "as_optional_tensors": _list_of(_use_or_none),
    "as_float": lambda value, _scope: number(value),
    "as_floats": lambda values, _scope: [number(value) for value in values],
    "as_float_lists": lambda lists, _scope: [[number(value) for value in values] for values in lists],
    "as_int_lists": lambda lists, _scope: [tuple(_checked("as_int_lists", n, int) for n in values) for values in lists],
    "as_complex": lambda value, _scope: complex(number(value["real"]), number(value["imag"])),
    **dict.fromkeys(("as_sym_int", "as_sym_float", "as_sym_bool"), _use_or_number),
    **dict.fromkeys(("as_sym_ints", "as_sym_floats", "as_sym_bools"), _list_of(_use_or_number)),
    "as_scalar_type": lambda value, _scope: lookup(DTYPES, value, "dtype"),
    "as_memory_format": lambda value, _scope: lookup(MEMORY_FORMATS, value, "memory format"),
    "as_layout": lambda value, _scope: lookup(LAYOUTS, value, "layout"),
    "as_device": lambda value, _scope: device_of(value),
    "as_graph": lambda value, scope: scope.subgraph(check_name(value["name"]), value["graph"]),
    "as_custom_obj": _tensor,
    "as_operator": lambda value, _scope: resolve(_checked("as_operator", value, str)),
    "as_string_to_argument": lambda value, scope: {
        _checked("a key", key, str): read_argument(item, scope) for key, item in value.items()
    },
}


@lru_cache(maxsize=4096)
def _argument_positions(target: OpOverload) -> dict[str, int]:
    return {argument.name: position for position, argument in enumerate(target._schema.arguments)}


def check_order(target: OpOverload, names: list[str], positional: int) -> None:
    """Arguments must come as the op declares them; PyTorch would sort them, or drop what it does not know."""
    positions = _argument_positions(target)
    order = [positions.get(name, -1) for name in names]
    given = target._schema.arguments[:positional]
    if order[:positional] != list(range(positional)) or -1 in order or order != sorted(set(order)):
        raise InputError(f"the arguments are not those of {target}")
    if any(argument.kwarg_only for argument in given):
        raise InputError(f"an argument of {target} is given by position that is only taken by name")


class WritingScope(Protocol):
    """What writing arguments needs to know about the graph around them."""

    def effective(self, node: fx.Node) -> Any:
        """The node that stands for ``node`` in the file, or a number if its value is one."""
        ...

    def subgraph(self, node: fx.Node) -> dict[str, Any]:
        """A ``get_attr`` node as an argument."""
        ...


def write_argument(arg: Any, scope: WritingScope, empty: str = "as_tensors") -> dict[str, Any]:
    """One argument of the schema. empty: the alternative to use for an empty list."""
    if isinstance(arg, fx.Node):
        if arg.op == "get_attr":
            return scope.subgraph(arg)
        effective = scope.effective(arg)
        if not isinstance(effective, fx.Node):
            return write_argument(effective, scope, empty)
        val = effective.meta.get("val")
        if not kind_of_value(val):
            what = "results are passed on together" if isinstance(val, (list, tuple)) else "value is not known"
            what = f"the {what} ({effective.name} as an argument), which a .pt2 file cannot hold"
            raise OutputError(what, hint=TEXT_HINT)
        return write_use(effective.name, val)
    if isinstance(arg, (list, tuple)):
        return _write_list(arg, scope, empty)
    if isinstance(arg, dict):
        if not all(type(key) is str for key in arg):
            raise OutputError("a .pt2 file cannot hold a dictionary with keys that are no strings", hint=TEXT_HINT)
        return {"as_string_to_argument": {key: write_argument(value, scope) for key, value in arg.items()}}
    if isinstance(arg, torch.dtype):
        if arg not in DTYPE_NUMBERS:
            raise OutputError(f"a .pt2 file cannot hold {arg}", hint=TEXT_HINT)
        return {"as_scalar_type": DTYPE_NUMBERS[arg]}
    writer = _CONSTANTS.get(type(arg))
    if writer is not None:
        return writer(arg)
    if isinstance(arg, (OpOverload, HigherOrderOperator)):
        return {"as_operator": schema_path(arg)}
    raise OutputError(f"a .pt2 file cannot hold an argument of type {type(arg).__name__}", hint=TEXT_HINT)


_CONSTANTS: dict[type, Callable[[Any], dict[str, Any]]] = {
    bool: lambda arg: {"as_bool": arg},
    str: lambda arg: {"as_string": arg},
    int: lambda arg: {"as_int": arg},
    float: lambda arg: {"as_float": write_number(arg)},
    complex: lambda arg: {"as_complex": {"real": write_number(arg.real), "imag": write_number(arg.imag)}},
    type(None): lambda _arg: {"as_none": True},
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


def write_use(name: str, val: Any) -> dict[str, Any]:
    """A use of the value ``val``, which is called ``name``; it must have a kind."""
    kind = kind_of_value(val)
    if kind == "tensor":
        return {"as_tensor": {"name": name}}
    if kind == "custom":
        return {"as_custom_obj": {"name": name, "class_fqn": val.class_fqn}}
    return {f"as_sym_{kind}": {"as_name": name}}


def _write_list(arg: Any, scope: WritingScope, empty: str) -> dict[str, Any]:
    # What an empty list holds is up to the schema of the op.
    if not arg:
        return {empty: []}
    items = [scope.effective(item) if isinstance(item, fx.Node) else item for item in arg]
    kinds = {_kind_of_item(item) for item in items}
    if len(kinds) == 1:
        writer = _HOMOGENEOUS.get(next(iter(kinds)))
        if writer is not None:
            return writer(items)
    for kind in ("int", "float", "bool"):
        if kinds <= {kind, f"node {kind}"}:
            return {f"as_sym_{kind}s": [_symbolic(item, kind) for item in items]}
    if kinds <= {"node tensor", "NoneType"}:
        none = {"as_none": True}
        return {"as_optional_tensors": [none if n is None else {"as_tensor": {"name": n.name}} for n in items]}
    if kinds <= {"list", "tuple"}:
        return _write_nested(items, scope)
    words = ", ".join(sorted(kinds))
    raise OutputError(f"a .pt2 file cannot hold a list of {words}", hint=TEXT_HINT)


def _symbolic(item: Any, kind: str) -> dict[str, Any]:
    """One item of a list that mixes numbers and nodes."""
    if isinstance(item, fx.Node):
        return {"as_name": item.name}
    return {f"as_{kind}": write_number(item) if kind == "float" else item}


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


def _write_nested(items: list[Any], scope: WritingScope) -> dict[str, Any]:
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
    # Optional lists of optional items are as deep as schemas go.
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
