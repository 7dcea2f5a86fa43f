"""How ops run: free, fusable, or a kernel of their own; which reshapes copy, against PyTorch."""

from __future__ import annotations

import math
import operator
from itertools import product

import pytest
import torch
from torch._inductor import inductor_prims  # noqa: F401  registers resize_storage_bytes_
from torch._subclasses.fake_tensor import FakeTensorMode

from commcc.graph.index import build_index
from commcc.graph.index.estimates import copies, viewable
from commcc.graph.ops import OpaqueOp
from commcc.graph.ops.kernels import Work, may_copy, resized_to, work_of
from tests.random_graphs import GraphBuilder, aten, c10d, getitem

# How an op runs


@pytest.mark.parametrize(
    ("target", "work"),
    [
        (aten.view.default, Work.FREE),
        (aten.t.default, Work.FREE),
        (aten.slice.Tensor, Work.FREE),
        (aten.expand.default, Work.FREE),
        (aten.split.Tensor, Work.FREE),
        (aten._unsafe_view.default, Work.FREE),
        (aten.reshape.default, Work.FREE),
        (aten.detach.default, Work.FREE),
        (aten.empty.memory_format, Work.FREE),
        (aten.new_empty_strided.default, Work.FREE),
        (aten.sym_size.int, Work.FREE),
        (torch.ops.inductor.resize_storage_bytes_.default, Work.FREE),
        (c10d.wait_tensor.default, Work.FREE),
        (operator.getitem, Work.FREE),
        (aten.mul.Tensor, Work.FUSABLE),
        (aten.silu.default, Work.FUSABLE),
        (aten.sum.dim_IntList, Work.FUSABLE),
        (aten.amax.default, Work.FUSABLE),
        (aten._to_copy.default, Work.FUSABLE),
        (aten.clone.default, Work.FUSABLE),
        (aten.full.default, Work.FUSABLE),
        (aten.arange.default, Work.FUSABLE),
        (aten._softmax.default, Work.FUSABLE),
        (aten.native_layer_norm.default, Work.FUSABLE),
        (aten.native_dropout.default, Work.FUSABLE),
        (torch.ops.prims.convert_element_type.default, Work.FUSABLE),
        (aten.mm.default, Work.KERNEL),
        (aten.convolution.default, Work.KERNEL),
        (aten._scaled_dot_product_flash_attention.default, Work.KERNEL),
        (aten.add_.Tensor, Work.KERNEL),
        (aten.copy_.default, Work.KERNEL),
        (aten.cat.default, Work.KERNEL),
        (aten.embedding.default, Work.KERNEL),
        (aten.embedding_dense_backward.default, Work.KERNEL),
        (aten.index_put.default, Work.KERNEL),
        (aten.sort.default, Work.KERNEL),
        (aten.nonzero.default, Work.KERNEL),
        (OpaqueOp("mylib.fast_norm.default"), Work.KERNEL),
    ],
    ids=str,
)
def test_how_an_op_runs(target, work):
    assert work_of(target) is work


def works(builder, *outputs):
    index = build_index(builder.program(list(outputs), {"0": 2}))
    return dict(zip(index.names, index.estimates.work, strict=True))


def test_how_nodes_run():
    b = GraphBuilder()
    x = b.placeholder("x", (4, 6), torch.float32)
    constant = b.graph.get_attr("table")
    constant.meta["val"] = x.meta["val"]
    product_ = b.call(aten.mm.default, x, b.call(aten.t.default, x))
    summed = b.call(aten.sum.default, product_)
    scalar = b.graph.call_function(aten._local_scalar_dense.default, (b.call(aten.full.default, [], 1.0),))
    scalar.meta["val"] = 1.0
    full = b.gather(summed, 2, "0")
    found = works(b, full, scalar)
    assert [work.value for work in found.values()] == [
        *("free", "free", "free", "kernel", "fusable", "fusable", "kernel", "kernel", "free", "free")
    ]


def test_numbers_of_the_host_are_free():
    b = GraphBuilder()
    x = b.placeholder("x", (4, 6), torch.float32)
    size = b.graph.call_function(aten.sym_size.int, (x, 0))
    size.meta["val"] = 4
    twice = b.graph.call_function(operator.mul, (size, 2))
    twice.meta["val"] = 8
    unknown = b.graph.call_function(operator.floordiv, (twice, 2))
    opaque = b.graph.call_function(OpaqueOp("mylib.f.default"), (x,))
    asserts = b.graph.call_function(aten._assert_scalar.default, (size, "four"))
    found = works(b, x)
    names = (size, twice, unknown, asserts, opaque)
    assert [found[node.name].value for node in names] == ["free", "free", "free", "free", "kernel"]


def test_a_tuple_of_tensors_is_a_result():
    b = GraphBuilder()
    x = b.placeholder("x", (4, 6), torch.float32)
    both = b.call(aten.max.dim, x, 0)
    nested = b.graph.call_function(OpaqueOp("mylib.pair.default"), (x,))
    nested.meta["val"] = [(1, x.meta["val"]), None]
    nothing = b.graph.call_function(OpaqueOp("mylib.none.default"), (x,))
    nothing.meta["val"] = [(1, 2), None]
    found = works(b, getitem(b, both, 0))
    assert [found[n.name].value for n in (both, nested, nothing)] == ["fusable", "kernel", "free"]


@pytest.mark.parametrize(
    ("make", "work"),
    [
        (lambda b, x: b.call(aten.reshape.default, x, [24]), Work.FREE),
        (lambda b, x: b.call(aten.reshape.default, b.call(aten.t.default, x), [24]), Work.KERNEL),
        (lambda b, x: b.call(aten.flatten.using_ints, b.call(aten.t.default, x)), Work.KERNEL),
        (lambda b, x: b.call(aten.contiguous.default, x), Work.FREE),
        (lambda b, x: b.call(aten.contiguous.default, b.call(aten.t.default, x)), Work.FUSABLE),
        (lambda b, x: b.call(aten.to.dtype, x, torch.float32), Work.FREE),
        (lambda b, x: b.call(aten.to.dtype, x, torch.float64), Work.FUSABLE),
        (lambda b, x: b.call(aten.to.dtype, x, torch.float32, False, True), Work.FUSABLE),
    ],
)
def test_ops_that_copy_only_where_they_must(make, work):
    b = GraphBuilder()
    made = make(b, b.placeholder("x", (4, 6), torch.float32))
    assert may_copy(made.target)
    assert works(b, made)[made.name] is work


def test_ops_that_never_copy():
    for target in (aten.view.default, aten.clone.default, aten.t.default, aten.mm.default):
        assert not may_copy(target)


@pytest.mark.parametrize(("device", "copied"), [("cpu", False), ("cuda:0", True)])
def test_a_copy_to_another_device(device, copied):
    b = GraphBuilder()
    x = b.placeholder("x", (4,), torch.float32)
    moved = b.graph.call_function(aten.to.device, (x, torch.device(device), torch.float32))
    with b.mode:
        moved.meta["val"] = torch.empty(4, device=device)
    assert copies(moved) == copied


def test_symbolic_sizes_are_taken_to_allow_a_view():
    b = GraphBuilder()
    b.mode = FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())
    x = b.graph.placeholder("x")
    x.meta["val"] = b.mode.from_tensor(torch.empty(6, 5), static_shapes=False)
    y = b.call(aten.contiguous.default, b.call(aten.t.default, x))
    assert not copies(y)
    del x.meta["val"]
    assert not copies(b.graph.call_function(aten.contiguous.default, (x,)))
    assert not copies(b.graph.call_function(aten.contiguous.default, ()))
    unknown = b.graph.call_function(aten.contiguous.default, (x,))
    unknown.meta["val"] = y.meta["val"]
    assert not copies(unknown)


def test_strides_of_single_elements_decide_nothing():
    b = GraphBuilder()
    x = b.placeholder("x", (2, 3), torch.float32)
    column = b.call(aten.select.int, x, 1, 0)
    assert copies(b.call(aten.contiguous.default, column))
    odd = b.graph.placeholder("odd")
    same = b.graph.call_function(aten.reshape.default, (odd, [1, 4]))
    with b.mode:
        odd.meta["val"], same.meta["val"] = torch.empty_strided((1, 4), (7, 1)), torch.empty(1, 4)
    assert not copies(same)


def test_whether_a_shape_can_be_seen_as_another():
    """Against PyTorch: all views of small strided tensors, under all shapes of as many elements."""
    layouts = [torch.empty(4, 6), torch.empty(4, 6).t(), torch.empty(2, 3, 4).permute(0, 2, 1)]
    layouts += [
        torch.empty(8, 6)[::2],
        torch.empty(4, 8)[:, :6],
        torch.empty(1, 24),
        torch.empty(6, 1, 4).permute(2, 1, 0),
    ]
    layouts += [torch.empty(24, 3)[:, 0], torch.empty(3, 1).expand(3, 8), torch.empty(2, 2, 6)[:, :, ::1]]
    layouts += [torch.empty(0, 3).t(), torch.empty(()), torch.empty(1, 1), torch.empty(1, 2, 3).expand(4, 2, 3)]
    seen = {True: 0, False: 0}
    shapes = [shape for dims in range(4) for shape in product((0, 1, 2, 3, 4, 6, 8, 12, 24), repeat=dims)]
    for tensor in layouts:
        for shape in (shape for shape in shapes if math.prod(shape) == tensor.numel()):
            facts = (tuple(tensor.shape), tensor.stride(), shape)
            can = views(tensor, shape)
            assert viewable(*facts) == can, facts
            seen[can] += 1
    assert min(seen.values()) > 100


def views(tensor, shape) -> bool:
    try:
        tensor.view(shape)
    except RuntimeError:
        return False
    return True


def test_resizes():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    resize = torch.ops.inductor.resize_storage_bytes_.default
    assert resized_to(b.call(resize, x, 40)) == 40
    assert resized_to(b.call(resize, x, 0)) == 0
    assert resized_to(b.call(aten.fill_.Scalar, x, 7)) is None
    assert resized_to(x) is None


def test_a_resize_to_less_than_nothing_counts_as_nothing():
    b = GraphBuilder()
    x = b.placeholder("x", (10,), torch.float32)
    node = b.graph.call_function(torch.ops.inductor.resize_storage_bytes_.default, (x, -7))
    index = build_index(b.program([], {}))
    assert index.estimates.resizes == {index.position[node.name]: 0}
