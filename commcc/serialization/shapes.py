"""Values without data: what ``node.meta["val"]`` holds, made from text and printed as text.

Usage::

    ctx = ShapeContext()
    ctx.declare("u0", lower=0, upper=4096)
    t = parse_val("bf16[8*u0, 64][64, 1]cuda:0", ctx)     # FakeTensor
    format_val(t)                                         # 'bf16[8*u0, 64][64, 1]cuda:0'

One context belongs to one Program: its tensors share one ``FakeTensorMode`` and one ``ShapeEnv``, and
symbols keep the names that the file gave them.

Devices are kept as written (``cuda`` and ``cuda:3`` differ) and never touched, so that a graph captured
on 64 GPUs loads on a laptop and reading starts no CUDA context. ``requires_grad`` is only remembered
(:func:`requires_grad_of`): a fake CUDA tensor that autograd sees aborts the process on a CPU build.

Limits: dense tensors only. The storage of a tensor with symbolic sizes is left empty; its size is
never known from a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._dtype_abbrs import dtype_abbrs

from commcc.base.errors import InputError, OutputError
from commcc.serialization.fx.context import REQUIRES_GRAD, ShapeContext, SymbolInfo, symbols_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "ShapeContext",
    "SymbolInfo",
    "contiguous_stride",
    "dtype_of",
    "format_sizes",
    "format_val",
    "parse_val",
    "requires_grad_of",
    "split_annotation",
    "symbols_in",
]

_DTYPES = {abbreviation: dtype for dtype, abbreviation in dtype_abbrs.items()}
_TENSOR = re.compile(r"([a-z]\w*)\[([^][]*)\](?:\[([^][]*)\])?([a-z]\w*(?::\d+)?)?")
_CONSTANT = re.compile(r"(?:\d{1,19}(?:, \d{1,19})*)?")
_WRAPPED = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.DOTALL)


def requires_grad_of(tensor: torch.Tensor) -> bool:
    """Whether the graph says that the tensor requires grad, however that is remembered."""
    return tensor.requires_grad or getattr(tensor, REQUIRES_GRAD, False) is True


def contiguous_stride(shape: Sequence[Any]) -> list[Any]:
    """Row-major strides; symbolic sizes multiply without evaluating guards."""
    stride: list[Any] = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        size = shape[i + 1]
        stride[i] = stride[i + 1] * (size if type(size) is not int else max(size, 1))
    return stride


def _split(text: str) -> list[str]:
    """Split at the commas outside parentheses."""
    if not text.strip():
        return []
    parts = text.split(",")
    if "(" not in text:
        return [part.strip() for part in parts]
    out: list[str] = []
    depth = 0
    for part in parts:
        if depth:
            out[-1] += "," + part
        else:
            out.append(part)
        depth += part.count("(") - part.count(")")
    return [part.strip() for part in out]


def dtype_of(abbreviation: str) -> torch.dtype:
    """``torch.bfloat16`` for ``bf16``; :class:`InputError` for what this PyTorch does not have."""
    dtype = _DTYPES.get(abbreviation)
    if dtype is None:
        raise InputError(f"unknown dtype {abbreviation[:40]!r}")
    return dtype


@dataclass(frozen=True)
class TensorText:
    """An annotation taken apart; ``stride`` and ``device`` are None where it does not say.

    wrapper: the tensor subclass around it (``DTensor``, ``Parameter``), None for plain tensors.
    """

    dtype: str
    shape: str
    stride: str | None
    device: str | None
    wrapper: str | None = None


@lru_cache(maxsize=20_000)
def split_annotation(text: str) -> TensorText | None:
    """The parts of a tensor annotation, None if the text is not one."""
    match = _TENSOR.fullmatch(text)
    if match is not None:
        return TensorText(match[1], match[2], match[3], match[4])
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped is None or wrapped[1] == "Sym":
        return None
    inner = _TENSOR.match(wrapped[2])
    return TensorText(inner[1], inner[2], inner[3], inner[4], wrapped[1]) if inner is not None else None


def parse_val(text: str, ctx: ShapeContext, *, device: str = "cpu") -> Any:
    """The value that an annotation describes: a FakeTensor, or a symbolic scalar for ``Sym(...)``.

    Strides that the text leaves out are taken as contiguous, a device that it leaves out as ``device``.
    Anything that is not an annotation raises :class:`InputError`.
    """
    if text.startswith("Sym(") and text.endswith(")"):
        return ctx.parse_symbolic(text[4:-1])
    known = _constant_sizes(text)
    if known is not None:
        shape, stride, dtype, found = known
        return ctx.tensor(shape, stride, dtype, found or device)
    parts = split_annotation(text)
    if parts is None:
        raise InputError(f"cannot read the annotation {text[:80]!r}")
    sizes = [ctx.parse_integer(part) for part in _split(parts.shape)]
    strides = contiguous_stride(sizes) if parts.stride is None else [ctx.parse_integer(s) for s in _split(parts.stride)]
    return ctx.tensor(sizes, strides, dtype_of(parts.dtype), parts.device or device)


@lru_cache(maxsize=20_000)
def _constant_sizes(text: str) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype, str | None] | None:
    """Shape, stride, dtype and device of an annotation without symbols; None for all others."""
    parts = split_annotation(text)
    if parts is None or not _CONSTANT.fullmatch(parts.shape) or not _CONSTANT.fullmatch(parts.stride or ""):
        return None
    shape = tuple(map(int, _split(parts.shape)))
    stride = contiguous_stride(shape) if parts.stride is None else map(int, _split(parts.stride))
    return shape, tuple(stride), dtype_of(parts.dtype), parts.device


def format_sizes(sizes: Iterable[Any], size_text: Callable[[object], str] = str) -> str:
    return f"[{', '.join([size_text(size) for size in sizes])}]"


def format_val(val: Any, size_text: Callable[[object], str] = str) -> str:
    """The annotation that torch prints with strides and devices; empty for what has none (tuples, None, ints).

    size_text: prints sizes and strides, numbers and symbolic ones.
    """
    if isinstance(val, torch.Tensor):
        shape, stride = format_sizes(val.shape, size_text), format_sizes(val.stride(), size_text)
        return f"{_abbreviation(val.dtype)}{shape}{stride}{val.device}"
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"Sym({size_text(val)})"
    return ""


def _abbreviation(dtype: torch.dtype) -> str:
    try:
        return dtype_abbrs[dtype]
    except KeyError:
        raise OutputError(f"dtype {dtype} has no short name") from None
