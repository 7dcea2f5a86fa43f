"""Values of the nodes of a chunked graph, and the symbols in them.

A body is run once for each chunk size on fake tensors apart from the program's; the results are put into the program's
own context, with new names for the sizes that each chunk reads from its tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from commcc.apply.fakes import contiguous_strides, is_contiguous
from commcc.base.errors import GraphError
from commcc.ep.chunk.grid import Grid
from commcc.ep.chunk.lab import CannotRun, Lab, scaled_up, symbol_ranges
from commcc.graph import ops
from commcc.serialization.fake_ops import Evaluator, UnknownValue
from commcc.serialization.propagate import context_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import sympy
    from torch import fx

    from commcc.base.terms import Json
    from commcc.ep.chunk.resize import Resized
    from commcc.graph.program import Program
    from commcc.plan import ChunkedRegion, Cut

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ChunkValues:
    """Values by region, chunk and node. names: for each module and chunk, its name of each symbol of the whole."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ranges = symbol_ranges(program)
        self.ctx = context_of(program.graph)
        self.labs: dict[tuple[str, int], Lab] = {}
        self.ran: dict[tuple[str, int, fx.Node], Any] = {}
        self.static: dict[tuple[str, int, fx.Node], Any] = {}
        self.names: dict[tuple[str, int], dict[str, str]] = {}
        self.starts: dict[tuple[str, int], dict[fx.Node, int]] = {}
        self.symbols: dict[str, Json] = {}
        self.replaced: set[str] = set()
        self._next = 1 + max((int(name[1:]) for name in self.ranges if name[1:].isdecimal()), default=-1)

    def give(self, region: ChunkedRegion, source: fx.Node, cut: Cut, starts: Sequence[int]) -> None:
        """Let a split activation be an operand in all chunks of a module. starts: of its pieces, in their storage."""
        for chunk, start in enumerate(starts):
            self.starts.setdefault((region.root, chunk), {})[source] = start
        for part in dict.fromkeys(region.sizes):
            self._lab(region, part).give(source, cut.dim, dense=cut.dense)

    def of(self, region: ChunkedRegion, chunk: int, node: fx.Node, resized: Iterable[Resized]) -> Any:
        """The value of a clone."""
        part = region.sizes[chunk]
        key = (region.root, part, node)
        if key not in self.ran:
            try:
                self.ran[key] = self._lab(region, part).run(node, resized)
            except CannotRun as reason:
                raise GraphError(f"'{node.name}' cannot be computed for a part of its operands: {reason}") from None
        # Where the piece begins, in its storage, that a view looks at; kept for views of the view.
        starts = self.starts.setdefault((region.root, chunk), {})
        source = next(iter(node._input_nodes), None)
        if source is not None and ops.aliasing(node.target).views and source in starts:
            starts[node] = starts[source]
        start = starts.get(node, 0)
        if start:
            value = self._instance(region, chunk, node.meta.get("val"), self.ran[key])

            def moved(tensor: torch.Tensor) -> Any:
                shape, stride, offset = list(tensor.shape), list(tensor.stride()), tensor.storage_offset() + start
                return self.ctx.tensor(shape, stride, tensor.dtype, tensor.device, storage_offset=offset)

            return pytree.tree_map_only(torch.Tensor, moved, value)
        if key in self.static:
            return self.static[key]
        value = self._instance(region, chunk, node.meta.get("val"), self.ran[key])
        leaves = pytree.tree_leaves(value)
        sizes = [(*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
        if not any(isinstance(size, _SYMBOLIC) for leaf in sizes for size in leaf):
            self.static[key] = value  # the same in all chunks of this size
        return value

    def added(self, total: torch.Tensor, part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """The value of a sum of two parts; ``whole``: of all, which may be a view, where a sum is in new memory."""
        if is_contiguous(whole):
            return whole
        try:
            result: torch.Tensor = Evaluator(self.ctx).run(ops.overload("aten.add.Tensor"), (total, part), {})
        except UnknownValue as reason:
            raise GraphError(f"parts of a sum cannot be added up: {reason}") from None
        return result

    def _lab(self, region: ChunkedRegion, part: int) -> Lab:
        key = (region.root, part)
        if key not in self.labs:
            self.labs[key] = Lab(self.ranges, Grid(region.extent), part)
        return self.labs[key]

    def _instance(self, region: ChunkedRegion, chunk: int, recorded: Any, value: Any) -> Any:
        """What ran in the laboratory as a value of the program; None where the whole has no value."""
        if recorded is None:
            return None
        if isinstance(value, torch.Tensor):
            shape = [self._size(region, chunk, *pair) for pair in zip(recorded.shape, value.shape, strict=True)]
            stride = [self._size(region, chunk, *pair) for pair in zip(recorded.stride(), value.stride(), strict=True)]
            offset = value.storage_offset()
            start = offset if type(offset) is int else 0
            return self.ctx.tensor(shape, stride, value.dtype, value.device, storage_offset=start)
        if isinstance(value, (list, tuple)):
            parts = [self._instance(region, chunk, *pair) for pair in zip(recorded, value, strict=False)]
            return parts if isinstance(recorded, list) else tuple(parts)
        if not isinstance(value, _SYMBOLIC):
            return value
        return self.ctx.parse_symbolic(str(self._renamed(region, chunk, recorded.node.expr)))

    def _size(self, region: ChunkedRegion, chunk: int, recorded: Any, value: Any) -> Any:
        """A size of a clone: a number, or symbols under the names that they have in the chunk."""
        if type(value) is int and type(recorded) is int:
            return value
        if type(recorded) is int:
            # The whole has a number where the chunk reads a size: its symbols are those of the laboratory.
            back = {fresh: old for old, fresh in self._lab(region, region.sizes[chunk]).fresh.items()}
            expr = value.node.expr
            own = {s: self.ctx.symbol(self._name(region, chunk, back.get(s.name, s.name))) for s in expr.free_symbols}
            return self.ctx.integer(expr.xreplace(own))
        return self.ctx.integer(self._renamed(region, chunk, recorded.node.expr))

    def _renamed(self, region: ChunkedRegion, chunk: int, expr: sympy.Expr) -> sympy.Expr:
        return expr.xreplace({s: self.ctx.symbol(self._name(region, chunk, s.name)) for s in expr.free_symbols})

    def _name(self, region: ChunkedRegion, chunk: int, name: str) -> str:
        known = self.names.setdefault((region.root, chunk), {})
        if name not in known and name in self._lab(region, region.sizes[chunk]).fresh:
            self._declare(region, chunk, name)
        return known.get(name, name)

    def _declare(self, region: ChunkedRegion, chunk: int, name: str) -> None:
        """A symbol for a size that this chunk reads; bounds and hint are those of the whole, scaled and rounded up."""
        fresh = f"u{self._next}"
        self._next += 1
        lower, upper = self.ranges.get(name, (0, None))
        grid, part = Grid(region.extent), region.sizes[chunk]
        upper = scaled_up(upper, grid, part)
        self.ctx.declare(fresh, lower=lower, upper=upper)
        self.names.setdefault((region.root, chunk), {})[name] = fresh
        table = self.program.header.get("symbols")
        told = table.get(name) if isinstance(table, dict) else None
        hint = told[2] if isinstance(told, (list, tuple)) and len(told) == 3 and type(told[2]) is int else None
        self.symbols[fresh] = [lower, upper, scaled_up(hint, grid, part)]
        self.replaced.add(name)

    def pieces(self, whole: torch.Tensor, sizes: Sequence[int], dim: int) -> list[Any]:
        """Values of the parts of ``whole`` along ``dim``."""
        parts, start = [], 0
        for size in sizes:
            shape = [size if place == dim else extent for place, extent in enumerate(whole.shape)]
            offset = whole.storage_offset() + start * whole.stride()[dim]
            parts.append(self.ctx.tensor(shape, list(whole.stride()), whole.dtype, whole.device, storage_offset=offset))
            start += size
        return parts

    def like(self, val: torch.Tensor, shape: Sequence[int]) -> Any:
        """A fresh tensor of this shape."""
        return self.ctx.tensor(list(shape), list(contiguous_strides(shape)), val.dtype, val.device)

    def header(self) -> dict[str, Json]:
        """The program's header with the symbols of the chunks in place of those of the whole."""
        header: dict[str, Any] = dict(self.program.header)
        if not self.symbols:
            return header
        table = header.get("symbols")
        old = {} if not isinstance(table, dict) else {k: v for k, v in table.items() if k not in self.replaced}
        header["symbols"] = {**old, **self.symbols}
        return header
