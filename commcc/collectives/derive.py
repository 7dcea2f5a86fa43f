"""Where a collective's data comes from and where it goes.

param-derived
    Every path backwards from the input reaches graph inputs through ops that need only that one
    input (casts, views, padding with constants), and there is exactly one such input.
terminal-derived
    Every path forwards from the wait reaches graph outputs through one-input ops. A second
    reduction on the way (HSDP: replicate and shard group, in either order) and the addition of an
    earlier gradient are followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.terms import Kind

if TYPE_CHECKING:
    from commcc.index import GraphIndex

_REDUCTIONS = (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
_ADDITIONS = frozenset({"aten.add", "aten.add_", "aten._foreach_add"})
_CONSTANTS = frozenset(
    f"aten.{n}" for n in ("full", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
) | {"aten.scalar_tensor", "aten.arange", "get_attr"}
_GATHERING = frozenset({"aten.cat", "aten.stack"})


@dataclass(frozen=True)
class Source:
    """Result of walking back from a gather: the parameters found and the nodes in between."""

    inputs: tuple[int, ...]
    chain: tuple[int, ...]


def walk_back(index: GraphIndex, starts: tuple[int, ...], *, joining: bool = False) -> Source | None:
    """Graph inputs that ``starts`` are made of by one-input ops; None when anything else is met.

    joining: also look through ops that put several inputs together (an existing bucket).
    """
    inputs: set[int] = set()
    chain: set[int] = set()
    stack, seen = list(starts), set(starts)
    while stack:
        node = stack.pop()
        op = index.ops[node]
        if op == "placeholder":
            inputs.add(node)
            continue
        chain.add(node)
        if op in _CONSTANTS:
            continue
        if not _passes_through(index, node, joining):
            return None
        fresh = [p for p in index.data_preds[node] if p not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return Source(tuple(sorted(inputs)), tuple(sorted(chain)))


def _passes_through(index: GraphIndex, node: int, joining: bool) -> bool:
    if index.compute[node] or node in index.writes:
        return False
    real = [p for p in index.data_preds[node] if index.ops[p] not in _CONSTANTS]
    joins = index.ops[node] in _GATHERING or node in index.launches or index.ops[node] == "operator.getitem"
    return len(real) == 1 or (joining and joins)


@dataclass(frozen=True)
class Sink:
    """Result of walking forward from a reduction: output slots, and what lies in between."""

    slots: tuple[int, ...]
    reductions: tuple[int, ...]
    accumulates: bool


def walk_forward(index: GraphIndex, starts: tuple[int, ...]) -> Sink | None:
    """Outputs that ``starts`` lead to by one-input ops; None when anything else uses them."""
    slots: set[int] = set()
    output = len(index) - 1
    stack, seen = list(starts), set(starts)
    while stack:
        node = stack.pop()
        users = [u for u in index.users[node] if u != output]
        if len(users) < len(index.users[node]):
            slots.add(index.output_slots[node])
        if not all(_leads_on(index, u, node) for u in users):
            return None
        fresh = [u for u in users if u not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    between = sorted(seen - set(starts))
    accumulates = any(index.ops[n] in _ADDITIONS for n in between)
    if not slots and not accumulates:
        return None
    return Sink(tuple(sorted(slots)), tuple(n for n in between if n in index.launches), accumulates)


def _leads_on(index: GraphIndex, user: int, value: int) -> bool:
    if index.compute[user] or user in index.host_syncs:
        return False
    launch = index.launches.get(user)
    if launch is not None:
        return launch.kind in _REDUCTIONS
    if len([p for p in index.data_preds[user] if index.ops[p] not in _CONSTANTS]) == 1:
        return True
    return index.ops[user] in _ADDITIONS and all(_is_gradient(index, p) for p in index.data_preds[user] if p != value)


def _is_gradient(index: GraphIndex, node: int) -> bool:
    """Whether ``node`` is an earlier gradient: a graph input, or another reduction's result."""
    stack, seen = [node], {node}
    while stack:
        at = stack.pop()
        if index.ops[at] == "placeholder":
            continue
        if at in index.wait_of:
            if index.launches[index.wait_of[at]].kind not in _REDUCTIONS:
                return False
            continue
        preds = index.data_preds[at]
        if index.compute[at] or not (len(preds) == 1 or index.ops[at] in _ADDITIONS):
            return False
        fresh = [p for p in preds if p not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return True
