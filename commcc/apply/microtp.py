"""Tensor-parallel matmuls fused with their collectives, by PyTorch's own micro-pipeline pass.

    tried = attempt(program, {"tp"}, launches)      # what the pass takes, and why it leaves the others
    graph = fuse(program, {"tp"}, launches)         # the same, as a graph

Everything that decides or fuses is ``torch._inductor.fx_passes.micro_pipeline_tp``; this module prepares the graph as
PyTorch's compiler does (views as reshapes, on a copy whose values are on the CPU, so that no device is asked), and
completes it: values for the new nodes, a copy where a result would be laid out otherwise than what it replaces, views
as they were. Why it leaves a collective alone it does not say, or logs: its own conditions are asked of its own
functions.

Limits: while the pass runs, PyTorch is told that NCCL and symmetric memory are there; not to be used from two threads.
"""

from __future__ import annotations

import contextlib
import logging
import operator
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_map_only

from commcc.apply.fakes import contiguous_strides, fake_like
from commcc.base.errors import InternalError, OptionError
from commcc.base.reasons import Reason
from commcc.graph import ops
from commcc.graph.copying import copy_node
from commcc.graph.index import build_index
from commcc.graph.program import META_KEY
from commcc.serialization.propagate import context_of
from commcc.serialization.targets import resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from commcc.graph.program import Program

GATHER = "torch.ops.symm_mem.fused_all_gather_matmul.default"
SCATTER = "torch.ops.symm_mem.fused_matmul_reduce_scatter.default"
RESTRIDE = "torch.ops.prims.inductor_force_stride_order.default"
#: Metadata that new nodes take over from what they stand for.
_PLACE = ("custom", "nn_module_stack", "fwd_nn_module_stack", "stack_trace", "seq_nr", "autograd_backward")

#: Gathers of the last dimension are cut along it; the pass wants pieces of this size at least.
SMALLEST_LAST = 1024
_SCALED = Reason.of("tp_scaled")
_SYMBOLS = Reason.of("tp_symbols")


@dataclass(frozen=True)
class Tried:
    """One collective: the launch, the matmuls that were fused with it (none: left alone), and why."""

    launch: str
    matmuls: tuple[str, ...]
    reason: Reason

    @property
    def taken(self) -> bool:
        return bool(self.matmuls)


def attempt(program: Program, groups: Collection[str], launches: Collection[str]) -> tuple[Tried, ...]:
    """What the pass does with these launches on these groups, in graph order."""
    return _Work(program, groups).run(launches)


def fuse(program: Program, groups: Collection[str], launches: Collection[str]) -> fx.Graph:
    """The graph with these launches fused; :class:`InternalError` when the pass leaves one."""
    work = _Work(program, groups)
    for tried in work.run(launches):
        if not tried.taken:
            raise InternalError(f"'{tried.launch}' was not fused: {tried.reason}")
    return work.finished()


def micro_pipeline() -> Any:
    """PyTorch's module; :class:`OptionError` where this build has none."""
    try:
        from torch._inductor.fx_passes import micro_pipeline_tp as module
    except ImportError as error:
        raise OptionError(f"this PyTorch cannot fuse tensor parallelism: {error}") from None
    if not torch.distributed.is_available() or not hasattr(resolve(GATHER), "_schema"):
        raise OptionError("this PyTorch has no torch.distributed, which has the fused ops")
    return module


@contextlib.contextmanager
def _as_if_connected(groups: Collection[str]) -> Iterator[None]:
    """PyTorch takes NCCL to be there, and symmetric memory to be set up for these groups."""
    distributed: Any = torch.distributed
    before = distributed.is_nccl_available
    log = logging.getLogger("torch._inductor.fx_passes.micro_pipeline_tp")
    log.addFilter(_nothing)
    try:
        distributed.is_nccl_available = lambda: True
        with distributed._symmetric_memory._test_mode(set(groups)):
            yield
    finally:
        distributed.is_nccl_available = before
        log.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False


class _Work:
    """A copy of the graph that the pass may edit, and what became of it."""

    def __init__(self, program: Program, groups: Collection[str]) -> None:
        self.pipeline = micro_pipeline()
        self.program = program
        self.groups = groups
        self.graph = fx.Graph()
        self.original: dict[fx.Node, fx.Node] = {}
        self.values: dict[fx.Node, Any] = {}
        self.place: dict[fx.Node, fx.Node] = {}
        self.copies = 0
        self.copied: dict[fx.Node, fx.Node] = {}
        self._held: dict[fx.Node, list[fx.Node]] | None = None
        ctx = context_of(program.graph)

        def on_cpu(val: torch.Tensor) -> torch.Tensor:
            return ctx.tensor(val.shape, val.stride(), val.dtype, "cpu")

        env = self.copied
        for node in program.graph.nodes:
            copy = env[node] = copy_node(self.graph, node, env)
            self.original[copy] = node
            if "val" in node.meta:
                copy.meta["val"] = tree_map_only(torch.Tensor, on_cpu, node.meta["val"])
            if copy.op == "call_function" and copy.target is torch.ops.aten.view.default:
                copy.target = torch.ops.aten.reshape.default

    def run(self, launches: Collection[str]) -> tuple[Tried, ...]:
        """Let the pass have the launches one after the other, as PyTorch does."""
        pipeline, tried = self.pipeline, {}
        gathers = [m for m in pipeline.find_all_gather_patterns(self.graph) if m.ag_node.name in launches]
        scatters = [
            m for m in pipeline.find_reduce_scatter_patterns(self.graph) if m.reduce_scatter_node.name in launches
        ]
        with _as_if_connected(self.groups):
            for match in gathers:
                tried[match.ag_node.name] = self._gather(match)
            for match in scatters:
                tried[match.reduce_scatter_node.name] = self._scatter(match)
        unknown = Reason.of("tp_unknown_form")
        names = [node.name for node in self.program.graph.nodes if node.name in launches]
        return tuple(tried.get(name) or Tried(name, (), unknown) for name in names)

    def _gather(self, match: Any) -> Tried:
        name, reason = match.ag_node.name, _against_gather(self.pipeline, match)
        if reason is not None:
            return Tried(name, (), reason)
        users = self.pipeline._find_consumer_matmuls(match.res_node)
        matmuls = [matmul for matmul in users if match.res_node not in matmul.arg_ancestor_nodes]
        if not self._raise_writes(match.ag_node, matmuls):
            return Tried(name, (), Reason.of("tp_other_operand"))
        results = [self._told(matmul.nodes[-1]) for matmul in matmuls]
        names = tuple(_product(matmul).name for matmul in matmuls)
        gathered = self._told(match.res_node)
        dim = match.gather_dim % match.shard_node.meta["val"].dim()
        self.pipeline.fuse_all_gather_matmul(match)
        if not match.ag_node._erased:
            return Tried(name, (), Reason.of("tp_left"))
        self._complete_gather(results, gathered, dim)
        products = f"{len(names)} matmul{'s' if len(names) > 1 else ''}"
        return Tried(name, names, Reason.of("tp_gathers", dim=dim, matmuls=products))

    def _scatter(self, match: Any) -> Tried:
        name, reason = match.reduce_scatter_node.name, _against_scatter(self.pipeline, match)
        if reason is not None:
            return Tried(name, (), reason)
        matmul = self.pipeline._find_producer_matmul(match.input_node)
        if self._overwritten(matmul, match.wait_tensor_node):
            return Tried(name, (), Reason.of("tp_overwritten"))
        product = _product(matmul).name
        result, dim = self._told(match.wait_tensor_node), match.scatter_dim
        self.pipeline.fuse_matmul_reduce_scatter(match)
        if not match.reduce_scatter_node._erased:
            return Tried(name, (), Reason.of("tp_left"))
        for node in self._fresh():
            if node.target is resolve(SCATTER):
                self._set(node, _packed(result.meta["val"], 0), result)
                self._keep_layout(node, result)
        return Tried(name, (product,), Reason.of("tp_scatters", dim=dim))

    def _after(self, node: fx.Node) -> list[fx.Node]:
        """What must come before a node of the copy for a reason other than data: writes to memory, effects."""
        if self._held is None:
            index = build_index(self.program)
            copies = [self.copied[original] for original in self.program.graph.nodes]
            self._held = {copies[i]: [copies[p] for p in preds] for i, preds in enumerate(index.order_preds) if preds}
        return self._held.get(node, [])

    def _raise_writes(self, launch: fx.Node, matmuls: list[Any]) -> bool:
        """Move what the matmuls need ahead of the gather, with what writes it in place; whether that can be.

        PyTorch's pass raises what leads to their other operands as data does, and leaves writes where they are.
        """
        order = {node: number for number, node in enumerate(self.graph.nodes)}
        leading = {node for matmul in matmuls for node in matmul.arg_ancestor_nodes}
        waiting = [*leading, *(node for matmul in matmuls for member in matmul.nodes for node in self._after(member))]
        needed: set[fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node._erased or node is launch:
                return False  # part of what was fused before, or the gather itself
            if order[node] > order[launch] and node not in needed:
                needed.add(node)
                waiting += [*node.all_input_nodes, *self._after(node)]
        if needed > leading & needed:
            for node in sorted(needed, key=order.__getitem__):
                launch.prepend(node)
        return True

    def _overwritten(self, matmul: Any, wait: fx.Node) -> bool:
        """Whether something writes to operands of a matmul before the wait, where the fused op reads them."""
        nodes, node = set(matmul.nodes), matmul.nodes[0]
        while node is not wait:
            node = node.next
            if any(earlier in nodes for earlier in self._after(node)):
                return True
        return False

    def _told(self, node: fx.Node) -> fx.Node:
        """The node of the program behind a node of the copy."""
        original = self.original.get(node)
        if original is None or not isinstance(original.meta.get("val"), torch.Tensor):
            raise InternalError(f"'{node.name}' has no value to go by", where="async-tp")
        return original

    def _fresh(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node not in self.original and node not in self.values]

    def _complete_gather(self, results: list[fx.Node], gathered: fx.Node, dim: int) -> None:
        """Values for the fused op and its results."""
        fresh = self._fresh()
        fused = next(node for node in fresh if node.target is resolve(GATHER))
        outs = [_packed(node.meta["val"], dim) for node in results]
        whole = _packed(gathered.meta["val"], dim)
        returned = fused.kwargs.get("return_A", True)
        self._set(fused, (whole if returned else None, outs), gathered)
        for node in fresh:
            if node.target is not operator.getitem:
                continue
            source, place = node.args
            assert isinstance(place, int)
            if source is fused:
                self._set(node, outs if place == 1 else whole, gathered)
                if place == 0:
                    self._keep_layout(node, gathered)
            else:
                self._set(node, outs[place], results[place])
                self._keep_layout(node, results[place])

    def _set(self, node: fx.Node, value: Any, stands_for: fx.Node) -> None:
        self.values[node] = value
        self.place[node] = stands_for
        if isinstance(value, torch.Tensor):
            ctx = context_of(self.program.graph)
            node.meta["val"] = ctx.tensor(value.shape, value.stride(), value.dtype, "cpu")

    def _keep_layout(self, node: fx.Node, stands_for: fx.Node) -> None:
        """A copy behind a result that is laid out otherwise than what it replaces."""
        wanted = stands_for.meta["val"]
        if _lies_as(wanted.shape, self.values[node].stride(), wanted.stride()) or not wanted.is_contiguous():
            return
        with self.graph.inserting_after(node):
            copy = self.graph.call_function(
                torch.ops.aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
        node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
        self.copies += 1
        self._set(copy, wanted, stands_for)

    def finished(self) -> fx.Graph:
        """The graph in its final form: metadata as it was, nothing left that only changes strides to what they are."""
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for node in self.graph.nodes:
            if node.target is resolve(RESTRIDE):
                source, stride = node.args
                assert isinstance(source, fx.Node)
                val = source.meta["val"]
                if _lies_as(val.shape, val.stride(), stride):
                    env[node] = env[source]  # the tensor is laid out as it would put it
                    continue
            env[node] = copy = copy_node(graph, node, env)
            old = self.original.get(node)
            if old is not None:
                copy.target, copy.meta = old.target, dict(old.meta)
            else:
                copy.meta = self._meta(node)
        graph.lint()
        return graph

    def _meta(self, node: fx.Node) -> dict[str, Any]:
        stands_for = self.place.get(node)
        if stands_for is None:  # a change of strides, or a reshape of a fused result
            source = node.all_input_nodes[0]
            known = self.original.get(source) or self.place[source]
            like = known.meta["val"]
            sizes: Any = node.args[1]
            shape, stride = (
                (like.shape, sizes) if node.target is resolve(RESTRIDE) else (sizes, contiguous_strides(sizes))
            )
            return {**_place(known), "val": fake_like(like, tuple(shape), stride=tuple(stride))}
        return {**_place(stands_for), "val": self.values[node]}


def _place(node: fx.Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in _PLACE if key in node.meta and key != META_KEY}


def _lies_as(shape: Iterable[Any], steps: Iterable[Any], wanted: Iterable[Any]) -> bool:
    """Whether strides are known to be the same, but for dimensions of one element; sizes may be symbols."""
    return all(
        statically_known_true(old == new) or statically_known_true(size == 1)
        for size, old, new in zip(shape, steps, wanted, strict=True)
    )


def _packed(like: torch.Tensor, dim: int) -> torch.Tensor:
    """A tensor of this shape that is contiguous once ``dim`` comes first; the last one as the first."""
    shape = tuple(like.shape)
    if dim == len(shape) - 1 or dim == 0:
        return fake_like(like, shape)
    order = [dim, *(d for d in range(len(shape)) if d != dim)]
    steps = contiguous_strides([shape[d] for d in order])
    stride = dict(zip(order, steps, strict=True))
    return fake_like(like, shape, stride=[stride[d] for d in range(len(shape))])


def _product(matmul: Any) -> fx.Node:
    node: fx.Node = matmul.nodes[0] if len(matmul.nodes) == 1 else matmul.nodes[1]
    return node


def _has_symbols(val: torch.Tensor) -> bool:
    """Whether sizes are known only at run time: the pass would write them as arguments, and no graph could run them."""
    return not all(type(size) is int for size in (*val.shape, *val.stride()))


def _in_order(match: Any) -> bool:
    """Whether pieces are put together in the order of the ranks, which the pass takes for granted."""
    for node in getattr(match.match, "nodes", match.match):
        pieces = list(node.args[0]) if node.target is torch.ops.aten.cat.default else []
        while pieces and all(piece.target is torch.ops.aten.view.dtype for piece in pieces):
            pieces = [piece.args[0] for piece in pieces]
        cuts = [piece.target is operator.getitem for piece in pieces]
        starts = [
            piece.args[1] if cut else ops.argument(piece, "start") for piece, cut in zip(pieces, cuts, strict=True)
        ]
        if any(type(start) is not int for start in starts) or starts != sorted(set(starts)):
            return False
    return True


def _against_gather(pipeline: Any, match: Any) -> Reason | None:
    """Why an all-gather is not fused with the matmuls behind it; None when it can be."""
    if not _in_order(match):
        return Reason.of("tp_unknown_form")
    shard = match.shard_node.meta["val"]
    if _has_symbols(shard):
        return _SYMBOLS
    last = pipeline._is_last_dim(shard, match.gather_dim)
    if last and shard.shape[-1] < SMALLEST_LAST:
        return Reason.of("tp_small_shard", shard=shard.shape[-1], smallest=SMALLEST_LAST)
    matmuls = pipeline._find_consumer_matmuls(match.res_node)
    if not matmuls:
        counts = Counter(_op(user) for user in match.res_node.users)
        users = ", ".join(name if number == 1 else f"{number} x {name}" for name, number in counts.items()) or "nothing"
        return Reason.of("tp_no_matmul", users=users)
    free = [m for m in matmuls if match.res_node not in m.arg_ancestor_nodes]
    if not free:
        return Reason.of("tp_other_operand")
    if len({type(m) for m in free}) > 1:
        return Reason.of("tp_both_kinds")
    if last and len(match.res_node.users) > len(free):
        return Reason.of("tp_last_dimension")
    return _SCALED if type(free[0]) is not pipeline._Matmul else None


def _against_scatter(pipeline: Any, match: Any) -> Reason | None:
    """Why a reduce-scatter is not fused with the matmul before it; None when it can be."""
    if not _in_order(match):
        return Reason.of("tp_unknown_form")
    if _has_symbols(match.input_node.meta["val"]):
        return _SYMBOLS
    # The pass's own search trips over inputs of the graph.
    searchable = all(hasattr(operand, "target") for operand in match.input_node.args[:1])
    matmul = pipeline._find_producer_matmul(match.input_node) if searchable else None
    if matmul is None:
        return Reason.of("tp_no_product", input=_op(match.input_node))
    inside = getattr(match.match, "nodes", match.match)
    if len(match.input_node.users) != 1 and any(user not in inside for user in match.input_node.users):
        return Reason.of("tp_other_users")
    if match.wait_tensor_node in matmul.arg_ancestor_nodes:
        return Reason.of("tp_operand")
    return _SCALED if type(matmul) is not pipeline._Matmul else None


def _op(node: fx.Node) -> str:
    if node.op != "call_function":
        return "the output" if node.op == "output" else "an input"
    return ops.op_name(node.target).rpartition(".")[2].replace("reshape", "view")
