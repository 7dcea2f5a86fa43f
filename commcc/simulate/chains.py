"""The bound by serial collectives, see :mod:`commcc.simulate.bound`.

Who comes before whom is kept in one bit for each candidate collective, a few hundred bits a node;
sums over all nodes with a bit set go through numpy, a block of nodes at a time, so that memory grows
with the nodes and not with nodes times collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.index import GraphIndex

_BLOCK = 4096
#: Candidates looked at, longest first; what is left out only makes the bound weaker.
MAX_CANDIDATES = 1024


def serial_bound(index: GraphIndex, compute: Sequence[int], transfer: Sequence[int]) -> int:
    """Durations of a chain of collectives and of all compute ordered with each of them."""
    ranked = sorted((i for i in index.launches if transfer[i]), key=lambda i: (-transfer[i], i))
    candidates = sorted(ranked[:MAX_CANDIDATES])
    if not candidates:
        return 0
    before, after = _ancestry(index, candidates)
    work = [i for i, ns in enumerate(compute) if ns and i not in index.launches]
    loose = _loose_compute(work, compute, before, after, len(candidates))
    chosen = _chain(index, candidates, transfer, loose, before)
    best = 0
    while chosen:
        best = max(best, _total(chosen, candidates, (work, compute, transfer), (before, after)))
        # Those that let most compute run beside them for what they bring go first, an eighth at a time.
        ranked = sorted(chosen, key=lambda k: (transfer[candidates[k]] - loose[k], k))
        chosen = sorted(ranked[max(1, len(ranked) // 8) :])
    return best


def _ancestry(index: GraphIndex, candidates: list[int]) -> tuple[list[int], list[int]]:
    """For every node a bit set of candidates whose transfer is over before it, and of those launched after it.

    before[node]: the collective's wait is an ancestor of the node (or the node itself). after[node]:
    the node is an ancestor of its launch, or the launch itself.
    """
    count = len(index)
    bit = {launch: 1 << k for k, launch in enumerate(candidates)}
    before, after = [0] * count, [0] * count
    for node in range(count):
        found = bit.get(index.wait_of.get(node, -1), 0)
        for p in index.preds(node):
            found |= before[p]
            launch = index.launches.get(p)
            if launch is not None and not launch.asynchronous:
                found |= bit.get(p, 0)
        before[node] = found
    for node in range(count - 1, -1, -1):
        after[node] |= bit.get(node, 0)
        for p in index.preds(node):
            after[p] |= after[node]
    return before, after


def _loose_compute(
    work: list[int], compute: Sequence[int], before: list[int], after: list[int], count: int
) -> list[int]:
    """For every candidate, the time of compute that is ordered with it neither way."""
    import numpy as np

    width = (count + 7) // 8
    loose = np.zeros(width * 8, dtype=np.int64)
    for begin in range(0, len(work), _BLOCK):
        block = work[begin : begin + _BLOCK]
        packed = b"".join((before[i] | after[i]).to_bytes(width, "little") for i in block)
        bits = np.unpackbits(
            np.frombuffer(packed, dtype=np.uint8).reshape(len(block), width), axis=1, bitorder="little"
        )
        weights = np.array([compute[i] for i in block], dtype=np.int64)
        loose += weights @ (1 - bits.astype(np.int64))
    return [int(ns) for ns in loose[:count]]


def _chain(
    index: GraphIndex, candidates: list[int], transfer: Sequence[int], loose: list[int], before: list[int]
) -> list[int]:
    """The chain with the largest sum of (time - independent compute), members with a gain only.

    ``b`` may follow ``a`` when a's transfer is over before b's launch in every order.
    """
    gain = [transfer[launch] - loose[k] for k, launch in enumerate(candidates)]
    useful = [k for k, value in enumerate(gain) if value > 0]
    best: dict[int, tuple[int, int | None]] = {}
    for position, k in enumerate(useful):
        ahead = before[candidates[k]]
        options = [(best[j][0], j) for j in useful[:position] if ahead >> j & 1]
        total, previous = max(options, default=(0, -1))
        best[k] = (total + gain[k], previous if previous >= 0 else None)
    if not best:
        return [max(range(len(candidates)), key=lambda k: (gain[k], -k))]
    chain: list[int] = []
    node: int | None = max(best, key=lambda k: (best[k][0], -k))
    while node is not None:
        chain.append(node)
        node = best[node][1]
    return chain[::-1]


def _total(
    chosen: list[int],
    candidates: list[int],
    durations: tuple[list[int], Sequence[int], Sequence[int]],
    ancestry: tuple[list[int], list[int]],
) -> int:
    """The bound of one chain."""
    work, compute, transfer = durations
    before, after = ancestry
    mask = sum(1 << k for k in chosen)
    ordered = sum(compute[i] for i in work if (before[i] | after[i]) & mask == mask)
    return ordered + sum(transfer[candidates[k]] for k in chosen)
