"""A graph under costs as arrays of records: what the kernels of this package work on.

    graph.nodes[node].stream            # a field of one record, in Python as in a kernel

Everything is by node number, or by buffer number. ``-1`` stands for none. Kernels take few arguments,
since every array that is handed on costs time at each call and in compiling: so there is one array
of records for what belongs to a node, and one for all rows of numbers of different lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commcc.base.jit import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

Ints: TypeAlias = NDArray[np.int64]
#: An array of records; kernels know its fields, mypy does not.
Records: TypeAlias = Any

#: The row of a node in each of these tables begins at ``graph.rows[node].<table>`` and ends where the next
#: node's begins. users, preds: nodes. waits: of a launch. prepares: nodes that only prepare a launch's input.
#: touched: buffers that have to be there while the node runs. allocated: those that it makes. resized: pairs of a
#: buffer and its new size.
#: feeds: nodes whose results a reduce-scatter sends. needed_by: reduce-scatters for whose feeds the node is needed.
TABLES = ("preds", "users", "waits", "prepares", "feeds", "needed_by", "touched", "allocated", "resized")

#: compute_ns: on the compute stream. transfer: ns of a launch on its own stream, or until an input in flight at the
#: start has arrived. tail: ns that must follow. stream: of a launch, by number. waited: the launch, or the input in
#: flight, that a wait is for. bytes: that a launch holds in flight. between: compute nodes between a launch and its
#: first wait in the graph's own order. missing: how many it needs. prepared: 1 for launches that go
#: along with what prepares them, 2 where copies do that. The rest is 0 or 1. ends: launches between which compute is
#: counted. fixed: never moved ahead, as it resizes. writes: in place.
NODE = (
    *("compute_ns", "transfer", "tail", "stream", "waited", "bytes", "between", "missing"),
    *("asynchronous", "compute", "placeholder", "prepared", "ends", "fixed", "writes"),
)
#: bytes: when it is made. kept: lives to the end. input: a graph input or constant.
BUFFER = ("bytes", "kept", "input")


class Graph(NamedTuple):
    """See :data:`NODE`, :data:`BUFFER`, :data:`TABLES`; rows has one record more than there are nodes.

    streams: how many streams collectives run on.
    """

    nodes: Records
    buffers: Records
    rows: Records
    items: Ints
    launches: Ints
    streams: int
    slowdown_permille: int


def records(count: int, fields: tuple[str, ...]) -> Records:
    """``count`` records of 64-bit integers, all 0."""
    return np.zeros(count, _record_of(fields)).view(np.recarray)


def copy_of(known: Records) -> Records:
    """The same records; copied as numbers, since numpy copies records field by field."""
    numbers: Ints = known.view(np.ndarray).view(np.int64).copy()
    return numbers.view(known.dtype).view(np.recarray)


def one_record(fields: tuple[str, ...], known: Mapping[str, int]) -> Records:
    """A single record in which these fields are known and the others 0; setting them one by one takes ten times as
    long.
    """
    return np.array([known.get(field, 0) for field in fields], np.int64).view(_record_of(fields)).view(np.recarray)


@cache
def _record_of(fields: tuple[str, ...]) -> np.dtype[np.void]:
    return np.dtype((np.record, [(name, np.int64) for name in fields]))


def fill_in(field: Ints, known: Mapping[int, int]) -> None:
    """Set a field of the records that are named by number."""
    if known:
        field[list(known)] = list(known.values())


def rows_of(
    preds: Sequence[Sequence[int]], *tables: Sequence[Sequence[int]] | Mapping[int, Sequence[int]]
) -> tuple[Records, Ints]:
    """``rows`` and ``items`` of a graph from its tables, in the order of :data:`TABLES`; users follow from preds.

    A table in which few nodes have a row may be a mapping; preds are none.
    """
    count = len(preds)
    starts, parts, begun = records(count + 1, TABLES), list[Ints](), 0
    for name, table in zip(TABLES, (preds, None, *tables), strict=True):
        lengths = np.zeros(count + 1, np.int64)
        if table is None:
            owners = np.repeat(np.arange(count), np.diff(starts.preds))
            users, begins = by_key(parts[0], owners, count)
            parts.append(users)
            starts[name] = begun + begins
            begun += len(owners)
            continue
        if isinstance(table, Mapping):
            nodes = sorted(table)
            rows: Sequence[Sequence[int]] = [table[node] for node in nodes]
            lengths[[node + 1 for node in nodes]] = [len(row) for row in rows]
        else:
            rows = table
            lengths[1:] = np.fromiter(map(len, rows), np.int64, count)
        begins = begun + np.cumsum(lengths)
        starts[name] = begins
        parts.append(np.fromiter(chain.from_iterable(rows), np.int64, int(begins[-1]) - begun))
        begun = int(begins[-1])
    return starts, np.concatenate(parts)


def by_key(keys: Ints, values: Ints, count: int) -> tuple[Ints, Ints]:
    """The values of each key below ``count``, one row after another and each in its order; where rows begin and end."""
    begins = np.zeros(count + 1, np.int64)
    begins[1:] = np.cumsum(np.bincount(keys, minlength=count))
    return values[keys.argsort(kind="stable")], begins


@compiled
def first_from(values: Ints, least: int) -> int:
    """The first position whose value, of those that do not fall, is no less than this; their number where none is."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low
