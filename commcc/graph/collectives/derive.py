"""Where a collective's data comes from and where it goes.

param-derived
    Every path backwards from the input reaches graph inputs through ops that need only that one
    input (casts, views, padding with constants), and there is exactly one such input. Where the graph says which of
    its inputs are parameters, also what several of them, or one and scales, are made into before it is gathered (a
    weight cast to float8, a weight with its norm), by ops that neither compute products nor communicate, but for
    gathers and the all-reduce of one number: the largest element of a weight in shards. That all-reduce is a *scale*.
    Where the graph does not say which inputs are parameters, so is what one of them and such a scale are made into, and
    what is made of one alone, of which a scale is gathered over the same group.
terminal-derived
    Every path forwards from the wait reaches graph outputs, or is written over graph inputs, through one-input
    ops. A second reduction on the way (HSDP: replicate and shard group, in either order), also one of a bucket
    (:mod:`commcc.graph.collectives.pieces`), and the addition of an earlier gradient are followed. So is a mean over
    ranks of what was computed, behind which no compute node comes: it is clipped, and parameters are updated by it.
    And so is any reduction behind which no compute node comes, if it leads to what is written over a graph input of as
    many elements: with the optimizer in the graph, a parameter or a moment of it. Where compute nodes do come behind,
    as of an optimizer that multiplies matrices or of a second step, see :mod:`commcc.graph.collectives.updates`. Last,
    so is what only scales such updates: the norm of a parameter, or of all gradients.
updated
    A gather behind which no compute node comes, and whose result is written over a graph input of as many elements: of
    a parameter that was updated in shards. Or one of the new value of a graph input, by one-input ops. Or one of what
    only updates of inputs are made of: the largest elements of a gradient, and where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.graph.collectives.pieces import REDUCTIONS, operands
from commcc.graph.ops.arithmetic import ADDITIONS
from commcc.graph.ops.constants import SOURCELESS
from commcc.graph.ops.views import GATHERING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.graph.collectives.pieces import Piece, Pieces
    from commcc.graph.index import GraphIndex


@dataclass(frozen=True)
class Source:
    """Result of walking back from a gather: the parameters found and the nodes in between."""

    inputs: tuple[int, ...]
    chain: tuple[int, ...]


def walk_back(
    index: GraphIndex, starts: tuple[int, ...], *, joining: bool = False, ends: Mapping[int, int] | None = None
) -> Source | None:
    """Graph inputs that ``starts`` are made of by one-input ops; None when anything else is met.

    joining: also look through ops that put several inputs together (an existing bucket). ends: nodes that stand for an
    input, with that input.
    """
    ends = ends or {}
    inputs: set[int] = set()
    chain: set[int] = set()
    stack, seen = list(starts), set(starts)
    while stack:
        node = stack.pop()
        op = index.ops[node]
        if op == "placeholder":
            inputs.add(node)
            continue
        if node in ends:
            inputs.add(ends[node])
            continue
        chain.add(node)
        if op in SOURCELESS:
            continue
        if not _passes_through(index, node, joining):
            return None
        fresh = [p for p in index.data_preds[node] if p not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return Source(tuple(sorted(inputs)), tuple(sorted(chain)))


def gathered_inputs(index: GraphIndex) -> Iterator[tuple[int, str]]:
    """Graph inputs that are gathered, or of which something is, by one-input ops alone, with the group."""
    for launch in index.launches.values():
        source = walk_back(index, launch.inputs) if launch.kind is Kind.ALL_GATHER else None
        if source is not None and len(source.inputs) == 1:
            yield source.inputs[0], launch.group


def made_of_inputs(index: GraphIndex, starts: tuple[int, ...]) -> Source | None:
    """Graph inputs that ``starts`` are made of by ops of any number of operands, of which none is a compute node,
    communicates, writes or does more than its result; None when one does. The reduction of a scale may be among them,
    and gathers, as of a parameter that is gathered over one group and then over another.
    """
    inputs: set[int] = set()
    chain: set[int] = set()
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node in inputs or node in chain:
            continue
        if index.ops[node] == "placeholder":
            inputs.add(node)
            continue
        does_more = index.compute[node] or node in index.stays or node in index.writes or node in index.host_syncs
        launch = index.wait_of.get(node, node)
        sends = launch in index.launches and index.launches[launch].kind is not Kind.ALL_GATHER
        if does_more or (sends and not reduces_scale(index, launch)):
            return None
        chain.add(node)
        stack.extend(index.data_preds[node])
    return Source(tuple(sorted(inputs)), tuple(sorted(chain)))


def reduces_scale(index: GraphIndex, launch: int) -> bool:
    """Whether a launch reduces one number, as the largest element of a parameter in shards, or a bucket of such."""
    facts = index.launches[launch]
    sent = [index.tensors[node] for node in facts.inputs]
    if facts.kind is not Kind.ALL_REDUCE or not all(tensor is not None and tensor.numel for tensor in sent):
        return False
    return sum(tensor.numel or 0 for tensor in sent if tensor is not None) <= launched(index, launch)


def launched(index: GraphIndex, launch: int) -> int:
    """How many collectives were merged into this one; 1 for a plain one."""
    return len(index.merged_from.get(launch, ())) or 1


def _passes_through(index: GraphIndex, node: int, joining: bool) -> bool:
    if index.compute[node] or node in index.writes:
        return False
    real = operands(index, node)
    joins = index.ops[node] in GATHERING or node in index.launches or index.ops[node] == "operator.getitem"
    return len(real) == 1 or (joining and joins)


@dataclass(frozen=True)
class Sink:
    """Result of walking forward from a reduction: output slots, and what lies in between.

    accumulates: it is added to an earlier gradient, or written over one that came in. mixed: other values reach some
    of the slots too, since a bucket's parts could not be told apart.
    """

    slots: tuple[int, ...]
    reductions: tuple[int, ...]
    accumulates: bool
    mixed: bool = False


def walk_forward(pieces: Pieces, starts: tuple[int, ...]) -> Sink | None:
    """Outputs that ``starts`` lead to by one-input ops; None when anything else uses them."""
    index = pieces.index
    output = len(index) - 1
    slots: set[int] = set()
    mixed = False
    stack: list[tuple[int, Piece | None]] = [(node, None) for node in starts]
    seen = set(stack)
    while stack:
        node, piece = stack.pop()
        own = pieces.own_part(piece, node) if piece is not None else None
        users = [u for u in index.users[node] if u != output] if own is None else own
        if own is None and len(users) < len(index.users[node]):
            slots.add(index.output_slots[node])
            mixed = mixed or piece is not None
        if not all(_leads_on(pieces, u, node) for u in users):
            return None
        steps = [pieces.step(u, node, piece if own is None else None) for u in users]
        mixed = mixed or any(lost for _, _, lost in steps)
        fresh = [(u, at) for u, at, _ in steps if (u, at) not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    between = sorted({node for node, _ in seen} - set(starts))
    accumulates = any(index.ops[n] in ADDITIONS for n in between) or any(
        index.ops[at] == "placeholder"
        for n in between
        for target in index.writes.get(n, ())
        for at in index.storages[target]
    )
    if not slots and not accumulates:
        return None
    return Sink(tuple(sorted(slots)), tuple(n for n in between if n in index.launches), accumulates, mixed)


def _leads_on(pieces: Pieces, user: int, value: int) -> bool:
    index = pieces.index
    if index.compute[user] or user in index.host_syncs:
        return False
    launch = index.launches.get(user)
    if launch is not None:
        return launch.kind in REDUCTIONS
    read = operands(index, user)
    if (len(read) == 1 and value in read) or pieces.joins(user):
        return True
    return index.ops[user] in ADDITIONS and all(_is_gradient(index, p) for p in index.data_preds[user] if p != value)


def fed_by_scatter(index: GraphIndex, launch: int) -> bool:
    """Whether one-input ops, and the concatenation of a bucket, lead from a reduce-scatter to this reduction, which may
    launch several tensors in one call.
    """
    stack, seen = [launch], {launch}
    while stack:
        node = stack.pop()
        if node != launch and len(operands(index, node)) != 1 and index.ops[node] not in GATHERING:
            continue
        fresh = [p for p in index.data_preds[node] if p not in seen]
        if any(p in index.launches and index.launches[p].kind is Kind.REDUCE_SCATTER for p in fresh):
            return True
        seen.update(fresh)
        stack.extend(p for p in fresh if p not in index.launches)
    return False


def _is_gradient(index: GraphIndex, node: int) -> bool:
    """Whether ``node`` is an earlier gradient: a graph input, or another reduction's result."""
    stack, seen = [node], {node}
    while stack:
        at = stack.pop()
        if index.ops[at] == "placeholder":
            continue
        if at in index.wait_of:
            if index.launches[index.wait_of[at]].kind not in REDUCTIONS:
                return False
            continue
        preds = index.data_preds[at]
        if index.compute[at] or not (len(preds) == 1 or index.ops[at] in ADDITIONS):
            return False
        fresh = [p for p in preds if p not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return True
