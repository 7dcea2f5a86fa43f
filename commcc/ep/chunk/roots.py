"""Modules to be chunked: those that a user's patterns name and in which tokens are exchanged, or those around the
exchanges.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.terms import Kind
from commcc.ep.chunk.structure import NAME
from commcc.graph.modules import entries_of, parents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from commcc.ep.chunk.view import View


@dataclass(frozen=True)
class Roots:
    """modules: to chunk, in graph order. skipped: modules that the patterns name but where nothing is exchanged.

    annotated: the graph has no all-to-all at all, and annotations of expert parallelism decided (one rank).
    """

    modules: tuple[str, ...]
    skipped: tuple[str, ...]
    annotated: bool


def roots_of(view: View, patterns: Sequence[str]) -> Roots:
    """Raises :class:`OptionError` for patterns that name nothing, and when nothing is exchanged in what they name."""
    modules = [note.module for note in view.notes if note.module]
    # A graph without paths has modules that its exchanges tell, and patterns of paths have nothing to name.
    nameless = not any(view.index.modules)
    selection = entries_of((f"{NAME}.*",) if nameless else tuple(patterns), modules)
    if selection.problems or not modules:
        _check_exchanges(view)
    _check_paths(view)
    if selection.problems:
        raise OptionError("; ".join(selection.problems), where="ep-chunk", hint=_exchanging(view))
    named = [root for entry in selection.entries for root in entry.roots]
    exchanging = _with(view, named, view.exchanges)
    annotated = not exchanging and not view.exchanging
    if annotated:
        exchanging = _with(view, named, lambda node: _is_marked(view, node))
    if not exchanging:
        gathering = _with(view, named, lambda node: _gathers_tokens(view, node))
        more = f" and {len(named) - 3} others" if len(named) > 3 else ""
        several = ", ".join(f"'{name}'" for name in named[:3]) + more
        what = f"no tokens are exchanged in {several}: no all-to-all, no annotation of expert parallelism"
        hint = "name the modules that hold the experts, as in modules=layers.*.moe"
        if gathering:
            what = f"'{gathering[0]}' gathers its tokens from all ranks, and exchanges none: there is no all-to-all"
            hint = "only exchanges are cut in chunks; 'commcc reorder' overlaps gathers and reductions with other work"
        raise OptionError(what, where="ep-chunk", hint=hint)
    return Roots(tuple(exchanging), tuple(root for root in named if root not in exchanging), annotated)


def kinds_around(view: View) -> list[list[tuple[str, ...]]]:
    """What to chunk where nobody names modules: for each kind of modules that exchange tokens, its modules at every
    level, outermost first. They begin right below a numbered module, which is a layer as a rule, and end with the
    innermost that launches two exchanges, there and back.

    Raises :class:`OptionError` where nothing tells a module.
    """
    _check_exchanges(view)
    _check_paths(view)
    nodes = list(view.exchanging) or [n for n in range(len(view.index)) if _is_marked(view, n)]
    nodes = [n for n in nodes if not view.notes[n].backward] or nodes
    paths = [view.notes[n].module for n in nodes if not view.notes[n].count_exchange]
    launched = Counter(above for path in paths for above in parents(path))
    inner = dict.fromkeys(next((above for above in parents(path) if launched[above] > 1), path) for path in paths)
    kinds: dict[tuple[str, ...], list[list[str]]] = {}
    for root in filter(None, inner):
        if not any(above in inner for above in parents(root.rpartition(".")[0])):
            parts = root.split(".")
            kinds.setdefault(tuple("*" if part.isdigit() else part for part in parts), []).append(parts)
    if not kinds:
        raise OptionError("nothing tells the module of the exchanges", where="ep-chunk", hint=_exchanging(view))
    return [list(_levels(alike)) for alike in kinds.values()]


def _levels(alike: list[list[str]]) -> Iterator[tuple[str, ...]]:
    """Modules of one kind, from right below their last numbered parent down to themselves."""
    numbered = [place for place, part in enumerate(alike[0][:-1]) if part.isdigit()]
    whole = len(alike[0])
    first = numbered[-1] + 2 if numbered and not alike[0][-1].isdigit() else whole
    for length in range(first, whole + 1):
        yield tuple(dict.fromkeys(".".join(parts[:length]) for parts in alike))


def _check_exchanges(view: View) -> None:
    """Refuse a graph in which nothing is exchanged."""
    if not view.exchanging and not any(_is_marked(view, node) for node in range(len(view.index))):
        raise OptionError(
            "there is no exchange of tokens in this graph that could overlap: no all-to-all, and no annotation of "
            "expert parallelism",
            where="ep-chunk",
            hint="--preset auto overlaps all other collectives",
        )


def _check_paths(view: View) -> None:
    """Refuse a graph of which nothing tells modules."""
    if not any(view.index.modules) and not any(note.module for note in view.notes):
        raise OptionError(
            "no node has a module path, and the structure of the graph does not tell where modules that exchange begin",
            where="ep-chunk",
            hint="dump it with module_fqn or nn_module_stack",
        )


def _exchanging(view: View) -> str:
    """Where tokens are exchanged, for whoever has named what is not there."""
    places = dict.fromkeys(view.notes[node].module for node in view.exchanging)
    names = [f"'{name}'" for name in places if name]
    if not names:
        return "'commcc inspect' lists the modules"
    more = f" and {len(names) - 3} others" if len(names) > 3 else ""
    return f"tokens are exchanged in {', '.join(names[:3])}{more}: name these, or modules around them"


def _is_marked(view: View, node: int) -> bool:
    """Whether an annotation says that a node has to do with expert parallelism."""
    return bool(view.notes[node].part or view.notes[node].exchange)


def _gathers_tokens(view: View, node: int) -> bool:
    """Whether a node launches an all-gather of what is no parameter."""
    launch = view.index.launches.get(node)
    return launch is not None and launch.kind is Kind.ALL_GATHER and any(view.data[read] for read in launch.inputs)


def _with(view: View, roots: Sequence[str], wanted: Callable[[int], bool]) -> list[str]:
    nodes = [node for node in range(len(view.index)) if wanted(node)]
    matching = [root for root in roots if any(view.within(node, root) for node in nodes)]
    first = {root: next(i for i in nodes if view.within(i, root)) for root in matching}
    return sorted(matching, key=lambda root: first[root])
