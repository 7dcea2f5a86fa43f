"""Why an output may be rounded in another way: sums on the way to it that AFTER makes of other parts.

A difference of rounding is excused only by a reason. For an output these are the nodes that it depends on, which
add numbers up, which BEFORE has not under that name, and of whose kind and operands' shapes AFTER has more::

    reduce_scatter_bucket_0 (reduce_scatter_tensor of [4096], merged from reduce_scatter_tensor_3, ...)
    mm_7_chunk_0 (mm of [30, 32] and [32, 64])

A reduction over other parts is a reason on real ranks only: backends choose the order of its sum by its size.
Virtual ranks add in the order of ranks, whatever is merged.

Limits: sums whose operands changed but not their shapes, and a sum in place of an equal one, are no reasons.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commcc.base.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commcc.graph.index import GraphIndex

_SUMS = frozenset(
    {
        *(f"aten.{n}" for n in ("sum", "mean", "var", "var_mean", "prod", "cumsum", "add", "add_", "_foreach_add")),
        *(f"aten.{n}" for n in ("index_put", "index_put_", "index_add", "index_add_", "scatter_add", "scatter_reduce")),
        *(f"aten.{n}" for n in ("embedding_dense_backward", "_unsafe_masked_index_put_accumulate", "nll_loss_forward")),
        *(f"aten.{n}" for n in ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")),
        *("torch.sym_sum", "aten.addcmul", "aten.addcdiv", "prims.sum", "prims.fma"),
    }
)
#: The largest difference that another order of sums explains, of the largest number of a value: a few roundings
#: of 2^-53, 2^-24, 2^-11 and 2^-8. Sums in chunks were seen to differ by 1e-15, 1.2e-6 and, in bfloat16, 0.006.
TOLERANCES = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 4e-3,
    "bfloat16": 2e-2,
}
#: Reasons that are kept for one output.
_KEPT = 3

#: An op and the shapes of its operands.
_Sum = tuple[str, tuple[str, ...]]


class Reasons:
    """Finds changed sums; answers for one value after the other. reductions: whether those of collectives count."""

    def __init__(self, before: GraphIndex, after: GraphIndex, *, reductions: bool) -> None:
        self._after = after
        old = [(before.names[node], key) for node, key in _sums(before, range(len(before)))]
        new = list(_sums(after, range(len(after))))
        more = Counter(key for _, key in new) - Counter(key for _, key in old)
        known = frozenset(old)
        self._changed = {
            node
            for node, key in new
            if more[key] and (after.names[node], key) not in known and (reductions or node not in after.launches)
        }

    def of(self, places: tuple[int, ...]) -> tuple[str, ...]:
        """Reasons for a value that AFTER makes at these nodes."""
        found = [node for node in upstream(self._after, places) if node in self._changed]
        more = (f"and {len(found) - _KEPT} more",) if len(found) > _KEPT else ()
        return tuple(self._text(node) for node in found[:_KEPT]) + more

    def tolerance(self, places: tuple[int, ...]) -> float | None:
        """What changed sums explain in a value: that of the coarsest dtype from the sums to the value; None without."""
        index = self._after
        touched: set[int] = set()
        for node in reversed(upstream(index, places)):
            if node in self._changed or touched.intersection(index.needs(node)):
                touched.add(node)
        dtypes = {tensor.dtype for node in touched if (tensor := index.tensors[node]) is not None}
        return max((TOLERANCES[dtype] for dtype in dtypes if dtype in TOLERANCES), default=None)

    def _text(self, node: int) -> str:
        index = self._after
        merged = index.merged_from.get(node, ())
        names = ", ".join(merged[:3]) + (", ..." if len(merged) > 3 else "")
        of = " and ".join(_shapes(index, node))
        origin = f", merged from {names}" if merged else ""
        return f"{index.names[node]} ({index.ops[node].partition('.')[2]} of {of}{origin})"


def upstream(index: GraphIndex, starts: tuple[int, ...]) -> list[int]:
    """Everything that some nodes depend on, themselves included, latest first."""
    seen, stack = set(starts), list(starts)
    while stack:
        fresh = [p for p in index.needs(stack.pop()) if p not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return sorted(seen, reverse=True)


def _sums(index: GraphIndex, nodes: Iterable[int]) -> Iterator[tuple[int, _Sum]]:
    for node in nodes:
        launch = index.launches.get(node)
        reduces = launch is not None and launch.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
        if reduces or index.compute[node] or index.ops[node] in _SUMS:
            yield node, (index.ops[node], _shapes(index, node))


def _shapes(index: GraphIndex, node: int) -> tuple[str, ...]:
    operands = (index.tensors[p] for p in index.data_preds[node])
    return tuple(f"[{', '.join(map(str, t.shape))}]" for t in operands if t is not None)
