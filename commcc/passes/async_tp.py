"""async-tp: all-gather -> matmul and matmul -> reduce-scatter of tensor parallelism become fused ops.

    ag = all_gather(x)   w = wait(ag)   y = mm(w, a)        f = symm_mem.fused_all_gather_matmul(x, [a, b], ...)
                                        z = mm(w, b)   ->   y, z = f[1][0], f[1][1]

    p = mm(x, a)   rs = reduce_scatter(p)   w = wait(rs)   ->   w = symm_mem.fused_matmul_reduce_scatter(x, a, ...)

The fused ops cut the matmul along the gathered or scattered dimension and move one piece while they multiply
another, through symmetric memory. What can be fused is decided by PyTorch's own pass
(``torch._inductor.fx_passes.micro_pipeline_tp``), and so is the form; every collective that it leaves is listed with
the condition that stood against it. In no preset, because it pays only where the links are fast and the matmuls large.

1. Values and layouts stay: where the fused op returns another layout, a copy follows.
2. The result is verified with every fused op unfolded into what it stands for.

Limits: fused ops are barriers to the other passes, so this one runs last. Their simulated time is that of their
matmuls alone, which is a lower bound. The group must have symmetric memory set up where the graph runs
(``enable_symm_mem_for_group``). Scaled matmuls are left alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commcc.base.errors import OptionError, closest
from commcc.base.options import option
from commcc.base.record import Record
from commcc.base.terms import Kind, Role
from commcc.passes.base import Pass, PlanContext
from commcc.passes.options import to_text
from commcc.plan import Fusing, Fusion, LeftOut, PassReport, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.apply.microtp import Tried
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex

TENSOR_PARALLEL = "tp"
_KINDS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)


@dataclass(frozen=True)
class FusedPair(Record):
    """A collective and what it was fused with, by name."""

    launch: str
    matmuls: tuple[str, ...]


@dataclass(frozen=True)
class AsyncTpReport(PassReport):
    """fused: collectives by kind. left: numbers of collectives by what stood against it."""

    collectives: int
    fused: Mapping[str, int]
    matmuls_fused: int
    pairs: tuple[FusedPair, ...]
    left: Mapping[str, int]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class AsyncTp(Pass):
    """On which groups; see the module docstring."""

    name: ClassVar[str] = "async-tp"
    summary: ClassVar[str] = "fuse matmuls with the all-gathers and reduce-scatters of tensor parallelism"

    groups: str | tuple[str, ...] = option(
        TENSOR_PARALLEL,
        "whose collectives: tp (those of the role tensor parallelism, on any group), or names of groups",
        choices=(TENSOR_PARALLEL,),
    )

    def plan(self, context: PlanContext) -> Plan:
        """What PyTorch's pass takes, and why not the others."""
        index = context.index
        chosen = self._launches(index, context.ident)
        groups = {index.launches[launch].group for launch in chosen}
        tried: tuple[Tried, ...] = ()
        if chosen:  # PyTorch's compiler takes seconds to import
            from commcc.apply.microtp import attempt

            tried = attempt(context.program, groups, {index.names[launch] for launch in chosen})
        position = index.position
        fusions = tuple(
            Fusion(position[candidate.launch], tuple(position[name] for name in candidate.matmuls), candidate.reason)
            for candidate in tried
            if candidate.taken
        )
        left = tuple(
            LeftOut(position[candidate.launch], candidate.reason) for candidate in tried if not candidate.taken
        )
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Fusing(fusions),
            left_out=left,
            report=_report(index, fusions, left, groups),
        )

    def _launches(self, index: GraphIndex, ident: Identification) -> list[int]:
        names = (self.groups,) if isinstance(self.groups, str) else self.groups
        known = sorted({c.group for c in ident.collectives})
        for name in names:
            if name != TENSOR_PARALLEL and name not in known:
                raise OptionError(f"no group '{name}' in the graph{closest(name, [TENSOR_PARALLEL, *known])}")
        return [
            c.launch
            for c in ident.collectives
            if c.kind in _KINDS
            and c.launch not in index.held  # wrapped by a control edge: no pattern of PyTorch's pass
            and (c.group in names or (TENSOR_PARALLEL in names and c.role is Role.TP))
        ]


def _report(
    index: GraphIndex, fusions: tuple[Fusion, ...], left: tuple[LeftOut, ...], groups: set[str]
) -> AsyncTpReport:
    kinds = Counter(str(index.launches[fusion.launch].kind) for fusion in fusions)
    reasons = Counter(str(entry.reason) for entry in left).most_common()
    remarks: tuple[str, ...] = ()
    if fusions:
        remarks = (
            "simulated as their matmuls alone: the step is a lower bound",
            f"set up symmetric memory for {'group' if len(groups) == 1 else 'groups'} {', '.join(sorted(groups))}",
        )
    return AsyncTpReport(
        collectives=len(fusions) + len(left),
        fused=dict(sorted(kinds.items())),
        matmuls_fused=sum(len(fusion.matmuls) for fusion in fusions),
        pairs=tuple(
            FusedPair(index.names[fusion.launch], tuple(index.names[m] for m in fusion.matmuls)) for fusion in fusions
        ),
        left=dict(reasons),
        remarks=remarks,
    )
