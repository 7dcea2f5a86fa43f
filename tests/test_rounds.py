"""Rounds of the search: which limits they keep, and what a search leaves out that is not worth finishing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.schedule import Limits, Problem, search
from commcc.schedule.result import SearchResult
from commcc.serialization import load
from commcc.timing.cost import load_model

ROOT = Path(__file__).parents[1]
MODULE = sys.modules["commcc.schedule.search"]  # the package has a function of that name
MODEL = load_model(str(ROOT / "benchmarks" / "costs" / "latency-rich.yaml"))


@pytest.fixture(scope="module")
def experts():
    """A graph of which the step stays far from its bound, and its peak in bytes."""
    index = build_index(load(ROOT / "sample_graphs" / "library_deepseek_fsdp4_ep2.fx.txt.gz"))
    return Problem(index, MODEL.price(index)), live_bytes(index).peak_bytes


def rounds(monkeypatch, problem, limits):
    """Limits of all rounds, and the result."""
    seen = []
    whole = MODULE._Search.round

    def noted(looking, grid, within, *own):
        seen.append((within.prefetch, within.budget))
        whole(looking, grid, within, *own)

    with monkeypatch.context() as patched:
        patched.setattr(MODULE._Search, "round", noted)
        return seen, search(problem, limits, 50)


def test_where_memory_holds_back_launches_go_closer_to_their_waits_before_the_budget_shrinks(monkeypatch, experts):
    problem, peak = experts
    budget = peak * 105 // 100
    seen, found = rounds(monkeypatch, problem, Limits(budget, None, 200))
    narrow, tighter = seen.index((50, budget)), [within for _, within in seen if within < budget]
    assert narrow >= 1 and all(seen.index((200, within)) > narrow for within in tighter)
    assert found.peak_bytes <= budget and tighter
    assert all(prefetch in (None, 200) for prefetch, _ in rounds(monkeypatch, problem, Limits(None, None, 200))[0])
    seen, found = rounds(monkeypatch, problem, Limits(budget, None, None))
    assert found.peak_bytes <= budget
    first = list(dict.fromkeys(prefetch for prefetch, within in seen if within == budget))
    assert first == [None, 200, 50], "no limit stands for two narrower ones as well"


def test_what_is_not_worth_finishing_has_the_step_that_it_would_have(monkeypatch):
    """Launches closer to their waits may shorten it, so that is never left out."""
    index = build_index(load(ROOT / "sample_graphs" / "llama3_8b_fsdp64_bw.fx.txt.gz"))
    problem, shorter = Problem(index, MODEL.price(index)), SearchResult(b"", 1, 1, 1, 1, ())

    def narrow(looking):
        looking.best = shorter

    monkeypatch.setattr(MODULE._Search, "narrow", narrow)
    monkeypatch.setattr(MODULE._Search, "unfold", lambda _looking: None)
    monkeypatch.setattr(MODULE, "_MOVED_NODES", 0)
    assert search(problem, Limits(None, None, 200), 1, hopeless=0).step_ns == shorter.step_ns
