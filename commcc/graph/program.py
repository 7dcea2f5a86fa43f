"""The program that everything works on: a graph, its process groups, and where it came from.

A :class:`Program` is read by ``commcc.serialization``, never edited in place, and rewritten only by
``commcc.apply``, which returns a new one::

    program = load("llama.fx.txt.gz")
    program.graph.nodes          # torch.fx nodes, in file order, under the names in the file
    program.groups["0"].size     # 64
    record_of(node).role         # what the tag pass wrote, or None

Metadata contract of every node (all keys optional except ``val`` on nodes that produce a value):

``val``
    FakeTensor, SymInt/SymFloat/SymBool, int/float/bool/str/None, or a (nested) tuple/list of these.
``custom``, ``nn_module_stack``, ``fwd_nn_module_stack``, ``stack_trace``, ``seq_nr``, ``desc`` ...
    As PyTorch writes them, reduced to JSON-able values (classes become their qualified names).
``commcc``
    One :class:`NodeRecord`; the only key that commcc adds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.base.errors import GraphError
from commcc.graph.copying import copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from commcc.base.terms import Json

META_KEY = "commcc"


@dataclass(frozen=True)
class ProcessGroup:
    """One process group as the graph names it, seen from the rank that dumped the graph.

    origin: the group that this one was split off, with the same ranks; None for a group that the graph came with.
    high_priority: its stream is to be made with high priority.
    """

    name: str
    size: int | None
    ranks: tuple[int, ...] | None = None
    description: str = ""
    origin: str | None = None
    high_priority: bool = False


@dataclass(frozen=True)
class NodeRecord:
    """What commcc knows about one node, kept in ``node.meta["commcc"]`` and in saved files.

    role: the role that ``tag`` gave a collective (a value of :class:`commcc.base.terms.Role`).
    evidence: why, in one line.
    merged_from: names of the launches, in the input graph, that a merged launch stands for.
    """

    role: str | None = None
    evidence: str | None = None
    merged_from: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        out: dict[str, Json] = {}
        if self.role is not None:
            out["role"] = self.role
        if self.evidence is not None:
            out["evidence"] = self.evidence
        if self.merged_from:
            out["merged_from"] = list(self.merged_from)
        return out

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> NodeRecord:
        """Build a record from untrusted JSON; wrong types raise ``ValueError``."""
        role, evidence, merged = data.get("role"), data.get("evidence"), data.get("merged_from", [])
        if not (role is None or isinstance(role, str)) or not (evidence is None or isinstance(evidence, str)):
            raise ValueError("role and evidence must be strings")
        if not isinstance(merged, list) or not all(isinstance(name, str) for name in merged):
            raise ValueError("merged_from must be a list of node names")
        return NodeRecord(role, evidence, tuple(merged))


@dataclass(frozen=True)
class Note:
    """Something a reader or writer could not keep, or took on trust; ``node`` names where.

    assumed: ``strides`` or ``devices``, which the file leaves out and were taken as is usual.
    """

    text: str
    node: str | None = None
    assumed: str | None = None


#: Levels of sub-graphs that are looked into, and nodes that a graph may run with all of them.
DEEPEST, MOST_NODES = 16, 1 << 20


@dataclass(frozen=True)
class Program:
    """A graph with all that is needed to plan on it and to write it again.

    graph: never edited in place once it is in a Program.
    root: owner of what ``get_attr`` nodes refer to (sub-graphs as ``fx.GraphModule``, constants).
    groups: every process group that a collective names, by name.
    format: ``fx_text``, ``pt2`` or ``memory``.
    source: the file it was read from, None for graphs made in memory.
    carrier: what only the format of origin understands (weights, signature); writers of that
        format use it, everybody else leaves it alone. See :mod:`commcc.serialization.pt2.program`.
    header: graph-level JSON that must survive a round trip (symbol ranges, calling convention).
    notes: what could not be read or was assumed.
    provenance: one JSON entry for each pass applied, oldest first.
    """

    graph: fx.Graph
    root: torch.nn.Module
    groups: Mapping[str, ProcessGroup] = field(default_factory=dict)
    format: str = "memory"
    source: Path | None = None
    carrier: object | None = None
    header: Mapping[str, Json] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    provenance: tuple[dict[str, Json], ...] = ()

    def copied_graph(self) -> fx.Graph:
        """A copy of the graph: the same names, targets and metadata."""
        return copied(self.graph.nodes)

    def graph_module(self) -> fx.GraphModule:
        """An ``fx.GraphModule`` over a copy of the graph, to be run or handed to a backend."""
        return fx.GraphModule(self.root, self.copied_graph())


def record_of(node: fx.Node) -> NodeRecord:
    """The node's record; an empty one when commcc never wrote any."""
    record = node.meta.get(META_KEY)
    return record if isinstance(record, NodeRecord) else _EMPTY


_EMPTY = NodeRecord()


def attribute(module: torch.nn.Module, node: fx.Node) -> Any:
    """What a ``get_attr`` node of a graph of ``module`` refers to; None where there is nothing."""
    owner: Any = module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return owner


def is_plain(value: object) -> bool:
    """Whether a tensor is a strided one of PyTorch's own with values in memory."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.device.type != "meta"  # type: ignore[attr-defined]
        and value.layout is torch.strided  # type: ignore[attr-defined]
        and not value.is_quantized  # type: ignore[attr-defined]
    )


def all_graphs(graph: fx.Graph, root: torch.nn.Module) -> list[fx.Graph]:
    """A graph, then those of its sub-graphs, in which branches, loops and regions are."""
    return [graph, *(module.graph for module in root.modules() if isinstance(module, fx.GraphModule))]


def nodes_run(graph: fx.Graph, root: torch.nn.Module, known: dict[fx.Graph, int], depth: int = 0) -> int:
    """How many nodes a graph runs, those of sub-graphs once for each call, and no more than :data:`MOST_NODES`: a few
    lines of calls of calls can run more than any machine looks at. known: of graphs that were counted.
    """
    count = known.get(graph)
    if count is None:
        count = len(graph.nodes)
        for node in graph.find_nodes(op="get_attr") if depth < DEEPEST else ():
            module = attribute(root, node) if count < MOST_NODES else None
            if isinstance(module, fx.GraphModule):
                count += len(node.users) * nodes_run(module.graph, module, known, depth + 1)
        count = known[graph] = min(count, MOST_NODES)
    return count


def check_size(program: Program) -> None:
    """Raises :class:`GraphError` where a program runs too many nodes; see :func:`nodes_run`."""
    if nodes_run(program.graph, program.root, {}) == MOST_NODES:
        raise GraphError(f"sub-graphs are called so often that over {MOST_NODES:,} nodes run")


def all_calls(program: Program) -> Iterator[fx.Node]:
    """Nodes that call an op, of the program's graph and of its sub-graphs."""
    for graph in all_graphs(program.graph, program.root):
        yield from (node for node in graph.nodes if node.op == "call_function")
