"""Statistics of interleaved times: what they say on samples whose truth is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.replay.bench.statistics import FASTER, SAME, SLOWER, compare_times, slowest, spread
from tests.effort import examples

TIMES = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=40)


def test_spread():
    assert (spread([5, 1, 3]).median, spread([4, 1, 2, 3]).median, spread([7]).p90) == (3, 2.5, 7)
    found = spread(range(11))
    assert (found.p10, found.median, found.p90) == (1, 5, 9)
    with pytest.raises(ValueError, match="no samples"):
        spread([])


def test_slowest_is_by_repetition():
    assert slowest([[1, 9, 3], [4, 2, 3]]) == [4, 9, 3]
    with pytest.raises(ValueError, match="shorter"):
        slowest([[1, 2], [1]])


@pytest.mark.parametrize(
    ("count", "outside", "confidence"),
    # The usual table of the sign test: n, rank of the lower end minus one, exact confidence.
    [(6, 0, 1 - 2 / 2**6), (8, 0, 1 - 2 / 2**8), (9, 1, 1 - 2 * 10 / 2**9), (20, 5, 0.95861), (25, 7, 0.95671)],
)
def test_the_interval_is_that_of_the_sign_test(count, outside, confidence):
    found = compare_times([1.0] * count, [10.0 + n for n in range(count)])
    assert (found.low, found.high) == (10 + outside, 10 + count - 1 - outside)
    assert found.confidence == pytest.approx(confidence, abs=1e-5)


def test_too_few_repetitions_decide_nothing():
    found = compare_times([1.0] * 5, [9.0] * 5)
    assert (found.verdict, found.ratio, found.low, found.high) == (SAME, 9, None, None)
    assert compare_times([1.0] * 6, [9.0] * 6).verdict == SLOWER


def test_what_slows_the_machine_down_slows_both():
    """Times that vary tenfold, one always 3 % above the other: told apart, because pairs are compared."""
    machine = [1 + 9 * abs(math.sin(n)) for n in range(12)]
    found = compare_times(machine, [1.03 * each for each in machine])
    assert found.verdict == SLOWER
    assert found.ratio == pytest.approx(1.03)


def test_times_that_are_no_times():
    for wrong in ([], [0.0]):
        with pytest.raises(ValueError, match="positive"):
            compare_times(wrong, wrong)
    with pytest.raises(ValueError, match="argument 2"):
        compare_times([1.0, 1.0], [1.0])


@given(TIMES)
def test_exchanging_the_graphs_inverts_everything(pairs):
    old, new = [a for a, _ in pairs], [b for _, b in pairs]
    one, other = compare_times(old, new), compare_times(new, old)
    assert {FASTER: SLOWER, SLOWER: FASTER, SAME: SAME}[one.verdict] == other.verdict
    assert other.ratio == pytest.approx(1 / one.ratio)
    if one.low is None:
        assert (one.confidence, other.high) == (None, None)
    else:
        assert (other.low, other.high) == (pytest.approx(1 / one.high), pytest.approx(1 / one.low))
        assert one.low <= one.ratio * (1 + 1e-9)
        assert one.ratio <= one.high * (1 + 1e-9)


@given(TIMES, st.integers(1, 1000))
def test_the_unit_and_the_order_of_repetitions_do_not_matter(pairs, unit):
    turned = compare_times([a * unit for a, _ in reversed(pairs)], [b * unit for _, b in reversed(pairs)])
    plain = compare_times([a for a, _ in pairs], [b for _, b in pairs])
    assert (turned.verdict, turned.ratio) == (plain.verdict, pytest.approx(plain.ratio))


@pytest.mark.parametrize("count", [6, 15, 20])
@pytest.mark.parametrize("ratio", [1.0, 1.25])
def test_the_interval_holds_the_truth_as_often_as_it_says(count, ratio):
    """2,000 experiments with skewed noise; the share that hold the true ratio is binomial about the confidence."""
    source, held, experiments, confidence = random.Random(count), 0, 2000, 0.0
    for _ in range(experiments):
        old = [1 + source.expovariate(3) for _ in range(count)]
        # Noise with median 1 on each pair, far from normal.
        new = [ratio * each * math.exp(source.choice((-1, 1)) * source.expovariate(5)) for each in old]
        found = compare_times(old, new)
        held += found.low <= ratio <= found.high
        confidence = found.confidence
    deviation = math.sqrt(confidence * (1 - confidence) / experiments)
    assert confidence >= 0.95
    assert abs(held / experiments - confidence) < 4 * deviation


@settings(max_examples=examples(25))
@given(st.integers(6, 60), st.floats(0.5, 0.99))
def test_more_confidence_is_never_a_narrower_interval(count, confidence):
    source = random.Random(count)
    new = [source.expovariate(1) + 0.1 for _ in range(count)]
    wide, narrow = compare_times([1.0] * count, new, 0.95), compare_times([1.0] * count, new, min(confidence, 0.95))
    assert wide.low <= narrow.low <= narrow.high <= wide.high
