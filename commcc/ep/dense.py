"""Where collectives of parameters go so that they overlap attention and not token exchanges.

Layers are numbered; what comes behind all layers (norm, output) counts as one more, what comes before (embeddings)
keeps its place. Dense are products of a layer that belong to no expert-parallel module::

    1. all-gather of layer i, forward        launched at the first dense product of layer i-1
    2. all-gather of layer i, backward       launched at the first dense product of layer i+1's backward pass
    3. reduce-scatter of layer i             launched at the first dense product of layer i-1's backward pass,
                                             or when its gradient is there
    4. wait of such a reduce-scatter         at the end, or where the next layer's is launched, with what only
                                             unpacks the result

Whether a gather belongs to the backward pass is told by the first product that uses it: recomputed ones do.
Everything else keeps its place. Limits: gathers move only if they need nothing but parameters, reductions only if
nothing but outputs depends on them; the rest is told as blocked.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commcc.base.reasons import Reason
from commcc.base.terms import Kind, Role
from commcc.ep.schedule.whole import sorted_by
from commcc.graph.blocks import Item, find_blocks
from commcc.graph.modules import Entry, Matcher, parents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.graph.annotations import Annotation
    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex

#: What stands first of those that want one place: what is moved there, then the node itself.
_MOVED, _STAYS = 0, 1
Key = tuple[int, int, int]


@dataclass(frozen=True)
class OrderConstraint:
    """Let ``node``, a launch or a wait, stand before ``at``."""

    launch: int
    node: int
    at: int
    reason: Reason


@dataclass(frozen=True)
class Blocked:
    """A collective that cannot go where it should, and why."""

    launch: int
    reason: Reason


@dataclass
class Wanted:
    """What is wanted, and what cannot be had. kept: collectives whose place the rules leave alone."""

    moves: list[OrderConstraint] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


def layers_of(ident: Identification) -> tuple[str, ...]:
    """Paths of the layers: modules that are alike in what they gather and reduce, numbered ones if there are any."""
    items = [
        Item(c.module, (c.kind.value, c.group, c.dtype, c.reduction or ""), c.launch, c.stands_for)
        for c in _of_parameters(ident)
        if c.module is not None
    ]
    paths = find_blocks(items).paths
    return tuple(path for path in paths if path[-1].isdigit()) or paths


def _of_parameters(ident: Identification) -> list[Collective]:
    kinds = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
    return [c for c in ident.collectives if c.role is Role.FSDP and c.kind in kinds and len(c.waits) == 1]


class Dense:
    """The dense products of a graph, by layer and direction. ``len(layers)`` is the number of what comes behind."""

    def __init__(self, index: GraphIndex, notes: Sequence[Annotation], layers: Sequence[str]) -> None:
        self.index, self.notes = index, notes
        self._find = Matcher(Entry(path, (path,), path) for path in layers)
        self.layers = self._as_they_run(layers)
        self._number = {path: number for number, path in enumerate(self.layers)}
        self._begins: dict[str, int] = {}  # the first node of each module, and of those around it
        for node, note in enumerate(notes):
            for path in parents(note.module):
                self._begins.setdefault(path, node)
        self.first = self._anchors()

    def _as_they_run(self, layers: Sequence[str]) -> tuple[str, ...]:
        """In order of their first products, forward; from behind where there is a backward pass only."""
        first: dict[bool, dict[str, int]] = {False: {}, True: {}}
        for node, note in enumerate(self.notes):
            entry = self._find(note.module) if self.index.compute[node] else None
            if entry is not None:
                first[note.backward].setdefault(entry.name, node)
        backward = not first[False]
        known = first[backward]
        return tuple(sorted((path for path in layers if path in known), key=lambda p: known[p], reverse=backward))

    def layer(self, module: str | None) -> int | None:
        """The layer of a module; what is in none and begins behind the last one is one more."""
        if not module:
            return None
        entry = self._find(module)
        if entry is not None:
            return self._number.get(entry.name)
        begins = next((self._begins[path] for path in parents(module) if path in self._begins), -1)
        last = self._begins[self.layers[-1]] if self.layers else len(self.index)
        return len(self.layers) if begins > last else None

    def _anchors(self) -> dict[tuple[int, bool], int]:
        """By layer and direction the first dense product, in the backward pass the first behind the experts."""
        anchors: dict[tuple[int, bool], int] = {}
        late: dict[tuple[int, bool], bool] = {}
        for node, note in enumerate(self.notes):
            layer = self.layer(note.module) if self.index.compute[node] else None
            if layer is None:
                continue
            key = layer, note.backward
            if note.part is not None:
                late[key] = note.backward and key in anchors
            elif note.role != "body" and (key not in anchors or late.get(key, False)):
                anchors[key], late[key] = node, False
        return anchors

    def consumer(self, waits: Iterable[int]) -> int | None:
        """The first product that uses what was waited for."""
        index, best = self.index, None
        heap = sorted(waits)
        seen = set(heap)
        while heap:
            node = heapq.heappop(heap)
            if index.compute[node]:
                best = node
                break
            for user in index.users[node]:
                if user not in seen and user not in index.launches:
                    seen.add(user)
                    heapq.heappush(heap, user)
        return best


def wanted_order(dense: Dense, ident: Identification, *, at_end: bool) -> Wanted:
    """What the rules want. at_end: case 4 with waits at the end."""
    wanted = Wanted()
    for collective in _of_parameters(ident):
        if collective.kind is Kind.ALL_GATHER:
            _gather(dense, collective, wanted)
        else:
            _reduction(dense, collective, wanted, at_end)
    return wanted


def _gather(dense: Dense, collective: Collective, wanted: Wanted) -> None:
    """Cases 1 and 2."""
    consumer = dense.consumer(collective.waits)
    layer = None if consumer is None else dense.layer(collective.module)
    if consumer is None or layer is None:
        wanted.kept.append(collective.launch)
        return
    backward = dense.notes[consumer].backward
    anchor = dense.first.get((layer + 1 if backward else layer - 1, backward))
    if anchor is None or (backward and layer == len(dense.layers)):
        wanted.kept.append(collective.launch)
        return
    where = f"the {'backward pass' if backward else 'forward pass'} of layer {layer + (1 if backward else -1)}"
    if collective.derived not in ("param", "bucket"):
        wanted.blocked.append(Blocked(collective.launch, Reason.of("needs_activations")))
    elif min(collective.waits) < anchor:
        wanted.blocked.append(Blocked(collective.launch, Reason.of("waited_early", where=where)))
    else:
        wanted.moves.append(
            OrderConstraint(collective.launch, collective.launch, anchor, Reason.of("gathered", where=where))
        )


def _reduction(dense: Dense, collective: Collective, wanted: Wanted, at_end: bool) -> None:
    """Cases 3 and 4."""
    layer = dense.layer(collective.module)
    wait = collective.waits[0]
    used = _used_by(dense.index, wait)
    anchor = None if layer is None else dense.first.get((layer - 1, True))
    if used is not None:
        wanted.blocked.append(Blocked(collective.launch, Reason.of("result_needed", node=dense.index.names[used])))
        return
    if layer is None or anchor is None:
        wanted.kept.append(collective.launch)
    else:
        reason = Reason.of("reduced", layer=layer - 1)
        wanted.moves.append(OrderConstraint(collective.launch, collective.launch, anchor, reason))
    end = len(dense.index) - 1
    later = end if at_end or layer is None else dense.first.get((layer - 2, True), end)
    reason = Reason.of("waited_at_end" if later == end else "waited_late")
    wanted.moves.append(OrderConstraint(collective.launch, wait, max(later, wait), reason))


def _used_by(index: GraphIndex, wait: int) -> int | None:
    """What depends on a reduced gradient besides outputs: a product, a collective, a write to something else."""
    seen, stack = {wait}, [wait]
    while stack:
        node = stack.pop()
        for user in index.users[node]:
            if index.compute[user] or user in index.launches or user in index.host_syncs:
                return user
            if user not in seen:
                seen.add(user)
                stack.append(user)
    return None


def placed(index: GraphIndex, moves: Sequence[OrderConstraint]) -> tuple[int, ...]:
    """All nodes with these constraints met as far as dependences allow; the rest keeps its order."""
    preds = _preds(index)
    keys: list[Key] = [(node, _STAYS, node) for node in range(len(index))]
    wanted: dict[int, int] = {}
    for constraint in moves:
        wanted[constraint.node] = constraint.at
    for node, at in wanted.items():
        keys[node] = (at, _MOVED, node)
        if at < node:
            # What lies between parameters and the launch moves with it.
            seen: set[int] = set()
            stack = [node]
            while stack:
                new = [p for p in preds[stack.pop()] if p not in seen and index.ops[p] != "placeholder"]
                seen.update(new)
                stack += new
            for pred in seen:
                keys[pred] = min(keys[pred], (at, _MOVED, pred))
    return tuple(sorted_by(preds, keys))


def _preds(index: GraphIndex) -> list[set[int]]:
    preds: list[set[int]] = [set(index.preds(node)) for node in range(len(index))]
    for wait, launch in index.wait_of.items():
        preds[wait].add(launch)
    if preds:
        used = set().union(*preds)
        preds[-1] |= {node for node in range(len(preds) - 1) if node not in used}
    return preds
