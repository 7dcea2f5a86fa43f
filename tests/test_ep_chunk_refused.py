"""What ep-chunk refuses, each with its own message: the region, the node, who uses it, the shapes, what to do."""

from __future__ import annotations

import operator

import pytest

from commcc.apply import apply_plan
from commcc.base.errors import InputError, OptionError
from commcc.ep.chunk.lab import Lab
from commcc.graph.index import build_index
from commcc.graph.ops import OpaqueOp
from commcc.passes.ep_chunk import EpChunk
from commcc.passes.options import build, to_text
from commcc.plan import ControlEdge, Plan
from commcc.verify import verify
from tests.chunk_graphs import MOE, Layers, aten, c10d, chunked, plan_of
from tests.step_graphs import sample
from tests.test_ep_chunk import backward, counting, forward, moved


def refused(program, message, error=InputError, **options):
    with pytest.raises(error, match=message):
        plan_of(program, **options)


def one_op(make, rows=8):
    """A region in which ``make`` is called on its tokens and on what it returns to its place."""
    b = Layers()
    x = b.tokens("x", rows, 4)
    with b.module(MOE):
        y = moved(b, x)
        made = make(b, x, y)
    return b.done([y, made])


def test_more_chunks_than_tokens():
    refused(forward(), r"region 'layers.0.moe': 8 tokens cannot be cut in 9 chunks; use at most 8", chunks=9)


def test_more_chunks_than_samples():
    refused(
        sample("tiny_deepseek_ep2"),
        r"region 'layers.1': 2 samples cannot be cut in 3 chunks; use at most 2 chunks, or cut .* of 30 with dim=seq",
        modules="layers.*",
        chunks=3,
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x, y: b.call(aten.amax.default, x, [0]),
        lambda b, x, y: b.call(aten.mean.dim, x, [0]),
        lambda b, x, y: b.call(aten._softmax.default, x, 0, False),
        lambda b, x, y: b.call(aten.cumsum.default, x, 0),
        lambda b, x, y: b.call(aten.tril.default, x),
        lambda b, x, y: b.call(aten.mul.Tensor, x, b.call(aten.relu.default, b.call(aten.sum.dim_IntList, x, [0]))),
        lambda b, x, y: b.call(aten.sub.Tensor, x, b.call(aten.mean.dim, x, [0], True)),
        lambda b, x, y: b.call(aten.add.Tensor, x, b.call(aten.as_strided.default, x, [8, 4], [4, 1])),
    ],
)
@pytest.mark.sampled(3)
def test_what_mixes_tokens_is_computed_of_all_of_them(make):
    before = one_op(make)
    assert verify(before, chunked(before, chunks=2)).status == "proved"


@pytest.mark.parametrize("op", [aten.mul.Tensor, aten.mm.default])
def test_tokens_that_meet_others(op):
    """Products of tokens as they come in with the same tokens sorted: of a chunk they are other pairs."""

    def pairs(b, x, y):
        order = b.call(operator.getitem, b.call(aten.sort.default, x, 0), 0)
        made = b.call(op, x if op is aten.mul.Tensor else b.call(aten.t.default, x), order)
        return b.call(aten.sum.dim_IntList, made, [0])

    needs = r"'(mul|mm)' \(aten.(mul|mm), .*\) needs all tokens; .*: 'getitem_\d+' .* in an order of its own; leave"
    refused(one_op(pairs), needs)


def test_sums_over_tokens_can_leave():
    """The parts are added up, and what follows runs once on the whole."""
    plan = plan_of(one_op(lambda b, x, y: b.call(aten.relu.default, b.call(aten.sum.dim_IntList, x, [0]))))
    assert [(join.how, join.dim) for join in plan.rewrite.chunked[0].joins] == [("rows", 0), ("sum", None)]


def test_tokens_in_another_order_cannot_leave():
    def sort(b, x, y):
        return b.call(operator.getitem, b.call(aten.sort.default, x, 0), 0)

    refused(
        one_op(sort),
        r"'getitem_\d+' .*float64\[8, 4\].* is used outside the region by 'output', but holds the tokens of a chunk in "
        r"an order of its own; what is saved for a backward graph has to be whole: dump forward and backward as one ",
    )


def test_a_separate_forward_graph_is_refused():
    refused(sample("tiny_moe_ep2_fw"), "dump forward and backward as one graph", modules="layers.1.moe")


def test_tokens_that_every_rank_gathers():
    def gather(b, x, y):
        return b.call(aten.slice.Tensor, b.gather(x, 2, "0"), 0, 0, 8)

    refused(one_op(gather), r"about tokens of a chunk inside the region; .*every rank gathers")


def test_a_reduction_that_is_no_sum():
    refused(backward(lambda b, part: [b.reduce(part, "0", "max")]), "communicates on group '0' about a part of a sum")


def test_split_sizes_as_numbers():
    """A rank gets rows by their place, and in a chunk they have another."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        y = b.exchange(x, [4, 4], [4, 4])
    refused(b.done([y]), r"sends \[4, 4\] rows of the 8 that are cut: .*; exchange token counts")


def test_writes_to_a_shared_buffer_that_are_no_sums():
    b = Layers()
    x, buffer = b.tokens("x", 8, 4), b.buffer("buffer", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
        b.call(aten.copy_.default, buffer, x)
    refused(b.done([y]), r"'copy_' .* writes to 'buffer', which all chunks share, something else than a sum")


def test_a_shared_buffer_that_is_read_inside():
    b = Layers()
    x, counts = b.tokens("x", 8, 4), b.buffer("counts", 4)
    with b.module(MOE):
        b.call(aten.add_.Tensor, counts, counting(b, x))
        y = moved(b, b.call(aten.mul.Tensor, x, counts))
    refused(b.done([y]), r"'add_' .* writes to 'counts', which 'mul' inside reads")


def test_attention_over_the_sequence():
    refused(
        sample("tiny_deepseek_ep2"),
        r"'bmm_2' \(aten.bmm, bfloat16\[8, 30, 30\], at latent_attention.py:\d+\) is in the attention of "
        r"'layers.1.attention', over the sequence that is cut; attention needs all tokens of a sample: use dim=batch",
        modules="layers.*",
        dim="seq",
    )


def test_scores_of_tokens_by_tokens():
    """Whatever the module is called."""

    def scores(b, x, y):
        return b.call(aten.mm.default, x, b.call(aten.t.default, x))

    refused(
        one_op(scores),
        r"'mm' .* has the tokens in dimensions 0 and 1 \(\[8, 8\] becomes \[4, 4\]\), as attention over the chunked",
    )


def test_views_that_fold_tokens_with_others():
    def fold(b, x, y):
        return b.call(aten.view.default, x, [2, 16])

    refused(
        one_op(fold),
        r"'view' \(aten.view, float64\[2, 16\]\) makes \[2, 16\] of \[8, 4\]: the tokens of dimension 0 are in none",
    )


def test_the_line_of_the_model_is_named():
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        y = b.call(aten.rand_like.default, moved(b, x))
        y.meta["stack_trace"] = 'File "/home/me/model.py", line 31, in forward\n    x.sort(0)'
    refused(b.done([y]), r"'rand_like' \(aten.rand_like, .*, at model.py:31\) draws random numbers")


def test_random_numbers():
    def noisy(b, x, y):
        return b.call(aten.mul.Tensor, x, b.call(aten.rand_like.default, x))

    refused(one_op(noisy), r"'rand_like' .* draws random numbers; chunks would draw other numbers than the whole")


def test_unknown_communication():
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        y = moved(b, x)
        z = b.call(aten.relu.default, x)
    z.target = OpaqueOp("vllm.all_reduce.default")
    refused(
        b.done([y, z]),
        r"region 'layers.0.moe': 'relu' \(vllm.all_reduce, float64\[8, 4\]\) communicates in an unknown way; "
        r"choose modules without it",
    )


def test_a_forward_node_that_reads_a_gradient():
    b = Layers()
    x, g = b.tokens("x", 8, 4), b.tokens("g", 8, 4)
    with b.module("layers.0.norm", backward=True):
        gradient = b.call(aten.neg.default, g)
    with b.module(MOE):
        y = b.call(aten.add.Tensor, moved(b, x), gradient)
    y.meta["autograd_backward"] = False
    refused(b.done([y]), r"'add' .* belongs to the forward pass, and reads 'neg' of the backward; mark it")


def test_control_edges_inside():
    """They say that a backend must not move a node; clones would stand elsewhere."""
    program = forward()
    index = build_index(program)
    mm, gt = index.position["mm"], index.position["gt"]
    held = apply_plan(program, index, Plan("test", index.fingerprint, edits=(ControlEdge(gt, mm, "test"),)))
    refused(
        held,
        r"region 'layers.0.moe': '\w+' .* is held in place by a control edge; chunk before control edges are added",
    )


def test_writes_that_change_what_a_tensor_is_to_the_chunks():
    """A slice into which tokens are written in another order is no slice any more."""

    def written(b, x, y):
        own = b.call(aten.relu.default, x)
        order = b.call(operator.getitem, b.call(aten.sort.default, x, 0), 0)
        return b.call(aten.mul_.Tensor, own, order)

    refused(
        one_op(written),
        r"'mul_' \(aten.mul_, float64\[8, 4\]\) is used outside .* depends on 'mul_' \(aten.mul over the tokens\)",
    )


def test_chunk_sizes_that_disagree(monkeypatch):
    """An op that keeps slices apart in small chunks and pads larger ones: 8 tokens in 2, 2 and 4.

    No op of PyTorch is known to do that, so one is made to.
    """
    real = Lab.run

    def padded(lab, node, resized):
        value = real(lab, node, resized)
        if node.name == "exp" and lab.part > 3:
            lab.values[node] = value = real(lab, node, ()).new_empty(8, 4)
        return value

    monkeypatch.setattr(Lab, "run", padded)
    program = one_op(lambda b, x, y: b.call(aten.exp.default, x))
    text = r"'exp' .* is not the same to a chunk of 2 as to one of 4; choose a number of chunks that divides the tokens"
    refused(program, text, chunks=3)
    assert plan_of(program, chunks=4).changes


def test_nothing_to_cut():
    b = Layers()
    x = b.tokens("x", 8)
    with b.module(MOE, EP="compute"):
        y = b.call(aten.relu.default, x)
    refused(b.done([y]), r"nothing that enters it can be cut by batch \(entering: float64\[8\]\)")


def test_patterns_that_match_nothing():
    refused(
        sample("tiny_deepseek_ep2"),
        r"no module 'layer.\*.moe' in the graph \(did you mean",
        OptionError,
        modules="layer.*.moe",
    )


def test_modules_without_exchanges():
    refused(
        sample("tiny_deepseek_ep2"),
        r"no tokens are exchanged in 'layers.0.attention', .*; name the modules that hold the experts",
        OptionError,
        modules="layers.*.attention",
    )


def test_a_graph_that_is_chunked_already():
    refused(chunked(forward()), r"the graph is chunked already: '\w+_chunk0' is of a chunk of 'layers.0.moe'")


def test_options():
    assert to_text(build(EpChunk, {"modules": "layers.*", "chunks": "4", "dim": "seq"})) == (
        "ep-chunk{modules=layers.*,chunks=4,dim=seq}"
    )
    for wrong, message in (
        ({"chunks": 0}, "chunks"),
        ({"dim": "sequence"}, "seq"),
        ({"modules": "a..b"}, "empty name"),
    ):
        with pytest.raises(OptionError, match=message):
            build(EpChunk, wrong)


def test_tokens_that_are_gathered_from_all_ranks():
    """There is nothing to cut: said so, and not that the wrong module was named."""
    b = Layers()
    x = b.tokens("x", 8, 4)
    with b.module(MOE):
        gathered = b.call(c10d.all_gather_into_tensor.default, x, 2, "0")
        every = b.call(c10d.wait_tensor.default, gathered)
        done = b.call(c10d.reduce_scatter_tensor.default, every, "sum", 2, "0")
        y = b.call(c10d.wait_tensor.default, done)
    with b.module("layers.1.moe"):
        z = b.combine(b.dispatch(y).rows, b.dispatch(y))
    with pytest.raises(OptionError, match=r"'layers.0.moe' gathers its tokens from all ranks, .* 'commcc reorder'"):
        plan_of(b.done([z]), modules="layers.0.moe")
