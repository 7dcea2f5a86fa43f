"""Keeps buckets a few at a time, each time with a simulation of the merged step.

    trial = Trial(index, model, timeline, budget, plan_of)
    kept = trial.keep(buckets)          # trial.refused: the others, each with its reason

What is kept holds at every moment: with these buckets nothing that was hidden is exposed, memory is within
the budget, and the step is no longer than without them. A batch is added if that is still so with it. Else

1. buckets that are at fault themselves (exposed for longer than their members were, or the largest ones where
   memory passes the budget) are set aside, and the rest is tried again;
2. where none is, the batch is halved, the earlier half first; a batch of one is refused.

What was set aside is tried once more at the end, since others may have been the cause. Every trial sets a
bucket aside, halves a batch or ends one, and there are no more than ``TRIALS``; what has not been tried by
then is refused too. So it always ends, in time linear in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.passes.strategies.overlap import Open
    from commcc.plan import Merging
    from commcc.timing.cost import CostModel, Costs
    from commcc.timing.simulate import Timeline

    Refused = tuple[Open, Reason]

#: Simulations of one graph.
TRIALS = 32
#: A merged collective may be exposed for this much longer than its members were, in permille of its time.
TOLERANCE = 10
#: Batches in which those at fault get their second chance.
_PARTS = 4


@dataclass(frozen=True)
class _Verdict:
    """What is wrong with some buckets; None if nothing is. at_fault: numbers of those that stand out, if any do."""

    reason: Reason | None
    at_fault: frozenset[int] = frozenset()


_FINE = _Verdict(None)


class Trial:
    """Trials on one graph. step_ns: simulated, with what is kept. plan_of: numbers buckets by first member."""

    def __init__(
        self,
        index: GraphIndex,
        model: CostModel,
        timeline: Timeline,
        budget: int | None,
        plan_of: Callable[[Sequence[Open]], Merging],
    ) -> None:
        self._index, self._model, self._before = index, model, timeline
        self._budget, self._plan_of = budget, plan_of
        self._exposed_ns = timeline.exposed_ns
        self.step_ns = timeline.step_ns
        self.refused: list[Refused] = []
        self._left = TRIALS

    def keep(self, buckets: Sequence[Open]) -> list[Open]:
        """The buckets that can be kept together, in graph order."""
        kept, at_fault = self._add([], [sorted(buckets, key=_first)])
        again = sorted((bucket for bucket, _ in at_fault), key=_first)
        kept, at_fault = self._add(kept, [again[n::_PARTS] for n in range(_PARTS)])
        self.refused += at_fault
        return kept

    def _add(self, kept: list[Open], batches: list[list[Open]]) -> tuple[list[Open], list[Refused]]:
        """What is kept with as much of the batches as can be, and what was at fault in a batch of several."""
        found: list[Refused] = []
        while batches and self._left:
            batch, *batches = batches
            both = sorted([*kept, *batch], key=_first)
            verdict = self._judge(both) if batch else _FINE
            if verdict.reason is None:
                kept = both
                continue
            at_fault = [b for n, b in enumerate(both) if n in verdict.at_fault and b in batch]
            if len(batch) == 1:
                self.refused.append((batch[0], verdict.reason))
                continue
            found += [(bucket, verdict.reason) for bucket in at_fault]
            rest = [b for b in batch if b not in at_fault]
            half = len(rest) if at_fault else len(rest) // 2
            batches = [rest[:half], rest[half:], *batches]
        self.refused += [(bucket, Reason.of("not_tried", simulations=TRIALS)) for batch in batches for bucket in batch]
        return kept, found

    def _judge(self, buckets: Sequence[Open]) -> _Verdict:
        from commcc.schedule.merged import merge
        from commcc.timing.simulate import Simulator

        self._left -= 1
        index, costs = merge(self._index, self._model, self._plan_of(buckets))
        timeline = Simulator(index, costs).run()
        made = [index.position[f"{b.members[0].kind}_bucket_{n}"] for n, b in enumerate(buckets)]
        exposed = frozenset(
            n
            for n, node in enumerate(made)
            if timeline.exposed.get(node, 0) > buckets[n].exposed_ns + costs.ns[node] * TOLERANCE // 1000
        )
        if exposed:
            return _Verdict(Reason.of("exposed"), exposed)
        if self._exposes_others(index, costs, timeline):
            return _Verdict(Reason.of("exposes_others"))
        over = self._over_budget(index, buckets, made)
        if over is not None:
            return over
        if timeline.step_ns > self.step_ns:
            return _Verdict(Reason.of("longer_step"))
        self.step_ns = timeline.step_ns
        return _FINE

    def _exposes_others(self, index: GraphIndex, costs: Costs, timeline: Timeline) -> bool:
        """Whether a collective that is in no bucket was hidden and is exposed now.

        Not while less is exposed in all: then what hid it was in part a stall that merging has removed.
        """
        if timeline.exposed_ns <= self._exposed_ns:
            return False
        for launch in self._index.launches:
            node = index.position.get(self._index.names[launch])
            if node is None or self._before.exposed.get(launch, 0):
                continue
            if timeline.exposed.get(node, 0) > costs.ns[node] * TOLERANCE // 1000:
                return True
        return False

    def _over_budget(self, index: GraphIndex, buckets: Sequence[Open], made: Sequence[int]) -> _Verdict | None:
        """None within the budget; else the largest of the buckets at the peak, as many as hold the excess together."""
        from commcc.graph.memory import live_bytes

        memory = live_bytes(index)
        if self._budget is None or memory.peak_bytes <= self._budget or memory.peak_at is None:
            return None
        stretches = [self._stretch(index, bucket, node) for bucket, node in zip(buckets, made, strict=True)]
        largest = sorted(range(len(buckets)), key=lambda n: (-buckets[n].bytes, n))
        chosen = set[int]()
        for at in [at for at, live in enumerate(memory.live) if live > self._budget]:
            there = [n for n in largest if stretches[n][0] <= at <= stretches[n][1]]
            excess = memory.live[at] - self._budget - sum(buckets[n].bytes for n in there if n in chosen)
            for n in [n for n in there if n not in chosen]:
                if excess <= 0:
                    break
                chosen.add(n)
                excess -= buckets[n].bytes
        return _Verdict(Reason.of("memory"), frozenset(chosen))

    def _stretch(self, index: GraphIndex, bucket: Open, node: int) -> tuple[int, int]:
        """From what the merged launch sends to the last member's result, which has the name of the member's wait."""
        old, at = self._index, index.position
        sends = [p for c in bucket.members for p in old.launches[c.launch].inputs if old.ops[p] != "placeholder"]
        first = min([node, *(at[old.names[p]] for p in sends if old.names[p] in at)])
        return first, max(at[old.names[wait]] for c in bucket.members for wait in c.waits)


def _first(bucket: Open) -> int:
    return bucket.members[0].launch
