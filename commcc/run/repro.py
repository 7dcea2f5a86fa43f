"""What a report about a result that is wrong, or not proved, needs: the pair of graphs, reduced.

    DIR/02-bucket.before.fx.txt  DIR/02-bucket.after.fx.txt  DIR/02-bucket.verdict.json

``commcc verify`` on the two graphs says what it said of the whole ones; that verdict is in the third file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import OutputError
from commcc.base.files import check_folder, replace_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.graph.program import Program
    from commcc.verify import Verdict


class Repros:
    """``--repro DIR``; ``tell`` is given a line for each pair that was stored."""

    def __init__(self, folder: str, tell: Callable[[str], None]) -> None:
        self.folder, self.tell = Path(folder), tell
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError("is not a folder", where=folder, hint="name one with --repro")
        check_folder(self.folder, folder, "name another with --repro")

    def write(self, number: int, name: str, pair: tuple[Program, Program], verdict: Verdict) -> None:
        """Store the pair of one pass."""
        from commcc.serialization import save
        from commcc.verify import reduced

        self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"{number:02}-{name}"
        small = reduced(*pair)
        for which, program in zip(("before", "after"), small, strict=True):
            save(program, self.folder / f"{stem}.{which}.fx.txt")
        text = json.dumps({"pass": name, "verdict": verdict.to_json()}, indent=2)
        replace_text(self.folder / f"{stem}.verdict.json", text + "\n")
        sizes = " and ".join(f"{len(program.graph.nodes):,}" for program in small)
        self.tell(f"'{name}' is {verdict.status}: a pair of {sizes} nodes that shows it is in {self.folder}/{stem}.*")
