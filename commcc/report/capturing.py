"""What ``commcc capture`` says: the graphs that were written, and what it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import plural, size
from commcc.report.console import make_table
from commcc.report.documents import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.capture.request import Request


def capturing(request: Request, answer: Mapping[str, Any]) -> dict[str, Json]:
    """The document; ``files`` in the order in which graphs were compiled."""
    mesh: dict[str, Json] = dict(request.mesh)
    return document(
        "capture",
        target=request.target,
        mesh=mesh,
        level=request.level,
        output=request.output,
        files=answer["files"],
        pieces=answer["pieces"],
        notes=answer["notes"],
        seconds={key: round(value, 3) for key, value in answer["seconds"].items()},
        max_rss=answer["max_rss"],
        torch=answer["torch"],
    )


def view(document: Mapping[str, Any]) -> list[RenderableType]:
    """A table of files, and a line on time and memory."""
    table = make_table("", "graph", "nodes", "collectives", "file", numbers=("nodes",))
    for file in document["files"]:
        kinds = ", ".join(f"{count:,} x {kind}" for kind, count in file["collectives"].items())
        table.add_text(file["graph"], f"{file['nodes']:,}", kinds or "none", Text(file["file"], style="bold"))
    ranks = 1
    for number in document["mesh"].values():
        ranks *= number
    axes = ", ".join(f"{name}={number}" for name, number in document["mesh"].items())
    seconds = sum(document["seconds"].values())
    took = f"{axes}: {plural(ranks, 'rank')}; level {document['level']}, PyTorch {document['torch']}; "
    shown: list[RenderableType] = [table, "", Text(f"{took}{seconds:.0f} s, {size(document['max_rss'])} of memory")]
    written = len({file["piece"] for file in document["files"]})
    if written < document["pieces"]:
        rest = document["pieces"] - written
        shown.append(
            Text(f"{plural(rest, 'piece')} without collectives and products not written, of {document['pieces']}")
        )
    return shown
