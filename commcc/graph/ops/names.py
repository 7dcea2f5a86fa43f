"""Targets of nodes by name, and their arguments by name.

op_name(torch.ops.aten.mm.default)             # "aten.mm"
argument(node, "group_name")                   # given by position or by keyword
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from commcc.graph.ops import packets
from commcc.graph.ops.collective_table import COLLECTIVES
from commcc.graph.ops.functions import plain_name
from commcc.graph.ops.libraries import OWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from commcc.graph.ops.described import Description


#: What the names of known ops and functions begin with.
_KNOWN = OWN | {"builtins", "math"}


@dataclass(frozen=True)
class OpaqueOp:
    """An op named in a file that this PyTorch does not know, or one that a user's file describes.

    It is executed only where a description says how.
    """

    qualified_name: str
    described: Description | None = None

    @property
    def __name__(self) -> str:
        return self.qualified_name.replace(".", "_")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.described is not None:
            return self.described.call(args, kwargs)
        raise NotImplementedError(f"{self.qualified_name} is not registered with this PyTorch")


def described_as(target: Any) -> Description | None:
    """What a user's file says of an op; None where no file does."""
    return target.described if isinstance(target, OpaqueOp) else None


def constants_of(target: Any) -> dict[str, Any]:
    """What an op that is like another one, as a user's file says, hands it besides its own arguments."""
    described = described_as(target)
    return {} if described is None else dict(described.constants)


@lru_cache(maxsize=4096)
def op_name(target: Any) -> str:
    """Library and op without the overload: ``aten.mm``, ``higher_order.cond``, ``operator.getitem``.

    Of other functions of Python, several may have one name.
    """
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload):
        return str(target).rsplit(".", 1)[0]
    if isinstance(target, OpOverloadPacket):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target._name}"
    if isinstance(target, OpaqueOp):
        if target.described is not None and target.described.like is not None:
            return op_name(target.described.like)
        parts = target.qualified_name.split(".")
        return ".".join(parts[:2])
    module = getattr(target, "__module__", None) or ""
    prefix = "operator" if module == "_operator" else module
    name = f"{prefix}.{getattr(target, '__name__', repr(target))}"
    # A user's module may have the name of a library; what it holds are not the ops of that.
    borrowed = prefix in _KNOWN and plain_name(target) is None
    return f"python.{name}" if borrowed else name


def library_of(target: Any) -> str:
    """``aten`` of ``aten.mm``."""
    return op_name(target).partition(".")[0]


def is_getitem(target: Any) -> bool:
    return target is operator.getitem


@lru_cache(maxsize=4096)
def argument_names(target: Any) -> tuple[str, ...]:
    """Names of the positional arguments of an op, from the table of collectives or the schema; empty when unknown."""
    fact = COLLECTIVES.get(op_name(target))
    if fact is not None:
        return fact.arguments
    if is_getitem(target):
        return ("a", "b")
    if isinstance(target, OpaqueOp):
        return target.described.arguments if target.described is not None else ()
    schema = getattr(target, "_schema", None)
    return tuple(a.name for a in schema.arguments) if schema is not None else ()


def takes(target: Any, name: str) -> bool:
    """Whether an op has an argument of that name, as far as its names are known; one without an overload may have."""
    if isinstance(target, OpOverloadPacket) and packets.is_named(target, name):
        return True
    return name in argument_names(target)


def names_given(node: fx.Node) -> tuple[str, ...]:
    """Names of the positional arguments of a call, as far as they are known."""
    names = argument_names(node.target)
    return packets.position_names(node) if not names and isinstance(node.target, OpOverloadPacket) else names


def as_given(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call of which no names are known, or that fits none: by position, but for those of packets."""
    names, kwargs = () if argument_names(node.target) else names_given(node), node.kwargs
    placed = {names[at] if at < len(names) else str(at): given for at, given in enumerate(node.args)}
    return {**placed, **{name: kwargs[name] for name in sorted(kwargs)}}


def argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """The argument called ``name``, given by keyword or by position; ``default`` when it is not given."""
    if name in node.kwargs:
        return node.kwargs[name]
    names = names_given(node)
    position = names.index(name) if name in names else len(node.args)
    if position < len(node.args):
        return node.args[position]
    return constants_of(node.target).get(name, default)


def set_argument(node: fx.Node, name: str, value: Any) -> None:
    """Give the argument called ``name`` another value, by keyword or position as it is written; KeyError without it."""
    if name in node.kwargs:
        node.kwargs = {**node.kwargs, name: value}
        return
    names = names_given(node)
    position = names.index(name) if name in names else len(node.args)
    if position >= len(node.args):
        raise KeyError(name)
    node.args = (*node.args[:position], value, *node.args[position + 1 :])


def overload(path: str) -> Callable[..., Any]:
    """The op for ``namespace.op.overload`` or ``operator.getitem``; for commcc's own use, not for names from files."""
    if path == "operator.getitem":
        return operator.getitem
    namespace, op, which = path.split(".")
    target: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), op), which)
    return target
