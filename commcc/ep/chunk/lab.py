"""Ops of a body run on fake tensors of a chunk's size, apart from the program's own values.

    lab = Lab(symbol_ranges(program), grid, part=15)
    lab.give(x, dim=0)                 # [60, 32] -> [15, 32]
    lab.run(mm, resized=())            # what the op returns in a chunk

Every chunk size has a laboratory: symbols and values of its own, so that nothing that a shape function learns
about the sizes of a chunk gets into the program. Sizes that the host reads from tensors (``.item()``) are new
symbols in it. Limits: an op that cannot run on symbolic sizes gets its recorded shape with these symbols put in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from commcc.graph import ops
from commcc.graph.ops.twins import has_twin
from commcc.serialization.fake_memo import History
from commcc.serialization.fake_ops import Evaluator, UnknownValue
from commcc.serialization.propagate import quiet
from commcc.serialization.shapes import ShapeContext, contiguous_stride, symbols_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import sympy

    from commcc.ep.chunk.grid import Grid
    from commcc.ep.chunk.resize import Resized
    from commcc.graph.program import Program

    Ranges = Mapping[str, tuple[int | None, int | None]]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class CannotRun(Exception):
    """The op does not take operands of a chunk's size; the text says why."""


class Lab:
    """Values of one region's bodies, forward and backward, at one chunk size.

    values: by node of the program. fresh: for symbols that the body makes, the laboratory's own.
    """

    def __init__(self, ranges: Ranges, grid: Grid, part: int) -> None:
        self.grid, self.part, self.ranges = grid, part, ranges
        self.ctx = ShapeContext()
        self.history = History(self.ctx, whole=True)
        self.evaluator = Evaluator(self.ctx, self.history)
        self.values: dict[fx.Node, Any] = {}
        self.fresh: dict[str, str] = {}
        self._outside: dict[fx.Node, Any] = {}
        self._next = 1 + max((int(name[1:]) for name in self.ranges if name[1:].isdecimal()), default=-1)

    def give(self, node: fx.Node, dim: int, *, dense: bool = True) -> None:
        """Let ``node``, cut along ``dim``, be an operand; dense: copied where its slices have gaps."""
        val = node.meta["val"]
        shape = list(val.shape)
        shape[dim] = self.grid.scaled(shape[dim], self.part)
        whole = self.ctx.tensor(self._numbers(val.shape), self._numbers(val.stride()), val.dtype, val.device)
        piece = self.evaluator.call(torch.ops.aten.slice.Tensor, (whole, dim, 0, shape[dim]), {})
        if dense and whole.is_contiguous() and not piece.is_contiguous():
            piece = self.ctx.tensor(shape, contiguous_stride(shape), val.dtype, val.device)
        self.values[node] = piece

    def run(self, node: fx.Node, resized: Iterable[Resized]) -> Any:
        """The chunk's value of ``node``, which is kept; :class:`CannotRun` when there is none."""
        recorded = node.meta.get("val")
        symbol = _symbol_of(recorded)
        if ops.is_host_sync(node.target) and symbol is not None:
            fresh = self.fresh[symbol] = f"u{self._next}"
            self._next += 1
            lower, upper = self.ranges.get(symbol, (0, None))
            self._declare(fresh, lower, scaled_up(upper, self.grid, self.part))
            self.values[node] = self.ctx.parse_integer(fresh)
            return self.values[node]
        args, kwargs = resized_arguments(node, resized, self.part)
        args, kwargs = fx.node.map_arg((args, kwargs), self._operand)
        try:
            with quiet():
                self.values[node] = self.evaluator.run(node.target, args, kwargs)
        except UnknownValue as unknown:
            leaves = pytree.tree_leaves((args, kwargs, recorded))
            sizes = [size for leaf in leaves for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))]
            if not any(isinstance(size, _SYMBOLIC) for size in sizes):
                raise CannotRun(str(unknown)) from None
            # The op may only be unable to run on symbols: then what was recorded holds, with a chunk's symbols.
            like_self = self._like_self(node)
            self.values[node] = self._translated(recorded) if like_self is None else like_self
        value = self.values[node]
        if isinstance(recorded, torch.Tensor) and isinstance(value, torch.Tensor):
            # Sizes that came about on the way (rows that a mask lets through) are symbols of the body's own.
            for old, new in zip(recorded.shape, value.shape, strict=False):
                name, own = _symbol_of(old), _symbol_of(new)
                if name is not None and own is not None and own not in self.ranges and name != own:
                    self.fresh.setdefault(name, own)
        return value

    def _like_self(self, node: fx.Node) -> Any:
        """What an op returns that can be done in place: as large as ``self``, if it was so in the whole; else None."""
        source, recorded = ops.argument(node, "self"), node.meta.get("val")
        whole = source.meta.get("val") if isinstance(source, fx.Node) else None
        if not (isinstance(recorded, torch.Tensor) and isinstance(whole, torch.Tensor) and has_twin(node.target)):
            return None
        if (list(map(str, whole.shape)), str(whole.stride())) != (
            list(map(str, recorded.shape)),
            str(recorded.stride()),
        ):
            return None
        chunk = self._operand(source)
        return self.ctx.tensor(list(chunk.shape), list(chunk.stride()), recorded.dtype, recorded.device)

    def _operand(self, node: fx.Node) -> Any:
        if node in self.values:
            return self.values[node]
        if node not in self._outside:
            self._outside[node] = self._translated(node.meta.get("val"))
        return self._outside[node]

    def _translated(self, value: Any) -> Any:
        """A value of the program as one of the laboratory."""
        if isinstance(value, torch.Tensor):
            sizes, strides = self._numbers(value.shape), self._numbers(value.stride())
            return self.ctx.tensor(sizes, strides, value.dtype, value.device)
        if isinstance(value, (list, tuple)):
            parts = [self._translated(part) for part in value]
            return parts if isinstance(value, list) else tuple(parts)
        return self.ctx.parse_symbolic(str(self._expr(value))) if isinstance(value, _SYMBOLIC) else value

    def _numbers(self, sizes: Iterable[Any]) -> list[Any]:
        return [size if type(size) is int else self.ctx.integer(self._expr(size)) for size in sizes]

    def _expr(self, size: Any) -> sympy.Expr:
        expr = size.node.expr
        names = [symbol.name for symbol in expr.free_symbols]
        for name in names:
            if name not in self.fresh:
                self._declare(name, *self.ranges.get(name, (None, None)))
        own = [self.ctx.symbol(self.fresh.get(name, name)) for name in names]
        return expr.xreplace(dict(zip(expr.free_symbols, own, strict=True)))

    def _declare(self, name: str, lower: int | None, upper: int | None) -> None:
        if name not in self.ctx.symbols:
            self.ctx.declare(name, lower=lower, upper=upper)
            self.history.add((name, lower, upper))
            self.evaluator = Evaluator(
                self.ctx, self.history
            )  # a symbol needs an origin for shape functions to look up


def scaled_up(bound: int | None, grid: Grid, part: int) -> int | None:
    """An upper bound on a number of tokens, for a chunk: rounded up."""
    return None if bound is None else -(-bound * part // grid.extent)


def symbol_ranges(program: Program) -> Ranges:
    """Lower and upper bounds of all symbols that a program's header declares or its values use."""
    table = program.header.get("symbols")
    ranges: dict[str, tuple[int | None, int | None]] = {}
    for name, entry in table.items() if isinstance(table, dict) else ():
        if isinstance(entry, (list, tuple)) and len(entry) == 3:
            lower, upper = (bound if type(bound) is int else None for bound in entry[:2])
            ranges[name] = (lower, upper)
    for leaf in pytree.tree_leaves([node.meta.get("val") for node in program.graph.nodes]):
        sizes = (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)
        for size in (size.node for size in sizes if isinstance(size, _SYMBOLIC)):
            for name, info in symbols_in(size.shape_env, size.expr.free_symbols).items():
                ranges.setdefault(name, (info.lower, info.upper))
    return ranges


def _symbol_of(value: Any) -> str | None:
    """The name of a value that is one symbol."""
    if not isinstance(value, torch.SymInt):
        return None
    expr = value.node.expr
    return str(expr) if expr.is_Symbol else None


def resized_arguments(node: fx.Node, resized: Iterable[Resized], part: int) -> tuple[Any, Mapping[str, Any]]:
    """The arguments of ``node`` with sizes for a chunk of ``part`` units."""
    args, kwargs = list(node.args), dict(node.kwargs)
    names = ops.argument_names(node.target)
    for edit in resized:
        by_name = edit.argument in kwargs
        # Of what has no schema, arguments are known by their place.
        at = edit.argument if by_name else names.index(edit.argument) if names else int(edit.argument)
        holder: Any = kwargs if by_name else args
        if edit.place is None:
            holder[at] = edit.per * part
            continue
        sizes = list(holder[at])
        sizes[edit.place] = edit.per * part
        holder[at] = sizes
    return tuple(args), kwargs
