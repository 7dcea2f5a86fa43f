"""Chains of pointwise ops, casts and reductions, as a compiler would fuse them: only their ends cost memory traffic.

    x = mm(a, b); y = silu(x); z = mul(y, c); w = mm(z, d)
    chain {y, z}: reads x and c, writes z; y never reaches memory

Rules:

1. A chain is a connected set of fusable nodes of one *level*. The level of a kernel or collective is the
   largest number of kernels, collectives and order edges on any path to it. A fusable node, view or
   constant has the level of the first node that needs it, so that what is cheap is made where it is
   used. Where nothing needs it, its level is counted as for kernels; and so is that of a *summary*, a result
   with fewer elements than an operand, and of what is computed from it up to the next kernels, unless
   something there has more elements than the summary or another count. The sum over a batch that is a norm's
   gradient stays with what reads the batch, however late a collective takes it.
2. Views and constants between members belong to the chain.
3. What several members read enters once, paid for by the first reader in graph order.
4. A result leaves if something outside the chain reads it, through views or not, or if it is returned.
5. A chain is one kernel, paid for by its first member. Members that move nothing cost nothing.
6. Constants are made where they are needed: they cost nothing unless a kernel or the output reads them.
7. A chain next to a matmul is not fused into it.
8. What a member, or a constant, makes for a concatenation alone is written where that wants it, at once: the
   concatenation neither reads nor writes it, and is no kernel where all of it is made so. That is what Inductor does
   (its ``ConcatKernel``).

No chain waits for something that waits for the chain. Let a(n) be the count that rule 1 makes for
kernels, taken for every node. The level l(n) is at least a(n), and no larger than that of any reader (one
less for an order edge), be it a(n) or that of the first reader; so levels never fall along an edge. They
rise on every order edge, and on every edge out of a kernel k, since l(n) >= a(n) > a(k) = l(k). A cycle
between chains and other nodes would hence be of one level, without kernels and order edges: only edges from
a fusable node, view or constant to another one of the same level. If the first of the two is in a chain,
both are in the same one, which is no edge between different things. So the cycle would be one of views
outside all chains, which are nodes of the graph itself, and that has none. (Order edges out of nodes that
nothing comes before are left out: those cannot be on a cycle.)

Control edges (:mod:`commcc.graph.index.control`) are no order edges for rule 1 as long as the chains then wait for
nothing that waits for them, which is checked; else they count, and split chains that could not be one kernel.

So prices hold in every order that leaves those who pay ahead of the rest of their chain (:attr:`Chains.after`); in
others somebody else pays (:mod:`commcc.timing.cost.payers`).

Limits: real compilers also split chains that get too big, fuse reductions only where their shapes
fit, fuse chains that merely read the same tensor, and recompute cheap values instead of keeping them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from commcc.graph.index.single_use import made_for
from commcc.graph.ops.indexing import LOOKUPS
from commcc.graph.ops.kernels import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.index import GraphIndex
    from commcc.timing.cost.traffic import Traffic

CONCATENATION = "aten.cat"
#: Who reads a value: nobody, members of the chain with that number, or something else.
_NOBODY, _OUTSIDE = -1, -2


class Chains:
    """The chains of one graph. ``of``: chain of every member, view and constant in one, by its first node.

    after: by member, those that paid for the chain or for what it reads before; known after :meth:`traffic`.
    """

    def __init__(self, index: GraphIndex, traffic: Traffic) -> None:
        self._index, self._traffic = index, traffic
        fusable = tuple(w is Work.FUSABLE and traffic.on_device(i) for i, w in enumerate(index.estimates.work))
        self.constants = frozenset(i for i, fits in enumerate(fusable) if fits and traffic.is_constant(i))
        self.member = tuple(fits and i not in self.constants for i, fits in enumerate(fusable))
        self._passive = tuple(
            i in self.constants or (w is Work.FREE and index.ops[i] != "output")
            for i, w in enumerate(index.estimates.work)
        )
        self.after: dict[int, tuple[int, ...]] = {}
        self.levels, self.of = self._formed(_uncontrolled(index))
        # Control edges count only where chains that are formed without them would wait for themselves.
        if index.control and _has_cycle(index, self.of):
            self.levels, self.of = self._formed(index)
        self._readers = [_NOBODY] * len(index)
        self._kernel_reads = [False] * len(index)
        self._find_readers()
        # The same in every order.
        self._entering: dict[int, dict[int, tuple[int, int]]] = {}

    def _formed(self, index: GraphIndex) -> tuple[list[int], tuple[int, ...]]:
        levels = _counts(index, self.member, self._passive)
        late = [fits or free for fits, free in zip(self.member, self._passive, strict=True)]
        for summary in self._summaries(late, levels):
            late[summary] = False
        _delay(index, late, levels)
        return levels, _chains(index, self.member, self._passive, levels)

    def _summaries(self, cheap: Sequence[bool], counts: Sequence[int]) -> list[int]:
        """Members that are smaller than an operand, and what is computed from them up to kernels, if nothing there is
        larger or has another count. cheap: members, views and constants.
        """
        index, member = self._index, self.member
        elements = self._traffic.elements
        # The most elements that members handle on the ways from a node to kernels.
        behind = [0] * len(index)
        smaller = set[int]()
        for node in range(len(index) - 1, -1, -1):
            if not cheap[node]:
                continue
            preds, most, count = index.data_preds[node], behind[node], counts[node]
            if member[node]:
                own = elements[node]
                largest = max([elements[pred] for pred in preds], default=0)
                if most <= own < largest and index.ops[node] not in LOOKUPS:
                    smaller.add(node)
                most = max(most, own, largest)
            for pred in preds:
                if counts[pred] != count:
                    behind[pred] = sys.maxsize
                elif behind[pred] < most:
                    behind[pred] = most
        summaries = sorted(smaller)
        for node in summaries:  # grows
            new = [user for user in index.users[node] if cheap[user] and user not in smaller]
            smaller.update(new)
            summaries += new
        return summaries

    def _find_readers(self) -> None:
        """Who reads each result, through views, and whether a kernel or the output does."""
        member, passive, of, results = self.member, self._passive, self.of, self._traffic.results
        all_readers, kernel_reads, returned = self._readers, self._kernel_reads, self._index.output_slots
        users = self._index.users
        for node in range(len(users) - 1, -1, -1):
            readers, by_kernel = (_OUTSIDE, True) if node in returned else (_NOBODY, False)
            for user in users[node] if readers == _NOBODY else ():
                if member[user]:
                    who = of[user]
                elif not passive[user]:
                    who, by_kernel = _OUTSIDE, True
                elif user in self.constants or not results[user]:
                    # A shape that is looked at, say: no bytes are read.
                    continue
                else:
                    who, by_kernel = all_readers[user], by_kernel or kernel_reads[user]
                if who not in (_NOBODY, readers):
                    readers = who if readers == _NOBODY else _OUTSIDE
            all_readers[node], kernel_reads[node] = readers, by_kernel

    def is_materialized(self, constant: int) -> bool:
        """Whether something reads a constant that a compiler cannot fuse it into."""
        return self._kernel_reads[constant]

    def leaving(self, node: int) -> int:
        """Bytes of a member's results that are read outside its chain."""
        inside = (_NOBODY, self.of[node])
        results = self._traffic.results[node]
        if self._readers[node] in inside:
            return 0
        if len(results) < 2 or node in self._index.output_slots:
            return self._traffic.bytes[node]
        buffers = self._index.estimates.buffers
        taken = {
            buffers[user]: self._traffic.bytes[user]
            for user in self._index.users[node]
            if self._readers[user] not in inside and self._index.estimates.work[user] is Work.FREE
        }
        return min(sum(taken.values()), self._traffic.bytes[node])

    def members(self) -> list[int]:
        """Nodes that are in a chain of their own or of several, without views and constants."""
        return [i for i, member in enumerate(self.member) if member]

    def traffic(self) -> dict[int, tuple[int, int, int]]:
        """Bytes read, bytes written and kernels of every member and constant."""
        result, self.after = self.paid(self.members())
        for i in self.constants:
            in_memory = self.is_materialized(i)
            result[i] = (0, self._traffic.bytes[i] if in_memory else 0, int(in_memory))
        return result

    def paid(self, nodes: Sequence[int]) -> tuple[dict[int, tuple[int, int, int]], dict[int, tuple[int, ...]]]:
        """The same of these members, all that their chains have, in this order; and what :attr:`after` has for them."""
        result, after, rows = dict[int, tuple[int, int, int]](), dict[int, tuple[int, ...]](), dict[int, list[int]]()
        for node in nodes:
            rows.setdefault(self.of[node], []).append(node)
        for row in rows.values():
            first, last = row[0], dict[int, int]()
            for node, read in self._read(row).items():
                result[node] = (sum(read.values()), self.leaving(node), int(node == first))
                earlier = {first, *(last[tensor] for tensor in read if tensor in last)} - {node}
                last.update((tensor, node) for tensor, size in read.items() if size)
                if earlier:
                    after[node] = tuple(sorted(earlier))
        return result, after

    def _read(self, members: Sequence[int]) -> dict[int, dict[int, int]]:
        """For all members of one chain, in this order, what they read of which tensors: bytes that no member before has
        read. Different slices add up to no more than the tensor.
        """
        result, entered, left = dict[int, dict[int, int]](), set[int](), dict[int, int]()
        for node in members:
            read = result[node] = {}
            for source, (tensor, size) in self.entering(node).items():
                if source in entered:
                    read.setdefault(tensor, 0)
                    continue
                entered.add(source)
                rest = left.get(tensor, self._traffic.bytes[tensor])
                taken = min(size, rest)
                left[tensor] = rest - taken
                read[tensor] = read.get(tensor, 0) + taken
        return result

    def before(self) -> dict[int, int]:
        """For each member the bits of others of its chain that come ahead of it in any order, by their places there."""
        bits, own, counts = [0] * len(self.of), [0] * len(self.of), dict[int, int]()
        for node, chain in enumerate(self.of):
            if chain < 0:
                continue
            for pred in self._index.preds(node):
                # A way from one member to another does not leave the chain.
                if self.of[pred] == chain:
                    bits[node] |= bits[pred] | own[pred]
            if self.member[node]:
                own[node] = 1 << counts.setdefault(chain, 0)
                counts[chain] += 1
        return {node: bits[node] for node in self.members()}

    def entering(self, node: int) -> dict[int, tuple[int, int]]:
        """By what a member reads from outside its chain: the tensor that this is a view of, and bytes."""
        if node in self._entering:
            return self._entering[node]
        chain, producers = self.of[node], self._traffic.producer
        result = self._entering[node] = {}
        for source, size in self._traffic.reads(node):
            producer = producers[source]
            if not (self.of[producer] == chain and self.member[producer]) and producer not in self.constants:
                result.setdefault(source, (self._traffic.origin[source], size))
        return result

    def size_of(self, node: int) -> int:
        """Bytes of its result."""
        return self._traffic.bytes[node]

    def concatenations(self) -> dict[int, tuple[int, int, int]]:
        """Bytes read, bytes written and kernels of those of which members or constants write a part in its place."""
        index, traffic, result = self._index, self._traffic, dict[int, tuple[int, int, int]]()
        for node, op in enumerate(index.ops):
            if op != CONCATENATION or not traffic.on_device(node):
                continue
            reads = dict(traffic.reads(node))
            placed = [part for part in reads if made_for(index, part, node)]
            if placed:
                size = sum(traffic.bytes[part] for part in placed)
                read, written = sum(reads.values()) - size, max(0, traffic.writes(node) - size)
                result[node] = read, written, int(read > 0 or written > 0)
        return result


def _uncontrolled(index: GraphIndex) -> GraphIndex:
    """The index without the order that control edges add."""
    if not index.control:
        return index
    edges = list(index.order_preds)
    for node, after in index.control.items():
        edges[node] = tuple(pred for pred in edges[node] if pred not in after)
    return replace(index, order_preds=tuple(edges))


def _has_cycle(index: GraphIndex, of: Sequence[int]) -> bool:
    """Whether a chain, taken as one node, waits for something that waits for it."""
    stands = [node if chain < 0 else chain for node, chain in enumerate(of)]
    users: list[list[int]] = [[] for _ in stands]
    missing = [0] * len(stands)
    for node, into in enumerate(stands):
        for pred in index.preds(node):
            if stands[pred] != into:
                users[stands[pred]].append(into)
                missing[into] += 1
    ready = [node for node, stand in enumerate(stands) if node == stand and not missing[node]]
    done = 0
    while ready:
        done += 1
        for user in users[ready.pop()]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return done < len(set(stands))


def _delay(index: GraphIndex, late: Sequence[bool], levels: list[int]) -> None:
    """Turns counts into levels: of nodes that are late, that of what needs them first; see the module's first rule."""
    before: list[int | None] = [None] * len(index)
    ops, users, data_preds, order_preds = index.ops, index.users, index.data_preds, index.order_preds
    for i in range(len(index) - 1, -1, -1):
        # A kernel has the level of its own path; only what is cheap moves to where it is used.
        if late[i] and data_preds[i]:
            readers = [levels[user] for user in users[i] if ops[user] != "output"]
            latest = before[i]
            if readers:
                levels[i] = min(readers) if latest is None else min(*readers, latest)
        for p in order_preds[i]:
            known = before[p]
            before[p] = levels[i] - 1 if known is None else min(known, levels[i] - 1)


def _counts(index: GraphIndex, member: Sequence[bool], passive: Sequence[bool]) -> list[int]:
    """Largest number of kernels, collectives and order edges on a path to every node."""
    levels = [0] * len(index)
    after = [0] * len(index)
    order_preds = index.order_preds
    for i, preds in enumerate(index.data_preds):
        level = 0
        for p in preds:
            if after[p] > level:
                level = after[p]
        for p in order_preds[i]:
            if index.data_preds[p] or index.order_preds[p]:
                level = max(level, after[p], levels[p] + 1)
        levels[i] = level
        after[i] = level if member[i] or passive[i] else level + 1
    return levels


def _chains(
    index: GraphIndex, member: Sequence[bool], passive: Sequence[bool], levels: Sequence[int]
) -> tuple[int, ...]:
    """Chain of every node, by the number of its first node; -1 for nodes in none."""
    parent = list(range(len(index)))
    inside = list(member)

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for i, preds in enumerate(index.data_preds):
        if not member[i] and not passive[i]:
            continue
        for p in preds:
            if inside[p] and levels[p] == levels[i]:
                inside[i] = True
                a, b = find(p), find(i)
                # The first node stands for the chain.
                parent[max(a, b)] = min(a, b)
    for i, earlier in enumerate(parent):  # no later than the node itself
        parent[i] = parent[earlier]
    return tuple([first if fits else -1 for first, fits in zip(parent, inside, strict=True)])
