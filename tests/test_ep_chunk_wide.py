"""Whole layers cut by sample, and sizes that are not fixed."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.base.errors import InputError
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization.fx import parse_text
from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, aten, chunked, error, named, ops_of, plan_of
from tests.test_ep_chunk import EXACT, moved
from tests.virtual_ranks import VirtualRanks


def test_small_tables_are_shared_where_samples_are_cut():
    """Two samples, and a table of two columns: not a table of samples."""
    b = Layers()
    x = b.tokens("x", 2, 6, 2)
    with b.module("layers.0.mixer"):
        table = b.call(aten._to_copy.default, b.call(aten.arange.default, 2), dtype=torch.float64)
        scaled = b.call(aten.mul.Tensor, x, table)
    with b.module(MOE):
        y = moved(b, b.call(aten.view.default, scaled, [12, 2]))
    before = b.done([y])
    after = chunked(before, "layers.*")
    assert [node.args[0] for node in ops_of(after, "aten.arange")] == [2]
    assert error(before, after) < EXACT


def attending(queries):
    """A whole layer: attention of samples, then experts."""
    b = Layers()
    x = b.tokens("x", 4, 6, 8)
    with b.module("layers.0.mixer"):
        heads = b.call(aten.transpose.int, b.call(aten.view.default, x, [4, queries, 2, 4]), 1, 2)
        op = aten._scaled_dot_product_flash_attention_for_cpu.default
        out = b.call(operator.getitem, b.call(op, heads, heads, heads, 0.0, True), 0)
        flat = b.call(aten.reshape.default, b.call(aten.transpose.int, out, 1, 2), [4 * queries, 8])
    with b.module(MOE):
        y = moved(b, flat)
    with b.module("layers.0"):
        return b.done([b.call(aten.add.Tensor, b.call(aten.view.default, y, [4, queries, 8]), x)])


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.sampled(1)
def test_attention_by_sample(chunks):
    before = attending(6)
    after = chunked(before, "layers.*", chunks=chunks)
    assert len(ops_of(after, "aten._scaled_dot_product_flash_attention_for_cpu")) == chunks
    assert error(before, after) < EXACT


def test_attention_by_sequence_is_refused_whatever_its_module_is_called():
    with pytest.raises(InputError, match=r"is in the attention of 'layers.0.mixer', over the sequence that is cut"):
        plan_of(attending(6), modules="layers.*", dim="seq")


def folded(make, chunks=4, **options):
    """Two samples of eight tokens; ``make`` returns what the module passes on, from ``[16, 4]`` folded inside."""
    b = Layers()
    x, z = b.tokens("x", 2, 8, 4), b.tokens("z", 16, 4)
    with b.module(MOE):
        y = moved(b, b.call(aten.view.default, x, [16, 4]))
        out = make(b, x, y, z)
    before = b.done([out])
    return before, chunked(before, dim="seq", chunks=chunks, **options)


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_a_sequence_that_is_folded_with_its_samples_inside(chunks):
    """Rows of the experts are the chunk's tokens of all samples; taken apart again they are slices of the sequence."""

    def apart(b, x, y, z):
        hidden = b.call(aten.mul.Tensor, y, b.call(aten.new_zeros.default, y, [16, 4]))
        wide = b.call(aten.view.default, b.call(aten.add.Tensor, hidden, y), [32, 2])
        return b.call(aten.add.Tensor, b.call(aten.reshape.default, wide, [2, 8, -1]), x)

    before, after = folded(apart, chunks)
    first = named(after)["view_chunk0"]
    assert list(first.meta["val"].shape) == [2 * (8 // chunks), 4] and first.args[1] == [2 * (8 // chunks), 4]
    (cat,) = ops_of(after, "aten.cat")
    assert cat.args[1] == 1 and error(before, after) < EXACT


def test_sums_over_folded_tokens():
    before, after = folded(lambda b, x, y, z: b.call(aten.mm.default, b.call(aten.t.default, y), y))
    assert len(ops_of(after, "aten.add")) == 3 and error(before, after) < EXACT


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda b, x, y, z: y,
            r"has its tokens in 2 blocks in dimension 0: .*; take them apart inside the module",
        ),
        (
            lambda b, x, y, z: b.call(aten.add.Tensor, y, z),
            r"'z' \(input, float64\[16, 4\]\) comes in with 2 samples and their sequences of 8 in",
        ),
        (
            lambda b, x, y, z: b.call(
                aten.add.Tensor, y, b.call(aten.reshape.default, b.call(aten.transpose.int, x, 0, 1), [16, 4])
            ),
            r"'add' .* needs all tokens; .*: 'index_add' .* has its tokens in 2 blocks in dimension 0",
        ),
    ],
)
def test_folded_tokens_that_cannot_be(make, message):
    """They leave folded, come in folded, or meet tokens in another order: sample by sample, and token by token."""
    with pytest.raises(InputError, match=message):
        folded(make)


def norm_gradient(rounding):
    """A layer whose backward pass sums over tokens, and rounds what it has."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
    with b.module("layers.0.norm"):
        total = b.call(aten.sum.dim_IntList, b.call(aten.mul.Tensor, y, x), [0])
        found = rounding(b, total)
    before = b.done([y, *(found if isinstance(found, tuple) else (found,))])
    return before, chunked(before, "layers.*", chunks=4)


def dtypes(node):
    return node.meta["val"].dtype, node.args[0].meta["val"].dtype


def half(b, value):
    return b.call(aten._to_copy.default, value, dtype=torch.bfloat16)


def two_rounded(b, total):
    """Gradients of a weight that is used twice; one of them is in half precision as it is made."""
    square = b.call(aten.mul.Tensor, half(b, total), 2)
    return b.call(aten.add.Tensor, square, half(b, b.call(aten.view.default, total, [4])))


ROUNDINGS = {
    "once": (half, 1),
    "once, and seen otherwise": (lambda b, total: b.call(aten.view.default, half(b, total), [2, 2]), 1),
    "seen otherwise before": (lambda b, total: half(b, b.call(aten.view.default, total, [2, 2])), 1),
    "once, then scaled": (lambda b, total: b.call(aten.div.Tensor, half(b, total), 8), 1),
    "and widened again": (lambda b, total: b.call(aten._to_copy.default, half(b, total), dtype=torch.float64), 2),
    "two of a kind": (two_rounded, 2),
    "one that leaves, one rounded": (lambda b, total: (total, half(b, total)), 1),
}


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_a_sum_over_tokens_is_rounded_once(kind, monkeypatch):
    """Behind the sum of the chunks, as it is in the whole; what rounds every chunk's part is not proved."""
    rounding, casts = ROUNDINGS[kind]
    before, after = norm_gradient(rounding)
    # What tokens are sent by is cast too, in each chunk.
    rounded = [node for node in ops_of(after, "aten._to_copy") if torch.bfloat16 in dtypes(node)]
    assert len(rounded) == casts and verify(before, after).status == "proved"
    assert error(before, after) < EXACT
    monkeypatch.setattr("commcc.ep.chunk.leaving._rounded", lambda view, trial, members: set())
    _, each = norm_gradient(rounding)
    assert verify(before, each).status == "unproved"


def test_a_part_of_a_sum_is_widened_before_it_is_added_up():
    """Nothing is lost by that: what is added up is as wide as what leaves."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
    with b.module("layers.0.norm"):
        total = b.call(aten.sum.dim_IntList, half(b, y), [0])
        wide = b.call(aten._to_copy.default, total, dtype=torch.float64)
    before = b.done([y, wide])
    after = chunked(before, "layers.*")
    assert [dtypes(node) for node in ops_of(after, "aten._to_copy")].count((torch.float64, torch.bfloat16)) == 2
    assert verify(before, after).status == "proved"


def narrow(b, x, dtype=torch.int8):
    """A sum over tokens in a dtype that it does not fit."""
    large = b.call(aten.mul.Tensor, b.call(aten.gt.Scalar, x, 0), 50)
    small = b.call(aten._to_copy.default, large, dtype=torch.int8)
    return b.call(aten.sum.dim_IntList, small, [0], dtype=dtype)


def as_wide(b, total):
    return b.call(aten._to_copy.default, total, dtype=torch.int32)


WRAPS = {
    "widened": lambda b, x: as_wide(b, narrow(b, x)),
    "of a product": lambda b, x: as_wide(b, squared(b, x)),
    "scaled as a float": lambda b, x: b.call(aten.mul.Tensor, narrow(b, x), 0.5),
    "shared out": lambda b, x: b.call(aten.div.Tensor, narrow(b, x), 4),
    "added up further": lambda b, x: b.call(aten.sum.dim_IntList, narrow(b, x), [0]),
    "a running sum of it": lambda b, x: b.call(aten.cumsum.default, narrow(b, x), 0),
    "next to a wider one": lambda b, x: b.call(aten.cat.default, [narrow(b, x), narrow(b, x, torch.int64)]),
    "and a wider one": lambda b, x: b.call(aten.add.Tensor, narrow(b, x), narrow(b, x, torch.int64)),
    "whether there is any": lambda b, x: b.call(aten._to_copy.default, any_of(b, x), dtype=torch.int64),
}


def squared(b, x):
    small = b.call(aten._to_copy.default, b.call(aten.mul.Tensor, x, 9.0), dtype=torch.int8)
    return b.call(aten.mm.default, b.call(aten.t.default, small), small)


def any_of(b, x):
    return b.call(aten.sum.dim_IntList, b.call(aten.gt.Scalar, x, 0), [0], dtype=torch.bool)


def with_narrow_sum(kind):
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
        found = WRAPS[kind](b, x)
    before = b.done([y, found])
    return before, chunked(before)


@pytest.mark.parametrize("kind", WRAPS)
def test_a_sum_that_may_wrap_around_is_added_up_first(kind, monkeypatch):
    """Parts that are widened do not add up to the sum that is; a graph that has done so is not proved."""
    before, after = with_narrow_sum(kind)
    assert verify(before, after).status == "proved" and error(before, after) == 0
    monkeypatch.setattr("commcc.ep.chunk.leaving._rounded", lambda view, trial, members: set())
    monkeypatch.setattr("commcc.ep.chunk.planner.check_widened", lambda view, trial, members: None)
    _, each = with_narrow_sum(kind)
    assert verify(before, each).status == "unproved" and error(before, each) > 0


@pytest.mark.parametrize("planned", [True, False])
def test_a_narrow_sum_in_a_running_one(planned, monkeypatch):
    """Each chunk adds its part, which wraps around by itself."""
    b = Layers()
    x, seen = b.tokens("x", 8, 4), b.described("seen", (4,), torch.int64, "BufferAOTInput(target='seen')")
    with b.module(MOE):
        y = moved(b, x)
        b.call(aten.add_.Tensor, seen, narrow(b, x))
    before = b.done([y])
    if planned:
        with pytest.raises(InputError, match=r"'add_' .*makes int64 of 'sum.*wrapped around in int8"):
            plan_of(before)
        return
    monkeypatch.setattr("commcc.ep.chunk.planner.check_widened", lambda view, trial, members: None)
    after = chunked(before)
    assert verify(before, after).status == "unproved" and error(before, after) > 0


COUNTED = (("bool", torch.float32), ("bool", torch.int64), ("int64", torch.float32))


@pytest.mark.parametrize(("counted", "into"), COUNTED)
def test_a_running_count(counted, into):
    """How often something holds cannot wrap around, whatever it is added to; a sum of numbers may."""
    b = Layers()
    x, seen = b.tokens("x", 8, 4), b.described("seen", (4,), into, "BufferAOTInput(target='seen')")
    with b.module(MOE):
        y = moved(b, x)
        holds = b.call(aten.gt.Scalar, x, 0)
        numbers = holds if counted == "bool" else b.call(aten._to_copy.default, x, dtype=torch.int64)
        b.call(aten.add_.Tensor, seen, b.call(aten.sum.dim_IntList, numbers, [0]))
    before = b.done([y])
    after = chunked(before)
    assert verify(before, after).status == ("proved" if counted == "bool" else "unproved")
    assert error(before, after) < 1e-6


SYMBOLIC = """\
class GraphModule(torch.nn.Module):
    def forward(
        self,
        x: "f64[u9, 4][4, 1]cpu",  # PlainAOTInput(idx=0)
        w: "f64[4, 4][4, 1]cpu",  # ParamAOTInput(target='w')
    ):
        size: "Sym(u9)" = torch.ops.aten.sym_size.int(x, 0)
        # Annotation: {'module_fqn': 'layers.0.moe', 'EP': 'compute'}
        mm: "f64[u9, 4][4, 1]cpu" = torch.ops.aten.mm.default(x, w)
        twice: "Sym(2*u9)" = operator.mul(size, 2)
        flat: "f64[2*u9, 2][2, 1]cpu" = torch.ops.aten.view.default(mm, [twice, 2])
        total: "f64[2][1]cpu" = torch.ops.aten.sum.dim_IntList(flat, [0])
        return (flat, total)
"""


def test_a_size_that_is_not_fixed_is_fixed_first():
    program = parse_text(SYMBOLIC, "test")
    with pytest.raises(
        InputError, match=r"'x' \(input, float64\[u9, 4\]\) enters it with .* ep-concretize{symbols=u9=NUMBER}"
    ):
        plan_of(program)
    result = run(program, parse_pipeline("ep-concretize{symbols=u9=8},ep-chunk{chunks=4}"))
    assert [verdict.status for verdict in result.verdicts] == ["proved", "proved"]
    views = [node.args[1] for node in ops_of(result.program, "aten.view")]
    assert views == [[4, 2]] * 4
    inputs = [[torch.randn(8, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)]]
    ((flat, total, *_),) = VirtualRanks(result.program.graph, inputs).run()
    assert torch.allclose(flat, (inputs[0][0] @ inputs[0][1]).view(16, 2)) and torch.allclose(total, flat.sum(0))
