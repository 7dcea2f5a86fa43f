"""Write sample graphs: ``python -m commcc.capture.samples [PATTERN ...] [--all | --small] [--out DIR] [--list]``.

Without arguments it writes the files that are kept in the repository. A pattern chooses files by name
(``'moe_*'``, ``llama3_8b_joint``)::

    python -m commcc.capture.samples 'llama3_8b_hsdp*' --out /tmp

Limits: a production-size model takes up to a minute and about 1 GB.
"""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import CommccError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.capture.recipes import Recipe

#: Files in the repository besides the small ones, which all are.
KEPT = (
    "library_deepseek_fsdp4_ep2.fx.txt.gz",
    "llama3_8b_fsdp64_fw.fx.txt.gz",
    "llama3_8b_fsdp64_bw.fx.txt.gz",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m commcc.capture.samples", description="Write sample graphs.")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="files to write, with * and ?")
    parser.add_argument("--all", action="store_true", help="every sample")
    parser.add_argument("--small", action="store_true", help="the small ones")
    parser.add_argument("--list", action="store_true", help="only name what would be written")
    parser.add_argument("--out", type=Path, default=Path("sample_graphs"), metavar="DIR", help="default: sample_graphs")
    options = parser.parse_args(arguments)
    patterns = list(options.patterns)
    patterns += ["*"] * options.all + ["tiny_*"] * options.small
    try:
        chosen = choose(patterns or [*KEPT, "tiny_*"])
        for recipe, files in chosen:
            if options.list:
                print("\n".join(files))
            else:
                write(recipe, files, options.out)
    except CommccError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def choose(patterns: Sequence[str]) -> list[tuple[Recipe, list[str]]]:
    """Recipes with those of their files that a pattern fits; a pattern that fits none is an error."""
    from commcc.capture.recipes import RECIPES

    every = [name for recipe in RECIPES for name in recipe.files]
    # A misspelt name would write nothing, without a word.
    lost = [pattern for pattern in patterns if not any(_fits(name, pattern) for name in every)]
    if lost:
        raise OptionError(f"no sample is called {', '.join(map(repr, lost))}", hint="--all --list names them")
    chosen = [
        (recipe, [name for name in recipe.files if any(_fits(name, pattern) for pattern in patterns)])
        for recipe in RECIPES
    ]
    return [(recipe, files) for recipe, files in chosen if files]


def _fits(name: str, pattern: str) -> bool:
    return any(fnmatchcase(candidate, pattern) for candidate in (name, name.split(".")[0]))


def write(recipe: Recipe, files: Sequence[str], folder: Path) -> None:
    """Capture a recipe and write some of its files."""
    from commcc.capture.capturing import capture
    from commcc.serialization import save

    started = time.perf_counter()
    programs = capture(recipe.build, recipe.layout, recipe.options)
    for name in files:
        program = programs[recipe.files[name]]
        notes = save(program, folder / name)
        seconds = time.perf_counter() - started
        print(f"{name}: {len(program.graph.nodes)} nodes, {seconds:.0f} s", flush=True)
        for note in notes[:3]:
            print(f"  {note.node or 'file'}: {note.text}")


if __name__ == "__main__":
    sys.exit(main())
