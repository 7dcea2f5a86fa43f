"""Inputs worked out from graphs: always valid, seeded, shared among ranks as the program would."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from commcc.base.errors import InputError
from commcc.graph.collectives import identify
from commcc.replay.input_constraints import InputConstraints
from commcc.replay.inputs import ANY_SIZE, InputMaker, integers
from commcc.replay.layout import make_layout
from commcc.replay.numeric import Settings, verify_numeric
from commcc.replay.prepare import prepare
from commcc.replay.virtual import VirtualRun
from commcc.serialization import load
from tests.effort import examples
from tests.step_graphs import sample
from tests.verify_graphs import Graph

aten = torch.ops.aten


def maker_of(program, seed=0, hints=None):
    prepared = prepare(program, hints=hints)
    layout = make_layout([(program, prepared.index)])
    return InputMaker(prepared, identify(prepared.index), layout, seed, hints), prepared, layout


def run(program, seed=0):
    """Run a program on its made-up inputs; indices out of bounds raise."""
    maker, prepared, layout = maker_of(program, seed)
    given = [maker.of_rank(rank) for rank in range(layout.world)]
    return given, VirtualRun(prepared, layout)(given)


# Ways to an index: each hands on the numbers, or numbers worked out from them.
def add(g, x, n):
    return g(aten.add.Tensor, x, n)


STEPS = {
    "view": lambda g, x, n: g(aten.view.default, x, [-1]),
    "unsqueeze": lambda g, x, n: g(aten.squeeze.dim, g(aten.unsqueeze.default, x, 0), 0),
    "cast": lambda g, x, n: g(aten._to_copy.default, x, dtype=torch.int64),
    "clone": lambda g, x, n: g(aten.clone.default, x),
    "add": add,
    "sub": lambda g, x, n: g(aten.sub.Tensor, x, n),
    "mul": lambda g, x, n: g(aten.mul.Tensor, x, n + 1),
    "gathered": lambda g, x, n: g.gather(x, "0", 1),
}  # fmt: skip


def masked(g, x):
    """0 wherever the number is not below 3."""
    return g(aten.where.self, g(aten.lt.Scalar, x, 3), x, g(aten.zeros_like.default, x))


def use(g, kind, rows, index):
    table = g.input(f"table{len(g.graph.nodes)}", rows, 3)
    flat = g(aten.view.default, index, [-1])
    if kind == "embedding":
        return g(aten.embedding.default, table, flat)
    if kind == "index_select":
        return g(aten.index_select.default, table, 0, flat)
    if kind == "index":
        return g(aten.index.Tensor, table, [flat])
    if kind == "gather":
        return g(aten.gather.default, g(aten.select.int, table, 1, 0), 0, flat)
    if kind == "index_put":
        count = flat.meta["val"].numel()
        return g(aten.index_put.default, table, [flat], g.input(f"v{rows}", count, 3), False)
    scores = g(
        aten.transpose.int, g(aten.view.default, g.input(f"s{rows}", rows, flat.meta["val"].numel()), [rows, -1]), 0, 1
    )
    log = g(aten._log_softmax.default, scores, 1, False)
    return g(aten.nll_loss_forward.default, log, flat, None, 1, -100)


KINDS = ("embedding", "index_select", "index", "gather", "index_put", "nll_loss")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 4)), max_size=4),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(40, 60)), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 100),
)
def test_indices_are_always_within_what_they_index(steps, uses, mask, seed):
    g = Graph()
    index = g.input("ids", 2, 3, dtype=torch.int64)
    for step, number in steps:
        if index.meta["val"].dim() == 1 or step != "unsqueeze":
            index = STEPS[step](g, index, number)
    index = masked(g, index) if mask else index
    outputs = [use(g, kind, rows, index) for kind, rows in uses]
    try:
        given, _ = run(g.program(*outputs), seed)
    except InputError as error:
        # Only where no number satisfies all at once: 3 <= x * 5 ** 3 + 4 < 40, say.
        assert "no number is what" in str(error)
        assert any(step in ("mul", "add", "sub") for step, _ in steps)
        return
    assert len(given) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_met_and_not_too_low(kind):
    g = Graph()
    ids = g.input("ids", 500, dtype=torch.int64)
    maker, _, _ = maker_of(g.program(use(g, kind, 1000, ids)))
    ids = maker.of_rank(0)["ids"]
    assert ids.min() >= 0
    assert 800 < ids.max() < 1000
    assert maker.constraints("ids").why


def test_without_the_bound_the_run_fails():
    """The check above can fail: an index one too large is refused by the ops themselves."""
    g = Graph()
    ids = g.input("ids", 5, dtype=torch.int64)
    program = g.program(use(g, "embedding", 4, ids))
    maker, prepared, layout = maker_of(program)
    inputs = maker.of_rank(0)
    inputs["ids"][0] = 4
    with pytest.raises(Exception, match="embedding"):
        VirtualRun(prepared, layout)([inputs])


def test_offsets_by_masks_are_no_contradiction():
    """A vocabulary cut in two: ids less 64, masked where that is outside, embedded in 64 rows."""
    g = Graph()
    ids = g.input("ids", 50, dtype=torch.int64)
    less = g(aten.sub.Tensor, ids, 64)
    inside = g(aten.bitwise_and.Tensor, g(aten.ge.Scalar, less, 0), g(aten.lt.Scalar, less, 64))
    safe = g(aten.where.self, inside, less, g(aten.zeros_like.default, less))
    whole = g.input("whole", 128, 3)
    program = g.program(g(aten.embedding.default, g.input("w", 64, 3), safe), g(aten.embedding.default, whole, ids))
    given, _ = run(program)
    assert 64 <= given[0]["ids"].min() <= given[0]["ids"].max() < 128


def test_an_op_that_writes_each_place_once_gets_no_index_twice():
    g = Graph()
    ids, columns = g.input("ids", 6, dtype=torch.int64), g.input("columns", 4, 3, dtype=torch.int64)
    copied = g(aten.index_copy.default, g.input("x", 8, 2), 0, ids, g.input("y", 6, 2))
    put = g(aten.scatter.src, g.input("z", 4, 5), 1, columns, g.input("s", 4, 3))
    given, _ = run(g.program(copied, put))
    assert len(set(given[0]["ids"].tolist())) == 6
    assert all(len(set(row)) == 3 for row in given[0]["columns"].tolist())


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 5))
def test_group_ends_rise_to_the_number_of_rows(groups, rows, seed):
    made = integers([groups], InputConstraints(ends=rows), torch.Generator().manual_seed(seed))
    assert made.tolist() == sorted(made.tolist())
    assert made.min() >= 0
    assert made[-1] == rows
    counts = integers([groups], InputConstraints(counts=rows), torch.Generator().manual_seed(seed))
    assert counts.min() >= 0
    assert counts.sum() == rows


def test_offsets_of_a_grouped_product():
    g = Graph()
    ends = g.input("ends", 4, dtype=torch.int32)
    counts = g.input("counts", 4, dtype=torch.int32)
    x, w = g.input("x", 24, 16, dtype=torch.bfloat16), g.input("w", 4, 16, 16, dtype=torch.bfloat16)
    summed = g(aten.cumsum.default, counts, 0, dtype=torch.int32)
    program = g.program(g(aten._grouped_mm.default, x, w, ends), g(aten._grouped_mm.default, x, w, summed))
    maker, _, _ = maker_of(program)
    made = maker.of_rank(0)
    assert made["ends"].tolist() == sorted(made["ends"].tolist())
    assert made["ends"][-1] == 24
    assert made["counts"].sum() == 24
    run(program)


def test_values_depend_on_seed_name_and_rank_only():
    program = sample("tiny_llama_fsdp4_fw")
    one, other, third = (maker_of(program, seed)[0].of_rank(1) for seed in (0, 0, 1))
    assert one.keys() == other.keys()
    tensors = [name for name, value in one.items() if isinstance(value, torch.Tensor)]
    assert all(torch.equal(one[name], other[name]) for name in tensors)
    assert not any(torch.equal(one[n], third[n]) for n in tensors if one[n].is_floating_point() and one[n].numel() > 1)


@pytest.mark.parametrize(
    ("name", "ranks", "same", "differ"),
    [
        ("tiny_llama_fsdp4_bw", (0, 1), [], ["primals_3", "primals_44"]),  # shards and tokens
        ("tiny_llama_ddp_bw", (0, 1), ["primals_17"], ["primals_44"]),  # copies; tokens
        ("tiny_llama_hsdp_bw", (0, 2), ["primals_3"], ["primals_44"]),  # one shard in two copies
        ("tiny_llama_hsdp_bw", (0, 1), [], ["primals_3", "primals_44"]),
        ("tiny_llama_fsdp2_tp2_fw", (0, 1), ["primals_44"], ["primals_3"]),  # tokens of one data rank
        ("tiny_llama_fsdp2_tp2_fw", (0, 2), [], ["primals_3", "primals_44"]),
    ],
)
def test_ranks_share_what_the_program_shares(name, ranks, same, differ):
    maker, _, _ = maker_of(sample(name))
    one, other = (maker.of_rank(rank) for rank in ranks)
    for input_name in same:
        assert torch.equal(one[input_name], other[input_name]), input_name
    for input_name in differ:
        assert not torch.equal(one[input_name], other[input_name]), input_name


def test_layout_of_memory_is_kept():
    g = Graph()
    g.input("a", 4, 6)
    with g.mode:
        g.graph.find_nodes(op="placeholder")[0].meta["val"] = torch.empty(4, 6).t()
    spread = g.input("b", 4, 6)
    with g.mode:
        spread.meta["val"] = torch.empty(4, 1).expand(4, 6)
    maker, _, _ = maker_of(g.program(spread))
    made = maker.of_rank(0)
    assert made["a"].stride() == (1, 6)
    assert made["b"].stride() == (1, 0)
    assert torch.equal(made["b"][:, 0], made["b"][:, 5])


@pytest.mark.parametrize("strides", [(1024, 1), (1, 2048)])
def test_large_tensors_have_no_two_equal_rows_or_columns(strides):
    g = Graph()
    x = g.input("x", 1)
    with g.mode:
        x.meta["val"] = torch.empty_strided((2048, 1024), strides, dtype=torch.bfloat16)
    maker, _, _ = maker_of(g.program(x))
    made, again, other = (maker.of_rank(rank)["x"] for rank in (0, 0, 0))
    assert made.shape == (2048, 1024) and made.stride() == strides and made.dtype == torch.bfloat16
    assert torch.equal(made, again) and again.data_ptr() != other.data_ptr()
    assert made.unique(dim=0).shape == made.shape and made.unique(dim=1).shape == made.shape
    assert 0.9 < made.float().std() * 1024**0.5 < 1.1


def test_what_is_divided_by_is_positive_and_masks_hide_no_whole_row():
    g = Graph()
    x, d, m = g.input("x", 8, 8), g.input("d", 8, 8), g.input("m", 50, 4, dtype=torch.bool)
    program = g.program(g(aten.div.Tensor, x, d), g(aten.rsqrt.default, d), g(aten.logical_not.default, m))
    made = maker_of(program)[0].of_rank(0)
    assert made["d"].min() > 0.5
    assert made["x"].min() < 0
    assert made["m"].any(1).all()
    assert not made["m"].all(1).any()


@pytest.mark.parametrize("lists", [False, True])
def test_moments_of_an_optimizer_have_a_square_root(lists):
    """Their squares are added to; the first moment may have any sign."""
    g = Graph()
    grad, mean, square = (g.input(name, 4, 8) for name in ("grad", "mean", "square"))
    if lists:
        smaller = g(operator.getitem, g(aten._foreach_mul.Scalar, [grad, square], 0.9), 1)
        added = g(operator.getitem, g(aten._foreach_addcmul.Scalar, [mean, smaller], [grad] * 2, [grad] * 2, 0.1), 1)
        root = g(operator.getitem, g(aten._foreach_sqrt.default, [added]), 0)
    else:
        added = g(aten.add.Tensor, g(aten.mul.Tensor, grad, grad), g(aten.mul.Tensor, square, 0.9))
        root = g(aten.sqrt.default, g(aten.div.Tensor, added, 0.5))
    made = maker_of(g.program(root, g(aten.add.Tensor, g(aten.mul.Tensor, mean, 0.9), grad)))[0].of_rank(0)
    assert (made["square"] > 0).all() and (made["mean"] < 0).any() and (made["grad"] < 0).any()


def test_a_size_without_a_number_gets_one_that_is_said():
    g = Graph()
    env = ShapeEnv()
    n = g.value("n", env.create_unbacked_symint())
    program = g.program(g(aten.zeros.default, [n], val=0))
    maker, _, _ = maker_of(program)
    assert maker.of_rank(0)["n"] == ANY_SIZE
    assert maker.assumed == (f"sizes known only at run time: u0 = {ANY_SIZE}",)
    assert maker_of(program, hints={"u0": 7})[0].of_rank(0)["n"] == 7


def test_a_size_without_a_number_stays_within_its_range():
    g = Graph()
    env = ShapeEnv()
    size = env.create_unbacked_symint()
    torch._check(size <= 4)
    n = g.value("n", size)
    maker, _, _ = maker_of(g.program(g(aten.zeros.default, [n], val=0)))
    assert maker.of_rank(0)["n"] == 4


def test_an_input_of_unknown_kind_names_its_user():
    g = Graph()
    mesh = g.value("mesh", None)
    program = g.program(g(aten.neg.default, mesh, val=torch.empty(2)))
    with pytest.raises(InputError, match=r"'mesh'.*does not say what it is; 'neg_default'"):
        maker_of(program)[0].of_rank(0)


def test_a_graph_without_shapes_is_told_how_to_print_them(tmp_path):
    (tmp_path / "code.py").write_text(
        "def forward(self, x):\n    mm = torch.ops.aten.mm.default(x, x);  x = None\n    return (mm,)\n"
    )
    program = load(tmp_path / "code.py")
    with pytest.raises(InputError, match="the graph does not say its shape") as caught:
        verify_numeric(program, program, Settings(ranks=1))
    assert "gm.print_readable(" in str(caught.value)


@pytest.mark.parametrize(
    ("kernel", "size", "stride", "padding", "dilation", "windows"),
    [
        ((3, 3), (8, 8), (2, 2), (1, 1), (1, 1), (4, 4)),  # the stem of a residual network
        ((2, 2), (7, 6), (2, 2), (1, 1), (1, 1), (4, 4)),
        ((3, 5), (9, 9), (1, 2), (0, 2), (2, 1), (5, 5)),
        ((2,), (6,), (2,), (0,), (1,), (3,)),
    ],
)
def test_places_in_windows_of_a_pooling_are_within_what_was_pooled(kernel, size, stride, padding, dilation, windows):
    """As Inductor saves them for the backward; at the border most places of a window are padding."""
    import torch._inductor.inductor_prims  # it registers the op

    g = Graph()
    places = g.input("places", 1, 2, *windows, dtype=torch.int8)
    op = torch.ops.prims._low_memory_max_pool_offsets_to_indices.default
    flat = g(aten.view.default, g(op, places, kernel, size, stride, padding, dilation), [2, -1])
    zeros = g(aten.full.default, [2, torch.Size(size).numel()], 0.0)
    gradient = g.input("gradient", 2, torch.Size(windows).numel())
    given, ran = run(g.program(g(aten.scatter_add.default, zeros, 1, flat, gradient)))
    torch.testing.assert_close(ran[0].outputs[0].sum(), given[0]["gradient"].sum())
    assert given[0]["places"].unique().numel() > 1 or not any(padding)


def test_weights_of_convolutions_are_small_enough_for_many_layers():
    g = Graph()
    x, weight = g.input("x", 2, 16, 5, 5), g.input("weight", 32, 16, 3, 3)
    cast = g(aten.clone.default, weight)
    out = g(aten.convolution.default, x, cast, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    maker, _, _ = maker_of(g.program(out))
    assert maker.constraints("weight").fan == 32 * 9
    assert maker.of_rank(0)["weight"].std().item() == pytest.approx((32 * 9) ** -0.5, rel=0.1)
    assert maker.constraints("x").fan is None
