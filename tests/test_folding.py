"""Nodes that no schedule has to tell apart: units keep the step, the memory and the runs of every order."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.base.sequences import longest_increasing
from commcc.graph.index import build_index
from commcc.schedule import Problem
from commcc.schedule.folding import fold, unfold
from commcc.schedule.judge import judge
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.effort import examples
from tests.schedule_graphs import check_order, scheduled_graph

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
MANY = settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 10**6)


@lru_cache(maxsize=32)
def problem_of(seed):
    return Problem(*scheduled_graph(seed))


@lru_cache(maxsize=2)
def sample(name):
    index = build_index(load(SAMPLES / name))
    return Problem(index, load_model("h100").price(index))


def rows(graph, name):
    begins = graph.rows[name].tolist()
    return [graph.items[a:b].tolist() for a, b in pairwise(begins)]


def random_units(graph, rng):
    """A legal order of units: inputs first, the output last."""
    preds, users = rows(graph, "preds"), rows(graph, "users")
    missing = [len(row) for row in preds]
    inputs = np.flatnonzero(graph.nodes.placeholder).tolist()
    order, free = [], [node for node in range(len(preds)) if not missing[node]]
    while free:
        first = next((node for node in inputs if node in free), None)
        node = free.pop(rng.randrange(len(free)))
        if first is not None and node != first:
            free.append(node)
            node = first
            free.remove(node)
        order.append(node)
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                free.append(user)
    return np.array(order, np.int64)


def all_same(problem, small, order):
    """Asserts that the order of units and that of nodes are one: what it takes, and that it is legal."""
    nodes = unfold(problem.graph, small, order)
    check_order(problem.index, nodes.tolist())
    assert judge(small.graph, order) == judge(problem.graph, nodes)
    return nodes


@MANY
@given(SEEDS, SEEDS)
def test_any_order_of_units_is_an_order_of_nodes_that_takes_the_same(seed, shuffle):
    problem = problem_of(seed)
    small = fold(problem.graph)
    all_same(problem, small, random_units(small.graph, random.Random(shuffle)))


@MANY
@given(SEEDS, SEEDS)
def test_pinned_nodes_stand_alone_but_for_views(seed, pick):
    problem = problem_of(seed)
    rng = random.Random(pick)
    pinned = {rng.randrange(len(problem.index)) for _ in range(5)}
    small = fold(problem.graph, pinned)
    root = small.folds.root
    assert all(root[node] == node for node in pinned)
    inside = [node for node in range(len(root)) if root[node] in pinned and root[node] != node]
    assert all(small.folds.into[node] != node for node in inside)
    all_same(problem, small, random_units(small.graph, rng))


@pytest.mark.parametrize("name", ["llama3_8b_fsdp64_bw.fx.txt.gz", "tiny_deepseek_fsdp4_ep2.fx.txt.gz"])
def test_samples_are_half_as_large(name):
    problem = sample(name)
    small = fold(problem.graph)
    units = len(small.graph.nodes)
    assert units < 0.75 * len(problem.index)
    nodes = all_same(problem, small, np.arange(units))
    # The graph's own order stays what it is, but for what goes with its user.
    assert len(nodes) - len(longest_increasing(nodes.tolist())) < 0.05 * len(nodes)
    all_same(problem, small, random_units(small.graph, random.Random(name)))


def test_tables_of_units():
    problem = sample("tiny_deepseek_fsdp4_ep2.fx.txt.gz")
    small, index = fold(problem.graph), problem.index
    unit = small.folds.unit.tolist()
    edges = {(unit[p], unit[n]) for n, preds in enumerate(problem.preds) for p in preds if unit[p] != unit[n]}
    assert {(p, n) for n, row in enumerate(rows(small.graph, "preds")) for p in row} == edges
    assert {(p, n) for p, row in enumerate(rows(small.graph, "users")) for n in row} == edges
    assert small.graph.nodes.missing.tolist() == [len(row) for row in rows(small.graph, "preds")]
    assert small.graph.launches.tolist() == [unit[n] for n in sorted(index.launches)]
    waits = rows(small.graph, "waits")
    assert all(waits[unit[n]] == [unit[w] for w in facts.waits] for n, facts in index.launches.items())
    for launch, feeds in problem.feeding.items():
        row = rows(small.graph, "feeds")[unit[launch]]
        assert set(row) <= {unit[node] for node in feeds}
        assert all(small.graph.nodes.waited[each] < 0 and small.graph.nodes.stream[each] < 0 for each in row)
        assert {node for node in feeds if index.compute[node]} <= {n for n in feeds if unit[n] in row}
        needed = {p for each in (unit[launch], *row) for p in rows(small.graph, "preds")[each]} - set(row)
        assert needed == {n for n, row in enumerate(rows(small.graph, "needed_by")) if unit[launch] in row}


def test_what_may_not_go_with_a_neighbour():
    for seed in range(120):
        problem = problem_of(seed)
        index, small = problem.index, fold(problem.graph)
        for node in np.flatnonzero(small.folds.root != np.arange(len(index))).tolist():
            assert not problem.stream_ns[node] and not index.compute[node]
            assert node not in index.launches and node not in index.wait_of and node not in index.writes
            assert index.ops[node] not in ("placeholder", "output")
