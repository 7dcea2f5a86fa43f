"""Writes the new graph, unit by unit, and the merged form: in plain ATen one launch and one wait in place of several,
or one call that launches each member by itself.

:mod:`commcc.planning.bucket_model` says which form that is, :mod:`commcc.apply.order` where everything stands.

No process group is asked and no rank is written into the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.apply.fakes import fake_like, is_contiguous, reshaped
from commcc.apply.order import LAUNCH, NODE, WAIT, Unit
from commcc.base.errors import GraphError
from commcc.base.terms import Kind
from commcc.graph import ops
from commcc.graph.copying import copy_node
from commcc.graph.index.waits import viewed, waits_again
from commcc.graph.ops.collective_table import COALESCED
from commcc.graph.ops.operands import sources
from commcc.graph.program import META_KEY, NodeRecord, record_of
from commcc.planning.bucket_model import Wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex
    from commcc.plan import Bucket


_NOT_COPIED = frozenset({"val", META_KEY, "desc", "tensor_meta", "eager_input_vals"})


class Builder:
    """Makes new nodes in one graph, under names that are free."""

    def __init__(self, graph: fx.Graph, taken: set[str]) -> None:
        self.graph = graph
        self.taken = taken

    def prefix(self, wanted: str) -> str:
        """The first of ``wanted_0``, ``wanted_1`` ... that no node name begins with."""
        number = 0
        while f"{wanted}_{number}" in self.taken:
            number += 1
        self.taken.add(f"{wanted}_{number}")
        return f"{wanted}_{number}"

    def call(self, target: str, args: tuple[Any, ...], name: str, val: Any, like: fx.Node) -> fx.Node:
        """A new call; metadata other than the value comes from ``like``."""
        node = self.graph.create_node("call_function", ops.overload(target), (), {}, name)
        object.__setattr__(node, "args", args)  # as copies of nodes get theirs
        if node.name != name:
            node.name = name
        node.meta.update((key, value) for key, value in like.meta.items() if key not in _NOT_COPIED)
        node.meta["val"] = val
        return node


class Merger:
    """Makes the nodes of one bucket."""

    def __init__(
        self, builder: Builder, bucket: Bucket, members: Sequence[fx.Node], env: dict[fx.Node, fx.Node]
    ) -> None:
        self.builder = builder
        self.bucket = bucket
        self.members = members
        self.name = builder.prefix(f"{bucket.kind}_bucket")
        self.first = members[0]
        sources = [ops.argument(member, "input") for member in members]
        self.cast = sources[0] if bucket.shared_cast else None
        self.old_sources = [next(iter(s._input_nodes)) for s in sources] if bucket.shared_cast else sources
        self.sources = [env[source] for source in self.old_sources]
        self.like = sources[0].meta["val"]
        ranks = int(ops.argument(self.first, "group_size", 1))
        vals = [source.meta["val"] for source in sources]
        # Elements as they travel: of mixed dtypes all travel as bytes.
        counts = [int(val.numel()) * (val.dtype.itemsize if bucket.as_bytes else 1) for val in vals]
        self.wire = Wire(bucket.kind, ranks, tuple(counts))
        self.split: fx.Node | None = None

    def launch(self) -> None:
        """Copy-in and the merged launch."""
        target = _target(self.first)
        whole = self._joined()
        if self.cast is not None:
            whole = self._cast(whole, self.cast)
        group = ops.argument(self.first, "group_name")
        arguments: dict[Kind, tuple[Any, ...]] = {
            Kind.ALL_GATHER: (self.wire.ranks, group),
            Kind.REDUCE_SCATTER: (ops.argument(self.first, "reduce_op", None), self.wire.ranks, group),
            Kind.ALL_REDUCE: (ops.argument(self.first, "reduce_op", None), group),
        }
        received = self._fake((self.wire.received,))
        self.launched = self._call(target, (whole, *arguments[self.bucket.kind]), "", received)
        self.launched.meta[META_KEY] = _recorded(self.bucket, self.members)

    def wait(self) -> None:
        """The merged wait and the split of its result."""
        val = self.launched.meta["val"]
        whole, dim = self._call("_c10d_functional.wait_tensor.default", (self.launched,), "_wait", val), 0
        if self.bucket.kind is Kind.ALL_GATHER:  # a row from every rank that holds all members, one after the other
            shape = (self.wire.ranks, sum(self.wire.sent))
            whole, dim = self._call("aten.view.default", (whole, list(shape)), "_rows", self._fake(shape)), 1
        rows, pieces, offset = whole.meta["val"], [], 0
        for size in self.wire.slices:
            shape = (*rows.shape[:dim], size)
            pieces.append(fake_like(rows, shape, rows.dtype, stride=rows.stride(), offset=offset))
            offset += size
        args = (whole, self.wire.slices, *([dim] if dim else []))
        self.split = self._call("aten.split_with_sizes.default", args, "_split", tuple(pieces))

    def result(self, place: int, wait: fx.Node) -> fx.Node:
        """What member ``place``'s wait returned, in its shape."""
        assert self.split is not None
        piece = self._call(
            "operator.getitem", (self.split, place), f"_part{place}", self.split.meta["val"][place], wait
        )
        val = wait.meta["val"]
        if self.bucket.as_bytes:
            # A copy first: a slice may start where the dtype's alignment does not allow a view.
            owned = self._copy(piece, f"_own{place}", wait)
            *rows, count = owned.meta["val"].shape
            typed = fake_like(val, (*rows, count // val.dtype.itemsize), val.dtype)
            piece = self._call("aten.view.dtype", (owned, val.dtype), f"_typed{place}", typed, wait)
        shaped = reshaped(piece.meta["val"], tuple(val.shape))
        result = self._call("aten.reshape.default", (piece, list(val.shape)), f"_out{place}", shaped, wait)
        if self.bucket.copies[place] or not is_contiguous(shaped):
            # Either an output would come to share the bucket's storage, or users would see its strides.
            result = self._copy(result, f"_out{place}_copy", wait)
        return result

    def _copy(self, source: fx.Node, suffix: str, wait: fx.Node) -> fx.Node:
        whole = source.meta["val"]
        copy = self._call("aten.clone.default", (source,), suffix, fake_like(whole, tuple(whole.shape)), wait)
        copy.kwargs = {"memory_format": torch.contiguous_format}
        return copy

    def _joined(self) -> fx.Node:
        """All members' inputs in one row."""
        dtype = torch.uint8 if self.bucket.as_bytes else self.old_sources[0].meta["val"].dtype
        total = sum(self.wire.sent)
        if not self.wire.by_rank:
            parts = [self._flat(place) for place in range(len(self.members))]
            return self._call("aten.cat.default", (parts,), "_cat", fake_like(self.like, (total,), dtype))
        ranks = self.wire.ranks
        parts = [self._reshaped(place, [ranks, size]) for place, size in enumerate(self.wire.slices)]
        val = fake_like(self.like, (ranks, total // ranks), dtype)
        rows = self._call("aten.cat.default", (parts, 1), "_cat", val)
        return self._call("aten.reshape.default", (rows, [-1]), "_in", fake_like(self.like, (total,), dtype))

    def _flat(self, place: int) -> fx.Node:
        """One member's input in one row, as bytes where all travel so."""
        source, val = self.sources[place], self.old_sources[place].meta["val"]
        if self.bucket.as_bytes:
            flat_val = reshaped(val, (int(val.numel()),))
            flat = self._call("aten.reshape.default", (source, [-1]), f"_flat{place}", flat_val)
            if not is_contiguous(flat_val) or _lazy(self.old_sources[place]):  # of these, no bytes can be viewed
                flat = self._copy(flat, f"_row{place}", self.members[place])
            count = self.wire.sent[place]
            return self._call("aten.view.dtype", (flat, torch.uint8), f"_bytes{place}", self._fake((count,)))
        return source if val.dim() == 1 else self._reshaped(place, [-1])

    def _reshaped(self, place: int, shape: list[int]) -> fx.Node:
        val = self.old_sources[place].meta["val"]
        whole = reshaped(val, shape if len(shape) > 1 else (int(val.numel()),))
        args = (self.sources[place], shape)
        return self._call("aten.reshape.default", args, f"_in{place}", whole, self.members[place])

    def _cast(self, whole: fx.Node, cast: fx.Node) -> fx.Node:
        node = self._call("aten.clone.default", (whole,), "_cast", self._fake(whole.meta["val"].shape), cast)
        node.target, node.args, node.kwargs = cast.target, (whole, *cast.args[1:]), dict(cast.kwargs)
        return node

    def _call(self, target: str, args: tuple[Any, ...], suffix: str, val: Any, like: fx.Node | None = None) -> fx.Node:
        return self.builder.call(target, args, self.name + suffix, val, like or self.first)

    def _fake(self, shape: Sequence[int]) -> torch.Tensor:
        """A value in the dtype that travels."""
        return fake_like(self.like, shape, torch.uint8 if self.bucket.as_bytes else None)


def _lazy(node: fx.Node) -> bool:
    """Whether a tensor may be conjugated or negated only when it is read, as views of complex numbers are."""
    while True:
        val = node.meta.get("val")
        if ops.op_name(node.target) == "aten._neg_view" or (isinstance(val, torch.Tensor) and val.dtype.is_complex):
            return True
        seen = sources(node) if node.op == "call_function" else ()
        if len(seen) != 1:
            return bool(seen)
        node = seen[0]


class Caller:
    """Makes the nodes of one coalesced bucket: a call that launches every member, and what each is waited for by."""

    def __init__(
        self, builder: Builder, bucket: Bucket, members: Sequence[fx.Node], env: dict[fx.Node, fx.Node]
    ) -> None:
        self.builder, self.bucket, self.members, self.env = builder, bucket, members, env
        self.name = builder.prefix(f"{bucket.kind}_bucket")

    def launch(self) -> None:
        """The call, on the members' own inputs."""
        first = self.members[0]
        op, _, which = _target(first).rpartition(".")
        sent = [self.env[ops.argument(member, "input")] for member in self.members]
        shared = [ops.argument(first, name) for name in ops.argument_names(first.target)[1:]]
        vals = [member.meta["val"] for member in self.members]
        self.launched = self.builder.call(f"{op}{COALESCED}.{which}", (sent, *shared), self.name, vals, first)
        self.launched.meta[META_KEY] = _recorded(self.bucket, self.members)

    def wait(self, waits: Sequence[fx.Node]) -> None:
        """Every member's own wait, on its part of the result."""
        for place, (member, wait) in enumerate(zip(self.members, waits, strict=True)):
            val = member.meta["val"]
            part = self.builder.call("operator.getitem", (self.launched, place), f"{self.name}_part{place}", val, wait)
            self.env[member] = part
            self.env[wait] = copy_node(self.builder.graph, wait, self.env)


def _target(launch: fx.Node) -> str:
    """The op of a launch, ``namespace.op.overload``."""
    if isinstance(launch.target, ops.OpaqueOp):
        what = f"'{launch.name}' calls {launch.target.qualified_name}, which this PyTorch does not have"
        raise GraphError(what, hint="it cannot be merged")
    return str(launch.target)


def _recorded(bucket: Bucket, members: Sequence[fx.Node]) -> NodeRecord:
    """What the merged launch says of itself."""
    names = [name for member in members for name in (record_of(member).merged_from or (member.name,))]
    # Tags that agree stay; without any, what the merged launch is for is seen from the graph.
    roles = {record_of(member).role for member in members}
    role = roles.pop() if len(roles) == 1 else None
    return NodeRecord(role, str(bucket.reason), tuple(names))


def emit(old: fx.Graph, index: GraphIndex, buckets: Sequence[Bucket], order: Sequence[Unit]) -> fx.Graph:
    """A new graph with the units in this order."""
    nodes = list(old.nodes)
    builder = Builder(fx.Graph(), taken={node.name for node in nodes})
    env: dict[fx.Node, fx.Node] = {}
    mergers: dict[int, Merger | Caller] = {}
    split_up = {nodes[member] for bucket in buckets if not bucket.coalesced for member in bucket.members}
    for unit in order:
        if unit.kind == NODE:
            node = nodes[unit.number]
            if split_up and waits_again(node) and viewed(node) in split_up:
                # What was waited for a second time is a part of the bucket's result now, or a copy of one, which no
                # launch is behind.
                env[node] = env[ops.argument(node, "tensor")]
            else:
                env[node] = copy_node(builder.graph, node, env)
            continue
        bucket = buckets[unit.number]
        if unit.kind == LAUNCH:
            members = [nodes[m] for m in bucket.members]
            mergers[unit.number] = (Caller if bucket.coalesced else Merger)(builder, bucket, members, env)
            mergers[unit.number].launch()
            continue
        merger, waits = mergers[unit.number], [nodes[index.launches[member].waits[0]] for member in bucket.members]
        if isinstance(merger, Caller):
            merger.wait(waits)
        elif unit.kind == WAIT:
            merger.wait()
        else:
            env[waits[unit.member]] = merger.result(unit.member, waits[unit.member])
    return builder.graph
