"""Arguments of calls by name, the same however they are given: defaults are filled in, numbers are of one kind.

::

    aten.sum.dim_IntList(x, [0])  ==  aten.sum.dim_IntList(self=x, dim=[0], keepdim=False)
    bind(node)                    # of both: {"self": x, "dim": [0], "keepdim": False, "dtype": None}

Limits: ops without a schema (higher-order ops, unknown ops) are bound by position and keyword as written.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from commcc.graph.ops import argument_names, as_given

if TYPE_CHECKING:
    from collections.abc import Mapping

_MISSING = object()
#: Whole numbers up to here are the same as floats.
_EXACT = 1 << 53


class Signature(NamedTuple):
    """The arguments of an op. placed: how many may be given by position. required: how many there must be for no
    default to be missing. numbers: those in which a whole number may be a float, with ``float`` or ``number``. flags:
    those that are true or false.
    """

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    placed: int
    required: int
    numbers: tuple[tuple[str, str], ...]
    flags: tuple[str, ...] = ()

    def takes(self, arguments: Mapping[str, Any]) -> bool:
        """Whether all flags are such that PyTorch takes them for one."""
        return all(arguments.get(name) is None or isinstance(arguments[name], (int, float)) for name in self.flags)


@lru_cache(maxsize=4096)
def signature_of(target: Any) -> Signature:
    schema = getattr(target, "_schema", None)
    if schema is None:
        names = argument_names(target)
        return Signature(names, (_MISSING,) * len(names), len(names), len(names), ())
    numbers = {"float": "float", "Optional[float]": "float"}
    if target.namespace == "aten":
        numbers.update(dict.fromkeys(("number", "Optional[number]", "List[number]"), "number"))
        # A number in place of a tensor takes part in promotion as a number only where PyTorch says so.
        numbers.update({"Tensor": "number"} if torch.Tag.pointwise in target.tags else {})
    defaults = tuple(a.default_value if a.has_default_value() else _MISSING for a in schema.arguments)
    required = max((at + 1 for at, default in enumerate(defaults) if default is _MISSING), default=0)
    kinds = ((a.name, numbers.get(str(a.type), "")) for a in schema.arguments)
    named = tuple(a.name for a in schema.arguments)
    placed = sum(not a.kwarg_only for a in schema.arguments)
    flags = tuple(a.name for a in schema.arguments if str(a.type) == "bool")
    return Signature(named, defaults, placed, required, tuple((name, kind) for name, kind in kinds if kind), flags)


def bind(node: fx.Node, signature: Signature | None = None) -> dict[str, Any]:
    """Arguments by name, in schema order; as they are given where there is no schema, or it does not fit.

    Numbers that meet tensors of floats are floats: there, ``mul(x, 2)`` is ``mul(x, 2.0)``. Between integers it is not.
    """
    names, defaults, placed, required, numbers, _ = signature or signature_of(node.target)
    args, kwargs = node.args, node.kwargs
    # None may be given twice, nor by position if it takes its name.
    if len(args) > placed or (kwargs and not set(names[len(args) :]).issuperset(kwargs)):
        return as_given(node)
    bound: dict[str, Any] = dict(zip(names, (*args, *defaults[len(args) :]), strict=True))
    for name in names[len(args) :] if kwargs else ():
        bound[name] = kwargs.get(name, bound[name])
    if kwargs or len(args) < required:
        bound = {name: value for name, value in bound.items() if value is not _MISSING}
    return with_floats(node, bound, numbers)


def with_floats(node: fx.Node, bound: dict[str, Any], numbers: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The same arguments, with floats for whole numbers that are as good as these. They may be written as nodes, whose
    values are put in their place.
    """
    for name, kind in numbers:
        value = bound.get(name)
        if type(value) in _WHOLE and (kind == "float" or _gives_floats(node)):
            bound[name] = _as_float(value)
    return bound


_LISTS = (tuple, list, fx.immutable_collections.immutable_list)
_WHOLE = frozenset({int, *_LISTS})
LIKE = "like"  # in the metadata of nodes without ``val``: a tensor of their dtype


def _as_float(value: Any) -> Any:
    if isinstance(value, _LISTS):
        return tuple(map(_as_float, value))
    return float(value) if type(value) is int and -_EXACT <= value <= _EXACT else value


def _gives_floats(node: fx.Node) -> bool:
    """Whether an op computes floats whether the numbers among its arguments are whole or not."""
    vals = [operand.meta.get("val", operand.meta.get(LIKE)) for operand in node.all_input_nodes]
    tensors = [val for val in vals if isinstance(val, torch.Tensor)]
    dtypes: list[Any] = [val.dtype for val in tensors] or [node.kwargs.get("dtype")]
    floats = [isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex) for dtype in dtypes]
    # Of lists, each tensor has a number of its own.
    lists = any(isinstance(part, fx.Node) for given in node.args if isinstance(given, _LISTS) for part in given)
    return (all(floats) and len(tensors) == len(vals)) if lists else any(floats)
