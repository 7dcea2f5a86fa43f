"""Which module prefetches which: the texts of the option ``prefetch``.

::

    next                             each module the one after it
    2                                each module the two after it
    layers.0=layers.1:norm=output    these and no others
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBER = "[1-9][0-9]{0,3}"
Given: TypeAlias = str | tuple[str, ...] | None


def prefetch_problems(given: Given) -> Iterator[str]:
    """What is wrong with the option whatever the graph."""
    if given is None or depth_of(given) is not None:
        return
    for text in (given,) if isinstance(given, str) else given:
        first, equals, second = text.partition("=")
        if not equals or not first or not second or "=" in second:
            yield f"prefetch: '{text}' is neither next, nor a number, nor a pair such as layers.0=layers.1"
        elif first == second:
            yield f"prefetch: '{text}' lets a module prefetch itself"


def depth_of(given: Given) -> int | None:
    """How many next modules each module prefetches; None where pairs are given, or nothing."""
    texts = (given,) if isinstance(given, str) else given or ()
    if texts == ("next",):
        return 1
    return int(texts[0]) if len(texts) == 1 and re.fullmatch(_NUMBER, texts[0]) else None


def pairs_of(given: Given) -> list[tuple[str, str]]:
    """The pairs that are given; none where :func:`depth_of` has a number."""
    if given is None or depth_of(given) is not None:
        return []
    texts = (given,) if isinstance(given, str) else given
    return [(first, second) for first, _, second in (text.partition("=") for text in texts)]
