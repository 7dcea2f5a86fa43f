"""What ep-chunk makes of small graphs: where it splits, what it clones, how values become whole again."""

from __future__ import annotations

import operator

import pytest
import torch

from commcc.graph.annotations import annotations_of
from commcc.graph.index import build_index
from commcc.passes.ep_chunk import EpChunk
from commcc.run.pipeline import run
from tests.chunk_graphs import MOE, Layers, aten, c10d, chunked, error, named, ops_of, plan_of

EXACT = 1e-12


def moved(b, x):
    """Tokens that went to another rank and back, and were changed there."""
    route = b.dispatch(x)
    return b.combine(b.call(aten.silu.default, route.rows), route)


def forward(rows=8):
    b = Layers()
    x, w = b.tokens("x", rows, 4), b.weight("w", 4, 4)
    with b.module(MOE):
        out = moved(b, b.call(aten.mm.default, x, w))
    with b.module("layers.0"):
        return b.done([b.call(aten.add.Tensor, out, x)])


@pytest.mark.parametrize("chunks", [2, 4])
def test_forward_region(chunks):
    """One split of what comes in, a clone of each node in each chunk, one concatenation of what leaves."""
    before = forward()
    after = chunked(before, chunks=chunks)
    (split,), (cat,) = ops_of(after, "aten.split_with_sizes"), ops_of(after, "aten.cat")
    assert split.args[0].name == "x" and split.args[1] == [8 // chunks] * chunks
    assert [node.name for node in ops_of(after, "aten.mm")] == [f"mm_chunk{k}" for k in range(chunks)]
    assert ops_of(after, "aten.clone") == []
    notes = dict(zip(named(after), annotations_of(after, build_index(after)), strict=True))
    assert [notes[f"mm_chunk{k}"].chunk for k in range(chunks)] == list(range(chunks))
    assert {notes[f"mm_chunk{k}"].role for k in range(chunks)} == {"body"}
    assert (notes[split.name].role, notes[split.name].chunk) == ("split_boundary", None)
    assert (notes[cat.name].role, notes[cat.name].chunk, notes[cat.name].module) == (
        "materialization",
        None,
        "layers.0",
    )
    assert notes["x_chunk_split1"].chunk == 1
    assert error(before, after) < EXACT


def test_clones_stand_side_by_side():
    names = list(named(chunked(forward(), chunks=3, dim="batch")))
    place = names.index("mm_chunk0")
    assert names[place : place + 3] == ["mm_chunk0", "mm_chunk1", "mm_chunk2"]


def test_the_rest_is_in_the_last_chunk():
    plan = plan_of(forward(rows=8), chunks=3)
    assert plan.rewrite.chunked[0].sizes == (2, 2, 4)
    assert error(forward(), chunked(forward(), chunks=3)) < EXACT


@pytest.mark.parametrize("chunks", [7, 8])
def test_chunks_of_one_token(chunks):
    assert error(forward(), chunked(forward(), chunks=chunks)) < EXACT
    before = backward(reduced)
    assert error(before, chunked(before, chunks=chunks)) < 1e-6


def test_one_chunk_changes_nothing():
    assert not plan_of(forward(), chunks=1).changes
    assert plan_of(forward(), chunks=1).report.regions[0].body == 28


def test_what_a_module_before_made_comes_in_whole():
    b = Layers()
    x, w = b.tokens("x", 8, 4), b.weight("w", 4, 4)
    with b.module("layers.0.norm"):
        x = b.call(aten.mm.default, x, w)
    with b.module(MOE):
        y = moved(b, x)
    before = b.done([y])
    after = chunked(before)
    assert [node.name for node in ops_of(after, "aten.mm")] == ["mm"]
    assert error(before, after) < EXACT


def test_adjacent_modules_meet_in_a_whole_value():
    """The second module splits what the first one's concatenation made."""
    b = Layers()
    y = x = b.tokens("x", 8, 4)
    for layer in range(2):
        with b.module(f"layers.{layer}.moe"):
            y = moved(b, y)
    before = b.done([y])
    after = chunked(before)
    cats, splits = ops_of(after, "aten.cat"), ops_of(after, "aten.split_with_sizes")
    assert len(cats) == 2 and [split.args[0] for split in splits] == [named(after)["x"], cats[0]]
    assert error(before, after) < EXACT and x is not y


def test_parameters_are_gathered_once():
    b = Layers()
    x, shard = b.tokens("x", 8, 4), b.weight("w", 2, 4)
    with b.module(MOE):
        z = moved(b, b.call(aten.mm.default, x, b.gather(shard, 2, "0")))
    before = b.done([z])
    after = chunked(before, chunks=4)
    assert len(ops_of(after, "_c10d_functional.all_gather_into_tensor")) == 1
    assert len(ops_of(after, "_c10d_functional.all_to_all_single")) == 12
    assert error(before, after) < EXACT


def backward(tail):
    """A backward region: the gradient of its input, and one of its weight through ``tail``."""
    b = Layers()
    x, w, g = b.tokens("x", 8, 4), b.weight("w", 4, 4), b.tokens("g", 8, 4)
    with b.module(MOE):
        route = b.dispatch(x)
        y = b.combine(route.rows, route)
    with b.module(MOE, backward=True):
        picked = b.call(aten.index_select.default, g, 0, route.order)
        with b.noted(EP="combine", EP_token_exchange="combine"):
            arrived = b.exchange(picked, route.received, route.sent)
        with b.noted(EP="dispatch", EP_token_exchange="dispatch"):
            sent = b.exchange(arrived, route.sent, route.received)
        zeros = b.call(aten.new_zeros.default, sent, [8, 4])
        rows = b.call(aten.index_put.default, zeros, [route.order], sent, True)
        own = b.call(aten.mm.default, rows, b.call(aten.t.default, w))
        part = b.call(aten.mm.default, b.call(aten.t.default, x), rows)
        ends = tail(b, part)
    return b.done([y, own, *ends])


def reduced(b, part):
    cast = b.call(aten._to_copy.default, b.call(aten.t.default, part), dtype=torch.float32)
    return [b.scatter(cast, 2, "0", "avg")]


def test_gradients_are_added_up_before_their_one_reduction():
    """In the reduction's dtype; the gradient of the input is concatenated."""
    before = backward(reduced)
    after = chunked(before, chunks=3)
    (reduction,) = ops_of(after, "_c10d_functional.reduce_scatter_tensor")
    total = reduction.args[0]
    assert total.name == "_to_copy_2_chunk_materialized" and total.meta["val"].dtype == torch.float32
    assert [node.name for node in (total.args[0].args[0], total.args[0].args[1], total.args[1])] == [
        f"_to_copy_2_chunk{k}" for k in range(3)
    ]
    assert [node.name for node in ops_of(after, "aten.cat")] == [f"{n}_chunk_materialized" for n in ("index_add", "mm")]
    assert total.meta["chunked_materialization_proof"] == "backward_partial_sum"
    assert total.meta["autograd_backward"] is True and "chunk_id" not in total.meta
    assert error(before, after) < 1e-6  # float32


@pytest.mark.parametrize("reduce", ["scatter", "reduce"])
def test_views_before_a_reduction_stay_whole(reduce):
    """Without a cast the sum is right behind the product."""

    def tail(b, part):
        return [getattr(b, reduce)(b.call(aten.t.default, part), *(() if reduce == "reduce" else (2,)), "0")]

    before = backward(tail)
    after = chunked(before)
    assert named(after)["mm_1_chunk_materialized"].target is aten.add.Tensor
    assert [node.args[0].name for node in ops_of(after, "aten.t")[-1:]] == ["mm_1_chunk_materialized"]
    assert error(before, after) < EXACT


def test_a_gradient_that_is_an_output():
    before = backward(lambda b, part: [b.call(aten.mul.Tensor, part, 0.5)])
    after = chunked(before)
    total = named(after)["mm_1_chunk_materialized"]
    assert total.meta["chunked_materialization_proof"] == "backward_partial_sum"
    assert [node.args[0] for node in ops_of(after, "aten.mul")] == [total]
    assert error(before, after) < EXACT


def test_reductions_with_users_behind_them_stay_whole():
    """What follows a reduction runs once, on the whole, wherever its module is."""

    def tail(b, part):
        whole = b.scatter(part, 2, "0")
        return [b.call(aten.relu.default, whole), whole]

    before = backward(tail)
    after = chunked(before)
    assert [node.name for node in ops_of(after, "aten.relu")] == ["relu"]
    assert error(before, after) < EXACT


def counting(b, x):
    """Counts of tokens by expert, as floats."""
    return b.call(aten.histc.default, b.call(aten.select.int, x, 1, 0), 4, -3, 3)


def test_writes_to_a_shared_buffer_are_chained():
    b = Layers()
    x, counts = b.tokens("x", 8, 4), b.buffer("counts", 4)
    with b.module(MOE):
        b.call(aten.add_.Tensor, counts, counting(b, x))
        z = moved(b, x)
    before = b.done([z])
    after = chunked(before, chunks=3)
    writes = ops_of(after, "aten.add_")
    assert [node.args[0].name for node in writes] == ["counts", "add__chunk0", "add__chunk1"]
    assert error(before, after) < EXACT


def test_what_a_chain_of_writes_leaves_is_its_last_result():
    b = Layers()
    x, counts = b.tokens("x", 8, 4), b.buffer("counts", 4)
    with b.module(MOE):
        total = b.call(aten.add_.Tensor, counts, counting(b, x))
        z = moved(b, x)
    with b.module("layers.0.other"):
        used = b.call(aten.mul.Tensor, total, 2.0)
    before = b.done([z, used])
    after = chunked(before)
    assert named(after)["mul"].args[0].name == "add__chunk1"
    assert error(before, after) < EXACT


def test_results_that_nobody_uses_are_not_cloned():
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        sort = b.call(aten.sort.default, x, 1)
        values = b.call(operator.getitem, sort, 0)
        b.call(operator.getitem, sort, 1)
        z = moved(b, values)
    before = b.done([z])
    after = chunked(before)
    assert sum(name.startswith("getitem_1_chunk") for name in named(after)) == 0
    assert error(before, after) < EXACT


def test_nodes_without_a_module_between_those_of_one():
    """Sums of gradients have no module; they belong where all that they read is made."""
    b = Layers()
    x, g = b.tokens("x", 8, 4), b.tokens("g", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
    with b.module(MOE, backward=True):
        one, two, three = (b.call(op, g) for op in (aten.relu.default, aten.neg.default, aten.sin.default))
    with b.module(None, backward=True):
        total = b.call(aten.add.Tensor, b.call(aten.add.Tensor, one, two), three)
    before = b.done([y, total])
    after = chunked(before)
    assert len(ops_of(after, "aten.cat")) == 2 and len(ops_of(after, "aten.add")) == 4
    assert error(before, after) < EXACT


def test_modules_that_exchange_nothing_are_skipped():
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module("layers.1.moe"):
        x = b.call(aten.relu.default, x)
    with b.module(MOE):
        z = moved(b, x)
    before = b.done([z])
    plan = plan_of(before)
    assert [region.root for region in plan.rewrite.chunked] == [MOE] and list(plan.report.skipped) == ["layers.1.moe"]


def test_one_rank_has_annotations_only():
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE, EP="compute"):
        y = b.call(aten.relu.default, x)
    before = b.done([y])
    plan = plan_of(before)
    assert plan.report.by_annotation is True
    assert error(before, chunked(before)) < EXACT


def test_a_sequence_is_cut_in_pieces_that_are_dense():
    b = Layers()
    x = b.tokens("x", 2, 8, 4)
    with b.module(MOE):
        y = b.call(aten.relu.default, x)
        one = moved(b, b.call(aten.select.int, y, 0, 0))
    before = b.done([y, one])
    after = chunked(before, dim="seq")
    (split,) = ops_of(after, "aten.split_with_sizes")
    assert split.args[1:] == ([4, 4], 1)
    assert len(ops_of(after, "aten.clone")) == 2
    assert ops_of(after, "aten.cat")[0].args[1] == 1
    assert error(before, after) < EXACT


def test_index_tables_are_made_for_each_chunk():
    """``arange`` of the tokens counts those of the chunk; one that is no table of tokens is shared."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        rows, columns = b.call(aten.arange.default, 8), b.call(aten.arange.default, 4)
        y = moved(b, b.call(aten.index_select.default, x, 1, columns))
        z = b.call(aten.index_add.default, b.call(aten.zeros_like.default, x), 0, rows, y)
    before = b.done([z])
    after = chunked(before)
    assert [node.args[0] for node in ops_of(after, "aten.arange")] == [4, 4, 4]
    assert {"arange_chunk0", "arange_chunk1", "arange_1"} <= set(named(after))
    assert error(before, after) < EXACT


def test_equal_runs_give_equal_graphs():
    plans = [plan_of(forward(), chunks=4) for _ in range(2)]
    assert plans[0] == plans[1]
    assert [str(n.args) for n in chunked(forward()).graph.nodes] == [
        str(n.args) for n in chunked(forward()).graph.nodes
    ]


def test_the_pipeline_says_what_is_open():
    """An op of which no rule says what it does to rows."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        out = moved(b, b.call(aten.cumprod.default, x, 1))
    result = run(b.done([out]), [EpChunk(chunks=2)])
    assert result.verified == "unproved" and result.changed
    assert "'layers.0.moe' is cut in 2 chunks (28 nodes each, cloned faithfully)" in result.verdicts[0].unproved[0].text
    assert c10d.all_to_all_single.default in {node.target for node in result.program.graph.nodes}
