"""Routes of tokens as Inductor's decompositions leave them, which is how graphs are captured unless told otherwise."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from commcc.base.errors import InputError
from commcc.verify import verify
from commcc.verify.clones import Mixed, Number
from commcc.verify.pieces import Pieces
from tests.chunk_graphs import MOE, Layers, aten, chunked, error, ops_of, plan_of
from tests.test_ep_chunk_routes import INT, SLOTS, TOKENS, WIDTH, added, routed


def filled(b, sizes, number):
    """As Inductor has zeros_like, ones_like and their like."""
    return b.call(aten.full.default, sizes, number, dtype=torch.int64)


def by_filled_ones(b, flat, number=1):
    """zeros.scatter_add(0, flat, ones), as Inductor has it"""
    ids = b.call(aten._to_copy.default, flat, dtype=torch.int64)
    return b.call(aten.scatter_add.default, filled(b, [2], 0), 0, ids, filled(b, [SLOTS], number))


def by_filled_marks(b, flat):
    """zeros.scatter(1, flat, 1).sum(0), as Inductor has it"""
    ids = b.call(aten._to_copy.default, b.call(aten.unsqueeze.default, flat, 1), dtype=torch.int64)
    return b.call(aten.sum.dim_IntList, b.call(aten.scatter.value, filled(b, [SLOTS, 2], 0), 1, ids, 1), [0])


def iota(b, length):
    return b.call(torch.ops.prims.iota.default, length, start=0, step=1, dtype=INT, device="cpu", requires_grad=False)


def by_one_hot_of_parts(b, flat, claim=aten.logical_not.default):
    """one_hot(flat).sum(0), as Inductor has it"""
    ids = b.call(aten._to_copy.default, flat, dtype=torch.int64)
    for check in (aten.ge.Scalar, 0), (aten.lt.Scalar, 2):
        wrong = b.call(aten.any.dims, b.call(aten.logical_not.default, b.call(check[0], ids, check[1])))
        b.call(aten._assert_async.msg, b.call(claim, wrong), "no class")
    hot = b.call(aten.eq.Tensor, b.call(aten.unsqueeze.default, ids, 1), iota(b, 2))
    return b.call(aten.sum.dim_IntList, b.call(aten._to_copy.default, hot, dtype=torch.int64), [0])


def numbered_by_iota(b, back, order, token):
    """numbers[order] = 0, 1, 2, ...; back[numbers], as Inductor has it"""
    numbers = iota(b, SLOTS)
    inverse = b.call(aten.index_put.default, b.call(aten.empty.memory_format, [SLOTS], dtype=INT), [order], numbers)
    rows = b.call(aten.index.Tensor, back, [inverse])
    return b.call(aten.sum.dim_IntList, b.call(aten.reshape.default, rows, [TOKENS, 2, WIDTH]), [1])


def twice_counted(b, flat):
    return by_filled_ones(b, flat, 2)


def asserted_of_any(b, flat):
    """That some row is not there, which need not be so in every chunk."""
    return by_one_hot_of_parts(b, flat, aten.clone.default)


@pytest.mark.parametrize(
    ("count", "why"), [(twice_counted, "an operand that is no rows"), (asserted_of_any, "something else than all rows")]
)
def test_what_is_no_count_or_no_claim(count, why):
    before = routed(count, added)
    verdict = verify(before, chunked(before, chunks=2))
    assert verdict.status == "unproved" and why in verdict.unproved[0].text


@pytest.mark.parametrize("join", [added, numbered_by_iota])
@pytest.mark.parametrize("count", [by_filled_ones, by_filled_marks, by_one_hot_of_parts])
def test_routes_as_inductor_has_them(count, join):
    """Zeros, ones and numbers that only the sizes tell to be of tokens; checks of all tokens."""
    before = routed(count, join)
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12


@pytest.mark.parametrize(
    ("steps", "same"),
    [
        ((("sub", 0), ("add", 1), ("sub", 1), ("floordiv", 1)), True),  # arange(n), as Inductor writes it
        ((("add", 2), ("sub", 1), ("sub", 1), ("mul", 1)), True),
        ((("add", 1),), False),
        ((("sub", 1), ("add", 2)), False),
    ],
)
def test_a_number_of_rows_and_steps_that_come_to_nothing(steps, same):
    graph, rows = fx.Graph(), Number(("rows", ("tokens", TOKENS)))
    rules = Pieces({})
    node = graph.placeholder("n")
    node.meta["val"] = TOKENS
    rules.kinds["n"] = rows
    for name, step in steps:
        rules.own = {node.name}
        node = graph.call_function(getattr(operator, name), (node, step))
        node.meta["val"] = TOKENS
        rules.kinds[node.name] = rules.kind(node)
    assert (rules.kinds[node.name] == rows) == same


@pytest.mark.parametrize(("op", "step"), [(operator.floordiv, 2), (operator.mul, 2), (operator.mod, 1)])
def test_other_arithmetic_on_a_number_of_rows_is_a_look_at_it(op, step):
    graph, rules = fx.Graph(), Pieces({})
    node = graph.placeholder("n")
    rules.kinds["n"], rules.own = Number(("rows", ("tokens", TOKENS))), {"n"}
    with pytest.raises(Mixed, match="a number of rows is looked at"):
        rules.kind(graph.call_function(op, (node, step)))


def asserting(check, *, loss=False):
    """A module with what Dynamo asserts of its sizes: ``check`` of the numbers of rows that are sent."""
    b = Layers()
    x = b.tokens("x", TOKENS, WIDTH)
    with b.module(MOE):
        route = b.dispatch(x)
        b.call(aten._assert_scalar.default, check(b, route), "Runtime assertion failed")
        y = b.combine(b.call(aten.mul.Tensor, route.rows, 2.0), route)
        if loss:
            mean = b.call(aten.mean.dim, x, [0])
            y = b.call(aten.add.Tensor, y, b.call(aten.sum.default, b.call(aten.mul.Tensor, mean, mean)))
    return b.done([y])


def at_most(b, route, most=TOKENS):
    return b.call(operator.le, route.sent[0], most)


def all_sent(b, route):
    return b.call(operator.eq, b.call(torch.sym_sum, tuple(route.sent)), TOKENS)


def all_added(b, route):
    return b.call(operator.eq, b.call(operator.add, *reversed(route.sent)), TOKENS)


@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.parametrize("check", [at_most, all_sent, all_added])
def test_what_is_asserted_of_all_rows_is_asserted_of_those_of_a_chunk(check, loss):
    before = asserting(check, loss=loss)
    after = chunked(before, chunks=3)
    assert [node.args[1] for node in ops_of(after, "_operator.eq")] in ([], [2, 2, 4])
    assert verify(before, after).status == "proved"
    assert error(before, after) < 1e-12


def test_an_assertion_that_not_every_chunk_keeps_is_not_proved():
    few = asserting(lambda b, route: at_most(b, route, TOKENS - 1))
    assert verify(few, chunked(few)).status == "unproved"
    before = asserting(all_sent)
    after = chunked(before)
    for node in after.graph.nodes:
        if node.target is operator.eq:
            node.args = (node.args[0], TOKENS)
    assert verify(before, after).status == "unproved"


@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.parametrize("of", ["both", "received"])
def test_other_assertions_about_the_whole_are_refused(of, loss):
    """That as many tokens come in as there are: of chunks it need not hold."""

    def check(b, route):
        numbers = (route.sent[0], route.received[1]) if of == "both" else route.received
        return b.call(operator.eq, b.call(torch.sym_sum, tuple(numbers)), TOKENS)

    with pytest.raises(
        InputError, match=r"'_assert_scalar.*asserts how large the whole is.*do_not_emit_runtime_asserts"
    ):
        plan_of(asserting(check, loss=loss))
