"""Operands of an op that share memory which it writes: its results then depend on more than what they hold.

::

    _foreach_add_([x, y], [y, x])                     y is added to x, then the new x to y
    _foreach_add_([x, y], [clone(y), clone(x)])       the old x is added to y, though all operands hold the same

How operands share memory is part of what such an op computes: only calls that share alike are one.

Limits: graphs that ops are handed are compared for inputs in memory of their own; where these share memory, a graph
is the same only as itself.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from commcc.graph.ops import ALL, facts, is_getitem
from commcc.graph.ops.functions import plain_name, transform_name
from commcc.graph.ops.lazy import minds_lazy
from commcc.serialization.attributes import find
from commcc.serialization.fake_ops import UnknownValue
from commcc.verify.regroup import regroups
from commcc.verify.sizes import Undecidable
from commcc.verify.terms import TARGETS, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from commcc.verify.memory import Memory
    from commcc.verify.terms import Op, Tensor, Terms
    from commcc.verify.trace import State

#: Pairs of operands of one op: so many that share memory are told apart, and so many are looked at.
_MOST, _MOST_LOOKED_AT = 5_000, 500_000
WHY = "what an op gives whose operands share memory that it writes"


def is_lazy(state: State, tensor: Tensor) -> bool:
    """Whether a tensor is, or may be, a view whose elements are conjugated or negated when they are read."""
    part: Tensor | None = tensor
    while part is not None:
        # What only regroups keeps elements as they are; and of symbols, shape functions would decide what they are.
        if part.via is not None and not regroups(path_of(part.via[0].target)):
            try:
                given = state.evaluated(part.via[0])
            except (UnknownValue, Undecidable):
                return True
            results = given if isinstance(given, (tuple, list)) else (given,)
            if any(isinstance(t, torch.Tensor) and (t.is_conj() or t.is_neg()) for t in results):
                return True
        part = part.base
    return False


def lazily(state: State, node: fx.Node, operands: list[Tensor]) -> bool:
    """Whether an op that gives views is handed what it may copy, or refuse, since it is worked out only when read."""
    return minds_lazy(node.target) and any(is_lazy(state, tensor) for tensor in operands)


def peculiarities(state: State, node: fx.Node, op: Op, operands: list[Tensor]) -> tuple[tuple[str, Any], ...]:
    """Arguments for what an op may ask of its operands besides what they hold and how they lie; mostly none."""
    given: tuple[tuple[str, Any], ...] = ()
    if op.fact.identity:
        given = (("made as", ("origins", _origins(node))),)
    if plain_name(node.target) is not None:  # to Python a list is no tuple
        given = (*given, ("kinds", ("kinds", str(pytree.tree_structure(node.args)))))
    elif not isinstance(node.target, TARGETS) and transform_name(node.target) is None:
        # Others may have its name, as all lambdas of one module have.
        given = (*given, ("function", ("value", state.table.foreign(node.target))))
    if lazily(state, node, operands):
        given = (*given, ("lazy", ("bool", "True")))
    return given


def _origins(node: fx.Node) -> tuple[Any, ...]:
    """How the operands of an op were made: as which views of what, down to inputs and new tensors, and which of these
    are one and the same.
    """
    number: dict[fx.Node, int] = {}
    found: list[Any] = [tuple(number.setdefault(source, len(number)) for source in node.all_input_nodes)]
    for source in (rest := list(number)):
        fact = facts(source.target) if source.op == "call_function" else None
        views = fact is not None and (is_getitem(source.target) or bool(fact.views) or fact.body)
        operands = source.all_input_nodes if views else []
        rest.extend(operand for operand in operands if operand not in number)
        at = tuple(number.setdefault(operand, len(number)) for operand in operands)
        called = path_of(source.target) if source.op == "call_function" else source.op
        found.append((called, at, str(source.args[1:]) if views else ""))
    return tuple(found)


def entangled(
    node: fx.Node, root: nn.Module, memory: Memory, table: Terms, operands: list[Tensor], written: list[Tensor]
) -> tuple[tuple[str, Any], ...]:
    """An argument that says which operands share memory that is written, empty where no result depends on that."""
    targets = {id(tensor) for tensor in written}
    # PyTorch sees to it that what works element by element reads each one before it writes it, and no other one.
    in_step = len(written) == 1 and torch.Tag.pointwise in getattr(node.target, "tags", ())
    pairs: list[tuple[Any, ...]] = []
    for looked_at, (i, j) in enumerate(_together(memory, operands)):
        if looked_at > _MOST_LOOKED_AT or len(pairs) > _MOST:
            return (("memory", ("value", table.foreign(node))),)  # what it computes is left open
        one, other = operands[i], operands[j]
        if targets.isdisjoint((id(one), id(other))):
            continue
        places = [(at.content, at.shape, at.meta.strides) for at in (memory.where(one), memory.where(other))]
        if one.may_copy or other.may_copy:
            pairs.append((i, j, memory.guess(one), memory.guess(other)))
        elif not (in_step and places[0] == places[1]) and memory.apart(one, other) is not None:
            pairs.append((i, j, *places))
    if not pairs:
        return ()
    graphs = (find(root, str(used.target)) for used in node.all_input_nodes if used.op == "get_attr")
    same = [("value", table.foreign(graph)) for graph in graphs if isinstance(graph, fx.GraphModule)]
    return (("memory", ("list", (("str", str(pairs)), *same))),)


def shared_results(
    node: fx.Node, memory: Memory, table: Terms, inputs: list[Tensor], results: list[Tensor]
) -> tuple[tuple[str, Any], ...]:
    """An argument that says which results of a launch lie over each other, or over what another one is made of; empty
    where none does.
    """
    count, operands = len(results), [*results, *inputs]
    pairs: list[tuple[int, int]] = []
    for looked_at, (i, j) in enumerate(_together(memory, operands) if count > 1 else ()):
        if looked_at > _MOST_LOOKED_AT or len(pairs) > _MOST:
            return (("memory", ("value", table.foreign(node))),)
        if i < count and j not in (i, i + count) and memory.apart(operands[i], operands[j]) is not None:
            pairs.append((i, j))
    return (("memory", ("str", str(pairs))),) if pairs else ()


def named(arguments: dict[str, Any], *rows: Sequence[str]) -> dict[str, None]:
    """The names of these arguments."""
    return dict.fromkeys(name for names in rows for name in (arguments if names == ALL else names))


def _together(memory: Memory, operands: list[Tensor]) -> Iterator[tuple[int, int]]:
    """Pairs that are in one storage, or may be since one of them is a view only perhaps."""
    known: dict[int, list[int]] = defaultdict(list)
    for j, other in enumerate(operands):
        near = (at for root, at in known.items() if memory.together(root, other.root))
        for i in sorted(chain.from_iterable(near)):
            if operands[i].root == other.root or operands[i].may_copy or other.may_copy:
                yield i, j
        known[other.root].append(j)
