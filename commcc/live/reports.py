"""What is kept of a job in ``report_dir``: each graph before and after, as text and as a page, and a summary.

::

    rank0.json                                   # every graph: verdict, launches, seconds, order; share of compiling
    rank0.graph1.before.fx.txt  rank0.graph1.after.fx.txt  rank0.graph1.html

The page is that of ``commcc simulate BEFORE AFTER --html``, by the cost model of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch.distributed as dist

from commcc.base.errors import OutputError
from commcc.base.files import replace_text
from commcc.base.text import json_text
from commcc.serialization import save

if TYPE_CHECKING:
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.run.pipeline import RunResult
    from commcc.timing.cost import CostModel


@dataclass
class Reports:
    """Of one rank. graphs: what the summary says of each, by number. Raises :class:`OutputError` without a folder."""

    folder: Path
    graphs: dict[int, dict[str, Json]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the folder cannot be made: {error.strerror}", where=str(self.folder)) from None

    @property
    def _stem(self) -> str:
        return f"rank{dist.get_rank() if dist.is_initialized() else 0}"

    def graph(self, number: int, before: Program, result: RunResult | None, model: CostModel) -> None:
        """Keep the graphs, and a page of both."""
        stem = f"{self._stem}.graph{number}"
        save(before, self.folder / f"{stem}.before.fx.txt")
        if result is None:
            return
        if result.changed:
            save(result.program, self.folder / f"{stem}.after.fx.txt")
        replace_text(self.folder / f"{stem}.html", _page(stem, result, model))

    def summary(self, number: int, about: dict[str, Json], job: dict[str, Json]) -> None:
        """Write what is known by now. about: of this graph. job: of all."""
        self.graphs[number] = {**self.graphs.get(number, {}), **about}
        document: dict[str, Json] = {"schema": 1, **job, "graphs": [self.graphs[key] for key in sorted(self.graphs)]}
        replace_text(self.folder / f"{self._stem}.json", json_text(document))


def _page(title: str, result: RunResult, model: CostModel) -> str:
    from commcc.report.simulation_page import side, write_html

    ends = {"before": result.first, "after": result.last} if result.changed else {"before": result.first}
    priced = {label: seen.priced(model) for label, seen in ends.items()}
    sides = [
        side(seen.index, seen.ident, seen.prediction, label)
        for label, seen in priced.items()
        if seen.prediction is not None
    ]
    options: dict[str, Json] = {"cost": {"name": model.name, "hash": model.hash, **model.settings.to_json()}}
    return write_html(sides, title=title, options=options, explanations=[])
