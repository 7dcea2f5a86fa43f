"""Orders in which only collectives move: legal, within the limits, and what they hide."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from commcc.apply import apply_plan
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.index.build import users_of
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.options import parse_pipeline
from commcc.schedule import Limits, Problem
from commcc.schedule.in_order import in_order
from commcc.schedule.judge import judge
from commcc.schedule.merged import merge
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests import plain_in_order
from tests.schedule_graphs import check_order
from tests.test_propagate import Builder
from tests.test_schedule import FLIGHTS, MORE, PREFETCH, RELAXED, SEEDS, limits_of, problem_of

SAMPLES = Path(__file__).parents[1] / "sample_graphs"


@lru_cache(maxsize=1)
def production():
    index = build_index(load(SAMPLES / "llama3_8b_fsdp64_bw.fx.txt.gz"))
    return Problem(index, load_model("h100").price(index))


@RELAXED
@given(SEEDS, MORE, FLIGHTS, PREFETCH)
def test_legal_and_compute_stays_where_it_is(seed, more, flights, prefetch):
    problem = problem_of(seed)
    limits = limits_of(problem, more, flights, prefetch)
    order = in_order(problem, limits).tolist()
    check_order(problem.index, order)
    assert order == in_order(problem, limits).tolist()
    moved = {n for nodes in problem.preparation.values() for n in nodes}
    stays = [n for n in order if problem.index.compute[n] and n not in moved and not _behind_a_wait(problem, n)]
    assert stays == sorted(stays)


@RELAXED
@given(SEEDS, MORE, FLIGHTS, PREFETCH)
def test_plain_python_makes_the_same(seed, more, flights, prefetch):
    problem = problem_of(seed)
    limits = limits_of(problem, more, flights, prefetch)
    assert in_order(problem, limits).tolist() == plain_in_order.in_order(problem, limits).tolist()


@RELAXED
@given(SEEDS, MORE, FLIGHTS, PREFETCH)
def test_no_compute_has_more_around_it_than_is_counted(seed, more, flights, prefetch):
    problem = problem_of(seed)
    _check_counted(problem, limits_of(problem, more, flights, prefetch))


@pytest.mark.parametrize("more", [100, 105, 120])
def test_what_several_collectives_need_is_counted_until_the_last_of_them(more):
    """All-reduces of one reduce-scatter's result: it is there until the last one is done."""
    index = build_index(load(next(SAMPLES.glob("tiny_llama_hsdp_bw.fx.txt*"))))
    problem = Problem(index, load_model("h100").price(index))
    _check_counted(problem, Limits(live_bytes(index).peak_bytes * more // 100))


def _check_counted(problem, limits):
    line = plain_in_order.placed(problem, limits)
    order = line.order().tolist()
    for node, live in zip(order, problem.memory.live(order).live, strict=True):
        if problem.index.compute[node]:
            assert live <= line.live[node]


@pytest.mark.parametrize("name", ["tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_bw", "tiny_llama_hsdp_bw"])
def test_plain_python_makes_the_same_of_samples(name, monkeypatch):
    """Kernels that are not compiled check the bounds of arrays."""
    index = build_index(load(next(SAMPLES.glob(f"{name}.fx.txt*"))))
    problem = Problem(index, load_model("h100").price(index))
    peak = live_bytes(index).peak_bytes
    kernels = sys.modules["commcc.schedule.in_order"]
    for limits in (Limits(), Limits(peak), Limits(peak * 21 // 20, peak // 50, 20)):
        made = in_order(problem, limits).tolist()
        assert made == plain_in_order.in_order(problem, limits).tolist()
        with monkeypatch.context() as patched:
            for each in ("count_items", "_make"):
                patched.setattr(kernels, each, getattr(kernels, each).python)
            assert made == in_order(problem, limits).tolist()


@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_bw", "tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_bw"])
def test_what_a_launch_takes_is_what_is_there_behind_it(name, monkeypatch):
    """Not what only puts its input together: in a bucket that was written, as in one that is merged in numbers."""
    program = load(SAMPLES / f"{name}.fx.txt.gz")
    index, model = build_index(program), load_model("h100")
    (bucket,) = parse_pipeline("bucket{groups=all}")
    plan = bucket.plan(PlanContext(program, index, identify(index), model))
    written = build_index(apply_plan(program, index, plan))
    kernels, taken = sys.modules["commcc.schedule.in_order"], []
    make = kernels._make

    def made(graph, line):
        make(graph, line)
        taken.append(sorted(line.jobs.takes.tolist()))

    monkeypatch.setattr(kernels, "_make", made)
    in_order(Problem(*merge(index, model, plan.rewrite)), Limits())
    in_order(Problem(written, model.price(written)), Limits())
    in_order(Problem(index, model.price(index)), Limits())
    assert len(taken[0]) < len(taken[2])
    assert taken[0] == taken[1]


def test_what_is_gone_when_a_launch_begins_is_not_what_it_takes(monkeypatch):
    aten, comms = torch.ops.aten, torch.ops._c10d_functional
    build = Builder()
    weight, x = build.input("weight", "f32[256, 64][64, 1]cuda:0"), build.input("x", "f32[64, 512][512, 1]cuda:0")
    first = build.call(aten.mm.default, x, build.call(aten.permute.default, x, [1, 0]))
    cast = build.call(aten._to_copy.default, weight, dtype=torch.bfloat16)
    sent = build.call(aten.clone.default, cast)
    launch = build.call(comms.all_gather_into_tensor.default, sent, 2, "0")
    whole = build.call(comms.wait_tensor.default, launch)
    index = build_index(build.program(first, whole))
    kernels, lines = sys.modules["commcc.schedule.in_order"], []
    make = kernels._make
    monkeypatch.setattr(kernels, "_make", lambda graph, line: (lines.append(line), make(graph, line)))
    in_order(Problem(index, load_model("h100").price(index)), Limits())
    assert lines[0].jobs.takes.tolist() == [(256 * 64 + 512 * 64) * 2]  # what is sent and received, not the cast


def _behind_a_wait(problem, node):
    """Whether a node only leads to outputs, so that it may come later with a wait that did."""
    users = users_of(problem.preds)[node]
    return all(user == len(problem.index) - 1 or _behind_a_wait(problem, user) for user in users)


@pytest.mark.full
def test_hides_nearly_all_of_a_production_graph_in_its_own_memory():
    """By moving collectives alone: the graph's own order takes 1.62 times the bound."""
    problem = production()
    peak = live_bytes(problem.index).peak_bytes
    found = judge(problem.graph, in_order(problem, Limits(budget=peak)))
    assert found.step_ns < 1.04 * problem.bound
    assert found.peak_bytes <= peak


@pytest.mark.full
def test_little_is_hidden_with_no_room_between_launch_and_wait():
    problem = production()
    budget = live_bytes(problem.index).peak_bytes
    free = judge(problem.graph, in_order(problem, Limits(budget))).step_ns
    held = judge(problem.graph, in_order(problem, Limits(budget, prefetch=0))).step_ns
    own = judge(problem.graph, np.arange(len(problem.index))).step_ns
    assert held - free > 0.7 * (own - free)


def test_one_setting_from_this_order_meets_a_tight_budget():
    """What the search uses it for: from the graph's own order the same settings end further above the bound."""
    from commcc.schedule.result import LINE
    from commcc.schedule.search import _Search

    problem = production()
    limits = Limits(budget=live_bytes(problem.index).peak_bytes)
    looking, settings = _Search(problem, limits, 99), ((700, 4000, 1000, 2), (0, 1500, 0, 2), (800, 8000, 1000, 2))
    line = looking._base(LINE, limits)
    from_line = min(looking._schedule(line, setting, limits).step_ns for setting in settings)
    from_own = min(looking._schedule(looking.start, setting, limits).step_ns for setting in settings)
    assert from_line <= from_own
