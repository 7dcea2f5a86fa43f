"""Which graphs the arguments of the gate mean: files, folders, patterns, and files that hold several.

    expand(["dumps", "run.log", "more/**/*.pt2"])
    # [Item("dumps/bw.fx.txt.gz"), Item("run.log::0_0/aot_backward_graph"), ...]

A folder stands for the graph files below it (``.fx.txt``, ``.pt2``), or, where it was written by tlparse or
TORCH_TRACE, for the graphs in it, or else for the texts and logs below it that hold graphs. A file with several
graphs stands for each of them that can be loaded. Order is that of the arguments, inside a folder that of the
names with numbers as numbers. What cannot be listed is an item with its error.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import CommccError, InputError, closest
from commcc.base.files import GRAPH_FILES, TEXT_FILES
from commcc.base.text import natural_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST = 10_000
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Item:
    """One graph to be read, as :func:`commcc.serialization.load` takes it; or why there is none."""

    graph: str
    error: str | None = None


def expand(arguments: Iterable[str]) -> list[Item]:
    """The graphs, each once."""
    by_graph: dict[str, Item] = {}
    for argument in arguments:
        try:
            items = list(_one(argument))
        except CommccError as error:  # the other arguments are checked all the same
            items = [Item(argument, reason(error, argument))]
        for item in items:
            by_graph.setdefault(item.graph, item)
    return list(by_graph.values())


def reason(error: CommccError, graph: str) -> str:
    """What an error says, without the path of the graph that it is listed under."""
    return error.render().removeprefix(f"{graph}: ")


def _one(argument: str) -> Iterator[Item]:
    path = Path(argument)
    file, separator, _ = argument.partition("::")
    if path.is_dir():
        yield from _folder(path)
    elif path.exists():
        yield from _graphs(argument)
    elif separator and Path(file).exists():
        yield Item(argument)
    elif _WILD.search(argument):
        # Path.glob takes no absolute patterns, and no '..'.
        fitting = sorted(glob.glob(argument, recursive=True), key=natural_key)  # noqa: PTH207
        if not fitting:
            raise InputError("no file fits this pattern", where=argument)
        for entry in fitting:
            yield from _folder(Path(entry)) if Path(entry).is_dir() else _graphs(entry)
    else:
        folder = path.parent
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        raise InputError(f"no such file{closest(path.name, names)}", where=argument)


def _folder(folder: Path) -> Iterator[Item]:
    """Graph files below a folder; without any, what PyTorch's own tools left there, else texts that hold graphs."""
    files = files_below(folder, GRAPH_FILES)
    yield from map(Item, files)
    if files:
        return
    graphs = list(_graphs(str(folder)))
    if graphs[0].error is None:
        yield from graphs
        return
    inside = [item for file in files_below(folder, TEXT_FILES) for item in _graphs(file) if item.error is None]
    yield from inside or graphs


def files_below(folder: Path, extensions: tuple[str, ...]) -> list[str]:
    """Files with such names anywhere below a folder, numbers in them sorted as numbers."""
    paths = sorted((str(p) for p in folder.rglob("*") if p.name.endswith(extensions) and p.is_file()), key=natural_key)
    if len(paths) > _MOST:
        raise InputError(f"holds more than {_MOST:,} files", where=str(folder), hint="name fewer of them")
    return paths


def _graphs(path: str) -> Iterator[Item]:
    """The graph in a file, or each one that can be loaded where there are several; an item with the error if none."""
    from commcc.serialization import list_graphs

    if path.endswith(GRAPH_FILES) and not Path(path).is_dir():  # these hold one, and finding that out takes time
        yield Item(path)
        return
    try:
        names = [entry.name for entry in list_graphs(path) if entry.loadable]
    except CommccError as error:
        yield Item(path, reason(error, path))
        return
    if len(names) < 2 and not Path(path).is_dir():
        yield Item(path)
    for name in names if len(names) > 1 or Path(path).is_dir() else ():
        yield Item(f"{path}::{name}")
