"""What strategy ``auto`` chooses for each key: a cap on the bytes of its buckets, and their form."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commcc.base.terms import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Caps in MiB, tried on all keys at once.
CAPS = (2, 8, 32, 128, 512)
#: Stands for a cap: the buckets of strategy ``module``.
BY_BLOCK = -1


class Rung(NamedTuple):
    """How one key is merged. cap: MiB, 0 for no merging, :data:`BY_BLOCK`. form: as in the option of the pass."""

    cap: int
    form: str


Choice = tuple[Rung, ...]


def ladder(largest: int, whole: int) -> tuple[int, ...]:
    """Caps in MiB for a key: the general ones and on to all of its bytes, and enough for two of its largest."""
    return tuple(sorted({0, *CAPS, 2 * -(-largest // MIB), *_doubled(CAPS[-1], whole // MIB)}))


def _doubled(first: int, last: int) -> Iterator[int]:
    """Powers of two above ``first``, up to the first that is no less than ``last``."""
    while first < last:
        first *= 2
        yield first


def with_rung(choice: Choice, place: int, *, cap: int | None = None, form: str | None = None) -> Choice:
    """The choice with another cap, or another form, for one key."""
    own = choice[place]
    rung = Rung(own.cap if cap is None else cap, form or own.form)
    return (*choice[:place], rung, *choice[place + 1 :])
