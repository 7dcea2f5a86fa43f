"""Draws a graph with buckets merged, in arrays; see :mod:`commcc.schedule.sketch`.

Units are those of :mod:`commcc.apply.order`, which are put in the same order. Then every node has a number, tables of
the graph before are renumbered, and what buckets consist of is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.apply.order import WaitsForItself
from commcc.base.jit import kernel
from commcc.base.terms import Kind
from commcc.graph.ops.kernels import Work
from commcc.schedule.arrays import BUFFER, NODE, TABLES, Graph, Ints, Records, records
from commcc.schedule.heaps import Heaps, heaps, pop, push
from commcc.schedule.problem import FEW, LIGHT, MAX_PREPARATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.plan import Bucket
    from commcc.schedule.sketch import Piece, Sketches

#: What comes first among units that want the same position, as in :mod:`commcc.apply.order`.
_LAUNCHES, _WAITS, _RESULTS, _STAYS = range(4)


class Drawing:
    """One merged graph while it is made. Units: nodes of the graph before keep their numbers, those of buckets follow.

    gives: the unit that stands for a node for what needs it; takes: the unit that needs what a node needs; within:
    which of that unit's nodes stands for it. at: the new number of every node of the graph before.
    """

    def __init__(self, of: Sketches, buckets: Sequence[Bucket]) -> None:
        self.of, self.buckets = of, buckets
        self.index = of.problem.index
        self.pieces = [of.piece(bucket) for bucket in buckets]
        count = self.count = len(self.index)
        self.gives, self.takes = np.arange(count), np.arange(count)
        self.within = np.zeros(count, np.int64)
        self.launch_units: list[int] = []
        self.wait_units: list[int] = []
        self.keys = (np.arange(count) + 1) * 4 + _STAYS, np.zeros(count, np.int64), np.arange(count)
        self.sizes: list[int] = []
        self.edges: list[list[int]] = [[], []]
        self.touched: list[list[int]] = [[], []]
        self.made: list[list[int]] = [[], []]
        self.new_bytes: list[int] = []
        self.records: dict[str, dict[int, int]] = {name: {} for name in NODE}

    def drawn(self) -> tuple[Graph, int]:
        """The merged graph, but for its longest paths; and bytes in flight at most in its own order."""
        self._units()
        self._arrange()
        before = self.of.problem.graph
        buffers_before = len(before.buffers)
        #: Members whose result is a view live in the merged one.
        self.same = np.arange(buffers_before)
        self.received = [buffers_before + number for number in range(len(self.buckets))]
        self.new_bytes = [piece.received for piece in self.pieces]
        for number, piece in enumerate(self.pieces):
            for wait, copies in zip(piece.waits, piece.results, strict=True):
                if not copies and not self.buckets[number].coalesced:
                    self.same[list(self.index.estimates.buffers[wait])] = self.received[number]
        for number, bucket in enumerate(self.buckets):
            (self._call if bucket.coalesced else self._copied)(number, self.pieces[number])
        return self._graph()

    # Units and their order.

    def _units(self) -> None:
        major, minor, last = ([] for _ in range(3))  # type: list[int], list[int], list[int]
        moved: dict[int, tuple[int, int]] = {}
        for number, (bucket, piece) in enumerate(zip(self.buckets, self.pieces, strict=True)):
            launch = self.count + len(self.sizes)
            self.launch_units.append(launch)
            self.wait_units.append(launch + 1)
            merged = list(piece.launches)
            if bucket.shared_cast:
                merged += piece.inputs
            self.gives[merged] = self.takes[merged] = launch
            self.within[merged] = piece.launch_size - 1
            waits = list(piece.waits)
            self.takes[waits] = launch + 1
            major += [(bucket.launch_at + 1) * 4 + _LAUNCHES, (bucket.wait_at + 1) * 4 + _WAITS]
            minor += [2 * number + 1, number]
            last += [0, 0]
            self.sizes += [piece.launch_size, 2 * len(waits) if bucket.coalesced else 1]
            if bucket.coalesced:
                self.gives[waits] = launch + 1
                self.within[waits] = 2 * np.arange(len(waits)) + 1
            else:
                self.gives[waits] = launch + 2 + np.arange(len(waits))
                sizes = [1 + max(1, len(copies)) for copies in piece.results]
                self.within[waits] = np.array(sizes) - 1
                major += [(wait + 1) * 4 + _RESULTS for wait in waits]
                minor += range(len(waits))
                last += [0] * len(waits)
                self.sizes += sizes
            for node in bucket.hoist:
                key = (bucket.launch_at + 1) * 4 + _LAUNCHES, 2 * number
                moved[node] = min(moved.get(node, key), key)  # a cast may serve several launches
        for node, (place, rank) in moved.items():
            self.keys[0][node], self.keys[1][node] = place, rank
        self.keys[0][list(self.index.placeholders)] = _STAYS
        self.keys[0][self.count - 1] = (self.count + 1) * 4
        both = zip(self.keys, (major, minor, last), strict=True)
        self.keys = tuple(np.append(own, np.array(more, np.int64)) for own, more in both)  # type: ignore[assignment]

    def _arrange(self) -> None:
        """Units in the order in which :func:`commcc.apply.order.arrange` has them, and the new numbers of nodes."""
        owners, items = self.of.own["preds"]
        units = len(self.keys[0])
        alive = np.ones(units, bool)
        alive[: self.count] = self.takes == np.arange(self.count)
        first, then = self.gives[items], self.takes[owners]
        other = first != then
        results = [
            (wait, wait + 1 + place)
            for bucket, wait in zip(self.buckets, self.wait_units, strict=True)
            for place in range(0 if bucket.coalesced else len(bucket.members))
        ]
        pairs = np.array([*zip(self.launch_units, self.wait_units, strict=True), *results], np.int64).reshape(-1, 2)
        first, then = np.append(first[other], pairs[:, 0]), np.append(then[other], pairs[:, 1])
        by_rank = np.lexsort(self.keys[::-1])
        by_rank = by_rank[alive[by_rank]]
        rank = np.empty(units, np.int64)
        rank[by_rank] = np.arange(len(by_rank))  # units are counted by rank from here on
        count = len(by_rank)
        begins, users = _in_rows(rank[first], rank[then], count)
        missing, order = np.bincount(rank[then], minlength=count), np.empty(count, np.int64)
        if _arranged(begins, users, missing, order, heaps(1, count + 1)) < count:
            raise WaitsForItself("buckets wait for each other", where="apply")
        order = by_rank[order]
        sizes = np.append(np.ones(self.count, np.int64), np.array(self.sizes, np.int64))
        self.first = np.zeros(units, np.int64)
        ends = np.cumsum(sizes[order])
        self.first[order] = ends - sizes[order]
        self.total = int(ends[-1]) if len(ends) else 0
        self.at = self.first[self.gives] + self.within
        self.alive = np.flatnonzero(alive[: self.count])

    # What buckets consist of.

    def _node(
        self, node: int, preds: Iterable[int], buffers: Sequence[int], reads: Iterable[int] = (), ns: int = 0
    ) -> None:
        """A new node: what it needs, the buffers of its result, and those of what it reads."""
        for pred in preds:
            self.edges[0].append(node)
            self.edges[1].append(pred)
        self.made[0] += [node] * len(buffers)
        self.made[1] += buffers
        touched = (*buffers, *reads)
        self.touched[0] += [node] * len(touched)
        self.touched[1] += touched
        if ns:
            self.records["compute_ns"][node] = ns

    def _buffer(self, size: int) -> int:
        self.new_bytes.append(size)
        return len(self.same) + len(self.new_bytes) - 1

    def _buffers(self, node: int) -> list[int]:
        """Those of a node of the graph before, as they are now."""
        return [int(self.same[b]) for b in self.index.estimates.buffers[node]]

    def _after(self, nodes: Iterable[int], own: tuple[int, int]) -> set[int]:
        """What order edges of merged nodes lead to, outside the bucket."""
        preds = {p for node in nodes for p in self.index.order_preds[node]}
        return {int(self.at[p]) for p in preds if not own[0] <= self.gives[p] < own[1]}

    def _span(self, number: int) -> tuple[int, int]:
        """The units of a bucket."""
        unit = self.launch_units[number]
        return unit, unit + 2 + (0 if self.buckets[number].coalesced else len(self.pieces[number].waits))

    def _launched(self, number: int, node: int, piece: Piece) -> None:
        base = self.of.problem.graph.nodes[piece.launches[0]]
        facts = {"compute_ns": self.of.problem.costs.launch_ns, "transfer": piece.transfer, "bytes": piece.flight}
        for name in ("stream", "asynchronous", "ends"):
            facts[name] = int(base[name])
        for name, value in facts.items():
            self.records[name][node] = value

    def _copied(self, number: int, piece: Piece) -> None:
        """Members side by side: what is put together, one launch, one wait, and each member's slice."""
        node, received = int(self.first[self.launch_units[number]]), self.received[number]
        parts: list[int] = []
        read: list[int] = []
        for source, size, ns in piece.sources:
            at, buffers = int(self.at[source]), self._buffers(source)
            if size == -2:
                parts.append(at)
            else:
                own = buffers if size == -1 else [self._buffer(size)]
                self._node(node, [at], own, buffers, ns)
                parts.append(node)
                buffers = own
                node += 1
            read += buffers
        own = [self._buffer(piece.joined[0])]
        span = self._span(number)
        self._node(node, {*parts, *self._after(piece.launches, span)}, own, dict.fromkeys(read), piece.joined[1])
        if piece.cast[0] >= 0:
            sent = [self._buffer(piece.cast[0])]
            self._node(node + 1, [node], sent, own, piece.cast[1])
            node, own = node + 1, sent
        launch, wait = node + 1, int(self.first[self.wait_units[number]])
        self._node(launch, [node], [received], own)
        self._launched(number, launch, piece)
        self._node(wait, {launch, *self._after(piece.waits, span)}, [received], own)
        self.records["waited"][wait] = launch
        for place, (old, copies) in enumerate(zip(piece.waits, piece.results, strict=True)):
            at = int(self.first[self.wait_units[number] + 1 + place])
            self._node(at, [wait], [received], (), self.of.free_ns)
            before = [received]
            for step, (ns, size) in enumerate(copies, 1):
                own = self._buffers(old) if step == len(copies) else [self._buffer(size)]
                self._node(at + step, [at + step - 1], own, before, ns)
                before = own
            if not copies:
                self._node(at + 1, [at], [received], (), self.of.free_ns)

    def _call(self, number: int, piece: Piece) -> None:
        """One call on all members as they are, and a wait for each."""
        launch, first = int(self.first[self.launch_units[number]]), int(self.first[self.wait_units[number]])
        span = self._span(number)
        made = [b for node in piece.launches for b in self._buffers(node)]
        read = [b for node in piece.inputs for b in self._buffers(node)]
        sent = {int(self.at[node]) for node in piece.inputs}
        self._node(launch, sent | self._after(piece.launches, span), made, read)
        self._launched(number, launch, piece)
        for place, (old, wait) in enumerate(zip(piece.launches, piece.waits, strict=True)):
            at, buffers = first + 2 * place, self._buffers(old)
            self._node(at, [launch], buffers, made, self.of.free_ns)
            self._node(at + 1, {at, launch, *self._after([wait], span)}, buffers, [*made, *read])
            self.records["waited"][at + 1] = launch

    # All of it as arrays.

    def _nodes(self) -> Records:
        before, nodes = self.of.problem.graph.nodes, records(self.total, NODE)
        nodes.stream = nodes.waited = -1
        here = self.at[self.alive]
        nodes[here] = before[self.alive]
        waited = before.waited[self.alive]
        nodes.waited[here] = np.where(waited >= 0, self.at[waited], -1)
        for name, known in self.records.items():
            if known:
                nodes[name][list(known)] = list(known.values())
        return nodes

    def _moved(self, name: str) -> tuple[Ints, Ints]:
        """Pairs of nodes of a table, as far as no bucket took the first of them."""
        owners, items = self.of.own[name]
        stays = self.takes[owners] == owners
        return self.at[owners[stays]], items[stays]

    def _preds(self) -> tuple[Ints, Ints]:
        owners, items = self._moved("preds")
        owners, items = _and(owners, self.edges[0]), _and(self.at[items], self.edges[1])
        used = np.zeros(self.total, bool)
        used[items] = True
        used[self.total - 1] = True
        loose = np.flatnonzero(~used)  # the output ends the graph, whatever it returns
        return np.append(owners, np.full(len(loose), self.total - 1)), np.append(items, loose)

    def _graph(self) -> tuple[Graph, int]:
        graph, nodes = self.of.problem.graph, self._nodes()
        buffers = records(len(self.same) + len(self.new_bytes), BUFFER)
        buffers[: len(self.same)] = graph.buffers
        buffers.bytes[len(self.same) :] = self.new_bytes
        buffers.kept[self.same[np.flatnonzero(graph.buffers.kept)]] = 1
        tables: dict[str, tuple[Ints, Ints]] = {"preds": _each_once(*self._preds(), self.total)}
        preds = _in_rows(*tables["preds"], self.total)
        nodes.missing = np.diff(preds[0])
        tables["users"] = tables["preds"][::-1]
        waits = np.flatnonzero((nodes.waited >= 0) & (nodes.placeholder == 0))
        tables["waits"] = nodes.waited[waits], waits
        for name, more in (("touched", self.touched), ("made", self.made)):
            owners, items = self._moved(name)
            owners, items = _and(owners, more[0]), _and(self.same[items], more[1])
            tables[name] = _each_once(owners, items, len(buffers))
        owners, items = self._moved("prepares")
        prepared = self._prepared(nodes, preds)
        tables["prepares"] = _each_once(_and(owners, prepared[0]), _and(self.at[items], prepared[1]), self.total)
        tables["feeds"], tables["needed_by"] = self._fed(nodes, preds)
        resizes = [(node, pair) for node, pairs in self.of.resizes.items() for pair in pairs]
        tables["resized"] = (
            np.repeat(self.at[np.array([node for node, _ in resizes], np.int64)], 2),
            np.array([value for _, (buffer, size) in resizes for value in (self.same[buffer], size)], np.int64),
        )
        rows, items = _rows_of(tables, self.total)
        launches = np.flatnonzero(nodes.stream >= 0)
        self._between(nodes, tables["waits"], launches)
        made = Graph(nodes, buffers, rows, items, launches, graph.streams, graph.slowdown_permille)
        return made, self._in_flight(nodes, tables["waits"])

    def _prepared(self, nodes: Records, preds: tuple[Ints, Ints]) -> tuple[list[int], list[int]]:
        """Launches of buckets that depend on nothing but graph inputs through a few light nodes, and these."""
        pairs: tuple[list[int], list[int]] = [], []
        work, prepared, took = self.index.estimates.work, nodes["prepared"], nodes["compute_ns"].tolist()
        kernels = {int(self.at[node]) for node in self.alive.tolist() if work[node] is Work.KERNEL}
        # What must not be moved for a launch.
        heavy = nodes["compute"] | (nodes["waited"] >= 0) | (nodes["stream"] >= 0)
        heavy[self.at[list(self.index.writes)]] = 1
        walk = _Inputs(nodes, preds, heavy)
        for bucket, piece in zip(self.buckets, self.pieces, strict=True):
            at = int(self.at[piece.launches[0]])
            found = walk.preparation(at)
            if found is None:
                continue
            copied = not bucket.coalesced or not kernels.isdisjoint(found)
            weight = sum(took[node] for node in found)
            if weight * LIGHT <= piece.transfer if copied else len(found) <= FEW:
                prepared[at] = 2 if copied else 1
                pairs[0].extend([at] * len(found))
                pairs[1].extend(found)
        return pairs

    def _fed(self, nodes: Records, preds: tuple[Ints, Ints]) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Tables ``feeds`` and ``needed_by``."""
        merged = self.takes != np.arange(self.count)
        needed, launches = self.of.own["needed_by"]
        # What a merged wait gave is taken out of its result: that feeds, too.
        others = np.unique(launches[merged[needed] & ~merged[launches]])
        anew = {int(self.at[launch]) for launch in others}
        anew |= {int(self.at[b.members[0]]) for b in self.buckets if b.kind is Kind.REDUCE_SCATTER}
        same = ~merged
        same[others] = False
        launched, feeds = self.of.own["feeds"]
        kept = same[launched]
        fed: tuple[list[int], list[int]] = self.at[launched[kept]].tolist(), self.at[feeds[kept]].tolist()
        kept = same[launches]
        by: tuple[list[int], list[int]] = self.at[needed[kept]].tolist(), self.at[launches[kept]].tolist()
        walk = _Inputs(nodes, preds, nodes["compute"])
        for launch in sorted(anew):
            found = walk.feeding(launch)
            if found is None:
                continue
            fed[0].extend([launch] * len(found))
            fed[1].extend(found)
            before = {p for n in (launch, *found) for p in walk.of(n)}
            before -= found
            by[0].extend(before)
            by[1].extend([launch] * len(before))
        both = (tuple(np.array(each, np.int64) for each in table) for table in (fed, by))
        first, second = (_each_once(owners, items, self.total) for owners, items in both)
        return first, second

    def _between(self, nodes: Records, waits: tuple[Ints, Ints], launches: Ints) -> None:
        """Compute nodes between a launch and its first wait."""
        before = np.append(0, np.cumsum(nodes.compute))
        first = np.full(self.total, self.total)
        np.minimum.at(first, *waits)
        waited = launches[first[launches] < self.total]
        nodes.between = 0
        nodes.between[waited] = before[first[waited]] - before[waited]

    def _in_flight(self, nodes: Records, waits: tuple[Ints, Ints]) -> int:
        """Bytes in flight at most, in the order of the nodes."""
        last = np.full(self.total, -1)
        np.maximum.at(last, *waits)
        sources = np.flatnonzero(last >= 0)
        change = np.zeros(self.total, np.int64)
        np.subtract.at(change, last[sources], nodes.bytes[sources])
        begun = nodes.placeholder[sources] == 1
        change[sources[~begun]] += nodes.bytes[sources[~begun]]
        flying = int(nodes.bytes[sources[begun]].sum()) + np.cumsum(change)
        return int(flying.max(initial=0))


def _and(known: Ints, more: Sequence[int]) -> Ints:
    """Some more numbers; where there are none, ``np.append`` would make fractions of those that are known."""
    return np.append(known, np.array(more, np.int64))


def _each_once(owners: Ints, items: Ints, most: int) -> tuple[Ints, Ints]:
    """Pairs in order, each once. most: items are less."""
    both = np.sort(owners * most + items)  # np.unique hashes first, which takes ten times as long
    both = both[np.append(True, both[1:] != both[:-1])[: len(both)]]
    return both // most, both % most


def _in_rows(owners: Ints, items: Ints, count: int) -> tuple[Ints, Ints]:
    """Where the row of each owner begins, and all items by owner."""
    begins = np.append(0, np.cumsum(np.bincount(owners, minlength=count)))
    return begins, items[np.argsort(owners, kind="stable")]


def _rows_of(tables: dict[str, tuple[Ints, Ints]], count: int) -> tuple[Records, Ints]:
    """``rows`` and ``items`` of a graph."""
    rows, parts, begun = records(count + 1, TABLES), [], 0
    for name in TABLES:
        begins, items = _in_rows(*tables[name], count)
        rows[name] = begun + begins
        parts.append(items)
        begun += len(items)
    return rows, np.concatenate(parts).astype(np.int64)


class _Inputs:
    """Walks back from launches, over lists: numbers of an array are slow to read one by one.

    stops: nodes that a walk goes no further than.
    """

    def __init__(self, nodes: Records, preds: tuple[Ints, Ints], stops: Ints) -> None:
        self.begins: list[int] = preds[0].tolist()
        self.items: list[int] = preds[1].tolist()
        self.placeholder, self.stops = nodes["placeholder"].tolist(), stops.tolist()
        self.collective = ((nodes["waited"] >= 0) | (nodes["stream"] >= 0)).tolist()

    def of(self, node: int) -> list[int]:
        """What a node needs."""
        return self.items[self.begins[node] : self.begins[node + 1]]

    def preparation(self, launch: int) -> set[int] | None:
        """What only prepares the input of a launch; None where part of that is not to be moved for a launch."""
        found: set[int] = set()
        stack = self.of(launch)
        while stack:
            node = stack.pop()
            if node in found or self.placeholder[node]:
                continue
            if self.stops[node] or len(found) >= MAX_PREPARATION:
                return None
            found.add(node)
            stack += self.of(node)
        return found

    def feeding(self, launch: int) -> set[int] | None:
        """The compute nodes whose results a reduce-scatter sends, with what lies between; None where they are many."""
        found: set[int] = set()
        stack = self.of(launch)
        while stack:
            node = stack.pop()
            if node in found or self.placeholder[node] or self.collective[node]:
                continue
            if len(found) >= FEW:
                return None
            found.add(node)
            if not self.stops[node]:
                stack += self.of(node)
        return found


@kernel
def _arranged(begins: Ints, users: Ints, missing: Ints, order: Ints, free: Heaps) -> int:
    """Kahn's algorithm: of what is free, the lowest number comes next; how many came."""
    for unit in range(len(missing)):
        if not missing[unit]:
            push(free, 0, unit, unit)
    place = 0
    while free.sizes[0]:
        unit = pop(free, 0)[1]
        order[place] = unit
        place += 1
        for k in range(begins[unit], begins[unit + 1]):
            user = users[k]
            missing[user] -= 1
            if not missing[user]:
                push(free, 0, user, user)
    return place
