"""What a log says about the symbols in its graphs: the numbers that they had, their ranges, and sums of them.

    [0/0] create_symbol s77 = 256 for L['x'].size()[0] [2, int_oo] ...          s77 is 256
    [0/0] set_replacement s3 = s77 (...) VR[2, int_oo]                          s3 is what s77 is
    [0/0] _update_var_to_range u0 = VR[0, 512] (update)                         u0 is 0 to 512
    [0/0] runtime_assert Eq(u0 + u1 + u2 + u3, 2*s77) [guard added] ...         the four are 512 together

become ``{"symbols": {"s77": [2, None, 256], ...}, "sums": [[["u0", "u1", "u2", "u3"], 512]]}`` in the header of a
graph, as far as the graph has these symbols. Lines are those of ``TORCH_LOGS="+dynamic"``; the records of a
TORCH_TRACE log say the same. Nothing of it decides what may be done to a graph: numbers are hints.

Limits: facts of one compilation are for its graphs only; expressions with powers or shifts have no number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import sympy

from commcc.base.errors import InputError
from commcc.serialization.symbols import SYMBOL_NAME, has_powers, parse_expression

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json

#: How lines with facts begin.
FACTS = ("create_symbol ", "set_replacement ", "_update_var_to_range ", "runtime_assert ", "eval ")
_RANGE = r"VR\[(?P<low>[^,\]]{1,40}), (?P<high>[^,\]]{1,40})\]"
_CREATED = re.compile(r"create_symbol (?P<name>\w{1,12}) = (?P<value>-?\d{1,18}) for .*?(?P<range> \[[^\]]{1,60}\]|$)")
_REPLACED = re.compile(rf"set_replacement (?P<name>\w{{1,12}}) = (?P<value>.{{1,400}}?) \(.{{0,80}}\) {_RANGE}")
_RANGED = re.compile(rf"_update_var_to_range (?P<name>\w{{1,12}}) = {_RANGE}")
_ASSERTED = re.compile(r"(?:runtime_assert|eval) Eq\((?P<left>[^,]{1,400}), (?P<right>[^,]{1,400})\) \[guard added\]")
_EQUAL = re.compile(r"Eq\((?P<left>[^,]{1,400}), (?P<right>[^,]{1,400})\)")
_IN_TEXT = re.compile(r"\b(?:s|u)\d{1,9}\b")
#: No file has so many; more would only take time.
_MOST = 20_000
_MOST_SUMS = 2_000
#: Beyond it a bound is PyTorch's way to say that there is none.
_LARGEST = 2**60


@dataclass
class SymbolFacts:
    """Of one compilation. values: numbers as the log says them; same: what stands in the place of a symbol."""

    values: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    equal: dict[tuple[str, str], None] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Take in a line of TORCH_LOGS, without what PyTorch puts before each."""
        if len(self.values) + len(self.ranges) + len(self.same) + len(self.equal) > _MOST:
            return
        if (match := _CREATED.match(text)) is not None:
            self._created(match["name"], match["value"], match["range"])
        elif (match := _REPLACED.match(text)) is not None:
            self.same[match["name"]] = match["value"]
            if SYMBOL_NAME.fullmatch(match["value"]):
                self._ranged(match["value"], match["low"], match["high"])
        elif (match := _RANGED.match(text)) is not None:
            self._ranged(match["name"], match["low"], match["high"])
        elif (match := _ASSERTED.match(text)) is not None:
            self.equal[match["left"], match["right"]] = None

    def record(self, record: Mapping[str, Any]) -> None:
        """Take in a record of a TORCH_TRACE log."""
        created, guard = record.get("create_symbol"), record.get("guard_added_fast")
        if isinstance(created, dict):
            name, value, bounds = (str(created.get(key, "")) for key in ("symbol", "val", "vr"))
            if re.fullmatch(r"-?\d{1,18}", value):
                self._created(name, value, bounds)
        elif isinstance(guard, dict) and (match := _EQUAL.fullmatch(str(guard.get("expr", ""))[:1000])) is not None:
            self.equal[match["left"], match["right"]] = None

    def _created(self, name: str, value: str, bounds: str) -> None:
        self.values[name] = int(value)
        low, _, high = bounds.strip(" []").partition(", ")
        self._ranged(name, low, high)

    def _ranged(self, name: str, low: str, high: str) -> None:
        """The last range that a log has is the narrowest."""
        bounds = [int(text) if re.fullmatch(r"-?\d{1,19}", text) else None for text in (low, high)]
        lower, upper = (bound if bound is None or abs(bound) < _LARGEST else None for bound in bounds)
        self.ranges[name] = (lower, upper)

    def header(self, text: str) -> dict[str, Json]:
        """Entries of the header of the graph with this text."""
        names = dict.fromkeys(_IN_TEXT.findall(text))
        symbols: dict[str, Json] = {}
        for name in names:
            value = self._number(name)
            target = self.same.get(name, name)
            lower, upper = self.ranges.get(name, self.ranges.get(target, (None, None)))
            if value is not None or (lower, upper) != (None, None):
                fits = value is not None and value >= 0
                symbols[name] = [lower, upper, value if fits else None]
        sums: list[Json] = []
        for left, right in islice(self.equal, _MOST_SUMS):
            for terms, total in ((left, right), (right, left)):
                resolved = self._sum(terms, total)
                if resolved is not None and any(name in names for name in resolved[0]):
                    sums.append([list(resolved[0]), resolved[1]])
        return {**({"symbols": symbols} if symbols else {}), **({"sums": sums} if sums else {})}

    def _number(self, text: str, deep: int = 0) -> int | None:
        """The number that an expression had; None where a symbol in it had none."""
        if text in self.values:
            return self.values[text]
        if text in self.same and deep < 8:  # names can be replaced again, and a hostile log may go round
            return self._number(self.same[text], deep + 1)
        expr = _parsed(text)
        if expr is None or (isinstance(expr, sympy.Symbol) and str(expr) == text):
            return None
        values: dict[sympy.Basic, sympy.Integer] = {}
        for symbol in expr.free_symbols:
            number = self._number(str(symbol), deep + 1) if deep < 8 else None
            if number is None:
                return None
            values[symbol] = sympy.Integer(number)
        try:
            return int(expr.xreplace(values))
        except (TypeError, ValueError, ArithmeticError):
            return None

    def _sum(self, terms: str, total: str) -> tuple[tuple[str, ...], int] | None:
        """Symbols without a number of which the number of the sum is known."""
        names = terms.split(" + ")
        if len(set(names)) < len(names) or not all(map(SYMBOL_NAME.fullmatch, names)):
            return None
        number = self._number(total)
        open_ = all(self._number(name) is None for name in names)
        return (tuple(names), number) if number is not None and number >= 0 and open_ else None


def _parsed(text: str) -> Any:
    try:
        expr = parse_expression(text, lambda name: sympy.Symbol(name, integer=True))
    except InputError:
        return None
    return None if has_powers(expr) else expr
