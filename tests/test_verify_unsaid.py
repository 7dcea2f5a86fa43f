"""What neither a schema nor a ``val`` says: nothing is proved that rests on it."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.graph.ops.lazy import minds_lazy
from commcc.graph.ops.undeclared import VIEWS
from commcc.verify import verify
from tests.verify_graphs import Graph, aten, differs, proved

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
