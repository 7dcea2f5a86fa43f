"""What ``commcc reduce`` says: how small the pair became, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.report.documents import document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.replay.numeric.reduction import Opinion


def reduction(
    named: tuple[str, str],
    pair: Sequence[Program],
    small: Sequence[Program],
    opinions: tuple[Opinion, Opinion],
    folder: str,
) -> dict[str, Json]:
    """The document. opinions: of the whole pair, and of the small one as it was written."""
    first, last = opinions
    inputs: dict[str, Json] = {"before": named[0], "after": named[1]}
    nodes: dict[str, Json] = {
        "from": [len(program.graph.nodes) for program in pair],
        "to": [len(program.graph.nodes) for program in small],
    }
    return document(
        "reduce",
        inputs=inputs,
        output=folder,
        verified=last.verify,
        numeric=last.numeric,
        shows=last.contradiction,
        kept=first.same(last),
        nodes=nodes,
    )


def view(document: Mapping[str, Any]) -> list[RenderableType]:
    """The contradiction, the sizes, the folder."""
    was, now = document["nodes"]["from"], document["nodes"]["to"]
    said = f"verify says {document['verified']}, the numbers are {document['numeric']}"
    return [
        Text.assemble((document["shows"] or "no contradiction any more", "bold"), f": {said}"),
        Text(f"reduced from {was[0]:,} and {was[1]:,} nodes to {now[0]:,} and {now[1]:,}"),
        Text(f"written to {document['output']}: before.fx.txt, after.fx.txt, verdict.json"),
    ]
