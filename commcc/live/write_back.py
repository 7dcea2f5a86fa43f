"""Makes a module's graph into a rewritten one, in place.

    before = from_graph_module(gm)          # of commcc.capture.importing
    write_back(gm, before, program)         # program: what was made of it

Nodes that both graphs have stay the same objects, with their own metadata, since tracers and compilers keep objects
in it that no file can hold. New nodes get theirs from the program, and what it does not say (module path, stack
trace) from the node that they stand for. Nodes are the same if name, kind and target are. What fails leaves the module
half written: :mod:`commcc.graph.restoring` has it as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.graph.program import META_KEY, NodeRecord

if TYPE_CHECKING:
    from commcc.graph.program import Program

#: What new nodes take over from the node that they stand for, and what of it even where a program has it: it has
#: names in place of classes and functions.
_ORIGIN_KEYS = ("stack_trace", "custom", "seq_nr", "partitioner_tag", "autograd_backward")
_OBJECTS = ("nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "original_aten", "desc")


def write_back(gm: fx.GraphModule, before: Program, program: Program) -> None:
    """Edit ``gm`` so that it computes what ``program`` does, in its order; the code of ``gm`` is made anew.

    before: what was read from ``gm``.
    """
    graph = gm.graph
    own = {node.name: node for node in graph.nodes}
    metadata = {name: node.meta for name, node in own.items()}
    after: dict[fx.Node, fx.Node] = {}
    cursor = graph._root
    for node in program.graph.nodes:
        kept = own.get(node.name)
        if kept is not None and (kept.op, kept.target) != (node.op, node.target):
            kept = None
        with graph.inserting_after(cursor):
            here = kept if kept is not None else graph.create_node(node.op, node.target, name=node.name)
        if kept is not None:
            cursor.append(here)
        after[node] = cursor = here
    for node, here in after.items():
        args, kwargs = fx.map_arg((node.args, node.kwargs), after.__getitem__)
        if (here.args, here.kwargs) != (args, kwargs):
            here.args, here.kwargs = args, kwargs
    alive = set(after.values())
    for node in reversed(list(graph.nodes)):
        if node not in alive:
            graph.erase_node(node)
    for node, here in after.items():
        if metadata.get(node.name) is not here.meta:
            here.name = node.name  # FX renames what it takes for a clash with a node that is gone now
            origin = _of_origin(node, metadata)
            known = {key: value for key, value in node.meta.items() if key not in _OBJECTS}
            here.meta = {key: origin[key] for key in _ORIGIN_KEYS if key in origin} | known
            here.meta |= {key: origin[key] for key in _OBJECTS if key in origin and key in node.meta}
        else:
            _mark(node, here)
        if node.op == "get_attr":
            _adopt(gm, before.root, program.root, str(node.target))
    graph.lint()
    gm.recompile()


def _mark(node: fx.Node, here: fx.Node) -> None:
    """What commcc has found out about a node that stays, and its value if that is another one now."""
    if META_KEY in node.meta:
        here.meta[META_KEY] = node.meta[META_KEY]
    old, new = here.meta.get("val"), node.meta.get("val")
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and _sizes(old) != _sizes(new):
        here.meta["val"] = new


def _sizes(tensor: torch.Tensor) -> list[Any]:
    """What can be compared: that of two symbols is a guard, by which the job compiles again for other sizes."""
    return [size if isinstance(size, int) else size.node.expr for size in tensor.shape]


def _of_origin(node: fx.Node, metadata: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is known of the node that a new one stands for: of the first launch it merges, or of what it reads."""
    record = node.meta.get(META_KEY)
    names = record.merged_from if isinstance(record, NodeRecord) else ()
    names = names or tuple(operand.name for operand in node.all_input_nodes)
    for name in names:
        if name in metadata:
            return metadata[name]
    return {}


def _adopt(gm: fx.GraphModule, before: torch.nn.Module, root: torch.nn.Module, target: str) -> None:
    """Give ``gm`` the sub-graph or constant that a ``get_attr`` names, unless that is the one that was read from it.

    Whether ``gm`` has one of that name does not count: it may be what another pass has left, or one that was rewritten.
    """
    path, _, name = target.rpartition(".")
    owner, source = gm, root
    for part in filter(None, path.split(".")):
        if not hasattr(owner, part):
            owner.add_module(part, torch.nn.Module())
        owner, source = getattr(owner, part), getattr(source, part)
    value, was = getattr(source, name), _at(before, target)
    if not _same(value, was):
        setattr(owner, name, value)


def _at(root: Any, target: str) -> Any:
    for part in target.split("."):
        root = getattr(root, part, None)
    return root


def _same(value: Any, was: Any) -> bool:
    """Whether it is the same constant, or a sub-graph that makes the same calls, as those below it do."""
    if value is was:
        return True
    if not isinstance(value, fx.GraphModule) or not isinstance(was, fx.GraphModule):
        return False
    pairs = list(zip(value.graph.nodes, was.graph.nodes, strict=False))
    return (
        len(value.graph.nodes) == len(was.graph.nodes)
        and all(_said(mine) == _said(theirs) for mine, theirs in pairs)
        and all(
            _same(_at(value, str(mine.target)), _at(was, str(mine.target)))
            for mine, _ in pairs
            if mine.op in ("get_attr", "call_module")
        )
    )


def _said(node: fx.Node) -> tuple[str, ...]:
    return node.op, node.name, str(node.target), str(node.args), str(node.kwargs)
