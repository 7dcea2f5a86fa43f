"""How much the tests try: a fifth of all examples in ``make test``, all of them in ``make test-full``.

    @settings(max_examples=examples(150), deadline=None)
    for seed in range(examples(300)): ...

``pytest --full`` sets the variable that :data:`FULL` reads, before any test module is imported, so that workers of
pytest-xdist see it too.
"""

from __future__ import annotations

import os

VARIABLE = "COMMCC_TEST_FULL"
FULL = os.environ.get(VARIABLE) == "1"
FRACTION = 5


def examples(number: int) -> int:
    """How many of ``number`` examples are tried; never fewer than four, or than there are."""
    return number if FULL else min(number, max(4, number // FRACTION))
