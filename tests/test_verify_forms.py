"""The verifier on the less usual forms of launches, and on layouts at the edge of what it decides."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.graph.program import ProcessGroup
from commcc.verify import verify
from commcc.verify.contents import Over, counts, gather, scatter
from commcc.verify.layout import MAX_DEPTH, MAX_ITEMS, intern, items_of
from commcc.verify.sizes import Undecidable
from commcc.verify.terms import Leaf, Loop, Terms
from tests.verify_graphs import WORLD, Graph, aten, c10d, differs, proved, rules, texts, undecided

GROUP = Over(("str", "0"), "sum")


# Output buffers


def into_buffer(form, *, shape=(16, 3), dtype=torch.float32):
    """A gather that allocates its result, or writes it into a buffer."""
    g = Graph()
    x = g.input("x", 4, 3)
    if form == "functional":
        full = g.gather(x)
    else:
        out = g(aten.empty.memory_format, list(shape), dtype=dtype, device="cpu")
        launch = g(c10d.all_gather_into_tensor_out.default, x, WORLD, "0", out=out, val=out.meta["val"])
        full = g.wait(launch)
    return g.program(g(aten.sum.default, full))


def test_a_buffer_makes_no_difference():
    proved(into_buffer("functional"), into_buffer("out"))
    proved(into_buffer("out"), into_buffer("functional"))


def test_a_buffer_gives_its_shape():
    verdict = differs(into_buffer("functional"), into_buffer("out", shape=(4, 12)), "value")
    assert "shape" in texts(verdict)
    proved(into_buffer("out", shape=(4, 12)), into_buffer("out", shape=(4, 12)))


@pytest.mark.parametrize(("shape", "dtype"), [((16, 4), torch.float32), ((16, 3), torch.bfloat16)])
def test_a_buffer_that_does_not_fit(shape, dtype):
    assert verify(into_buffer("functional"), into_buffer("out", shape=shape, dtype=dtype)).status != "proved"


def test_in_place_and_functional_reductions_are_the_same():
    def make(op, copy):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4, 3))
        return g.program(g(aten.sum.default, g.wait(g(op, g(aten.clone.default, x) if copy else x, "sum", "0"))))

    proved(make(c10d.all_reduce.default, False), make(c10d.all_reduce_.default, True))


def test_a_reduction_of_a_transposed_tensor():
    def make(copy):
        g = Graph()
        x = g(aten.t.default, g(aten.sin.default, g.input("x", 4, 3)))
        if copy:
            x = g(aten.clone.default, x, memory_format=torch.contiguous_format)
        return g.program(g.reduce(x))

    proved(make(False), make(False))
    proved(make(True), make(False))


def test_the_val_of_a_launch_is_checked():
    def make(size):
        g = Graph()
        x = g.input("x", 4, 3)
        with g.mode:
            val = torch.empty(size, 3)
        launch = g(c10d.all_gather_into_tensor.default, x, WORLD, "0", val=val, name="launch")
        return g.program(g(aten.sum.default, g(c10d.wait_tensor.default, launch, val=val)))

    proved(make(16), make(16))
    verdict = differs(make(16), make(12), "value", "launch: its val says shape [12, 3], it is [16, 3]")
    assert rules(verdict) == {"value"}


def test_a_wait_for_nothing_does_nothing():
    def make(which):
        g = Graph()
        made = [g(op, g.input(f"x{i}", 4)) for i, op in enumerate((aten.sin.default, aten.cos.default))]
        made[which] = g.wait(made[which])
        return g.program(*made)

    proved(make(0), make(0))
    verdict = proved(make(0), make(1))
    assert verdict.notes == ()


def test_a_write_in_flight_excuses_no_other():
    def make(write):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4))
        launch = g(c10d.all_reduce.default, x, "sum", "0")
        g(write, x, 2)
        return g.program(g.wait(launch))

    proved(make(aten.add_.Scalar), make(aten.add_.Scalar))
    differs(make(aten.add_.Scalar), make(aten.mul_.Scalar), "mutation", "still uses")


def test_sizes_of_a_result_in_flight_may_be_asked():
    def make(early):
        g = Graph()
        launch = g(c10d.all_reduce.default, g.input("x", 4), "sum", "0")
        size = g(aten.sym_size.int, launch, 0) if early else None
        w = g.wait(launch)
        return g.program(w, size if size is not None else g(aten.sym_size.int, w, 0))

    proved(make(False), make(True))


def test_what_is_asserted_of_the_sizes_of_a_result_in_flight():
    def make(early, dtype=torch.float32):
        g = Graph()
        launch = g(c10d.all_reduce.default, g.input("x", 4), "sum", "0")
        asserted = launch if early else g.wait(launch)
        g(aten._assert_tensor_metadata.default, asserted, None, None, dtype)
        return g.program(g.wait(launch) if early else asserted)

    proved(make(True), make(True))
    proved(make(False), make(True))
    differs(make(True), make(True, None), "value", "_assert_tensor_metadata")


@pytest.mark.parametrize("asked", ["size", "numel", "assertion"])
@pytest.mark.parametrize("op", [aten.resize_.default, aten.t_.default, aten.squeeze_.default])
def test_sizes_are_those_of_their_place(op, asked):
    def make(late):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4, 1))
        with g.mode:
            changed = torch.empty(2)
        out = []
        for change in (True, False) if late else (False, True):
            if change:
                g(op, x, *([[2]] if op is aten.resize_.default else []), val=changed)
            elif asked == "size":
                out.append(g(aten.sym_size.int, x, 0, val=2 if late else 4))
            elif asked == "numel":
                out.append(g(aten.sym_numel.default, x, val=2 if late else 4))
            else:
                g(aten._assert_tensor_metadata.default, x, [4, 1], val=())
        return g.program(x, *out)

    proved(make(True), make(True))
    assert verify(make(False), make(True)).status != "proved"


def test_a_coalesced_launch_with_another_list():
    def make(names):
        g = Graph()
        xs = {name: g.input(name, 4) for name in "ab"}
        launch = g(c10d.all_reduce_coalesced.default, [xs[n] for n in names], "sum", "0")
        a, b = (g.wait(g(operator.getitem, launch, i)) for i in range(2))
        return g.program(g(aten.sub.Tensor, a, b))

    proved(make("ab"), make("ab"))
    differs(make("ab"), make("ba"), "value", "sub")


@pytest.mark.parametrize("op", ["gather", "scatter", "reduce"])
def test_launches_on_scalars_and_uneven_shapes(op):
    def make():
        g = Graph()
        with g.mode:
            val = torch.empty(1)
        x = g.input("x") if op != "scatter" else g.input("x", 2, 6)
        launch = {
            "gather": (c10d.all_gather_into_tensor.default, x, WORLD, "0"),
            "scatter": (c10d.reduce_scatter_tensor.default, x, "sum", WORLD, "0"),
            "reduce": (c10d.all_reduce.default, x, "sum", "0"),
        }[op]
        return g.program(g(c10d.wait_tensor.default, g(*launch, val=val), val=val))

    proved(make(), make())


# Layouts that are not decided, or nearly not


def interleaved(form):
    """A reduce-scatter whose rows come from different tensors, alone or next to another one."""
    g = Graph()
    rows = [g.input(f"y{i}", 1, 6) for i in range(WORLD)]
    z = g.input("z", WORLD, 4)
    joined = g(aten.cat.default, rows)
    if form == "single":
        return g.program(g.scatter(joined), g.scatter(z))
    return g.program(*g.merged_scatter([joined, z]))


def test_rows_of_different_tensors_merge():
    proved(interleaved("single"), interleaved("merged"))


def test_rows_with_strides_of_their_own_are_not_decided():
    def make(swapped):
        g = Graph()
        halves = [g.parts(g.input(f"y{i}", 3, 4), [2, 2], 1)[i % 2] for i in range(WORLD)]
        joined = g(aten.cat.default, halves[::-1] if swapped else halves)
        return g.program(g.scatter(joined))

    proved(make(False), make(False))
    verdict = verify(make(False), make(True))
    assert verdict.status == "unproved", texts(verdict)
    assert "laid out differently" in texts(verdict)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (aten.split_with_sizes.default, ([3, 4],)),
        (aten.split_with_sizes.default, ([3, 6],)),
        (aten.split_with_sizes.default, ([9, -1],)),
        (aten.narrow.default, (0, 6, 3)),
        (aten.narrow.default, (0, 6, -3)),
        (aten.select.int, (0, 8)),
        (aten.view.default, ([3, 3],)),
        (aten.view.default, ([3, -1],)),
        (aten.squeeze.dim, (1,)),
        (aten.unbind.int, (3,)),
    ],
)
def test_calls_that_cannot_work_stay_unexplained(op, arguments):
    """A damaged graph may hold anything; the result is no proof and no crash."""

    def make(broken):
        g = Graph()
        x = g.input("x", 8)
        with g.mode:
            val = torch.empty(3)
        vals = (val, val) if op in (aten.split_with_sizes.default, aten.unbind.int) else val
        part = g(op, x, *arguments, val=vals) if broken else g(aten.slice.Tensor, x, 0, 0, 3)
        if broken and isinstance(vals, tuple):
            part = g(operator.getitem, part, 0)
        return g.program(g(aten.sin.default, part))

    assert verify(make(True), make(True)).status == "proved"
    differs(make(False), make(True), "value", "cannot run")


def test_rows_that_were_cut_apart_join_again():
    """Columns of a tensor, cut into blocks of rows and joined: one loop over rows again."""

    def make(cut):
        g = Graph()
        columns = g.parts(g(aten.sin.default, g.input("x", 6, 5)), [2, 3], 1)[1]
        if cut:
            columns = g(aten.cat.default, g.parts(columns, [1, 2, 3], 0))
        return g.program(g(aten.cos.default, g(aten.clone.default, columns, memory_format=torch.contiguous_format)))

    proved(make(False), make(True))


def test_limits_of_layouts():
    table = Terms()
    x = table.source(("input", "x"), 1 << 20, torch.float32)
    scattered = [Leaf(x, 2 * i, 1, ()) for i in range(MAX_ITEMS + 1)]
    with pytest.raises(Undecidable, match="too many pieces"):
        intern(table, scattered)
    item: Leaf | Loop = Leaf(x, 0, 1, tuple(3**i for i in range(MAX_DEPTH + 1, 0, -1)))
    for depth in range(MAX_DEPTH + 1):
        item = Loop(2, (item,), 2**depth)
    with pytest.raises(Undecidable, match="nested loops"):
        intern(table, [item])


def test_empty_tensors():
    table = Terms()
    x = table.source(("input", "x"), 0, torch.float32)
    assert gather(table, intern(table, items_of(table, x)), 4, GROUP) == intern(table, [])
    assert scatter(table, intern(table, []), 4, GROUP) == intern(table, [])


def test_work_is_counted_in_elements():
    table = Terms()
    x = table.source(("input", "x"), 6, torch.float32)
    y = table.source(("input", "y"), 4, torch.float32)
    both = intern(table, [Leaf(x, 0, 6, ()), Leaf(y, 1, 2, ())])
    full = gather(table, both, 4, GROUP)
    assert counts(table, full) == {gather(table, x, 4, GROUP): 24, gather(table, y, 4, GROUP): 8}
    assert counts(table, both) == {}


def test_group_of_one():
    table = Terms()
    x = table.source(("input", "x"), 6, torch.float32)
    y = table.source(("input", "y"), 4, torch.float32)
    both = intern(table, [Leaf(x, 0, 6, ()), Leaf(y, 0, 4, ())])
    for op in (gather, scatter):
        alone = [op(table, source, 1, GROUP) for source in (x, y)]
        parts = [part for content in alone for part in items_of(table, content)]
        assert intern(table, parts) == op(table, both, 1, GROUP)


# A group of one


def sent(how=None, group="alone", size=None):
    """A computed tensor, and what a group of one makes of it, if it is given to one."""
    g = Graph()
    x = g(aten.sin.default, g.input("x", 4, 6))
    given = g(aten.clone.default, x) if how is None else how(g, x, group)
    declared = {} if size is None else {group: ProcessGroup(group, size)}
    return g.program(x, g(aten.mul.Tensor, given, 2), groups=declared)


ALONE = [
    lambda g, x, group: g.gather(x, group, 1),
    lambda g, x, group: g.scatter(x, "avg", group, 1),
    lambda g, x, group: g.merged_gather([x, x], group, 1)[1],
]


@pytest.mark.parametrize("how", [*ALONE, lambda g, x, group: g.reduce(x, "max", group)])
def test_a_group_of_one_gives_what_it_gets(how):
    proved(sent(how, size=1), sent(size=1))
    proved(sent(size=1), sent(how, size=1))
    assert verify(sent(how, size=2), sent(size=2)).status == "different"


def test_whether_a_group_is_of_one_rank_must_be_known():
    how = ALONE[0]
    proved(sent(how), sent())  # BEFORE would not run otherwise
    assert "takes group 'alone' to be of one rank" in str(undecided(sent(), sent(how)).unproved[0])
    assert verify(sent(how, "a"), sent(how, "b")).status == "unproved"
    # Nothing is known of the group of a reduction but what is declared, and some reductions are no reductions.
    assert verify(sent(), sent(lambda g, x, group: g.reduce(x, "sum", group))).status == "different"
    scaled = lambda g, x, group: g.scatter(x, "premul_sum", group, 1)  # noqa: E731
    assert verify(sent(), sent(scaled, size=1)).status == "different"


def test_a_size_that_only_after_declares_makes_no_copy_of_what_before_sends():
    def sender(g, x, group):
        return g(c10d.wait_tensor.default, g(c10d.broadcast.default, x, 0, group))

    for how in (sender, lambda g, x, group: g.reduce(x, "sum", group)):
        assert verify(sent(how), sent(size=1)).status == "different"
        proved(sent(how), sent(how, size=1))


def test_what_no_group_of_one_runs_is_no_copy():
    """There is no fourth rank that could send, and no larger one of two complex numbers."""

    def fourth(g, x, group):
        return g(c10d.wait_tensor.default, g(c10d.broadcast.default, x, 3, group))

    def larger(g, x, group):
        imaginary = g(aten._to_copy.default, x, dtype=torch.complex64)
        return imaginary if group == "nobody" else g.reduce(imaginary, "max", group)

    assert verify(sent(), sent(fourth, size=1)).status == "different"
    assert verify(sent(larger, "nobody"), sent(larger, size=1)).status == "different"


def test_what_a_group_of_one_sends_is_in_flight_all_the_same():
    def early(wait):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4, 6))
        launch = g(c10d.all_gather_into_tensor.default, x, 1, "alone")
        return g.program(g(aten.mul.Tensor, g.wait(launch) if wait else launch, 2))

    differs(early(True), early(False), "wait")
