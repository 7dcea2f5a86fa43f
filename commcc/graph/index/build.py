"""Builds a :class:`GraphIndex` from a program: one walk over the nodes, then the dependences."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx

from commcc.base.errors import GraphError
from commcc.base.terms import Kind, Role
from commcc.graph import ops
from commcc.graph.index.control import unwrapped
from commcc.graph.index.dependence import order_edges
from commcc.graph.index.estimates import estimate
from commcc.graph.index.graph import GraphIndex, GroupEntry, Inside, Launch, Tensor
from commcc.graph.index.hints import SizeHints
from commcc.graph.index.modules import module_path
from commcc.graph.index.outside import in_step
from commcc.graph.index.repeats import Numbering
from commcc.graph.index.storage import assign_storages
from commcc.graph.index.tensors import TensorTable
from commcc.graph.index.traits import Traits, launches_inside, mixed_nodes, sub_graphs, traits_of_all, with_constants
from commcc.graph.index.waits import awaited, begun_elsewhere, launched_into, waits_for_nothing, waits_on
from commcc.graph.ops.libraries import NATIVE
from commcc.graph.ops.libraries import fenced as fence_of
from commcc.graph.ops.operands import nodes_in
from commcc.graph.program import META_KEY, ProcessGroup, record_of
from commcc.graph.regions import CALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from commcc.graph.index.outside import Outside
    from commcc.graph.program import NodeRecord, Program

Edges = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Walk:
    """What the nodes say one by one. number: of each node; control, subgraphs: as :func:`unwrapped` finds them.
    records: those that commcc wrote. op_names: by the identity of targets, since hashing an op takes long.
    """

    nodes: list[fx.Node]
    number: dict[fx.Node, int]
    control: dict[int, tuple[int, ...]]
    subgraphs: dict[int, int]
    hints: SizeHints
    traits: list[Traits]
    tensors: tuple[Tensor | None, ...]
    storages: Edges
    data_preds: Edges
    records: dict[int, NodeRecord]
    op_names: dict[int, str]

    @classmethod
    def over(cls, program: Program, given: Mapping[str, int], step: Mapping[str, int]) -> _Walk:
        """Walk over the nodes of a program, wrapped ones unwrapped."""
        nodes, control, subgraphs = unwrapped(program)
        hints = SizeHints(given, program.header, step)
        hints.assume_balanced(nodes)
        number = {node: i for i, node in enumerate(nodes)}
        data_preds = tuple(_numbers(node._input_nodes, number) for node in nodes)
        late = next((i for i, preds in enumerate(data_preds) if preds and max(preds) >= i), None)
        if late is not None:
            name = nodes[late].name
            raise GraphError(f"node '{name}' is used before its input", hint="the graph is not in topological order")
        table = TensorTable(hints)
        tensors = tuple([table.of(node.meta.get("val")) for node in nodes])
        traits = traits_of_all(nodes, program.root, program.groups, tensors)
        storages = assign_storages(nodes, number, mixed_nodes(traits), root=program.root)
        traits = with_constants(nodes, program.root, traits, storages)
        records = {i: record_of(node) for i, node in enumerate(nodes) if META_KEY in node.meta}
        targets = {id(node.target): node.target for node in nodes if node.op == "call_function"}
        op_names = {at: ops.op_name(target) for at, target in targets.items()}
        return cls(nodes, number, control, subgraphs, hints, traits, tensors, storages, data_preds, records, op_names)

    def with_control(self, order_preds: Edges) -> Edges:
        """Order edges, with those of wrapped nodes: what they are held behind, and where their sub-graph is fetched."""
        edges = list(order_preds)
        for node, after in self.control.items():
            edges[node] = tuple(sorted({*edges[node], *after, self.subgraphs[node]} - set(self.data_preds[node])))
            if any(i >= node for i in edges[node]):
                raise GraphError("a node is held back by one that comes after it", hint="the graph is not in order")
        return tuple(edges)

    def sends(self) -> dict[int, tuple[int, ...]]:
        """Operands that the host copies to a device without waiting, by node."""
        return {i: _numbers(trait.sends, self.number) for i, trait in enumerate(self.traits) if trait.sends}

    def without_control(self, host_order: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        """Edges that only keep host syncs in their order, without those that control edges ask for too."""
        loose = {i: tuple(b for b in before if b not in self.control.get(i, ())) for i, before in host_order.items()}
        return {i: before for i, before in loose.items() if before}


#: Indexes of sub-graphs that are there already.
Seen: TypeAlias = "dict[fx.Graph, GraphIndex] | None"


def build(program: Program, given: Mapping[str, int], outside: Outside | None = None, seen: Seen = None) -> GraphIndex:
    """Index ``program``; see :mod:`commcc.graph.index`. seen: sub-graphs that are indexed, as many calls share one."""
    walk = _Walk.over(program, given, {} if outside is None else outside.sizes)
    nodes, number, traits = walk.nodes, walk.number, walk.traits
    launches, wait_of = _launches(nodes, number)
    begun = {number[wait]: number[source] for wait, source in begun_elsewhere(nodes).items()}
    _check_waits(nodes, {*wait_of, *begun})
    writes = _writes(traits, number, begun)
    outputs, output_descriptors = _outputs(nodes, number)
    order_preds, host_order = order_edges(walk.data_preds, walk.storages, traits, launches, writes, walk.sends())
    fingerprint, digests = _fingerprint(nodes, walk.op_names, walk.tensors, walk.control)
    fenced = {node: i for i, node in enumerate(nodes) if traits[i].barrier}
    inside = _inside(fenced, program, given, seen)
    return GraphIndex(
        fingerprint=fingerprint,
        names=tuple(node.name for node in nodes),
        ops=tuple([walk.op_names[id(node.target)] if node.op == "call_function" else node.op for node in nodes]),
        data_preds=walk.data_preds,
        order_preds=walk.with_control(order_preds),
        users=users_of(walk.data_preds),
        storages=walk.storages,
        tensors=walk.tensors,
        modules=tuple(module_path(node.meta) for node in nodes),
        compute=tuple(t.compute for t in traits),
        casts={i: t.cast for i, t in enumerate(traits) if t.cast is not None},
        custom={i: node.meta["custom"] for i, node in enumerate(nodes) if node.meta.get("custom")},
        descriptors={number[n]: str(n.meta["desc"]) for n in nodes if n.op == "placeholder" and n.meta.get("desc")},
        output_descriptors=output_descriptors,
        outputs=outputs,
        tags=_roles(walk.records, merged=False),
        merged_from={i: record.merged_from for i, record in walk.records.items() if record.merged_from},
        launches=launches,
        wait_of=wait_of,
        begun_elsewhere=begun,
        writes=writes,
        barriers=tuple(fenced.values()),
        host_syncs=frozenset(i for i, t in enumerate(traits) if t.host_sync),
        host_copies={i: t.unblocked for i, t in enumerate(traits) if t.host_copy},
        host_order=walk.without_control(host_order),
        groups=_groups(program, launches),
        estimates=in_step(
            estimate(nodes, number, walk.storages, walk.tensors, walk.hints, mixed_nodes(traits)),
            {node.name: i for node, i in number.items() if node.op == "placeholder"},
            *(frozenset(begun.values()), given, outside),
        ),
        warnings=tuple(_warnings(walk, fenced, inside, launches)),
        stays=frozenset(walk.subgraphs.values()).union(i for i, t in enumerate(traits) if t.stays),
        control=walk.control,
        repeats=Numbering(nodes, number, walk.storages).repeats(traits, launches, writes),
        metadata=dict(sorted(Counter(map(str, chain.from_iterable(node.meta for node in nodes))).items())),
        group_names=tuple(sorted({*program.groups, *(launch.group for launch in launches.values())})),
        digests=digests,
        elements={
            i: node.args[1]
            for i, node in enumerate(nodes)
            if ops.is_getitem(node.target) and len(node.args) == 2 and isinstance(node.args[1], int)
        },
        merged_roles={i: role for i, (role, _) in _roles(walk.records, merged=True).items()},
        inside=inside,
    )


def _writes(traits: list[Traits], number: dict[fx.Node, int], begun: dict[int, int]) -> dict[int, tuple[int, ...]]:
    """What each node writes. A collective that is in flight at the start writes until it is waited for."""
    writes = {i: _numbers(t.writes, number) for i, t in enumerate(traits) if t.writes}
    return {**writes, **{wait: (source,) for wait, source in begun.items()}}


def users_of(preds: Edges) -> Edges:
    """For every node those that have it among their predecessors, in order."""
    users: list[list[int]] = [[] for _ in preds]
    for node, needed in enumerate(preds):
        for pred in needed:
            users[pred].append(node)
    return tuple(map(tuple, users))


def _numbers(nodes: Iterable[fx.Node], number: dict[fx.Node, int]) -> tuple[int, ...]:
    return tuple(map(number.__getitem__, nodes))


def _launches(nodes: list[fx.Node], number: dict[fx.Node, int]) -> tuple[dict[int, Launch], dict[int, int]]:
    launches: dict[int, Launch] = {}
    wait_of: dict[int, int] = {}
    for i, node in enumerate(nodes):
        fact = ops.collective_of(node.target) if node.op == "call_function" else None
        if fact is None:
            continue
        waits = tuple(sorted(_numbers(waits_on(node), number))) if fact.asynchronous else ()
        wait_of.update(dict.fromkeys(waits, i))
        group = ops.argument(node, "group_name")
        splits = [ops.argument(node, name) for name in ("output_split_sizes", "input_split_sizes")]
        launches[i] = Launch(
            kind=fact.kind,
            group=f"%{group.name}" if isinstance(group, fx.Node) else str(group),
            group_size=ops.group_size_of(node),
            reduction=str(ops.argument(node, "reduce_op")) if fact.has_reduction else None,
            inputs=_numbers(nodes_in(ops.argument(node, fact.tensor)), number),
            waits=waits,
            coalesced=fact.coalesced,
            writes_to=_numbers(nodes_in(ops.argument(node, fact.out)), number) if fact.out else (),
            asynchronous=fact.asynchronous,
            splits=_numbers(nodes_in(splits), number),
        )
    return launches, wait_of


def _check_waits(nodes: list[fx.Node], known: set[int]) -> None:
    """A wait must wait for something that may have launched a collective."""
    for i, node in enumerate(nodes):
        source = None if i in known or waits_for_nothing(node) else awaited(node)
        if source is not None and (source.op == "placeholder" or ops.is_local(source.target)):
            into = launched_into(source)
            hint = f"'{into.name}' writes to it: wait for the result of that" if into is not None else None
            raise GraphError(f"'{node.name}' waits for '{source.name}', which launches no collective", hint=hint)


def _outputs(nodes: list[fx.Node], number: dict[fx.Node, int]) -> tuple[tuple[int | None, ...], tuple[str | None, ...]]:
    leaves: list[Any] = []
    stack = list(nodes[-1].args) if nodes and nodes[-1].op == "output" else []
    while stack:
        leaf = stack.pop()
        if isinstance(leaf, (list, tuple)):
            stack.extend(leaf)
        elif isinstance(leaf, dict):
            stack.extend(leaf.values())
        else:
            leaves.append(leaf)
    leaves.reverse()
    described = nodes[-1].meta.get("desc") if nodes else None
    texts = [str(d) for d in described] if isinstance(described, (list, tuple)) else []
    padded = texts + [None] * (len(leaves) - len(texts)) if len(texts) <= len(leaves) else [None] * len(leaves)
    return tuple(number[leaf] if isinstance(leaf, fx.Node) else None for leaf in leaves), tuple(padded)


def _roles(records: dict[int, NodeRecord], *, merged: bool) -> dict[int, tuple[Role, str]]:
    """What records say of launches that are merged, or of those that are not."""
    known = {role.value: role for role in Role}
    roles: dict[int, tuple[Role, str]] = {}
    for i, record in records.items():
        if record.role in known and bool(record.merged_from) is merged:
            roles[i] = (known[record.role], record.evidence or "tagged")
    return roles


def _groups(program: Program, launches: dict[int, Launch]) -> dict[str, GroupEntry]:
    sizes: dict[str, set[int]] = defaultdict(set)
    for launch in launches.values():
        sizes[launch.group].update(() if launch.group_size is None else (launch.group_size,))
    entries: dict[str, GroupEntry] = {}
    for name, seen in sizes.items():
        known = program.groups.get(name)
        told = {known.size} if known is not None and known.size is not None else set()
        if len(seen | told) > 1:
            listed = " and ".join(map(str, sorted(seen | told)))
            raise GraphError(f"process group '{name}' appears with sizes {listed}", hint="one group has one size")
        size = next(iter(seen | told), None)
        table = known or ProcessGroup(name, size)
        entries[name] = GroupEntry(name, size, table.ranks, table.description, table.origin, table.high_priority)
    return entries


def _inside(fenced: Mapping[fx.Node, int], program: Program, given: Mapping[str, int], seen: Seen) -> dict[int, Inside]:
    """The sub-graphs of nodes that communicate in them, indexed, and how often each node runs them."""
    result: dict[int, Inside] = {}
    known = {} if seen is None else seen
    for node, number in fenced.items():
        if not launches_inside(node, program.root):
            continue
        inner = sub_graphs(node, program.root)
        for graph in inner:
            if graph not in known:
                root = graph.owning_module or torch.nn.Module()
                known[graph] = build(replace(program, graph=graph, root=root), given, None, known)
        graphs = tuple(known[graph] for graph in inner)
        name = ops.op_name(node.target).rpartition(".")[2]
        if name == "cond":
            result[number] = Inside(graphs, one=True)
            continue
        # What a map or a scan goes over lies along the first dimension; what it takes along comes after that.
        over = {"map_impl": 1, "scan": 2}.get(name)
        rows = _first_size(node.args[over]) if over is not None and len(node.args) > over else None
        unsaid = name.startswith("while_loop") or (over is not None and not rows)
        result[number] = Inside(graphs, rows or 1, at_least=unsaid)
    return result


def _first_size(xs: Any) -> int | None:
    """Rows of the first tensor among these; None where the graph does not say."""
    val = next((node.meta.get("val") for node in nodes_in(xs)), None)
    rows = val.shape[0] if isinstance(val, torch.Tensor) and val.dim() else None
    return rows if isinstance(rows, int) else None


def _warning(node: fx.Node, inside: Inside | None) -> str:
    """Why nothing moves across a barrier, behind its name."""
    name = ops.op_name(node.target)
    if inside is not None:
        kinds = ", ".join(f"{number} {kind}" for kind, number in inside.kinds.items())
        often = ", once through where it may run more often" if inside.at_least else ""
        remedy = "; the pass 'inline' puts its nodes in its place" if name == CALL else ""
        return (
            f"({name}) launches {kinds} in a sub-graph: nothing moves across it, and its time is that of "
            f"the node{often}{remedy}"
        )
    source = awaited(node)
    if source is not None:
        known = f"'{source.name}' ({ops.op_name(source.target)})"
        return f"waits for {known}, of which nothing is known: nothing moves across it"
    if ops.facts(node.target).body:
        return f"({name}) waits or communicates in a sub-graph in an unknown way: nothing moves across it"
    if (why := fence_of(name)) is not None:
        return f"({name}) {why}: nothing moves across it"
    otherwise = "" if name.partition(".")[0] in NATIVE else ", unless a file says how (--ops)"
    return f"({name}) communicates in an unknown way: nothing moves across it{otherwise}"


def _warnings(
    walk: _Walk, fenced: Mapping[fx.Node, int], inside: Mapping[int, Inside], launches: Mapping[int, Launch]
) -> Iterator[str]:
    """What nothing moves across, and whether the graph is that of one rank."""
    alike: dict[str, list[str]] = defaultdict(list)
    for node, i in fenced.items():
        if awaited(node) not in fenced:
            alike[_warning(node, inside.get(i))].append(node.name)
    for why, names in alike.items():
        more = f" (and {len(names) - 1} more like it)" if len(names) > 1 else ""
        yield f"'{names[0]}' {why}{more}"
    yield from _of_one_rank([walk.nodes[i] for i, launch in launches.items() if launch.kind is Kind.ALL_TO_ALL])


def _of_one_rank(exchanges: list[fx.Node]) -> Iterator[str]:
    """That ranks cannot all run this graph: its all-to-alls send, or expect, parts of several sizes that are numbers.

    What every rank sends to the second one, the second one would have to expect from every rank.
    """
    names = []
    for node in exchanges:
        given = [ops.argument(node, name) for name in ("output_split_sizes", "input_split_sizes")]
        sizes = [size for part in given if isinstance(part, (list, tuple)) for size in part]
        if len(set(sizes)) > 1 and all(isinstance(size, int) for size in sizes):
            names.append(node.name)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"'{names[0]}'{more}: parts of several sizes, so this is the graph of one rank; what becomes of the graphs "
            "of the others must agree with it (commcc lint compares ranks)"
        )


_DEVICE_NUMBER = re.compile(r"(device\(type='\w+'), index=\d+\)")
#: Of an op that is handed to another one and has no text of its own; different in every process.
_ADDRESS = re.compile(r"(<[\w.<> ]{1,200}) at 0x[0-9a-f]+>")


def _fingerprint(
    nodes: list[fx.Node], names: dict[int, str], tensors: tuple[Any, ...], control: dict[int, tuple[int, ...]]
) -> tuple[str, bytes]:
    """Of the whole graph, and two bytes of each node. names: of ops, by the identity of targets."""
    digest = hashlib.sha256()
    short = bytearray()
    for i, (node, tensor) in enumerate(zip(nodes, tensors, strict=True)):
        target = node.target if isinstance(node.target, str) else names[id(node.target)]
        overload = getattr(node.target, "_overloadname", "")
        # Every rank has a device of its own.
        shape = (tensor.dtype, tensor.shape, tensor.device.partition(":")[0]) if tensor is not None else None
        text = f"{node.op} {node.name} {target}.{overload} {node.args} {node.kwargs} {shape}\n"
        text = _ADDRESS.sub(r"\1>", text) if " at 0x" in text else text
        line = (_DEVICE_NUMBER.sub(r"\1)", text) if "device(" in text else text).encode()
        line += f"after {[nodes[n].name for n in control[i]]}\n".encode() if i in control else b""
        digest.update(line)
        short += hashlib.blake2b(line, digest_size=2).digest()
    return digest.hexdigest(), bytes(short)
