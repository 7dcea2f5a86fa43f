"""What stands in for ops without a CPU kernel computes what they compute, forward and backward."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from commcc.base.errors import InputError
from commcc.graph.collectives import identify
from commcc.replay.inputs import InputMaker
from commcc.replay.kernels import stand_in
from commcc.replay.layout import Layout
from commcc.replay.numeric import Settings, verify_numeric
from commcc.replay.prepare import prepare
from commcc.replay.virtual import StepError, VirtualRun
from tests.verify_graphs import Graph

aten = torch.ops.aten
FLASH, CUDNN, EFFICIENT = (
    (getattr(aten, f"_scaled_dot_product_{n}_attention"), getattr(aten, f"_scaled_dot_product_{n}_attention_backward"))
    for n in ("flash", "cudnn", "efficient")
)


def heads(count, length=6, size=8, dtype=torch.float64, seed=0):
    return torch.randn(2, count, length, size, dtype=dtype, generator=torch.Generator().manual_seed(seed + count))


def reference(q, k, v, *, causal, scale=None):
    """PyTorch's own attention and its gradients, by its plain kernel."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    with sdpa_kernel(SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    grad = heads(q.shape[1], seed=9)
    return out, grad, torch.autograd.grad(out, (q, k, v), grad)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_flash_attention(causal, kv_heads, scale):
    q, k, v = heads(4), heads(kv_heads, seed=1), heads(kv_heads, seed=2)
    expected, grad, grads = reference(q, k, v, causal=causal, scale=scale)
    forward, backward = (stand_in(op.default, wide=False) for op in FLASH)
    out, sums, first, second, longest, _, seed, offset, _ = forward(q, k, v, 0.0, causal, scale=scale)
    torch.testing.assert_close(out, expected)
    assert sums.shape == (2, 4, 6)
    found = backward(grad, q, k, v, out, sums, first, second, longest, 6, 0.0, causal, seed, offset, scale=scale)
    for one, other in zip(found, grads, strict=True):
        torch.testing.assert_close(one, other)


def test_other_kinds_of_attention():
    q, k, v = heads(4), heads(4, seed=1), heads(4, seed=2)
    expected, grad, grads = reference(q, k, v, causal=True)
    forward, backward = (stand_in(op.default, wide=False) for op in CUDNN)
    out, sums, *rest = forward(q, k, v, None, True, 0.0, True)
    torch.testing.assert_close(out, expected)
    state = torch.zeros(())
    found = backward(grad, q, k, v, out, sums.unsqueeze(-1), state, state, None, rest[0], rest[1], 6, 6, 0.0, True)
    torch.testing.assert_close(found, grads)
    forward, backward = (stand_in(op.default, wide=False) for op in EFFICIENT)
    bias = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    out, sums, *_ = forward(q, k, v, bias, True, 0.0, False)
    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(out, expected)
    padded = torch.nn.functional.pad(sums, (0, 26))  # as CUDA has it
    found = backward(grad, q, k, v, None, out, sums, state, state, 0.0, [True, True, True, False], False)
    again = backward(grad, q, k, v, None, out, padded, state, state, 0.0, [True, True, True, False], False)
    assert found[3] is None
    torch.testing.assert_close(found[:3], again[:3], rtol=0, atol=0)


def test_dropout_has_no_stand_in():
    q = heads(2)
    with pytest.raises(NotImplementedError, match="dropout"):
        stand_in(FLASH[0].default, wide=False)(q, q, q, 0.1)


def test_grouped_products_agree_with_pytorchs():
    """In bfloat16 PyTorch has its own; small whole numbers are exact in both."""
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randint(-2, 3, shape, generator=generator).double() for shape in ((24, 16), (3, 16, 8), (24, 8))]
    ends = torch.tensor([8, 8, 24], dtype=torch.int32)
    product = stand_in(aten._grouped_mm.default, wide=True)
    assert stand_in(aten._grouped_mm.default, wide=False) is None
    rows, weights, columns = whole
    for one, other in ((rows, weights), (rows.t().contiguous(), columns)):
        expected = aten._grouped_mm.default(one.bfloat16(), other.bfloat16(), ends)
        assert torch.equal(product(one, other, ends), expected.double())
    turned = product(weights.transpose(1, 2), rows.t().contiguous(), ends)
    assert torch.equal(turned.t(), product(rows, weights, ends))


def attention(damage=False):
    """A backward pass over saved values: whatever they are, its input for the log-sum-exp must keep it finite."""
    g = Graph()
    grad, q, k, v, out = (g.input(n, 2, 4, 6, 8, dtype=torch.bfloat16) for n in ("grad", "q", "k", "v", "out"))
    sums, state = g.input("sums", 2, 4, 6), g.input("state", 2, dtype=torch.int64)
    with g.mode:
        vals = tuple(torch.empty(2, 4, 6, 8, dtype=torch.bfloat16) for _ in range(3))
    keys = q if damage else k
    made = g(FLASH[1].default, grad, q, keys, v, out, sums, None, None, 6, 6, 0.0, True, state, state, val=vals)
    parts = [g(operator.getitem, made, i, val=vals[i]) for i in range(3)]
    return g.program(*parts)


def test_a_backward_of_attention_runs_on_made_up_values():
    prepared = prepare(attention())
    maker = InputMaker(prepared, identify(prepared.index), Layout(1, {}), 0)
    assert maker.constraints("sums").log_sums == 6
    results = VirtualRun(prepared, Layout(1, {}))([maker.of_rank(0)])
    assert all(value.isfinite().all() and value.abs().max() > 0 for value in results[0].outputs)
    assert verify_numeric(attention(), attention(), Settings()).status == "equal"
    assert verify_numeric(attention(), attention(damage=True), Settings()).status == "different"


def test_what_has_neither_kernel_nor_stand_in_is_refused():
    g = Graph()
    x, w = g.input("x", 1, 2, 4, 4), g.input("w", 2, 2, 3, 3)
    product = g(aten.cudnn_convolution.default, x, w, [1, 1], [1, 1], [1, 1], 1, False, False, True, val=x.meta["val"])
    with pytest.raises(InputError, match=r"aten\.cudnn_convolution has no CPU kernel"):
        prepare(g.program(product))


def test_sparse_tensors_are_not_blamed_on_the_kernel():
    g = Graph()
    made = aten._sparse_coo_tensor_with_dims_and_tensors.default
    sparse = g(made, 1, 1, [4, 3], g.input("i", 1, 2), g.input("v", 2, 3), dtype=torch.float32, val=torch.empty(4, 3))
    with pytest.raises(InputError, match=r"works on sparse tensors, for which no values are made$"):
        prepare(g.program(sparse))


def test_bytes_are_others_in_float64():
    g = Graph()
    x = g.input("x", 4, dtype=torch.bfloat16)
    program = g.program(g(aten.view.dtype, x, torch.uint8))
    assert verify_numeric(program, program, Settings()).status == "equal"
    with pytest.raises(InputError, match="reads bytes, which are others in float64"):
        verify_numeric(program, program, Settings(wide=True))


def test_a_step_error_names_the_node():
    g = Graph()
    x = g.input("x", 4)
    program = g.program(g(aten.bitwise_not.default, x, val=x.meta["val"], name="broken"))
    prepared = prepare(program)
    with pytest.raises(StepError, match=r"node 'broken' \(aten.bitwise_not\) fails: "):
        VirtualRun(prepared, Layout(1, {}))([{"x": torch.ones(4)}])
