"""What passes ask before they merge, by hand: room in memory, and what the option of a budget stands for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from commcc.base.terms import Kind
from commcc.passes.budget import GIB, budget_bytes
from commcc.planning.headroom import Room
from tests.index_maker import IndexMaker


@dataclass(frozen=True)
class Member:
    launch: int
    waits: tuple[int, ...]
    kind: Kind
    input_bytes: int
    output_bytes: int


def index(sizes=0):
    """1 launch a, 3 launch b, 4 wait a, used by 5, 6 wait b, used by 7; all nodes but 8 take nothing."""
    make = IndexMaker()
    source = make.input()
    a = make.launch(1, "g", source)
    make.op(1, source)
    b = make.launch(1, "g", source)
    for launch in (a, b):
        make.op(1, make.wait(launch))
    make.op(1, source, size=sizes)
    return make.index()


def steps(kind, small, large):
    """Bytes more at each position from 0 to 8, with a and b in one bucket. Sizes: of inputs, or results, of a."""
    sent, got = (small, large) if kind is Kind.ALL_GATHER else (large, small)
    a = Member(1, (4,), kind, sent, got)
    b = Member(3, (6,), kind, 2 * sent, 2 * got)
    found = [0] * 9
    for begin, end, more in Room(index(), 0)._changes([[a], [b]], [a, b]):
        for at in range(begin, end):
            found[at] += more
    return found, a, b


def test_gathers():
    """From 1 to 6 the whole result is there, and both inputs until 4; copies of it from 4 to 5 and from 6 to 7.

    Alone they held 11 from 1 to 4, 10 more until 5, 22 from 3 to 6, and 20 until 7.
    """
    found, _, _ = steps(Kind.ALL_GATHER, 1, 10)
    assert found == [0, 22, 22, 0, 10, 8, 28, 0, 0]


@pytest.mark.parametrize("kind", [Kind.REDUCE_SCATTER, Kind.ALL_REDUCE])
def test_reductions(kind):
    """The first input is there from 1 to 3, the second at 3, both once more from 3 to 4, the result from 3 to 7.

    Alone they held 10 from 1 to 4 and 1 until 5, and 20 from 3 to 6 and 2 until 7.
    """
    found, _, _ = steps(kind, 1, 10)
    assert found == [0, -1, -1, 30, 0, -20, -19, 1, 0]


def test_a_wait_that_stands_before_the_last_launch_is_not_the_merged_one():
    a, b = Member(1, (2,), Kind.REDUCE_SCATTER, 10, 0), Member(3, (6,), Kind.REDUCE_SCATTER, 20, 0)
    changes = list(Room(index(), 0)._changes([[a], [b]], [a, b]))
    assert (3, 4, 40) in changes, "30 once more at 3, and the first input, which was gone by then"


def test_what_fits():
    """Just where the budget says; what takes less than before always fits, even where the budget is passed."""
    _, a, b = steps(Kind.ALL_GATHER, 1, 10)
    for budget, fits in ((27, False), (28, True), (None, True)):
        assert Room(index(), budget).fits([[a], [b]], [a, b]) is fits
    assert Room(index(sizes=10**6), 28).fits([[a], [b]], [a, b]), "8 is over the budget, with or without"
    room = Room(index(), 55)
    room.take([[a], [b]], [a, b])
    assert not room.fits([[a], [b]], [a, b])
    room = Room(index(), 56)
    room.take([[a], [b]], [a, b])
    assert room.fits([[a], [b]], [a, b])


def test_budgets():
    assert budget_bytes(None, 5) is None
    assert budget_bytes(2.5, 5) == 5 * GIB // 2
    assert budget_bytes("auto", 5) == 5 + GIB, "1 GiB for small graphs"
    assert budget_bytes("auto", 40 * GIB) == 42 * GIB, "5 % for large ones"
