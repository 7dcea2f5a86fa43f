"""Figures with units, as people write and read them: ``60 GiB``, ``12.5 ms``, ``20 %``, ``1_000``.

    BYTES.parse("25 MiB")       # 26_214_400
    TIME.parse("1.5 ms")        # 1_500_000, in ns
    SHARE.parse("20 %")         # 0.2
    SHARE.show(0.2)             # '20.0 %'

A figure needs its unit, so that nobody has to guess: 5 is neither a size nor a time. Without one are counts, 0, and
shares from 0 to 1. What is printed can be read again, to the digits shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base import text
from commcc.base.yaml_file import to_integer, to_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIGURE = re.compile(r"\s*([+\-]?[0-9._]+(?:[eE][+\-]?[0-9]+)?)\s*([A-Za-z\u00b5%]*)\s*")
_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("KB", "MB", "GB", "TB", "PB")
_SIZES = {
    "B": 1,
    **{unit: 1 << 10 * power for power, unit in enumerate(_BINARY, 1)},
    **{unit: 10 ** (3 * power) for power, unit in enumerate(_DECIMAL, 1)},
}
_TIMES = {"ns": 1, "us": 1_000, "\u00b5s": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True)
class Quantity:
    """A kind of figure. unit: its name in findings. meaning: what may be written, for messages and manuals."""

    unit: str
    meaning: str
    units: Mapping[str, float]
    whole: bool = True

    def parse(self, written: str) -> float:
        """The figure in this quantity's own unit; ``ValueError`` says what was expected."""
        match = _FIGURE.fullmatch(written)
        number = None if match is None else to_number(match[1])
        if match is None or number is None or number < 0:
            raise ValueError(f"must be {self.meaning}, not '{written}'")
        known = {unit.lower(): factor for unit, factor in self.units.items()}
        factor = known.get(match[2].lower()) if match[2] or number > 0 else 1
        # Nobody means 2000 % by a share of 20.
        if factor is None or (self.unit == "share" and not match[2] and number > 1):
            units = ", ".join(unit for unit in self.units if unit.isascii() and unit)
            said = f"unknown unit '{match[2]}'" if match[2] else "no unit"
            raise ValueError(f"must be {self.meaning}, not '{written}': {said}" + (f" (use {units})" if units else ""))
        value = number * factor
        if not self.whole:
            return value
        exact = to_integer(match[1]) if factor == 1 else None
        if self.unit == "count" and exact is None:
            raise ValueError(f"must be {self.meaning}, not '{written}'")
        return round(value) if exact is None else exact

    def show(self, value: float) -> str:
        """The figure for people."""
        return show(value, self.unit)


COUNT = Quantity("count", "a whole number", {"": 1})
BYTES = Quantity("bytes", "a size such as 25 MiB", _SIZES)
TIME = Quantity("ns", "a time such as 12.5 ms", _TIMES)
SHARE = Quantity("share", "a share such as 20 % or 0.2", {"%": 0.01, "": 1.0}, whole=False)


def show(value: float, unit: str) -> str:
    """A figure in ``count``, ``bytes``, ``ns`` or ``share``, with its unit."""
    if unit == "bytes":
        return text.size(value)
    if unit == "ns":
        return text.milliseconds(value / 1e6)
    return text.share(value) if unit == "share" else f"{value:,.0f}"
