"""Hints as people write them: ``SYMBOL=NUMBER``, a number for a size that is known only at run time.

read_hints(("u0=512", "s*=4096"))     # {'u0': 512, 's*': 4096}
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST = 2**40
_SYMBOL = re.compile(r"[\w*?!\[\]-]+")
_NUMBER = re.compile("[0-9]{1,13}")


def read_hints(texts: Iterable[str]) -> dict[str, int]:
    """Numbers by symbol or pattern; :class:`OptionError` names everything that is wrong."""
    hints: dict[str, int] = {}
    wrong: list[str] = []
    for text in texts:
        symbol, _, number = (part.strip() for part in text.partition("="))
        problem = hint_problem(symbol, number) if number else f"'{text}' is not SYMBOL=NUMBER"
        if problem is None and symbol in hints:
            problem = f"{symbol} is given twice"
        if problem is None:
            hints[symbol] = int(number)
        else:
            wrong.append(problem)
    if wrong:
        raise OptionError(f"hints: {'; '.join(wrong)}", hint="as in --hint u0=512 --hint 's*=4096'")
    return hints


def hint_problem(symbol: str, number: str) -> str | None:
    """What is wrong with one hint; None when nothing is."""
    if not _SYMBOL.fullmatch(symbol):
        return f"'{symbol}={number}' is not SYMBOL=NUMBER"
    if not _NUMBER.fullmatch(number) or int(number) > LARGEST:
        shown = number if len(number) < 30 else f"{number[:20]}..."
        return f"{symbol}: '{shown}' is not a whole number from 0 to {LARGEST}"
    return None
