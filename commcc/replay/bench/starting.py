"""How the ranks of a bench come to be: started here by PyTorch's launcher, on one machine or on several.

    found = Launched(Machines())(graphs, programs, settings)       # what each rank measured

A runner is given what was prepared and gives every rank's findings, or says on which machine they are.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from commcc.replay.bench.graph_set import graph_file
from commcc.serialization import save

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.base.errors import CommccError
    from commcc.graph.program import Program
    from commcc.replay.bench.graph_set import BenchSettings, GraphSet
    from commcc.replay.ranks.machines import Machines

_WORKER = "commcc.replay.ranks.bench_worker"
_HINT = "commcc verify BEFORE AFTER --numeric runs graphs without processes"


@dataclass(frozen=True)
class Elsewhere:
    """Rank 0, which has the findings of all, is on another machine or in another process."""

    machine: str


class Runner(Protocol):
    """Runs prepared graphs on ranks."""

    def here(self, world: int) -> int:
        """How many of so many ranks are on this machine."""

    def __call__(
        self, graphs: GraphSet, programs: Sequence[Program], settings: BenchSettings
    ) -> list[dict[str, Any]] | Elsewhere:
        """Every rank's findings, in order. Raises :class:`CommccError`."""


@dataclass(frozen=True)
class Launched:
    """Ranks that this process starts. machines: None for this one alone."""

    machines: Machines | None = None

    def here(self, world: int) -> int:
        return world if self.machines is None else self.machines.of(world)

    def __call__(
        self, graphs: GraphSet, programs: Sequence[Program], settings: BenchSettings
    ) -> list[dict[str, Any]] | Elsewhere:
        # Imported here: what a graph can be refused for needs no process groups.
        from commcc.replay.ranks.failing import RanksError
        from commcc.replay.ranks.launch import run_ranks
        from commcc.replay.ranks.worker import settings_text

        with tempfile.TemporaryDirectory(prefix="commcc-bench-") as name:
            folder = Path(name)
            for number, program in enumerate(programs, 1):
                save(program, folder / graph_file(number))
            (folder / "settings.json").write_text(settings_text(settings), encoding="utf-8")
            ranks, limit = 1 if settings.emulated else self.here(graphs.layout.world), settings.timeout
            try:
                found = run_ranks(ranks, folder, limit, worker=_WORKER, machines=self.machines)
            except RanksError as error:
                raise hinted(error) from error
        ranked: list[dict[str, Any]] | None = found[0].get("ranks")
        return Elsewhere(found[0]["elsewhere"]) if ranked is None else ranked


def hinted(error: CommccError) -> CommccError:
    """An error of ranks with what to do about it in a bench."""
    from commcc.replay.ranks.failing import RanksError

    if not isinstance(error, RanksError) or error.memory:
        return error
    more = "--timeout allows more seconds; " if error.late else ""
    found = RanksError(error.what, hint=more + _HINT, failed=error.failed)
    found.late = error.late
    return found
