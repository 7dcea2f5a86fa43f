"""What a graph is, whatever its nodes and groups are called: ops, operands by position, values, in order.

    here = structure_of(program)
    here.fingerprint                  # the same on a laptop and on every rank of the job that runs the program
    here.groups                       # names of its groups, in the order in which nodes name them
    renamed(program, {"mm_3": "mm"}, {"7": "dp"})
    with_equal_groups_joined(program) # axes of equal meshes, each with a group of its own, have one

Names of nodes, names and members of groups, and devices differ from process to process and are not in it; which
launches share a group is. Nor are values of constants and metadata, nor what symbolic sizes are called: they are
numbered in the order in which values show them. Nor are numbers that ops are given, but for launches: under tensor
parallelism every rank cuts its own part and looks up its own words. What they do to shapes is in the values.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx

from commcc.base.text import natural_key
from commcc.graph.copying import copied, with_modules
from commcc.graph.ops import argument, argument_names, collective_of, op_name, set_argument
from commcc.graph.program import META_KEY, NodeRecord, attribute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.graph.program import Program

#: A graph is captured for a GPU where there is none, and tried out on the CPU.
_DEVICE = re.compile(r"device\(type='\w+'(, index=\d+)?\)")
#: A symbol in a size, as PyTorch writes it.
SYMBOL = re.compile(r"\b[a-z]+\d+\b")


@dataclass(frozen=True)
class Structure:
    """names: of all nodes. groups: names in order of their first use. digests: two bytes of each node."""

    fingerprint: str
    names: tuple[str, ...]
    groups: tuple[str, ...]
    digests: bytes

    def first_difference(self, other: Structure | bytes) -> int | None:
        """Number of the first node that is another one; None where one begins with all of the other."""
        theirs = other if isinstance(other, bytes) else other.digests
        count = min(len(self.digests), len(theirs)) // 2
        return next((i for i in range(count) if self.digests[2 * i : 2 * i + 2] != theirs[2 * i : 2 * i + 2]), None)


def structure_of(program: Program) -> Structure:
    """Linear in the graph."""
    groups: dict[str, str] = {}
    whole, short = hashlib.sha256(), bytearray()
    for line in _lines(program.graph, program.root, groups, _Symbols()):
        whole.update(line)
        short += hashlib.blake2b(line, digest_size=2).digest()
    sizes = [program.groups[name].size if name in program.groups else None for name in groups]
    whole.update(f"{sizes}".encode())
    names = tuple(node.name for node in program.graph.nodes)
    return Structure(whole.hexdigest(), names, tuple(groups), bytes(short))


class _Symbols(dict[Any, Any]):
    """Symbols of sizes under names of their own, by their number."""

    def __missing__(self, symbol: sympy.Symbol) -> sympy.Symbol:
        kind = str(symbol).rstrip("0123456789")  # known when tracing, or only when running
        self[symbol] = sympy.Symbol(f"{kind}{len(self)}", **symbol.assumptions0)
        return self[symbol]

    def told(self, value: Any) -> Any:
        """A value, or a part of one, as text."""
        if isinstance(value, torch.Tensor):
            return f"{value.dtype}{[self.size(size) for size in value.shape]}"
        if isinstance(value, torch.SymInt):
            return f"{type(value)}{self.size(value)}"
        return str(type(value))

    def renamed(self, match: re.Match[str]) -> str:
        return next((str(new) for old, new in self.items() if str(old) == match[0]), match[0])

    def size(self, size: int | torch.SymInt) -> str:
        if isinstance(size, int):
            return str(size)
        expression: Any = size.node.expr
        return str(expression.xreplace({symbol: self[symbol] for symbol in sorted(expression.free_symbols, key=str)}))


def _lines(graph: fx.Graph, root: torch.nn.Module, groups: dict[str, str], symbols: _Symbols) -> Iterator[bytes]:
    """A line for each node; groups: what stands for each name, filled as they come, as symbols are."""
    numbers = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), numbers.__getitem__)
        named = dict(zip(argument_names(node.target), args, strict=False)) if node.op == "call_function" else {}
        group = named.get("group_name", kwargs.get("group_name"))
        if isinstance(group, str):
            place = groups.setdefault(group, f"group {len(groups)}")
            args = tuple(place if value == group else value for value in args)
            kwargs = {key: place if value == group else value for key, value in kwargs.items()}
        else:
            args, kwargs = fx.node.map_aggregate((args, kwargs), _without_numbers)
        target = op_name(node.target) if node.op == "call_function" else node.op
        overload = getattr(node.target, "_overloadname", "")
        values = fx.node.map_aggregate(node.meta.get("val"), symbols.told)
        body = _body(node, root, groups, symbols)
        # Messages of assertions name sizes too.
        given = SYMBOL.sub(symbols.renamed, f"{args} {sorted(kwargs.items())}")
        text = f"{target}.{overload} {given} {values} {body}\n"
        yield _DEVICE.sub("device", text).encode()


def _without_numbers(value: Any) -> Any:
    """Truth values are no numbers."""
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else value


def _body(node: fx.Node, root: torch.nn.Module, groups: dict[str, str], symbols: _Symbols) -> str:
    """What a ``get_attr`` node names, if that is a sub-graph."""
    if node.op != "get_attr":
        return ""
    module = attribute(root, node)
    if not isinstance(module, fx.GraphModule):
        return ""
    return hashlib.sha256(b"".join(_lines(module.graph, module, groups, symbols))).hexdigest()


def renamed(program: Program, nodes: Mapping[str, str], groups: Mapping[str, str]) -> Program:
    """The same program under other names of nodes and groups; what is not named keeps its name.

    Its graph is a copy. Raises ValueError where two nodes would share a name.
    """
    graph = program.copied_graph()
    clashes = [name for name, count in Counter(nodes.get(n.name, n.name) for n in graph.nodes).items() if count > 1]
    if clashes:
        raise ValueError(f"two nodes would be called '{clashes[0]}'")
    for node in graph.nodes:
        # FX looks for no free name here, so that names may change places.
        node.name = nodes.get(node.name, node.name)
        record = node.meta.get(META_KEY)
        if isinstance(record, NodeRecord) and record.merged_from:
            merged_from = tuple(nodes.get(name, name) for name in record.merged_from)
            node.meta[META_KEY] = replace(record, merged_from=merged_from)
    _call_groups(graph, groups)
    taken = set(groups.values())
    table = {
        groups.get(name, name): replace(
            group, name=groups.get(name, name), origin=groups.get(str(group.origin), group.origin)
        )
        for name, group in program.groups.items()
        if name in groups or name not in taken
    }
    return replace(program, graph=graph, root=_regrouped(program.root, groups), groups=table)


def _call_groups(graph: fx.Graph, groups: Mapping[str, str]) -> None:
    for node in _launches(graph):
        name = _group_name(node)
        if name in groups:
            set_argument(node, "group_name", groups[name])


def _regrouped(module: torch.nn.Module, groups: Mapping[str, str]) -> torch.nn.Module:
    """A copy that calls groups otherwise in its sub-graphs; the module itself where none of them names one."""
    parts = {name: part for name, part in module._modules.items() if part is not None}
    changed = {name: new for name, part in parts.items() if (new := _regrouped(part, groups)) is not part}
    root = with_modules(module, changed) if changed else module
    if not isinstance(module, fx.GraphModule):
        return root
    if not changed and not any(_group_name(node) in groups for node in _launches(module.graph)):
        return module
    graph = copied(module.graph.nodes)
    _call_groups(graph, groups)
    return fx.GraphModule(root, graph)


def with_equal_groups_joined(program: Program) -> Program:
    """The program with one group for all that have the same ranks and the same description; itself without such.

    Every mesh has process groups of its own. DTensors take equal meshes for the same one, so that it depends on what
    the process did before which of their groups a launch names. The one that was made first stands for all, the same
    on all of its ranks.
    """
    alike: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for name, group in program.groups.items():
        if group.ranks is not None and group.description and group.origin is None:
            alike.setdefault((group.ranks, group.description), []).append(name)
    joined = {
        name: first
        for first, *others in (sorted(names, key=natural_key) for names in alike.values())
        for name in others
    }
    return renamed(program, {}, joined) if joined else program


def _launches(graph: fx.Graph) -> list[fx.Node]:
    """Nodes that name a process group."""
    calls = (node for node in graph.nodes if node.op == "call_function" and collective_of(node.target) is not None)
    return [node for node in calls if isinstance(_group_name(node), str)]


def _group_name(node: fx.Node) -> Any:
    return argument(node, "group_name")
