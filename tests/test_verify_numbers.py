"""Whole numbers and floats as arguments: where the verifier takes ``2`` for ``2.0``, PyTorch does so too."""

from __future__ import annotations

import contextlib
import importlib
import sys
import unittest
from itertools import islice, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from commcc.graph.ops import facts
from commcc.graph.ops.allowed import refusal
from commcc.verify import verify
from commcc.verify.arguments import bind
from tests.verify_graphs import Graph, aten, differs, proved

if TYPE_CHECKING:
    from collections.abc import Iterator


def scaled(number: Any, dtype: torch.dtype = torch.float32, op: Any = aten.mul.Tensor):
    g = Graph()
    return g.program(g(op, g.input("x", 4, dtype=dtype), number))


def test_a_whole_number_is_a_float_among_floats():
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        proved(scaled(2, dtype), scaled(2.0, dtype))
        proved(scaled(2.0, dtype), scaled(2, dtype))
    differs(scaled(2), scaled(3.0), "value", "argument 'other' is 3.0, in BEFORE 2.0")
    differs(scaled(0), scaled(-0.0), "value")


def test_a_size_is_such_a_number_too():
    def by_size(dtype):
        g = Graph()
        x = g.input("x", 4, dtype=dtype)
        return g.program(g(aten.mul.Tensor, x, g(aten.sym_size.int, x, 0)))

    proved(by_size(torch.float32), scaled(4))
    proved(by_size(torch.int64), scaled(4, torch.int64))
    differs(by_size(torch.float32), scaled(5), "value")
    differs(by_size(torch.int64), scaled(4.0, torch.int64), "value")


def test_integers_become_floats_by_a_float():
    differs(scaled(2, torch.int64), scaled(2.0, torch.int64), "value")
    # Where the results are of one dtype, it may be the same.
    verdict = verify(scaled(2, torch.int64, aten.eq.Scalar), scaled(2.0, torch.int64, aten.eq.Scalar))
    assert verdict.status == "unproved"
    assert "whether 2 and 2.0 give the same" in str(verdict.unproved[0])


def test_numbers_for_lists_of_tensors_meet_each_its_own():
    def added(one: Any, dtype: torch.dtype):
        g = Graph()
        x, y = g.input("x", 4), g.input("y", 4, dtype=dtype)
        many = g(aten._foreach_add.ScalarList, [x, y], [1.5, one])
        return g.program(g(aten.mul.Tensor, x, 1), many)

    assert verify(added(2, torch.float32), added(2.0, torch.float32)).status == "proved"
    assert verify(added(2, torch.int64), added(2.0, torch.int64)).status != "proved"


def test_numbers_that_no_float_is_are_left():
    assert verify(scaled(2**53 + 1), scaled(float(2**53 + 1))).status != "proved"


# Against execution


class Calls(TorchDispatchMode):
    """Notes calls with numbers among their arguments; of each op the first few."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, list[Any]] = {}

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        noted = self.calls.setdefault(func, [])
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        small = all(t.layout is torch.strided and not t.is_quantized and t.numel() < 2_000 for t in tensors)
        if len(noted) < 6 and small and any(type(leaf) in (int, float) for leaf in leaves):
            noted.append(tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def bound(op: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments as the verifier has them; tensors by their number."""
    graph, tensors = fx.Graph(), []

    def place(tensor: torch.Tensor) -> fx.Node:
        tensors.append(graph.placeholder(f"t{len(tensors)}"))
        tensors[-1].meta["val"] = tensor
        return tensors[-1]

    node = graph.call_function(op, *tree_map_only(torch.Tensor, place, (args, kwargs)))
    return tree_map(lambda leaf: leaf.name if isinstance(leaf, fx.Node) else repr(leaf), dict(bind(node)))


def outcome(op: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    try:
        torch.manual_seed(0)
        result = op(*args, **kwargs)
    except Exception:
        return "refused"
    leaves = [leaf for leaf in tree_leaves((result, args, kwargs)) if isinstance(leaf, torch.Tensor)]
    return [(t.dtype, t.shape, _bytes(t)) for t in leaves]


def _bytes(tensor: torch.Tensor) -> bytes:
    whole = tensor.clone(memory_format=torch.contiguous_format)  # one element may have any stride
    return bytes(whole.view(-1).view(torch.uint8).tolist()) if whole.numel() else b""


def pairs(op: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The call with a whole number and with a float in place of each of its numbers, where that is the same to bind."""
    names = [name for name, value in kwargs.items() if type(value) in (int, float)]
    places = [i for i, value in enumerate(args) if type(value) in (int, float)]
    for where, number in product([*names, *places], (2, 0, -1)):
        calls = []
        for value in (number, float(number)):
            changed = tuple(value if i == where else old for i, old in enumerate(args))
            calls.append((changed, {**kwargs, where: value} if where in names else kwargs))
        if bound(op, *calls[0]) == bound(op, *calls[1]):
            yield calls[0], calls[1]


def noted_calls() -> dict[Any, list[Any]]:
    """Calls that PyTorch's own samples make, by op."""
    op_db = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
    calls = Calls()
    for info, dtype in product(op_db, (torch.float32, torch.bfloat16)):
        for one in samples_of(info, dtype):
            with contextlib.suppress(Exception), calls:
                info.op(one.input, *one.args, **one.kwargs)
    return calls.calls


def samples_of(info: Any, dtype: torch.dtype) -> list[Any]:
    found: list[Any] = []
    with contextlib.suppress(Exception):  # some are for other devices, or cannot be made here
        found.extend(islice(info.sample_inputs("cpu", dtype), 2))
    return found


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_what_is_the_same_to_the_verifier_is_the_same_to_pytorch(monkeypatch):
    # Only PyTorch's own test cases need it.
    monkeypatch.setitem(sys.modules, "expecttest", SimpleNamespace(TestCase=unittest.TestCase))
    known = {op: noted for op, noted in noted_calls().items() if refusal(op) is None and not facts(op).random}
    tried = [(op, *two) for op, noted in known.items() for call in noted for two in pairs(op, *call)]
    wrong = [(str(op), one, other) for op, one, other in tried if outcome(op, *one) != outcome(op, *other)]
    print(f"{len({op for op, _, _ in tried})} ops, {len(tried)} calls")
    assert wrong == []
    assert len({op for op, _, _ in tried}) > 60
