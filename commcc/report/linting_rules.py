"""The rules as a table for the terminal, as data, and as the part of the manual that describes them.

All three are made of the same :class:`commcc.lint.types.Rule`, so that none can drift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from commcc.base.options import options_of
from commcc.base.text import sentence
from commcc.lint.registry import RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from commcc.base.options import Option
    from commcc.base.terms import Json
    from commcc.lint.types import Rule

    Document = Mapping[str, Any]


def rules_document() -> dict[str, Json]:
    """``lint --rules`` as data."""
    return {"schema": 1, "command": "lint", "rules": [_rule(rule) for rule in RULES]}


def rules_brief() -> list[str]:
    """The ids, one a line."""
    return [rule.id for rule in RULES]


def _rule(rule: Rule) -> dict[str, Json]:
    options: list[Json] = [
        {
            "name": name,
            "takes": option.takes,
            "default": _plain(option.default),
            "default_text": _default(option),
            "help": option.help,
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


def _plain(value: Any) -> float | str | None:
    return value if isinstance(value, (int, float, str)) else None


def _default(option: Option) -> str:
    """The default as people write it; nothing for a limit that is not set."""
    return "" if option.default in (None, (), {}) else option.show(option.default)


def rules_view(document: Document) -> list[RenderableType]:
    """Every rule with its paragraph and its options."""
    shown: list[RenderableType] = []
    for rule in document["rules"]:
        head = Text.assemble((rule["id"], "bold"), f"  {rule['summary']}", (f"  {_state(rule)}", "dim"))
        shown += [head, Padding(Text(rule["about"]), (0, 0, 0, 2))]
        for option in rule["options"]:
            text = Text.assemble(
                (option["name"], "cyan"), f"  {option['takes']}{_usual(option)}  ", (sentence(option["help"]), "dim")
            )
            shown.append(Padding(text, (0, 0, 0, 4)))
        shown.append("")
    return [*shown, "in a configuration: rules: {ID: {severity: error, OPTION: VALUE}}; here: --rule ID.OPTION=VALUE"]


def _state(rule: Document) -> str:
    needs = rule["needs"]
    set_by = "" if not needs else f" once {needs[0] if len(needs) == 1 else 'a limit'} is set"
    return f"{rule['severity']}{set_by}{', simulated' if rule['costed'] else ''}"


def _usual(option: Document) -> str:
    return f" [{option['default_text']}]" if option["default_text"] else ""


def rules_manual() -> str:
    """The rules in Markdown."""
    lines = ["| rule | severity | finds |", "|---|---|---|"]
    found = [_rule(rule) for rule in RULES]
    lines += [f"| [`{rule['id']}`](#{rule['id']}) | {_state(rule)} | {rule['summary']} |" for rule in found]
    for rule in found:
        lines += ["", f"### {rule['id']}", "", str(rule["about"])]
        options: Any = rule["options"]
        if options:
            lines += ["", "| option | takes | default | |", "|---|---|---|---|"]
            lines += [
                f"| `{each['name']}` | {each['takes']} | {each['default_text']} | {sentence(each['help'])} |"
                for each in options
            ]
    return "\n".join(lines) + "\n"
