"""Times of single ops, worked out by hand from the figures of the device files."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch

from commcc.graph.index import Tensor
from commcc.graph.ops.flops import is_unmasked
from commcc.timing.cost.devices import load_device
from commcc.timing.cost.roofline import family, operation_price
from commcc.timing.cost.types import Operation, Price

H100 = load_device("h100")
ATEN = torch.ops.aten
#: Ops with what follows query, key and value, and whether they say that nothing is masked.
ATTENTION = [
    (ATEN._scaled_dot_product_flash_attention.default, (), True),
    (ATEN._scaled_dot_product_flash_attention.default, (0.0, True), False),
    (ATEN._scaled_dot_product_cudnn_attention.default, (None, True, 0.1, False), True),
    (ATEN._scaled_dot_product_cudnn_attention.default, (None, True, 0.1, True), False),
    (ATEN._efficient_attention_forward.default, (None, None, None, None, None, 0.0, 0), True),
    (ATEN._efficient_attention_forward.default, (None, None, None, None, None, 0.0, 1), False),
    (torch.ops.higher_order.flex_attention, (), False),
]
SIZES = {"bfloat16": 2, "float32": 4, "float64": 8, "int64": 8, "float8_e4m3fn": 1, "complex64": 8}


def tensor(*shape: int, dtype: str = "bfloat16", device: str = "cuda:0") -> Tensor:
    return Tensor(dtype, SIZES[dtype], shape, device, prod(shape))


def mm(m: int, k: int, n: int, dtype: str = "bfloat16") -> Operation:
    a, b, out = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), tensor(m, n, dtype=dtype)
    return Operation(
        op="aten.mm",
        inputs=(a, b),
        outputs=(out,),
        flops=2 * m * k * n,
        compute=True,
        read_bytes=a.bytes + b.bytes,
        written_bytes=out.bytes,
    )


def test_a_large_matmul():
    # 2 * 8192**3 FLOPs / (0.80 * 989.4e12) = 1389.114 us, and 5 us to fill and drain
    assert operation_price(H100, mm(8192, 8192, 8192)) == Price(1_394_114, "compute", 2000)


def test_a_small_matmul_is_far_from_the_peak():
    # 2 * 1024**3 / 791.52e12 = 2.713 us, and 5 us
    price = operation_price(H100, mm(1024, 1024, 1024))
    assert price.ns == 7713
    # where the FLOPs alone take 5 us, the rate is half of the achievable one
    half = replace(mm(1024, 1024, 1024), flops=int(5e-6 * 791.52e12))
    assert operation_price(H100, half).ns == 10_000


def test_a_thin_matmul_waits_for_memory():
    # 2 * (8192 * 8192 + 8192 + 8192) bytes / 3015e9 = 44.528 us; its FLOPs would take 5.17 us
    price = operation_price(H100, mm(1, 8192, 8192))
    assert (price.ns, price.how) == (44_528, "memory")


def test_a_pointwise_op_is_as_fast_as_the_memory():
    x = tensor(1 << 25)
    add = Operation("aten.add", (x, x), (x,), read_bytes=2 * x.bytes, written_bytes=x.bytes)
    # 3 * 64 MiB / (0.90 * 3350e9)
    assert operation_price(H100, add) == Price(66_775, "memory", 2000)


def test_a_tiny_op_takes_a_kernel():
    x = tensor(8)
    add = Operation("aten.add", (x, x), (x,), read_bytes=32, written_bytes=16)
    assert operation_price(H100, add) == Price(2000, "kernel", 2000)
    assert operation_price(H100, replace(add, kernels=3)).ns == 6000
    assert operation_price(H100, replace(add, kernels=0, read_bytes=0, written_bytes=0)) == Price(0, "kernel", 0)


def test_attention():
    q = tensor(2, 32, 4096, 128)
    flops = 4 * 2 * 32 * 4096 * 4096 * 128
    op = Operation("aten._scaled_dot_product_flash_attention", (q, q, q), (q,), flops, True, 3 * q.bytes, q.bytes)
    # half of 549.756e9 FLOPs (causal) / (0.35 * 989.4e12) = 793.780 us, and 5 us
    assert operation_price(H100, op) == Price(798_780, "compute", 2000)
    everything = replace(H100, compute=replace(H100.compute, attention_share=1.0))
    assert operation_price(everything, op).ns == 1_592_559
    assert operation_price(H100, replace(op, unmasked=True)).ns == 1_592_559


@pytest.mark.parametrize(("op", "masks", "unmasked"), ATTENTION)
def test_attention_that_says_that_it_has_no_mask(op, masks, unmasked):
    graph = torch.fx.Graph()
    held = [graph.placeholder(name) for name in "qkv"]
    for node in held:
        node.meta["val"] = torch.empty(2, 4, 128, 64, device="meta")
    called = graph.call_function(op, (*held, *masks))
    called.meta["val"] = torch.empty(2, 4, 128, 64, device="meta")
    assert is_unmasked(called) is unmasked


def test_no_formula():
    x = tensor(1 << 25)
    op = Operation("aten.mystery_mm", (x,), (x,), None, True, x.bytes, x.bytes)
    price = operation_price(H100, op)
    assert price == Price(44_517, "memory", 2000, "no FLOP formula for aten.mystery_mm: priced by the bytes it moves")
    assert operation_price(H100, replace(op, compute=False)).note is None


def test_float32_matmuls_use_tf32_only_where_the_file_says_so():
    # 2 * 4096**3 / (0.80 * 67e12) and / (0.80 * 494.7e12)
    assert operation_price(H100, mm(4096, 4096, 4096, "float32")).ns == 2_569_160
    fast = replace(H100, compute=replace(H100.compute, float32_matmul="tfloat32"))
    assert operation_price(fast, mm(4096, 4096, 4096, "float32")).ns == 352_279
    assert operation_price(fast, mm(4096, 4096, 4096, "float32")).note is None


def test_float32_convolutions_use_tf32_unless_the_file_says_nothing():
    x = tensor(64, 256, 14, 14, dtype="float32")
    op = Operation("aten.convolution_backward", (x, x, x), (x, x), 29_595_009_024, True, 1, 1)
    # / (0.30 * 494.7e12), and 5 us
    assert operation_price(H100, op).ns == 204_414
    plain = replace(H100, compute=replace(H100.compute, float32_convolution="float32"))
    assert operation_price(plain, op).ns == 1_477_389


@pytest.mark.parametrize(
    ("device", "dtype", "used", "peak"),
    [
        ("a100", "float8_e4m3fn", "float16", 312),
        ("cpu", "bfloat16", "float32", 0.768),
        ("cpu", "float8_e4m3fn", "float32", 0.768),
    ],
)
def test_a_dtype_without_a_peak(device: str, dtype: str, used: str, peak: float):
    found = load_device(device)
    price = operation_price(found, mm(8192, 8192, 8192, dtype))
    us = found.compute.ramp_us + 2 * 8192**3 / (1e6 * peak * found.compute.achievable["matmul"])
    assert price.ns == round(1000 * us)
    assert price.note == f"the device states no peak for {dtype.split('_')[0]}: that of {used} is taken"


@pytest.mark.parametrize(("dtype", "peak"), [("float8_e4m3fn", 1978.9), ("complex64", 67), ("int64", 67)])
def test_other_dtypes(dtype: str, peak: float):
    price = operation_price(H100, mm(8192, 8192, 8192, dtype))
    assert price.ns == round(1000 * (5 + 2 * 8192**3 / (0.8e6 * peak)))
    assert price.note is None


def test_the_host():
    x = tensor(1 << 20, dtype="int64")
    copy = Operation("aten._to_copy", (x,), (x,), kernels=0, host_bytes=x.bytes)
    # 8 MiB / 55e9, then with 20 us of waiting
    assert operation_price(H100, copy) == Price(152_520, "host", 0)
    assert operation_price(H100, replace(copy, host_sync=True)) == Price(172_520, "host", 0)
    item = Operation("aten._local_scalar_dense", (tensor(1),), (), kernels=0, host_sync=True, host_bytes=2)
    assert operation_price(H100, item) == Price(20_000, "host", 0)


def test_a_sync_comes_on_top_of_what_the_op_does():
    x = tensor(1 << 25)
    nonzero = Operation("aten.nonzero", (x,), (), read_bytes=x.bytes, host_sync=True)
    assert operation_price(H100, nonzero) == Price(22_258 + 20_000, "memory", 2000)


def test_families():
    assert {
        op: family(op)
        for op in (
            "aten.mm",
            "aten._grouped_mm",
            "aten._scaled_grouped_mm",
            "aten._scaled_dot_product_flash_attention_backward",
            "aten._scaled_mm",
            "aten.convolution_backward",
            "aten.linear",
        )
    } == {
        "aten.mm": "matmul",
        "aten._grouped_mm": "grouped_matmul",
        "aten._scaled_grouped_mm": "grouped_matmul",
        "aten._scaled_dot_product_flash_attention_backward": "attention",
        "aten._scaled_mm": "matmul",
        "aten.convolution_backward": "convolution",
        "aten.linear": "matmul",
    }


@pytest.mark.parametrize("name", ["a100", "b200", "h100", "h200", "mi300x", "cpu"])
def test_more_work_never_takes_less_time(name: str):
    device = load_device(name)
    times = [operation_price(device, mm(n, n, n, "float32")).ns for n in (1, 16, 64, 256, 1024, 4096, 16384)]
    assert times == sorted(times)
    assert all(isinstance(ns, int) and ns > 0 for ns in times)
