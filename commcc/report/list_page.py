"""What ``commcc simulate FOLDER --html`` says, also as a page: what each graph takes, and a link to its own page.

    document = listing("dumps", entries, cost_model=..., hints=[...])
    write_html(document)

The page is made like that of one graph and shares its style. Limits: links are relative, so the list and the folder
with the pages move together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import count, milliseconds, plural, share
from commcc.report.console import make_table
from commcc.report.documents import document
from commcc.report.metrics import costed_by
from commcc.report.page import Page, assemble

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType

    from commcc.base.terms import Json

    Document = Mapping[str, Any]

PAGE = Page(
    command="simulate",
    main="html_list/main.html",
    picture="figures",
    pictures="list",
    skip_to="graphs",
    styles=("html/style.css", "html/frame.css"),
    scripts=("html/format.js", "html/dom.js", "html/tables.js", "html/frame.js", "html_list/list.js"),
)


@dataclass(frozen=True)
class Entry:
    """One graph. name: as the list calls it. graph: as commands take it. page: its address, relative to the list.

    metrics: of the graph that its page shows last; before: of the one that was rewritten, if one was. error: why there
    is no page.
    """

    name: str
    graph: str
    page: str | None = None
    metrics: Mapping[str, Json] | None = None
    before: Mapping[str, Json] | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Json]:
        shown: dict[str, Json] = {"name": self.name, "graph": self.graph, "page": self.page, "error": self.error}
        for key, metrics in (("before", self.before), ("metrics", self.metrics)):
            shown[key] = None if metrics is None else dict(metrics)
        return shown


def listing(graph: str, entries: Iterable[Entry], **fields: Json) -> dict[str, Json]:
    """The document; ``fields`` are those of the command."""
    return document("simulate", input=graph, **fields, graphs=[entry.to_json() for entry in entries])


def brief(document: Document) -> list[str]:
    """A page a line."""
    return [str(graph["page"]) for graph in document["graphs"] if graph["page"] is not None]


def view(document: Document) -> list[RenderableType]:
    """A row for each graph."""
    numbers = ("collectives", "step", "exposed", "hidden")
    table = make_table(plural(len(document["graphs"]), "graph"), "graph", *numbers, numbers=numbers)
    failed = [graph for graph in document["graphs"] if graph["error"] is not None]
    for graph in document["graphs"]:
        metrics = graph["metrics"]
        if metrics is None:
            table.add_text(graph["name"], "", "", "", "")
            continue
        times = [milliseconds(metrics[key]) for key in ("step_ms", "exposed_ms")]
        launches = count(sum(metrics["collectives"].values()))
        table.add_text(graph["name"], launches, *times, share(metrics["hidden_share"]) or "-")
    shown: list[RenderableType] = [table, *costed_by(document), ""]
    shown += [Text(f"{graph['name']}: {graph['error']}", style="yellow") for graph in failed]
    pages = plural(len(document["graphs"]) - len(failed), "page")
    return [*shown, Text.assemble("list written to ", (document["html"], "bold"), f", with a link to each of {pages}")]


def write_html(document: Document, title: str) -> str:
    """The page, ASCII only."""
    data: dict[str, Json] = {key: document[key] for key in ("cost_model", "graphs")}
    return assemble(PAGE, title=title, document={**data, "title": title})
