"""The page of ``commcc simulate --html``: one file with its style, its script and its data in it.

    text = write_html([side(...), side(...)], title="llama3_8b", options={...}, explanations=[...])

The sources are the files of ``commcc/report/html``: ``shell.html`` and ``main.html`` are the frame, ``style.css``
the style, and the scripts are joined in the order of ``SCRIPTS`` (:mod:`commcc.report.page`). The page loads
nothing, and nothing in it is ever taken for markup or script that did not come with commcc.

The same sides give the same page to the byte. Limits: needs a browser of 2022 or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.report.metrics import figures
from commcc.report.page import Page, assemble

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.report.simulation_data import Side

SCHEMA = 1

#: Each may use what the ones before it define.
SCRIPTS = (
    "format.js",
    "dom.js",
    "model.js",
    "palette.js",
    "view.js",
    "paint.js",
    "rows.js",
    "track.js",
    "highlight.js",
    "overview.js",
    "gestures.js",
    "facts.js",
    "tooltip.js",
    "details.js",
    "search.js",
    "legend.js",
    "tables.js",
    "cards.js",
    "worst.js",
    "sections.js",
    "collectives.js",
    "main.js",
)
PAGE = Page(
    command="simulate",
    main="html/main.html",
    picture="timeline",
    pictures="timelines",
    skip_to="figures",
    styles=("html/style.css",),
    scripts=tuple(f"html/{name}" for name in SCRIPTS),
)


def write_html(
    sides: Sequence[Side],
    *,
    title: str,
    options: Mapping[str, Json],
    explanations: Sequence[Mapping[str, Json]],
) -> str:
    """The text of the page, ASCII only. One side, or the graph before and after.

    options: what took effect, as JSON; nested mappings are shown as one row for each leaf.
    explanations: of the most exposed collectives, with the keys ``name``, ``kind``, ``group``,
    ``role``, ``exposed_ms``, ``total_ms``, ``reasons`` and ``knobs``; any of them may be missing.
    """
    if not 1 <= len(sides) <= 2:
        raise ValueError(f"a page shows one graph or two, not {len(sides)}")
    document: dict[str, Json] = {
        "schema": SCHEMA,
        "title": title,
        "options": dict(options),
        "figures": _figures(sides),
        "explanations": [dict(explanation) for explanation in explanations],
        "sides": [side.to_json() for side in sides],
    }
    return assemble(PAGE, title=title, document=document)


def _figures(sides: Sequence[Side]) -> list[Json]:
    """Rows of the table of metrics, in the words and units of all other reports."""
    first, last = sides[0].metrics, sides[-1].metrics
    return [[label, old, new, delta] for label, old, new, delta in figures(first, last)]
