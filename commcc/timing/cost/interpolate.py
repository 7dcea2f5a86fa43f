"""Times between measured sizes: straight lines between neighbouring points.

    curve = Curve.of([(1 << 20, 100_000), (2 << 20, 150_000)])     # (bytes, ns)
    curve.read(1572864).ns                                         # 125000
    curve.read(1572864).span                                       # '1 MiB to 2 MiB'

A size below the smallest point takes the time of the smallest point: small messages are all latency.
Beyond the largest, the line through it and the nearest point of at most half its size goes on, and the
reading says so; that is wrong where a library changes its algorithm. Whole numbers throughout, so that
every machine reads the same time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.text import short_size

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Reading:
    """A time read off a curve.

    ns: the time. low, high: measured sizes in bytes that it was made of; equal when one point decided.
    fixed_ns: what the line at this size gives for 0 bytes, within 0 and ``ns``: the part that does not
    grow with the size. beyond: the size is larger than every measured one.
    """

    ns: int
    low: int
    high: int
    fixed_ns: int
    beyond: bool = False

    @property
    def span(self) -> str:
        """The measured sizes in words: ``1 MiB``, ``1 MiB to 2 MiB``."""
        low, high = short_size(self.low), short_size(self.high)
        return low if self.low == self.high else f"{low} to {high}"


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
        if size == self.sizes[at]:
            ns = self.times[at]
            return Reading(ns, size, size, self._fixed(self._before(at), max(at, 1), ns))
        # Small messages are all latency.
        if at == 0:
            return Reading(self.times[0], self.sizes[0], self.sizes[0], self.times[0])
        ns = self._on_line(at - 1, at, size)
        return Reading(ns, self.sizes[at - 1], self.sizes[at], self._fixed(self._before(at), at, ns))

    def _beyond(self, size: int) -> Reading:
        last = len(self.sizes) - 1
        if last == 0:
            ns = _rounded(self.times[0] * size, max(1, self.sizes[0]))
            return Reading(ns, self.sizes[0], self.sizes[0], 0, beyond=True)
        before = self._before(last)
        # A line that falls is noise, or a change of algorithm: going on along it would end in no time at all.
        ns = max(self.times[last], self._on_line(before, last, size))
        return Reading(ns, self.sizes[before], self.sizes[last], self._fixed(before, last, ns), beyond=True)

    def _before(self, at: int) -> int:
        """A point below ``at`` to draw a line from; one too near it would turn noise into slope."""
        half = bisect_right(self.sizes, self.sizes[at] // 2) - 1
        return max(0, min(half, at - 1))

    def _fixed(self, low: int, high: int, ns: int) -> int:
        if high >= len(self.sizes):
            return 0
        return min(max(0, self._on_line(low, high, 0)), ns)

    def _on_line(self, low: int, high: int, size: int) -> int:
        rise, run = self.times[high] - self.times[low], self.sizes[high] - self.sizes[low]
        return self.times[low] + _rounded(rise * (size - self.sizes[low]), run)


def _rounded(numerator: int, denominator: int) -> int:
    """The quotient, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)
