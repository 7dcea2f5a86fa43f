"""Statistics of times that were measured in turns: A B A B ...

::

    spread([5, 1, 3])                          # Spread(median=3, p10=1.4, p90=4.6)
    slowest([[1, 9], [4, 2]])                  # [4, 9]: of each repetition, the slowest rank
    compare_times(before, after).verdict       # 'faster', 'slower' or 'not distinguishable'

Two graphs are compared by the ratios of their times in the same repetition, so that what slows the machine down for a
while slows both. The interval of the median ratio is the one of order statistics, that is, of the sign test: the
number of ratios below the true median is binomial with 1/2, whatever the distribution of times is (David and
Nagaraja, Order Statistics, third edition, section 7.1). Nothing is drawn at random, and exchanging the two graphs
turns every figure into its reciprocal.

Limits: repetitions are taken to be independent. Fewer than six have no interval at 95 %. Each comparison has its
own interval: of twenty graphs that are all the same, one will look different.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.base.terms import Json

FASTER, SLOWER, SAME = "faster", "slower", "not distinguishable"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Median and the 10th and 90th percentile, in the unit of the samples."""

    median: float
    p10: float
    p90: float

    def to_json(self) -> dict[str, Json]:
        return {"median": self.median, "p10": self.p10, "p90": self.p90}


@dataclass(frozen=True)
class Comparison:
    """One graph against another one.

    ratio: the median of what it takes, relative to the other one. low, high: the interval, None with too few
    pairs. confidence: the probability that such an interval holds the true median, at least what was asked for.
    """

    verdict: str
    ratio: float
    low: float | None
    high: float | None
    confidence: float | None
    pairs: int

    def to_json(self) -> dict[str, Json]:
        return {
            "verdict": self.verdict,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
            "pairs": self.pairs,
        }


def spread(samples: Sequence[float]) -> Spread:
    """Percentiles with linear interpolation between samples (type 7 of Hyndman and Fan, 1996)."""
    ordered = sorted(samples)
    return Spread(_quantile(ordered, 0.5), _quantile(ordered, 0.1), _quantile(ordered, 0.9))


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        raise ValueError("no samples")
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """The largest of all ranks' samples, repetition by repetition."""
    return [max(samples) for samples in zip(*ranks, strict=True)]


def compare_times(first: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> Comparison:
    """What ``other`` takes relative to ``first``, from positive times of the same repetitions."""
    if not first or min(*first, *other) <= 0:
        raise ValueError("times must be positive, and there must be some")
    ratios = sorted(new / old for old, new in zip(first, other, strict=True))
    count = len(ratios)
    # The geometric mean of the two in the middle: its reciprocal is that of the reciprocals.
    ratio = math.sqrt(ratios[(count - 1) // 2] * ratios[count // 2])
    left_out, reached = _left_out(count, confidence)
    if reached is None:
        return Comparison(SAME, ratio, None, None, None, count)
    low, high = ratios[left_out], ratios[count - 1 - left_out]
    verdict = FASTER if high < 1 else SLOWER if low > 1 else SAME
    return Comparison(verdict, ratio, low, high, reached, count)


def _left_out(count: int, confidence: float) -> tuple[int, float | None]:
    """How many of the smallest and of the largest samples are outside, and the confidence; None if none reaches it.

    The interval between the samples that remain misses the median when no more than ``k`` of them are on one side
    of it: with probability 2 P(Bin(count, 1/2) <= k). Whole numbers up to the one division, so it is exact.
    """
    outside, reached, missed = 0, None, 0
    for k in range(count // 2):
        missed += 2 * math.comb(count, k)
        inside = 1 - missed / 2**count
        if inside < confidence:
            break
        outside, reached = k, inside
    return outside, reached
