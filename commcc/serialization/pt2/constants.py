"""Tensor constants of ``.pt2`` files that commcc made: their bytes, as they lie in memory.

Usage::

    data, meta = store(tensor)              # bytes (None if it has no values) and the schema's description
    fill_constants(source, "model", root)   # replaces fake tensors in root by what the archive holds

Limits: constants above 64 MiB stay fake tensors when they are read; they are still carried over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from commcc.base.errors import InputError
from commcc.serialization.fx.context import REQUIRES_GRAD
from commcc.serialization.pt2.archive import read_json
from commcc.serialization.pt2.schema import DTYPES, GraphSpec, lookup
from commcc.serialization.pt2.values import write_tensor

if TYPE_CHECKING:
    from commcc.serialization.pt2.zip_files import ZipSource

MAX_CONSTANT_BYTES = 64 << 20
_MAX_GAPS = 4
#: What a constant that does not fit its description does to the code that reads it.
_MISFIT = (InputError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)


def storable(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a contiguous copy if it is a small part of the memory that its strides reach over."""
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta" or tensor.numel() == 0:
        return tensor
    return tensor if _span(tensor) <= _MAX_GAPS * tensor.numel() else tensor.detach().contiguous()


def _span(tensor: torch.Tensor) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def store(tensor: torch.Tensor) -> tuple[bytes | None, dict[str, Any]]:
    """The memory of a constant and its description; tensors that are not :func:`storable` are a waste."""
    meta = write_tensor(tensor)
    meta["storage_offset"] = {"as_int": 0}
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        return None, meta
    if tensor.numel() == 0:
        return b"", meta
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    flat = plain.as_strided((_span(plain),), (1,), plain.storage_offset())
    return bytes(flat.view(torch.uint8).numpy().tobytes()), meta


def fill_constants(source: ZipSource, model: str, spec: GraphSpec) -> None:
    """Give the constants of ``spec`` the values that the archive holds; those it does not hold stay fake."""
    entry = f"data/constants/{model}_constants_config.json"
    if not spec.attributes or entry not in source.entries:
        return
    config = read_json(source, entry)["config"]
    for path, val in spec.attributes.items():
        meta = config.get(path)
        if meta is None or meta["use_pickle"] is not False:
            continue
        try:
            spec.attributes[path] = _load(source, meta, val)
        except _MISFIT:
            continue


def _load(source: ZipSource, meta: dict[str, Any], val: torch.Tensor) -> torch.Tensor:
    data = source.read(f"data/constants/{meta['path_name']}", limit=MAX_CONSTANT_BYTES)
    described = meta["tensor_meta"]
    dtype = lookup(DTYPES, described["dtype"], "dtype")
    sizes = [size["as_int"] for size in described["sizes"]]
    strides = [stride["as_int"] for stride in described["strides"]]
    if sizes != list(val.shape) or dtype != val.dtype or (not data and val.numel()):
        raise InputError("the constant is not the one that the graph uses")
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    flat = raw != 0 if dtype is torch.bool else raw.view(dtype)
    value = flat.as_strided(sizes, strides, described["storage_offset"]["as_int"])
    if meta["is_param"] is True:
        value = torch.nn.Parameter(value, requires_grad=False)
    if described["requires_grad"] is True:
        setattr(value, REQUIRES_GRAD, True)
    return value
