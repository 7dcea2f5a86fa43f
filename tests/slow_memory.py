"""Live bytes, told anew at every position by asking each buffer whether anybody still needs it.

Quadratic, and without anything that :mod:`commcc.graph.memory` has; reads the index's buffers and edges.
"""

from __future__ import annotations


def slow_live_bytes(index, order) -> list[int]:
    order = list(order)
    estimates = index.estimates
    touches = [_touched(index, node) for node in order]
    made_by = [set(estimates.buffers[node]) for node in order]
    live = []
    for position in range(len(order)):
        total = 0
        for buffer in range(len(estimates.buffer_bytes)):
            if _is_live(index, order, (touches, made_by), buffer, position):
                before, after = (_size(index, order[:end], buffer) for end in (position, position + 1))
                total += max(before, after)
        live.append(total)
    return live


def _touched(index, node) -> set[int]:
    """Buffers of the node's result and of everything it reads."""
    return {b for near in (node, *index.data_preds[node]) for b in index.estimates.buffers[near]}


def _is_live(index, order, facts, buffer, position) -> bool:
    touches, made_by = facts
    if _is_input(index, buffer):
        return True
    if not any(buffer in made for made in made_by[: position + 1]):
        return False
    if any(buffer in touched for touched in touches[position:]):
        return True
    if any(buffer in index.estimates.buffers[node] for node in index.outputs if node is not None):
        return True
    launched, to_come = set(order[: position + 1]), set(order[position:])
    return any(
        node in launched and buffer in _touched(index, node) and (not facts.waits or to_come & set(facts.waits))
        for node, facts in index.launches.items()
        if facts.asynchronous
    )


def _is_input(index, buffer) -> bool:
    return any(
        buffer in index.estimates.buffers[node]
        for node, op in enumerate(index.ops)
        if op in ("placeholder", "get_attr")
    )


def _size(index, done, buffer) -> int:
    """Bytes of the buffer once the nodes in ``done`` have run."""
    full = index.estimates.buffer_bytes[buffer]
    resizes = [
        (node, new)
        for node, new in index.estimates.resizes.items()
        if full and any(buffer in index.estimates.buffers[target] for target in index.writes.get(node, ()))
    ]
    so_far = [new for node in done for by, new in resizes if by == node]
    if so_far:
        return so_far[-1]
    empty = _is_input(index, buffer) and resizes and min(resizes)[1] >= full
    return 0 if empty else full
