"""The page of ``commcc diff --html``: figures, a picture of what went where, a table for each kind of change.

    text = write_html(document, result)         # document: of report.differing, result: the GraphDiff

It is made like that of ``simulate`` and shares its style. Equal diffs give equal pages. Limits: of each kind the
picture draws the 4,000 lines that go farthest; tables hold everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.text import short_names
from commcc.report.metrics import figures
from commcc.report.page import Page, assemble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json
    from commcc.diff import GraphDiff

    Document = Mapping[str, Any]

PAGE = Page(
    command="diff",
    main="html_diff/main.html",
    picture="picture",
    pictures="picture",
    skip_to="changes",
    styles=("html/style.css", "html/frame.css", "html_diff/diff.css"),
    scripts=("html/format.js", "html/dom.js", "html/tables.js", "html/frame.js", "html_diff/diff.js"),
)
_ON_PAGE = (
    *("inputs", "cost_model", "identical", "before", "after", "split", "replaced", "moved", "added", "removed"),
    *("renamed", "changed", "rewired", "retyped", "groups"),
)


def write_html(document: Document, result: GraphDiff) -> str:
    """The page, ASCII only."""
    old, new = result.first.index, result.last.index
    before, after = ({name: place for place, name in enumerate(index.names)} for index in (old, new))
    merged: list[Json] = [
        {**merge, "place": after[merge["into"]], "places": [before[name] for name in merge["members"]]}
        for merge in document["merged"]
    ]
    rows: list[Json] = [list(row) for row in figures(document["before"], document["after"])]
    lengths: dict[str, Json] = {"before": len(old), "after": len(new)}
    data: dict[str, Json] = {**{key: document[key] for key in _ON_PAGE}, "merged": merged, "figures": rows}
    title = " and ".join(short_names([document["inputs"][side] for side in ("before", "after")]))
    return assemble(PAGE, title=title, document={**data, "lengths": lengths})
