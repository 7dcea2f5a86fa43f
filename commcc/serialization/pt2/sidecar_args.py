"""Arguments of nodes as JSON, for the sidecar: all that FX graphs hold, with lists and tuples told apart.

Usage::

    encode_argument((Ref("x"), [1, 2.0], torch.float32))
    # {"$tuple": [{"$node": "x"}, [1, 2.0], {"$dtype": "float32"}]}

What JSON has not is tagged; numbers, strings, None, lists and plain dictionaries are themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from commcc.base.errors import InputError, OutputError
from commcc.serialization.metadata import decode_json, encode_json, is_lost
from commcc.serialization.pt2.argument_writer import TEXT_HINT
from commcc.serialization.pt2.schema import DTYPES, LAYOUTS, MEMORY_FORMATS, Ref, device_of
from commcc.serialization.targets import path_of, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

_DTYPES = {str(dtype)[6:]: dtype for dtype in DTYPES.values()}
_LAYOUTS = {str(layout): layout for layout in LAYOUTS.values()}
_FORMATS = {str(memory_format): memory_format for memory_format in MEMORY_FORMATS.values()}


def encode_argument(arg: Any) -> Any:
    """An argument of a :class:`Spec` as JSON; :class:`OutputError` for what has no form."""
    if arg is None or isinstance(arg, (str, bool, int)):
        return arg
    if isinstance(arg, list):
        return [encode_argument(item) for item in arg]
    if isinstance(arg, tuple):
        return {"$tuple": [encode_argument(item) for item in arg]}
    if isinstance(arg, dict):
        return {"$dict": [[encode_argument(key), encode_argument(value)] for key, value in arg.items()]}
    if isinstance(arg, (OpOverload, HigherOrderOperator)):
        return {"$op": path_of(arg)}
    encoder = _ENCODERS.get(type(arg))
    if encoder is not None:
        return encoder(arg)
    encoded = encode_json(arg)
    if is_lost(encoded):
        raise OutputError(f"a .pt2 file cannot hold an argument of type {type(arg).__name__}", hint=TEXT_HINT)
    return encoded


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    Ref: lambda arg: {"$node": arg.name},
    torch.dtype: lambda arg: {"$dtype": str(arg)[6:]},
    torch.device: lambda arg: {"$device": [arg.type, arg.index]},
    torch.layout: lambda arg: {"$layout": str(arg)},
    torch.memory_format: lambda arg: {"$format": str(arg)},
    slice: lambda arg: {"$slice": [encode_argument(part) for part in (arg.start, arg.stop, arg.step)]},
}


def decode_argument(data: Any) -> Any:
    """What :func:`encode_argument` encoded; malformed data raise :class:`InputError` or a look-up error."""
    if isinstance(data, list):
        return [decode_argument(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise InputError(f"{str(data)[:60]!r} is not an argument")
    tag, body = next(iter(data.items()))
    decoder = _DECODERS.get(tag)
    return decode_json(data) if decoder is None else decoder(body)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda body: tuple([decode_argument(item) for item in body]),
    "$dict": lambda body: {decode_argument(key): decode_argument(value) for key, value in body},
    "$node": lambda body: Ref(str(body)),
    "$op": lambda body: resolve(str(body)),
    "$dtype": lambda body: _DTYPES[body],
    "$device": lambda body: device_of({"type": body[0], "index": body[1]}),
    "$layout": lambda body: _LAYOUTS[body],
    "$format": lambda body: _FORMATS[body],
    "$slice": lambda body: slice(*[decode_argument(item) for item in body]),
}
