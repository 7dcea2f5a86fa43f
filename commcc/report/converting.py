"""What ``commcc convert`` says: where the graph is, and what the format could not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.base.text import plural
from commcc.report.chakra import VERSION
from commcc.report.console import make_table
from commcc.report.documents import document, notes_json
from commcc.timing.predict import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.graph.program import Note, Program
    from commcc.report.chakra import Traces
    from commcc.report.console import Section
    from commcc.timing.snapshot import Snapshot


def conversion(graph: str, output: str, program: Program, lost: Iterable[Note]) -> dict[str, Json]:
    """The document; ``notes`` are what the reader assumed, ``lost`` what the format written cannot hold."""
    nodes = len(program.graph.nodes)
    notes = notes_json(program.notes)
    return document("convert", input=graph, output=output, nodes=nodes, lost=notes_json(lost), notes=notes)


def traces(graph: str, output: str, seen: Snapshot, written: Traces, ranks: Sequence[int]) -> dict[str, Json]:
    """The document of execution traces. ranks: those that were written; nodes: of each, by type."""
    assert seen.prediction is not None
    model = seen.prediction.model_json()
    return document(
        "convert",
        input=graph,
        output=output,
        world=written.layout.world,
        ranks=list(ranks),
        nodes=dict(sorted(written.counts.items())),
        groups={name: [list(part) for part in parts] for name, parts in sorted(written.layout.parts.items())},
        step_ms=milliseconds(seen.prediction.timeline.step_ns),
        cost_model={"name": model["name"], "hash": model["hash"]},
    )


def view_traces(document: Mapping[str, Any]) -> list[RenderableType]:
    """How many files there are and what is in each."""
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in document["nodes"].items())
    stem, count = document["output"].removesuffix(".et"), len(document["ranks"])
    names = f"{stem}.{document['ranks'][0]}.et" + (f" to {stem}.{document['ranks'][-1]}.et" if count > 1 else "")
    model, listed = document["cost_model"], ", ".join(document["groups"])
    groups = f"groups {listed}" if listed else "no groups"
    return [
        Text.assemble((names, "bold"), f"  {plural(count, 'rank')} of {document['world']:,}"),
        Text(f"Chakra {VERSION}: {kinds} nodes each; step {document['step_ms']:,.3f} ms, {groups}"),
        Text(f"times simulated with {model['name']}, hash {model['hash']}", style="dim"),
    ]


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
