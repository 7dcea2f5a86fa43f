"""Whether two programs are one, node by node, so that what a walk found of one holds for the other.

::

    identical(before, after)          # a file that was read twice, or a copy of a graph
    alike(before, after)              # the same nodes, of sub-graphs too; constants may hold something else
    same_values(a.args, b.args)       # default values of inputs, tensors among them

A walk over a graph (:mod:`commcc.verify.tracer`) sees the ops, names, targets and arguments of its nodes, what their
``val`` say, and what the root holds for ``get_attr``. Where all of these are the same it makes the same terms.

Limits: ops, symbols and all that is neither a number, a text, a device nor a dense tensor of known sizes count as
equal only where they are the same object; graphs with constants or sub-graphs only where both have the same root.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from commcc.graph.program import attribute, is_plain
from commcc.serialization.attributes import content_hash, surroundings_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.program import Program
    from commcc.verify.terms import Terms

_PLAIN = frozenset({int, bool, str, torch.device})
_NUMBERS = frozenset({int})


def identical(before: Program, after: Program) -> bool:
    """Whether two programs are one: names, targets, arguments and what is said of results; see the module's limits."""
    old, new = before.graph.nodes, after.graph.nodes
    if before.groups != after.groups or len(old) != len(new):
        return False
    one_root = before.root is after.root
    twin: dict[Any, fx.Node] = {}
    for a, b in zip(old, new, strict=True):
        if not same_in_full(a, b, twin, one_root=one_root):
            return False
        twin[a] = b
    return True


def same_in_full(a: fx.Node, b: fx.Node, twin: Mapping[fx.Node, fx.Node], *, one_root: bool) -> bool:
    """Whether two nodes are the same, and the same is said of their results. twin: the nodes of both graphs, so far.
    one_root: whether both graphs fetch what they hold from one module.
    """
    if not _same_node(a, b, twin) or not (one_root or a.op != "get_attr"):
        return False
    return ("val" in a.meta) == ("val" in b.meta) and _same(a.meta.get("val"), b.meta.get("val"), twin)


def alike(before: Program, after: Program) -> bool:
    """Whether two programs have the same nodes in all their graphs, and constants that share memory alike."""
    memory: tuple[list[int], list[int]] = ([], [])
    if before.groups != after.groups or not _alike_graphs(
        (before.graph, before.root), (after.graph, after.root), memory
    ):
        return False
    first: tuple[dict[int, int], ...] = ({}, {})
    places = [[known.setdefault(at, len(known)) for at in held] for known, held in zip(first, memory, strict=True)]
    return places[0] == places[1]


def _alike_graphs(
    before: tuple[fx.Graph, torch.nn.Module],
    after: tuple[fx.Graph, torch.nn.Module],
    memory: tuple[list[int], list[int]],
) -> bool:
    """memory: where constants lie, of both, in the order in which they are fetched."""
    twin: dict[Any, fx.Node] = {}
    if len(before[0].nodes) != len(after[0].nodes):
        return False
    for a, b in zip(before[0].nodes, after[0].nodes, strict=True):
        if not _same_node(a, b, twin):
            return False
        twin[a] = b
        if a.op == "get_attr" and not _alike_held(attribute(before[1], a), attribute(after[1], b), memory):
            return False
    return True


def _alike_held(a: Any, b: Any, memory: tuple[list[int], list[int]]) -> bool:
    """Whether ``get_attr`` nodes fetch graphs that are alike, or constants that lie alike in their storages."""
    for value, places in zip((a, b), memory, strict=True):
        places.append(value.untyped_storage().data_ptr() if is_plain(value) else id(value))
    if is_plain(a) != is_plain(b) or (is_plain(a) and not _alike(a, b)):
        return False
    if not isinstance(a, fx.GraphModule) and not isinstance(b, fx.GraphModule):
        return True
    graphs = isinstance(a, fx.GraphModule) and isinstance(b, fx.GraphModule)
    return graphs and _alike_graphs((a.graph, a), (b.graph, b), memory)


def _same_node(a: fx.Node, b: fx.Node, twin: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether two nodes have the same name, target and arguments."""
    if a.name != b.name or a.op != b.op:
        return False
    if a.target is not b.target and not (isinstance(a.target, str) and a.target == b.target):
        return False
    held = a.op == "placeholder" and (a.args or b.args)  # the value that an input has by default
    args = same_values(a.args, b.args) if held else _same(a.args, b.args, twin)
    return args and _same(a.kwargs, b.kwargs, twin)


def same_values(a: Any, b: Any) -> bool:
    """Whether two objects hold the same, as far as that is known: a tensor to the bit, and with what lies around it."""
    leaves, others = pytree.tree_flatten(a), pytree.tree_flatten(b)
    if a is b or leaves[1] != others[1]:
        return a is b
    for one, other in zip(leaves[0], others[0], strict=True):
        tensors = isinstance(one, torch.Tensor) and one is not other
        if tensors and not (is_plain(one) and is_plain(other) and _told(one) == _told(other)):
            return False
        if not tensors and not _same(one, other, {}):
            return False
    return True


def _told(held: torch.Tensor) -> tuple[Any, ...]:
    """All that can be asked of a tensor with values."""
    hashes = content_hash(held), surroundings_hash(held)
    return (type(held), held.device, held.stride(), held.requires_grad, *hashes)


def opening(part: Any, table: Terms) -> str:
    """What stands for a container in the structure of outputs: named tuples of several types are several things."""
    kind, known = type(part), fx.immutable_collections
    plain = kind in (tuple, list, dict, known.immutable_list, known.immutable_dict)
    bracket = "{" if isinstance(part, dict) else "[" if isinstance(part, list) else "("
    return bracket if plain else f"{kind.__qualname__} {table.foreign(kind)}{bracket}"


def _same(a: Any, b: Any, twin: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether two arguments, or two values of nodes, are the same; ``twin``: the nodes of both graphs."""
    kind = type(a)
    if isinstance(a, fx.Node):
        return twin.get(a) is b
    if a is b or kind is not type(b):
        return a is b
    if kind in _PLAIN:
        return bool(a == b)
    if kind is float:  # 0.0 and -0.0 are equal
        return repr(a) == repr(b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b, repeat(twin)))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(x, b[name], twin) for name, x in a.items())
    if kind is slice:
        return _same((a.start, a.stop, a.step), (b.start, b.stop, b.step), twin)
    return kind is FakeTensor and _alike(a, b)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors without values have the same shape, strides, dtype and device, all of them known."""
    if not (a.layout is b.layout is torch.strided) or a.is_nested or b.is_nested:
        return False
    mine, other = (*a.shape, *a.stride(), a.storage_offset()), (*b.shape, *b.stride(), b.storage_offset())
    if not (_NUMBERS.issuperset(map(type, mine)) and _NUMBERS.issuperset(map(type, other))):
        return False
    return mine == other and a.dtype is b.dtype and a.device == b.device
