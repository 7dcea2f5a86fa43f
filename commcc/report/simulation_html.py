"""The page of ``commcc simulate --html``: one file with its style, its script and its data in it.

    text = write_html([side(...), side(...)], title="llama3_8b", options={...}, explanations=[...])

The sources are the files of ``commcc/report/html``: ``page.html`` is the frame, ``style.css`` the
style, and the scripts are joined in the order of ``SCRIPTS`` into one function. The page loads
nothing; its content security policy lets exactly this style and this script run, by their hashes, so
that a name from a graph could not run anything even if it got into the markup. Names get there as
text only: in the data they stand as JSON in which ``<``, ``>`` and ``&`` are escaped.

The same sides give the same page to the byte. Limits: needs a browser of 2022 or later.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import TYPE_CHECKING

from commcc.report.metrics import figures
from commcc.report.units import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.report.simulation_data import Side
    from commcc.terms import Json

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
_PLACE = re.compile(r"\{\{(\w+)\}\}")
#: No text in JSON can close the script element or open a comment in it.
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


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
    style, script = _source("style.css"), _script()
    parts = {
        "title": html.escape(printable(title)),
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:",
        "style": style,
        "script": script,
        "data": _data(document),
    }
    page = _PLACE.sub(lambda place: parts[place[1]], _source("page.html"))
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _figures(sides: Sequence[Side]) -> list[Json]:
    """Rows of the table of metrics, in the words and units of all other reports."""
    first, last = sides[0].metrics, sides[-1].metrics
    return [[label, old, new, delta] for label, old, new, delta in figures(first, last)]


def _data(document: Mapping[str, Json]) -> str:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.translate(_ESCAPES)


def _script() -> str:
    """All scripts as the body of one function, so that nothing becomes global."""
    body = "\n".join(_source(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _source(name: str) -> str:
    """A file of the page; Windows line ends would change the hashes."""
    text = resources.files("commcc.report").joinpath("html", name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def _hash(text: str) -> str:
    """A source expression for a content security policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
