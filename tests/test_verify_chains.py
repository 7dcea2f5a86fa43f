"""Views of views: what one link of the chain leaves open, all that hang on it leave open."""

from __future__ import annotations

import pytest
import torch

from commcc.verify import verify
from tests.verify_graphs import Graph, aten, differs, proved


def window(*, early):
    """A part of x, seen with what lies around it, read between two copies into x or behind both."""
    g = Graph()
    x, a, b = g.input("x", 8), g.input("a", 8), g.input("b", 2)
    around = g(aten.as_strided.default, g(aten.slice.Tensor, x, 0, 0, 2), [4], [1], 0)
    g(aten.copy_.default, x, a)
    beside = g(aten.slice.Tensor, x, 0, 2, 4)
    read = g(aten.sin.default, around) if early else None
    g(aten.copy_.default, beside, b)
    return g.program(g(aten.sin.default, around) if read is None else read)


def test_a_view_that_shows_what_lies_around_its_operand_is_read_at_its_time():
    proved(window(early=False), window(early=False))
    differs(window(early=False), window(early=True), "mutation")


VIEWS = [
    lambda g, x: g(aten.diagonal.default, x),
    lambda g, x: g(aten.unfold.default, g(aten.select.int, x, 0, 0), 0, 2, 1),
    lambda g, x: g(aten.mul_.Tensor, x, 2),
]


def guessed(view, *, late):
    """A view of what is a copy of x or x itself, as its strides want it; then x is written."""
    g = Graph()
    x, a = g.input("x", 2, 2, 2, 2), g.input("a", 2, 2, 2, 2)
    if late:
        g(aten.copy_.default, x, a)
    part = view(g, g(aten.contiguous.default, x, memory_format=torch.channels_last))
    if not late:
        g(aten.copy_.default, x, a)
    return g.program(g(aten.sin.default, part))


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_what_may_be_a_copy_may_be_in_the_copy(view):
    proved(guessed(view, late=False), guessed(view, late=False))
    assert verify(guessed(view, late=False), guessed(view, late=True)).status != "proved"


COPIES = [
    lambda g, x: g(aten.contiguous.default, x, memory_format=torch.channels_last),
    lambda g, x: g(aten.type_as.default, x, g(aten.new_zeros.default, x, [1], dtype=torch.float64)),
]


def written(copy, *, again, inner=lambda g, x: x):
    """One copy, or what may be one, is written and read; or one of two is written and the other read."""
    g = Graph()
    made = copy(g, x := g.input("x", 2, 2, 2, 2))
    other = copy(g, x) if again else made
    g(aten.add_.Tensor, inner(g, made), 1)
    return g.program(g(aten.sin.default, inner(g, other)))


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("inner", [lambda g, x: x, lambda g, x: g(aten.diagonal.default, x)])
def test_two_copies_are_not_one(copy, inner):
    proved(written(copy, again=False, inner=inner), written(copy, again=False, inner=inner))
    proved(written(copy, again=True, inner=inner), written(copy, again=True, inner=inner))
    verdict = verify(written(copy, again=False, inner=inner), written(copy, again=True, inner=inner))
    assert verdict.status != "proved"


def returned(copy, *, again):
    """Two outputs that are in one copy, or each in its own."""
    g = Graph()
    made = copy(g, x := g.input("x", 2, 2, 2, 2))
    other = copy(g, x) if again else made
    return g.program(made, g(aten.select.int, g(aten.alias.default, other), 1, 0))


@pytest.mark.parametrize("copy", COPIES)
def test_outputs_in_two_copies_are_not_in_one(copy):
    proved(returned(copy, again=False), returned(copy, again=False))
    proved(returned(copy, again=True), returned(copy, again=True))
    assert verify(returned(copy, again=False), returned(copy, again=True)).status == "unproved"
    assert verify(returned(copy, again=True), returned(copy, again=False)).status == "unproved"


def unread(op, *given, relaid=False, small=False):
    """A view that nobody looks at, of what may lie otherwise than in BEFORE, or in a smaller storage."""
    g = Graph()
    x = seen = g.input("x", 4, 4, 2)
    if relaid:
        turned = g(aten.permute.default, x, [2, 1, 0])
        seen = g(aten.permute.default, g(aten.clone.default, turned, memory_format=torch.contiguous_format), [2, 1, 0])
    seen = g(aten.slice.Tensor, seen, 0, 0, 1)
    if small:
        seen = g(aten.clone.default, seen)
    with g.mode:
        val = op(torch.empty(4, 4, 2)[:1], *given)
    g(op, seen, *given, val=val)
    return g.program(g(aten.neg.default, x))


@pytest.mark.parametrize(
    ("changed", "op", "given"),
    [("small", aten.as_strided.default, ([32], [1], 0)), ("relaid", aten.view_as_complex.default, ())],
)
def test_a_view_that_nobody_reads_has_to_run(changed, op, given):
    verdict = verify(unread(op, *given), unread(op, *given, **{changed: True}))
    assert verdict.status == "unproved"
