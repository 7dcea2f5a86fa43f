"""The verifier on what nobody can see: dead writes, communication that nothing needs, waits that nobody misses."""

from __future__ import annotations

import pytest
import torch

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
    proved(launched("dead"), launched("gone"))
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
        undecided(make(aten.mul.Tensor), make(aten.mul_.Tensor)).unproved
    )
    differs(make(aten.mul.Tensor), make(aten.sub_.Tensor), "value")
