"""What ``get_attr`` nodes refer to: sub-graphs, and tensor constants by value.

A constant is stored with its bytes if it has at most 64 KiB, else by shape only. One whose value is not
known is a fake tensor, what is not known at all an empty module; notes say so.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from commcc.base.errors import InputError
from commcc.graph.program import Note
from commcc.serialization.fx.context import REQUIRES_GRAD
from commcc.serialization.fx.values import constants
from commcc.serialization.shapes import contiguous_stride, format_val, parse_val, requires_grad_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.serialization.fx.build import Reading
    from commcc.serialization.shapes import ShapeContext

MAX_CONSTANT_BYTES = 64 << 10
_DEEPEST = 40


def attach(
    graph: fx.Graph, children: Mapping[str, tuple[fx.Graph, nn.Module]], reading: Reading, path: str
) -> nn.Module:
    """The module that owns what ``graph`` refers to; ``path`` is where it stands in the outermost one."""
    root = nn.Module()
    for name, (child, owner) in children.items():
        _put(root, name, _graph_module(owner, child, name))
    for node in graph.nodes:
        if node.op == "get_attr" and find(root, node.target) is None:
            _put(root, node.target, _constant(node, path, reading))
    return root


def _graph_module(owner: nn.Module, graph: fx.Graph, name: str) -> fx.GraphModule:
    # FX generates code here. All names in it are identifiers (Nodes and the attribute check saw to it), all
    # other arguments are printed by repr, and nothing of it runs.
    try:
        return fx.GraphModule(owner, graph, class_name="GraphModule")
    except (SyntaxError, NameError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"FX cannot hold the sub-graph {name[:60]!r}: {error}") from None


def find(root: Any, path: str) -> Any:
    """The attribute at ``path``, None if there is none; only modules' own tables are looked at."""
    for part in path.split("."):
        if not isinstance(root, nn.Module):
            return None
        tables = (root._modules, root._buffers, root._parameters, vars(root))
        root = next((table[part] for table in tables if part in table), None)
    return root


def _put(root: nn.Module, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    if len(parents) > _DEEPEST:
        raise InputError(f"the attribute {path[:60]!r} is nested too deeply")
    for part in parents:
        if part not in root._modules:
            _check_free(root, part)
            root.add_module(part, nn.Module())
        child = root._modules[part]
        if child is None or isinstance(child, fx.GraphModule):
            raise InputError(f"the attribute {path[:60]!r} reaches into a sub-graph")
        root = child
    _check_free(root, name)
    if isinstance(value, nn.Module):
        root.add_module(name, value)
    else:
        root.register_buffer(name, value, persistent=False)


def _check_free(root: nn.Module, name: str) -> None:
    if not name or "." in name or name.startswith("__") or hasattr(root, name):
        raise InputError(f"{name[:60]!r} cannot be the name of a constant or sub-graph")


def _constant(node: fx.Node, path: str, reading: Reading) -> Any:
    stored = reading.tables.constants.get(path + str(node.target)) if reading.tables is not None else None
    if stored is not None:
        number, body = stored
        try:
            return decode_constant(body, reading.ctx)
        except InputError as error:
            raise InputError(error.what, where=f"{reading.where}:{number}", hint=error.hint) from None
    val = node.meta.get("val")
    reading.notes.append(unknown_note(str(node.target), val))
    return val if isinstance(val, torch.Tensor) else nn.Module()


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
        "stride": stride if _span(shape, stride) == value.numel() else contiguous_stride(shape),
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
    """What :func:`encode_constant` encoded, on the CPU; :class:`InputError` for anything else.

    ``requires_grad`` is only remembered, see :mod:`commcc.serialization.shapes`.
    """
    if isinstance(body, dict) and isinstance(body.get("val"), str):
        val = parse_val(body["val"], ctx)
        if isinstance(val, torch.Tensor):
            return val
    try:
        found = _with_data(body)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, binascii.Error):
        raise InputError("a constant is damaged", hint="write the file again") from None
    if body.get("parameter") is True:
        found = nn.Parameter(found, requires_grad=False)
    if body.get("requires_grad") is True:
        setattr(found, REQUIRES_GRAD, True)
    return found


def _with_data(body: Any) -> torch.Tensor:
    shape, stride, dtype = body["shape"], body["stride"], constants()[body["dtype"]]
    data = base64.b64decode(body["data"], validate=True)
    if len(data) % dtype.itemsize or len(data) > MAX_CONSTANT_BYTES:
        raise ValueError("wrong length")
    _check_layout(shape, stride, len(data) // dtype.itemsize)
    value = torch.zeros(0, dtype=dtype)
    if data:
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        value = (raw != 0) if dtype is torch.bool else raw.view(dtype)
    found = torch.empty_strided(shape, stride, dtype=dtype)
    return found.copy_(value.reshape(shape))


def _check_layout(shape: Any, stride: Any, numel: int) -> None:
    """Sizes and strides that fit the data: each element has one place, and no place is left over."""
    numbers = [*shape, *stride]
    if len(shape) != len(stride) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("wrong sizes")
    if math.prod(shape) != numel or (numel and _span(shape, stride) != numel):
        raise ValueError("wrong sizes")


def _span(shape: list[int], stride: list[int]) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
