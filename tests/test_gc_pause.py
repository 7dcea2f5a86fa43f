"""The collector is off in a block, and what was made in it is not looked through at once."""

from __future__ import annotations

import gc
import weakref

import pytest

from commcc.base import gc_pause
from commcc.base.gc_pause import no_collection


class Loop:
    """Garbage once nobody has it: it holds itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("stays", [False, True])
def test_on_again_after_the_block_if_it_was_on(stays):
    with no_collection(stays=stays):
        assert not gc.isenabled()
        with no_collection(stays=stays):
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_stays_is_old_afterwards_and_goes_with_a_full_collection():
    gc.collect()
    with no_collection(stays=True):
        held = weakref.ref(Loop())
    gc.collect(1)
    assert held() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert held() is None


@pytest.fixture
def nothing_unseen(monkeypatch):
    monkeypatch.setattr(gc_pause, "_unseen", 0)
    gc.collect()


def _seen_again(count: int, loops: int = 1) -> list[bool]:
    """For each of some blocks that make so many objects, whether its garbage is gone once Python looked for it."""
    gone = []
    for _ in range(loops):
        with no_collection():
            held = weakref.ref(Loop())
            made = [[] for _ in range(count)]
        gc.collect(1)
        gone.append(held() is None)
        del made
    return gone


@pytest.mark.usefixtures("nothing_unseen")
def test_much_is_not_looked_through_and_little_as_ever():
    assert _seen_again(20) == [True]
    assert _seen_again(20_000) == [False]


@pytest.mark.usefixtures("nothing_unseen")
def test_garbage_of_many_blocks_is_collected(monkeypatch):
    monkeypatch.setattr(gc_pause, "_MOST", 50_000)
    with no_collection():
        held = weakref.ref(Loop())
        made = [[] for _ in range(20_000)]
    assert _seen_again(20_000) == [False]
    assert held() is not None and made
    assert _seen_again(20_000, 2) == [True, False]
    assert held() is None


@pytest.mark.usefixtures("nothing_unseen")
def test_nobody_looks_where_the_collector_was_off():
    gc.disable()
    try:
        assert _seen_again(20_000) == [True]
    finally:
        gc.enable()


def test_what_others_have_frozen_stays_frozen():
    gc.collect()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with no_collection(stays=True):
            held = weakref.ref(Loop())
        assert gc.get_freeze_count() >= frozen - 100
        gc.collect(1)
        assert held() is None
    finally:
        gc.unfreeze()
