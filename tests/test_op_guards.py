"""Ops that trust their arguments: behind a check where graphs need them, refused where not."""

from __future__ import annotations

import importlib
import operator

import pytest
import torch

from commcc.graph.ops.allowed import refusal
from commcc.graph.ops.functions import LONGEST, bounded
from commcc.graph.ops.guards import guarded, is_guarded
from commcc.graph.ops.unchecked import UNCHECKED
from commcc.replay.prepare import prepare
from commcc.replay.virtual import StepError
from tests.random_graphs import GraphBuilder, aten

R = torch.rand
LOOSE = R(3, 1, 2, 4, 8).transpose(-1, -2).contiguous().transpose(-1, -2)
WINDOWS = [2, 2], [2, 2], [0, 0], [1, 1], False
#: Arguments that fit and arguments that do not, of each kind of check.
CASES = {
    "aten._log_softmax_backward_data.default": (
        (R(2, 3), R(2, 3), 1, torch.float32),
        [(R(2, 3), R(2, 1), 1, torch.float32), (R(6), R(1), 0, torch.float32)],
    ),
    "aten.native_batch_norm.default": (
        (R(4, 3), R(3), None, R(3), R(3), True, 0.1, 1e-5),
        [
            (R(4, 3), R(1), None, R(3), R(3), True, 0.1, 1e-5),
            (R(4, 3), None, None, R(2), R(6), True, 0.1, 1e-5),
            (R(4), R(4), None, None, None, True, 0.1, 1e-5),
        ],
    ),
    "aten.native_batch_norm_backward.default": (
        (R(4, 3), R(4, 3), R(3), R(3), R(3), R(3), R(3), True, 1e-5, [True] * 3),
        [
            (R(4, 2), R(4, 3), R(3), R(3), R(3), R(3), R(3), True, 1e-5, [True] * 3),
            (R(4, 3), R(4, 3), R(3), R(3), R(3), R(1), R(3), True, 1e-5, [True] * 3),
        ],
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (
        tuple(R(3, 1, 2, 4, 8)),
        [tuple(LOOSE), (R(1, 2, 4, 8), R(1, 2, 4, 6), R(1, 2, 4, 6)), (R(1, 2, 4, 8), R(1, 3, 4, 8), R(1, 3, 4, 8))],
    ),
    "aten._chunk_cat.default": (
        ([R(4, 2), R(4, 3)], 1, 2),
        [([R(4, 2)], 5, 2), ([R(4, 2)], 0, 0), ([R(4), R(3, 2)], 1, 2)],
    ),
    "aten.max_pool2d_with_indices_backward.default": (
        (R(2, 3, 2, 2), R(2, 3, 4, 4), *WINDOWS, torch.full((2, 3, 2, 2), 15)),
        [
            (R(2, 3, 2, 2), R(2, 3, 4, 4), *WINDOWS, torch.full((2, 3, 2, 2), 16)),
            (R(2, 3, 2, 2), R(2, 3, 4, 4), *WINDOWS, torch.full((2, 3, 2, 2), -1)),
            (R(2, 3, 2, 2), R(2, 3, 4, 4), *WINDOWS, torch.full((2, 3, 2, 1), 1)),
            (R(2, 3, 2, 2), R(1, 3, 4, 4), *WINDOWS, torch.full((2, 3, 2, 2), 1)),
        ],
    ),
    "aten._fused_sgd_.default": (
        ([R(2)], [R(2)], [R(2)]),
        [([R(2)], [R(1)], [R(2)]), ([R(2)], [R(2)], [R(1)]), ([R(2), R(2)], [R(2)], [R(2), R(2)])],
    ),
}
MORE = {
    "aten._fused_sgd_.default": {
        "weight_decay": 0.0,
        "momentum": 0.9,
        "lr": 0.1,
        "dampening": 0.0,
        "nesterov": False,
        "maximize": False,
        "is_first_step": False,
    }
}


#: 2**40 items, of which each holds the ones before twice.
DOUBLED: list[object] = [1]
for _ in range(40):
    DOUBLED = [DOUBLED, DOUBLED]


def find(name):
    library, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, library), op), overload)


@pytest.mark.parametrize("name", CASES)
def test_arguments_that_do_not_fit_are_refused(name):
    op, (good, bad) = find(name), CASES[name]
    assert refusal(op) is None
    guarded(op)(*good, **MORE.get(name, {}))
    for arguments in bad:
        with pytest.raises(ValueError, match=r"'|dimension"):
            guarded(op)(*arguments, **MORE.get(name, {}))


def test_names_of_the_table_are_ops():
    for module in ("torch._inductor.inductor_prims", "torch.distributed.fsdp._fully_shard._fsdp_collectives"):
        importlib.import_module(module)
    unknown = [name for name in UNCHECKED if not hasattr(getattr(torch.ops, name.split(".")[0]), name.split(".")[1])]
    assert unknown == []


@pytest.mark.parametrize("name", sorted(UNCHECKED))
def test_what_is_unchecked_is_refused_or_guarded(name):
    library, op = name.split(".")
    packet = getattr(getattr(torch.ops, library), op)
    for overload in packet.overloads():
        target = getattr(packet, overload)
        assert is_guarded(target) or refusal(target) is not None


def test_a_graph_whose_tensors_do_not_fit_says_so():
    from commcc.replay.layout import Layout
    from commcc.replay.virtual import VirtualRun

    b = GraphBuilder()
    grad, short = b.placeholder("grad", (2, 3), torch.float32), b.placeholder("short", (2, 1), torch.float32)
    node = b.graph.call_function(aten._log_softmax_backward_data.default, (grad, short, 1, torch.float32))
    node.meta["val"] = grad.meta["val"]
    prepared = prepare(b.program([node], {}))
    with pytest.raises(StepError, match=r"'output' is \[2, 1\], 'grad_output' \[2, 3\]"):
        VirtualRun(prepared, Layout(1, {}), 0, frozenset())([{"grad": R(2, 3), "short": R(2, 1)}])


def test_storages_grow_and_do_not_shrink():
    importlib.import_module("torch._inductor.inductor_prims")
    resize = guarded(torch.ops.inductor.resize_storage_bytes_.default)
    x = torch.arange(8.0)
    resize(x, 4)
    assert x.tolist() == list(range(8))
    resize(x, 64)
    assert x.untyped_storage().nbytes() == 64


def test_other_ops_are_called_as_they_are():
    assert guarded(aten.mm.default) is aten.mm.default


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (operator.mul, (10**1000, 10**1000)),
        (operator.mul, ([1], 10**12)),
        (operator.mul, (10**12, "a")),
        (operator.pow, (9, 9**9)),
        (operator.pow, (2, LONGEST)),
        (operator.lshift, (1, 10**12)),
        (operator.add, ([1] * LONGEST, [1])),
        (operator.add, ([[1] * LONGEST], [1])),
        (operator.getitem, ([DOUBLED, DOUBLED], slice(None))),
    ],
)
def test_arithmetic_that_grows_without_end_is_refused(function, args):
    for call in (bounded(function), guarded(function)):
        with pytest.raises(ValueError, match="too large"):
            call(*args)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (operator.mul, (2**40, 2**40)),
        (operator.mul, (torch.ones(3), 2)),
        (operator.mul, (2.5, 10**9)),
        (operator.pow, (2, 64)),
        (operator.pow, (2.0, 0.5)),
        (operator.pow, (2, -1)),
        (operator.lshift, (1, 62)),
        (operator.add, ((1,), (2,))),
        (operator.getitem, ((1, (2, 3)), slice(1, 2))),
        (operator.getitem, (DOUBLED, 0)),
        (operator.floordiv, (7, 2)),
    ],
)
def test_arithmetic_on_sizes_is_what_it_was(function, args):
    got, wanted = bounded(function)(*args), function(*args)
    assert got is wanted or str(got) == str(wanted)
