"""Samples that attention, views of them and gradients of slices keep apart."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward

from commcc.graph.ops.shown import Shown, shown
from commcc.verify import verify
from commcc.verify.attention import is_attention
from commcc.verify.clones import Mixed, Rows, Total
from commcc.verify.tokens import kinds_of
from tests.chunk_graphs import MOE, Layers, chunked, error

aten = torch.ops.aten
BATCH = ("tokens", 4)
ROWS = Rows(BATCH, 0)


class Called:
    """One op in a graph: ``cut`` names the operands that are split along dimension 0."""

    def __init__(self) -> None:
        self.graph, self.root = fx.Graph(), nn.Module()
        self.entering: dict[str, int] = {}
        self.body: dict[str, fx.Node] = {}

    def tensor(self, *shape: int, cut: int | None = 0, dtype: torch.dtype = torch.float32) -> fx.Node:
        node = self.graph.placeholder(f"t{len(self.graph.nodes)}")
        node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
        if cut is not None:
            self.entering[node.name] = cut
        return node

    def call(self, target, *args, val=None, **kwargs) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = val
        self.body[node.name] = node
        return node

    def inner(self, name: str, graph: fx.Graph) -> fx.Node:
        setattr(self.root, name, fx.GraphModule(self.root, graph))
        return self.graph.get_attr(name)

    def kind(self, node: fx.Node, cut: dict[str, list[int]] | None = None):
        own = set(self.entering) | set(self.body)
        return kinds_of(self.body, self.entering, lambda _: own, cut or {}, self.root)[0][node.name]


def heads(called: Called, count: int, **kwargs) -> list[fx.Node]:
    return [called.tensor(4, 2, 8, 16, **kwargs) for _ in range(count)]


def test_every_fused_kernel_is_told_by_its_arguments():
    names = [name for name in dir(aten) if "attention" in name]
    found = [name for name in names if is_attention(getattr(getattr(aten, name), "default", None))]
    assert {"_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention_backward"} <= set(found)
    assert {"_flash_attention_forward", "_efficient_attention_forward", "scaled_dot_product_attention"} <= set(found)
    writing = getattr(aten, "_flash_attention_forward_no_dropout_inplace", None)  # not in all versions
    assert writing is None or not is_attention(writing.default)
    assert not is_attention(aten.mm.default)


def test_a_fused_kernel_and_its_gradient_keep_samples_apart():
    c = Called()
    q, k, v, grad = heads(c, 4)
    forward = c.call(aten._scaled_dot_product_flash_attention.default, q, k, v, 0.0, True)
    parts = [c.call(operator.getitem, forward, at) for at in range(8)]
    given = (grad, q, k, v, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], 0.0, True, parts[6], parts[7])
    backward = c.call(aten._scaled_dot_product_flash_attention_backward.default, *given)
    assert c.kind(forward)[:2] == (ROWS, ROWS)
    assert set(c.kind(forward)[2:]) == {()}
    assert c.kind(backward) == (ROWS, ROWS, ROWS)


@pytest.mark.parametrize("cut", [True, False])
def test_a_mask_is_of_the_samples_or_one_for_all(cut):
    c = Called()
    q, k, v, grad = heads(c, 4)
    mask = c.tensor(4 if cut else 1, 1, 8, 8, cut=0 if cut else None)
    op = aten._scaled_dot_product_efficient_attention
    forward = c.call(op.default, q, k, v, mask, True, 0.0, True)
    out, sums, seed, offset = (c.call(operator.getitem, forward, at) for at in range(4))
    op = aten._scaled_dot_product_efficient_attention_backward
    given = (grad, q, k, v, mask, out, sums, seed, offset, 0.0, [True] * 4, True)
    assert c.kind(c.call(op.default, *given)) == (ROWS, ROWS, ROWS, ROWS if cut else ())


def packed(c, q, k, v):
    ends = c.tensor(5, cut=None, dtype=torch.int32)
    return c.call(aten._flash_attention_forward.default, q, k, v, ends, ends, 8, 8, 0.0, True, False)


def slopes(c, q, k, v):
    given = (q, k, v, None, None, 8, 8, 0.0, True, False)
    return c.call(aten._flash_attention_forward.default, *given, alibi_slopes=c.tensor(2, cut=None))


SDPA = aten.scaled_dot_product_attention.default
MIXING = {
    "dropout": lambda c, q, k, v: c.call(SDPA, q, k, v, None, 0.1),
    "one key for all": lambda c, q, k, v: c.call(SDPA, q, c.tensor(4, 2, 8, 16, cut=None), v),
    "a mask of all samples": lambda c, q, k, v: c.call(SDPA, q, k, v, c.tensor(4, 1, 8, 8, cut=None)),
    "a mask cut along the keys": lambda c, q, k, v: c.call(SDPA, q, k, v, c.tensor(8, 4, cut=1)),
    "heads that are cut": lambda c, q, k, v: c.call(SDPA, *(c.tensor(2, 4, 8, 16, cut=1) for _ in "qkv")),
    "rows that attend": lambda c, q, k, v: c.call(SDPA, *(c.tensor(4, 16) for _ in "qkv")),
    "keys of other samples": lambda c, q, k, v: c.call(SDPA, q, c.tensor(8, 2, 8, 16), v),
    "sequences packed into rows": packed,
    "what is not known": slopes,
}


@pytest.mark.parametrize("case", MIXING)
def test_attention_that_may_look_at_other_samples_mixes(case):
    c = Called()
    node = MIXING[case](c, *heads(c, 3))
    with pytest.raises(Mixed, match="attention"):
        c.kind(node)


# flex_attention


def masking(table: str | None = None) -> fx.Graph:
    """Causal, and within a document if there is a table; ``table`` says how it is read."""
    graph = fx.Graph()
    b, _head, i, j = (graph.placeholder(name) for name in "bhij")
    kept = graph.call_function(aten.ge.Tensor, (i, j))
    if table is not None:
        docs = graph.placeholder("docs")
        first = {"own": b, "place": i, "next": None}[table]
        first = graph.call_function(aten.add.Tensor, (b, 1)) if first is None else first
        row = graph.call_function(aten.index.Tensor, (docs, [first, j]))
        kept = graph.call_function(aten.mul.Tensor, (kept, row))
    graph.output(kept)
    return graph


def scoring(number: bool = False) -> fx.Graph:
    graph = fx.Graph()
    score, b, *_ = (graph.placeholder(name) for name in "sbhij")
    graph.output(graph.call_function(aten.add.Tensor, (score, b)) if number else score)
    return graph


def flexible(c, mask, *, tables=(), score=None, blocks=1, cut=None):
    q, k, v = heads(c, 3)
    held = [c.tensor(blocks, 1, 1, cut=cut, dtype=torch.int32) for _ in range(2)]
    score = c.inner("scores", score or scoring())
    given = (8, 8, *held, None, None, None, None, None, None, 8, 8, c.inner("mask", mask))
    return c.call(flex_attention, q, k, v, score, given, 0.25, {}, (), tuple(tables))


def test_flexible_attention_within_samples():
    c = Called()
    assert c.kind(flexible(c, masking())) == (ROWS, ROWS, ())
    c = Called()
    docs = c.tensor(4, 8, dtype=torch.int64)
    assert c.kind(flexible(c, masking("own"), tables=[docs], blocks=4, cut=0)) == (ROWS, ROWS, ())


def test_the_gradient_of_flexible_attention():
    c = Called()
    q, k, v, out, grad = heads(c, 5)
    sums = c.tensor(4, 2, 8)
    joint = scoring()
    graphs = (c.inner("scores", scoring()), c.inner("joint", joint))
    blocks = (8, 8, *(None,) * 8, 8, 8, c.inner("mask", masking()))
    given = (q, k, v, out, sums, grad, None, *graphs, blocks, 0.25, {})
    assert c.kind(c.call(flex_attention_backward, *given, (), ())) == (ROWS, ROWS, ROWS, ())
    with pytest.raises(Mixed, match="what scores are made of"):
        c.kind(c.call(flex_attention_backward, *given, (c.tensor(2, cut=None),), ()))


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        ("next", {"docs": 0}),  # the row of another sample
        ("own", {"docs": None}),  # one table, of which a chunk would read the first rows
        ("place", {"docs": 0}),  # read by place, though it is cut by sample
        ("own", {"docs": 1}),
        (None, {"score": scoring(number=True)}),
        (None, {"blocks": 4}),  # blocks of all samples
        (None, {"graph": False}),
    ],
)
def test_flexible_attention_that_looks_at_other_samples_mixes(mask, options):
    c = Called()
    options = dict(options)
    tables = [c.tensor(8, 8, cut=options.pop("docs"), dtype=torch.int64)] if "docs" in options else []
    if tables and tables[0].name in c.entering and c.entering[tables[0].name] == 0:
        tables[0].meta["val"] = torch.empty(4, 8, dtype=torch.int64, device="meta")
    held = options.pop("graph", True)
    node = flexible(c, masking(mask), tables=tables, **options)
    if not held:
        del c.root.mask
    with pytest.raises(Mixed, match=r"attention|block_mask"):
        c.kind(node)


# Views


VIEWS = {
    "complex": (aten.view_as_complex.default, (5, 3, 2), 0, (), Shown(0, True)),
    "complex, later": (aten.view_as_complex.default, (3, 5, 2), 1, (), Shown(1, True)),
    "parts": (aten.view_as_complex.default, (3, 5, 2), 2, (), None),
    "turned": (aten.movedim.int, (5, 3, 2), 0, (0, 2), Shown(2, True)),
    "windows": (aten.unfold.default, (5, 6), 0, (1, 2, 1), Shown(0, True)),
    "windows of rows": (aten.unfold.default, (6, 5), 0, (0, 2, 1), None),
    "diagonal": (aten.diagonal.default, (5, 3, 3), 0, (0, 1, 2), Shown(0, True)),
    "diagonal over rows": (aten.diagonal.default, (5, 5), 0, (), None),
    "bits": (aten.view.dtype, (5, 4), 0, (torch.int32,), Shown(0, False)),
    "halves": (aten.view.dtype, (5, 4), 0, (torch.int16,), Shown(0, False)),
    "halves of rows": (aten.view.dtype, (4, 6), 1, (torch.int16,), None),
    "narrow": (aten.narrow.default, (5, 4), 0, (1, 1, 2), Shown(0, True)),
    "narrow rows": (aten.narrow.default, (5, 4), 0, (0, 1, 2), None),
    "strided": (aten.as_strided.default, (5, 4), 0, ([5, 4], [4, 1]), None),
    "no view": (aten.relu.default, (5, 4), 0, (), None),
}


@pytest.mark.parametrize("case", VIEWS)
def test_where_a_view_has_its_rows(case):
    op, shape, dim, args, expected = VIEWS[case]
    c = Called()
    node = c.call(op, c.tensor(*shape), *args)
    found = shown(node, dim)
    assert found == expected
    if found is not None:  # every row of the view is that of the tensor, in chunks as in the whole
        whole = torch.randn(shape)
        parts = [op(part.clone(), *args) for part in whole.split((2, shape[dim] - 2), dim)]
        assert torch.equal(torch.cat(parts, found.dim), op(whole, *args))


def test_a_view_of_a_sum_is_a_sum_if_it_takes_numbers_as_they_are():
    for dtype, kind in ((torch.complex64, Total()), (torch.int32, None)):
        c = Called()
        total = c.call(aten.sum.dim_IntList, c.tensor(4, 6, 2), [0], val=torch.empty(6, 2, device="meta"))
        real = dtype is torch.complex64
        bits = torch.ops.prims.view_of_dtype.default
        val = torch.empty(6, dtype=dtype, device="meta") if real else torch.empty(6, 2, dtype=dtype, device="meta")
        given = (aten.view_as_complex.default, total) if real else (bits, total, dtype)
        seen = c.call(*given, val=val)
        if kind is not None:
            assert c.kind(seen) == kind
        else:
            with pytest.raises(Mixed):
                c.kind(seen)


# Gradients of slices


@pytest.mark.parametrize(
    ("op", "shape", "dim", "args", "cut", "place"),
    [
        (aten.slice_backward.default, (4, 3), 0, ([4, 6], 1, 0, 3, 1), [0], 0),
        (aten.slice_backward.default, (4, 3), 0, ([4, 6], 1, 0, 3, 1), None, None),  # as large as the whole
        (aten.slice_backward.default, (4, 6), 0, ([8, 6], 0, 0, 4, 1), [0], None),  # of the rows themselves
        (aten.select_backward.default, (4, 6), 0, ([3, 4, 6], 0, 1), [1], 1),
        (aten.select_backward.default, (4, 6), 0, ([4, 3, 6], 1, 1), [0], 0),
        (aten.select_backward.default, (4, 6), 0, ([3, 4, 6], 0, 1), [2], None),  # another dimension is cut
    ],
)
def test_zeros_around_what_was_sliced(op, shape, dim, args, cut, place):
    c = Called()
    node = c.call(op, c.tensor(*shape, cut=dim), *args, val=torch.empty(args[0], device="meta"))
    given = {} if cut is None else {node.name: cut}
    if place is None:
        with pytest.raises(Mixed):
            c.kind(node, given)
    else:
        assert c.kind(node, given) == Rows(BATCH, place)


def test_what_is_put_into_rows_is_theirs():
    val = torch.empty(4, 6, device="meta")
    for shape, cut, place in (((4, 6), 0, 1), ((4, 6), None, 1), ((8, 6), 0, 1), ((6, 4), 1, 1), ((4, 6), 0, 0)):
        c = Called()
        x, y = c.tensor(*shape, cut=cut), c.tensor(4, 3)
        node = c.call(aten.slice_scatter.default, x, y, place, 0, 3, val=val)
        if (shape, cut, place) == ((4, 6), 0, 1):
            assert c.kind(node) == ROWS
        else:
            with pytest.raises(Mixed, match=r"another order|rows are written"):
                c.kind(node)


# Whole layers


def rotated(b: Layers, x: fx.Node, form: str) -> fx.Node:
    """Queries turned by their place, in numbers of two parts or by halves."""
    if form == "complex":
        angle = b.call(
            aten.view_as_complex.default, b.described("angle", (6, 2, 2), torch.float64, "BufferAOTInput(target='a')")
        )
        pairs = b.call(aten.view_as_complex.default, b.call(aten.view.default, x, [4, 2, 6, 2, 2]))
        turned = b.call(aten.view_as_real.default, b.call(aten.mul.Tensor, pairs, angle))
        return b.call(aten.view.default, turned, [4, 2, 6, 4])
    left, right = (b.call(aten.slice.Tensor, x, 3, at, at + 2) for at in (0, 2))
    back = [
        b.call(aten.slice_backward.default, part, [4, 2, 6, 4], 3, at, at + 2, 1)
        for part, at in ((b.call(aten.neg.default, right), 0), (left, 2))
    ]
    return b.call(aten.add.Tensor, *back)


@pytest.mark.parametrize("form", ["complex", "half"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_layer_with_attention_is_proved(form, masked):
    b = Layers()
    x = b.tokens("x", 4, 6, 8)
    mask = b.tokens("mask", 4, 1, 6, 6) if masked else None
    with b.module("layers.0.mixer"):
        queries = b.call(aten.transpose.int, b.call(aten.view.default, x, [4, 6, 2, 4]), 1, 2)
        turned = rotated(b, queries, form)
        op = aten._scaled_dot_product_flash_attention_for_cpu.default
        out = b.call(operator.getitem, b.call(op, turned, turned, queries, 0.0, False, attn_mask=mask), 0)
        flat = b.call(aten.reshape.default, b.call(aten.transpose.int, out, 1, 2), [24, 8])
    with b.module(MOE):
        route = b.dispatch(flat)
        y = b.combine(b.call(aten.mul.Tensor, route.rows, 2.0), route)
    with b.module("layers.0"):
        last = b.call(aten.add.Tensor, b.call(aten.view.default, y, [4, 6, 8]), x)
    before = b.done([last])
    after = chunked(before, "layers.*")
    assert verify(before, after).unproved == ()
    assert error(before, after) < 1e-12
