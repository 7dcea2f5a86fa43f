"""Node metadata as JSON and back, for the text format and for the extra file in ``.pt2`` archives.

Usage::

    data = encode_entry("custom", {"module_fqn": "layers.0"})        # {"module_fqn": "layers.0"}
    is_lost(encode_entry("grapharg", value))                         # True: nothing that a file can or need hold
    node.meta["custom"] = decode_entry("custom", data, ctx)

``val`` is left out where its annotation says all; it is there for storage offsets, ``requires_grad``,
tuples, None and plain numbers. Equal JSON comes from equal metadata.

Symbols in sizes become their names.
What JSON has not is tagged: ``{"$tuple": [...]}``, ``{"$dict": [[key, value], ...]}``, ``{"$float": "inf"}``.
Classes and functions become their qualified names, enums their names, ops and descriptors their printed form; these
come back as strings, but for policies of activation checkpointing. Limits: what torch can derive again from ``val``
(``tensor_meta``) is not kept.
"""

from __future__ import annotations

import math
import types
from enum import Enum
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._ops import OperatorBase, OpOverloadPacket
from torch.utils.checkpoint import CheckpointPolicy

from commcc.base.errors import InputError
from commcc.graph.program import META_KEY, NodeRecord, Note
from commcc.serialization.shapes import format_val, parse_val, requires_grad_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from commcc.serialization.shapes import ShapeContext

    SizeText = Callable[[object], str]


class _NoVal:
    """The value of a node that has no ``val``."""

    def __repr__(self) -> str:
        return "NO_VAL"


NO_VAL: Any = _NoVal()
_LOST: Any = object()
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)

#: Derived from ``val``; leaving them out loses nothing.
DERIVED_KEYS = frozenset(
    {"tensor_meta", "example_value", "eager_input_vals", "grapharg", "dynamo_source", "unbacked_bindings"}
)
#: Metadata that is short, or different on every node; files share the values of all other keys between nodes.
INLINE = frozenset(
    {"seq_nr", "recompute", "partitioner_tag", "autograd_backward", "is_gradient_acc", "ac_graph_id", "commcc"}
    | {"val", "desc"}
)
#: Private to the tracer that made the graph; left out, and said to be.
TRACER_KEYS = frozenset({"from_node", "fwd_source_fn_stack", "output_stack_traces", "mutation_region_id"})
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("stack_trace", "partitioner_tag", "recompute", "original_aten"), (str,)),
    **dict.fromkeys(("custom", "nn_module_stack", "fwd_nn_module_stack"), (dict,)),
    **dict.fromkeys(("seq_nr", "ac_graph_id"), (int,)),
    **dict.fromkeys(("autograd_backward", "is_gradient_acc"), (bool, int)),
    "desc": (str, list),
}
#: Keys whose values are kept as printed, whatever they are made of.
_PRINTED = frozenset({"desc", "original_aten"})


def encode_entry(key: Any, value: Any, size_text: SizeText = str) -> Any:
    """One value of ``node.meta`` as JSON, or a marker if there is nothing to keep (see :func:`is_lost`)."""
    if not isinstance(key, str) or key in DERIVED_KEYS or key in TRACER_KEYS:
        return _LOST
    if key == "val":
        if not is_annotated(value):
            return _encode_val(value, size_text)
        return (_tensor_extra(value, size_text) if isinstance(value, torch.Tensor) else None) or _LOST
    if key == META_KEY:
        return value.to_json() if isinstance(value, NodeRecord) else _LOST
    # Descriptors are objects of PyTorch; their printed form is what everything reads.
    if key in _PRINTED and not isinstance(value, str):
        return [str(item) for item in value] if isinstance(value, (list, tuple)) else str(value)
    # A value of another type under a known key would mislead whoever reads the key.
    known = _has_known_type(key, value.name if isinstance(value, Enum) else value)
    return encode_json(value) if known else _LOST


def _has_known_type(key: str, value: Any) -> bool:
    return key not in _TYPES or value is None or isinstance(value, _TYPES[key])


def encode_json(value: Any) -> Any:
    """``value`` as JSON with tags, or a private marker if it cannot be (see :func:`is_lost`)."""
    # Before int and str: an enum may be one of them.
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, sympy.Symbol):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, complex):
        return {"$complex": [str(value.real), str(value.imag)]}
    if isinstance(value, (list, tuple)):
        return _encode_items(value, encode_json)
    if isinstance(value, dict):
        return _encode_dict(value)
    if isinstance(value, (OperatorBase, OpOverloadPacket)):
        return str(value)
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, _NAMED) else _LOST


def is_lost(encoded: Any) -> bool:
    """Whether :func:`encode_json` or :func:`encode_entry` could not encode its argument."""
    return encoded is _LOST


def lost_notes(lost: Mapping[str, Sequence[str]]) -> Iterator[Note]:
    """What a writer says about metadata that it could not write; ``lost`` has the names of the nodes by key."""
    for key, nodes in sorted(lost.items()):
        count = f" of {len(nodes)} nodes" if len(nodes) > 1 else ""
        yield Note(f"metadata {key!r}{count} cannot be written", nodes[0])


def _encode_items(value: list[Any] | tuple[Any, ...], encode: Callable[[Any], Any]) -> Any:
    items = [encode(item) for item in value]
    if any(item is _LOST for item in items):
        return _LOST
    return {"$tuple": items} if isinstance(value, tuple) else items


def _encode_dict(value: dict[Any, Any]) -> Any:
    pairs = [(key, encode_json(item)) for key, item in value.items()]
    plain = all(type(key) is str and not key.startswith("$") for key in value)
    # JSON has strings as keys, and a key with a $ would be taken for a tag.
    if not plain:
        pairs = [(encode_json(key), item) for key, item in pairs]
    if any(key is _LOST or item is _LOST for key, item in pairs):
        return _LOST
    return dict(pairs) if plain else {"$dict": [list(pair) for pair in pairs]}


def decode_json(data: Any) -> Any:
    """What :func:`encode_json` encoded; unknown tags raise :class:`InputError`."""
    if isinstance(data, list):
        return [decode_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    # An object with more than one key is no tag.
    if len(data) != 1 or not (tag := next(iter(data))).startswith("$"):
        return {key: decode_json(item) for key, item in data.items()}
    return _decode_tagged(tag, data[tag])


def _decode_tagged(tag: str, body: Any) -> Any:
    try:
        if tag == "$tuple":
            return tuple(decode_json(item) for item in _as_list(body))
        if tag == "$float":
            return float(body)
        if tag == "$complex":
            real, imaginary = _as_list(body)
            return complex(float(real), float(imaginary))
        if tag == "$dict":
            return {decode_json(key): decode_json(item) for key, item in _as_list(body)}
    except (TypeError, ValueError):
        raise InputError(f"broken {tag} in metadata") from None
    raise InputError(f"unknown tag {tag[:40]!r} in metadata")


def _as_list(body: Any) -> list[Any]:
    if not isinstance(body, list):
        raise TypeError("a list is needed")
    return body


def is_annotated(val: Any) -> bool:
    """Whether ``val`` has an annotation (dense tensors and symbolic scalars)."""
    if isinstance(val, torch.Tensor):
        return val.layout is torch.strided and not val.is_nested
    return isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _tensor_extra(val: torch.Tensor, size_text: SizeText) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    offset = val.storage_offset()
    if type(offset) is not int or offset != 0:
        extra["offset"] = offset if type(offset) is int else size_text(offset)
    if requires_grad_of(val):
        extra["requires_grad"] = True
    return extra


def _encode_val(val: Any, size_text: SizeText = str) -> Any:
    """A whole value as JSON: annotations for tensors and symbolic scalars, tags for the rest."""
    if is_annotated(val):
        extra = _tensor_extra(val, size_text) if isinstance(val, torch.Tensor) else {}
        return {"$val": format_val(val, size_text), **extra}
    if isinstance(val, (list, tuple)):
        return _encode_items(val, lambda item: _encode_val(item, size_text))
    return encode_json(val)


def _decode_val(data: Any, ctx: ShapeContext) -> Any:
    """What :func:`_encode_val` encoded, as values of ``ctx``."""
    if isinstance(data, list):
        return [_decode_val(item, ctx) for item in data]
    if isinstance(data, dict) and isinstance(data.get("$val"), str):
        return _with_extra(parse_val(data["$val"], ctx), data, ctx)
    if isinstance(data, dict) and isinstance(data.get("$tuple"), list):
        return tuple(_decode_val(item, ctx) for item in data["$tuple"])
    return decode_json(data)


def _with_extra(val: Any, extra: Mapping[str, Any], ctx: ShapeContext) -> Any:
    """The tensor ``val`` with the storage offset and ``requires_grad`` that ``extra`` tells."""
    offset, requires_grad = extra.get("offset", 0), extra.get("requires_grad", False)
    # A new tensor only where there is something to change.
    if offset == 0 and not requires_grad:
        return val
    if isinstance(offset, str):
        offset = ctx.parse_integer(offset)
    if not isinstance(val, torch.Tensor) or type(requires_grad) is not bool or isinstance(offset, (bool, float)):
        raise InputError("only tensors have a storage offset and requires_grad")
    return ctx.tensor(
        val.shape, val.stride(), val.dtype, val.device, requires_grad=requires_grad, storage_offset=offset
    )


def decode_entry(key: str, entry: Any, ctx: ShapeContext, val: Any = NO_VAL) -> Any:
    """What :func:`encode_entry` encoded; wrong types raise :class:`InputError`.

    val: the value of the node that its annotation described, if there was one.
    """
    if key == "val":
        # Without an annotation the metadata have the whole value.
        if val is NO_VAL:
            return _decode_val(entry, ctx)
        if not isinstance(entry, dict):
            raise InputError("the value is given twice, by an annotation and in the metadata")
        return _with_extra(val, entry, ctx)
    if key == META_KEY:
        try:
            return NodeRecord.from_json(entry)
        except (AttributeError, ValueError) as error:
            raise InputError(f"broken commcc record: {error}") from None
    value = decode_json(entry)
    if not _has_known_type(key, value):
        raise InputError(f"metadata {key!r} has the wrong type ({type(value).__name__})")
    return checkpoint_policy(value) if key == "recompute" else value


def checkpoint_policy(name: Any) -> Any:
    """The policy of activation checkpointing of this name, for PyTorch's printer wants no string; others stay names."""
    return CheckpointPolicy.__members__.get(name, name) if isinstance(name, str) else name
