"""Arguments of a node by schema name, defaults filled in, and as keys of terms.

Positional, keyword and left-out arguments come out the same::

    aten.sum.dim_IntList(x, [0])  ==  aten.sum.dim_IntList(self=x, dim=[0], keepdim=False)

Limits: ops without a schema (higher-order ops, unknown ops) are bound by position and keyword as written.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from commcc.graph.ops import OpaqueOp, argument_names, op_name
from commcc.verify.sizes import Poly
from commcc.verify.values import Opaque, Tensor

if TYPE_CHECKING:
    from torch import fx

    from commcc.verify.table import Terms

_MISSING = object()
_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_TARGETS = (OpOverload, OpOverloadPacket, HigherOrderOperator, OpaqueOp)


@lru_cache(maxsize=4096)
def path_of(target: Any) -> str:
    """The op with its overload: ``aten.mm.default``."""
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, OpaqueOp):
        return target.qualified_name
    return op_name(target)


@lru_cache(maxsize=4096)
def _signature(target: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Name, default and whether it is a float, for each argument."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return tuple((name, _MISSING, False) for name in argument_names(target))
    return tuple(
        (a.name, a.default_value if a.has_default_value() else _MISSING, str(a.type) in ("float", "Optional[float]"))
        for a in schema.arguments
    )


def bind(node: fx.Node) -> dict[str, Any]:
    """Arguments by name, in schema order; by position where there is no schema, or it does not fit."""
    signature = _signature(node.target)
    args, kwargs = node.args, node.kwargs
    if len(args) > len(signature) or (kwargs and not {name for name, _, _ in signature}.issuperset(kwargs)):
        return {**{str(i): a for i, a in enumerate(args)}, **{name: kwargs[name] for name in sorted(kwargs)}}
    bound: dict[str, Any] = {}
    for position, (name, default, is_float) in enumerate(signature):
        value = args[position] if position < len(args) else kwargs.get(name, default)
        if value is _MISSING:
            continue
        if is_float and type(value) is int:
            value = float(value)
        bound[name] = value
    return bound


def key_of(table: Terms, value: Any) -> tuple[Any, ...]:
    """A resolved argument as a key; constants carry their type, so that ``1``, ``1.0`` and ``True`` differ."""
    if isinstance(value, Tensor):
        return ("tensor", value.content, value.shape, value.dtype)
    if value is None:
        return ("none",)
    if isinstance(value, (bool, float, complex)):
        return (type(value).__name__, repr(value))
    if isinstance(value, (int, Poly)):
        return ("int", value)
    if isinstance(value, str):
        return ("str", value)
    if isinstance(value, (tuple, list)):
        return ("list", tuple(key_of(table, part) for part in value))
    if isinstance(value, Opaque):
        return ("value", value.term)
    return _rare_key(table, value)


def _rare_key(table: Terms, value: Any) -> tuple[Any, ...]:
    if isinstance(value, _CONSTANTS):
        return (type(value).__name__, str(value))
    if isinstance(value, dict):
        parts = sorted(value.items(), key=lambda entry: str(entry[0]))
        return ("dict", tuple((str(name), key_of(table, part)) for name, part in parts))
    if isinstance(value, slice):
        return ("slice", tuple(key_of(table, part) for part in (value.start, value.stop, value.step)))
    if isinstance(value, _TARGETS):
        return ("op", path_of(value))
    if value is Ellipsis:
        return ("ellipsis",)
    return ("value", table.foreign(value))
