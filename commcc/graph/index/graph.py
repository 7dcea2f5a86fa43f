"""Types of the index. Plain data; no torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc.base.terms import Kind, Role
    from commcc.graph.index.hints import Hint
    from commcc.graph.ops.kernels import Work


@dataclass(frozen=True)
class Tensor:
    """Shape facts of one tensor. ``shape`` holds ints, or the printed expression of a symbolic size.

    contiguous: whether strides are those of a fresh tensor; taken for granted where sizes are symbolic.
    numel: elements; with symbolic sizes their hints are used, and None stands where one has no hint.
    """

    dtype: str
    itemsize: int
    shape: tuple[int | str, ...]
    device: str
    numel: int | None
    contiguous: bool = True

    @cached_property
    def symbolic(self) -> bool:
        """Whether a size is not a number."""
        return any(isinstance(size, str) for size in self.shape)

    @property
    def packed(self) -> bool:
        """Whether its elements are known to lie side by side."""
        return self.contiguous and not self.symbolic

    @property
    def bytes(self) -> int:
        """Bytes of the elements; 0 when a size has no value and no hint."""
        return (self.numel or 0) * self.itemsize


@dataclass(frozen=True)
class Launch:
    """A collective launch as the graph states it.

    inputs: nodes of the tensors that are sent. waits: wait nodes on the result, in graph order;
    empty for a synchronous collective. writes_to: nodes of the buffers written in place.
    group: name, or ``%node`` when a node carries the group. splits: nodes that the split sizes of an
    all-to-all depend on.
    """

    kind: Kind
    group: str
    group_size: int | None
    reduction: str | None
    inputs: tuple[int, ...]
    waits: tuple[int, ...]
    coalesced: bool
    writes_to: tuple[int, ...]
    asynchronous: bool
    splits: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroupEntry:
    """A process group as the program's table has it; ``size`` is None when nothing tells it.

    origin: the group that it was split off, with the same ranks. high_priority: of its stream.
    """

    name: str
    size: int | None
    ranks: tuple[int, ...] | None
    description: str
    origin: str | None = None
    high_priority: bool = False


@dataclass(frozen=True)
class Estimates:
    """Facts that only decide what a graph costs, never what may be done to it.

    parts: facts of the elements of tuple results, by node. buffers: as the index's storages, but a
    reshape that has to copy has one of its own. buffer_bytes: device bytes of each buffer, 0 for host
    memory of a graph that runs on a device. resizes: new size in bytes that a node gives to the buffer it writes.
    work: how each node runs. flops: of compute nodes whose formula and sizes are known. unmasked: attention in which
    every query sees every key. hints: the numbers that stand for sizes known only at run time. unknown: nodes with a
    result of which a size has no number, or that have no value at all, so that they count no bytes. arrivals: for
    inputs in flight at the start the ns at which their collective has ended, where that is later. freed: inputs that
    end with their last use. resident_bytes: what the rest of the step holds all along.
    """

    parts: dict[int, tuple[Tensor | None, ...]]
    buffers: tuple[tuple[int, ...], ...]
    buffer_bytes: tuple[int, ...]
    resizes: dict[int, int]
    work: tuple[Work, ...]
    flops: dict[int, int]
    unmasked: frozenset[int] = frozenset()
    hints: tuple[Hint, ...] = ()
    unknown: frozenset[int] = frozenset()
    arrivals: dict[int, int] = field(default_factory=dict)
    freed: frozenset[int] = frozenset()
    resident_bytes: int = 0

    @property
    def given(self) -> dict[str, int]:
        """The hints that people gave, by symbol; for an index of what the graph becomes."""
        return {hint.symbol: hint.value for hint in self.hints if hint.source == "given"}


@dataclass(frozen=True)
class Inside:
    """The sub-graphs of one node, of which at least one communicates.

    graphs: each of them, in the order in which the node gets them. runs: how often the node runs all of them. one: it
    runs one of them only. at_least: it may run them more often, which the graph does not tell.
    """

    graphs: tuple[GraphIndex, ...]
    runs: int = 1
    one: bool = False
    at_least: bool = False

    @property
    def kinds(self) -> dict[str, int]:
        """How many collectives of each kind the sub-graphs launch, each run once."""
        kinds: Counter[str] = Counter()
        for graph in self.graphs:
            kinds.update(str(launch.kind) for launch in graph.launches.values())
            for inside in graph.inside.values():
                kinds.update(inside.kinds)
        return dict(sorted(kinds.items()))


@dataclass(frozen=True)
class GraphIndex:
    """A graph in numbers. All tuples have one entry for each node, in graph order.

    ops: ``namespace.op`` without the overload; ``placeholder``, ``get_attr``, ``output``.
    data_preds: producers of the arguments. order_preds: further nodes that must stay before this
    one (alias and mutation, random numbers, effects and host syncs, barriers).
    storages: ids of the storages that the result lives in, one for each element of a tuple.
    tensors: facts of a single-tensor result, else None.
    users: consumers of the result. modules: cleaned module paths. custom: annotation dictionaries.
    begun_elsewhere: waits for a collective that another graph launched, as the forward does for the backward; of
    each the graph input that is in flight until then.
    barriers: nodes that communicate in a way that is not understood.
    stays: nodes that do more than compute their result, or may do; they stay although nothing uses them.
    repeats: nodes on the way from a graph input to a gather, and gathers, that repeat an earlier node: the
    same op on the same operands, of which none was written in between. control: for nodes that a control
    edge holds in place, the nodes that they are held behind. metadata: how many nodes have each key.
    group_names: all process groups in the program's table, used or not. elements: which element of a tuple
    a ``getitem`` takes. merged_roles: roles that the records of merged launches name.

    host_copies: copies from a device to the host, True where the host does not wait for them.
    host_order: order edges of a node that only keep host syncs in their order, and reads of what these wait for behind
    them (:mod:`commcc.graph.index.host`).

    estimates: what cost and memory models need besides.
    inside: of nodes that run sub-graphs which communicate, what these are. Nothing above counts it.
    digests: two bytes for each node of what the fingerprint covers, to tell which nodes differ.
    """

    fingerprint: str
    names: tuple[str, ...]
    ops: tuple[str, ...]
    data_preds: tuple[tuple[int, ...], ...]
    order_preds: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]
    storages: tuple[tuple[int, ...], ...]
    tensors: tuple[Tensor | None, ...]
    modules: tuple[str | None, ...]
    compute: tuple[bool, ...]
    casts: dict[int, str]
    custom: dict[int, dict[str, object]]
    descriptors: dict[int, str]
    output_descriptors: tuple[str | None, ...]
    outputs: tuple[int | None, ...]
    tags: dict[int, tuple[Role, str]]
    merged_from: dict[int, tuple[str, ...]]
    launches: dict[int, Launch]
    wait_of: dict[int, int]
    begun_elsewhere: dict[int, int]
    writes: dict[int, tuple[int, ...]]
    barriers: tuple[int, ...]
    host_syncs: frozenset[int]
    groups: dict[str, GroupEntry]
    estimates: Estimates
    warnings: tuple[str, ...] = field(default=())
    stays: frozenset[int] = frozenset()
    repeats: dict[int, int] = field(default_factory=dict)
    control: dict[int, tuple[int, ...]] = field(default_factory=dict)
    metadata: dict[str, int] = field(default_factory=dict)
    group_names: tuple[str, ...] = ()
    digests: bytes = b""
    elements: dict[int, int] = field(default_factory=dict)
    host_copies: dict[int, bool] = field(default_factory=dict)
    host_order: dict[int, tuple[int, ...]] = field(default_factory=dict)
    merged_roles: dict[int, Role] = field(default_factory=dict)
    inside: dict[int, Inside] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def preds(self, node: int) -> tuple[int, ...]:
        """Everything that must come before ``node``."""
        order = self.order_preds[node]
        return self.data_preds[node] + order if order else self.data_preds[node]

    @cached_property
    def notes(self) -> dict[object, Any]:
        """What others have worked out about this graph and ask again, by who did."""
        return {}

    @cached_property
    def all_preds(self) -> tuple[tuple[int, ...], ...]:
        """:meth:`preds` of all nodes."""
        both = zip(self.data_preds, self.order_preds, strict=True)
        return tuple([data + order if order else data for data, order in both])

    @cached_property
    def touched(self) -> tuple[tuple[int, ...], ...]:
        """For each node the buffers that have to be there while it runs: what it makes and reads, and for a wait what
        its collective reads and writes.
        """
        buffers = self.estimates.buffers
        by_node: list[tuple[int, ...]] = []
        for own, preds in zip(buffers, self.data_preds, strict=True):
            near = dict.fromkeys(own)
            for pred in preds:
                near.update(dict.fromkeys(buffers[pred]))
            by_node.append(tuple(near))
        for wait, launch in self.wait_of.items():
            by_node[wait] = tuple(dict.fromkeys((*by_node[wait], *by_node[launch])))
        return tuple(by_node)

    def needs(self, node: int) -> tuple[int, ...]:
        """What must come before ``node`` for values to stay the same: :meth:`preds` without ``host_order``."""
        kept = self.host_order.get(node)
        return self.preds(node) if kept is None else tuple(p for p in self.preds(node) if p not in kept)

    def awaited(self, node: int) -> int:
        """What a wait is for: its launch, or the input that is in flight; any other node itself."""
        return self.wait_of.get(node, self.begun_elsewhere.get(node, node))

    def with_inside(self) -> tuple[GraphIndex, ...]:
        """This graph and all sub-graphs of nodes that communicate."""
        inner = [graph for inside in self.inside.values() for graph in inside.graphs]
        return (self, *(nested for graph in inner for nested in graph.with_inside()))

    @cached_property
    def meetings(self) -> tuple[list[int], list[tuple[int, ...]]]:
        """Which launches each node descends from, in short: a number for each node, and before each number others.

        Every launch has a number of its own, the others one for what they descend from, as far as that is told from
        their predecessors; numbers grow along the graph. 0 is for nodes that descend from no launch.
        """
        own: list[int] = []
        before: list[tuple[int, ...]] = [()]
        known: dict[tuple[int, ...], int] = {}
        for node, preds in enumerate(self.all_preds):
            met = {own[pred] for pred in preds}
            if len(met) > 1:
                # What another one has before it counts there.
                met.difference_update(*[before[number] for number in met], (0,))
            if node in self.launches:
                own.append(len(before))
                before.append(tuple(met))
            elif len(met) < 2:
                own.append(met.pop() if met else 0)
            else:
                key = tuple(sorted(met))
                own.append(known.setdefault(key, len(before)))
                if own[-1] == len(before):
                    before.append(key)
        return own, before

    @cached_property
    def position(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @property
    def size_remedy(self) -> str:
        """What gives sizes that are not known their numbers: hints where they have symbols, else another dump."""
        tensors = (t for n in self.estimates.unknown for t in (self.tensors[n], *self.estimates.parts.get(n, ())))
        if any(tensor is not None for tensor in tensors):
            return "give the symbols in its shapes numbers, as in --hint 'u*=512' ('commcc inspect' lists them)"
        return "dump the graph with its shapes, as print_readable(include_stride=True, include_device=True) does"

    @cached_property
    def held(self) -> frozenset[int]:
        """Nodes at either end of a control edge."""
        return frozenset(node for pair in self.control.items() for node in (pair[0], *pair[1]))

    @cached_property
    def placeholders(self) -> tuple[int, ...]:
        return tuple(i for i, op in enumerate(self.ops) if op == "placeholder")

    @cached_property
    def output_slots(self) -> dict[int, int]:
        """First output position in which a node is returned."""
        slots: dict[int, int] = {}
        for slot, node in enumerate(self.outputs):
            if node is not None:
                slots.setdefault(node, slot)
        return slots

    @cached_property
    def output_storages(self) -> frozenset[int]:
        """Storages that a graph output lives in."""
        return frozenset(s for node in self.output_slots for s in self.storages[node])
