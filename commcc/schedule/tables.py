"""Tables of a graph made from pairs, and what lies behind launches; kernels.

rows = in_rows(Pairs(owners, items), count, most)
rows.items[rows.begins[owner] : rows.begins[owner + 1]]     # in order, each once
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commcc.base.jit import compiled, kernel
from commcc.schedule.heaps import Heaps, heaps, pop, push

if TYPE_CHECKING:
    from commcc.schedule.arrays import Ints


class Pairs(NamedTuple):
    """Owners, and for each of them one of what stands in its row."""

    owners: Ints
    items: Ints


class Rows(NamedTuple):
    """The row of an owner begins at ``begins[owner]`` and ends where the next one's begins."""

    begins: Ints
    items: Ints


#: Of a node, when what lies behind a launch is looked for: it and what is behind it do not count; it counts, and what
#: is behind it does not; where it is found, all else is in vain.
SKIPPED, LAST, FORBIDDEN = range(1, 4)


def in_rows(pairs: Pairs, count: int, most: int) -> Rows:
    """A row for each of ``count`` owners, in order and each item once. most: items are less."""
    given = Pairs(*(np.ascontiguousarray(each, np.int64) for each in pairs))
    rows = Rows(np.zeros(count + 1, np.int64), np.empty(len(given.items), np.int64))
    scratch = np.zeros(most + 1, np.int64), np.empty(len(given.items), np.int64), np.empty(count, np.int64)
    return Rows(rows.begins, rows.items[: _in_rows(given, rows, *scratch)])


@kernel
def _in_rows(pairs: Pairs, rows: Rows, starts: Ints, by_item: Ints, ends: Ints) -> int:
    """By item, then by owner, each time in the order of before; how many are left."""
    owners, items, begins, made = pairs.owners, pairs.items, rows.begins, rows.items
    for k in range(len(items)):
        starts[items[k] + 1] += 1
        begins[owners[k] + 1] += 1
    for item in range(len(starts) - 1):
        starts[item + 1] += starts[item]
    for owner in range(len(ends)):
        ends[owner] = begins[owner]
        begins[owner + 1] += begins[owner]
    for k in range(len(items)):
        by_item[starts[items[k]]] = k
        starts[items[k]] += 1
    for k in by_item:
        owner, item = owners[k], items[k]
        if ends[owner] == begins[owner] or made[ends[owner] - 1] != item:
            made[ends[owner]] = item
            ends[owner] += 1
    place = 0
    for owner in range(len(ends)):
        begin = begins[owner]
        begins[owner] = place
        for k in range(begin, ends[owner]):
            made[place] = made[k]
            place += 1
    begins[len(ends)] = place
    return place


def arranged(users: Rows, missing: Ints) -> Ints:
    """Kahn's algorithm: of what is free, the lowest number comes next. What is on a cycle, or behind one, is left out.

    missing: how many each one needs; used up.
    """
    order = np.empty(len(missing), np.int64)
    return order[: _arranged(users, missing, order, heaps(1, len(missing) + 1))]


@kernel
def _arranged(users: Rows, missing: Ints, order: Ints, free: Heaps) -> int:
    for unit in range(len(missing)):
        if not missing[unit]:
            push(free, 0, unit, unit)
    place = 0
    while free.sizes[0]:
        unit = pop(free, 0)[1]
        order[place] = unit
        place += 1
        for k in range(users.begins[unit], users.begins[unit + 1]):
            user = users.items[k]
            missing[user] -= 1
            if not missing[user]:
                push(free, 0, user, user)
    return place


def behind(preds: Rows, launches: Ints, flags: Ints, most: int) -> tuple[Pairs, Ints]:
    """What each launch needs, directly or not: pairs of a launch's place among these and a node, and where its row
    ends; -1 instead where it is forbidden, or more than ``most`` nodes.

    flags: of each node, :data:`SKIPPED` and so on; 0 for none.
    """
    pairs = Pairs(*(np.empty(most * len(launches), np.int64) for _ in range(2)))
    ends, marks = np.empty(len(launches), np.int64), np.full(len(flags), -1)
    stack = np.empty(len(preds.items) + 1, np.int64)
    found = _behind(preds, launches, flags, pairs, ends, Rows(marks, stack))
    return Pairs(pairs.owners[:found], pairs.items[:found]), ends


@kernel
def _behind(preds: Rows, launches: Ints, flags: Ints, pairs: Pairs, ends: Ints, scratch: Rows) -> int:
    marks, stack, place = scratch.begins, scratch.items, 0
    most = len(pairs.items) // max(1, len(launches))
    for k in range(len(launches)):
        begun, ends[k] = place, 0
        size = _put(preds, launches[k], stack, 0)
        while size:
            size -= 1
            node = stack[size]
            if marks[node] == k or flags[node] == SKIPPED:
                continue
            if flags[node] == FORBIDDEN or place - begun >= most:
                ends[k] = -1
                place = begun
                break
            marks[node] = k
            pairs.owners[place], pairs.items[place] = k, node
            place += 1
            if flags[node] != LAST:
                size = _put(preds, node, stack, size)
        if not ends[k]:
            ends[k] = place
    return place


@compiled
def _put(preds: Rows, node: int, stack: Ints, size: int) -> int:
    """Put what a node needs on the stack; how much is on it then."""
    for at in range(preds.begins[node], preds.begins[node + 1]):
        stack[size] = preds.items[at]
        size += 1
    return size


def rows_at(rows: Rows, owners: Ints) -> Pairs:
    """All that stands in the rows of some owners; the owners' places among these, and the items."""
    lengths = rows.begins[owners + 1] - rows.begins[owners]
    place = np.repeat(np.arange(len(owners)), lengths)
    first = np.cumsum(lengths) - lengths
    return Pairs(place, rows.items[rows.begins[owners][place] + np.arange(len(place)) - first[place]])
