"""The merged forms: one launch and one wait in place of several, in plain ATen.

all-gather (W ranks, member i has n_i elements)::

    flat_i = reshape(x_i, [-1]);  all = cat(flat_i);  [all = cast(all)]
    wait(all_gather(all, W)) -> view [W, sum n] -> split n along 1 -> reshape to member i's shape

reduce-scatter: ``reshape(x_i, [W, n_i / W])``, cat along 1, flatten, launch, wait, split, reshape.
all-reduce: flatten, cat, launch, wait, split, reshape.

No process group is asked and no rank is written into the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.apply.fakes import contiguous_strides, fake_like, reshaped
from commcc.base.errors import GraphError
from commcc.base.terms import Kind
from commcc.graph import ops
from commcc.graph.program import META_KEY, NodeRecord, record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

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
        node = self.graph.create_node("call_function", ops.overload(target), args, {}, name)
        if node.name != name:
            node.name = name
        node.meta = {key: value for key, value in like.meta.items() if key not in _NOT_COPIED}
        node.meta["val"] = val
        return node


class Merger:
    """Makes the nodes of one bucket. Subclasses say how members are laid out on the wire."""

    def __init__(
        self, builder: Builder, bucket: Bucket, members: Sequence[fx.Node], env: dict[fx.Node, fx.Node]
    ) -> None:
        self.builder = builder
        self.bucket = bucket
        self.members = members
        self.env = env
        self.name = builder.prefix(f"{bucket.kind}_bucket")
        self.first = members[0]
        self.group = ops.argument(self.first, "group_name")
        self.size = ops.argument(self.first, "group_size", 1)
        sources = [ops.argument(member, "input") for member in members]
        self.cast = sources[0] if bucket.shared_cast else None
        self.old_sources = [next(iter(s._input_nodes)) for s in sources] if bucket.shared_cast else sources
        self.sources = [env[source] for source in self.old_sources]
        self.wire = sources[0].meta["val"]
        self.sent = [int(source.meta["val"].numel()) for source in sources]
        self.split: fx.Node | None = None

    def launch(self) -> None:
        """Copy-in and the merged launch."""
        target = self.first.target
        if isinstance(target, ops.OpaqueOp):
            what = f"'{self.first.name}' calls {target.qualified_name}, which this PyTorch does not have"
            raise GraphError(what, hint="it cannot be merged")
        parts = [self._part(place) for place in range(len(self.members))]
        whole = self._concatenate(parts)
        if self.cast is not None:
            whole = self._cast(whole)
        self.launched = self._call(str(target), (whole, *self._launch_arguments()), "", self._fake(self._received()))
        self.launched.meta[META_KEY] = self._record()

    def wait(self) -> None:
        """The merged wait and the split of its result."""
        waited = self._call(
            "_c10d_functional.wait_tensor.default", (self.launched,), "_wait", self.launched.meta["val"]
        )
        self.split = self._split(waited)

    def result(self, place: int, wait: fx.Node) -> fx.Node:
        """What member ``place``'s wait returned, in its shape."""
        assert self.split is not None
        piece = self._call(
            "operator.getitem", (self.split, place), f"_part{place}", self.split.meta["val"][place], wait
        )
        val = wait.meta["val"]
        if self.bucket.as_bytes:
            piece = self._from_bytes(piece, place, val, wait)
        made_val = reshaped(piece.meta["val"], tuple(val.shape))
        made = self._call("aten.reshape.default", (piece, list(val.shape)), f"_out{place}", made_val, wait)
        if self.bucket.copies[place] or made_val.stride() != contiguous_strides(made_val.shape):
            # Either an output would come to share the bucket's storage, or users would see its strides.
            made = self._copy(made, f"_out{place}_copy", wait)
        return made

    def _copy(self, source: fx.Node, suffix: str, wait: fx.Node) -> fx.Node:
        whole = source.meta["val"]
        made = self._call("aten.clone.default", (source,), suffix, fake_like(whole, tuple(whole.shape)), wait)
        made.kwargs = {"memory_format": torch.contiguous_format}
        return made

    def _part(self, place: int) -> fx.Node:
        """Member ``place``'s tensor as it goes into the concatenation."""
        raise NotImplementedError

    def _concatenate(self, parts: list[fx.Node]) -> fx.Node:
        raise NotImplementedError

    def _split(self, waited: fx.Node) -> fx.Node:
        raise NotImplementedError

    def _launch_arguments(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def _received(self) -> int:
        """Elements of the merged launch's result."""
        raise NotImplementedError

    def _call(self, target: str, args: tuple[Any, ...], suffix: str, val: Any, like: fx.Node | None = None) -> fx.Node:
        return self.builder.call(target, args, self.name + suffix, val, like or self.first)

    def _fake(self, *shape: int) -> torch.Tensor:
        return fake_like(self.wire, shape, torch.uint8 if self.bucket.as_bytes else None)

    def _flat(self, place: int) -> fx.Node:
        source = self.sources[place]
        val = self.old_sources[place].meta["val"]
        if self.bucket.as_bytes:
            source = self._to_bytes(source, place, val)
            val = source.meta["val"]
        if val.dim() == 1:
            return source
        flat = reshaped(val, (int(val.numel()),))
        return self._call("aten.reshape.default", (source, [-1]), f"_in{place}", flat, self.members[place])

    def _to_bytes(self, source: fx.Node, place: int, val: torch.Tensor) -> fx.Node:
        flat_val = reshaped(val, (int(val.numel()),))
        flat = self._call("aten.reshape.default", (source, [-1]), f"_flat{place}", flat_val, self.first)
        count = int(val.numel()) * val.dtype.itemsize
        self.sent[place] = count
        target = "aten.view.dtype"
        return self._call(target, (flat, torch.uint8), f"_bytes{place}", self._fake(count), self.first)

    def _from_bytes(self, piece: fx.Node, place: int, val: torch.Tensor, wait: fx.Node) -> fx.Node:
        # A copy first: a slice may start where the dtype's alignment does not allow a view.
        bytes_shape = tuple(piece.meta["val"].shape)
        owned = self._copy(piece, f"_own{place}", wait)
        shape = (*bytes_shape[:-1], bytes_shape[-1] // val.dtype.itemsize)
        typed = fake_like(val, shape, val.dtype)
        return self._call("aten.view.dtype", (owned, val.dtype), f"_typed{place}", typed, wait)

    def _cast(self, whole: fx.Node) -> fx.Node:
        assert self.cast is not None
        made = self._call("aten.clone.default", (whole,), "_cast", self._fake(*whole.meta["val"].shape), self.cast)
        made.target, made.args, made.kwargs = self.cast.target, (whole, *self.cast.args[1:]), dict(self.cast.kwargs)
        return made

    def _record(self) -> NodeRecord:
        names: list[str] = []
        for member in self.members:
            names.extend(record_of(member).merged_from or (member.name,))
        # Tags that agree stay; without any, what the merged launch is for is seen from the graph.
        roles = {record_of(member).role for member in self.members}
        return NodeRecord(roles.pop() if len(roles) == 1 else None, str(self.bucket.reason), tuple(names))

    def _cat(self, parts: list[fx.Node], dim: int, val: torch.Tensor) -> fx.Node:
        args = (parts,) if dim == 0 else (parts, dim)
        return self._call("aten.cat.default", args, "_cat", val)

    def _split_along(self, source: fx.Node, sizes: list[int], dim: int) -> fx.Node:
        whole = source.meta["val"]
        pieces, offset = [], 0
        for size in sizes:
            shape = (*whole.shape[:dim], size)
            pieces.append(fake_like(whole, shape, whole.dtype, stride=whole.stride(), offset=offset))
            offset += size
        args = (source, sizes) if dim == 0 else (source, sizes, dim)
        return self._call("aten.split_with_sizes.default", args, "_split", tuple(pieces))


class AllGather(Merger):
    """Members side by side in one flat tensor; every rank's row holds all of them."""

    def _part(self, place: int) -> fx.Node:
        return self._flat(place)

    def _concatenate(self, parts: list[fx.Node]) -> fx.Node:
        before_cast = None if self.cast is None else self.old_sources[0].meta["val"].dtype
        val = fake_like(self.wire, (sum(self.sent),), torch.uint8 if self.bucket.as_bytes else before_cast)
        return self._cat(parts, 0, val)

    def _launch_arguments(self) -> tuple[Any, ...]:
        return self.size, self.group

    def _received(self) -> int:
        return sum(self.sent) * int(self.size)

    def _split(self, waited: fx.Node) -> fx.Node:
        rows = self._fake(self.size, sum(self.sent))
        view = self._call("aten.view.default", (waited, [self.size, sum(self.sent)]), "_rows", rows)
        return self._split_along(view, list(self.sent), 1)


class ReduceScatter(Merger):
    """One row for each rank, in which the members' parts for that rank lie side by side."""

    def _part(self, place: int) -> fx.Node:
        val = self.old_sources[place].meta["val"]
        shape = [self.size, self.sent[place] // self.size]
        rows = reshaped(val, shape)
        return self._call(
            "aten.reshape.default", (self.sources[place], shape), f"_in{place}", rows, self.members[place]
        )

    def _concatenate(self, parts: list[fx.Node]) -> fx.Node:
        dtype = self.old_sources[0].meta["val"].dtype
        total = sum(self.sent)
        rows = self._cat(parts, 1, fake_like(self.wire, (self.size, total // self.size), dtype))
        return self._call("aten.reshape.default", (rows, [-1]), "_in", fake_like(self.wire, (total,), dtype))

    def _launch_arguments(self) -> tuple[Any, ...]:
        return ops.argument(self.first, "reduce_op"), self.size, self.group

    def _received(self) -> int:
        return sum(self.sent) // int(self.size)

    def _split(self, waited: fx.Node) -> fx.Node:
        return self._split_along(waited, [sent // self.size for sent in self.sent], 0)


class AllReduce(Merger):
    """Members side by side in one flat tensor."""

    def _part(self, place: int) -> fx.Node:
        return self._flat(place)

    def _concatenate(self, parts: list[fx.Node]) -> fx.Node:
        dtype = self.old_sources[0].meta["val"].dtype
        return self._cat(parts, 0, fake_like(self.wire, (sum(self.sent),), dtype))

    def _launch_arguments(self) -> tuple[Any, ...]:
        return ops.argument(self.first, "reduce_op"), self.group

    def _received(self) -> int:
        return sum(self.sent)

    def _split(self, waited: fx.Node) -> fx.Node:
        return self._split_along(waited, list(self.sent), 0)


MERGERS: dict[Kind, type[Merger]] = {
    Kind.ALL_GATHER: AllGather,
    Kind.REDUCE_SCATTER: ReduceScatter,
    Kind.ALL_REDUCE: AllReduce,
}
