"""What passes ask before they merge, by hand: headroom in memory, and what the option of a budget stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commcc.base.terms import GIB, Kind
from commcc.planning.bucket_model import BucketModel, Form, Member
from commcc.planning.headroom import Headroom, budget_bytes
from tests.index_maker import IndexMaker

A, B = 1, 3


def index(kind=Kind.ALL_GATHER, sent=0, got=0, sizes=0, early=False):
    """1 launch a, 3 launch b, 4 wait a, used by 5, 6 wait b, used by 7; all nodes but 8 take nothing.

    sent, got: bytes of a's input and result, b has twice as many. early: a is waited for at 2 instead.
    """
    make = IndexMaker()
    source = make.input()
    a = make.launch(1, "g", source)
    between = make.wait(a) if early else make.op(1, source)
    b = make.launch(1, "g", between)
    for launch in (a, b):
        make.op(1, make.op(1, source) if early and launch == a else make.wait(launch))
    make.op(1, source, size=sizes)
    made = make.index()
    figures = {0: sent, 1: got, 2: got if early else 2 * sent, 3: 2 * got, 4: got, 6: 2 * got}
    tensors = [replace(t, numel=figures.get(n, 0), shape=(figures.get(n, 0),)) for n, t in enumerate(made.tensors)]
    launches = {node: replace(launch, kind=kind) for node, launch in made.launches.items()}
    if early:  # b's input has a size of its own
        launches[B] = replace(launches[B], inputs=(5,))
        tensors[5] = replace(tensors[5], numel=2 * sent, shape=(2 * sent,))
    return replace(made, tensors=tuple(tensors), launches=launches)


def merging(made, budget=0, *, coalesced=False):
    """Headroom, and what changes with a and b in one bucket."""
    headroom = Headroom(made, budget)
    a, b = Member.of(made, A), Member.of(made, B)
    together = BucketModel.of([a, b], Form(coalesced))
    return headroom, headroom.changes([BucketModel.of([a]), BucketModel.of([b])], together)


def steps(kind, small, large, *, coalesced=False):
    """Bytes more at each position from 0 to 8, with a and b in one bucket. Sizes: of inputs, or results, of a."""
    sent, got = (small, large) if kind is Kind.ALL_GATHER else (large, small)
    found = [0] * 9
    for begin, end, more in merging(index(kind, sent, got), coalesced=coalesced)[1]:
        for at in range(begin, end):
            found[at] += more
    return found


def test_gathers():
    """From 1 to 6 the whole result is there, and both inputs until 4; copies of it from 4 to 5 and from 6 to 7.

    Alone they held 11 from 1 to 4, 10 more until 5, 22 from 3 to 6, and 20 until 7.
    """
    assert steps(Kind.ALL_GATHER, 1, 10) == [0, 22, 22, 0, 10, 8, 28, 0, 0]


@pytest.mark.parametrize("kind", [Kind.REDUCE_SCATTER, Kind.ALL_REDUCE])
def test_reductions(kind):
    """The first input is there from 1 to 3, the second at 3, both once more from 3 to 4, the result from 3 to 7.

    Alone they held 10 from 1 to 4 and 1 until 5, and 20 from 3 to 6 and 2 until 7.
    """
    assert steps(kind, 1, 10) == [0, -1, -1, 30, 0, -20, -19, 1, 0]


def test_gathers_in_one_call():
    """From 1 to 4 both inputs and both results, without a copy; one result until 5, the other until 7."""
    assert steps(Kind.ALL_GATHER, 1, 10, coalesced=True) == [0, 22, 22, 0, 0, -2, -2, 0, 0]


def test_reductions_in_one_call():
    """The first input is there from 1 to 4, all else from 3 on, the second input until 4; no input once more."""
    assert steps(Kind.REDUCE_SCATTER, 1, 10, coalesced=True) == [0, -1, -1, 0, 0, -20, -20, 0, 0]


def test_a_wait_that_stands_before_the_last_launch_is_not_the_merged_one():
    changes = merging(index(Kind.REDUCE_SCATTER, 10, 0, early=True))[1]
    assert (3, 4, 40) in changes, "30 once more at 3, and the first input, which was gone by then"


def test_what_fits():
    """Just where the budget says; what takes less than before always fits, even where the budget is passed."""
    gathers = index(Kind.ALL_GATHER, 1, 10)
    for budget, fits in ((27, False), (28, True), (None, True)):
        headroom, changes = merging(gathers, budget)
        assert headroom.fits(changes) is fits
    headroom, changes = merging(index(Kind.ALL_GATHER, 1, 10, sizes=10**6), 28)
    assert headroom.fits(changes), "8 is over the budget, with or without"
    for budget, fits in ((55, False), (56, True)):
        headroom, changes = merging(gathers, budget)
        headroom.take(changes)
        assert headroom.fits(changes) is fits


def test_budgets():
    assert budget_bytes(None, 5) is None
    assert budget_bytes("own", 5) == 5
    assert budget_bytes(2.5, 5) == 5 * GIB // 2
    assert budget_bytes("auto", 5) == 5 + GIB, "1 GiB for small graphs"
    assert budget_bytes("auto", 40 * GIB) == 42 * GIB, "5 % for large ones"


def test_a_graph_over_the_budget_may_stay_as_it_is():
    make = IndexMaker()
    make.op(1, make.input(), size=2 * GIB)
    assert Headroom.within(make.index(), GIB).budget == 2 * GIB
    assert Headroom.within(make.index(), 3 * GIB).budget == 3 * GIB
    assert Headroom.within(make.index(), None).budget is None
