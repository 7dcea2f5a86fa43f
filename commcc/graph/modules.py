"""Modules by name: what a user writes, and which modules of a graph that means.

    find = Matcher(entries_of(("layers.[0-1]", "norm+output"), known).entries)
    find("layers.1.attention.wq").name      # 'layers.1'
    find("output").name                     # 'norm+output'

An entry is a module path, and stands for all below it. ``*`` matches within one part of a path, and
``[0-5]`` the numbers from 0 to 5: an entry with either stands for one entry for each module found.
``+`` joins several into one entry. Limits: a pattern never matches across a dot.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from commcc.base.errors import closest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Most modules that the ranges of one entry may stand for.
MOST_NUMBERS = 10_000
_PIECE = re.compile(r"\[(\d{1,6})-(\d{1,6})\]|\*|[\w-]+")


@dataclass(frozen=True)
class Entry:
    """Modules that belong together. text: what the user wrote, of which this may be one of many."""

    name: str
    roots: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Selection:
    """What texts stand for. problems: everything that is wrong with them, one message each."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]


class Matcher:
    """Finds the entry of a module path; no path may have two."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._of = {root: entry for entry in entries for root in entry.roots}

    def __call__(self, path: str | None) -> Entry | None:
        """The entry that covers ``path``: one of whose roots is the path or lies above it."""
        for above in parents(path or ""):
            if above in self._of:
                return self._of[above]
        return None


def parents(path: str) -> Iterator[str]:
    """``a.b.c`` -> ``a.b.c``, ``a.b``, ``a``; nothing for the root."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def syntax_problems(texts: Iterable[str]) -> list[str]:
    """What is wrong with the texts whatever the graph."""
    return [problem for text in texts for part in text.split("+") if (problem := _malformed(part, text))]


def entries_of(
    texts: Sequence[str], known: Iterable[str], more: Sequence[Entry] = (), words: Sequence[str] = ()
) -> Selection:
    """Entries for ``texts`` among the modules ``known`` and those above them.

    more: entries found in another way, which must not overlap with the others. words: what else the user
    could have meant by a name that is not there.
    """
    tree = _Tree(known, words)
    entries: list[Entry] = []
    problems = syntax_problems(texts)
    for text in texts if not problems else ():
        expanded, missing = tree.expand(text)
        entries += expanded
        problems += missing
    entries += more
    return Selection(tuple(entries), tuple(dict.fromkeys([*problems, *_overlaps(entries)])))


class _Tree:
    """The modules of a graph, by the module above."""

    def __init__(self, known: Iterable[str], words: Sequence[str]) -> None:
        self.words = words
        self.paths = list(dict.fromkeys(above for path in known for above in parents(path)))
        self.below: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            self.below[path.rpartition(".")[0]].append(path)

    def near(self, path: str) -> str:
        """The nearest name there is, for an error."""
        return closest(path, [*self.words, *self.paths]) or closest(path.rpartition(".")[2], self.paths)

    def expand(self, text: str) -> tuple[list[Entry], list[str]]:
        """Entries of one text, and what it names that is not there."""
        parts = text.split("+")
        matches = [self.matches(part) for part in parts]
        problems = [problem for _, missing in matches for problem in missing]
        if len(parts) > 1:
            roots = tuple(path for paths, _ in matches for path in paths)
            return ([Entry(text, roots, text)] if not problems else []), problems
        return [Entry(path, (path,), text) for path in matches[0][0]], problems

    def matches(self, part: str) -> tuple[list[str], list[str]]:
        """Modules that one part stands for, in the order of numbers and of the graph."""
        paths: list[str] = []
        absent: list[str] = []
        for wanted in _numbered(part):
            level = [""]
            for name in wanted.split("."):
                pattern = re.compile(".*".join(map(re.escape, name.split("*"))))
                below = [path for above in level for path in self.below.get(above, ())]
                level = [path for path in below if pattern.fullmatch(path.rpartition(".")[2])]
            paths += level
            if not level:
                absent.append(wanted)
        if not absent:
            return paths, []
        # Of a range some numbers of which exist, only those missing are named, and the range that asked for them.
        if len(absent) == 1 or not paths:
            return paths, [f"no module '{part if not paths else absent[0]}' in the graph{self.near(absent[0])}"]
        return paths, [f"no modules '{absent[0]}' to '{absent[-1]}' in the graph (asked for by '{part}')"]


def _malformed(part: str, text: str) -> str | None:
    """The message for one part of an entry; None when it is fine."""
    where = f"'{text}'" if part == text else f"'{part}' in '{text}'"
    if not part or not all(part.split(".")):
        return f"{where} has an empty name"
    for name in part.split("."):
        if "".join(m[0] for m in _PIECE.finditer(name)) != name:
            return f"{where} is not a module: write a path, '*' for any name, '[0-5]' for numbers"
    sizes = [int(high) - int(low) + 1 for low, high in re.findall(r"\[(\d+)-(\d+)\]", part)]
    if min(sizes, default=1) < 1:
        return f"{where} has a range that ends before it begins"
    if prod(sizes) > MOST_NUMBERS:
        return f"{where} stands for more than {MOST_NUMBERS:,} modules"
    return None


def _numbered(part: str) -> list[str]:
    """``layers.[0-2]`` -> ``layers.0``, ``layers.1``, ``layers.2``."""
    pieces = re.split(r"\[(\d+)-(\d+)\]", part)
    ranges = [range(int(low), int(high) + 1) for low, high in zip(pieces[1::3], pieces[2::3], strict=True)]
    return [
        pieces[0] + "".join(f"{number}{rest}" for number, rest in zip(numbers, pieces[3::3], strict=True))
        for numbers in product(*ranges)
    ]


def _overlaps(entries: Sequence[Entry]) -> Iterator[str]:
    """A message for each pair of texts that cover the same module."""
    owner: dict[str, Entry] = {}
    told: set[tuple[str, str]] = set()
    for entry in sorted(((root, e) for e in entries for root in e.roots), key=lambda pair: pair[0].count(".")):
        root, own = entry
        other = next((owner[above] for above in parents(root) if above in owner), None)
        owner.setdefault(root, own)
        if other is None or (other.text, own.text) in told:
            continue
        told.add((other.text, own.text))
        if other is own or other.text == own.text:
            yield f"'{own.text}' covers '{root}' twice"
        else:
            yield f"'{other.text}' and '{own.text}' both cover '{root}'"
