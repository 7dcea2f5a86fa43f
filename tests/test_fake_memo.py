"""Shapes that ops give are worked out once for operands that look alike, and never where that could be another."""

from __future__ import annotations

import pytest
import torch

from commcc.serialization import fake_memo
from commcc.serialization.fake_memo import History
from commcc.serialization.fake_ops import Evaluator
from commcc.serialization.shapes import ShapeContext

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(fake_memo, "_results", {})


class Counting(Evaluator):
    """Counts how often an op really runs. events: bounds of symbols, as a laboratory declares them."""

    def __init__(self, *events, whole=True):
        ctx = ShapeContext()
        history = History(ctx, whole=whole)
        for name, lower, upper in events:
            ctx.declare(name, lower=lower, upper=upper)
            history.add((name, lower, upper))
        super().__init__(ctx, history)
        self.ran = 0

    def call(self, function, args, kwargs):
        self.ran += 1
        return super().call(function, args, kwargs)

    def tensor(self, *shape, stride=None, dtype=torch.float32):
        sizes = [self.ctx.parse_integer(size) if isinstance(size, str) else size for size in shape]
        if stride is None:
            stride = [1]
            for size in reversed(sizes[1:]):
                stride.insert(0, stride[0] * size)
        return self.ctx.tensor(sizes, stride, dtype, CPU)


def looks(value):
    tensors = value if type(value) in (list, tuple) else [value]
    return [(str(tuple(t.shape)), str(t.stride()), t.dtype, t.device) for t in tensors]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("op", [aten.mm.default, aten.topk.default, aten._to_copy.default, aten.sum.dim_IntList])
def test_alike_operands_run_once(op, whole):
    rest = {aten.topk.default: (3,), aten.sum.dim_IntList: ([0],)}.get(op, ())
    kwargs = {"dtype": torch.bfloat16} if op is aten._to_copy.default else {}
    results, runs = [], []
    for _ in range(2):
        evaluator = Counting(whole=whole)
        operands = [evaluator.tensor(11, 11)] * (2 if op is aten.mm.default else 1)
        results.append(evaluator.run(op, [*operands, *rest], kwargs))
        runs.append(evaluator.ran)
    assert runs[1] == 0
    assert looks(results[0]) == looks(results[1])


@pytest.mark.parametrize(
    "change",
    [{"dtype": torch.float64}, {"stride": (1, 13)}, {"last": 17}, {"keyword": True}, {"number": 1.0}],
    ids=lambda change: next(iter(change)),
)
def test_operands_that_look_otherwise_run_again(change):
    ran = []
    for each in ({}, change):
        evaluator = Counting()
        x = evaluator.tensor(13, each.get("last", 13), stride=each.get("stride"), dtype=each.get("dtype", torch.int32))
        kwargs = {"alpha": 2} if "keyword" in each else {}
        result = evaluator.run(aten.add.Scalar, [x, each.get("number", 1)], kwargs)
        ran.append(evaluator.ran)
        assert result.dtype is (torch.float32 if "number" in each else x.dtype)
    assert ran == [1, 1]


def test_symbols_with_the_same_history_run_once():
    ran = []
    for _ in range(2):
        evaluator = Counting(("u0", 0, 19))
        result = evaluator.run(aten.silu.default, [evaluator.tensor("u0", 23)], {})
        ran.append(evaluator.ran)
        assert str(tuple(result.shape)) == "(u0, 23)"
    assert ran == [1, 0]


@pytest.mark.parametrize("other", [("u0", 0, 20), ("u0", 2, 19)])
def test_symbols_with_another_history_run_again(other):
    for events in ((("u0", 0, 19),), (other,)):
        evaluator = Counting(*events)
        evaluator.run(aten.silu.default, [evaluator.tensor("u0", 29)], {})
        assert evaluator.ran == 1


def test_what_tells_the_context_something_always_runs():
    """One symbol is another one from then on."""
    numbers = []
    for _ in range(2):
        evaluator = Counting(("u0", 0, 19), ("u1", 0, 19))
        x, y = evaluator.tensor("u0", 31), evaluator.tensor("u1", 31)
        before = evaluator.history.number
        evaluator.run(aten.add.Tensor, [x, y], {})
        assert evaluator.ran == 1
        numbers.append((before, evaluator.history.number))
    assert numbers[0] == numbers[1]
    assert numbers[0][0] != numbers[0][1]


def test_what_was_told_elsewhere_is_no_history_that_others_share():
    numbers = []
    for _ in range(2):
        evaluator = Counting(("u0", 0, 19))
        evaluator.ctx.declare("u0", lower=3, upper=4)
        evaluator.run(aten.silu.default, [evaluator.tensor("u0", 37)], {})
        numbers.append(evaluator.history.number)
        assert evaluator.ran == 1
    assert numbers[0] != numbers[1]


def test_symbols_are_not_remembered_without_a_whole_history():
    for _ in range(2):
        evaluator = Counting(("u0", 0, 19), whole=False)
        evaluator.run(aten.silu.default, [evaluator.tensor("u0", 41)], {})
        assert evaluator.ran == 1


def test_a_view_of_a_part_keeps_its_memory():
    for _ in range(2):
        evaluator = Counting()
        part = evaluator.run(aten.slice.Tensor, [evaluator.tensor(43, 4), 0, 0, 2], {})
        whole = evaluator.run(aten.as_strided.default, [part, [43, 4], [4, 1]], {})
        assert tuple(whole.shape) == (43, 4)


@pytest.mark.parametrize("whole", [True, False])
def test_what_makes_a_symbol_runs_in_every_context(whole):
    for _ in range(2):
        evaluator = Counting(whole=whole)
        value = evaluator.run(aten.index.Tensor, (evaluator.tensor(9, 7), [evaluator.tensor(9, dtype=torch.bool)]), {})
        assert evaluator.ran == 1
        assert value.shape[0].node.expr in evaluator.ctx.shape_env.var_to_range


def test_a_view_of_memory_whose_size_is_not_known_is_worked_out():
    evaluator = Counting(("u0", 8, 47))
    whole = evaluator.run(aten.relu.default, [evaluator.tensor("u0", 3)], {})
    part = evaluator.run(aten.slice.Tensor, [whole, 0, 0, 8], {})
    assert tuple(part.shape) == (8, 3)
