"""Tables of ``commcc passes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.options import value_text
from commcc.base.text import sentence
from commcc.report.console import make_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType


def overview(document: Mapping[str, Any]) -> list[RenderableType]:
    """One line for each pass."""
    table = make_table("passes", "name", "does", "options")
    for each in document["passes"]:
        table.add_text(each["name"], each["summary"], ", ".join(option["name"] for option in each["options"]))
    presets = make_table("presets, for commcc run --preset", "name", "does", "passes")
    for each in document.get("presets", ()):
        presets.add_text(each["name"], each["summary"], each["pipeline"])
    return [table, "", presets, "", "options of one pass, or a preset as YAML: commcc passes NAME"]


def detail(document: Mapping[str, Any]) -> list[RenderableType]:
    """The options of each pass in the document, and each preset in full."""
    shown: list[RenderableType] = []
    for each in document.get("presets", ()):
        shown += [
            Text.assemble((each["name"], "bold"), f": {each['summary']}"),
            each["pipeline"],
            "",
            each["yaml"].rstrip(),
        ]
    for each in document["passes"]:
        shown += [Text.assemble((each["name"], "bold"), f": {each['summary']}"), ""]
        if not each["options"]:
            shown.append("no options")
            continue
        table = make_table("", "option", "type", "default", "meaning")
        for option in each["options"]:
            kind = "|".join([*option["choices"], *([option["type"]] if option["type"] != "choice" else [])])
            none = f" 'none': {sentence(option['none'])}" if option["none"] else ""
            meaning = sentence(option["help"]) + none
            table.add_text(option["name"], kind, value_text(_tupled(option["default"])), meaning)
        shown.append(table)
    return shown


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
