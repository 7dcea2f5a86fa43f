"""split: launches a large exposed collective in parts, each concurrent with the compute of another.

    y = mm(x, w)                   y0 = mm(x, w[:, :k]);  r0 = reduce_scatter(y0)
    r = reduce_scatter(y)    ->    y1 = mm(x, w[:, k:]);  r1 = reduce_scatter(y1)       r0 overlaps y1
    z = wait(r)                    z = cat([wait(r0), wait(r1)], 1)

1. A collective is cut along a dimension along which everything that is cut with it works slice by slice: ops in front
   of it whose only use it is, and ops behind it. An all-reduce may be cut along any. The ranks lie one after another
   along the first dimension of what is gathered, and of what is scattered: a reduce-scatter is cut along another one
   (columns), so that each part is reduced over the same ranks; a gather also along the first, where every part holds
   its rows of each rank, and results become whole block by block.
2. What else is used of a value in front keeps it whole: then slices of it are read. A collective with nothing in front
   and nothing behind that works slice by slice gains nothing, and stays whole.
3. Only collectives that are exposed are looked at. How each is cut, in how many parts and how far behind it is what
   takes least in a simulation of that piece alone. The splits that gain most are kept if the simulated step of the
   whole graph becomes shorter and memory stays in the budget.
4. An all-reduce of what is scattered (HSDP) is cut with the reduce-scatter: one part is all-reduced over its links
   while the next one is scattered over others.
5. Elements are computed and reduced as before, each by the same ranks. Of a matrix product a library may choose another
   kernel for a part than for the whole, which may round differently, as for the chunks of ``ep-chunk``.

The parts are annotated as chunks of a region, which the verifier proves as those of ``ep-chunk``. Limits: sizes are
known; a collective with one operand and one wait; no cut of what is summed over, so that a gathered weight that is
summed over along its cut stays whole. Run it behind passes that merge.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commcc.base.errors import OptionError
from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.base.record import Record
from commcc.base.terms import MIB
from commcc.passes.base import Pass, PlanContext
from commcc.passes.budget import budget_option
from commcc.passes.options import to_text
from commcc.plan import Chunking, LeftOut, PassReport, Plan, Reordering

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.splitting.planner import Split as PlannedSplit
    from commcc.splitting.planner import Splitter
    from commcc.timing.simulate import Timeline

#: Numbers of parts that ``auto`` compares.
CANDIDATES = (2, 4)
#: A gain of less than one part in so many of the step is none.
LEAST = 1000
#: How often half of the splits are given up where all together do not pay.
ROUNDS = 3


@dataclass(frozen=True)
class SplitCollective(Record):
    """One collective that is split: how many parts, nodes that are cut with it, and what the piece alone gains."""

    launch: str
    kind: str
    parts: int
    body: int
    exposed_ms: float
    gain_ms: float


@dataclass(frozen=True)
class SplitReport(PassReport):
    """Pairs are before and after. left_out: exposed collectives that stay whole, by reason."""

    exposed: int
    split: int
    collectives: tuple[SplitCollective, ...]
    step_ms: tuple[float, float]
    peak_bytes: tuple[int, int]
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class Split(Pass):
    """Which collectives, and in how many parts; see the module docstring."""

    name: ClassVar[str] = "split"
    summary: ClassVar[str] = "launch large exposed collectives in parts, beside the compute of other parts"

    parts: int | str = option("auto", "in how many parts; auto compares 2 and 4", minimum=2, choices=("auto",))
    min_mb: float = option(1.0, "smallest collective to split, in MiB", minimum=0)
    min_exposed_us: float = option(5.0, "least exposed time of a collective to split, in microseconds", minimum=0)
    order: str = option(
        "auto",
        "the order by which it is judged what is exposed, and whether the step is shorter: own, that of the graph; "
        "reorder, that which reorder would give it; auto, the latter where reorder comes behind it in the pipeline",
        choices=("auto", "own", "reorder"),
    )
    memory_budget: str | float | None = budget_option("peak memory")

    def plan(self, context: PlanContext) -> Plan:
        """The regions to cut.

        Raises :class:`OptionError` without a cost model: what is exposed is not known.
        """
        from commcc.splitting.planner import Splitter
        from commcc.timing.predict import milliseconds

        index, costs = context.index, context.costs
        if context.model is None or costs is None:
            raise OptionError("split needs a cost model", where="pass 'split'", hint="as in --cost h100")
        seen, peak = self._judged(context)
        least = self.min_exposed_us * 1000
        exposed = {n: ns for n, ns in seen.exposed.items() if n in index.launches and ns >= least}
        counts = (self.parts,) if isinstance(self.parts, int) else CANDIDATES
        splitter = Splitter(context.program, index, context.model, counts, costs)
        candidates = splitter.splits(exposed, self.min_mb * MIB)
        kept, after, live, why = self._kept(context, splitter, candidates, seen.step_ns, peak)
        dropped = [LeftOut(candidate.launch, why) for candidate in candidates if candidate not in kept]
        left = sorted((*splitter.left, *dropped), key=lambda entry: entry.launch)
        by_reason = Counter(f"{index.launches[entry.launch].kind}: {entry.reason.general}" for entry in left)
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Chunking(tuple(candidate.region for candidate in kept)) if kept else None,
            left_out=tuple(left),
            report=SplitReport(
                exposed=len(exposed),
                split=len(kept),
                collectives=tuple(
                    SplitCollective(
                        launch=index.names[candidate.launch],
                        kind=str(index.launches[candidate.launch].kind),
                        parts=len(candidate.region.sizes),
                        body=len(candidate.region.body),
                        exposed_ms=milliseconds(candidate.exposed_ns),
                        gain_ms=milliseconds(candidate.gain_ns),
                    )
                    for candidate in kept
                ),
                step_ms=(milliseconds(seen.step_ns), milliseconds(after)),
                peak_bytes=(peak, live),
                left_out=dict(sorted(by_reason.items())),
            ),
        )

    def _judged(self, context: PlanContext) -> tuple[Timeline, int]:
        """The step that the splits are judged by, and its peak memory."""
        from commcc.graph.memory import live_bytes
        from commcc.passes.reorder import Reorder
        from commcc.timing.simulate import Simulator

        costs, order = context.costs, None
        assert costs is not None
        if self.order == "reorder" or (self.order == "auto" and Reorder.name in context.behind):
            rewrite = Reorder(memory_budget=self.memory_budget).plan(context).rewrite
            order = rewrite.order if isinstance(rewrite, Reordering) else None
        return Simulator(context.index, costs).run(order), live_bytes(context.index, order).peak_bytes

    def _kept(
        self, context: PlanContext, splitter: Splitter, candidates: Sequence[PlannedSplit], step: int, peak: int
    ) -> tuple[list[PlannedSplit], int, int, Reason]:
        """The splits with which the step is shorter inside the budget, that step, its peak, and why others go."""
        from commcc.graph.collectives import identify
        from commcc.graph.index import build_index
        from commcc.timing.predict import predict

        assert context.model is not None
        budget = context.budget(self.memory_budget)
        allowed = None if budget is None else max(budget, peak)  # a graph that passes it may stay as it is
        why = Reason.of("split_longer")
        chosen = sorted(candidates, key=lambda candidate: (-candidate.gain_ns, candidate.launch))
        if sum(min(candidate.gain_ns, candidate.exposed_ns) for candidate in candidates) * LEAST < step:
            chosen = []  # steps so near to each other count as equal
        for _ in range(ROUNDS):
            if not chosen:
                break
            kept = sorted(chosen, key=lambda candidate: candidate.launch)
            program = splitter.cut(kept)
            index = build_index(program, context.index.estimates.given)
            first = context.first or context.index
            priced = predict(index, context.model)
            after, live = self._judged(
                PlanContext(program, index, identify(index), context.model, first, priced, context.behind)
            )
            if after.step_ns < step and (allowed is None or live <= allowed):
                return kept, after.step_ns, live, why
            why = Reason.of("split_longer" if after.step_ns >= step else "split_memory")
            chosen = chosen[: len(chosen) // 2]
        return [], step, peak, why
