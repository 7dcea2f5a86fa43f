"""The page of ``commcc sweep --html``: one file with a plot of all settings, their table and the best.

    text = write_html(document)         # the JSON document of the sweep

It is made like that of ``simulate`` (:mod:`commcc.report.page`) and shares its style. Figures that differ
from run to run (seconds) are left out, so that equal sweeps give equal pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.text import Lines
from commcc.report.page import Page, assemble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json

PAGE = Page(
    command="sweep",
    main="html_sweep/main.html",
    picture="plot",
    pictures="plot",
    skip_to="settings",
    styles=("html/style.css", "html_sweep/sweep.css"),
    scripts=("html/format.js", "html/dom.js", "html/tables.js", "html_sweep/sweep.js"),
)
_SHOWN = (
    *("input", "pipeline", "parameters", "max_consecutive_of", "cost_model", "before", "front", "best", "best_yaml"),
)


def write_html(document: Mapping[str, Any]) -> str:
    """The text of the page, ASCII only."""
    settings: list[Json] = [
        {key: value for key, value in setting.items() if key != "seconds"} for setting in document["settings"]
    ]
    data: dict[str, Json] = {**{key: document[key] for key in _SHOWN}, "settings": settings}
    data["best_yaml"] = None if document["best_yaml"] is None else Lines(document["best_yaml"])
    return assemble(PAGE, title=str(document["input"]), document=data)
