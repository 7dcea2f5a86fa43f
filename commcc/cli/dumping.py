"""``--dump-after-each DIR``: the graph after every pass, numbered, for whoever looks for the pass that did it.

    DIR/01-tag.fx.txt.gz  DIR/02-bucket.fx.txt.gz  DIR/03-reorder.dropped.fx.txt.gz

Graphs are written as the passes go, in the format of the output, so that they are there when a later
pass fails. The folder is made if need be.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import OutputError
from commcc.cli.outputs import check_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.run.pipeline import StepResult

FLAG = "--dump-after-each"
_EXTENSIONS = (".fx.txt.gz", ".fx.txt", ".txt.gz", ".txt", ".pt2")
_DUMP = re.compile(r"\d{2,}-[\w-]+(\.dropped)?(\.fx)?\.(txt|txt\.gz|pt2)")


class Dumps:
    """The graphs of one run. written: their paths so far."""

    def __init__(self, session: Session, folder: str, target: Path, passes: Sequence[str]) -> None:
        self.session = session
        self.folder = Path(folder)
        self.extension = next(each for each in _EXTENSIONS if target.name.lower().endswith(each))
        self.written: list[Path] = []
        self._check(passes)

    def _check(self, passes: Sequence[str]) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError("is not a folder", where=str(self.folder), hint=f"name one with {FLAG}")
        if not self.folder.parent.is_dir():
            raise OutputError(f"folder '{self.folder.parent}' does not exist", where=str(self.folder))
        wanted = {self._name(n, name, d) for n, name in enumerate(passes, 1) for d in (False, True)}
        there = sorted(each.name for each in self.folder.iterdir()) if self.folder.exists() else []
        others = [name for name in there if _DUMP.fullmatch(name) and name not in wanted]
        if others:
            raise OutputError(
                f"holds '{others[0]}' of another run", where=str(self.folder), hint="empty the folder, or name another"
            )

    def _name(self, number: int, name: str, dropped: bool) -> str:
        return f"{number:02}-{name}{'.dropped' if dropped else ''}{self.extension}"

    def write(self, number: int, step: StepResult, program: Program) -> None:
        """Write what a pass made, with ``.dropped`` in its name if it was not kept."""
        from commcc import serialization

        self.folder.mkdir(exist_ok=True)
        path = self.folder / self._name(number, step.name, step.dropped is not None)
        if path.exists():
            check_output(self.session, str(path), _EXTENSIONS, FLAG)
        other = self.folder / self._name(number, step.name, step.dropped is None)
        other.unlink(missing_ok=True)
        serialization.save(program, path)
        self.written.append(path)
