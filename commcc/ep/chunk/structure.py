"""Modules that exchange tokens, told by the structure of a graph that has no module paths at all.

    h ──► norm ──► x ──► router ──► counts ──┐
                   ├───► rows ───► dispatch ► experts ► combine ─┐
                   └───► shared expert ──────────────────────────┴─► y ──► h + y

Everything that goes into the exchanges goes through ``x``, and all that comes out of ``x`` goes through ``y``: what
lies between is the module. In the forward pass alone: its gradients are told by what they read of it
(:mod:`commcc.ep.chunk.body`).

Limits: where something leaves along with ``y``, a loss of the router for one, ``y`` lies far behind, and there is one
large module, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.sequences import closure
from commcc.base.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commcc.graph.annotations import Annotation
    from commcc.graph.index import GraphIndex

#: The name of such a module, with its number.
NAME = "exchanges"


def told_by_exchanges(index: GraphIndex, notes: Sequence[Annotation], data: Sequence[bool]) -> dict[int, str]:
    """The module of each forward node: ``exchanges.0``, ``exchanges.1``, ..., and ``outside`` where it is in none.

    Nothing where no exchange tells a module.
    """
    size = len(index)
    forward = [data[n] and not notes[n].backward and index.ops[n] != "output" for n in range(size)]
    before = [[p for p in index.data_preds[n] if forward[p]] if forward[n] else [] for n in range(size)]
    after = [[u for u in index.users[n] if forward[u]] if forward[n] else [] for n in range(size)]
    outputs = {node for node in index.outputs if node is not None}
    above = _dominators(range(size), lambda n: forward[n], before, lambda n: index.ops[n] == "placeholder")
    # What nothing is made of in the forward pass, a counter for one, keeps nothing from being the way out.
    used = closure(before, (n for n in outputs if forward[n]))
    ends = [[u for u in after[n] if u in used] for n in range(size)]
    below = _dominators(range(size - 1, -1, -1), lambda n: n in used, ends, lambda n: n in outputs)
    modules: dict[int, str] = {}
    for launch, facts in sorted(index.launches.items()):
        rows = facts.kind is Kind.ALL_TO_ALL and not notes[launch].count_exchange
        if not rows or not forward[launch] or launch in modules:
            continue
        inside = _between(index, launch, above, below, after)
        number = len(set(modules.values()))
        modules.update(dict.fromkeys(inside - modules.keys(), f"{NAME}.{number}"))
    outside = [n for n in range(size) if index.ops[n] not in ("placeholder", "output") and not notes[n].backward]
    return {**dict.fromkeys(outside, "outside"), **modules} if modules else {}


def _between(
    index: GraphIndex, launch: int, above: dict[int, int], below: dict[int, int], after: list[list[int]]
) -> frozenset[int]:
    """What lies between the way in and the way out of an exchange; nothing where there is no such way."""
    node, behind = launch, closure(after, [launch])
    while (node := above.get(node, -1)) >= 0:
        tensor = index.tensors[node]
        # Tokens come in as rows of numbers, not as ids.
        if index.ops[node] == "placeholder" or tensor is None or len(tensor.shape) < 2 or "float" not in tensor.dtype:
            continue
        way_out = below.get(node, -1)
        while way_out >= 0 and not (way_out in behind and _is_wide(index, way_out)):
            way_out = below.get(way_out, -1)
        if way_out >= 0:
            return closure(after, [node]) - closure(after, [way_out]) - {node} | {way_out}
    return frozenset()


def _is_wide(index: GraphIndex, node: int) -> bool:
    tensor = index.tensors[node]
    return tensor is not None and len(tensor.shape) > 1


def _dominators(
    order: Sequence[int], inside: Callable[[int], bool], before: list[list[int]], begins: Callable[[int], bool]
) -> dict[int, int]:
    """For each node the nearest one that every way to it goes through; -1 stands before all that begins."""
    nearest: dict[int, int] = {}
    depth = {-1: 0}
    for node in (n for n in order if inside(n)):
        ways = [-1] if begins(node) else []
        common: int | None = None
        for pred in (*ways, *(p for p in before[node] if p in depth)):
            common = pred if common is None else _meet(common, pred, nearest, depth)
        if common is not None:
            nearest[node], depth[node] = common, depth[common] + 1
    return nearest


def _meet(one: int, other: int, nearest: dict[int, int], depth: dict[int, int]) -> int:
    while one != other:
        if depth[one] < depth[other]:
            one, other = other, one
        one = nearest[one]
    return one
