"""Names of ops: ``torch.ops.aten.mm.default`` to the op and back.

Usage::

    resolve("torch.ops.aten.mm.default")        # OpOverload
    resolve("torch.ops.mylib.fused.default")    # OpaqueOp, if nobody registered it here
    resolve("os.system")                        # InputError
    path_of(torch.ops.aten.mm.default)          # 'torch.ops.aten.mm.default'

Only ops, higher-order ops and the listed Python functions on numbers come out; a name from a file
never reaches any other attribute. Modules that register ops are imported on first need.
Limits: torch-level (Dynamo) targets such as ``torch.nn.functional.linear`` are refused.
"""

from __future__ import annotations

import importlib
import re
import sys
from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from commcc.base.errors import InputError, OutputError
from commcc.graph.ops import OpaqueOp, is_getitem, op_name
from commcc.graph.ops.functions import plain_functions, plain_name, transform_functions, transform_name
from commcc.graph.ops.libraries import IMPORTED_BY_NAME, OWN, REGISTERED_BY

_PART = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)
#: FX prints ``operator.index`` as ``_operator_index``, ``math.floor`` as ``math_floor``.
_PRINTED_MODULE = re.compile(r"^_?(operator|math)[._]")
_HINT = "only ops (torch.ops.*), symbolic scalars (torch.sym_*) and operators are read; dump the AOT or post-grad graph"


def resolve(path: str) -> Any:
    """The callable that a printed target names.

    An op that is not registered becomes an :class:`OpaqueOp`; anything that is no op and not among
    the functions above raises :class:`InputError`.
    """
    try:
        return _find(path)
    except LookupError:
        pass
    parts = path.split(".")[2:]
    if not path.startswith("torch.ops.") or not _is_op_name(parts) or any(part.startswith("__") for part in parts):
        raise InputError(f"{path[:120]!r} is not an op", hint=_HINT)
    return OpaqueOp(".".join(parts))


def check_call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise :class:`InputError` for an item that is taken out of nothing, or without saying which: all of commcc looks
    at both.
    """
    if is_getitem(target) and (len(args) != 2 or kwargs):
        raise InputError("operator.getitem takes a value and the place of its item", hint="dump the graph again")


@lru_cache(maxsize=16384)
def _find(path: str) -> Any:
    """What a name stands for now; not finding it is not remembered, since ops can be registered later."""
    if path.startswith("torch.ops."):
        parts = path.split(".")[2:]
        target = _registered(parts) if _is_op_name(parts) else None
    else:
        target = plain_functions().get(_PRINTED_MODULE.sub(r"\1.", path)) or transform_functions().get(path)
    if target is None:
        raise LookupError(path)
    return target


def _is_op_name(parts: list[str]) -> bool:
    return len(parts) in (2, 3) and all(_PART.fullmatch(part) for part in parts)


def _registered(parts: list[str]) -> Any:
    for module in (None, *REGISTERED_BY.get(".".join(parts[:2]), ()), *REGISTERED_BY.get(parts[0], ())):
        if module is not None:
            _import(module)
        elif parts[0] in _EAGER:
            continue
        target = _look_up(parts)
        if target is not None:
            return target
    return None


#: Ops of these exist in C++ but get their shape functions from Python, so the module always comes first.
_EAGER = frozenset({"_c10d_functional", "_c10d_functional_autograd"})


@lru_cache(maxsize=64)
def _import(module: str) -> bool:
    try:
        importlib.import_module(module)
    except (ImportError, AttributeError, RuntimeError, ValueError):
        return False  # not in this PyTorch, or built without distributed: its ops stay opaque
    return True


def _look_up(parts: list[str]) -> Any:
    namespace = getattr(torch.ops, parts[0], None)
    # torch.ops has other attributes, such as load_library.
    if not isinstance(namespace, type(torch.ops.aten)) and parts[0] != "higher_order":
        return None
    packet = getattr(namespace, parts[1], None)
    # Without an overload: higher-order ops, and packets that FX prints so.
    if len(parts) == 2:
        return packet if isinstance(packet, (OpOverloadPacket, HigherOrderOperator)) else None
    if not isinstance(packet, OpOverloadPacket):
        return None
    overload = getattr(packet, parts[2], None)
    return overload if isinstance(overload, OpOverload) else None


def importer_of(target: Any) -> str | None:
    """What must be imported before ``torch.export.load`` knows an op: a module of PyTorch's, or ``the library of OP``.

    None for what it knows by itself.
    """
    if not isinstance(target, (OpOverload, OpOverloadPacket, HigherOrderOperator, OpaqueOp)):
        return None
    name = op_name(target)
    library, _, own = name.partition(".")
    modules = [*REGISTERED_BY.get(name, ()), *REGISTERED_BY.get(library, ())]
    # Of several modules the one that has the op under its name; a library of one module need not have it so.
    having = [module for module in modules if hasattr(sys.modules.get(module), own)] or modules[:1]
    if having:
        return having[0] if having[0] in IMPORTED_BY_NAME else None
    return None if library in OWN else f"the library of {name}"


def path_of(target: Any) -> str:
    """The name that :func:`resolve` turns into ``target``; :class:`OutputError` if there is none."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return f"torch.ops.{target}"
    if isinstance(target, OpaqueOp):
        return f"torch.ops.{target.qualified_name}"
    if isinstance(target, HigherOrderOperator):
        return f"torch.ops.higher_order.{target.__name__}"
    name = plain_name(target) or transform_name(target)
    if name is None:
        raise OutputError(f"{target!r} is not an op and cannot be written")
    return name
