"""The verifier on what nobody can see: dead writes, communication that nothing needs, waits that nobody misses."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.verify import verify
from tests.test_verify_symbols import backed
from tests.verify_graphs import WORLD, Graph, aten, c10d, differs, proved, undecided


def written(read: str = "", write: bool = True):
    """A copy of an input that is written to, and read or not."""
    g = Graph()
    x = g.input("x", 4, 3)
    copy = g(aten.clone.default, x, name="copy")
    view = g(aten.slice.Tensor, copy, 0, 0, 2, name="view")
    if write:
        g(aten.relu_.default, view, name="write")
    results = {"view": view, "copy": copy, "dead": g(aten.sin.default, copy) if read == "dead" else None}
    return g.program(g(aten.cos.default, x), *([results[read]] if read in ("view", "copy") else []))


@pytest.mark.parametrize("read", ["", "dead"])
def test_a_write_that_nobody_reads_later_is_dead_code(read):
    assert "relu_" in str(proved(written(read), written(read, write=False)).notes)
    (gap,) = undecided(written(read, write=False), written(read)).unproved  # it may not run
    assert (gap.node, "dead code" in gap.text) == ("write", True)


@pytest.mark.parametrize("read", ["view", "copy"])
def test_a_write_that_is_read_through_another_view_is_not(read):
    differs(written(read), written(read, write=False), "dropped", "relu_")
    differs(written(read, write=False), written(read), "value", "relu_")


def test_a_write_to_an_input_is_seen_though_nobody_reads_it():
    def make(write):
        g = Graph()
        x = g.input("x", 4, 3)
        if write:
            g(aten.relu_.default, g(aten.slice.Tensor, x, 0, 0, 2))
        return g.program(g(aten.sin.default, g.input("y", 4)))

    differs(make(True), make(False), "mutation", "'x' is left with other contents")
    differs(make(False), make(True), "mutation", "'x' is left with other contents")


def launched(how: str):
    g = Graph()
    x = g.input("x", 4, 3)
    out = g(aten.sin.default, x)
    if how != "gone":
        launch = g(c10d.all_gather_into_tensor.default, x, WORLD, "1" if how == "group" else "0", name="launch")
        if how == "early":
            g(aten.cos.default, launch, name="reader")
        if how != "unwaited":
            g(c10d.wait_tensor.default, launch)
    return g.program(out)


def test_communication_that_nothing_needs():
    assert "other ranks may need it" in str(undecided(launched("dead"), launched("gone")).unproved)
    assert "nothing here needs" in str(undecided(launched("gone"), launched("dead")).unproved)
    assert "nothing here needs" in str(undecided(launched("dead"), launched("group")).unproved)
    assert "never waited for" in str(undecided(launched("dead"), launched("unwaited")).unproved)
    assert "before the wait" in str(undecided(launched("dead"), launched("early")).unproved)


@pytest.mark.parametrize("how", ["out", "in place"])
def test_a_launch_into_memory_that_is_read_must_be_waited_for(how):
    def make(waited):
        g = Graph()
        x = g.input("x", 4, 3)
        if how == "out":
            whole = g(aten.empty.memory_format, [32, 3], dtype=torch.float32, device="cpu")
            part = g(aten.slice.Tensor, whole, 0, 0, 16)
            launch = g(c10d.all_gather_into_tensor_out.default, x, WORLD, "0", out=part)
        else:
            whole = g(aten.clone.default, x)
            launch = g(c10d.all_reduce_.default, g(aten.slice.Tensor, whole, 0, 0, 2), "sum", "0")
        if waited:
            g(c10d.wait_tensor.default, launch)
        return g.program(whole)

    proved(make(True), make(True))
    differs(make(True), make(False), "wait", "never waited for")


def test_what_an_undecided_operand_is_sent_to_is_not_called_gone():
    """Elements in an order that cannot be written down, on the way to a launch."""

    def make(turned):
        g = Graph()
        x, y = g.input("x", 2, 2, 4), g.input("y", 2, 2, 4)
        z = g(aten.reshape.default, g(aten.cat.default, [x, y], 2), [2, 2, 8])
        if turned:
            z = g(aten.permute.default, z, [2, 1, 0])
            z = g(aten.permute.default, g(aten.clone.default, z, memory_format=torch.contiguous_format), [2, 1, 0])
        return g.program(g.wait(g(c10d.reduce_scatter_tensor.default, z, "sum", 2, "0")))

    undecided(make(False), make(True))


def test_an_op_in_place_of_its_twin_is_not_decided():
    def make(target):
        g = Graph()
        x = g(aten.cos.default, g.input("x", 4))
        return g.program(g(target, x, 2))

    verdict = undecided(make(aten.mul.Tensor), make(aten.mul_.Tensor))
    assert "whether aten.mul_.Tensor and aten.mul.Tensor" in str(verdict.unproved)
    differs(make(aten.mul.Tensor), make(aten.sub_.Tensor), "value")


def test_one_result_of_a_launch_may_be_forgotten_where_nobody_needs_it():
    def make(forgotten, returned):
        g = Graph()
        xs = [g.input("x", 4, 3), g.input("y", 4, 3)]
        vals = [x.meta["val"] for x in xs]
        launch = g(c10d.all_reduce_coalesced.default, xs, "sum", "0", val=vals)
        parts = [g(operator.getitem, launch, i, val=vals[i]) for i in range(2)]
        waits = [part if i == forgotten else g.wait(part) for i, part in enumerate(parts)]
        return g.program(waits[returned])

    assert "never waited for" in str(undecided(make(None, 0), make(1, 0)).unproved)
    differs(make(None, 1), make(1, 1), "wait", "before the wait", "never waited for")


def test_a_view_that_is_made_before_a_write_or_after_it_reads_the_same():
    def make(first, size=4):
        g = Graph()
        x = g.input("x", 4, 3)
        half = g(aten.slice.Tensor, x, 0, 2, 4)
        turned = g(aten.permute.default, half, [1, 0]) if first else None
        g(aten.relu_.default, g(aten.slice.Tensor, x, 0, 0, 2))
        g(aten.relu_.default, g(aten.slice.Tensor, x, 0, 1, size))
        turned = turned or g(aten.permute.default, half, [1, 0])
        return g.program(g(aten.sin.default, turned))

    proved(make(False), make(True))
    proved(make(True), make(False))
    differs(make(False), make(True, 2), "mutation")


def test_a_view_of_what_is_on_its_way_reads_nothing():
    """Neither of a result that is on its way, nor of another part of a buffer that is being filled."""

    def make(early, read=aten.alias.default):
        g = Graph()
        x = g.input("x", 4, 3)
        launch = g(c10d.all_reduce.default, x, "sum", "0", name="launch")
        view = g(read, launch) if early else None
        done = g.wait(launch)
        view = view or g(read, done)
        return g.program(g(aten.sin.default, view))

    proved(make(False), make(True))
    differs(make(False, aten.cos.default), make(True, aten.cos.default), "wait", "before the wait of launch 'launch'")


def test_what_is_read_in_between_does_not_change_what_a_possible_view_is_taken_to_be():
    def make(dead):
        g = Graph()
        x = g.input("x", 4, 3)
        maybe = g(aten.type_as.default, x, x)
        g(aten.relu_.default, x)
        if dead:
            g(aten.sin.default, x)
        return g.program(g(aten.cos.default, maybe))

    proved(make(True), make(False))


def test_a_write_into_what_a_launch_sends_is_not_decided_where_nobody_needs_what_it_brings():
    def make(late, needed):
        g = Graph()
        x = g(aten.cos.default, g.input("x", 4, 3))
        launch = g(c10d.all_reduce.default, x, "sum", "0", name="launch")
        done = None if late else g.wait(launch)
        g(aten.relu_.default, x)
        return g.program(x, *([done or g.wait(launch)] if needed else [done or g.wait(launch)][:0]))

    assert "still uses" in str(undecided(make(False, False), make(True, False)).unproved)
    differs(make(False, True), make(True, True), "mutation", "still uses")


def test_another_part_of_an_input_that_was_not_decided():
    def make(sliced):
        g = Graph()
        size = backed(g)
        x = g.input("x", size, 4)
        return g.program(g(aten.slice.Tensor, x, 0, 0, 2147483648) if sliced else x)

    undecided(make(True), make(False))


def test_a_dead_view_may_not_run():
    def make(rows):
        g = Graph()
        x = g.input("x", 2, 2)
        val = g(aten.as_strided.default, x, [2, 2], [2, 1]).meta["val"]
        if rows:
            g(aten.as_strided.default, x, [rows, 2], [2, 1], val=val)
        return g.program(g(aten.sin.default, x))

    proved(make(0), make(2))
    assert "dead code" in str(undecided(make(0), make(3)).unproved)


def test_a_wait_that_may_be_for_another_part_excuses_no_read():
    """Two launches into parts of one buffer whose sizes are symbols: whether they overlap is not decided."""

    def make(early):
        g = Graph()
        n = backed(g)
        x, y = g.input("x", n, 4), g.input("y", n, 4)
        whole = g(aten.empty.memory_format, [4 * n, 4], dtype=torch.float32, device="cpu")
        parts = [g(aten.slice.Tensor, whole, 0, 0, 2 * n), g(aten.slice.Tensor, whole, 0, 2 * n, 4 * n)]
        sent = [
            g(c10d.all_gather_into_tensor_out.default, each, 2, "0", out=part)
            for each, part in zip((x, y), parts, strict=True)
        ]
        g.wait(sent[0])
        done = sent[1] if early else g.wait(sent[1])
        read = g(aten.sin.default, done)
        if early:
            g.wait(sent[1])
        return g.program(read)

    assert verify(make(False), make(False)).status == "proved"
    assert verify(make(False), make(True)).status != "proved"


def test_a_copy_keeps_the_layout_of_what_it_copies_whatever_its_val_says():
    def make(turned):
        g = Graph()
        x = g.input("x", 2, 2, 4)
        plain = g(aten._to_copy.default, x, dtype=torch.bfloat16)
        if not turned:
            return g.program(plain)
        again = g(aten.clone.default, g(aten.permute.default, x, [2, 1, 0]), memory_format=torch.contiguous_format)
        back = g(aten.permute.default, again, [2, 1, 0])
        return g.program(g(aten._to_copy.default, back, dtype=torch.bfloat16, val=plain.meta["val"]))

    assert verify(make(False), make(True)).status == "different"
