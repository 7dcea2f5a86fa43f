"""What ``get_attr`` nodes refer to: sub-graphs and constants, under dotted paths below the module that owns a graph.

Usage::

    put(root, "body.weight", tensor)        # makes the modules on the way; a buffer that is not persistent
    find(root, "body.weight")               # tensor, sub-graph or module; None if there is nothing
    sub_graph(owner, graph, "body")         # fx.GraphModule
    content_hash(tensor)                    # 'a3f0...': equal for the same elements, else not
    flat_tensor(b"\\0\\0\\x80?", torch.float32)   # tensor([1.]), to be given its sizes

Limits: only modules' own tables are looked at, never properties or methods.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from commcc.base.errors import InputError
from commcc.graph.program import Note, is_plain
from commcc.serialization.shapes import remember_requires_grad

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Where a tensor without values keeps the hash of the values that its file has.
HASH = "_commcc_content_hash"
_DEEPEST = 40
_CHUNK = 1 << 24


def find(root: Any, path: str) -> Any:
    """The attribute at ``path``, None if there is none."""
    for part in path.split("."):
        if not isinstance(root, nn.Module):
            return None
        tables = (root._modules, root._buffers, root._parameters, vars(root))
        root = next((table[part] for table in tables if part in table), None)
    return root


def put(root: nn.Module, path: str, value: Any) -> None:
    """Hold ``value``, a tensor or a module, at ``path``; :class:`InputError` where nothing can be held."""
    *parents, name = path.split(".")
    if len(parents) > _DEEPEST:
        raise InputError(f"the attribute {path[:60]!r} is nested too deeply")
    for part in parents:
        if part not in root._modules:
            _check_free(root, part)
            root.add_module(part, nn.Module())
        child = root._modules[part]
        # Its attributes are put there while its own graph is read.
        if child is None or isinstance(child, fx.GraphModule):
            raise InputError(f"the attribute {path[:60]!r} reaches into a sub-graph")
        root = child
    _check_free(root, name)
    if isinstance(value, nn.Module):
        root.add_module(name, value)
    elif isinstance(value, torch.Tensor):
        # Buffers, not parameters: a graph has no training state of its own.
        root.register_buffer(name, value, persistent=False)
    else:
        raise InputError(f"the attribute {path[:60]!r} is neither a tensor nor a sub-graph")


def _check_free(root: nn.Module, name: str) -> None:
    if not name or "." in name or name.startswith("__") or hasattr(root, name):
        raise InputError(f"{name[:60]!r} cannot be the name of a constant or sub-graph")


def sub_graph(owner: nn.Module, graph: fx.Graph, name: str) -> fx.GraphModule:
    """A graph from a file as a module, for use by the graph around it."""
    # FX generates code here. All names in it are identifiers (the readers saw to it), all other arguments
    # are printed by repr, and nothing of it runs.
    try:
        return fx.GraphModule(owner, graph, class_name="GraphModule")
    except (SyntaxError, NameError, TypeError, ValueError, RuntimeError, KeyError) as error:
        raise InputError(f"FX cannot hold the sub-graph {name[:60]!r}: {str(error)[:80]}") from None


def flat_tensor(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    """The elements that lie in ``data``, one dimension; a copy on the CPU."""
    if not data:
        return torch.empty(0, dtype=dtype)
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    # Bytes other than 0 and 1 would make truth values that PyTorch does not know.
    return (raw != 0) if dtype is torch.bool else raw.view(dtype)


def constant(value: torch.Tensor, *, parameter: bool, requires_grad: bool) -> torch.Tensor:
    """A constant as it was written; ``requires_grad`` is only remembered, see :mod:`commcc.serialization.shapes`."""
    if parameter:
        value = torch.nn.Parameter(value, requires_grad=False)
    if requires_grad:
        remember_requires_grad(value)
    return value


def unknown_note(path: str, value: Any) -> Note:
    """The note about an attribute of which the text has no value."""
    if isinstance(value, torch.Tensor):
        return Note(f"the value of constant {path} is not in the text")
    return Note(f"what {path} is (a sub-graph or a constant) is not in the text")


def subclass_note(kind: str, nodes: Sequence[str]) -> Note:
    """The note about values of a tensor subclass, of which a text keeps shape, dtype and device."""
    return Note(f"{kind} values are kept as plain tensors ({len(nodes)} nodes)", nodes[0])


def element_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in row-major order, as one row on its device."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # A dimension of size 1 may have any stride in a contiguous tensor, and keeps it in a reshape.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def content_hash(tensor: torch.Tensor) -> str | None:
    """SHA-256 of the elements' bits in row-major order, with dtype and shape; None when they are not known.

    Bits, not values: 0.0 is not -0.0, and a NaN is equal to itself. Strides and device do not count.
    """
    if isinstance(tensor, FakeTensor) or not is_plain(tensor):
        stored = getattr(tensor, HASH, None)
        return stored if isinstance(stored, str) else None
    return _digest(f"{tensor.dtype} {tuple(tensor.shape)} ", tensor)


def surroundings_hash(tensor: torch.Tensor) -> str | None:
    """SHA-256 of all of a storage and where the tensor begins in it; None where there is nothing else in it, or nothing
    known.
    """
    if isinstance(tensor, FakeTensor) or not is_plain(tensor):
        return None
    storage = tensor.untyped_storage()
    if storage.nbytes() <= tensor.numel() * tensor.itemsize:
        return None
    with _disable_current_modes():
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    return _digest(f"{tensor.storage_offset()} ", whole)


def _digest(head: str, tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(head.encode())
    if tensor.numel():
        with _disable_current_modes():  # a backend may ask while PyTorch traces
            raw = element_bytes(tensor.cpu()).numpy()
        for start in range(0, raw.nbytes, _CHUNK):
            digest.update(raw[start : start + _CHUNK].tobytes())
    return digest.hexdigest()
