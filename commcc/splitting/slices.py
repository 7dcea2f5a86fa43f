"""Which slices of its operands a slice of a result needs, and which slice comes out: asked of the verifier's own rules.

    slices = Slices()
    slices.given(mm, Rows(("tokens", 4096), 1))     # {w: Rows(("tokens", 4096), 1)}: columns of the second operand
    slices.result(mm, {x: Rows(("tokens", 60), 0)}) # (Rows(("tokens", 60), 0), {}): row by row

What these rules do not say of an op is not cut, so that what is planned is proved afterwards
(:mod:`commcc.verify.rows`). Limits: at most :data:`MOST_TRIED` ways to cut the operands of one op are tried.
"""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.graph.ops import is_getitem, op_name
from commcc.graph.ops.row_wise import ROW_RULES, RowRule
from commcc.verify.clones import SLICED, Mixed, Rows, folded, shape_of
from commcc.verify.tokens import Dispatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.verify.clones import Kind

    Cuts = dict[fx.Node, Rows]

MOST_TRIED = 64


def is_static(node: fx.Node) -> bool:
    """Whether a node gives tensors of known sizes, none of them empty."""
    val = node.meta.get("val")
    tensors = val if isinstance(val, (list, tuple)) else [val]
    return bool(tensors) and all(
        isinstance(tensor, torch.Tensor) and all(type(size) is int and size > 0 for size in tensor.shape)
        for tensor in tensors
    )


class Slices:
    """Answers by node and slices; the same questions come again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Kind | None] = {}

    def kind(self, node: fx.Node, cuts: Mapping[fx.Node, Kind]) -> Kind | None:
        """What a node makes of slices of some operands and the whole of all others; None for what is no slice."""
        key = (node, *cuts.items())
        if key not in self._known:
            rules = Dispatch({})
            rules.kinds = {operand.name: kind for operand, kind in cuts.items()}
            rules.own = set(rules.kinds)
            try:
                self._known[key] = rules.kind(node)
            except Mixed:
                self._known[key] = None
        return self._known[key]

    def rows(self, node: fx.Node, cuts: Cuts) -> Rows | None:
        """As :meth:`kind`, where the result is a slice that can be put together again; all parts of a list alike."""
        if is_getitem(node.target):  # of what is cut as its parts are
            kind = next(iter(cuts.values()))
            return Rows(kind.order, kind.dim)
        result = self.kind(node, cuts)
        parts = result if isinstance(result, tuple) else (result,)
        first = parts[0] if parts else None
        if not isinstance(first, Rows) or first.order[0] not in SLICED or any(part != first for part in parts):
            return None
        return Rows(first.order, first.dim)

    def given(self, node: fx.Node, wanted: Rows) -> Cuts | None:
        """How operands are to be cut for the result to be cut so; None where that cannot be."""
        if ROW_RULES.get(op_name(node.target)) is RowRule.FILLED and not node.all_input_nodes:
            return {} if shape_of(node)[wanted.dim] == wanted.order[-1] and wanted.order[0] == "tokens" else None
        for cuts in self._ways(node, {}, wanted):
            if self.rows(node, cuts) == wanted:
                return cuts
        return None

    def result(self, node: fx.Node, cuts: Cuts) -> tuple[Rows, Cuts] | None:
        """What comes out where some operands are cut, and how others have to be cut for that."""
        for ways in self._ways(node, cuts, next(iter(cuts.values()))):
            result = self.rows(node, ways)
            if result is not None:
                return result, {operand: kind for operand, kind in ways.items() if operand not in cuts}
        return None

    def _ways(self, node: fx.Node, fixed: Cuts, like: Rows) -> Iterator[Cuts]:
        """Ways to cut the operands, those first in which most are, or fewest where some are given."""
        operands = [used for used in node.all_input_nodes if used in fixed or is_static(used)]
        choices = []
        for operand in operands:
            own: list[Rows | None] = [fixed[operand]] if operand in fixed else list(_candidates(node, operand, like))
            whole: list[Rows | None] = [] if operand in fixed else [None]
            choices.append([*whole, *own] if fixed else [*own, *whole])
        for chosen in islice(product(*choices), MOST_TRIED):
            cuts = {operand: kind for operand, kind in zip(operands, chosen, strict=True) if kind is not None}
            if cuts:
                yield cuts


def _candidates(node: fx.Node, operand: fx.Node, like: Rows) -> Iterator[Rows]:
    """Slices of an operand that may go with a slice like that of the result, or of another operand."""
    if is_getitem(node.target):
        yield like
        return
    val = operand.meta["val"]
    if isinstance(val, (list, tuple)):
        return
    shape = list(val.shape)
    if ROW_RULES.get(op_name(node.target)) is RowRule.RESHAPE:
        try:
            yield folded(like, shape_of(node), shape)
        except Mixed:
            return
    size = like.order[1] if like.order[0] == "tokens" else like.order[1] * like.order[2]
    for dim, own in enumerate(shape):
        if own == size:
            yield Rows(like.order, dim)
