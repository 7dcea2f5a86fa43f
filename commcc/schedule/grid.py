"""What rounds of the search begin from, and the settings of the list scheduler that they try, in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.schedule.result import LATE, LINE, OWN

if TYPE_CHECKING:
    from commcc.schedule.result import Setting, Start

#: Under little memory copies are better made where they stand than when the launch is due.
COPIES_STAY = (1000, 8000, 1000, 4, 1)
#: What a round begins from, and with which setting. Where little is left to gain the first ones suffice.
EXPLORED: tuple[Start, ...] = (
    *((OWN, (1000, 8000, 1000, 4)), (OWN, (500, 1000, 0, 4)), (LINE, (700, 1000, 0, 4, 2, 0, -1, 20_000))),
    # The last moment for gathers: a stream that they fill keeps others waiting for what it would reduce next.
    *((LINE, (0, 1500, 0, 2)), (OWN, (1000, 4000, 0, 2, 2, 0, 1000))),
    *((LINE, (500, 16000, 1000, -1, 2, 0, -1, 20_000)), (LINE, (700, 4000, 0, -1))),
    *((OWN, (700, 4000, 1000, 2, 2, 8)), (OWN, (0, 16000, 0, 2)), (LINE, (700, 4000, 1000, 2))),
    *((LINE, (500, 1000, 0, 2, 1, 0, -1, 20_000)), (OWN, (900, 4000, 0, 4))),
    *((OWN, (700, 16000, 0, -1, 2, 0, -1, 0)), (OWN, (1000, 8000, 0, 2)), (LINE, (1000, 8000, 1000, 2))),
    *((OWN, (500, 16000, 1000, -1)), (LINE, (1000, 8000, 0, 2, 2, 0, -1, 0)), (OWN, (900, 8000, 1000, -1))),
    *((OWN, (700, 4000, 1000, 2, 2, 0, -1, 20_000)), (LATE, (500, 1000, 0, 4)), (LINE, (700, 2000, 0, 4))),
    *((OWN, (700, 8000, 0, 4)), (OWN, (500, 1000, 0, 4, 2, 0, -1, 0)), (OWN, (700, 4000, 1000, 2, 2, 0, -1, 0))),
    *((LINE, (800, 8000, 1000, 2)), (LATE, (1000, 8000, 0, 2)), (LINE, (700, 4000, 0, -1, 2, 0, -1, 0))),
    *((LATE, (700, 1000, 0, -1)), (OWN, (950, 1000, 0, 4)), (LATE, (900, 4000, 0, 4))),
    *((LINE, (800, 4000, 0, 2)), (OWN, (1000, 1500, 1000, 4)), (LATE, (700, 4000, 1000, 2))),
    *((LINE, (0, 1500, 0, -1)), (OWN, (800, 8000, 1000, 2)), (LATE, (950, 1000, 0, 4))),
    *((LINE, (500, 1000, 0, -1)), (OWN, (500, 4000, 0, 3)), (LATE, (1000, 1500, 1000, 4))),
    *((OWN, (950, 4000, 1000, 3)), (LATE, (800, 8000, 1000, 2)), (OWN, (700, 2000, 0, 4))),
    *((LATE, (500, 4000, 0, 3)), (OWN, (900, 1500, 1000, 3)), (LATE, (950, 4000, 1000, 3))),
)
#: The round that aims at what was reached.
RELAXED: tuple[Start, ...] = tuple(
    (OWN, own) for own in ((0, 1500, 0, 2), (0, 1500, 0, -1), (0, 4000, 0, 4), (0, 16000, 0, 2), (0, 16000, 0, -1))
)
#: Settings of the rounds with compute behind a collective, after the one that did best before.
BEHIND: tuple[Setting, ...] = ((0, 1500, 0, 4), (1000, 8000, 0, 4), (0, 1500, 0, 2), (500, 1000, 0, 4))
