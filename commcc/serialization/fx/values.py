"""Arguments as FX prints them: syntax trees to values, and values to text.

::

    reader = Values(env, ctx)
    reader.value(expression_tree("[x, slice(0, 4, None), torch.bfloat16, device(type='cuda', index=0)]"))
    argument_text([node, 1.5, float("inf")])      # '[x, 1.5, inf]'

Names stand for nodes in ``env``. Only literals, containers, dtypes, layouts, memory formats, devices,
slices and ops come out; no attribute of anything else is ever looked up.
Limits: tensors, enums and Python objects in arguments cannot be read or written.
"""

from __future__ import annotations

import ast
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx.immutable_collections import immutable_dict, immutable_list

from commcc.base.errors import InputError, OutputError
from commcc.graph.ops import OpaqueOp
from commcc.serialization.symbols import SYMBOL_NAME
from commcc.serialization.targets import path_of, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commcc.serialization.shapes import ShapeContext

_OPS = (OpOverload, OpOverloadPacket, HigherOrderOperator, OpaqueOp)
_TORCH_TYPES = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBERS: dict[str, Any] = {
    "inf": math.inf,
    "nan": math.nan,
    "math.inf": math.inf,
    "math.nan": math.nan,
    "Ellipsis": ...,
}
_SYMBOL_NODES = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Call, ast.Compare)


@lru_cache(maxsize=1)
def constants() -> Mapping[str, Any]:
    """``torch.float32``, ``torch.strided``, ``torch.contiguous_format`` and the like, by printed name."""
    named = {f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, _TORCH_TYPES)}
    return {**named, **_NUMBERS}


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` as a string, None for anything that is not a plain chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


class Values:
    """Turns syntax trees into argument values; names are looked up in ``env``, symbols in ``ctx``."""

    def __init__(self, env: Mapping[str, fx.Node], ctx: ShapeContext) -> None:
        self.env = env
        self.ctx = ctx
        self.readers: dict[type, Callable[[Any], Any]] = {
            ast.Name: self._name,
            ast.Tuple: lambda node: tuple([self.value(item) for item in node.elts]),
            ast.List: lambda node: [self.value(item) for item in node.elts],
            ast.Dict: self._dict,
            ast.Attribute: _attribute,
            ast.UnaryOp: self._unary,
            ast.BinOp: self._binary,
            ast.Call: self._call,
            ast.Slice: lambda node: slice(
                *(None if part is None else self.value(part) for part in (node.lower, node.upper, node.step))
            ),
        }

    def value(self, node: ast.expr) -> Any:
        """The value of an expression; what no graph holds raises :class:`InputError`."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bytes):
                raise InputError("bytes are not allowed in an argument")
            return node.value
        reader = self.readers.get(type(node))
        if reader is None:
            raise InputError(f"{type(node).__name__} is not allowed in an argument")
        return reader(node)

    def call_arguments(self, node: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a call."""
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg in kwargs:
                raise InputError("** or a repeated keyword in a call")
            kwargs[keyword.arg] = self.value(keyword.value)
        return tuple([self.value(arg) for arg in node.args]), kwargs

    def _name(self, node: ast.Name) -> Any:
        value = self.env.get(node.id)
        if value is not None:
            return value
        if node.id in _NUMBERS:
            return _NUMBERS[node.id]
        if SYMBOL_NAME.fullmatch(node.id) and node.id in self.ctx.symbols:
            return self.ctx.parse_symbolic(node.id)
        raise InputError(f"{node.id[:80]!r} is used before it is defined, or after it was deleted")

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            key = None if key_node is None else self.value(key_node)
            # Anything else as a key might not be hashable.
            if not isinstance(key, (str, int, float, bool)) or isinstance(key, fx.Node):
                raise InputError("a dictionary key is neither a string nor a number")
            out[key] = self.value(value_node)
        return out

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub):
            # Not bool: -True would be read as -1.
            if type(value) in (int, float, complex):
                return -value
            return self._symbolic(node)
        raise InputError(f"{type(node.op).__name__} is not allowed in an argument")

    def _binary(self, node: ast.BinOp) -> Any:
        imaginary = node.right.value if isinstance(node.right, ast.Constant) else None
        if isinstance(imaginary, complex) and isinstance(node.op, (ast.Add, ast.Sub)):
            negative = isinstance(node.left, ast.UnaryOp)  # -0.0 is printed as -0
            real = self.value(node.left.operand if isinstance(node.left, ast.UnaryOp) else node.left)
            # Python reads (1+2j) as a sum of a real and an imaginary literal.
            if type(real) in (int, float):
                real = -float(real) if negative else float(real)
                return complex(real, imaginary.imag if isinstance(node.op, ast.Add) else -imaginary.imag)
        return self._symbolic(node)

    def _symbolic(self, node: ast.expr) -> Any:
        """Arithmetic on symbolic sizes, as in ``[8*u0, 64]``; each name must be a symbol seen before."""
        for part in ast.walk(node):
            if isinstance(part, ast.expr) and not isinstance(part, _SYMBOL_NODES):
                raise InputError(f"{type(part).__name__} is not allowed in a symbolic size")
            name = part.id if isinstance(part, ast.Name) else ""
            # It would be a node of its own.
            if name in self.env:
                raise InputError(f"arithmetic on {name[:80]!r} inside an argument")
            if SYMBOL_NAME.fullmatch(name) and name not in self.ctx.symbols:
                raise InputError(f"{name[:80]!r} is used before it is defined")
        return self.ctx.parse_integer(ast.unparse(node))

    def _call(self, node: ast.Call) -> Any:
        name = dotted(node.func)
        args, kwargs = self.call_arguments(node)
        if name in ("device", "torch.device"):
            try:
                return torch.device(*args, **kwargs)
            except (RuntimeError, TypeError, ValueError) as error:
                raise InputError(f"not a device: {str(error).splitlines()[0][:100]}") from None
        if name == "slice" and len(args) in (1, 2, 3) and not kwargs:
            return slice(*args)
        if name == "torch.Size" and len(args) == 1 and isinstance(args[0], list):
            return torch.Size(args[0])
        if name == "complex" and len(args) == 2 and all(type(arg) in (int, float) for arg in args):
            return complex(*args)
        if name == "Sym" and len(args) == 1 and isinstance(args[0], str):
            return self.ctx.parse_symbolic(args[0])
        raise InputError(f"a call of {str(name)[:80]!r} is not allowed in an argument")


def _attribute(node: ast.Attribute) -> Any:
    name = dotted(node)
    if name is None:
        raise InputError(f"attribute {node.attr[:80]!r} of an expression is not allowed")
    value = constants().get(name)
    if value is not None:
        return value
    if name.startswith("torch.ops."):
        return resolve(name)
    raise InputError(f"{name[:120]!r} is neither an op nor a dtype, layout or memory format")


def argument_text(value: Any) -> str:
    """``value`` as FX prints it, and as :class:`Values` reads it; :class:`OutputError` if that is not possible."""
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value)
    # Subclasses and types without a fixed class: rare, so the table comes first.
    for kind, writer in _SUBCLASSES:
        if isinstance(value, kind):
            return writer(value)
    raise OutputError(f"an argument of type {type(value).__name__} cannot be written as text")


def _write_tuple(value: tuple[Any, ...]) -> str:
    # It would come back as a plain tuple.
    if hasattr(value, "_fields"):
        raise OutputError(f"a named tuple {type(value).__name__} cannot be written as text")
    items = [argument_text(item) for item in value]
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _write_list(value: list[Any]) -> str:
    return f"[{', '.join([argument_text(item) for item in value])}]"


def _write_dict(value: dict[Any, Any]) -> str:
    return "{" + ", ".join([f"{argument_text(key)}: {argument_text(item)}" for key, item in value.items()]) + "}"


_WRITERS: dict[type, Callable[[Any], str]] = {
    fx.Node: lambda node: node.name,
    int: repr,
    bool: repr,
    str: repr,
    type(None): repr,
    float: repr,  # also inf, -inf and nan, which are names in FX text
    complex: lambda value: f"complex({value.real!r}, {value.imag!r})",
    tuple: _write_tuple,
    list: _write_list,
    dict: _write_dict,
    slice: lambda value: f"slice({', '.join(argument_text(part) for part in (value.start, value.stop, value.step))})",
    type(...): lambda _: "...",
    immutable_list: _write_list,
    immutable_dict: _write_dict,
    torch.device: repr,
    torch.Size: lambda size: f"torch.Size({_write_list(list(size))})",
}
_SUBCLASSES: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (fx.Node, lambda node: node.name),
    (_OPS, path_of),
    (_TORCH_TYPES, str),
    (_SYMBOLIC, lambda value: f"Sym({str(value)!r})"),
    (list, _write_list),
    (dict, _write_dict),
    (tuple, _write_tuple),
)
