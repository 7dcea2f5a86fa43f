"""``load_args`` of a repro file, as values: an interpreter for the six calls that PyTorch writes there.

    read_args('def load_args(reader):\\n    reader.symint(8)\\n', "repro.py", ctx).values     # [Sym(s0)]

Limits: anything else in the function is refused with its line, except what only prepares data.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import InputError
from commcc.serialization.shapes import ShapeContext, contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Callable

_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_SYMBOL = re.compile(r"[su]\d{1,9}")
_HINT = "load_args must be as PyTorch writes it; dump the graph again"


class _NoValue:
    """An argument without a value that a graph can carry (a DeviceMesh, a generator)."""


NO_VALUE = _NoValue()


@dataclass
class Arguments:
    """values: one per input, in order; shared: pairs of inputs that lie in one storage."""

    values: list[Any] = field(default_factory=list)
    shared: list[tuple[int, int]] = field(default_factory=list)


def read_args(source: str, where: str, ctx: ShapeContext) -> Arguments:
    """The arguments that ``load_args`` makes; raises :class:`InputError` with the line."""
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise InputError(f"load_args: {error.msg}", where=f"{where}:{error.lineno}", hint=_HINT) from None
    except (ValueError, RecursionError, MemoryError):
        raise InputError("load_args cannot be parsed", where=where, hint=_HINT) from None
    reader = _Reader(ctx)
    function = module.body[0]
    for statement in function.body if isinstance(function, ast.FunctionDef) else []:
        _read(reader, statement, where)
    return reader.arguments


def _read(reader: _Reader, statement: ast.stmt, where: str) -> None:
    try:
        reader.statement(statement)
    except InputError as error:
        raise InputError(error.what, where=f"{where}:{statement.lineno}", hint=error.hint or _HINT) from None
    except RecursionError:
        raise InputError("nested too deeply", where=f"{where}:{statement.lineno}", hint=_HINT) from None


class _Reader:
    """State of ``load_args``: storages by variable, arguments in order."""

    def __init__(self, ctx: ShapeContext) -> None:
        self.ctx = ctx
        self.arguments = Arguments()
        self.devices: dict[str, torch.device] = {}
        self.used_by: dict[str, int] = {}
        self.calls: dict[str, Callable[[ast.Call], Any]] = {
            "tensor": self._tensor,
            "symint": self._symint,
            "const": lambda _call: None,
            "unsupported": lambda _call: NO_VALUE,
            "generator": lambda _call: NO_VALUE,
            "opaque": lambda _call: NO_VALUE,
        }

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.If, ast.Pass)):
            return  # fills example data
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # describes an unsupported argument
        if isinstance(node, ast.Assign):
            self._assign(node)
            return
        call = node.value if isinstance(node, ast.Expr) else None
        method = _reader_method(call)
        if not isinstance(call, ast.Call) or method not in self.calls:
            raise InputError(f"{ast.unparse(node)[:80]!r} is not a call of the reader")
        self.arguments.values.append(self.calls[method](call))

    def _assign(self, node: ast.Assign) -> None:
        """``buf0 = reader.storage(...)``, or sizes as in ``u8 = u9 = 512``."""
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if len(names) != len(node.targets):
            raise InputError(f"{ast.unparse(node)[:80]!r} is not an assignment to a name")
        if _reader_method(node.value) == "storage" and isinstance(node.value, ast.Call):
            device = keyword(node.value, "device")
            for name in names:
                self.devices[name] = torch.device("cpu") if device is None else device_of(device)
            return
        if all(_SYMBOL.fullmatch(name) for name in names):
            hint = _integer(node.value)
            for name in names:
                self.ctx.declare(name, hint=hint)
            return
        raise InputError(f"{ast.unparse(node)[:80]!r} is not a storage")

    def _tensor(self, call: ast.Call) -> Any:
        storage = call.args[0] if call.args else None
        if not isinstance(storage, ast.Name) or storage.id not in self.devices:
            raise InputError("a tensor without a storage")
        shape = self._sizes(argument(call, 1, "shape"))
        stride = argument(call, 2, "stride")
        dtype, offset = keyword(call, "dtype"), keyword(call, "storage_offset")
        grad = keyword(call, "requires_grad")
        position = len(self.arguments.values)
        if self.used_by.setdefault(storage.id, position) != position:
            self.arguments.shared.append((self.used_by[storage.id], position))
        return self.ctx.tensor(
            shape or [],
            self._sizes(stride) if stride is not None else contiguous_stride(shape or []),
            torch.float32 if dtype is None else dtype_of(dtype),
            self.devices[storage.id],
            requires_grad=isinstance(grad, ast.Constant) and grad.value is True,
            storage_offset=0 if offset is None else self._size(offset),
        )

    def _symint(self, call: ast.Call) -> Any:
        """A symbol; a new one with the number as its hint when the file does not say which."""
        expr = keyword(call, "expr")
        if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
            return self.ctx.parse_integer(expr.value)
        hint = _integer(argument(call, 0, "val"))
        number = 1 + max((int(name[1:]) for name in self.ctx.symbols if name[0] in "su"), default=-1)
        return self.ctx.integer(self.ctx.declare(f"s{number}", hint=hint))

    def _sizes(self, node: ast.expr | None) -> list[int | torch.SymInt]:
        if not isinstance(node, (ast.Tuple, ast.List)):
            raise InputError("sizes must be a tuple")
        sizes = [self._size(element) for element in node.elts]
        for size in sizes:
            if type(size) is int and size < 0:
                raise InputError(f"a size cannot be {size}")
        return sizes

    def _size(self, node: ast.expr) -> int | torch.SymInt:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        return self.ctx.parse_integer(ast.unparse(node))


def _reader_method(node: ast.expr | None) -> str | None:
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "reader":
        return function.attr
    return None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The keyword argument ``name`` of a call."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """The argument at ``position``, or ``name`` given by keyword."""
    return call.args[position] if position < len(call.args) else keyword(call, name)


def _integer(node: ast.expr | None) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise InputError("a size must be a number")


def dtype_of(node: ast.expr) -> torch.dtype:
    """``torch.bfloat16`` as a dtype."""
    found = _DTYPES.get(ast.unparse(node))
    if found is None:
        raise InputError(f"unknown dtype {ast.unparse(node)[:40]!r}")
    return found


def device_of(node: ast.expr) -> torch.device:
    """``device(type='cuda', index=0)`` or ``'cuda:0'``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("device", "torch.device"):
        kind, index = argument(node, 0, "type"), argument(node, 1, "index")
        text = str(kind.value) if isinstance(kind, ast.Constant) else ""
        text += f":{_integer(index)}" if index is not None else ""
    else:
        text = ""
    try:
        return torch.device(text)
    except RuntimeError:
        raise InputError(f"unknown device {ast.unparse(node)[:40]!r}") from None
