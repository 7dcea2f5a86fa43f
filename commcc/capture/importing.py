"""Programs from graphs in memory: ``fx.GraphModule`` and ``torch.export.ExportedProgram``.

::

    program = from_graph_module(gm, groups={"0": ProcessGroup("0", 64)})
    program = from_exported_program(torch.export.export(module, inputs), Path("model.pt2"))

The graph is copied; its metadata is reduced to what files can hold (classes become their qualified
names, enums their names, descriptors their printed form), and what cannot be reduced is left out with
a note. Limits: values that are neither tensors, numbers nor sequences of these (device meshes, script
objects) become None.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import OperatorBase, OpOverloadPacket
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_map

from commcc.base.errors import InputError, OutputError
from commcc.graph.joint_waits import take_apart
from commcc.graph.program import META_KEY, NodeRecord, Note, ProcessGroup, Program
from commcc.serialization.metadata import (
    DERIVED_KEYS,
    TRACER_KEYS,
    checkpoint_policy,
    decode_json,
    encode_entry,
    is_lost,
)
from commcc.serialization.sections import with_used_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch.export import ExportedProgram

    from commcc.base.terms import Json

_MODULE_STACKS = ("nn_module_stack", "fwd_nn_module_stack")
_SCALARS = (bool, int, float, complex, str, type(None), torch.SymInt, torch.SymFloat, torch.SymBool)


def from_graph_module(
    graph_module: fx.GraphModule,
    groups: Mapping[str, ProcessGroup] | None = None,
    header: Mapping[str, Json] | None = None,
) -> Program:
    """A program over a copy of the graph; groups that are not given are known by name and size only.

    Of inputs that are equal device meshes, the first is used wherever one is.
    """
    dropped: dict[str, str] = {}
    graph = _copied(graph_module.graph, dropped)
    root = _copied_root(graph_module, dropped)
    all_groups = {**with_used_groups(graph, root, {}), **(groups or {})}
    notes = tuple(Note(f"metadata key {key!r} cannot be kept", node) for key, node in sorted(dropped.items()))
    return Program(graph, root, groups=all_groups, header=dict(header or {}), notes=notes)


def from_exported_program(exported: ExportedProgram, archive: Path | None = None) -> Program:
    """A program from ``torch.export``; weights, buffers and calling convention stay with it only in a file.

    archive: a ``.pt2`` file to write and to read back from; the result can then be written as ``.pt2``
    with everything that ``exported`` has. Without it the graph alone is taken, and a note says so.
    Raises OutputError when PyTorch cannot save the program.
    """
    # Weights and signature have a place in an archive only.
    if archive is None:
        program = from_graph_module(exported.graph_module)
        note = Note("weights, buffers and calling convention of the exported program are not kept; give an archive")
        return replace(program, notes=(*program.notes, note))
    from torch._export.serde.serialize import SerializeError
    from torch._export.verifier import SpecViolationError

    refusals = (RuntimeError, TypeError, ValueError, AssertionError, KeyError, SerializeError, SpecViolationError)
    try:
        torch.export.save(exported, archive)
    except refusals as error:
        raise OutputError(f"torch.export.save refuses the program: {error}", where=str(archive)) from error
    from commcc.serialization.pt2.program import read_pt2

    return read_pt2(archive)


def _copied(source: fx.Graph, dropped: dict[str, str]) -> fx.Graph:
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    standing = dict(equal_meshes(source))
    for node in source.nodes:
        # A pass may leave nodes in any order until it sorts them.
        for operand in node.all_input_nodes:
            if operand not in mapping:
                hint = "sort the graph first, as by torch._inductor.pattern_matcher.stable_topological_sort"
                raise InputError(f"node '{node.name}' uses '{operand.name}' before it is defined", hint=hint)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: mapping[standing.get(operand, operand)])
        copy = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        # FX renames what it takes for a clash; the names of the source are unique already.
        copy.name = node.name
        copy.meta = plain_metadata(node, dropped)
        mapping[node] = copy
    take_apart(graph)
    return graph


def equal_meshes(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Inputs that are device meshes, each with the first input that is an equal mesh, where that is another one.

    Every DTensor brings its mesh as an input. Which of them a gradient's mesh is taken for depends, in PyTorch, on
    object identities, and so on what the process did before.
    """
    first: list[tuple[DeviceMesh, fx.Node]] = []
    for node in graph.find_nodes(op="placeholder"):
        mesh = getattr(node.meta.get("val"), "real_obj", None)
        if not isinstance(mesh, DeviceMesh):
            continue
        same = next((other for known, other in first if known == mesh), None)
        if same is None:
            first.append((mesh, node))
        else:
            yield node, same


def _copied_root(graph_module: fx.GraphModule, dropped: dict[str, str]) -> torch.nn.Module:
    """What ``get_attr`` nodes refer to: constants as they are, sub-graphs reduced like the graph itself."""
    root = torch.nn.Module()
    for node in graph_module.graph.nodes:
        if node.op != "get_attr":
            continue
        path, _, name = str(node.target).rpartition(".")
        value = getattr(graph_module.get_submodule(path), name)
        # Sub-graphs have metadata of their own.
        if isinstance(value, fx.GraphModule):
            value = fx.GraphModule(_copied_root(value, dropped), _copied(value.graph, dropped))
        owner = root
        for part in filter(None, path.split(".")):
            if not hasattr(owner, part):
                owner.add_module(part, torch.nn.Module())
            owner = getattr(owner, part)
        setattr(owner, name, value)
    return root


def plain_metadata(node: fx.Node, dropped: dict[str, str]) -> dict[str, Any]:
    """Metadata of ``node`` as :mod:`commcc.graph.program` promises it; lost keys go to ``dropped``, with its name."""
    plain: dict[str, Any] = {}
    for key, value in node.meta.items():
        if key in DERIVED_KEYS | TRACER_KEYS or (value is None and key != "val"):
            continue
        if key == "val":
            plain[key] = plain_value(value)
        elif key == META_KEY and isinstance(value, NodeRecord):
            # commcc's own record is what it promises already.
            plain[key] = value
        else:
            reduced = _reduced(key, value)
            if is_lost(reduced):
                dropped.setdefault(key, node.name)
            else:
                plain[key] = reduced
    return plain


def plain_value(value: Any) -> Any:
    """A node's value with everything that is not a tensor, number, string or sequence replaced by None."""

    def plain(leaf: Any) -> Any:
        # A fake CUDA tensor that autograd sees aborts the process on a CPU build.
        if isinstance(leaf, torch.Tensor):
            return leaf.detach() if leaf.requires_grad else leaf
        return leaf if isinstance(leaf, _SCALARS) else None

    return tree_map(plain, value)


def _reduced(key: str, value: Any) -> Any:
    """``value`` as a file would give it back; a marker that ``is_lost`` knows when no file can hold it."""
    if key in _MODULE_STACKS and isinstance(value, dict):
        # Keyed by path instead of by object identity, so that two captures of one model agree.
        return {str(path): [str(path), _type_name(kind)] for path, kind in value.values()}
    if key == "source_fn_stack":
        return [[str(name), _type_name(what)] for name, what in value]
    encoded = encode_entry(key, value)
    if is_lost(encoded):
        return encoded
    return checkpoint_policy(encoded) if key == "recompute" else decode_json(encoded)


def _type_name(kind: Any) -> str:
    """A name without an address in it: of a class, a function, a built-in method or an op."""
    if isinstance(kind, (str, OperatorBase, OpOverloadPacket)):
        return str(kind)
    name = kind.__qualname__ if isinstance(kind, type) else getattr(kind, "__name__", type(kind).__name__)
    module = getattr(kind, "__module__", None)
    return f"{module}.{name}" if module else str(name)
