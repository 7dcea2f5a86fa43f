"""The verifier on changed compute, random numbers and effects."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.verify import verify
from commcc.verify.verdict import LIMIT, RULES
from tests.verify_graphs import (
    WORLD,
    Graph,
    aten,
    compute,
    differs,
    proved,
)


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        ("constant", "value", ("b: aten.mul.Tensor: argument 'other' is 3.0, in BEFORE 2.0",)),
        ("dim", "value", ("c: aten.sum.dim_IntList: argument 'dim[0]' is 1, in BEFORE 0",)),
        ("operand", "value", ("d: aten.mm.default", "'x'", "'y'")),
        ("op", "value", ("d",)),
        ("outputs", "output", ("output 0", "output 1")),
    ],
)
def test_changed_compute(change, rule, words):
    differs(compute(), compute(change), rule, *words)


def test_the_same_compute_twice_gives_the_same():
    notes = [note.text for note in proved(compute(), compute("twice")).notes if note.rule == "duplicated"]
    assert "computes aten.mul.Tensor again: 2 times, in BEFORE 1" in notes


def test_a_difference_is_reported_at_its_cause_only():
    def make(first):
        g = Graph()
        x = g.input("x", 4, 4)
        x = g(aten.mul.Tensor, x, first, name="cause")
        for _ in range(30):
            x = g(aten.sin.default, x)
        return g.program(x)

    verdict = differs(make(2), make(3), "value", "cause")
    assert len(verdict.findings) == 1
    assert verdict.checked["consequences"] == 30


def test_consequences_through_lists_of_operands():
    def make(shift):
        g = Graph()
        x, i = g.input("x", 4), g.input("i", 2, dtype=torch.int64)
        i = g(aten.add.Tensor, i, shift, name="cause")
        return g.program(g(aten.index.Tensor, x, [i]))

    verdict = differs(make(1), make(2), "value", "cause")
    assert [finding.node for finding in verdict.findings] == ["cause"]


def test_true_is_another_constant_than_one():
    def make(value):
        g = Graph()
        return g.program(g(aten.add.Tensor, g.input("x", 4), value))

    made = [make(v) for v in (1, 1.0, True)]
    for i, before in enumerate(made):
        for j, after in enumerate(made):
            assert (verify(before, after).status == "proved") == ((i < 2) == (j < 2))


def test_all_differences_are_listed_up_to_the_limit():
    def make(value):
        g = Graph()
        x = g.input("x", 4)
        return g.program(*[g(aten.add.Tensor, x, (i + 1) * value) for i in range(LIMIT + 20)])

    verdict = verify(make(1), make(1000))
    assert len(verdict.findings) == LIMIT
    assert verdict.checked["findings"] > LIMIT
    assert all(finding.rule in RULES and "\n" not in finding.text for finding in verdict.findings)


def test_reordered_random_ops():
    def make(swapped):
        g = Graph()
        x, y = g.input("x", 4), g.input("y", 4)
        made = {}
        for name in ("y", "x") if swapped else ("x", "y"):
            made[name] = g(aten.bernoulli.p, x if name == "x" else y, 0.5, name=f"draw_{name}")
        return g.program(made["x"], made["y"])

    proved(make(False), make(False))
    differs(make(False), make(True), "random", "draw_")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_reordered_attention(dropout):
    def make(swapped):
        g = Graph()
        x, y = g.input("x", 1, 2, 4, 8), g.input("y", 1, 2, 4, 8)
        made = {}
        for name in ("y", "x") if swapped else ("x", "y"):
            source = x if name == "x" else y
            attend = aten._scaled_dot_product_flash_attention_for_cpu.default
            made[name] = g(attend, source, source, source, dropout, name=f"attend_{name}")
        return g.program(*(g(operator.getitem, made[name], 0) for name in "xy"))

    if dropout:
        differs(make(False), make(True), "random", "attend_")
    else:
        assert proved(make(False), make(True)).checked["random_ops"] == 0


def test_a_random_op_that_is_dropped_or_added_shifts_the_others():
    def make(extra):
        g = Graph()
        x = g.input("x", 4)
        if extra:
            g(aten.rand_like.default, x, name="extra")
        return g.program(g(aten.bernoulli.p, x, 0.5))

    differs(make(True), make(False), "random", "extra: AFTER does not do this")
    differs(make(False), make(True), "random", "extra: BEFORE does not do this")


def effects(*order):
    g = Graph()
    x = g.input("x", 4)
    checks = {name: g(aten.any.default, g(aten.gt.Scalar, x, bound)) for bound, name in enumerate("ab")}
    for name in order:
        g(aten._assert_async.msg, checks[name], f"check {name}", name=f"check_{name}")
    return g.program(g(aten.sin.default, x))


def test_assertions_keep_their_number_in_any_order():
    proved(effects("a", "b"), effects("a", "b"))
    proved(effects("a", "b"), effects("b", "a"))
    differs(effects("a", "b"), effects("a"), "effect", "check_b: AFTER does not do this")
    differs(effects("a"), effects("a", "a"), "effect")


def test_unknown_communication_keeps_its_order():
    if not hasattr(torch.ops._c10d_functional_autograd, "reduce_scatter_tensor"):
        pytest.skip("this PyTorch has no such op")
    op = torch.ops._c10d_functional_autograd.reduce_scatter_tensor.default

    def make(swapped):
        g = Graph()
        xs = [g.input("a", 4, 2), g.input("b", 8, 2)]
        made = {}
        for x in reversed(xs) if swapped else xs:
            with g.mode:
                val = torch.empty(x.meta["val"].shape[0] // WORLD, 2)
            made[x] = g(op, x, "sum", WORLD, "0", val=val)
        return g.program(*[made[x] for x in xs])

    proved(make(False), make(False))
    differs(make(False), make(True), "effect", "order")
