"""What neither a schema nor a ``val`` says: nothing is proved that rests on it."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.graph.ops.lazy import minds_lazy
from commcc.graph.ops.undeclared import VIEWS
from commcc.verify import verify
from tests.verify_graphs import Graph, aten, c10d, differs, proved, undecided

LAZY = {aten._conj.default: torch.complex64, aten._neg_view.default: torch.float32}


def refused(before, after, *more):
    """The program is the same as itself, and not proved to be the other one. more: pairs like this one."""
    proved(before, before)
    for pair in ((before, after), (after, before), *more):
        assert verify(*pair).status != "proved"


def split_around(write_first, lazy, op, *args):
    """What may be a view is made of a view before the view's base is written, or after it."""
    g = Graph()
    x = g.input("x", 4, 4, dtype=LAZY.get(lazy, torch.float32))
    if write_first:
        g(aten.add_.Tensor, x, 1)
    made = g(op, g(lazy, x), *args)
    if not write_first:
        g(aten.add_.Tensor, x, 1)
    return g.program(g(aten.mul.Tensor, g(operator.getitem, made, 0) if args else made, 2))


SPLITS = (
    (aten.lift.default,),
    (aten.unsafe_split.Tensor, 2),
    (aten.unsafe_split_with_sizes.default, [2, 2]),
    (aten.unsafe_chunk.default, 2),
)


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("op", SPLITS, ids=lambda op: str(op[0]))
def test_what_is_worked_out_when_it_is_read_may_be_copied(lazy, op):
    refused(split_around(False, lazy, *op), split_around(True, lazy, *op))
    proved(split_around(False, aten.alias.default, *op), split_around(True, aten.alias.default, *op))


@pytest.mark.parametrize("lazy", LAZY)
def test_pytorch_says_which_views_it_copies(lazy):
    x = torch.ones(4, 4, dtype=LAZY[lazy])
    given = {"_unsafe_view": ([16],), "unsafe_split": (2,), "unsafe_split_with_sizes": ([2, 2],), "unsafe_chunk": (2,)}
    for name in ("lift", "data", "atleast_1d", *given):
        assert f"aten.{name}" in VIEWS
        packet = getattr(aten, name)
        op = getattr(packet, packet.overloads()[0])
        made = op(lazy(x), *given.get(name, ()))
        part = made if isinstance(made, torch.Tensor) else made[0]
        copied = part.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert minds_lazy(op) or not copied, name


def copied(wrong):
    """A copy whose strides are not worked out, with a val of another number of dimensions."""
    g = Graph()
    with g.mode:
        vector = torch.empty(2)
    made = g(aten.clone.default, g(aten.slice.Tensor, g.input("x", 4, 2), 1, 0, 2, 2), val=vector if wrong else None)
    return g.program(g(aten.as_strided.default, made, [2], [1], val=vector))


def test_strides_of_another_number_of_dimensions_are_not_taken():
    proved(copied(False), copied(False))
    differs(copied(False), copied(True), "value", "its val says shape")
    assert verify(copied(True), copied(False)).status != "proved"
    verify(copied(True), copied(True))


def asserted(claim, *, check=True, used="size", val=True):
    """An assertion about an element of a tensor, which is a size of something, multiplied or not used at all."""
    g = Graph()
    x = g.input("x", 4)
    counts = g.input("counts", 2, dtype=torch.int64)
    positive = g(aten.all.default, g(aten.gt.Scalar, x, 0))
    item = g(aten._local_scalar_dense.default, g(aten.select.int, counts, 0, 0))
    about = {
        "bool": lambda: g(aten.item.default, positive, val=True),
        "int": lambda: g.graph.call_function(operator.ge, (item, 0)),
        "tensor": lambda: positive,
    }[claim]()
    if check:
        op = aten._assert_async.msg if claim == "tensor" else aten._assert_scalar.default
        g.graph.create_node("call_function", op, (about, "wrong"), {}, "check")
    if not val:
        del about.meta["val"]
    made = {
        "size": lambda: g(aten.new_zeros.default, x, [g(operator.mul, item, 2)]),
        "number": lambda: g(aten.mul.Tensor, counts, item),
        "": lambda: g(aten.log.default, x),
    }[used]()
    return g.program(made)


def test_an_assertion_about_what_a_tensor_holds_stays():
    verdict = proved(asserted("int"), asserted("int", check=False))
    assert "is not checked in AFTER" in [note.text for note in verdict.notes]
    for claim, how in (
        *(("int", {"used": used}) for used in ("number", "")),
        *(("bool", {"used": used}) for used in ("size", "")),
        *(("tensor", {"val": val}) for val in (True, False)),
    ):
        refused(asserted(claim, **how), asserted(claim, check=False, **how))


def without(*nodes):
    """As a pass leaves nodes that it makes and does not annotate."""
    for node in nodes:
        node.meta.pop("val", None)


def around_a_write(g, read, write, late):
    """What reads, before what writes, or after it."""
    early = None if late else read(g)
    write(g)
    return g.program(read(g) if late else early)


def sin(node, *shape):
    return lambda g: g(aten.sin.default, node, val=torch.empty(shape, device="meta"))


def coalesced(late, *, said, in_place=False):
    """The second result is returned without a wait, where one of the operands lacks a val."""
    g = Graph()
    x = g.input("x", 4)
    a, b = g(aten.neg.default, x), g(aten.square.default, x)
    op = c10d.all_reduce_coalesced_ if in_place else c10d.all_reduce_coalesced
    launch = g(op.default, [a, b], "sum", "0")
    p, q = (g(operator.getitem, launch, at) for at in range(2))
    without(b, *(() if said else (launch,)))
    return g.program(q if late else g.wait(q), g.wait(p))


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_every_member_of_a_launch_is_waited_for(said, in_place):
    refused(coalesced(False, said=said, in_place=in_place), coalesced(True, said=said, in_place=in_place))


def written_by_a_launch(late, *, said=True):
    g = Graph()
    x = g.input("x", 4)
    a, b = g(aten.neg.default, x), g(aten.square.default, x)
    without(b)

    def write(g):
        vals = [x.meta["val"], x.meta["val"] if said else None]
        launch = g(c10d.all_reduce_coalesced_.default, [a, b], "sum", "0", val=vals)
        for at in range(2):
            g(c10d.wait_tensor.default, g(operator.getitem, launch, at, val=vals[0]), val=vals[0])

    return around_a_write(g, sin(b, 4), write, late)


def written_by_half_a_launch(late):
    return written_by_a_launch(late, said=False)


def filled_by_a_launch(late):
    """An output buffer is read before the wait, or after it."""
    g = Graph()
    x, e = g.input("x", 4), g(aten.empty.memory_format, [8])
    val = e.meta["val"]
    without(e)
    launch = g(c10d.all_gather_into_tensor_out.default, x, 2, "0", out=e, val=val)
    return around_a_write(g, sin(e, 8), lambda g: g.wait(launch), late)


def part_of_a_view(late):
    g = Graph()
    x = g.input("x", 4, 4)
    view = g(aten.atleast_2d.default, x)
    split = g(aten.unsafe_split.Tensor, view, 1, 0)
    part = g(operator.getitem, split, 0)
    without(view, split, part)
    return around_a_write(g, sin(view, 4, 4), lambda g: g(aten.neg_.default, part, val=x.meta["val"]), late)


def part_of_a_tensor(late):
    g = Graph()
    x = g.input("x", 4, 4)
    view = g(aten.atleast_2d.default, x)
    rows = g(aten.unbind.int, view, 0)
    row = g(operator.getitem, rows, 1)
    without(view, rows, row)
    return around_a_write(g, sin(x, 4, 4), lambda g: g(aten.neg_.default, row, val=torch.empty(4)), late)


def one_of_two_parts(late):
    """Of two results only the first has a val."""
    g = Graph()
    x = g.input("x", 4, 4)
    split = g(aten.split.Tensor, x, 2)
    split.meta["val"] = (split.meta["val"][0], None)
    part = g.graph.call_function(operator.getitem, (split, 1))
    without(x)
    return around_a_write(g, sin(x, 4, 4), lambda g: g(aten.neg_.default, part, val=torch.empty(2, 4)), late)


def first_of_two_writes(late, *, both=False):
    """The first of two tensors that an op writes and hands on lacks a val, or both."""
    g = Graph()
    x, y = g.input("x", 4), g.input("y", 4)
    written = g.graph.call_function(aten._foreach_add_.Scalar, ([x, y], 1))
    first = g(operator.getitem, written, 0, val=y.meta["val"])
    if both:
        written.meta["val"] = [y.meta["val"]] * 2
    without(x, *((y,) if both else ()))
    return around_a_write(g, sin(x, 4), lambda g: g(aten.neg_.default, first), late)


def both_writes(late):
    return first_of_two_writes(late, both=True)


def joined(late):
    """A tensor is put into the storage of an input without a val."""
    g = Graph()
    x, y = g.input("x", 4), g.input("y", 4)
    own = g(aten.add.Tensor, x, 0)
    without(y, g(aten.set_.source_Tensor, own, y))
    return around_a_write(g, sin(y, 4), lambda g: g(aten.add_.Tensor, own, 1), late)


@pytest.mark.parametrize(
    "make",
    [
        *(
            written_by_a_launch,
            written_by_half_a_launch,
            filled_by_a_launch,
            part_of_a_view,
            part_of_a_tensor,
            one_of_two_parts,
        ),
        *(first_of_two_writes, both_writes, joined),
    ],
)
def test_a_write_that_reaches_what_has_no_val(make):
    refused(make(False), make(True))


def swapped(kept):
    g = Graph()
    x, y = g.input("x", 4), g.input("y", 4)
    if kept:
        g.graph.call_function(aten._foreach_copy_.default, ([x, y], [y, x]))
    without(y)
    return g.program(g(aten.neg.default, g.input("z", 4)))


def test_copies_are_paired_by_place():
    refused(swapped(True), swapped(False))


def gathered_in(group):
    """Two gathers into one buffer; the first sends what has no val."""
    g = Graph()
    x = g.input("x", 4, 4)
    y, buffer = g(aten.maximum.default, x, x), g(aten.empty.memory_format, [16, 4])
    halves = [g(aten.slice.Tensor, buffer, 0, at, at + 8) for at in (0, 8)]
    first = g(c10d.all_gather_into_tensor_out.default, y, 2, group, out=halves[0])
    other = g(c10d.all_gather_into_tensor_out.default, x, 2, "0", out=halves[1])
    without(y)
    g.wait(first)
    return g.program(g.wait(other))


def test_a_launch_of_what_has_no_val_is_held_against_that_of_before():
    refused(gathered_in("0"), gathered_in("other"))
    differs(gathered_in("0"), gathered_in("other"), "value", "argument 'group_name' is other")


def test_what_is_new_and_has_no_cause_is_not_proved(monkeypatch):
    monkeypatch.setattr("commcc.verify.compare._has_operands", lambda pair, step: False)
    monkeypatch.setattr("commcc.verify.compare.compare_ops", lambda pair: None)
    undecided(gathered_in("0"), gathered_in("other"))


def test_a_list_without_shapes_is_not_sent_unseen():
    def make(late):
        g = Graph()
        listed = g.graph.placeholder("listed")
        launch = g.graph.call_function(c10d.all_reduce_coalesced.default, (listed, "sum", "0"))
        with g.mode:
            part = g(operator.getitem, launch, 0, val=torch.empty(4))
        return g.program(part if late else g.wait(part))

    assert verify(make(False), make(True)).status != "proved"
