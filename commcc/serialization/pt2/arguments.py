"""Arguments of a ``.pt2`` node: the schema's thirty alternatives to what FX holds, and back.

Usage::

    read_argument({"as_ints": [4, 8]}, scope)                     # [4, 8]
    read_argument({"as_tensor": {"name": "x"}}, scope)            # Ref("x"), if x is defined
    ArgumentWriter(kinds).write([4, node], schema_type)           # {"as_sym_ints": [{"as_int": 4}, ...]}

Limits: what the schema cannot say (lists that mix numbers and tensors, slices, nested tuples) raises
:class:`OutputError`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from commcc.base.errors import InputError
from commcc.serialization.pt2.schema import DTYPES, LAYOUTS, MEMORY_FORMATS, Ref, check_name, device_of, lookup, union
from commcc.serialization.pt2.symbols import number
from commcc.serialization.targets import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload


class Scope(Protocol):
    """What reading arguments needs to know about the graph around them."""

    def use(self, name: str) -> Ref:
        """A use of a node that is already defined."""
        ...

    def subgraph(self, name: str, graph: Any) -> Ref:
        """A use of a sub-graph, which is read and put beside the graph."""
        ...


def read_argument(data: Any, scope: Scope) -> Any:
    """One argument; anything that is not in the schema raises :class:`InputError`."""
    kind, value = union(data)
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


def _use_or_number(value: Any, scope: Scope) -> Any:
    """SymIntArgument and its like: a node's name, or a number in a list of sizes."""
    kind, item = union(value)
    if kind == "as_name":
        return scope.use(item)
    if kind == "as_float":
        return number(item)
    if kind in ("as_int", "as_bool"):
        return _checked(kind, item, int if kind == "as_int" else bool)
    raise InputError(f"unknown kind of symbolic argument {kind[:40]!r}")


def _use_or_none(value: Any, scope: Scope) -> Any:
    kind, item = union(value)
    if kind not in ("as_tensor", "as_none"):
        raise InputError(f"unknown kind of optional tensor {kind[:40]!r}")
    return scope.use(item["name"]) if kind == "as_tensor" else None


def _each(reader: Callable[[Any, Scope], Any]) -> Callable[[Any, Scope], Any]:
    return lambda values, scope: [reader(value, scope) for value in values]


def _tensor(value: Any, scope: Scope) -> Any:
    return scope.use(value["name"])


def _operator(value: Any, _scope: Scope) -> Any:
    return resolve(_checked("as_operator", value, str))


def _complex(value: Any, _scope: Scope) -> complex:
    return complex(number(value["real"]), number(value["imag"]))


def _dictionary(value: Any, scope: Scope) -> dict[str, Any]:
    return {_checked("a key", key, str): read_argument(item, scope) for key, item in value.items()}


_PLAIN: dict[str, type] = {"as_int": int, "as_bool": bool, "as_string": str}
_PLAIN_LISTS: dict[str, type] = {"as_ints": int, "as_bools": bool, "as_strings": str}
_READERS: dict[str, Callable[[Any, Scope], Any]] = {
    "as_none": lambda _value, _scope: None,
    "as_tensors": _each(_tensor),
    "as_nested_tensors": _each(_each(_tensor)),
    "as_optional_tensor": _use_or_none,
    "as_optional_tensors": _each(_use_or_none),
    "as_float": lambda value, _scope: number(value),
    "as_floats": lambda values, _scope: [number(value) for value in values],
    "as_float_lists": lambda lists, _scope: [[number(value) for value in values] for values in lists],
    "as_int_lists": lambda lists, _scope: [tuple(_checked("as_int_lists", n, int) for n in values) for values in lists],
    "as_complex": _complex,
    **dict.fromkeys(("as_sym_int", "as_sym_float", "as_sym_bool"), _use_or_number),
    **dict.fromkeys(("as_sym_ints", "as_sym_floats", "as_sym_bools"), _each(_use_or_number)),
    "as_scalar_type": lambda value, _scope: lookup(DTYPES, value, "dtype"),
    "as_memory_format": lambda value, _scope: lookup(MEMORY_FORMATS, value, "memory format"),
    "as_layout": lambda value, _scope: lookup(LAYOUTS, value, "layout"),
    "as_device": lambda value, _scope: device_of(value),
    "as_graph": lambda value, scope: scope.subgraph(check_name(value["name"]), value["graph"]),
    "as_custom_obj": lambda value, scope: scope.use(value["name"]),
    "as_operator": _operator,
    "as_string_to_argument": _dictionary,
}


@lru_cache(maxsize=4096)
def _argument_positions(target: OpOverload) -> dict[str, int]:
    return {argument.name: position for position, argument in enumerate(target._schema.arguments)}


def check_order(target: OpOverload, names: list[str], positional: int) -> None:
    """Arguments must come as the op declares them; PyTorch would sort them, or drop what it does not know."""
    positions = _argument_positions(target)
    found = [positions.get(name, -1) for name in names]
    if found[:positional] != list(range(positional)) or -1 in found or found != sorted(set(found)):
        raise InputError(f"the arguments are not those of {target}")
