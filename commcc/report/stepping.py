"""What ``commcc run`` says of a forward and its backward: the step before and after, then each half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from commcc.report.documents import carried_line, costs, document
from commcc.report.metrics import compare, costed_by
from commcc.report.rewriting import passes, verdict
from commcc.timing.snapshot import cost_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from commcc.base.terms import Json
    from commcc.run.step import StepRun

_HALVES = ("forward", "backward")


def stepping(both: StepRun, halves: Sequence[Mapping[str, Json]], said: Mapping[str, Json]) -> dict[str, Json]:
    """The document; ``halves`` are those of the two graphs, each in itself."""
    return document(
        "run",
        input=halves[0]["input"],
        backward=halves[1]["input"],
        output=halves[0]["output"],
        backward_output=halves[1]["output"],
        **said,
        verified=both.verified,
        carried_over=list(both.carried_over),
        **costs(both.first, both.last),
        before=both.first.to_json(),
        after=both.last.to_json(),
        halves=[dict(half) for half in halves],
        warnings=[*dict.fromkeys((*both.forward.warnings, *both.backward.warnings)), *cost_warnings(both.last)],
    )


def view(document: Mapping[str, Any]) -> list[RenderableType]:
    """The step before and after, what each pass did to each half, and where the results are."""
    shown: list[RenderableType] = [
        compare(document["before"], document["after"], "the step: forward and backward"),
        *costed_by(document),
        *carried_line(document),
    ]
    for name, half in zip(_HALVES, document["halves"], strict=True):
        shown += ["", Text(name, style="bold underline"), *passes(half)[1:]]
    files = [Text.assemble("written to ", (half["output"], "bold")) for half in document["halves"]]
    return [*shown, "", verdict(document["verified"]), *files]
