"""Draws a graph with buckets merged, in arrays; see :mod:`commcc.schedule.sketch`.

    graph, in_flight = Drawing(sketches, buckets).drawn()

Units are those of :mod:`commcc.apply.order`: nodes of the graph before, and what buckets consist of
(:mod:`commcc.schedule.pieces`). They are put in the same order, and every node gets a number; then the tables of the
graph before are renumbered and those of pieces added. Kernels do all of it: where units stand is in
:mod:`commcc.schedule.drawing_units`, what stands there in :mod:`commcc.schedule.drawing_tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commcc.apply.order import WaitsForItself
from commcc.schedule.arrays import BUFFER, NODE, TABLES, Graph, records
from commcc.schedule.drawing_tables import fill
from commcc.schedule.drawing_units import FRESH, UNIT, Draft, Ordering, in_order, lay_out
from commcc.schedule.heaps import heaps
from commcc.schedule.pieces import HEAD, TABLES_OF_PIECES
from commcc.schedule.problem import MAX_FEEDING, MAX_PREPARATION
from commcc.schedule.tables import Making, feed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.plan import Bucket
    from commcc.schedule.sketch import Sketches


class Drawing:
    """One merged graph while it is made. items: how many numbers the tables of its pieces have."""

    def __init__(self, of: Sketches, buckets: Sequence[Bucket]) -> None:
        graph, pieces = of.graph, [of.piece(bucket) for bucket in buckets]
        ends = np.cumsum([len(piece.words) for piece in pieces])
        heads = np.array([piece.head for piece in pieces], np.int64)
        begins = heads[:, : len(TABLES_OF_PIECES) + 1]
        self.items = dict(zip(TABLES_OF_PIECES, np.diff(begins).sum(axis=0).tolist(), strict=True))
        begins += np.append(0, ends[:-1])[:, None]
        self.draft = Draft(
            graph=graph,
            preds=of.preds,
            facts=of.facts,
            heads=heads.view([(name, np.int64) for name in HEAD]).reshape(-1).view(np.recarray),
            words=np.concatenate([piece.words for piece in pieces]),
            units=records(len(graph.nodes) + self.items["units"] // 4, UNIT),
            fresh=records(self.items["nodes"] // 3, FRESH),
            buffers=np.arange(len(graph.buffers)),
            launch_ns=of.problem.costs.launch_ns,
        )

    def drawn(self) -> tuple[Graph, int]:
        """The merged graph, but for its longest paths; and bytes in flight at most in its own order."""
        total = self._put_in_order()
        draft, before = self.draft, self.draft.graph
        edges, buffers = len(draft.preds.items) + self.items["edges"] // 3 + total, self.items["buffers"] // 4
        held = len(before.buffers) + len(draft.heads) + self.items["sizes"]
        most = max(edges, held, len(before.items) + buffers)
        most += len(draft.heads) * MAX_PREPARATION + len(before.launches) * MAX_FEEDING
        items = np.empty(3 * edges + len(before.items) + 2 * buffers + most, np.int64)
        graph = Graph(
            nodes=records(total, NODE),
            buffers=records(held, BUFFER),
            rows=records(total + 1, TABLES),
            items=items,
            launches=before.launches,
            streams=before.streams,
            slowdown_permille=before.slowdown_permille,
        )
        marks, ends, sums = np.zeros((3, total + 1), np.int64)
        owners, things, starts, by_thing = np.empty((4, most + 1), np.int64)
        making = Making(graph, owners, things, starts, by_thing, ends, marks, np.empty(edges + 1, np.int64), sums)
        place, needed, in_flight = fill(draft, making, np.arange(total))
        pairs = np.empty((3, needed), np.int64)
        items = np.append(items[:place], np.empty(needed, np.int64))
        graph = graph._replace(items=items, launches=np.flatnonzero(graph.nodes.stream >= 0))
        making = making._replace(graph=graph, owners=pairs[0], things=pairs[1], by_thing=pairs[2])
        return graph._replace(items=items[: feed(making, place)]), in_flight

    def _put_in_order(self) -> int:
        """How many nodes there are, once all of them have numbers.

        Raises :class:`commcc.apply.order.WaitsForItself` where buckets wait for each other.
        """
        draft = self.draft
        lay_out(draft)
        count = len(draft.units)
        rank, missing, begins, ends = np.zeros((4, count + 1), np.int64)
        users = np.empty(len(draft.preds.items) + count, np.int64)
        ordering = Ordering(np.argsort(draft.units.key, kind="stable"), rank, missing, begins, ends, users)
        total = in_order(draft, ordering, heaps(1, count + 1))
        if total < 0:
            raise WaitsForItself("buckets wait for each other", where="apply")
        return total
