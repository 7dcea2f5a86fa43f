"""Kernels give what the same functions give as Python, and what none can contain is refused by file and line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.jit import compiled, kernel
from commcc.passes.base import PlanContext
from commcc.schedule import Limits, Problem, judge, live, scheduler, urgency, walk
from commcc.schedule.scheduler import Policy, schedule
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.effort import examples

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
FEW = 3


class Given(NamedTuple):
    numbers: np.ndarray
    table: np.ndarray
    records: np.ndarray
    few: int


class Sums(NamedTuple):
    total: int
    largest: int
    odd: bool


def given_of(numbers, few=2):
    records = np.zeros(4, np.dtype([("first", np.int64), ("second", np.int64)])).view(np.recarray)
    return Given(np.array(numbers, np.int64), np.zeros((3, 4), np.int64), records, few)


@compiled
def halves(a, b):
    if b == 0:
        return 0, a
    return a // b, a - a // b * b


@compiled
def note(of, at, value):
    of.records[at].first += value
    of.records.second[at] = value
    of.table[at - 1, at] = value


@kernel
def numbers(a, b, c):
    quotient, rest = halves(a, b)
    shifted = ((a << 3) >> 1) + (a & 12) - (b | 5)
    odd = (a > b and not c) or bool(c and rest)
    chosen = -quotient if odd else max(a, b, c)
    return shifted + quotient * 7 - rest, min(chosen, FEW), odd


@kernel
def loops(of):
    total = largest = 0
    for number in of.numbers:
        if number < 0:
            continue
        if number == 99:
            break
        total += number
        largest = max(largest, number)
    for k in range(1, len(of.numbers), of.few):
        total -= of.numbers[k]
    left = len(of.numbers)
    while left > 0:
        left -= 2
        if left == 5:
            break
    for mine in of.records:
        mine.first += left
    note(of, 1, largest)
    of.table[1][2] = total
    row = of.table[1]
    row[3], row[0] = row[2], 5
    return Sums(total, largest, total - (total >> 1 << 1) != 0)


def test_numbers_are_those_of_python():
    @settings(max_examples=examples(300), deadline=None)
    @given(*[st.one_of(st.integers(-9, 9), st.integers(-(2**55), 2**55))] * 3)
    def check(a, b, c):
        assert numbers(a, b, c) == numbers.python(a, b, c)

    check()


def test_loops_and_what_they_write_are_those_of_python():
    @settings(max_examples=examples(200), deadline=None)
    @given(st.lists(st.one_of(st.integers(-5, 20), st.just(99)), max_size=12), st.integers(1, 3))
    def check(values, few):
        ours, theirs = given_of(values, few), given_of(values, few)
        assert loops(ours) == loops.python(theirs)
        assert all(np.array_equal(a, b) for a, b in zip(ours[:3], theirs[:3], strict=True))

    check()


def test_what_a_call_shares_with_the_one_before_is_handed_over_as_it_is_now():
    """Other contents of the same arrays, other arrays, and the first ones again."""
    first = given_of([1, 2, 3])
    for changed in (first, first, first._replace(numbers=np.array([7, 1])), first._replace(few=1), first):
        changed.numbers[0] += 1
        again = Given(*(each.copy() for each in changed[:3]), changed.few)
        assert loops(changed) == loops.python(again)
        assert all(np.array_equal(a, b) for a, b in zip(changed[:3], again[:3], strict=True))


def test_a_truth_value_and_nothing_are_returned():
    @kernel
    def empty(values):
        return len(values) == 0

    @kernel
    def clear(values):
        for k in range(len(values)):
            values[k] = 0

    values = np.arange(3)
    assert empty(values) is False
    assert clear(values) is None
    assert not values.any()


def refused():
    @kernel
    def listed(values):
        return [values]

    @kernel
    def several(values):
        return 0 < values[0] < 3

    @kernel
    def unknown(values):
        return sorted(values)

    @kernel
    def two_types(values):
        held = values
        held = 3
        return held + 0

    @kernel
    def no_field(values):
        return values.size

    return [listed, several, unknown, two_types, no_field]


@pytest.mark.parametrize("function", refused(), ids=lambda function: function.__name__)
def test_what_no_kernel_can_have_is_refused(function):
    with pytest.raises(TypeError, match=r"kernel|two_types"):
        function(np.arange(3))


@pytest.mark.parametrize("argument", ["text", np.zeros(3), np.arange(6)[::2], np.zeros((2, 2, 2), np.int64)])
def test_what_no_kernel_takes_is_refused(argument):
    with pytest.raises(TypeError, match="no kernel takes"):
        refused()[0](argument)


@pytest.mark.parametrize(
    "name, share",
    [
        ("tiny_moe_fsdp4_ep2_bw.fx.txt.gz", None),
        ("tiny_moe_fsdp4_ep2_bw.fx.txt.gz", 980),
        ("tiny_llama_fsdp2_tp2_fw.fx.txt.gz", None),
    ],
    ids=["moe", "moe given up", "llama"],
)
def test_a_schedule_is_that_of_python(name, share, monkeypatch):
    context = PlanContext.of(load(SAMPLES / name), load_model("h100"))
    problem = Problem(context.index, context.model.price(context.index))
    limits = Limits(context.budget("own"), 1 << 20, 5)
    policy = Policy(problem.bound * 9 // 10, 4000, 500, 2, spare_permille=30)
    base = np.arange(len(context.index))
    order = whole = schedule(problem, base, policy, limits)
    until = None
    if share:
        until = judge.judge(problem.graph, whole).step_ns * share // 1000
        order = schedule(problem, base, policy, limits, until)
        assert order.tolist() != whole.tolist()
    monkeypatch.setattr(scheduler, "fill", scheduler.fill.python)
    for module, name in ((live, "_follow"), (urgency, "_rank")):
        monkeypatch.setattr(module, name, getattr(module, name).python)
    monkeypatch.setattr(walk, "_known", ())
    assert order.tolist() == schedule(problem, base, policy, limits, until).tolist() != base.tolist()
    compiled_late = judge.late(problem.graph)
    for each in (base, order, compiled_late):
        scratch = judge.Scratch.of(problem.graph)
        assert judge.judge(problem.graph, each) == judge._judge.python(problem.graph, each, scratch)
