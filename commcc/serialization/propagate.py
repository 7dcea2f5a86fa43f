"""Fill in the values (shapes, strides, dtypes, devices) that a file does not give.

    propagate(program)
    # mm = torch.ops.aten.mm.default(a, b)     ->  mm.meta["val"]: f32[16, 32][32, 1]cuda:0
    # split = torch.ops.aten.split.Tensor(mm)  ->  a list; the annotated getitems keep their own values

Values from the file are trusted and never computed again, so an annotated graph only pays for its
multi-output nodes. Where a value cannot be had, the node stays without ``val`` and a note says why.

Limits: unused results of a multi-output node that cannot be run are None in its value. Sub-graphs get
values only where a node of the outer graph needs their result.
"""

from __future__ import annotations

import contextlib
import logging
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from commcc.graph.program import Note
from commcc.serialization.attributes import find
from commcc.serialization.by_numbers import by_numbers
from commcc.serialization.fake_ops import Evaluator, UnknownValue
from commcc.serialization.shapes import ShapeContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commcc.graph.program import Program

_LOGGERS = (
    "torch._subclasses.fake_tensor",
    *("torch.fx.experimental.symbolic_shapes", "torch.fx.experimental.recording"),
)
_MOST_NOTES = 20
_DEEPEST = 16
_MOST_ITEMS = 4096


def propagate(program: Program, ctx: ShapeContext | None = None) -> Program:
    """``program`` with ``val`` on every node for which it can be found; its nodes are completed in place.

    ctx: where the values that are there come from; found from them when None.
    """
    if not any(needs_value(node) for node in program.graph.nodes):
        return program
    walk = _Walk(Evaluator(ctx or context_of(program.graph)), program.root)
    with quiet():
        walk.graph(program.graph)
    new = [note for note in walk.notes() if note not in program.notes]  # a file may hold those of an earlier reading
    return replace(program, notes=(*program.notes, *new))


def needs_value(node: fx.Node) -> bool:
    """Whether the node should have a ``val`` and has none."""
    return "val" not in node.meta and node.op not in ("output", "get_attr")


def context_of(graph: fx.Graph) -> ShapeContext:
    """A context around the fake mode that the graph's values share; a new one when there is none."""
    ctx = ShapeContext()
    for node in graph.nodes:
        val = node.meta.get("val")
        if isinstance(val, FakeTensor):
            ctx.fake_mode = val.fake_mode
        elif isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            # Its environment will do if no tensor follows, which would have the mode too.
            ctx.shape_env = val.node.shape_env
            continue
        else:
            continue
        ctx.shape_env = ctx.fake_mode.shape_env or ctx.shape_env
        break
    return ctx


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch from logging the traceback of every attempt that fails; the notes say what remains."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(_nothing)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False


class _Missing(Exception):
    """An argument has no value; what is wrong with it was noted before."""


class _Walk:
    """One pass over a graph and the sub-graphs that it needs."""

    def __init__(self, evaluator: Evaluator, root: torch.nn.Module) -> None:
        self.evaluator = evaluator
        self.root = root
        self.depth = 0
        self.inputs: list[fx.Node] = []
        self.shaped = False
        self.causes: list[Note] = []
        self.dependents = 0

    def notes(self) -> list[Note]:
        out = []
        # Without any shape, the text is of a kind that has none; else these are no tensors, as meshes are, and matter
        # where something uses them.
        inputs = [node.name for node in self.inputs if node.users or not self.shaped]
        if inputs:
            first = ", ".join(inputs[:5]) + (", ..." if len(inputs) > 5 else "")
            hint = "" if self.shaped else "; print_readable(include_stride=True, include_device=True) tells them"
            out.append(Note(f"inputs without a shape: {len(inputs)} ({first}){hint}"))
        out += self.causes[:_MOST_NOTES]
        if len(self.causes) > _MOST_NOTES:
            out.append(Note(f"further nodes whose shape cannot be found: {len(self.causes) - _MOST_NOTES}"))
        if self.dependents:
            out.append(Note(f"nodes without a shape because an argument has none: {self.dependents}"))
        return out

    def graph(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "get_attr":
                self._constant(node)
            elif needs_value(node):
                self._fill(node)
            elif node.op == "placeholder":
                self.shaped = True

    def _constant(self, node: fx.Node) -> None:
        """Constants are values; sub-graphs and what the file does not hold are not."""
        held = find(self.root, str(node.target))
        if "val" in node.meta or not isinstance(held, torch.Tensor):
            return
        if not isinstance(held, FakeTensor):
            held = self.evaluator.ctx.tensor(held.shape, held.stride(), held.dtype, held.device)
        node.meta["val"] = held

    def _fill(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.inputs.append(node)
            return
        observed = _observed_items(node)
        returns = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
        # All results are annotated: nothing needs to be computed.
        if observed is not None and len(returns) > 1 and all(index in observed for index in range(len(returns))):
            node.meta["val"] = _as_sequence(node.target, observed, len(observed))
            return
        try:
            value = self._evaluate(node)
        except _Missing:
            # Told once, at the node that is the cause.
            self.dependents += observed is None
        except UnknownValue as unknown:
            if observed is None:
                self.causes.append(Note(f"{node.name} has no shape: {unknown}", node.name))
        else:
            if observed is not None and isinstance(value, (tuple, list)):  # the file has the last word
                merged = [observed.get(index, item) for index, item in enumerate(value)]
                value = merged if isinstance(value, list) else tuple(merged)
            node.meta["val"] = value
            return
        # The results that are annotated are better than nothing.
        if observed is not None:
            node.meta["val"] = _as_sequence(node.target, observed, max(len(returns), max(observed) + 1))

    def _evaluate(self, node: fx.Node) -> Any:
        if node.op != "call_function":
            raise UnknownValue(f"a {node.op} node")
        args = fx.node.map_arg(node.args, self._value)
        kwargs = fx.node.map_arg(node.kwargs, self._value)
        if isinstance(node.target, HigherOrderOperator):
            return self.evaluator.run_higher_order(node.target, args, kwargs, self._call_subgraph)
        try:
            return self.evaluator.run(node.target, args, kwargs)
        except UnknownValue as unknown:
            try:
                return by_numbers(self.evaluator, node.target, args, kwargs)
            except UnknownValue:
                raise unknown from None

    def _value(self, node: fx.Node) -> Any:
        if "val" in node.meta:
            return node.meta["val"]
        module = find(self.root, str(node.target)) if node.op == "get_attr" else None
        if not isinstance(module, torch.nn.Module):
            raise _Missing
        return module

    def _call_subgraph(self, module: fx.GraphModule, operands: Sequence[Any]) -> Any:
        """Results of a sub-graph; its inputs get the operands' values where the file gives none."""
        if self.depth >= _DEEPEST:
            raise UnknownValue("its sub-graphs are nested too deeply")
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node, value in zip(inputs, operands, strict=False):
            node.meta.setdefault("val", value)
        inner = _Walk(self.evaluator, module)
        inner.depth = self.depth + 1
        inner.graph(module.graph)
        output = next(iter(node for node in reversed(module.graph.nodes) if node.op == "output"))
        try:
            return fx.node.map_arg(output.args[0], inner._value)
        except _Missing:
            raise UnknownValue("a result of its sub-graph has no shape") from None


def _observed_items(node: fx.Node) -> dict[int, Any] | None:
    """Values of the node's items that the file gives, by index; None when it is not a multi-output node.

    One of several results that is a list has no annotation; its own items have.
    """
    out: dict[int, Any] = {}
    returns = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
    returns = returns if len(returns) > 1 else ()
    for user in node.users:
        if user.target is operator.getitem and user.args[0] is node:
            index = user.args[1]
            # A hostile index would make a list of any length.
            if type(index) is not int or not 0 <= index < _MOST_ITEMS:
                continue
            if "val" in user.meta:
                out[index] = user.meta["val"]
            elif index < len(returns) and isinstance(returns[index].type, torch.ListType):
                inner = _observed_items(user)
                out.update({} if inner is None else {index: [inner.get(i) for i in range(max(inner) + 1)]})
    return out or None


def _as_sequence(target: Any, observed: Mapping[int, Any], length: int) -> Any:
    values = [observed.get(index) for index in range(length)]
    # An op that returns one list (split) gives a list, all others a tuple.
    single = isinstance(target, OpOverload) and len(target._schema.returns) == 1
    return values if single else tuple(values)
