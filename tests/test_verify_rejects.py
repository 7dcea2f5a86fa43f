"""The verifier on merged collectives and waits done wrong."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.verify import verify
from tests.verify_graphs import (
    WORLD,
    Graph,
    aten,
    c10d,
    differs,
    gathers,
    gradients,
    proved,
    reductions,
    undecided,
)


def damaged(how):
    """Merged gathers of which one thing is wrong."""

    def merge(g, xs):
        sizes = [x.meta["val"].numel() for x in xs]
        sent = xs if how != "dropped member" else [xs[0], xs[1], xs[0], xs[3]]
        flat = g(aten.cat.default, [g.flat(x) for x in sent])
        if how == "cast":
            flat = g(aten._to_copy.default, flat, dtype=torch.float16)
        group = "1" if how == "group" else "0"
        waited = g.gather(flat, group)
        rows = g(aten.view.default, waited, [WORLD, sum(sizes)])
        if how == "shifted":
            sizes = [sizes[0] - 1, sizes[1], sizes[2] + 1, sizes[3]]
        parts = g.parts(rows, sizes, 1)
        if how == "swapped":
            parts[0], parts[2] = parts[2], parts[0]
        if how == "repeated":
            parts[2] = parts[0]
        if how == "shifted":
            parts[0] = g(aten.constant_pad_nd.default, parts[0], [0, 1])
            parts[2] = g(aten.slice.Tensor, parts[2], 1, 1)
        shapes = [(x.meta["val"].shape[0] * WORLD, *x.meta["val"].shape[1:]) for x in xs]
        if how == "flat":
            parts = g.parts(waited, [n * WORLD for n in sizes], 0)
        if how == "cast":
            parts = [g(aten._to_copy.default, p, dtype=torch.float32) for p in parts]
        return [g.shaped(p, shape) for p, shape in zip(parts, shapes, strict=True)]

    return gathers(merge)


def test_the_damaged_form_is_right_when_nothing_is_damaged():
    proved(gathers(), damaged("nothing"))


@pytest.mark.parametrize(
    ("how", "rule", "words"),
    [
        ("swapped", "value", ("use0", "use2", "all_gather of 'p2'", "all_gather of 'p0'", "part 2 of")),
        ("repeated", "value", ("use2", "part 0 of")),
        ("dropped member", "value", ("use2",)),
        ("dropped member", "dropped", ("lacks all_gather of 'p2'",)),
        ("shifted", "value", ("constant_pad_nd", "use1", "pieces")),
        ("flat", "value", ("use0", "use1")),
        ("group", "collective", ("group '1', in BEFORE '0'", "and 3 more")),
        ("cast", "value", ("float16",)),
    ],
)
def test_wrong_merges_are_rejected(how, rule, words):
    differs(gathers(), damaged(how), rule, *words)


def test_a_gather_over_more_ranks_is_rejected():
    def make(size):
        g = Graph()
        x = g.input("x", 4, 3)
        full = g.gather(x, size=size)
        return g.program(g(aten.sum.default, full))

    differs(make(4), make(8), "collective", "group_size 8, in BEFORE 4")


@pytest.mark.parametrize(("op", "group", "word"), [("avg", "0", "reduction avg"), ("sum", "1", "group '1'")])
def test_wrong_settings_of_a_reduction(op, group, word):
    differs(gradients(), gradients(lambda g, xs: g.merged_scatter(xs, op, group)), "collective", word)
    differs(reductions(), reductions(lambda g, xs: g.merged_reduce(xs, op, group)), "collective", word)


def test_a_reduction_in_another_dtype():
    def narrow(g, xs):
        made = g.merged_scatter([g(aten._to_copy.default, x, dtype=torch.bfloat16) for x in xs])
        return [g(aten._to_copy.default, x, dtype=torch.float32) for x in made]

    differs(gradients(), gradients(narrow), "collective", "dtype bfloat16, in BEFORE float32")


def test_concatenating_rows_the_wrong_way_is_rejected():
    def wrong(g, xs):
        waited = g.scatter(g.flat(g(aten.cat.default, xs)))
        return [g(aten.clone.default, g.shaped(p, (2, 3))) for p in g.parts(waited, [6, 6, 6], 0)]

    assert verify(gradients(), gradients(wrong)).status == "different"


def test_swapped_results_of_a_merged_reduce_scatter():
    def wrong(g, xs):
        a, b, c = g.merged_scatter(xs)
        return [b, a, c]

    differs(gradients(), gradients(wrong), "output", "output 0", "output 1")


def test_a_dropped_and_a_repeated_member_of_a_reduction():
    differs(gradients(), gradients(lambda g, xs: [*g.merged_scatter(xs[:2]), g.scatter(xs[0])]), "dropped")


def test_a_launch_read_without_wait():
    def make(waited):
        g = Graph()
        launch = g(c10d.all_gather_into_tensor.default, g.input("x", 4, 3), WORLD, "0", name="launch")
        used = g.wait(launch) if waited else launch
        return g.program(g(aten.sin.default, g(aten.view.default, used, [48])))

    verdict = differs(make(True), make(False), "wait", "before the wait of launch 'launch'", "never waited for")
    assert len(verdict.findings) == 2


def test_a_view_of_a_launch_read_before_the_wait():
    def make(early):
        g = Graph()
        launch = g(c10d.all_reduce.default, g.input("x", 4, 3), "sum", "0")
        if early:
            view = g(aten.view.default, launch, [12])
            y = g(aten.sin.default, view)
            w = g.wait(launch)
        else:
            w = g.wait(launch)
            y = g(aten.sin.default, g(aten.view.default, w, [12]))
        return g.program(y, w)

    differs(make(False), make(True), "wait")


def test_a_wait_that_moved_behind_its_use():
    before, after = gathers(), gathers()
    wait = next(n for n in after.graph.nodes if n.target is c10d.wait_tensor.default)
    next(n for n in after.graph.nodes if n.name == "use0").append(wait)
    differs(before, after, "order", "use0: uses 'wait_tensor_default' before it is computed")


def test_a_launch_that_is_never_waited_for():
    def make(waited):
        g = Graph()
        x = g.input("x", 4, 3)
        launch = g(c10d.all_reduce.default, x, "sum", "0", name="launch")
        if waited:
            g.wait(launch)
        return g.program(g(aten.sin.default, x))

    (gap,) = undecided(make(True), make(False)).unproved  # nothing needs it either
    assert str(gap).startswith("wait: launch: its result is never waited for")
    proved(make(False), make(False))


def test_waiting_twice_and_waiting_for_nothing():
    def make(extra):
        g = Graph()
        x = g.input("x", 4, 3)
        w = g.reduce(x)
        if extra == "again":
            w = g.wait(w)
        w = g.wait(g(aten.sin.default, w)) if extra == "idle" else g(aten.sin.default, w)
        return g.program(w)

    for extra in ("again", "idle"):
        verdict = proved(make(""), make(extra))
        assert "which does nothing" in str(verdict.notes[0])
        assert proved(make(extra), make(extra)).notes == ()


def test_only_some_of_a_coalesced_launch_are_waited_for():
    def make(waits):
        g = Graph()
        launch = g(c10d.all_reduce_coalesced.default, [g.input("a", 4), g.input("b", 4)], "sum", "0")
        parts = [g(operator.getitem, launch, i) for i in range(2)]
        return g.program(*[g.wait(p) if i < waits else p for i, p in enumerate(parts)])

    differs(make(2), make(1), "wait")


@pytest.mark.parametrize("end", [2**63, 2**63 + 1, 2**200])
def test_numbers_that_no_op_takes_are_not_proved(end):
    """An end of a slice behind the last element means all, but not one that PyTorch refuses."""

    def make(given):
        g = Graph()
        part = g(aten.slice.Tensor, g.input("x", 4, 3), 0, 1, 4)
        program = g.program(part)
        part.update_arg(3, given)
        return program

    proved(make(4), make(2**63 - 1))
    (gap,) = undecided(make(4), make(end)).unproved
    assert f"{end} has more than 64 bits" in str(gap)


def test_scalars_may_be_larger():
    def make():
        g = Graph()
        full = g(aten.full.default, [2], 2**63 + 5, dtype=torch.uint64)
        return g.program(full, g.input("x", 2))

    proved(make(), make())
