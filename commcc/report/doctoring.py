"""What ``commcc doctor`` says: one screen of checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.report.console import make_table
from commcc.report.documents import document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.live.checks import Check

_MARKS = {True: ("ok", "green"), False: ("no", "bold red"), None: ("", "")}


def doctoring(checks: Sequence[Check]) -> dict[str, Json]:
    """The document; ``good`` is null for what is only told."""
    told: list[Json] = [
        {"about": check.about, "name": check.name, "good": check.good, "text": check.text} for check in checks
    ]
    return document("doctor", checks=told)


def view(document: Mapping[str, Any]) -> list[RenderableType]:
    """One table, with a row of blanks between its parts."""
    table = make_table("", "", " ", "  ", "   ")
    table.show_header = False
    about = None
    for check in document["checks"]:
        mark, style = _MARKS[check["good"]]
        table.add_text(
            "" if check["about"] == about else check["about"], check["name"], Text(mark, style), check["text"]
        )
        about = check["about"]
    return [table]
