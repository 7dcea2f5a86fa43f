"""Sets of positions are what sets of numbers are, in kernels and in Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.jit import kernel
from commcc.base.kernel_types import lowest_bit
from commcc.schedule.ready import add_position, drop_position, next_position, no_positions
from tests.effort import examples

COUNT = 150
PLACES = st.integers(0, COUNT - 1)


@kernel
def changed(ready, added, dropped):
    for place in added:
        add_position(ready, place)
    for place in dropped:
        drop_position(ready, place)


@kernel
def first_from(ready, begin):
    return next_position(ready, begin)


@kernel
def lowest(number):
    return lowest_bit(number)


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=examples(100), deadline=None)
@given(added=st.lists(PLACES), dropped=st.lists(PLACES), begin=st.integers(0, COUNT + 70))
def test_positions_come_in_order(compiled, added, dropped, begin):
    ready = no_positions(COUNT)
    change, first = (changed, first_from) if compiled else (changed.python, first_from.python)
    change(ready, np.array(added, np.int64), np.array(dropped, np.int64))
    left = sorted(set(added) - set(dropped))
    assert first(ready, begin) == next((place for place in left if place >= begin), -1)
    found, place = [], first(ready, 0)
    while place >= 0:
        found.append(place)
        place = first(ready, place + 1)
    assert found == left


@settings(deadline=None)
@given(number=st.integers(1, 2**62))
def test_the_lowest_bit_of_a_number(number):
    assert lowest(number) == lowest_bit(number)
    assert number % 2 ** lowest_bit(number) == 0
    assert number >> lowest_bit(number) & 1
