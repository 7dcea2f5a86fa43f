"""Times between measured sizes: straight lines between neighbouring points.

    curve = Curve.of([(1 << 20, 100_000), (2 << 20, 150_000)])     # (bytes, ns)
    curve.read(1572864).ns                                         # 125000

A size below the smallest point takes the time of the smallest point. Beyond the largest, the line
through the last two points goes on, and the reading says so. Small messages are all latency, so the
first rule errs by little; the second can be wrong where a library changes its algorithm.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Reading:
    """A time read off a curve.

    ns: the time. low, high: measured sizes in bytes that it was made of; equal when one point decided.
    fixed_ns: what the line used gives for 0 bytes, within 0 and ``ns``: the part that does not grow
    with the size. beyond: the size is larger than every measured one.
    """

    ns: int
    low: int
    high: int
    fixed_ns: int
    beyond: bool = False


@dataclass(frozen=True)
class Curve:
    """Measured times by size. sizes: bytes, ascending, none twice. times: ns, one for each size."""

    sizes: tuple[int, ...]
    times: tuple[int, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[int, int]]) -> Curve:
        """A curve of ``(bytes, ns)`` in any order. ``ValueError`` for no points, and for a size given twice."""
        ordered = sorted(points)
        sizes = tuple(size for size, _ in ordered)
        if not sizes or len(set(sizes)) < len(sizes):
            raise ValueError("a curve needs points, one for each size")
        return cls(sizes, tuple(time for _, time in ordered))

    def read(self, size: int) -> Reading:
        """The time for ``size`` bytes. With a single point, larger sizes take time in proportion to it."""
        at = bisect_left(self.sizes, size)
        if at == len(self.sizes):
            return self._beyond(size)
        if at == 0 and size < self.sizes[0]:
            return Reading(self.times[0], self.sizes[0], self.sizes[0], self.times[0])
        if size == self.sizes[at]:
            low, high = max(0, at - 1), max(at, min(1, len(self.sizes) - 1))
            fixed = self._on_line(low, high, 0) if low != high else 0
            return Reading(self.times[at], size, size, _within(fixed, self.times[at]))
        return self._between(at - 1, at, size)

    def _between(self, low: int, high: int, size: int, *, beyond: bool = False) -> Reading:
        ns = max(0, self._on_line(low, high, size))
        fixed = _within(self._on_line(low, high, 0), ns)
        return Reading(ns, self.sizes[low], self.sizes[high], fixed, beyond)

    def _beyond(self, size: int) -> Reading:
        last = len(self.sizes) - 1
        if last == 0:
            ns = _rounded(self.times[0] * size, max(1, self.sizes[0]))
            return Reading(ns, self.sizes[0], self.sizes[0], 0, beyond=True)
        if self.times[last] < self.times[last - 1]:
            # Noise, or a change of algorithm: a line that falls would end in no time at all.
            return Reading(self.times[last], self.sizes[last], self.sizes[last], 0, beyond=True)
        return self._between(last - 1, last, size, beyond=True)

    def _on_line(self, low: int, high: int, size: int) -> int:
        """The line through two points at ``size``, in whole numbers so that every machine agrees."""
        rise, run = self.times[high] - self.times[low], self.sizes[high] - self.sizes[low]
        return self.times[low] + _rounded(rise * (size - self.sizes[low]), run)


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def _within(value: int, most: int) -> int:
    return min(max(0, value), most)
