"""The page of ``commcc lint --html``: findings to filter by severity and text, the graphs, the rules.

    text = write_html(document)                 # of report.linting

It is made like that of ``simulate`` and shares its style. Equal runs give equal pages. Limits: the page has what the
document has, up to 1,000 findings of a rule and graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.lint.registry import RULES
from commcc.report.linting import summary
from commcc.report.page import Page, assemble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json

    Document = Mapping[str, Any]

PAGE = Page(
    command="lint",
    main="html_lint/main.html",
    picture="findings",
    pictures="findings",
    skip_to="graphs",
    styles=("html/style.css", "html/frame.css", "html_lint/lint.css"),
    scripts=("html/format.js", "html/dom.js", "html/tables.js", "html/frame.js", "html_lint/lint.js"),
)


def write_html(document: Document) -> str:
    """The page, ASCII only."""
    rules: list[Json] = [{"id": rule.id, "summary": rule.summary, "about": rule.about} for rule in RULES]
    data: dict[str, Json] = {
        **{key: document[key] for key in ("passed", "counts", "cost_model", "graphs", "across")},
        "rules": rules,
        "summary": summary(document),
    }
    return assemble(PAGE, title="lint", document=data)
