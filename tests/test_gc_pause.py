"""The collector is off in a block, and what was made in it is not looked through at once."""

from __future__ import annotations

import gc
import weakref

import pytest

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
