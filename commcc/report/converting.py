"""What ``commcc convert`` says: where the graph is, and what the format could not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import plural
from commcc.report.console import make_table
from commcc.report.documents import document, notes_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.graph.program import Note, Program
    from commcc.report.console import Section


def conversion(graph: str, output: str, program: Program, lost: Iterable[Note]) -> dict[str, Json]:
    """The document; ``notes`` are what the reader assumed, ``lost`` what the format written cannot hold."""
    nodes = len(program.graph.nodes)
    notes = notes_json(program.notes)
    return document("convert", input=graph, output=output, nodes=nodes, lost=notes_json(lost), notes=notes)


def view(document: Mapping[str, Any]) -> list[RenderableType]:
    """The notes of the writer and of the reader, then the path."""
    shown: list[RenderableType] = []
    if document["notes"]:
        shown += [notes_table("taken on trust by the reader", document["notes"]), ""]
    if document["lost"]:
        shown += [notes_table("not held by the format", document["lost"]), ""]
    else:
        shown.append(Text("everything in the graph is in the file", style="green"))
    return [*shown, Text.assemble((document["output"], "bold"), f"  {plural(document['nodes'], 'node')}")]


def notes_table(title: str, notes: list[Mapping[str, Any]]) -> Section:
    """Notes with how often each was given and the first node it was given for."""
    counts: dict[str, list[str | None]] = {}
    for note in notes:
        counts.setdefault(note["text"], []).append(note["node"])
    table = make_table(title, "what", "nodes", "first", numbers=("nodes",))
    for text, nodes in counts.items():
        named = [node for node in nodes if node is not None]
        table.add_text(text, f"{len(named):,}" if named else "", named[0] if named else "")
    return table
