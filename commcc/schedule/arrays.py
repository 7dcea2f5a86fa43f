"""A graph under costs as arrays of records: what the kernels of this package work on.

    graph.nodes[node].stream            # a field of one record, in Python as in a kernel

Everything is by node number, or by buffer number. ``-1`` stands for none. Kernels take few arguments,
since every array that is handed on costs time at each call and in compiling: so there is one array
of records for what belongs to a node, and one for all rows of numbers of different lengths.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.graph.memory import MemoryModel
    from commcc.schedule.problem import Problem
    from commcc.timing.cost.types import Costs

Ints: TypeAlias = NDArray[np.int64]
#: An array of records; numba knows its fields, mypy does not.
Records: TypeAlias = Any

#: The row of a node in each of these tables begins at ``graph.rows[node].<table>`` and ends where the next
#: node's begins. users, preds: nodes. waits: of a launch. prepares: nodes that only prepare a launch's input.
#: touched: buffers that have to be there while the node runs. made: those that it makes. resized: pairs of a
#: buffer and its new size.
#: feeds: nodes whose results a reduce-scatter sends. needed_by: reduce-scatters for whose feeds the node is needed.
TABLES = ("preds", "users", "waits", "prepares", "feeds", "needed_by", "touched", "made", "resized")

#: stream: ns on the compute stream. transfer: ns in the lane, of a launch. tail: ns that must follow.
#: lane: of a launch. waited: the launch that a wait is for. bytes: that a launch holds in flight. between:
#: compute nodes between a launch and its first wait in the graph's own order. missing: how many nodes it needs.
#: The rest is 0 or 1. ends: launches between which compute is counted. fixed: never moved ahead, as it resizes.
NODE = (
    *("stream", "transfer", "tail", "lane", "waited", "bytes", "between", "missing"),
    *("asynchronous", "compute", "placeholder", "prepared", "ends", "fixed"),
)
#: bytes: when it is made. kept: lives to the end. input: a graph input or constant.
BUFFER = ("bytes", "kept", "input")


class Graph(NamedTuple):
    """See :data:`NODE`, :data:`BUFFER`, :data:`TABLES`; rows has one record more than there are nodes."""

    nodes: Records
    buffers: Records
    rows: Records
    items: Ints
    launches: Ints
    lanes: int
    slowdown_permille: int


def records(count: int, fields: Iterable[str]) -> Records:
    """``count`` records of 64-bit integers, all 0."""
    return np.zeros(count, np.dtype([(name, np.int64) for name in fields])).view(np.recarray)


def graph_of(problem: Problem, costs: Costs) -> Graph:
    """All facts of a problem that a schedule needs."""
    from commcc.graph.memory import resized

    index, memory = problem.index, problem.memory
    count, launches = len(index), index.launches
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(problem.lane.values()))}
    resizes = index.estimates.resizes
    needed_by: list[list[int]] = [[] for _ in range(count)]
    for launch, feeds in problem.feeding.items():
        for node in {p for each in (launch, *feeds) for p in problem.preds[each]}.difference(feeds):
            needed_by[node].append(launch)
    rows, items = _rows(
        problem.preds,
        problem.users,
        [launches[i].waits if i in launches else () for i in range(count)],
        [problem.preparation.get(i, ()) for i in range(count)],
        [problem.feeding.get(i, ()) for i in range(count)],
        needed_by,
        memory.touched,
        index.estimates.buffers,
        [tuple(chain.from_iterable(resized(index, i))) if i in resizes else () for i in range(count)],
    )
    return Graph(
        nodes=_nodes(problem, costs, lanes),
        buffers=_buffers(memory),
        rows=rows,
        items=items,
        launches=np.array(list(launches), np.int64),
        lanes=len(lanes),
        slowdown_permille=costs.slowdown_permille,
    )


def _nodes(problem: Problem, costs: Costs, lanes: Mapping[str, int]) -> Records:
    from commcc.base.terms import Kind

    index = problem.index
    nodes = records(len(index), NODE)
    nodes.lane = nodes.waited = -1
    nodes.stream, nodes.tail = problem.stream_ns, problem.tail_ns
    nodes.compute = index.compute
    nodes.missing = [len(preds) for preds in problem.preds]
    nodes.placeholder = [op == "placeholder" for op in index.ops]
    _put(nodes.waited, index.wait_of)
    _put(nodes.lane, {i: lanes[name] for i, name in problem.lane.items()})
    _put(nodes.transfer, {i: costs.ns[i] for i in index.launches})
    _put(nodes.bytes, problem.bytes)
    _put(nodes.between, problem.own_prefetch)
    _put(nodes.asynchronous, {i: facts.asynchronous for i, facts in index.launches.items()})
    _put(nodes.ends, {i: facts.kind is Kind.REDUCE_SCATTER for i, facts in index.launches.items()})
    _put(nodes.prepared, dict.fromkeys(problem.preparation, 1))
    _put(nodes.fixed, dict.fromkeys(index.estimates.resizes, 1))
    return nodes


def _buffers(memory: MemoryModel) -> Records:
    buffers = records(len(memory.size), BUFFER)
    buffers.bytes = memory.size
    _put(buffers.kept, dict.fromkeys(memory.kept, 1))
    _put(buffers.input, dict.fromkeys(memory.inputs, 1))
    return buffers


def _put(field: Ints, known: Mapping[int, int]) -> None:
    if known:
        field[list(known)] = list(known.values())


def _rows(*tables: Sequence[Sequence[int]]) -> tuple[Records, Ints]:
    """The tables, in the order of :data:`TABLES`, in one array, and where the rows begin in it."""
    count = len(tables[0])
    starts, parts, begun = records(count + 1, TABLES), [], 0
    for name, table in zip(TABLES, tables, strict=True):
        begins = np.fromiter(accumulate(map(len, table), initial=begun), np.int64, count + 1)
        starts[name] = begins
        parts.append(np.fromiter(chain.from_iterable(table), np.int64, int(begins[-1]) - begun))
        begun = int(begins[-1])
    return starts, np.concatenate(parts)
