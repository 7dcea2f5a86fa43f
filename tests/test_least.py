"""The least that fused chains cost in any order, and the lower bound that counts with it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from commcc.apply import apply_plan
from commcc.graph.index import build_index
from commcc.plan import Plan, Reordering
from commcc.schedule import Problem
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.simulate import lower_bound
from tests.effort import examples
from tests.random_graphs import random_program
from tests.test_schedule import shuffled

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
NAMES = ("tiny_llama_fsdp2_tp2_fw", "tiny_llama_fsdp4_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_llama_joint")


@cache
def problem_of(which):
    """Of a sample or a random program, under the costs of an H100; and the program."""
    program = load(next(SAMPLES.glob(f"{which}.fx.txt*"))) if isinstance(which, str) else random_program(which)
    index = build_index(program)
    return program, Problem(index, load_model("h100").price(index))


@pytest.mark.parametrize("which", [*NAMES, *range(examples(20))])
def test_no_order_is_cheaper(which):
    """No node, no chain, no step."""
    problem = problem_of(which)[1]
    payers = problem.costs.payers
    for seed in range(8):
        order = np.array(shuffled(problem, seed))
        costs = problem.costs.in_order(order)
        assert problem.bound <= problem.simulated(order).step_ns
        if payers is None:
            continue
        least = {node: payers.least.ns.get(node, problem.costs.ns[node]) for node in range(len(costs.ns))}
        assert all(least[node] <= ns for node, ns in enumerate(costs.ns))
        for nodes, ns in payers.least.rests:
            assert sum(costs.ns[node] - least[node] for node in nodes) >= ns > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_that_of_every_order(name):
    """A graph whose nodes stand in another order has the same bound; with prices as they stand it would differ."""
    program, problem = problem_of(name)
    plain = {lower_bound(problem.index, replace(problem.costs, payers=None)).ns}
    for seed in range(4):
        order = Reordering(tuple(shuffled(problem, seed)))
        index = build_index(apply_plan(program, problem.index, Plan("t", problem.index.fingerprint, order)))
        costs = load_model("h100").price(index)
        assert lower_bound(index, costs).ns == problem.bound
        plain.add(lower_bound(index, replace(costs, payers=None)).ns)
    assert len(plain) > 1
    assert min(plain) * 0.999 <= problem.bound <= min(plain)


def test_what_nobody_has_to_pay_is_a_rest():
    """Chains whose members can all be first: none of these has to pay for the kernel, together they do."""
    problem = problem_of(NAMES[1])[1]
    least = problem.costs.payers.least
    own, lowered = sum(problem.costs.ns), sum(problem.costs.ns[n] - ns for n, ns in least.ns.items())
    left = sum(ns for _, ns in least.rests)
    assert lowered > 0.01 * own
    assert 0.95 * lowered < left <= lowered
