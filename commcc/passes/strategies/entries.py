"""The entries of strategy module in one graph: what the user wrote, and blocks that are found.

All mistakes end in one error: unknown modules with the nearest names, entries that overlap, modules of
``prefetch`` that have no entry, and with ``strict`` what no entry covers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError, closest
from commcc.base.text import plural
from commcc.graph.blocks import Item, find_blocks, find_rest, labels
from commcc.graph.modules import Entry, Matcher, entries_of, parents
from commcc.passes.strategies.pairs import depth_of, pairs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.passes.bucket import Bucket

#: The word that stands for all repeated blocks, and for what is left outside them.
BLOCKS = "transformer_block"
#: How many of a long list an error names.
_SHOWN = 5


@dataclass(frozen=True)
class Wanted:
    """What to prefetch. depth: how many next modules; pairs: names of entries, in place of that."""

    depth: int
    pairs: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True)
class Chosen:
    """Entries, and the one that covers a module path. prefetch: None where nothing is to be moved."""

    entries: tuple[Entry, ...]
    find: Matcher
    prefetch: Wanted | None
    remarks: tuple[str, ...]


def choose(
    options: Bucket,
    index: GraphIndex,
    present: Sequence[Collective],
    able: Sequence[Collective],
    problems: Sequence[str] = (),
    synthetic: bool = False,
) -> Chosen:
    """Entries for this graph.

    present: all collectives that have the roles, by which blocks are found. able: those that could be merged, which
    ``strict`` wants covered. synthetic: modules are those of :func:`with_modules`. Raises :class:`OptionError` with
    everything that is wrong, ``problems`` first.
    """
    texts = [text for text in options.modules_given if text != BLOCKS]
    known = dict.fromkeys(path for path in (*index.modules, *(c.module for c in present)) if path is not None)
    written = entries_of(texts, known, words=(BLOCKS,))
    blocks: tuple[Entry, ...] = ()
    remarks: tuple[str, ...] = ()
    if BLOCKS in options.modules_given:
        blocks, remarks = _blocks(present, Matcher(written.entries), synthetic)
    selection = entries_of(texts, known, blocks, words=(BLOCKS,))
    find = Matcher(selection.entries)
    problems = [*problems, *selection.problems]
    wanted, strangers = _prefetch(options, selection.entries, find)
    modules = {above for path in known for above in parents(path)}
    problems += [
        f"prefetch: '{name}' is in no entry{closest(name, [entry.name for entry in selection.entries])}"
        for name in strangers
        if not selection.problems or name not in modules  # an entry that is wrong may have been meant to cover it
    ]
    uncovered = [c for c in able if find(c.module) is None]
    if options.strict and uncovered and not selection.problems:
        shown = [f"'{index.names[c.launch]}' ({c.module or 'module not known'})" for c in uncovered]
        are = "is" if len(shown) == 1 else "are"
        problems.append(f"{plural(len(shown), 'collective')} {are} in no entry: {_some(shown)}")
    if problems:
        tops = dict.fromkeys(path.partition(".")[0] for path in known)
        hint = f"modules of this graph: {_some(list(tops))}" if tops else "this graph says nothing of its modules"
        raise OptionError("; ".join(problems), where="pass 'bucket'", hint=hint)
    busy = {entry.name for c in present if (entry := find(c.module)) is not None}
    idle = [entry.name for entry in selection.entries if entry.name not in busy]
    if idle:
        remarks = (*remarks, f"no collective to merge in {_some(idle)}")
    return Chosen(selection.entries, find, wanted, remarks)


def with_modules(options: Bucket, collectives: Sequence[Collective]) -> tuple[list[Collective], bool]:
    """The collectives, with synthetic modules where blocks are wanted and no collective has a module; and whether so.

    A block is then what comes again and again in one kind of collective, by group, dtype and bytes.
    """
    if BLOCKS not in options.modules_given or any(c.module is not None for c in collectives):
        return list(collectives), False
    modules: dict[int, str] = {}
    for kind in dict.fromkeys(c.kind for c in collectives):
        own = [c for c in collectives if c.kind is kind]
        own_labels = labels([(c.group, c.dtype, c.input_bytes) for c in own]) or ()
        modules.update((c.launch, f"{kind}.{label}") for c, label in zip(own, own_labels, strict=False))
    return [replace(c, module=modules.get(c.launch)) for c in collectives], bool(modules)


def _blocks(
    present: Sequence[Collective], written: Matcher, synthetic: bool
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Entries for the repeated blocks and for the rest, and what there is to say about them."""
    if synthetic:
        paths = dict.fromkeys(c.module for c in present if c.module is not None)
        said = f"{BLOCKS}: no collective says which module it serves; blocks are what repeats in group, dtype and bytes"
        return tuple(Entry(path, (path,), BLOCKS) for path in paths), (said,)
    items = [
        Item(c.module, (c.kind.value, c.group, c.dtype, c.reduction or ""), c.launch, c.stands_for)
        for c in present
        if c.module is not None
    ]
    blocks = find_blocks(items)
    if not blocks.paths:
        said = "no two modules hold the same collectives" if items else "no collective has a module"
        return (), (f"{BLOCKS} found no repeated blocks: {said}",) if present else ()
    rest = find_rest([item for item in items if written(item.path) is None], blocks.paths)
    # What blocks lie in, as the list of layers to which chunks of whole layers give sums, is no entry of its own.
    held = {above for path in blocks.paths for above in parents(path)}
    rest_paths = [kept for paths in rest if (kept := tuple(path for path in paths if path not in held))]
    roots = [*((path,) for path in blocks.paths), *rest_paths]
    remarks = () if blocks.alike else (f"{BLOCKS}: {_some(blocks.paths)} do not hold the same collectives",)
    return tuple(Entry("+".join(paths), paths, BLOCKS) for paths in roots), remarks


def _prefetch(options: Bucket, entries: Sequence[Entry], find: Matcher) -> tuple[Wanted | None, list[str]]:
    """What to prefetch, and modules in it that have no entry."""
    if options.prefetch is None:
        return None, []
    depth = depth_of(options.prefetch)
    if depth is not None:
        return Wanted(depth), []
    names = {entry.name: entry for entry in entries}
    pairs: dict[tuple[str, str], None] = {}
    strangers: dict[str, None] = {}
    for pair in pairs_of(options.prefetch):
        ends = [names.get(name) or find(name) for name in pair]
        entry_names = [end.name for end in ends if end is not None]
        strangers.update((name, None) for name, end in zip(pair, ends, strict=True) if end is None)
        if len(entry_names) == len(pair):
            pairs[entry_names[0], entry_names[1]] = None
    return Wanted(0, tuple(pairs)), list(strangers)


def _some(names: Sequence[str]) -> str:
    """The first few of the names."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
