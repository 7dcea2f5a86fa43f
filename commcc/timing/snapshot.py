"""A graph at one point of a command, with everything that reports need::

    before = take(program, load_model("h100"), {"u*": 512})
    before.index, before.ident, before.metrics, before.prediction
    before.to_json()["step_ms"]

Without a cost model there is no prediction, and the JSON has no costed keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from commcc.base.gc_pause import no_collection
from commcc.base.text import listed, natural_key
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.graph.metrics import GraphMetrics, measure
from commcc.timing.predict import Prediction, predict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.graph.index.hints import Hint
    from commcc.graph.memory import Memory
    from commcc.graph.program import Program
    from commcc.timing.cost import CostModel


#: What warnings of the cost model say about sizes, which know single ops only.
_REMEDY = "give --hint"
_SYMBOL = re.compile(r"\b[su]\d+\b")


@dataclass(frozen=True)
class Snapshot:
    """What is known of one graph; ``prediction`` is None without a cost model."""

    index: GraphIndex
    ident: Identification
    metrics: GraphMetrics
    prediction: Prediction | None = None

    @staticmethod
    def of(index: GraphIndex) -> Snapshot:
        """The snapshot of an indexed graph, without a prediction."""
        ident = identify(index)
        return Snapshot(index, ident, measure(index, ident))

    @cached_property
    def memory(self) -> Memory:
        """Live bytes over the graph's order."""
        return live_bytes(self.index) if self.prediction is None else self.prediction.memory

    @no_collection()
    def priced(self, model: CostModel | None) -> Snapshot:
        """The same with what ``model`` predicts; as it is without a model."""
        return self if model is None else replace(self, prediction=predict(self.index, model))

    def to_json(self) -> dict[str, Json]:
        """Metrics, then the costed ones if there are any."""
        costed = {} if self.prediction is None else self.prediction.to_json()
        return {**self.metrics.to_json(), **costed}


def take(program: Program, model: CostModel | None = None, hints: Mapping[str, int] | None = None) -> Snapshot:
    """Index, identify, measure and price a graph; raises :class:`commcc.base.errors.GraphError` on an illegal one."""
    return Snapshot.of(build_index(program, hints)).priced(model)


def hints_used(*snapshots: Snapshot) -> tuple[Hint, ...]:
    """The numbers that stood for symbolic sizes in any of the graphs, each symbol once."""
    hints: dict[str, Hint] = {}
    for snapshot in snapshots:
        for hint in snapshot.index.estimates.hints:
            hints.setdefault(hint.symbol, hint)
    return tuple(hints.values())


def sizes_without_hint(*snapshots: Snapshot) -> tuple[str, ...]:
    """Symbols in shapes of the graphs that no number stands for, in order of their names."""
    shapes = (t.shape for snapshot in snapshots for t in snapshot.index.tensors if t is not None and t.symbolic)
    names = {name for shape in shapes for size in shape if isinstance(size, str) for name in _SYMBOL.findall(size)}
    return tuple(sorted(names - {hint.symbol for hint in hints_used(*snapshots)}, key=natural_key))


def cost_warnings(*snapshots: Snapshot) -> tuple[str, ...]:
    """What the cost model had to assume, said once: a later graph's only if it is about something else."""
    without = sizes_without_hint(*snapshots)
    remedy = f"{_REMEDY} SYMBOL=NUMBER for {listed(without)}" if without else _REMEDY
    warnings: dict[str, str] = {}
    for snapshot in snapshots:
        for warning in snapshot.prediction.costs.warnings if snapshot.prediction is not None else ():
            # How often it was said differs from graph to graph and makes it no other warning.
            warnings.setdefault(re.sub(r" \([\d,]+ times\)$", "", warning), warning.replace(_REMEDY, remedy))
    return tuple(warnings.values())
