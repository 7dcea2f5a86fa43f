"""Modules by name: what a user writes, and which modules of a graph that means.

    find = Matcher(entries_of(("layers.[0-1]", "norm+output"), known).entries)
    find("layers.1.attention.wq").name      # 'layers.1'
    find("output").name                     # 'norm+output'

An entry is a module path, and stands for all below it. ``*`` matches within one part of a path, and
``[0-5]`` the numbers from 0 to 5: an entry with either stands for one entry for each module found.
``+`` joins several into one entry.

Limits: a pattern never matches across a dot; paths of more than :data:`MOST_PARTS` parts are not looked up. Texts come
out of files as well, so what they may ask for is bounded: their length, the modules of a range and of a sum.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING

from commcc.base.errors import closest
from commcc.base.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Most modules that the ranges of one entry may stand for.
MOST_NUMBERS = 10_000
#: Most modules that ``+`` may join, and most characters of an entry.
MOST_JOINED, MOST_CHARACTERS = 1_000, 10_000
#: Most parts of a path: all that lies above it is written down.
MOST_PARTS = 100
#: As many problems are told.
_MOST_PROBLEMS = 20
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
    """What is wrong with the texts whatever the graph, or the first of it."""
    problems = (problem for text in texts for problem in _malformed(text))
    return list(islice(problems, _MOST_PROBLEMS))


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
        if len(problems) >= _MOST_PROBLEMS:
            break
        expanded, missing = tree.expand(text)
        entries += expanded
        problems += missing
    entries += more
    return Selection(tuple(entries), tuple(dict.fromkeys([*problems, *_overlaps(entries)])))


class _Tree:
    """The modules of a graph, by the module above."""

    def __init__(self, known: Iterable[str], words: Sequence[str]) -> None:
        self.words = words
        within = (path for path in known if path.count(".") < MOST_PARTS)
        self.paths = list(dict.fromkeys(above for path in within for above in parents(path)))
        self.below: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            self.below[path.rpartition(".")[0]].append(path)

    def near(self, path: str) -> str:
        """The nearest name there is, for an error."""
        return closest(path, [*self.words, *self.paths]) or closest(path.rpartition(".")[2], self.paths)

    def expand(self, text: str) -> tuple[list[Entry], list[str]]:
        """Entries of one text, and what it names that is not there."""
        parts = text.split("+")
        matches: list[tuple[list[str], list[str]]] = []
        problems: list[str] = []
        for part in parts:
            matches.append(self.matches(part))
            problems += matches[-1][1]
            # To look for a name that is near takes longer than to look one up.
            if len(problems) >= _MOST_PROBLEMS:
                break
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
                below = [path for above in level for path in self.below.get(above, ())]
                level = [path for path in below if _fits(path.rpartition(".")[2], name)]
            paths += level
            if not level:
                absent.append(wanted)
        if not absent:
            return paths, []
        # Of a range some numbers of which exist, only those missing are named, and the range that asked for them.
        if len(absent) == 1 or not paths:
            return paths, [f"no module '{part if not paths else absent[0]}' in the graph{self.near(absent[0])}"]
        return paths, [f"no modules '{absent[0]}' to '{absent[-1]}' in the graph (asked for by '{part}')"]


def _fits(name: str, pattern: str) -> bool:
    """Whether ``*`` can stand for something so that the two are the same, in linear time."""
    first, *between = pattern.split("*")
    if not between:
        return name == pattern
    last, at = between.pop(), len(first)
    if not (name.startswith(first) and name.endswith(last)):
        return False
    for piece in between:
        start = name.find(piece, at)
        if start < 0:
            return False
        at = start + len(piece)
    return at <= len(name) - len(last)


def _malformed(text: str) -> Iterator[str]:
    """Messages for the parts of an entry that are not fine."""
    if len(text) > MOST_CHARACTERS or text.count("+") >= MOST_JOINED:
        most = f"{MOST_JOINED:,} modules or {MOST_CHARACTERS:,} characters"
        yield f"'{shown(text)}' is longer than {most}: name a module above them"
        return
    numbers = 0
    for part in text.split("+"):
        where = f"'{text}'" if part == text else f"'{part}' in '{shown(text)}'"
        sizes = [int(high) - int(low) + 1 for low, high in re.findall(r"\[(\d{1,6})-(\d{1,6})\]", part)]
        numbers += prod(sizes) if sizes else 0
        if not part or not all(part.split(".")):
            yield f"{where} has an empty name"
        elif any("".join(m[0] for m in _PIECE.finditer(name)) != name for name in part.split(".")):
            yield f"{where} is not a module: write a path, '*' for any name, '[0-5]' for numbers"
        elif min(sizes, default=1) < 1:
            yield f"{where} has a range that ends before it begins"
        elif numbers > MOST_NUMBERS:
            yield f"{where} stands for more than {MOST_NUMBERS:,} modules"


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
