"""Finds the repeated blocks of a model by what they hold: the largest family of siblings that are alike.

    items = [Item("layers.0.wq", ("gather", "dp"), 12), Item("layers.1.wq", ("gather", "dp"), 40), ...]
    find_blocks(items).paths                           # ('layers.0', 'layers.1')
    find_rest(items, find_blocks(items).paths)         # (('tok_embeddings',), ('norm', 'output'))

Siblings are modules with one parent. They are alike when their items match: the same paths
below them, the same signatures, however often. The family that holds the most items wins. Then numbered siblings of the
family that hold something else (the dense layer of a mixture of experts) are blocks too, and so are
further families with something to merge (an encoder next to a decoder), if they match one to one.

A model that says nothing of its modules gets blocks by :func:`labels`: what comes again and again, in the same
order. The stretch that repeats and covers most wins, with the shortest period; what is left on either side is
searched again. What covers less than a third of all is no model's blocks::

    labels(["embed", "q", "k", "q", "k", "q", "k", "norm"])
    # ['before', 'block.0', 'block.0', 'block.1', 'block.1', 'block.2', 'block.2', 'after']

The rest is put together by where it stands: what comes before all blocks, in every kind of item, apart
from what comes after, and what lies between blocks apart from all else. Limits: names and items decide;
nothing is known of the modules' code. A period that repeats is at most 500 long, and where it begins cannot be
told: a block that begins as it ends may be cut one place off.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from operator import eq
from typing import TYPE_CHECKING

from commcc.graph.modules import parents

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


_NUMBERED = re.compile(r"(.*?)\d+")


@dataclass(frozen=True)
class Item:
    """Something that a module holds. signature: what has to be equal for two to match; its first word is the kind.

    at: where it stands in the graph. count: for how many it stands.
    """

    path: str
    signature: tuple[str, ...]
    at: int
    count: int = 1


@dataclass(frozen=True)
class Blocks:
    """Paths of blocks in order of the graph. alike: whether siblings matched, or were taken for their numbers."""

    paths: tuple[str, ...]
    alike: bool


@dataclass(frozen=True)
class _Family:
    members: tuple[str, ...]
    items: int
    merges: bool

    @property
    def rank(self) -> tuple[int, int]:
        """Larger is better; of two that hold the same, the one nearer to the root."""
        return self.items, -self.members[0].count(".")


def find_blocks(items: Sequence[Item]) -> Blocks:
    """The blocks; none when no two siblings are alike or numbered."""
    chosen, alike = _first(items)
    if chosen is None:
        return Blocks((), alike=False)
    blocks = _with_siblings(chosen, items)
    while True:
        roots = set(blocks)
        outside = [i for i in items if roots.isdisjoint(parents(i.path))]
        above = _above(blocks)
        further = [f for f in _families(outside, one_to_one=True) if f.merges and above.isdisjoint(f.members)]
        if not further:
            break
        blocks = [*blocks, *_with_siblings(max(further, key=lambda f: f.rank), outside)]
    first: dict[str, int] = {}
    for item in items:
        for path in parents(item.path):
            first[path] = min(first.get(path, item.at), item.at)
    return Blocks(tuple(sorted(blocks, key=first.__getitem__)), alike)


def _above(blocks: Iterable[str]) -> set[str]:
    """The blocks and all modules above them."""
    return {path for block in blocks for path in parents(block)}


def _first(items: Sequence[Item]) -> tuple[_Family | None, bool]:
    """The main family, and whether its members are alike."""
    families = _families(items, one_to_one=True)
    equal = max((f for f in families if f.merges), key=lambda f: f.rank, default=None)
    if equal is not None:
        # Whole layers that hold the same, if not as often, rather than equal parts of them.
        around = [f for f in _families(items) if all(not set(f.members).isdisjoint(parents(p)) for p in equal.members)]
        return max((equal, *around), key=lambda f: f.rank), True
    numbered = _numbered(items)
    if numbered:
        return max(numbered, key=lambda f: f.rank), False
    return max(families, key=lambda f: f.rank, default=None), True


def _held(items: Iterable[Item]) -> dict[str, Counter[tuple[str, tuple[str, ...]]]]:
    """For every module, what it holds and where below it; in order of first appearance."""
    held: dict[str, Counter[tuple[str, tuple[str, ...]]]] = defaultdict(Counter)
    for item in items:
        for path in parents(item.path):
            held[path][item.path[len(path) :], item.signature] += item.count
    return held


def _families(items: Sequence[Item], *, one_to_one: bool = False) -> list[_Family]:
    """All sets of two or more siblings that are alike. one_to_one: also in how often they hold what they hold."""
    sets: dict[tuple[str, frozenset[object]], list[str]] = defaultdict(list)
    held = _held(items)
    for path, counter in held.items():
        # How often does not matter: the last layer may keep for its backward pass what others gather again.
        content: frozenset[object] = frozenset(counter.items() if one_to_one else counter)
        sets[path.rpartition(".")[0], content].append(path)
    return [_family(members, held) for members in sets.values() if len(members) > 1]


def _numbered(items: Sequence[Item]) -> list[_Family]:
    """All sets of two or more siblings that differ by number only and of which one has something to merge."""
    sets: dict[str, list[str]] = defaultdict(list)
    held = _held(items)
    for path in held:
        if _stem(path) is not None:
            sets[str(_stem(path))].append(path)
    families = [_family(members, held) for members in sets.values() if len(members) > 1]
    return [f for f in families if f.merges]


def _family(members: list[str], held: dict[str, Counter[tuple[str, tuple[str, ...]]]]) -> _Family:
    merges = any(_most(held[path]) > 1 for path in members)
    return _Family(tuple(members), sum(held[path].total() for path in members), merges)


def _most(counter: Counter[tuple[str, tuple[str, ...]]]) -> int:
    """Most items of one signature."""
    counts: Counter[tuple[str, ...]] = Counter()
    for (_, signature), count in counter.items():
        counts[signature] += count
    return max(counts.values(), default=0)


def _stem(path: str) -> str | None:
    """``layers.12`` -> ``layers.``; None for a name that does not end in a number."""
    match = _NUMBERED.fullmatch(path)
    return None if match is None else match[1]


def _with_siblings(family: _Family, items: Sequence[Item]) -> list[str]:
    """The members, and siblings that differ from them by number."""
    stems = {_stem(path) for path in family.members} - {None}
    numbered = [path for path in _held(items) if _stem(path) in stems]
    return list(dict.fromkeys([*family.members, *numbered]))


def find_rest(items: Sequence[Item], blocks: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Modules outside the blocks, those together that stand on the same side in all kinds that they share."""
    roots = set(blocks)
    above = _above(blocks)
    spans: dict[str, tuple[int, int]] = {}
    rest: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        if not roots.isdisjoint(parents(item.path)):
            low, high = spans.get(item.signature[0], (item.at, item.at))
            spans[item.signature[0]] = min(low, item.at), max(high, item.at)
        else:
            outer = [path for path in parents(item.path) if path not in above]
            rest[outer[-1] if outer else item.path].append(item)
    groups: list[tuple[dict[str, str], list[str]]] = []
    for path, held in rest.items():
        sides = _sides(held, spans)
        same = next((group for group in groups if _same_side(group[0], sides)), None)
        if same is None:
            groups.append((sides, [path]))
        else:
            same[0].update(sides)
            same[1].append(path)
    return tuple(tuple(sorted(paths)) for _, paths in groups)


def _same_side(one: dict[str, str], other: dict[str, str]) -> bool:
    shared = one.keys() & other.keys()
    between = "between" in (*one.values(), *other.values())
    return bool(shared) and not between and all(one[kind] == other[kind] for kind in shared)


def _sides(items: Sequence[Item], spans: dict[str, tuple[int, int]]) -> dict[str, str]:
    """For each kind of item, whether all come before the blocks', after them, or neither."""
    sides: dict[str, str] = {}
    for kind in sorted({i.signature[0] for i in items}):
        low, high = spans.get(kind, (0, 0))
        places = [i.at for i in items if i.signature[0] == kind]
        sides[kind] = "before" if max(places) < low else "after" if min(places) > high else "between"
    return sides


#: Longest period that is looked for.
LONGEST = 500
#: What repeats is no model's blocks where it covers less than one part in so many.
_PART = 3


@dataclass(frozen=True)
class _Stretch:
    """``count`` blocks of ``period`` marks each, from ``start`` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count


def labels(marks: Sequence[Hashable]) -> list[str] | None:
    """For each mark the block that it is in, or its place outside the blocks; None when nothing repeats."""
    main = _longest(marks, 0, len(marks), shortest=1)
    if main is None or (main.end - main.start) * _PART < len(marks):
        return None
    further = [*_further(marks, 0, main.start), *_further(marks, main.end, len(marks))]
    stretches = sorted([main, *further], key=lambda stretch: stretch.start)
    named = ["after"] * len(marks)
    blocks = end = 0
    for gap, s in enumerate(stretches):
        named[end : s.start] = [f"between.{gap}" if gap else "before"] * (s.start - end)
        named[s.start : s.end] = [f"block.{blocks + at // s.period}" for at in range(s.end - s.start)]
        blocks, end = blocks + s.count, s.end
    return named


def _further(marks: Sequence[Hashable], start: int, end: int) -> list[_Stretch]:
    """Stretches outside the main one: of periods with something to merge."""
    longest = _longest(marks, start, end, shortest=2)
    if longest is None:
        return []
    return [longest, *_further(marks, start, longest.start), *_further(marks, longest.end, end)]


def _longest(marks: Sequence[Hashable], start: int, end: int, shortest: int) -> _Stretch | None:
    best: _Stretch | None = None
    part = marks[start:end]
    for period in range(shortest, min(LONGEST, len(part) // 2) + 1):
        same = bytes(map(eq, part, part[period:]))
        run = max(same.split(b"\0"), key=len)
        count = len(run) // period + 1
        if count > 1 and (best is None or count * period > best.period * best.count):
            best = _Stretch(start + same.index(run), period, count)
    return best
