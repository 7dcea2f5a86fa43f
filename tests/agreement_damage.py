"""Deliberate damage to the launches of one rank; each must be found, and at the right place.

A damage takes a graph of its own, which it changes, and a random generator; it returns the number of the launch, on
its group, at which this rank first differs, with the name of the group, or None where it does not apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from commcc.graph import ops

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from torch import fx

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


class Place(NamedTuple):
    group: str
    at: int


def launches(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "call_function" and ops.collective_of(n.target) is not None]


def group_of(node: fx.Node) -> str:
    return str(ops.argument(node, "group_name"))


def place_of(graph: fx.Graph, node: fx.Node) -> Place:
    own = [n for n in launches(graph) if group_of(n) == group_of(node)]
    return Place(group_of(node), own.index(node))


def look(node: fx.Node) -> tuple[Any, ...]:
    """What others can see of a launch, told apart from commcc's own reading."""
    val = node.args[0].meta["val"]
    constants = [a for a in node.args[1:] if isinstance(a, str)]
    return (str(node.target), val.dtype, constants, str(val.numel()))


def hoisted(graph: fx.Graph, node: fx.Node, before: fx.Node) -> bool:
    """Move a node with all that it needs ahead of another one, where that is possible."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    needed, stack = {node}, [node]
    while stack:
        for each in stack.pop().all_input_nodes:
            if each not in needed and order[each] > order[before]:
                needed.add(each)
                stack.append(each)
            if each is before:
                return False
    for each in sorted(needed, key=order.__getitem__):
        before.prepend(each)
    return True


def neighbours(graph: fx.Graph, *, alike: bool) -> list[tuple[fx.Node, fx.Node]]:
    """Pairs of launches that follow one another on a group, of one look or of different looks."""
    last: dict[str, fx.Node] = {}
    pairs = []
    for node in launches(graph):
        before = last.get(group_of(node))
        if before is not None and (look(before) == look(node)) is alike:
            pairs.append((before, node))
        last[group_of(node)] = node
    return pairs


def _swapped(graph: fx.Graph, random: random.Random, *, alike: bool) -> Place | None:
    pairs = neighbours(graph, alike=alike)
    random.shuffle(pairs)
    for first, second in pairs:
        place = place_of(graph, first)
        if hoisted(graph, second, first):
            return place
    return None


def swapped(graph: fx.Graph, random: random.Random) -> Place | None:
    return _swapped(graph, random, alike=False)


def swapped_alike(graph: fx.Graph, random: random.Random) -> Place | None:
    return _swapped(graph, random, alike=True)


def _chosen(graph: fx.Graph, random: random.Random, wanted: Callable[[fx.Node], bool]) -> fx.Node | None:
    found = [node for node in launches(graph) if wanted(node)]
    return random.choice(found) if found else None


def other_dtype(graph: fx.Graph, random: random.Random) -> Place | None:
    node = _chosen(graph, random, lambda n: n.args[0].meta["val"].dtype in (torch.bfloat16, torch.float32))
    if node is None:
        return None
    source = node.args[0]
    dtype = torch.float16
    with graph.inserting_before(node):
        cast = graph.call_function(aten._to_copy.default, (source,), {"dtype": dtype})
    cast.meta["val"] = source.meta["val"].to(dtype)
    node.args = (cast, *node.args[1:])
    return place_of(graph, node)


def other_size(graph: fx.Graph, random: random.Random) -> Place | None:
    node = _chosen(graph, random, lambda n: "all_to_all" not in str(n.target))
    if node is None:
        return None
    source = node.args[0]
    with graph.inserting_before(node):
        twice = graph.call_function(aten.cat.default, ([source, source],))
    twice.meta["val"] = torch.cat([source.meta["val"]] * 2)
    node.args = (twice, *node.args[1:])
    return place_of(graph, node)


def other_reduction(graph: fx.Graph, random: random.Random) -> Place | None:
    node = _chosen(graph, random, lambda n: "reduce" in str(n.target))
    if node is None:
        return None
    node.args = (node.args[0], "max", *node.args[2:])
    return place_of(graph, node)


def other_kind(graph: fx.Graph, random: random.Random) -> Place | None:
    node = _chosen(graph, random, lambda n: "reduce_scatter" in str(n.target))
    if node is None:
        return None
    place = place_of(graph, node)
    node.target = c10d.all_reduce.default
    node.args = (*node.args[:2], node.args[3])
    return place


def other_group(graph: fx.Graph, random: random.Random) -> Place | None:
    """The launch goes to another group of the same graph: it is missing on its own."""
    names = sorted({group_of(node) for node in launches(graph)})
    sizes = {group_of(node): ops.argument(node, "group_size") for node in launches(graph)}

    def fits(node: fx.Node) -> bool:
        return any(name != group_of(node) and sizes[name] == sizes[group_of(node)] for name in names)

    node = _chosen(graph, random, fits)
    if node is None:
        return None
    place = place_of(graph, node)
    other = next(name for name in names if name != place.group and sizes[name] == sizes[place.group])
    at = [*node.args].index(place.group)
    node.args = (*node.args[:at], other, *node.args[at + 1 :])
    return place


def dropped(graph: fx.Graph, random: random.Random) -> Place | None:
    """A launch and its wait go; what used them gets a tensor of zeros."""
    node = _chosen(graph, random, lambda n: bool(n.users) and not hasattr(n.meta["val"].shape[0], "node"))
    if node is None:
        return None
    place = place_of(graph, node)
    val = node.meta["val"]
    with graph.inserting_before(node):
        zeros = graph.call_function(aten.full.default, (list(val.shape), 0), {"dtype": val.dtype})
    zeros.meta["val"] = val
    for wait in list(node.users):
        wait.replace_all_uses_with(zeros)
        graph.erase_node(wait)
    graph.erase_node(node)
    return place


def added(graph: fx.Graph, random: random.Random) -> Place | None:
    """A launch is made twice, from what was computed before it."""
    node = _chosen(graph, random, lambda n: True)
    if node is None:
        return None
    source = node.args[0]
    with graph.inserting_before(node):
        moved = graph.call_function(aten.neg.default, (source,))
        moved.meta["val"] = source.meta["val"]
        launch = graph.call_function(node.target, (moved, *node.args[1:]), dict(node.kwargs))
        launch.meta["val"] = node.meta["val"]
        wait = graph.call_function(c10d.wait_tensor.default, (launch,))
        wait.meta["val"] = node.meta["val"]
    return place_of(graph, launch)


def other_splits(graph: fx.Graph, random: random.Random) -> Place | None:
    """This rank sends fewer rows, and expects what it expected, in an exchange of static sizes."""
    node = _chosen(
        graph,
        random,
        lambda n: "all_to_all" in str(n.target) and all(isinstance(size, int) for size in [*n.args[1], *n.args[2]]),
    )
    if node is None:
        return None
    sizes = list(node.args[2])
    sizes[0], sizes[-1] = sizes[0] - 1, sizes[-1] + 1
    node.args = (node.args[0], node.args[1], sizes, node.args[3])
    return place_of(graph, node)


DAMAGES: dict[str, Callable[[fx.Graph, random.Random], Place | None]] = {
    made.__name__: made
    for made in (
        swapped,
        swapped_alike,
        other_dtype,
        other_size,
        other_reduction,
        other_kind,
        other_group,
        dropped,
        added,
        other_splits,
    )
}
