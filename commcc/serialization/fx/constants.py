"""Tensor constants by value, as JSON in a text, and what is said of those whose value is not there.

A constant is stored with its bytes if it has at most 64 KiB, else by shape only. One whose value is not
known is a fake tensor, what is not known at all an empty module; notes say so.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from commcc.base.errors import InputError
from commcc.graph.program import Note
from commcc.serialization.attributes import constant, flat_tensor
from commcc.serialization.fx.values import constants
from commcc.serialization.shapes import contiguous_stride, format_val, parse_val, requires_grad_of, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commcc.base.terms import Json
    from commcc.serialization.shapes import ShapeContext

MAX_CONSTANT_BYTES = 64 << 10


def unknown_note(path: str, value: Any) -> Note:
    """The note about an attribute of which the text has no value."""
    if isinstance(value, torch.Tensor):
        return Note(f"the value of constant {path} is not in the text")
    return Note(f"what {path} is (a sub-graph or a constant) is not in the text")


def subclass_note(kind: str, nodes: Sequence[str]) -> Note:
    """The note about values of a tensor subclass, of which a text keeps shape, dtype and device."""
    return Note(f"{kind} values are kept as plain tensors ({len(nodes)} nodes)", nodes[0])


def encode_constant(value: torch.Tensor, size_text: Callable[[object], str]) -> dict[str, Json]:
    """A constant: its bytes if it is real and small enough, else its shape and device only.

    Strides are kept where they only permute the elements; anything else is stored contiguously.
    """
    if not has_value(value):
        return {"val": format_val(value, size_text)}
    with _disable_current_modes():  # a backend may ask while PyTorch traces
        plain = value.detach().to("cpu").contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    shape, stride = list(value.shape), list(value.stride())
    body: dict[str, Any] = {
        "dtype": str(value.dtype),
        "shape": shape,
        "stride": stride if span(shape, stride) == value.numel() else contiguous_stride(shape),
        "data": base64.b64encode(data).decode(),
    }
    if isinstance(value, nn.Parameter):
        body["parameter"] = True
    if requires_grad_of(value):
        body["requires_grad"] = True
    return body


def has_value(value: torch.Tensor) -> bool:
    """Whether the bytes of a constant go into the text."""
    if isinstance(value, FakeTensor) or value.device.type == "meta":
        return False
    return value.numel() * value.element_size() <= MAX_CONSTANT_BYTES


def decode_constant(body: Any, ctx: ShapeContext) -> torch.Tensor:
    """What :func:`encode_constant` encoded, on the CPU; :class:`InputError` for anything else."""
    if isinstance(body, dict) and isinstance(body.get("val"), str):
        val = parse_val(body["val"], ctx)
        if isinstance(val, torch.Tensor):
            return val
    try:
        value = _with_data(body)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, binascii.Error):
        raise InputError("a constant is damaged", hint="write the file again") from None
    return constant(value, parameter=body.get("parameter") is True, requires_grad=body.get("requires_grad") is True)


def _with_data(body: Any) -> torch.Tensor:
    shape, stride, dtype = body["shape"], body["stride"], constants()[body["dtype"]]
    data = base64.b64decode(body["data"], validate=True)
    if len(data) % dtype.itemsize or len(data) > MAX_CONSTANT_BYTES:
        raise ValueError("wrong length")
    numel = len(data) // dtype.itemsize
    if len(shape) != len(stride) or any(type(number) is not int or number < 0 for number in (*shape, *stride)):
        raise ValueError("wrong sizes")
    # Every element has one place, and no place is left over.
    if math.prod(shape) != numel or (numel and span(shape, stride) != numel):
        raise ValueError("wrong sizes")
    found = torch.empty_strided(shape, stride, dtype=dtype)
    return found.copy_(flat_tensor(data, dtype).reshape(shape))
