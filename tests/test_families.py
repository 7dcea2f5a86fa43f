"""Buckets and orders of whole families of backward passes: never worse than without, never over the budget."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from commcc.graph.memory import live_bytes
from commcc.passes.options import parse_pipeline
from commcc.planning.headroom import budget_bytes
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from tests.families import FAMILIES, backward

COSTS = Path(__file__).parents[1] / "benchmarks" / "costs"
MODELS = {
    "h100": "h100",
    "bandwidth": f"h100,table={COSTS / 'bandwidth-bound.yaml'}",
    "latency": str(COSTS / "latency-rich.yaml"),
}


@cache
def family(name):
    return backward(**FAMILIES[name])


def scheduled(name, cost, text):
    return run(family(name), parse_pipeline(text), model=load_model(MODELS[cost]))


def step_ns(snapshot):
    return snapshot.prediction.timeline.step_ns


def peak(snapshot):
    """Of the graph as it was written, by the memory model; the scheduler counts by its own kernels."""
    return live_bytes(snapshot.index).peak_bytes


@pytest.mark.parametrize("budget", ["auto", "own"])
@pytest.mark.parametrize("cost", sorted(MODELS))
@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.sampled(4)
def test_auto_is_never_worse_and_never_over_the_budget(name, cost, budget):
    """own: no order and no bucket may take more than the graph does."""
    ordered = scheduled(name, cost, f"reorder{{memory_budget={budget}}}")
    merged = scheduled(name, cost, f"bucket{{strategy=auto,memory_budget={budget}}},reorder{{memory_budget={budget}}}")
    assert step_ns(merged.last) <= step_ns(ordered.last) < step_ns(ordered.first)
    assert merged.verified == ordered.verified == "proved"
    allowed = budget_bytes(budget, peak(ordered.first))
    assert peak(ordered.last) <= allowed
    assert peak(merged.last) <= allowed


@pytest.mark.parametrize("name", ["layers", "tensor", "experts, embedding"])
def test_with_memory_the_bound_is_reached(name):
    """Gathers and reductions of layers hide but for their ends, whatever else is in the graph."""
    result = scheduled(name, "h100", "reorder")
    assert step_ns(result.last) <= 1.02 * result.first.prediction.bound.ns
