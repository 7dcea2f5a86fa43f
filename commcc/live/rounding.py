"""Which results of a rewritten graph may round differently than those of the input graph, said before it runs.

    known = rounding_of(result, fused=True)     # fused: Inductor compiles it
    known.text        # "3 of 9 results may round differently: all_reduce_bucket_0 (...) adds up other parts"

Two things change how numbers are rounded. A sum over other parts, as of a merged reduction, may add in another order:
libraries choose the order by size. And Inductor fuses what stands together: a kernel over other ops, or over a part of
a merged tensor, uses other vector instructions. Between two ranks a sum has one order only. What is not named here is
computed by the same ops on the same numbers.

Limits: a library that chooses another kernel by where a tensor lies in memory is not foreseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.text import plural
from commcc.graph.ops.kernels import Work
from commcc.replay.numeric.causes import TOLERANCES, Reasons, coarsest

if TYPE_CHECKING:
    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.run.pipeline import RunResult


@dataclass(frozen=True)
class Rounding:
    """results: outputs that may round differently, by their names before, of how many.

    sums: those in other parts, in words. fused: whether Inductor is a reason. within: the part of a result's largest
    number that explains a difference.
    """

    results: tuple[str, ...]
    of: int
    sums: tuple[str, ...]
    fused: bool
    within: float | None

    @property
    def text(self) -> str:
        if not self.results:
            return "sums keep their order"
        first = f"{self.sums[0]} adds up other parts" if self.sums else ""
        more = f" (and {len(self.sums) - 1} more)" if len(self.sums) > 1 else ""
        causes = [*([first + more] if first else []), *(["Inductor fuses other ops"] if self.fused else [])]
        return f"{len(self.results)} of {plural(self.of, 'result')} may round differently: {', and '.join(causes)}"

    def to_json(self) -> dict[str, Json]:
        """For the summary of a job."""
        return {"results": [*self.results], "sums": [*self.sums], "fused": self.fused, "within": self.within}


def rounding_of(result: RunResult, *, fused: bool) -> Rounding | None:
    """None for a graph that nothing was changed in. fused: whether Inductor compiles it."""
    if not result.changed:
        return None
    before, after = result.first.index, result.last.index
    reasons = Reasons(before, after, reductions=True)
    sums = [node for node in reasons.changed if _is_float(after, node) and not _between_two(after, node)]
    work = after.estimates.work
    kernels = [node for node in range(len(after)) if fused and work[node] is Work.FUSABLE and _is_float(after, node)]
    reached = _behind(after, {*sums, *kernels})
    results = [(node, name) for node, name in _results(before, after) if _is_float(after, node)]
    touched = tuple(name for node, name in results if node in reached)
    return Rounding(
        touched,
        len(results),
        tuple(reasons.said(node) for node in sums),
        bool(kernels),
        coarsest(tensor.dtype for node in reached if (tensor := after.tensors[node]) is not None) if touched else None,
    )


def _results(before: GraphIndex, after: GraphIndex) -> list[tuple[int, str]]:
    """What the graph returns, as it was called before, and the nodes that write its inputs."""
    ends = zip(before.outputs, after.outputs, strict=True)
    returned = {new: before.names[old] for old, new in ends if old is not None and new is not None}
    inputs = {storage for node, op in enumerate(after.ops) if op == "placeholder" for storage in after.storages[node]}
    writing = {node: after.names[node] for node, written in after.writes.items() if inputs.intersection(written)}
    return [*{**writing, **returned}.items()]


def _is_float(index: GraphIndex, node: int) -> bool:
    """Whether its numbers are rounded; so it is taken where its type is not known."""
    tensors = index.estimates.parts.get(node, (index.tensors[node],))
    return any(tensor is None or tensor.dtype in TOLERANCES or "float" in tensor.dtype for tensor in tensors)


def _between_two(index: GraphIndex, node: int) -> bool:
    launch = index.launches.get(node)
    if launch is None:
        return False
    group = index.groups.get(launch.group)
    return (group.size if launch.group_size is None and group is not None else launch.group_size) in (1, 2)


def _behind(index: GraphIndex, starts: set[int]) -> set[int]:
    """Everything that depends on these nodes, themselves included."""
    reached = set(starts)
    for node in range(len(index)):
        if reached.intersection(index.needs(node)):
            reached.add(node)
    return reached
