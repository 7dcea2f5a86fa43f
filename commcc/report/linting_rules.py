"""The rules as a table for the terminal, as data, and as the part of the manual that describes them.

All three are made of the same :class:`commcc.lint.types.Rule`, so that none can drift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from commcc.lint.options import options_of
from commcc.lint.registry import RULES
from commcc.report.units import sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from commcc.lint.types import Rule
    from commcc.terms import Json

    Document = Mapping[str, Any]


def rules_document() -> dict[str, Json]:
    """``lint --rules`` as data."""
    return {"schema": 1, "command": "lint", "rules": [_rule(rule) for rule in RULES]}


def rules_brief() -> str:
    """The ids, one a line."""
    return "\n".join(rule.id for rule in RULES)


def _rule(rule: Rule) -> dict[str, Json]:
    options: list[Json] = [
        {
            "name": name,
            "takes": option.metadata["sort"].meaning,
            "default": _default(option.default),
            "help": option.metadata["help"],
        }
        for name, option in options_of(rule.options).items()
    ]
    return {
        "id": rule.id,
        "severity": str(rule.severity),
        "summary": rule.summary,
        "about": rule.about,
        "costed": rule.costed,
        "across": rule.across,
        "needs": list(rule.needs),
        "options": options,
    }


def _default(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) else None


def rules_view(document: Document) -> list[RenderableType]:
    """Every rule with its paragraph and its options."""
    shown: list[RenderableType] = []
    for rule in document["rules"]:
        head = Text.assemble((rule["id"], "bold"), f"  {rule['summary']}", (f"  {_state(rule)}", "dim"))
        shown += [head, Padding(Text(rule["about"]), (0, 0, 0, 2))]
        for option in rule["options"]:
            text = Text.assemble((option["name"], "cyan"), f"  {_takes(option)}  ", (sentence(option["help"]), "dim"))
            shown.append(Padding(text, (0, 0, 0, 4)))
        shown.append("")
    return [*shown, "in a configuration: rules: {ID: {severity: error, OPTION: VALUE}}; here: --rule ID.OPTION=VALUE"]


def _state(rule: Document) -> str:
    set_by = "" if not rule["needs"] else f" once {' or '.join(rule['needs'])} is set"
    return f"{rule['severity']}{set_by}{', simulated' if rule['costed'] else ''}"


def _takes(option: Document) -> str:
    default = "" if option["default"] is None else f" [{option['default']:,}]"
    return f"{option['takes']}{default}"


def rules_manual() -> str:
    """The rules in Markdown."""
    lines = ["| rule | severity | finds |", "|---|---|---|"]
    found = [_rule(rule) for rule in RULES]
    lines += [f"| [`{rule['id']}`](#{rule['id']}) | {_state(rule)} | {rule['summary']} |" for rule in found]
    for rule in found:
        lines += ["", f"### {rule['id']}", "", str(rule["about"])]
        options: Any = rule["options"]
        if options:
            lines += ["", "| option | takes | |", "|---|---|---|"]
            lines += [f"| `{each['name']}` | {_takes(each)} | {sentence(each['help'])} |" for each in options]
    return "\n".join(lines) + "\n"
