"""What can be cut together with a collective: ops in front of it and behind it that work slice by slice.

    front = bodies.in_front(launch, Rows(("tokens", 4096), 1))   # y = mm(x, w); rs = reduce_scatter(y): columns of w
    back = bodies.behind(launch, kinds)                          # wait(ag), mm(ag, v): rows of what is gathered

In front, a node is taken whose users are all taken; what is used elsewhere too stays whole, and slices of it are read.
Behind, nodes are taken in graph order as far as what they need stands in front of everything that needs them: all
slices of what is behind are computed where the wait stands, or where the last of their other operands does.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

import torch
from torch import fx

from commcc.apply.chunk import turns_of
from commcc.ep.chunk.grid import Grid, parts
from commcc.graph.annotations import REGION
from commcc.graph.ops import argument, draws, op_name
from commcc.graph.ops.row_wise import ROW_RULES, RowRule, is_elementwise
from commcc.graph.ops.sizes import DIMENSIONS
from commcc.plan import ChunkedRegion, Cut, Join, Resize
from commcc.splitting.slices import is_static

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.splitting.slices import Cuts, Slices
    from commcc.verify.clones import Rows

#: Nodes in front of a collective, and behind it.
MOST_NODES = 48
PROOF = "the chunks are slices of it along this dimension"
#: Rules of ops that read slices with gaps between their rows as well as others.
_STRIDED = (RowRule.PRODUCT, RowRule.BATCHED, RowRule.KEEP)


@dataclass
class Side:
    """What is cut in front of a collective, or behind it. kinds: how values are cut, those of ``cuts`` among them.

    body: nodes. cuts: what comes from outside and is cut. whole: what is read whole, and so cannot be cut. behind: the
    position behind which the nodes behind a wait stand.
    """

    kinds: Cuts
    body: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    whole: set[fx.Node] = field(default_factory=set)
    behind: int = -1

    def copy(self) -> Side:
        return Side(dict(self.kinds), list(self.body), list(self.cuts), set(self.whole), self.behind)


class Bodies:
    """Looks for what can be cut. follows: whether a collective may be cut with one whose result it sends on. taken: by
    node of a region that is settled, where its slices stand.
    """

    def __init__(
        self, nodes: Sequence[fx.Node], index: GraphIndex, slices: Slices, follows: Callable[[int], bool]
    ) -> None:
        self.nodes, self.index, self.slices, self.follows = nodes, index, slices, follows
        self.number = {node: number for number, node in enumerate(nodes)}
        self.taken: dict[int, int] = {}
        written = {s for targets in index.writes.values() for target in targets for s in index.storages[target]}
        self.written = frozenset(written)
        self.followers: dict[int, list[int]] = {}
        for node, preds in enumerate(index.order_preds):
            for pred in preds:
                self.followers.setdefault(pred, []).append(node)

    def is_plain(self, number: int) -> bool:
        """Whether a node only computes tensors of known sizes from others, and is in no region yet."""
        node, index = self.nodes[number], self.index
        return (
            node.op == "call_function"
            and number not in self.taken
            and number not in index.stays
            and number not in index.writes
            and number not in index.launches
            and number not in index.wait_of
            and number not in index.begun_elsewhere
            and number not in index.held
            and not draws(node)
            and self.written.isdisjoint(index.storages[number])
            and not marked(node)
            and is_static(node)
        )

    def in_front(self, launch: int, start: Rows) -> Side | None:
        """What is cut in front of a launch whose operand is cut so; None where slices of something cannot be read."""
        source = self.nodes[self.index.launches[launch].inputs[0]]
        side, inside = Side({source: start}), {launch}
        waiting = [-self.number[source]]
        while waiting:
            number = -heapq.heappop(waiting)
            node = self.nodes[number]
            needed = None
            if self.is_plain(number) and len(side.body) < MOST_NODES and inside.issuperset(self.index.users[number]):
                needed = self.slices.given(node, side.kinds[node])
            if needed is not None and self._agrees(side, node, needed, launch):
                side.body.append(number)
                inside.add(number)
                for operand in needed.keys() - side.kinds.keys():
                    heapq.heappush(waiting, -self.number[operand])
                side.kinds.update(needed)
                side.whole.update(used for used in node.all_input_nodes if used not in needed)
            elif not self._can_cut(node, side.kinds[node]):
                return None
            else:
                side.cuts.append(number)
        side.body.sort()
        return side

    def _agrees(self, side: Side, node: fx.Node, needed: Cuts, at: int) -> bool:
        """Whether operands may be cut so, and are there where the slices are computed."""
        others = [used for used in node.all_input_nodes if used not in needed]
        return (
            all(side.kinds.get(operand, kind) == kind and operand not in side.whole for operand, kind in needed.items())
            and not any(other in side.kinds for other in others)
            and all(self.taken.get(self.number[used], -1) < at for used in node.all_input_nodes)
        )

    def _can_cut(self, node: fx.Node, kind: Rows) -> bool:
        """Whether slices of a whole value can be read."""
        known = is_static(node) and isinstance(node.meta["val"], torch.Tensor)
        return (
            known
            and kind.order[0] == "tokens"
            and not self.written.intersection(self.index.storages[self.number[node]])
        )

    def behind(self, launch: int, front: Side) -> list[Side]:
        """What is cut behind a launch, at first its wait alone, and then with ever more of what uses its result."""
        facts = self.index.launches[launch]
        (wait,), source = facts.waits, self.nodes[facts.inputs[0]]
        given = self.slices.rows(self.nodes[launch], {source: front.kinds[source]})
        if given is None:
            return []
        kinds = {**front.kinds, self.nodes[launch]: given, self.nodes[wait]: given}
        side = Side(kinds, [wait], [], set(front.whole), wait)
        sides, waiting, seen = [side.copy()], sorted(self.index.users[wait]), set(self.index.users[wait])
        first_outside = len(self.nodes)
        while waiting:
            number = heapq.heappop(waiting)
            longer = side.copy()
            if not self._takes(longer, number, launch, min(first_outside, number)):
                first_outside = min(first_outside, self.taken.get(number, number))
                continue
            side = longer
            sides.append(side.copy())
            for user in self.index.users[side.body[-1]]:
                if user not in seen:
                    seen.add(user)
                    heapq.heappush(waiting, user)
        return sides

    def _takes(self, side: Side, number: int, launch: int, limit: int) -> bool:
        """Cut a node behind a wait, a launch with its wait; False where it stays whole, and ``side`` is no use then."""
        # No part may be read as a whole before a launch.
        if limit == number and number in self.index.launches and self.follows(number):
            (wait,) = self.index.launches[number].waits
            taken = self._takes_one(side, number, launch, limit) and self._takes_one(side, wait, launch, wait)
            side.behind = wait
            return taken
        return self.is_plain(number) and self._takes_one(side, number, launch, limit)

    def _takes_one(self, side: Side, number: int, launch: int, limit: int) -> bool:
        node = self.nodes[number]
        if len(side.body) > MOST_NODES:
            return False
        inside = {self.nodes[n] for n in side.body}
        given = {used: side.kinds[used] for used in node.all_input_nodes if used in inside}
        result = self.slices.result(node, given)
        if result is None:
            return False
        kind, others = result
        outside = [self.number[used] for used in node.all_input_nodes if used not in inside]
        behind = max(side.behind, *outside, -1)
        fits = all(self._can_cut(operand, rows) for operand, rows in others.items())
        fits = fits and self._agrees(side, node, {**given, **others}, behind)
        if not fits or behind >= limit or any(self.taken.get(n, -1) >= behind for n in outside):
            return False
        side.kinds.update({**others, node: kind})
        side.whole.update(used for used in node.all_input_nodes if used not in given and used not in others)
        side.cuts += [self.number[operand] for operand in others if self.number[operand] not in side.cuts]
        side.body.append(number)
        side.behind = behind
        return True

    def region(self, launch: int, front: Side, back: Side, count: int) -> ChunkedRegion | None:
        """The region of a collective cut in so many parts; None where it cannot be put together again."""
        kinds = {**front.kinds, **back.kinds}
        body = sorted({*front.body, launch, *back.body})
        extent = gcd(*(kind.order[-1] for kind in kinds.values()))
        inside = set(body)
        leaving = [n for n in back.body if any(user not in inside for user in self.index.users[n])]
        joins = [self._join(number, kinds[self.nodes[number]]) for number in leaving]
        storages = [s for number in leaving for s in self.index.storages[number]]
        if extent % count or None in joins or len(set(storages)) < len(storages):
            return None
        resized = [self._resized(number, kinds[self.nodes[number]], extent) for number in body]
        if None in resized:
            return None
        cuts = sorted({*front.cuts, *back.cuts})
        region = ChunkedRegion(
            root=f"split {self.index.names[launch]}",
            backward=False,
            extent=extent,
            sizes=parts(extent, count),
            body=tuple(body),
            cuts=tuple(Cut(n, kinds[self.nodes[n]].dim, dense=self._dense(n, inside)) for n in cuts),
            joins=tuple(join for join in joins if join is not None),
            resized=tuple(size for changes in resized if changes for size in changes),
            in_turn=True,
        )
        places = self.places(region)
        readers = [(n, user) for n in leaving for user in self.index.users[n] if user not in inside]
        # Also where another region reads it, which is made later only where this one holds the node that both stand at.
        taken = [(places[n], self.taken.get(user, user)) for n, user in readers]
        early = any(reader < at or (reader == at and at not in inside) for at, reader in taken)
        return None if early or self._disturbs(places) else region

    def places(self, region: ChunkedRegion) -> dict[int, int]:
        """Where the chunks of each node stand: behind which node of the graph."""
        return {node: at for at, group in turns_of(self.index, region).items() for node in group}

    def _disturbs(self, moved: dict[int, int]) -> bool:
        """Whether a node is moved behind one that has to follow it."""
        return any(
            follower not in moved and follower <= at
            for n, at in moved.items()
            for follower in self.followers.get(n, ())
        )

    def _join(self, number: int, kind: Rows) -> Join | None:
        """How slices become whole, side by side or block by block."""
        val = self.nodes[number].meta["val"]
        if not isinstance(val, torch.Tensor) or not val.is_contiguous():
            return None
        blocks = kind.order[1] if kind.order[0] == "apart" else 1
        return Join(number, "rows", kind.dim, PROOF, blocks)

    def _resized(self, number: int, kind: Rows, extent: int) -> tuple[Resize, ...] | None:
        """Sizes among the arguments of a node that follow the slice; None where others would have to."""
        node = self.nodes[number]
        name = DIMENSIONS.get(op_name(node.target))
        if name is None or ROW_RULES.get(op_name(node.target)) is RowRule.SLICE:
            return ()
        sizes = argument(node, name)
        if not isinstance(sizes, (list, tuple)) or not all(type(size) is int for size in sizes):
            return None
        place = kind.dim
        if sizes[place] == -1:
            return ()
        if not Grid(extent).multiple(sizes[place]):
            return None
        return (Resize(number, name, place, sizes[place] // extent),)

    def _dense(self, number: int, inside: set[int]) -> bool:
        """Whether slices that have gaps are to be copied: for collectives, and whatever is not known to read them."""
        readers = [self.nodes[user] for user in self.index.users[number] if user in inside]
        return not all(
            is_elementwise(reader.target) or ROW_RULES.get(op_name(reader.target)) in _STRIDED for reader in readers
        )


def marked(node: fx.Node) -> bool:
    """Whether a node belongs to a region that is cut already."""
    custom = node.meta.get("custom")
    return REGION in node.meta or (isinstance(custom, dict) and REGION in custom)
