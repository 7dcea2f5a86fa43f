"""Numbers whose stretches change at once are those of plain lists, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.jit import kernel
from commcc.schedule.curve import add, begin_curve, curve, last_above, most_between, number_at
from tests.effort import examples

MOST = 300


@kernel
def begin(of):
    begin_curve(of)


@kernel
def changed(of, first, end, size):
    add(of, first, end, size)


@kernel
def asked(of, first, end, most, at):
    return most_between(of, first, end), last_above(of, first, end, most), number_at(of, at)


@st.composite
def stretches(draw, count):
    first, end = sorted((draw(st.integers(0, count)), draw(st.integers(0, count))))
    return first, end


@st.composite
def curves(draw):
    """Numbers, and changes with a question behind each."""
    count = draw(st.integers(1, MOST))
    numbers = draw(st.lists(st.integers(-9, 99), min_size=count, max_size=count))
    size = st.integers(-60, 60)
    steps = draw(st.lists(st.tuples(stretches(count), size, stretches(count), size), max_size=12))
    return numbers, steps, draw(st.integers(0, count - 1))


@pytest.mark.parametrize("way", ["compiled", "python"])
def test_stretches_are_those_of_a_list(way):
    run = {
        "compiled": (begin, changed, asked),
        "python": (begin.python, changed.python, asked.python),
    }[way]

    @settings(max_examples=examples(200), deadline=None)
    @given(curves())
    def check(given_):
        numbers, steps, at = given_
        of, plain = curve(len(numbers)), list(numbers)
        of.numbers[:] = numbers
        run[0](of)
        for (first, end), size, (begins, ends), most in steps:
            run[1](of, first, end, size)
            plain[first:end] = [number + size for number in plain[first:end]]
            above = [place for place in range(begins, ends) if plain[place] > most]
            expected = max([0, *plain[begins:ends]]), max(above, default=begins - 1), plain[at]
            assert run[2](of, begins, ends, most, at) == expected

    check()


def test_what_was_added_before_is_forgotten():
    of = curve(200)
    changed(of, 0, 200, 7)
    of.numbers[:] = np.arange(200)
    begin(of)
    assert [number_at(of, at) for at in (0, 63, 64, 199)] == [0, 63, 64, 199]
    assert asked(of, 0, 200, 150, 0) == (199, 199, 0)
