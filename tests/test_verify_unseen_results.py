"""Results without a shape: what two calls of one op give is the same, and in memory of its own."""

from __future__ import annotations

import operator

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

from commcc.verify import verify
from tests.random_graphs import GraphBuilder, aten


def two_largest(b, x, *, told):
    node = b.call(aten.topk.default, x, 2)
    values = b.call(operator.getitem, node, 0)
    if not told:
        del node.meta["val"]
    return values


def kernel(b, x, *, told):
    """A dictionary of copies, as kernels of Triton give them."""
    del told
    node = b.graph.call_function(
        triton_kernel_wrapper_functional,
        (),
        {
            "kernel_idx": 0,
            "constant_args_idx": 0,
            "grid": [(1, 1, 1)],
            "tma_descriptor_metadata": {},
            "kwargs": {"out": x},
            "tensors_to_clone": ["out"],
        },
    )
    node.meta["val"] = {"out": x.meta["val"]}
    copied = b.graph.call_function(operator.getitem, (node, "out"))
    copied.meta["val"] = x.meta["val"]
    return copied


CALLS = [(two_largest, True), (two_largest, False), (kernel, True)]


def program(give, calls, *, written=False, apart=False):
    b = GraphBuilder()
    x = b.placeholder("x", (4,), torch.float32)
    one = give[0](b, x, told=give[1])
    other = give[0](b, x, told=give[1]) if calls == 2 else one
    if written:
        b.call(aten.add_.Tensor, one, 1.0)
    outputs = [b.call(aten.mul.Tensor, node, 3.0) for node in (one, other)] if apart else [one, other]
    return b.program(outputs[1:] if written else outputs, {})


@pytest.mark.parametrize("give", CALLS)
def test_two_results_are_not_in_one_memory(give):
    assert verify(program(give, 2), program(give, 2)).status == "proved"
    assert verify(program(give, 2), program(give, 1)).status != "proved"


@pytest.mark.parametrize("give", CALLS)
def test_a_write_to_one_result_does_not_change_the_other(give):
    written = program(give, 2, written=True, apart=True)
    assert verify(written, written).status == "proved"
    assert verify(written, program(give, 1, written=True, apart=True)).status != "proved"


@pytest.mark.parametrize("give", CALLS)
def test_results_that_are_only_read_may_be_of_one_call(give):
    assert verify(program(give, 2, apart=True), program(give, 1, apart=True)).status == "proved"
