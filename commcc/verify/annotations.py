"""What the ``val`` of BEFORE say of results, held against what the ops give in this PyTorch.

Of ops that are not explained, shapes and dtypes come from there for both graphs, so that what is wrong in both alike
would be proved. Calls that look alike are looked at once.

Limits: sizes with symbols are taken as they are said; ops of libraries besides PyTorch's own, and results whose shape
only the elements tell, are not looked at. What another PyTorch, or the kernel for another device, may well give is a
remark: strides, and all of ops that are not of the core set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from commcc.graph.ops import libraries
from commcc.serialization.fake_ops import UnknownValue
from commcc.verify.sizes import Meta, Undecidable, mismatch
from commcc.verify.terms import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.graph.ops import OpFacts
    from commcc.verify.pair import Pair
    from commcc.verify.trace import State

_UNSAID = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def hold_against(state: State, node: fx.Node, fact: OpFacts, arguments: Mapping[str, Any]) -> None:
    """Remember where the ``val`` of a node is not what its op gives."""
    target, val = node.target, node.meta.get("val")
    if fact.name.partition(".")[0] not in libraries.TESTED or not isinstance(target, torch._ops.OpOverload):
        return
    said = [part for part in (val if isinstance(val, (tuple, list)) else (val,)) if isinstance(part, torch.Tensor)]
    seen = ((str(part.dtype), tuple(map(str, part.shape)), tuple(map(str, _strides(part) or ()))) for part in said)
    looks = (id(target), *((name, _looks(value)) for name, value in arguments.items()), *seen)
    if not said or fact.effect or looks in state.table.judged or any(tag in target.tags for tag in _UNSAID):
        return
    state.table.judged.add(looks)
    try:
        given = [part for part in pytree.tree_leaves(state.evaluated(node)) if isinstance(part, torch.Tensor)]
    except (UnknownValue, Undecidable):
        return
    if len(given) != len(said):
        return
    for was, now in zip(given, said, strict=True):
        known, told = (Meta(tuple(t.shape), _strides(t), t.dtype, None) for t in (was, now))
        if wrong := mismatch(*_of_numbers(known, told)):
            sure = torch.Tag.core in target.tags and not wrong.startswith("strides")
            state.trace.disputed.setdefault(node.name, (wrong, sure))


def compare_annotations(pair: Pair) -> None:
    """What BEFORE says wrongly is not proved, or a remark where this PyTorch may be another one."""
    for node, (wrong, sure) in pair.before.disputed.items():
        text = f"its val in BEFORE says {wrong} by this PyTorch; what rests on it was taken from there"
        (pair.report.gap if sure else pair.report.note)("value", node, text)


def _looks(value: Any) -> Any:
    """All that the shape of a result can depend on."""
    if isinstance(value, Tensor):
        return value.meta
    if isinstance(value, (tuple, list)):
        return tuple(map(_looks, value))
    return repr(value)


def _strides(val: torch.Tensor) -> Any:
    return tuple(val.stride()) if val.layout is torch.strided else None


def _of_numbers(known: Meta, told: Meta) -> tuple[Meta, Meta]:
    """Both without their sizes that are symbols, and then without strides."""
    one, other = known.shape or (), told.shape or ()
    if len(one) != len(other):
        return known, told
    plain = [type(a) is int and type(b) is int for a, b in zip(one, other, strict=True)]
    steps = (*(known.strides or ()), *(told.strides or ()))
    laid = all(plain) and all(type(step) is int for step in steps)
    both = [
        meta._replace(
            shape=tuple(size if own else -1 for size, own in zip(meta.shape or (), plain, strict=True)),
            strides=meta.strides if laid else None,
        )
        for meta in (known, told)
    ]
    return both[0], both[1]
