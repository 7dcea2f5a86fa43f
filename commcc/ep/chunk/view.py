"""A program as the planner of chunks sees it: nodes by number, annotations, and which values hold token data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from torch import fx

from commcc.base.terms import Kind
from commcc.ep.chunk.lab import symbol_ranges
from commcc.ep.chunk.structure import told_by_exchanges
from commcc.ep.concrete import recorded_sizes
from commcc.graph import ops
from commcc.graph.annotations import annotations_of
from commcc.graph.ops.flexible import numbering
from commcc.serialization.attributes import find

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from commcc.ep.chunk.lab import Ranges
    from commcc.graph.annotations import Annotation
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program

_Key = TypeVar("_Key")
_FIXED = (
    "ParamAOTInput",
    "BufferAOTInput",
    "SubclassGetAttrAOTInput(base=Param",
    "SubclassGetAttrAOTInput(base=Buffer",
)


@dataclass(frozen=True)
class View:
    """Facts of every node. data: it depends on an input that is no parameter and no buffer. constant: it depends on no
    input. alive: its result is used, or it does more than compute one. number: of each node. loose: nodes that belong
    to no module, or take one of several results. chosen: symbols in the shapes of inputs. recorded: the numbers that
    these had when the graph was made. by_module: nodes by the path of their module. by_storage:
    nodes that live in a storage, the one that made it first. bare: no node of the backward pass has a module path;
    then twins are the forward nodes that backward nodes compute again. numbering: attention that looks at the number of
    a sample for more than what it is handed of it.
    """

    index: GraphIndex
    nodes: tuple[fx.Node, ...]
    notes: tuple[Annotation, ...]
    ranges: Ranges
    data: tuple[bool, ...]
    constant: tuple[bool, ...]
    alive: tuple[bool, ...]
    number: dict[fx.Node, int]
    loose: tuple[int, ...]
    chosen: frozenset[str]
    recorded: dict[str, int]
    by_module: dict[str, list[int]]
    by_storage: dict[int, list[int]]
    bare: bool
    twins: dict[int, int]
    numbering: frozenset[fx.Node]

    def within(self, node: int, root: str) -> bool:
        return is_in(self.notes[node].module, root)

    def with_inside(self, nodes: Collection[int], root: str) -> View:
        """The same with these nodes in module ``root``, whatever module they are of."""
        notes = [replace(note, module=root) if node in nodes else note for node, note in enumerate(self.notes)]
        by_module: dict[str, list[int]] = {}
        for node, note in enumerate(notes):
            by_module.setdefault(note.module, []).append(node)
        return replace(self, notes=tuple(notes), by_module=by_module)

    def near(self, root: str) -> list[int]:
        """Nodes that can be in a region of ``root``: those inside, and loose ones; in order."""
        inside = [node for module, own in self.by_module.items() if is_in(module, root) for node in own]
        return sorted({*inside, *self.loose})

    def sharing(self, node: int) -> list[int]:
        """Nodes in whose storage the result may live, ``node`` included, in order."""
        return sorted({other for storage in self.index.storages[node] for other in self.by_storage[storage]})

    def free_symbols(self, node: int) -> list[str]:
        """Symbols in a tensor's shape that callers choose: those of inputs."""
        shape = getattr(self.nodes[node].meta.get("val"), "shape", ())
        names = {s.name for size in shape if type(size) is not int for s in size.node.expr.free_symbols}
        return sorted(names & self.chosen)

    def calls(self, node: int) -> bool:
        return self.nodes[node].op == "call_function"

    def exchanges(self, node: int) -> bool:
        """Whether the node launches an all-to-all."""
        launch = self.index.launches.get(node)
        return launch is not None and launch.kind is Kind.ALL_TO_ALL

    @cached_property
    def exchanging(self) -> tuple[int, ...]:
        """All nodes that launch an all-to-all, in order."""
        return tuple(filter(self.exchanges, range(len(self.index))))


def is_in(module: str, root: str) -> bool:
    """Whether a module is another one, or within it."""
    return module == root or module.startswith(root + ".")


def _like(index: GraphIndex, node: int) -> object:
    """What a parameter has in common with its gradient."""
    tensor = index.tensors[node]
    return None if tensor is None else (tensor.shape, tensor.dtype)


def _is_number(index: GraphIndex, node: int, written: Collection[int]) -> bool:
    """Whether an input holds whole numbers, as tokens do, and is no buffer that something is counted in."""
    tensor = None if node in written else index.tensors[node]
    return tensor is not None and tensor.dtype.startswith(("int", "uint", "torch.int", "torch.uint"))


def _computed_again(nodes: Sequence[fx.Node], notes: Sequence[Annotation]) -> dict[int, int]:
    """Backward nodes that do what a forward node did, on the same operands or on these computed again."""
    first: dict[object, int] = {}
    stands: dict[fx.Node, fx.Node] = {}
    twins: dict[int, int] = {}
    for number, node in enumerate(nodes):
        if node.op != "call_function":
            continue
        given = fx.node.map_arg((node.args, dict(node.kwargs)), lambda used: stands.get(used, used).name)
        key = (node.target, str(given))
        if not notes[number].backward:
            first.setdefault(key, number)
        elif key in first:
            twins[number] = first[key]
            stands[node] = nodes[first[key]]
    return twins


def _grouped(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, list[int]]:
    groups: dict[_Key, list[int]] = {}
    for key, node in pairs:
        groups.setdefault(key, []).append(node)
    return groups


def view_of(program: Program, index: GraphIndex) -> View:
    """Everything that planning reads of a program."""
    nodes = tuple(program.graph.nodes)
    data: list[bool] = []
    constant: list[bool] = []
    gradients = {
        _like(index, node) for node in index.outputs[1:] if node is not None and index.ops[node] != "placeholder"
    }
    written = {target for targets in index.writes.values() for target in targets}
    numbers = not index.descriptors and any(_is_number(index, node, written) for node in index.placeholders)
    for node in range(len(index)):
        preds = index.data_preds[node]
        is_input = index.ops[node] == "placeholder"
        if not is_input:
            data.append(any(data[p] for p in preds))
        elif index.descriptors:
            data.append(not index.descriptors.get(node, "").startswith(_FIXED))
        else:
            # Where inputs are not described, whole numbers are data if there are any (tokens). If not, all inputs are
            # that no gradient is returned of and that nothing is written to.
            other = not numbers and node not in written and _like(index, node) not in gradients
            data.append(_is_number(index, node, written) or index.names[node].startswith("tangents") or other)
        fetched = is_input or index.ops[node] == "get_attr"
        constant.append(not fetched and all(constant[p] for p in preds))
    alive = [False] * len(index)
    for node in reversed(range(len(index))):
        kept = node in index.stays or index.ops[node] in ("output", "placeholder")
        alive[node] = kept or any(alive[user] for user in index.users[node])
    notes = annotations_of(program, index)
    if not any(index.modules):
        told = told_by_exchanges(index, notes, data)
        notes = tuple(replace(note, module=told.get(node, "")) for node, note in enumerate(notes))
    behind = [note for node, note in enumerate(notes) if note.backward and data[node]]
    bare = bool(behind) and not any(note.module for note in behind)
    shapes = [getattr(nodes[i].meta.get("val"), "shape", ()) for i in index.placeholders]
    chosen = {s.name for shape in shapes for n in shape if type(n) is not int for s in n.node.expr.free_symbols}
    return View(
        index=index,
        nodes=nodes,
        notes=notes,
        ranges=symbol_ranges(program),
        data=tuple(data),
        constant=tuple(constant),
        alive=tuple(alive),
        number={node: i for i, node in enumerate(nodes)},
        loose=tuple(i for i, note in enumerate(notes) if not note.module or ops.is_getitem(nodes[i].target)),
        chosen=frozenset(chosen),
        recorded=recorded_sizes(program),
        by_module=_grouped((note.module, node) for node, note in enumerate(notes)),
        by_storage=_grouped((storage, node) for node, held in enumerate(index.storages) for storage in held),
        bare=bare,
        twins=_computed_again(nodes, notes) if bare else {},
        numbering=numbering(nodes, partial(find, program.root)),
    )
