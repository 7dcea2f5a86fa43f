"""What a cost model predicts for a graph: timeline, memory, lower bound; the costed metrics of every report.

    prediction = predict(index, load_model("h100"))
    prediction.to_json()["step_ms"]

Times in JSON are milliseconds, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.graph.memory import Memory, live_bytes
from commcc.timing.simulate import Bound, Simulator, Timeline, lower_bound

if TYPE_CHECKING:
    from commcc.base.terms import Json
    from commcc.graph.index import GraphIndex
    from commcc.timing.cost import CostModel, Costs


@dataclass(frozen=True)
class Prediction:
    """A graph in its own order, under one cost model."""

    costs: Costs
    timeline: Timeline
    memory: Memory
    bound: Bound

    def to_json(self) -> dict[str, Json]:
        """The costed metrics; keys end in ``_ms``, ``_share`` or ``_bytes``."""
        timeline = self.timeline
        share = timeline.hidden_share
        return {
            "step_ms": milliseconds(timeline.step_ns),
            "compute_ms": milliseconds(timeline.compute_ns),
            "communication_ms": milliseconds(timeline.communication_ns),
            "exposed_ms": milliseconds(timeline.exposed_ns),
            "hidden_share": None if share is None else round(share, 6),
            "lower_bound_ms": milliseconds(self.bound.ns),
            "peak_bytes": self.memory.peak_bytes,
            "in_flight_bytes": timeline.in_flight_bytes,
        }

    def model_json(self) -> dict[str, Json]:
        """Name, hash and sources of the cost model, and the nanoseconds that each source priced."""
        priced = [0] * len(self.costs.sources)
        counts = [0] * len(self.costs.sources)
        for ns, source in zip(self.costs.ns, self.costs.priced_by, strict=True):
            if source >= 0:
                priced[source] += ns
                counts[source] += 1
        sources: list[Json] = [
            {"name": name, "nodes": count, "ms": milliseconds(ns)}
            for name, count, ns in zip(self.costs.sources, counts, priced, strict=True)
        ]
        return {"name": self.costs.model, "hash": self.costs.hash, "sources": sources}


def milliseconds(ns: int) -> float:
    """Nanoseconds as milliseconds, exact to the nanosecond."""
    return round(ns / 1e6, 6)


def predict(index: GraphIndex, model: CostModel) -> Prediction:
    """Price the graph, simulate it in its own order, and bound every order from below."""
    costs = model.price(index)
    return Prediction(costs, Simulator(index, costs).run(), live_bytes(index), lower_bound(index, costs))
