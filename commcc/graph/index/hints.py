"""Numbers for sizes that are known only at run time, so that bytes and times can be estimated.

    hints = SizeHints({"u*": 512}, program)
    hints.value(size)          # 1024 for u0 + u1
    hints.used                 # {"u0": Hint("u0", 512, "given"), ...}

A symbol gets its number from, in this order: what was ``given`` (patterns as of a shell, the first
that fits), the graph file, the other half of its step, and, for the split sizes of an all-to-all, the
assumption that tokens are spread evenly over the ranks (``balanced``). Plans never depend on a hint for what is legal.

Limits: expressions with powers or shifts get no number.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import sympy
import torch

from commcc.graph import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import fx

#: Larger numbers, also of elements in one tensor, count as unknown.
MAX_NUMBER = 2**62
#: Functions whose value can be huge although their arguments are not, and the largest exponent of powers that are none.
_EXPLOSIVE = ("Pow", "Shift", "exp")
_LARGEST_EXPONENT = 8


@dataclass(frozen=True)
class Hint:
    """The number that stands for a symbol, and its source: ``given``, ``file``, ``step``, ``balanced``, ``assumed``."""

    symbol: str
    value: int
    source: str


class SizeHints:
    """Gives symbolic sizes numbers; remembers which symbols it was asked for."""

    def __init__(
        self, given: Mapping[str, int], header: Mapping[str, Any], step: Mapping[str, int] | None = None
    ) -> None:
        self._step = step or {}
        self._given = given
        self._declared = _declared(header)
        self._balanced: dict[str, int] = {}
        for names, total in _sums(header):
            self._share(names, total)
        self._rest: int | None = None
        self._cache: dict[Any, int | None] = {}
        self.used: dict[str, Hint] = {}

    def value(self, size: Any) -> int | None:
        """The number for an int or a symbolic int; None when a symbol in it has no number.

        Hints that contradict each other (``u0 - u1`` with a smaller ``u0``) make a size of 0, not a negative one.
        """
        if isinstance(size, int):
            return size
        node = getattr(size, "node", None)
        expr = getattr(node, "expr", None)
        if not isinstance(expr, sympy.Basic):
            return None
        if expr not in self._cache:
            number = self._evaluate(expr, getattr(getattr(node, "shape_env", None), "var_to_range", {}))
            self._cache[expr] = number if number is not None else _own_hint(node)
        return self._cache[expr]

    def _evaluate(self, expr: sympy.Basic, known: Mapping[sympy.Basic, Any]) -> int | None:
        if any(map(is_explosive, sympy.preorder_traversal(expr))):
            return None
        values: dict[sympy.Basic, sympy.Integer] = {}
        for symbol in sorted(expr.free_symbols, key=str):
            hint = self._of_symbol(str(symbol), known.get(symbol))
            if hint is None:
                return None
            values[symbol] = sympy.Integer(hint.value)
        try:
            number = int(expr.xreplace(values))
        except (TypeError, ValueError, ArithmeticError):
            return None
        return max(0, number) if abs(number) <= MAX_NUMBER else None

    def _of_symbol(self, name: str, bounds: Any) -> Hint | None:
        """The number of a symbol, noted as used; the first source that has one decides. bounds: its range, or None."""
        given = (value for pattern, value in self._given.items() if fnmatchcase(name, pattern))
        declared = self._declared.get(name, (None, None))[1]
        sources = (
            ("given", next(given, None)),
            ("file", declared),
            ("step", self._step.get(name)),
            ("balanced", self._balanced.get(name)),
            ("assumed", self._within(name, bounds)),
        )
        hint = self.used.get(name) or next((Hint(name, n, source) for source, n in sources if n is not None), None)
        if hint is not None:
            self.used[name] = hint
        return hint

    def _within(self, name: str, bounds: Any) -> int | None:
        """The number for symbols that have no other, within what the file says of this one."""
        if self._rest is None:
            return None
        limits = [self._declared.get(name, (None, None))[0], getattr(bounds, "upper", None)]
        # Infinity is no bound, and no integer for sympy.
        upper = min((int(limit) for limit in limits if isinstance(limit, (int, sympy.Integer))), default=self._rest)
        return min(self._rest, upper)

    def assume_rest(self, number: int) -> None:
        """Give every symbol that nothing tells this number, to run a graph with; estimates do without."""
        self._rest = number
        self._cache.clear()

    def assume_balanced(self, nodes: Sequence[fx.Node]) -> None:
        """Give the split sizes of every all-to-all that have no number an even share of what is sent.

        What is sent follows from the rows of the input, else from the splits that are known, else
        from the upper bound that the file states for each of them (no rank can get more than all).
        """
        for node in nodes:
            fact = ops.collective_of(node.target) if node.op == "call_function" else None
            if fact is None or "output_split_sizes" not in fact.arguments:
                continue
            sides = [_symbols(ops.argument(node, name)) for name in ("input_split_sizes", "output_split_sizes")]
            if not any(name is not None for side in sides for name in side):
                continue
            total = self._rows(node, fact.tensor) or self._bound(sides)
            if total is not None:
                for side in sides:
                    self._share(side, total)
                # A graph that was rewritten may have other names for the same rows in its shapes than at the splits.
                self._share(_summed(node.meta.get("val")), total)
                self._share(_summed(getattr(ops.argument(node, fact.tensor), "meta", {}).get("val")), total)
                self._cache.clear()

    def _rows(self, node: fx.Node, tensor: str) -> int | None:
        source = ops.argument(node, tensor)
        val = getattr(source, "meta", {}).get("val")
        return self.value(val.shape[0]) if isinstance(val, torch.Tensor) and val.ndim else None

    def _bound(self, sides: list[list[str | None]]) -> int | None:
        for side in sides:
            bounds = {self._declared.get(name or "", (None, None))[0] for name in side}
            if len(bounds) == 1 and None not in bounds:
                return bounds.pop()
        return None

    def _share(self, names: list[str | None], total: int) -> None:
        share, more = divmod(total, max(1, len(names)))
        for i, name in enumerate(names):
            if name is not None:
                self._balanced.setdefault(name, share + (i < more))


def _declared(header: Mapping[str, Any]) -> dict[str, tuple[int | None, int | None]]:
    """Upper bound and hint of every symbol that a file's header declares."""
    table = header.get("symbols")
    declared: dict[str, tuple[int | None, int | None]] = {}
    for name, entry in table.items() if isinstance(table, dict) else ():
        if isinstance(entry, (list, tuple)) and len(entry) == 3:
            upper, hint = (number if type(number) is int and number >= 0 else None for number in entry[1:])
            declared[name] = (upper, hint)
    return declared


def _sums(header: Mapping[str, Any]) -> Iterator[tuple[list[str | None], int]]:
    """Symbols and what they are together, as a log said."""
    table = header.get("sums")
    for entry in table if isinstance(table, list) else ():
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and type(entry[1]) is int:
            yield [str(name) for name in entry[0]], max(0, entry[1])


def _summed(val: Any) -> list[str | None]:
    """The symbols of which a tensor's rows are the sum; empty for rows of any other kind."""
    rows = val.shape[0] if isinstance(val, torch.Tensor) and val.ndim else None
    expr = getattr(getattr(rows, "node", None), "expr", None)
    parts = sympy.Add.make_args(expr) if isinstance(expr, sympy.Expr) else ()
    return [str(part) for part in parts] if parts and all(isinstance(part, sympy.Symbol) for part in parts) else []


def _symbols(splits: Any) -> list[str | None]:
    """Names of split sizes that are one symbol each; None for anything else."""
    names: list[str | None] = []
    for split in splits if isinstance(splits, (list, tuple)) else ():
        value = split.meta.get("val") if hasattr(split, "meta") else split
        expr = getattr(getattr(value, "node", None), "expr", None)
        names.append(str(expr) if isinstance(expr, sympy.Symbol) else None)
    return names


def is_explosive(part: sympy.Basic) -> bool:
    """Whether a function's value can be huge although its arguments are not. Small powers are not, unless of powers."""
    if isinstance(part, sympy.Pow):
        small = isinstance(part.exp, sympy.Integer) and 0 <= part.exp <= _LARGEST_EXPONENT
        return not small or part.base.has(sympy.Pow)
    return any(word in type(part).__name__ for word in _EXPLOSIVE)


def _own_hint(node: Any) -> int | None:
    """What the SymInt itself knows: the example value of a backed symbol."""
    hint = getattr(node, "_hint", None)
    if hint is None and node is not None:
        has_hint = getattr(node, "has_hint", None)
        hint = getattr(node, "hint", None) if callable(has_hint) and has_hint() else None
    return int(hint) if isinstance(hint, (int, float)) and type(hint) is not bool else None
