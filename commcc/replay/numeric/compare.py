"""Outputs and written inputs of two runs, compared value by value.

::

    ours = compare_rank(before, after, rank=0)        # one ValueGap for each value that is not the same to the bit
    ours[0].relative                                  # 0.0012: the largest difference, of the largest number
    worst(gaps)                                       # the same value on all ranks, the worst one first

Differences are measured in three ways: absolute, relative to the largest number of the value in BEFORE (a
difference in a number that should cancel out says little), and in units of the last place, that is, in
representable numbers in between.

Limits: units of the last place are counted in the values' own dtype; float8 and complex numbers have none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from commcc.replay.values import bits_equal, is_freed
from commcc.serialization.attributes import element_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.base.terms import Json
    from commcc.replay.values import RankResults

_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class ValueGap:
    """How one value differs between two runs.

    name: ``output[3]`` or ``input NAME``. rank, element: where they differ first. old, new: what is there, as text.
    count: elements that differ, of ``total``. absolute, relative, ulps: the largest differences; None where they
    cannot be measured. nan: elements that are no number in one run only. shape: text when the values cannot be
    compared at all (other shape, dtype or kind).
    """

    name: str
    rank: int
    dtype: str = ""
    element: tuple[int, ...] = ()
    old: str = ""
    new: str = ""
    count: int = 0
    total: int = 0
    absolute: float | None = None
    relative: float | None = None
    ulps: float | None = None
    nan: int = 0
    mismatch: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "rank": self.rank,
            "element": list(self.element),
            "before": self.old,
            "after": self.new,
            "dtype": self.dtype,
            "elements": self.count,
            "of": self.total,
            "absolute": self.absolute,
            "relative": self.relative,
            "ulps": self.ulps,
            "not_a_number": self.nan,
            "mismatch": self.mismatch or None,
        }


@dataclass(frozen=True)
class RankGaps:
    """One rank's comparison. gaps: values that differ. nan, infinite, zero: values of BEFORE, by name, with elements
    that are no number, with infinite ones, and with nothing but zeros. compared: names of all values. raised: ops that
    had to run in float32.
    """

    gaps: tuple[ValueGap, ...]
    compared: tuple[str, ...]
    nan: dict[str, int]
    infinite: tuple[str, ...]
    zero: tuple[str, ...]
    raised: tuple[str, ...] = ()

    @staticmethod
    def of(data: Mapping[str, Any]) -> RankGaps:
        """A rank's comparison, as it wrote it."""
        gaps = tuple(ValueGap(**{**gap, "element": tuple(gap["element"])}) for gap in data["gaps"])
        lists = {name: tuple(data[name]) for name in ("compared", "infinite", "zero", "raised")}
        return RankGaps(gaps=gaps, nan=data["nan"], **lists)


def compare_rank(before: RankResults, after: RankResults, rank: int) -> RankGaps:
    """Compare what one rank has after both runs."""
    pairs = _pairs(before, after)
    gaps = (_gap(name, rank, old, new) for name, old, new in pairs)
    # Numbers of one byte (float8) can only be copied.
    floats = {
        name: old
        for name, old, _ in pairs
        if isinstance(old, torch.Tensor) and old.dtype.is_floating_point and not is_freed(old) and old.itemsize > 1
    }
    return RankGaps(
        tuple(gap for gap in gaps if gap is not None),
        tuple(name for name, _, _ in pairs),
        {name: count for name, value in floats.items() if (count := int(value.isnan().sum()))},
        tuple(name for name, value in floats.items() if value.isinf().any()),
        tuple(name for name, value in floats.items() if value.numel() > 1 and not value.any()),
    )


def worst(gaps: Iterable[ValueGap]) -> ValueGap:
    """All ranks' differences in one value: the first place, and the largest differences anywhere."""
    all_gaps = list(gaps)
    first = min(all_gaps, key=lambda gap: gap.rank)
    return replace(
        first,
        count=sum(gap.count for gap in all_gaps),
        total=sum(gap.total for gap in all_gaps),
        absolute=_largest(gap.absolute for gap in all_gaps),
        relative=_largest(gap.relative for gap in all_gaps),
        ulps=_largest(gap.ulps for gap in all_gaps),
        nan=sum(gap.nan for gap in all_gaps),
        mismatch=next((gap.mismatch for gap in all_gaps if gap.mismatch), ""),
    )


def _largest(numbers: Iterable[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _pairs(before: RankResults, after: RankResults) -> list[tuple[str, Any, Any]]:
    """Names and both values; a missing one is :data:`_MISSING`."""
    count = max(len(before.outputs), len(after.outputs))
    old, new = ([*outputs, *[_MISSING] * (count - len(outputs))] for outputs in (before.outputs, after.outputs))
    pairs = [(f"output[{i}]", *both) for i, both in enumerate(zip(old, new, strict=True))]
    names = sorted({*before.written, *after.written})
    written = ((f"input {n}", before.written.get(n, _MISSING), after.written.get(n, _MISSING)) for n in names)
    return [*pairs, *written]


class _Missing:
    """What one of the two programs has not."""


_MISSING = _Missing()


def _gap(name: str, rank: int, old: Any, new: Any) -> ValueGap | None:
    """How two values differ; None when they are the same to the bit."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        same = type(old) is type(new) and (old is _MISSING or old == new)
        return None if same else ValueGap(name, rank, mismatch=f"{_kind(old)} against {_kind(new)}")
    if (old.shape, old.dtype, is_freed(old)) != (new.shape, new.dtype, is_freed(new)):
        return ValueGap(name, rank, mismatch=f"{_kind(old)} against {_kind(new)}")
    if is_freed(old) or bits_equal(old, new):
        return None
    size = old.element_size()
    differ = (element_bytes(old).view(-1, size) != element_bytes(new).view(-1, size)).any(1)
    place = int(differ.nonzero()[0])
    # Measured in more digits than either has, so that a difference is not itself rounded.
    wide = torch.complex128 if old.dtype.is_complex else torch.float64
    one, other = old.reshape(-1).to(wide), new.reshape(-1).to(wide)
    numbers = ~(one.isnan() | other.isnan())
    apart = torch.where(one == other, 0.0, (one - other).abs())[numbers]
    finite = one[numbers & one.isfinite()]
    absolute, largest = (float(values.max()) if values.numel() else None for values in (apart, finite.abs()))
    return ValueGap(
        name,
        rank,
        dtype=str(old.dtype).removeprefix("torch."),
        element=tuple(int(i) for i in torch.unravel_index(torch.tensor(place), old.shape)) if old.dim() else (),
        old=_shown(old.reshape(-1)[place]),
        new=_shown(new.reshape(-1)[place]),
        count=int(differ.sum()),
        total=old.numel(),
        absolute=_finite(absolute),
        relative=_finite(absolute / largest) if absolute is not None and largest else None,
        ulps=_ulps(old, new),
        nan=int((one.isnan() != other.isnan()).sum()),
    )


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _ulps(old: torch.Tensor, new: torch.Tensor) -> float | None:
    """The most representable numbers between two numbers; None where they cannot be counted."""
    whole = _WHOLE.get(old.element_size())
    if not old.dtype.is_floating_point or whole is None:
        return None
    fine = (old.isfinite() & new.isfinite()).reshape(-1)
    # Bit patterns as whole numbers in the order of what they stand for.
    lowest = torch.iinfo(whole).min
    raw = (value.contiguous().reshape(-1).view(whole).to(torch.int64)[fine] for value in (old, new))
    one, other = (torch.where(bits < 0, lowest - bits, bits) for bits in raw)
    # In float64: differences of 64-bit positions can be larger than a 64-bit integer.
    return float((one.double() - other.double()).abs().max()) if one.dtype is torch.int64 and one.numel() else None


def _shown(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.9g}" if isinstance(number, float) else str(number)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        freed = " without memory" if is_freed(value) else ""
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{freed}"
    return "nothing" if value is _MISSING else repr(value)[:60]
