"""Kernels: plain functions over arrays, compiled to machine code when they are first called.

    @compiled                          # called by other kernels only
    def push(heap, key, place): ...

    @kernel                            # called from Python; kept on disk between runs
    def schedule(graph, base): ...

Integers only, so a kernel gives the same result on every machine, compiled or not: with
``NUMBA_DISABLE_JIT=1`` the very same functions run as Python. Machine code is kept in the user's cache
folder, or where ``NUMBA_CACHE_DIR`` says, or else next to the package, under a digest of the sources in the
kernel's package that go into it, since numba looks at the file of the kernel itself only. Where no folder can be
written, kernels are compiled in every process anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that kernels call."""
    # Inlined: a call hands on every array of its arguments, with a count of references for each.
    return _njit(function, forceinline=True, no_cpython_wrapper=True)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A function that Python calls; its arguments are numbers, arrays and named tuples of these."""
    from numba import config

    folder = _folder(str(Path(function.__code__.co_filename).parent))
    if folder is None:
        return _njit(function)
    settings: Any = config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = folder
    try:
        return _njit(function, cache=True)
    finally:
        settings.CACHE_DIR = before


def cold(package: str) -> bool:
    """Whether kernels of a package have still to be compiled on this machine.

    package: its name, as ``commcc.schedule``; it is not imported.
    """
    parts = package.split(".")[1:]
    folder = _folder(str(Path(__file__).parents[1].joinpath(*parts)))
    return folder is None or next(Path(folder).rglob("*.nbc"), None) is None


def _njit(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    """Nobody calls it from C, and it divides by constants only."""
    import numba

    decorate: Any = numba.njit
    made: Callable[P, R] = decorate(no_cfunc_wrapper=True, error_model="numpy", **options)(function)
    return made


@cache
def _folder(package: str) -> str | None:
    """Where the machine code of a package's kernels is kept, or None."""
    digest = hashlib.sha256()
    for path in _sources(Path(package)):
        digest.update(path.read_bytes())
    for root in _roots(package):
        folder = root / f"kernels-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return str(folder)
    return None


def _sources(package: Path) -> list[Path]:
    """This module, the modules of a package that have kernels, and those of the package that they import."""
    texts = {path: path.read_text(encoding="utf-8") for path in package.glob("*.py")}
    todo = [path for path, text in texts.items() if __name__ in text]
    sources = {Path(__file__), *todo}
    while todo:
        # A constant of another module is part of the machine code. Imports for type checkers are indented.
        lines = re.findall(r"^(?:from|import) commcc.*", texts[todo.pop()], re.MULTILINE)
        names = {name for line in lines for name in (*re.findall(r"\w+", line), "__init__")}
        new = {package / f"{name}.py" for name in names} & texts.keys() - sources
        sources |= new
        todo += new
    return sorted(sources)


def _roots(package: str) -> Iterator[Path]:
    """Folders that only their owner writes to, the best first."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        yield Path(given)
        return
    home = Path.home()
    if sys.platform == "darwin":
        yield home / "Library" / "Caches" / "commcc"
    elif sys.platform == "win32":
        yield Path(os.environ.get("LOCALAPPDATA", str(home))) / "commcc"
    else:
        yield Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "commcc"
    yield Path(package) / "__pycache__"
