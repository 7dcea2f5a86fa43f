"""Draws a graph with buckets merged, in arrays; see :mod:`commcc.schedule.sketch`.

Units are those of :mod:`commcc.apply.order`, which are put in the same order. Then every node has a number, tables of
the graph before are renumbered, and what buckets consist of (:mod:`commcc.schedule.pieces`) is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.apply.order import WaitsForItself
from commcc.base.terms import Kind
from commcc.schedule.arrays import BUFFER, NODE, TABLES, Graph, Ints, Records, records
from commcc.schedule.pieces import INNER, NEW, OLD, STAYS
from commcc.schedule.problem import FEW, LIGHT, MAX_PREPARATION
from commcc.schedule.tables import FORBIDDEN, LAST, SKIPPED, Pairs, Rows, arranged, behind, in_rows, rows_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.plan import Bucket
    from commcc.schedule.sketch import Sketches


class Drawing:
    """One merged graph while it is made. Units: nodes of the graph before keep their numbers, those of buckets follow.

    gives: the unit that stands for a node for what needs it; takes: the unit that needs what a node needs; within:
    which of that unit's nodes stands for it. at: the new number of every node of the graph before. fresh: those of the
    nodes of buckets. bucket_of, unit_of, node_of: what a row of all pieces' tables belongs to, and where its numbers
    begin.
    """

    def __init__(self, of: Sketches, buckets: Sequence[Bucket]) -> None:
        self.of, self.buckets = of, buckets
        self.index, self.before = of.problem.index, of.problem.graph
        self.pieces = [of.piece(bucket) for bucket in buckets]
        count = self.count = len(self.index)
        self.gives, self.takes = np.arange(count), np.arange(count)
        self.within = np.zeros(count, np.int64)
        sizes = np.array([(len(p.units), len(p.nodes), len(p.sizes)) for p in self.pieces], np.int64).reshape(-1, 3)
        ends = np.cumsum(sizes, axis=0)
        self.units, self.first_node, self.first_size = (ends - sizes).T
        self.units = self.units + count

    def drawn(self) -> tuple[Graph, int]:
        """The merged graph, but for its longest paths; and bytes in flight at most in its own order."""
        keys, sizes = self._units()
        self._arrange(keys, sizes)
        self._buffers()
        return self._graph()

    def _all(self, name: str) -> tuple[Ints, Ints]:
        """The rows of all pieces, and of which bucket each is."""
        tables = [getattr(piece, name) for piece in self.pieces]
        return np.concatenate(tables), np.repeat(np.arange(len(tables)), [len(table) for table in tables])

    # Units and their order.

    def _units(self) -> tuple[list[Ints], Ints]:
        """What units are put in order by, and how many nodes each has."""
        members, bucket = self._all("members")
        nodes, first = members[:, 0], self.units[bucket]
        self.gives[nodes], self.takes[nodes] = first + members[:, 1], first + members[:, 2]
        self.within[nodes] = members[:, 3]
        units, bucket = self._all("units")
        self.unit_place = np.arange(self.count, self.count + len(units)) - self.units[bucket]
        self.unit_bucket = bucket
        nodes = np.arange(self.count)
        places, ranks = (nodes + 1) * 4 + STAYS, np.zeros(self.count, np.int64)
        hoisted, bucket = self._all("hoist")
        # A cast may serve several launches: it goes along with the first one.
        launches = np.array([piece.units[0, 1] for piece in self.pieces], np.int64)
        by_place = np.lexsort((bucket, launches[bucket]))[::-1]
        bucket, hoisted = bucket[by_place], hoisted[by_place]
        places[hoisted], ranks[hoisted] = launches[bucket], 2 * bucket
        places[list(self.index.placeholders)] = STAYS
        places[self.count - 1] = (self.count + 1) * 4
        keys = [
            np.append(nodes, np.zeros(len(units), np.int64)),
            np.append(ranks, units[:, 2] + units[:, 3] * self.unit_bucket),
            np.append(places, units[:, 1]),
        ]
        return keys, np.append(np.ones(self.count, np.int64), units[:, 0])

    def _arrange(self, keys: list[Ints], sizes: Ints) -> None:
        """Units in the order in which :func:`commcc.apply.order.arrange` has them, and the new numbers of nodes."""
        owners, items = self.of.own["preds"]
        alive = np.append(self.takes == np.arange(self.count), np.ones(len(sizes) - self.count, bool))
        first, then = self.gives[items], self.takes[owners]
        other = first != then
        # A wait comes after its launch, a result after the wait.
        own = self.unit_place > 0
        after = self.count + np.flatnonzero(own)
        before = self.units[self.unit_bucket[own]] + np.minimum(self.unit_place[own] - 1, 1)
        first, then = np.append(first[other], before), np.append(then[other], after)
        by_rank = np.lexsort(keys)
        by_rank = by_rank[alive[by_rank]]
        rank = np.empty(len(sizes), np.int64)
        rank[by_rank] = np.arange(len(by_rank))  # units are counted by rank from here on
        count = len(by_rank)
        users = in_rows(Pairs(rank[first], rank[then]), count, count)
        order = arranged(users, np.bincount(users.items, minlength=count))
        if len(order) < count:
            raise WaitsForItself("buckets wait for each other", where="apply")
        order = by_rank[order]
        begins = np.zeros(len(sizes), np.int64)
        ends = np.cumsum(sizes[order])
        begins[order] = ends - sizes[order]
        self.total = int(ends[-1]) if len(ends) else 0
        self.at = begins[self.gives] + self.within
        self.alive = np.flatnonzero(alive[: self.count])
        self.new, bucket = self._all("nodes")
        self.fresh = begins[self.units[bucket] + self.new[:, 0]] + self.new[:, 1]

    def _buffers(self) -> None:
        """The buffers of the merged graph: those of before, one that each launch writes, and the others of pieces."""
        before, buckets = self.before.buffers, len(self.buckets)
        #: Members whose result is a view live in the merged one.
        self.same = np.arange(len(before))
        views, bucket = self._all("views")
        self.same[views] = len(before) + bucket
        received = np.array([piece.received for piece in self.pieces], np.int64)
        sizes, _ = self._all("sizes")
        buffers = self.buffers = records(len(before) + buckets + len(sizes), BUFFER)
        buffers[: len(before)] = before
        buffers["bytes"][len(before) :] = np.append(received, sizes)
        buffers["kept"][self.same[np.flatnonzero(before["kept"])]] = 1
        rows, bucket = self._all("buffers")
        node, made, kind, number = rows.T
        first = np.where(kind == NEW, len(before) + buckets + self.first_size[bucket], len(before) + bucket)
        new = np.where(kind == NEW, number, 0) + first
        old = kind == OLD
        new[old] = self.same[number[old]]
        nodes = self.fresh[self.first_node[bucket] + node]
        self.touched = Pairs(nodes, new)
        self.made = Pairs(nodes[made == 1], new[made == 1])

    # All of it as arrays.

    def _nodes(self) -> Records:
        before, nodes = self.before.nodes, records(self.total, NODE)
        flat, flat_before = (each.view(np.int64).reshape(-1, len(NODE)) for each in (nodes, before))
        here = self.at[self.alive]
        flat[here] = flat_before[self.alive]
        waited = before["waited"][self.alive]
        nodes["waited"][here] = np.where(waited >= 0, self.at[waited], -1)
        nodes["stream"][self.fresh] = nodes["waited"][self.fresh] = -1
        nodes["compute_ns"][self.fresh] = self.new[:, 2]
        launches = self.fresh[self.first_node + np.array([piece.launch for piece in self.pieces], np.int64)]
        first = np.array([bucket.members[0] for bucket in self.buckets], np.int64)
        for name in ("stream", "asynchronous", "ends"):
            nodes[name][launches] = before[name][first]
        nodes["compute_ns"][launches] = self.of.problem.costs.launch_ns
        nodes["transfer"][launches] = [piece.transfer for piece in self.pieces]
        nodes["bytes"][launches] = [piece.flight for piece in self.pieces]
        waits, bucket = self._all("waits")
        nodes["waited"][self.fresh[self.first_node[bucket] + waits]] = launches[bucket]
        self.launches = launches
        return nodes

    def _moved(self, name: str) -> Pairs:
        """Pairs of nodes of a table, as far as no bucket took the first of them."""
        owners, items = self.of.own[name]
        stays = self.takes[owners] == owners
        return Pairs(self.at[owners[stays]], items[stays])

    def _preds(self) -> Rows:
        owners, items = self._moved("preds")
        rows, bucket = self._all("edges")
        node, kind, number = rows.T
        first = self.first_node[bucket]
        needed = np.empty(len(rows), np.int64)
        inner = kind == INNER
        needed[inner] = self.fresh[(first + number)[inner]]
        needed[~inner] = self.at[number[~inner]]
        owners, items = np.append(owners, self.fresh[first + node]), np.append(self.at[items], needed)
        used = np.zeros(self.total, bool)
        used[items] = True
        used[self.total - 1] = True
        loose = np.flatnonzero(~used)  # the output ends the graph, whatever it returns
        pairs = Pairs(np.append(owners, np.full(len(loose), self.total - 1)), np.append(items, loose))
        return in_rows(pairs, self.total, self.total)

    def _graph(self) -> tuple[Graph, int]:
        graph, nodes, total = self.before, self._nodes(), self.total
        preds = self._preds()
        nodes["missing"] = np.diff(preds.begins)
        waits = np.flatnonzero((nodes["waited"] >= 0) & (nodes["placeholder"] == 0))
        waited = Pairs(nodes["waited"][waits], waits)
        made = {"preds": preds, "waits": in_rows(waited, total, total)}
        made["users"] = in_rows(Pairs(preds.items, np.repeat(np.arange(total), nodes["missing"])), total, total)
        for name, more in (("touched", self.touched), ("made", self.made)):
            owners, items = self._moved(name)
            pairs = Pairs(np.append(owners, more.owners), np.append(self.same[items], more.items))
            made[name] = in_rows(pairs, total, len(self.buffers))
        made["prepares"] = self._prepares(nodes, preds)
        made["feeds"], made["needed_by"] = self._fed(nodes, preds)
        made["resized"] = self._resized()
        rows, begun = records(total + 1, TABLES), 0
        for name in TABLES:
            rows[name] = made[name].begins + begun
            begun += len(made[name].items)
        items = np.concatenate([made[name].items for name in TABLES])
        launches = np.flatnonzero(nodes["stream"] >= 0)
        self._between(nodes, waited, launches)
        whole = Graph(nodes, self.buffers, rows, items, launches, graph.streams, graph.slowdown_permille)
        return whole, self._in_flight(nodes, waited)

    def _prepares(self, nodes: Records, preds: Rows) -> Rows:
        """For launches that depend on nothing but graph inputs through a few light nodes, these; sets ``prepared``."""
        flags = np.zeros(self.total, np.int64)
        flags[(nodes["compute"] | (nodes["waited"] >= 0) | (nodes["stream"] >= 0)) == 1] = FORBIDDEN
        flags[self.at[list(self.index.writes)]] = FORBIDDEN
        flags[nodes["placeholder"] == 1] = SKIPPED
        kernels = np.zeros(self.total, np.int64)
        kernels[self.at[self.alive[self.of.kernels[self.alive]]]] = 1
        found, ends = behind(preds, self.launches, flags, MAX_PREPARATION)
        prepared = np.zeros(len(ends), np.int64)
        begin = 0
        weights, copies = (np.append(0, np.cumsum(each[found.items])) for each in (nodes["compute_ns"], kernels))
        for place, (end, piece) in enumerate(zip(ends.tolist(), self.pieces, strict=True)):
            if end < 0:
                continue
            copied = piece.copied or copies[end] > copies[begin]
            light = (weights[end] - weights[begin]) * LIGHT <= piece.transfer if copied else end - begin <= FEW
            prepared[place], begin = (2 if copied else 1) if light else 0, end
        nodes["prepared"][self.launches] = prepared
        owners, items = self._moved("prepares")
        taken = prepared[found.owners] > 0
        pairs = Pairs(
            np.append(owners, self.launches[found.owners[taken]]), np.append(self.at[items], found.items[taken])
        )
        return in_rows(pairs, self.total, self.total)

    def _fed(self, nodes: Records, preds: Rows) -> tuple[Rows, Rows]:
        """Tables ``feeds`` and ``needed_by``."""
        merged = self.takes != np.arange(self.count)
        needed, launches = self.of.own["needed_by"]
        # What a merged wait gave is taken out of its result: that feeds, too.
        others = np.unique(launches[merged[needed] & ~merged[launches]])
        reduced = np.array([bucket.kind is Kind.REDUCE_SCATTER for bucket in self.buckets], bool)
        anew = np.append(self.at[others], self.launches[reduced])
        flags = np.where(nodes["compute"] == 1, LAST, 0)
        flags[(nodes["waited"] >= 0) | (nodes["stream"] >= 0) | (nodes["placeholder"] == 1)] = SKIPPED
        found, ends = behind(preds, anew, flags, FEW)
        # What these nodes and the launch need, but for the nodes themselves.
        heads = np.flatnonzero(ends >= 0)
        of, node = np.append(heads, found.owners), np.append(anew[heads], found.items)
        place, need = rows_at(preds, node)
        outside = ~np.isin(of[place] * self.total + need, found.owners * self.total + found.items)
        same = ~merged
        same[others] = False
        launched, feeds = self.of.own["feeds"]
        kept = same[launched]
        fed = Pairs(
            np.append(self.at[launched[kept]], anew[found.owners]), np.append(self.at[feeds[kept]], found.items)
        )
        kept = same[launches]
        by = Pairs(
            np.append(self.at[needed[kept]], need[outside]),
            np.append(self.at[launches[kept]], anew[of[place[outside]]]),
        )
        return in_rows(fed, self.total, self.total), in_rows(by, self.total, self.total)

    def _resized(self) -> Rows:
        """Buffers and their new sizes, in turn."""
        nodes, buffers, sizes = self.of.resized
        order = np.argsort(self.at[nodes], kind="stable")
        counts = 2 * np.bincount(self.at[nodes], minlength=self.total)
        items = np.stack([self.same[buffers[order]], sizes[order]], axis=1).reshape(-1)
        return Rows(np.append(0, np.cumsum(counts)), items)

    def _between(self, nodes: Records, waits: Pairs, launches: Ints) -> None:
        """Compute nodes between a launch and its first wait."""
        before = np.append(0, np.cumsum(nodes["compute"]))
        first = np.full(self.total, self.total)
        np.minimum.at(first, *waits)
        waited = launches[first[launches] < self.total]
        nodes["between"] = 0
        nodes["between"][waited] = before[first[waited]] - before[waited]

    def _in_flight(self, nodes: Records, waits: Pairs) -> int:
        """Bytes in flight at most, in the order of the nodes."""
        last = np.full(self.total, -1)
        np.maximum.at(last, *waits)
        sources = np.flatnonzero(last >= 0)
        change, held = np.zeros(self.total, np.int64), nodes["bytes"][sources]
        np.subtract.at(change, last[sources], held)
        begun = nodes["placeholder"][sources] == 1
        change[sources[~begun]] += held[~begun]
        flying = int(held[begun].sum()) + np.cumsum(change)
        return int(flying.max(initial=0))
