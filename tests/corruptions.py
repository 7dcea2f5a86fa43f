"""Deliberate damage to a bucketed graph; each must be found by the verifier.

A corruption takes a graph and returns a damaged copy, or None where it does not apply.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


def copied(graph: fx.Graph) -> fx.Graph:
    made, env = fx.Graph(), {}
    for node in graph.nodes:
        env[node] = made.node_copy(node, env.__getitem__)
        env[node].name = node.name
    return made


def _calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "call_function" and n.target is target]


def _parts(graph: fx.Graph) -> list[fx.Node]:
    """A split of a merged result whose first two parts have equal shapes."""
    for split in _calls(graph, aten.split_with_sizes.default):
        parts = [u for u in split.users if u.target is operator.getitem]
        by_shape: dict[Any, list[fx.Node]] = {}
        for part in parts:
            by_shape.setdefault(part.meta["val"].shape, []).append(part)
        pair = next((same for same in by_shape.values() if len(same) > 1), None)
        if pair is not None:
            return pair[:2]
    return []


def swapped_slice(graph: fx.Graph) -> fx.Graph | None:
    made = copied(graph)
    parts = _parts(made)
    if not parts:
        return None
    first, second = parts
    first.args, second.args = (first.args[0], second.args[1]), (second.args[0], first.args[1])
    return made


def dropped_member(graph: fx.Graph) -> fx.Graph | None:
    made = copied(graph)
    parts = _parts(made)
    if not parts:
        return None
    parts[1].replace_all_uses_with(parts[0], delete_user_cb=lambda user: user is not parts[0])
    made.erase_node(parts[1])
    return made


def wait_after_use(graph: fx.Graph) -> fx.Graph | None:
    """The users of a merged wait read the launch instead; the wait goes to the end."""
    made = copied(graph)
    for wait in _calls(made, c10d.wait_tensor.default):
        if any(u.op != "output" for u in wait.users):
            wait.replace_all_uses_with(wait.args[0])
            list(made.nodes)[-1].prepend(wait)
            return made
    return None


def moved_before_definition(graph: fx.Graph) -> fx.Graph | None:
    made = copied(graph)
    waits = _calls(made, c10d.wait_tensor.default)
    if not waits:
        return None
    waits[-1].args[0].prepend(waits[-1])
    return made


def wrong_dtype(graph: fx.Graph) -> fx.Graph | None:
    made = copied(graph)
    casts = [n for n in _calls(made, aten._to_copy.default) if n.kwargs.get("dtype") is torch.float32]
    if not casts:
        return None
    casts[0].kwargs = {**casts[0].kwargs, "dtype": torch.bfloat16}
    return made


def reordered_write(graph: fx.Graph) -> fx.Graph | None:
    """A write to the buffer moves behind the next read of it."""
    made = copied(graph)
    nodes = list(made.nodes)
    for at, node in enumerate(nodes):
        if node.target is aten.copy_.default and not node.users:
            readers = [n for n in nodes[at + 1 :] if node.args[0] in n.all_input_nodes and n.op != "output"]
            if readers and readers[0].target is aten.add.Tensor:
                readers[0].append(node)
                return made
    return None


def _retarget(graph: fx.Graph, target: Any, position: int, value: Any) -> fx.Graph | None:
    made = copied(graph)
    for node in _calls(made, target):
        if node.args[position] != value:
            node.args = (*node.args[:position], value, *node.args[position + 1 :])
            return made
    return None


def wrong_group(graph: fx.Graph) -> fx.Graph | None:
    return _retarget(graph, c10d.reduce_scatter_tensor.default, 3, "2")


def wrong_reduction(graph: fx.Graph) -> fx.Graph | None:
    return _retarget(graph, c10d.reduce_scatter_tensor.default, 1, "min")


def swapped_outputs(graph: fx.Graph) -> fx.Graph | None:
    made = copied(graph)
    output = list(made.nodes)[-1]
    values = list(output.args[0])
    if len(values) < 2 or values[0] is values[-1]:
        return None
    values[0], values[-1] = values[-1], values[0]
    output.args = (tuple(values),)
    return made


def dropped_write(graph: fx.Graph) -> fx.Graph | None:
    made = copied(graph)
    writes = [n for n in made.nodes if n.target in (aten.copy_.default, aten.add_.Tensor) and not n.users]
    if not writes:
        return None
    made.erase_node(writes[-1])
    return made


def changed_constant(graph: fx.Graph) -> fx.Graph | None:
    return _retarget(graph, aten.fmod.Scalar, 1, 3)


CORRUPTIONS: dict[str, Callable[[fx.Graph], fx.Graph | None]] = {
    made.__name__: made
    for made in (
        swapped_slice,
        dropped_member,
        wait_after_use,
        moved_before_definition,
        wrong_dtype,
        reordered_write,
        wrong_group,
        wrong_reduction,
        swapped_outputs,
        dropped_write,
        changed_constant,
    )
}
