"""Ops in place inside of modules that are cut: functional twins and a write, the same numbers chunk by chunk."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.base.errors import InputError
from commcc.ep.chunk.region import Trial
from commcc.ep.chunk.view import view_of
from commcc.graph.index import build_index
from commcc.graph.ops.twins import functional, has_twin
from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, aten, chunked, error, named, plan_of

EXACT = 1e-12


def step(make, *, reads_after=False):
    """A module that calls ``make`` on its tokens, and sends what it returns, with a result of the tokens' size."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(b.call(aten.mul.Tensor, route.rows, 2.0), route)
        y = make(b, x, y)
    return b.done([y, b.call(aten.relu.default, y)] if reads_after else [y])


def test_twins_come_from_schemas():
    assert functional(aten.scatter_.value) is aten.scatter.value
    assert functional(aten.index_put_.default) is aten.index_put.default
    assert functional(aten.add_.Scalar) is aten.add.Scalar
    assert functional(aten.mm.out) is aten.mm.default
    assert functional(aten.zeros.out) is aten.zeros.default
    assert functional(aten.normal_.default) is aten.normal_functional.default
    assert functional(aten.mm.default) is aten.mm.default
    assert has_twin(aten.scatter_add.default) and not has_twin(aten.mm.default)


def test_nearly_every_op_in_place_has_a_twin():
    """What has none: ops on storage, and a few that exist in place alone."""
    found, missing = 0, []
    for name in torch._C._dispatch_get_all_op_names():
        library, _, op = name.partition("::")
        packet, _, overload = op.partition(".")
        if library == "aten" and packet.endswith("_") and not packet.endswith("__"):
            target = getattr(getattr(aten, packet), overload or "default")
            found += 1
            missing += [name] if functional(target) is target else []
    assert found > 300 and len(missing) < 20, missing


def written_slice(b, x, y):
    """The result of the write is used, and then the whole, by its own name."""
    whole = b.call(aten.zeros_like.default, x)
    part = b.call(aten.slice.Tensor, whole, 1, 0, 2)
    b.call(aten.copy_.default, part, b.call(aten.slice.Tensor, y, 1, 0, 2))
    return b.call(aten.add.Tensor, whole, x)


IN_PLACE = {
    "part of a tensor": written_slice,
    "add": lambda b, x, y: b.call(aten.add_.Tensor, b.call(aten.relu.default, y), x),
    "fill and sub": lambda b, x, y: b.call(
        aten.sub_.Tensor, b.call(aten.fill_.Scalar, b.call(aten.empty_like.default, y), 1), y
    ),
    "copy": lambda b, x, y: b.call(aten.copy_.default, b.call(aten.empty_like.default, x), y),
    "zero": lambda b, x, y: b.call(aten.add.Tensor, b.call(aten.zero_.default, b.call(aten.relu.default, x)), y),
    "masked fill": lambda b, x, y: b.call(
        aten.masked_fill_.Scalar, b.call(aten.clone.default, y), b.call(aten.gt.Scalar, x, 0), 0
    ),
    "scatter": lambda b, x, y: b.call(
        aten.scatter_.value, b.call(aten.zeros_like.default, y), 1, b.call(aten.argsort.default, y, 1), 3.0
    ),
    "scatter add": lambda b, x, y: b.call(
        aten.scatter_add_.default, b.call(aten.zeros_like.default, y), 1, b.call(aten.argsort.default, x, 1), y
    ),
    "clamp": lambda b, x, y: b.call(aten.clamp_.default, b.call(aten.relu.default, y), 0.1, 0.5),
    "of nothing but a list": lambda b, x, y: b.call(aten.mul_.Scalar, b.call(aten.cat.default, [x, y], 1), 2.0),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_the_same_numbers(name):
    before = step(IN_PLACE[name])
    assert error(before, chunked(before, chunks=2)) < EXACT


def test_a_read_that_changes_places_with_a_write_in_one_chunk():
    """Both graphs are in an order that can be run, and the folded graph has that of BEFORE."""

    def filled(b, x, y):
        zeros = b.call(aten.zeros_like.default, y)
        early = b.call(aten.add.Tensor, zeros, x)
        b.call(aten.fill_.Scalar, zeros, 1)
        return b.call(aten.add.Tensor, early, b.call(aten.mul.Tensor, zeros, y))

    before = step(filled)
    after = chunked(before, chunks=2)
    assert verify(before, after).status == "proved"
    nodes = named(after)
    nodes["fill__chunk0"].append(nodes["add_chunk0"])
    verdict = verify(before, after)
    assert verdict.status == "unproved" and "where 'fill_' has not written" in verdict.unproved[0].text


def test_counts_that_are_collected_in_place():
    """Zeros that are not of the tokens' size, written by the body alone: every chunk has its own, added up outside."""

    def counted(b, x, y):
        zeros = b.call(aten.zeros.default, [4], dtype=torch.float64)
        best = b.call(aten.argmax.default, y, 1)
        ones = b.call(aten.ones_like.default, best, dtype=torch.float64)
        return b.call(aten.index_add_.default, zeros, 0, best, ones)

    before = step(counted)
    after = chunked(before, chunks=2)
    assert error(before, after) < EXACT
    assert sum(str(node.target) == "aten.zeros.default" for node in after.graph.nodes) == 2


def test_a_buffer_that_tokens_are_added_to():
    """An index_add_ to a buffer of the model: chunk after chunk."""
    b = Layers()
    x, counts = b.tokens("x", 8, 4), b.buffer("counts", 4)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
        best = b.call(aten.argmax.default, y, 1)
        ones = b.call(aten.ones_like.default, best, dtype=torch.float64)
        b.call(aten.index_add_.default, counts, 0, best, ones)
    before = b.done([y])
    assert error(before, chunked(before, chunks=2)) < EXACT


def counted_into(dtype):
    """A sum over tokens that is added to a buffer of this dtype."""
    b = Layers()
    x, kept = b.tokens("x", 8, 4), b.described("kept", (4,), dtype, "BufferAOTInput(target='kept')")
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
        b.call(aten.add_.Tensor, kept, b.call(aten.sum.dim_IntList, y, [0]))
    return b.done([y])


def test_a_buffer_that_rounds_what_is_added():
    """Rounded chunk by chunk, small parts of a sum are lost."""
    exact = counted_into(torch.float64)
    assert error(exact, chunked(exact, chunks=2)) < EXACT
    refused(counted_into(torch.bfloat16), r"'add_' .* rounds what it adds to 'kept'")


def test_a_buffer_that_rounds_is_not_proved_in_chunks(monkeypatch):
    monkeypatch.setattr(Trial, "_check_written", lambda *given: None)
    before = counted_into(torch.bfloat16)
    verdict = verify(before, chunked(before, chunks=2))
    assert "is rounded before the chunks are added up" in verdict.unproved[0].text


def test_tokens_from_outside_are_written_slice_by_slice():
    b = Layers()
    x = b.call(aten.relu.default, b.tokens("x", 8, 4))
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
        z = b.call(aten.add_.Tensor, x, y)
    before = b.done([z])
    assert error(before, chunked(before, chunks=2)) < EXACT


def refused(program, message):
    with pytest.raises(InputError, match=message):
        plan_of(program, chunks=2)


def test_what_other_chunks_see_is_not_overwritten():
    def buffered(b, x, y):
        return b.call(aten.copy_.default, b.buffer("kept", 8, 4), y)

    refused(step(buffered), r"'copy_' .* writes to 'kept', which all chunks share, something else than a sum")


def test_an_op_without_a_rule_is_not_said_to_mix_tokens():
    refused(
        step(lambda b, x, y: b.call(aten._add_relu_.Tensor, b.call(aten.clone.default, y), x)),
        r"it depends on '_add_relu_' \(aten\._add_relu\), of which no rule says that it keeps tokens apart",
    )
    refused(
        step(lambda b, x, y: b.call(aten.cumprod_.default, b.call(aten.clone.default, y), 0)),
        r"it depends on 'cumprod_' \(aten\.cumprod over the tokens\), which mixes tokens",
    )


def test_a_slice_that_is_a_copy_is_not_written_back():
    """Cut along the sequence, the slice of a chunk is made dense: what is written there stays there."""
    b = Layers()
    x = b.call(aten.relu.default, b.tokens("x", 2, 4, 3))
    with b.module(MOE):
        flat = b.call(aten.add_.Tensor, x, 1.0)
        rows = b.call(aten.view.default, flat, [8, 3])
        route = b.dispatch(rows)
        y = b.combine(route.rows, route)
    program = b.done([b.call(aten.view.default, y, [2, 4, 3])])
    with pytest.raises(InputError, match=r"'add_' .* writes to 'relu', in the storage of 'relu' from outside"):
        plan_of(program, chunks=2, dim="seq")


def test_a_value_that_is_written_after_it_left():
    """Outside, the whole is read by the name that it had before the write."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
        b.call(aten.mul_.Scalar, y, 2.0)
    with b.module("norm"):
        z = b.call(aten.relu.default, y)
    refused(b.done([z]), r"is used outside the region by 'relu' after 'mul_' has written to it")


def test_what_is_written_outside_is_not_read_inside_afterwards():
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
    with b.module("norm"):
        b.call(aten.mul_.Scalar, y, 2.0)
    with b.module(MOE):
        z = b.call(aten.add.Tensor, y, x)
    refused(b.done([z]), r"is written by 'mul_' outside the region and read inside after that")


def test_an_element_of_a_tuple_is_written():
    def topped(b, x, y):
        values = b.call(operator.getitem, b.call(aten.topk.default, y, 2), 0)
        return b.call(aten.mul_.Scalar, values, 2.0)

    before = step(topped)
    assert error(before, chunked(before, chunks=2)) < EXACT


def test_inputs_that_nobody_describes():
    """Whole numbers that are counted in are a buffer, not tokens; what a gradient is returned of is a parameter."""
    b = Layers()
    x, w = b.placeholder("x", (8, 4), torch.float64), b.placeholder("w", (4, 4), torch.float64)
    counts = b.placeholder("counts", (4,), torch.int64)
    with b.module(MOE):
        route = b.dispatch(b.call(aten.mm.default, x, w))
        y = b.combine(route.rows, route)
        best = b.call(aten.argmax.default, y, 1)
        b.call(aten.index_add_.default, counts, 0, best, b.call(aten.ones_like.default, best))
    with b.module(MOE, backward=True):
        gradient = b.call(aten.mm.default, b.call(aten.t.default, x), y)
    before = b.done([y, gradient])
    index = build_index(before)
    data = view_of(before, index).data
    assert [data[index.position[name]] for name in ("x", "w", "counts")] == [True, False, False]
    assert error(before, chunked(before, chunks=2)) < EXACT
