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
from commcc.timing.cost.least import Pricing, least
from commcc.timing.cost.types import Operation
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
        assert problem.bound <= problem.figures(order).step_ns
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


class Chains:
    """Chains of three members each that read tensors 100 and 101, and views 200 and 201 of these."""

    def __init__(self, **other):
        self.other, self.ahead, self.reads, self.size = other, {}, {}, {100: 500, 101: 500, 102: 300}
        for node in range(6):
            self.ahead[node] = (0, 0, 1)[node % 3]
            self.reads[node] = {200: (100, 400), 201: (101, 100)} if node % 3 else {200: (100, 400)}
        self.ahead.update(other.get("ahead", {}))
        self.reads.update(other.get("reads", {}))

    def before(self):
        return self.ahead

    def entering(self, node):
        return self.reads[node]

    def size_of(self, node):
        return self.size[node]


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"ahead": {4: 1}},
        {"reads": {4: {200: (100, 300)}}},
        {"reads": {node: {200: (100, 400), 201: (101, 400)} for node in (4, 5)}},
        {"reads": {3: {200: (102, 400)}, 4: {200: (102, 400), 201: (101, 100)}, 5: {200: (102, 400), 201: (101, 100)}}},
        {"reads": {4: {200: (100, 400), 201: (100, 100)}}},
        {"fixed": {4}},
        {"kernel": {4: 90}},
    ],
    ids=str,
)
def test_chains_that_are_not_alike_are_told_apart(other):
    """The second of two chains differs from the first in one thing; both have what each has alone."""
    chains = Chains(**other)
    plain = Operation("aten.add.Tensor", (), (), None, False, 500, 100, 0, False, 0, False)
    others = {node: replace(plain, written_bytes=size) for node, size in other.get("kernel", {}).items()}
    operations = dict.fromkeys(range(6), plain) | others
    pricing = Pricing(
        chains,
        operations,
        lambda operation: 10 * operation.kernels + operation.read_bytes + operation.written_bytes,
        frozenset(other.get("fixed", ())),
    )
    both = least(pricing, {0: (0, 1, 2), 1: (3, 4, 5)})
    each = [least(pricing, {chain: nodes}) for chain, nodes in enumerate(((0, 1, 2), (3, 4, 5)))]
    assert both.ns == each[0].ns | each[1].ns
    assert both.rests == each[0].rests + each[1].rests
    second = {node - 3: ns for node, ns in each[1].ns.items()}, [rest.ns for rest in each[1].rests]
    assert (second == (each[0].ns, [rest.ns for rest in each[0].rests])) == (not other)
