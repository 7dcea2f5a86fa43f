"""``commcc simulate FOLDER --html``: a page for each graph of a folder, a pattern or a log, and one that lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import EXIT_OK, EXIT_USAGE, CommccError, OptionError, OutputError
from commcc.base.files import output_folder, replace_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.cli.simulate import Request
    from commcc.lint.expand import Item
    from commcc.report.list_page import Entry


def graphs_of(graph: str) -> list[Item]:
    """The graphs where ``graph`` stands for several; none where it is one, or nothing that can be listed."""
    from commcc.base.files import GRAPH_FILES
    from commcc.lint.expand import expand

    folder = Path(graph).is_dir()
    if not folder and (graph.endswith(GRAPH_FILES) or "::" in graph) and Path(graph.partition("::")[0]).exists():
        return []
    items = expand([graph])
    usable = any(item.error is None for item in items)
    return items if usable and (folder or len(items) > 1) else []


def simulate_all(session: Session, graph: str, items: Sequence[Item], request: Request, page: Path) -> int:
    """Writes the pages into a folder called like the list, and the list next to it."""
    from commcc.report import list_page

    folder = page.with_suffix("")
    if folder.exists() and not folder.is_dir():
        raise OutputError("is a file, and pages of graphs go into a folder of that name", where=str(folder))
    new = not output_folder(folder, "choose another with --html").exists()
    folder.mkdir(parents=True, exist_ok=True)
    with session.working("loading PyTorch") as say:
        entries = []
        for number, item in enumerate(items, 1):
            say(f"{number} of {len(items)}: {item.graph}")
            name = _name(graph, item.graph)
            target = folder / f"{number:03d}-{re.sub('[^A-Za-z0-9._-]+', '-', name)[:80]}.html"
            entries.append(_entry(session, (name, item), request, target, say))
    if not any(entry.page for entry in entries):
        if new:
            folder.rmdir()
        raise OptionError(
            "none of the graphs could be read", where=graph, hint=f"{entries[0].name}: {entries[0].error}"
        )
    model: dict[str, Json] = {"name": request.cost.name, "hash": request.cost.hash}
    fields: dict[str, Json] = {"html": str(page), "cost_model": model, "hints": []}
    document = list_page.listing(graph, entries, **fields)
    replace_text(page, list_page.write_html(document, Path(graph).name or graph))
    session.emit(document, brief=list_page.brief(document), view=list_page.view)
    return EXIT_USAGE if any(entry.error for entry in entries) else EXIT_OK


def _entry(
    session: Session, named: tuple[str, Item], request: Request, target: Path, say: Callable[[str], None]
) -> Entry:
    """Writes the page of one graph; what is wrong with it does not stop the others."""
    from commcc.cli.simulate import tracks_of, write_page
    from commcc.passes.options import to_text
    from commcc.report.list_page import Entry

    name, item = named
    if item.error is not None:
        return Entry(name, item.graph, error=item.error)
    try:
        tracks, _, _ = tracks_of(session, request, session.load(item.graph), say)
        sources: dict[str, Json] = {"input": item.graph, "after": None}
        sources["passes"] = ",".join(map(to_text, request.passes)) or None
        write_page(target, tracks, sources, request.cost, request.hints)
    except CommccError as error:
        return Entry(name, item.graph, error=error.what)
    sides = [track.seen.to_json() for track in tracks]
    before = sides[0] if len(sides) > 1 else None
    return Entry(name, item.graph, f"{target.parent.name}/{target.name}", sides[-1], before)


def _name(where: str, graph: str) -> str:
    """A graph's name without the folder or file that all of them are in."""
    shorter = graph.removeprefix(where).lstrip("/:")
    return shorter if graph.startswith(where) and shorter else graph
