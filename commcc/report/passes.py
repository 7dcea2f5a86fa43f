"""What ``commcc passes`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.options import options_of, value_text
from commcc.base.record import plain
from commcc.base.text import Lines, sentence
from commcc.report.console import Prose, make_table
from commcc.report.documents import document
from commcc.run.forms import from_preset, pipeline_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.passes.base import Pass
    from commcc.run.forms import Preset


def listed(classes: Iterable[type[Pass]], presets: Iterable[Preset]) -> dict[str, Json]:
    """The document."""
    passes: list[Json] = [
        {
            "name": cls.name,
            "summary": cls.summary,
            "options": [
                {
                    "name": option.name,
                    "type": option.kind,
                    "default": plain(option.default),
                    "choices": list(option.choices),
                    "none": option.none,
                    "help": option.help,
                }
                for option in options_of(cls).values()
            ],
        }
        for cls in classes
    ]
    named: list[Json] = [
        {
            "name": preset.name,
            "summary": preset.summary,
            "pipeline": preset.text,
            "yaml": Lines(pipeline_yaml(from_preset(preset.name))),
        }
        for preset in presets
    ]
    return document("passes", passes=passes, presets=named)


def overview(document: Mapping[str, Any]) -> list[RenderableType]:
    """One line for each pass."""
    table = make_table("passes", "name", "does", "options")
    for entry in document["passes"]:
        table.add_text(entry["name"], entry["summary"], ", ".join(option["name"] for option in entry["options"]))
    presets = make_table("presets, for commcc run --preset", "name", "does", "passes")
    for entry in document.get("presets", ()):
        presets.add_text(entry["name"], entry["summary"], entry["pipeline"].replace(",", ", "))
    return [Prose(table, "", presets, "", "options of one pass, or a preset as YAML: commcc passes NAME")]


def detail(document: Mapping[str, Any]) -> list[RenderableType]:
    """The options of each pass in the document, and each preset in full."""
    shown: list[RenderableType] = []
    for entry in document.get("presets", ()):
        shown += [
            Prose(Text.assemble((entry["name"], "bold"), f": {entry['summary']}")),
            entry["pipeline"],
            "",
            entry["yaml"].rstrip(),
        ]
    for entry in document["passes"]:
        shown += [Prose(Text.assemble((entry["name"], "bold"), f": {entry['summary']}")), ""]
        if not entry["options"]:
            shown.append("no options")
            continue
        table = make_table("", "option", "type", "default", "meaning")
        for option in entry["options"]:
            kind = "|".join([*option["choices"], *([option["type"]] if option["type"] != "choice" else [])])
            none = f" 'none': {sentence(option['none'])}" if option["none"] else ""
            default = tuple(option["default"]) if isinstance(option["default"], list) else option["default"]
            table.add_text(option["name"], kind, value_text(default), sentence(option["help"]) + none)
        shown.append(Prose(table))
    return shown
