"""Which ops of a graph may be run: those that reach nothing but the tensors they are given.

    refusal(torch.ops.aten.mm.default)             # None
    refusal(torch.ops.aten.from_file.default)      # "it may open files: 'filename' is a text that nobody checks"

A graph comes from a file that anybody may have written, so what is not known to be harmless is refused: ops of other
libraries than PyTorch's own, ops that take objects, texts of other meanings than the listed ones, and ops that
trust their arguments where these decide which memory is read or written, unless :mod:`commcc.graph.ops.guards` has a
check for them.

Limits: an op can still ask for more memory or time than there is.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from commcc.base.errors import OptionError
from commcc.graph import ops
from commcc.graph.ops import libraries
from commcc.graph.ops.functions import plain_name, transform_name
from commcc.graph.ops.guards import is_guarded
from commcc.graph.ops.unchecked import UNCHECKED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: Arguments that are texts: each chooses among words that the op knows, names a group, or is shown in an error.
_TEXTS = frozenset(
    {
        *("reduce", "reduce_op", "group_name", "activation", "algorithm", "padding_side", "norm", "mode", "ord", "p"),
        *("approximate", "rounding_mode", "interpolation", "driver", "pad_mode", "UPLO", "side", "padding"),
        *("equation", "indexing", "assert_msg", "api_name"),
    }
)
#: What else an argument may be, lists and optional ones included; anything more is an object with a life of its own.
_VALUES = frozenset({"Tensor", "int", "float", "bool", "number", "Device", "Generator"})
#: The group and the reduction of a collective, which are names in a graph of a file.
_ANY = frozenset({"group_name", "reduce_op"})


@lru_cache(maxsize=4096)
def refusal(target: Any, imported: frozenset[str] = frozenset()) -> str | None:
    """Why an op of a graph is not run, in a few words; None for one that may be.

    imported: ops of libraries that the user has asked for, as :func:`imported_ops` gives them.
    """
    described = ops.described_as(target)
    if described is not None and described.runs is None and described.like is not None and is_guarded(described.like):
        return "it stands for an op that runs behind a check of its own arguments alone"
    if described is not None:
        called = described.runs or described.like
        return None if called is None else refusal(called, imported)
    if isinstance(target, OpOverloadPacket):
        # Which overload runs is decided by the arguments, and it need not be one of the dispatcher's.
        names: list[str] = target.overloads()  # type: ignore[no-untyped-call]
        reasons = (refusal(getattr(target, name), imported) for name in names)
        return next((reason for reason in reasons if reason is not None), None)
    if not isinstance(target, OpOverload):
        is_known = plain_name(target) is not None or transform_name(target) is not None
        return None if is_known else "it is neither an op nor arithmetic"
    if target._schema.name in imported:
        return None
    if target.namespace not in libraries.RUNNABLE:
        own = target.namespace in libraries.OWN | libraries.BELIEVED
        return f"the library '{target.namespace}' is " + ("none whose ops are run" if own else "not PyTorch's")
    return _reaching(target)


def _reaching(op: OpOverload) -> str | None:
    """What an op of PyTorch's could reach besides its tensors; None for nothing."""
    name, overload = op._schema.name, op._schema.overload_name
    if not torch._C._dispatch_has_kernel(f"{name}.{overload}" if overload else name):
        return "it works on Python's objects"
    if ops.op_name(op) in UNCHECKED and not is_guarded(op):
        return "it trusts the graph with which memory it reads or writes"
    for argument in op._schema.arguments:
        for kind in _kinds(argument.type):
            if kind == "str" and argument.name not in _TEXTS:
                return f"'{argument.name}' is a text that nobody checks"
            if kind not in {*_VALUES, "str"} and argument.name not in _ANY:
                return f"'{argument.name}' is an object"
    return None


def _kinds(kind: Any) -> Iterator[str]:
    """The plain types within a type: of ``List[Optional[Tensor]]`` that is Tensor."""
    inner = kind.containedTypes()
    if not inner:
        yield str(kind)
    for contained in inner:
        yield from _kinds(contained)


def imported_ops(modules: Collection[str]) -> frozenset[str]:
    """Import modules that the user has named, and give the ops that they register.

    Raises :class:`OptionError` for a module that cannot be imported, or that registers none.
    """
    return frozenset().union(*map(_imported, modules))


@lru_cache(maxsize=64)
def _imported(module: str) -> frozenset[str]:
    known = frozenset(torch._C._dispatch_get_all_op_names())
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever the module's own code raises
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise OptionError(f"--import {module}: {text}", hint="name a module that Python can import") from None
    names = frozenset(name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name not in known)
    if not names:
        raise OptionError(f"--import {module}: it registers no op", hint="name the module that registers the op")
    return names
