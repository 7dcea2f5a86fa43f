"""Constants of a repro file: what ``__init__`` of its class puts into buffers, read and never run.

    self.register_buffer('_tensor_constant0', tensor([1, 2]))                      value with data
    self.register_buffer('_tensor_constant1', torch.randn([5000], dtype=...))      value without data

Limits: PyTorch writes the data of small constants only; of others, and of those on a GPU, only the shape
is kept.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import InputError
from commcc.serialization.logs.runnable_args import argument, device_of, dtype_of, keyword
from commcc.serialization.shapes import contiguous_stride

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor

    from commcc.serialization.shapes import ShapeContext

_SUBMODULE = re.compile(r"^([ \t]*)self\.\w+ = (?!torch\.nn\.Parameter\()[^\n]*$", re.MULTILINE)
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_FILLED = ("torch.randn", "torch.randint", "torch.zeros", "torch.ones", "torch.empty", "torch.rand")


@dataclass(frozen=True)
class Constant:
    """One constant; ``data`` is None where the file does not give it."""

    val: FakeTensor
    data: torch.Tensor | None


def read_constants(init: str, where: str, ctx: ShapeContext) -> dict[str, Constant]:
    """Constants by name from the text of ``__init__``; those in an unknown form are left out."""
    source = "class Repro:\n" + _SUBMODULE.sub(r"\1pass", init)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("__init__ of the repro cannot be parsed", where=where, hint="dump the graph again") from None
    out: dict[str, Constant] = {}
    for node in ast.walk(tree):
        named = _named(node)
        if named is not None:
            constant = _constant(named[1], ctx, where)
            if constant is not None:
                out[named[0]] = constant
    return out


def _named(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Name and value of ``self.register_buffer(name, value)`` and ``self.name = value``."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        return node.targets[0].attr, node.value
    if not isinstance(node, ast.Call) or len(node.args) != 2 or not isinstance(node.args[0], ast.Constant):
        return None
    name = node.args[0].value
    is_buffer = isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer"
    return (name, node.args[1]) if is_buffer and isinstance(name, str) and name.isidentifier() else None


def _constant(value: ast.expr, ctx: ShapeContext, where: str) -> Constant | None:
    device: ast.expr | None = None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        device, value = argument(value, 0, "device"), value.func.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "torch.nn.Parameter" and value.args:
        value = value.args[0]
    if not isinstance(value, ast.Call):
        return None
    device = device or keyword(value, "device")
    place = torch.device("cpu") if device is None else device_of(device)
    dtype = keyword(value, "dtype")
    kind = None if dtype is None else dtype_of(dtype)
    function = ast.unparse(value.func)
    if function in _FILLED:
        sizes = keyword(value, "size") or argument(value, 0, "size")
        shape = ast.literal_eval(sizes) if isinstance(sizes, (ast.List, ast.Tuple)) else None
        if not isinstance(shape, (list, tuple)) or not all(type(size) is int for size in shape):
            raise InputError("the sizes of a constant must be numbers", where=where)
        return Constant(ctx.tensor(shape, contiguous_stride(shape), kind or torch.float32, place), None)
    if function in ("tensor", "torch.tensor") and value.args:
        return _with_data(value, kind, place, ctx, where)
    return None


def _with_data(
    call: ast.Call, dtype: torch.dtype | None, device: torch.device, ctx: ShapeContext, where: str
) -> Constant:
    try:
        data = torch.tensor(_literal(call.args[0]), dtype=dtype)
        size = keyword(call, "size")
        if size is not None:
            data = data.reshape(ast.literal_eval(size))
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InputError(f"a constant is no tensor: {str(error)[:100]}", where=where) from None
    val = ctx.tensor(data.shape, data.stride(), data.dtype, device)
    return Constant(val, data if device.type == "cpu" else None)


def _literal(node: ast.expr) -> Any:
    """Nested lists of numbers, as the printed form of a tensor has them."""
    if isinstance(node, ast.List):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, complex)):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NUMBERS:
        return _NUMBERS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_literal(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = _literal(node.left), _literal(node.right)
        return left + right if isinstance(node.op, ast.Add) else left - right
    raise ValueError(f"{ast.unparse(node)[:40]!r} is not a number")
