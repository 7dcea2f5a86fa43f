"""What one rank receives if all others of its group send what it sends itself.

::

    received = receive(fact, call, Peers(size=8, place=0))    # call: the arguments of a launch, by name
    received.results                                          # tensors of the right shape, not yet filled
    received.fill()                                           # now they are; may run later and elsewhere

    all-gather         its own shard, once for each rank
    reduce-scatter     its own part: times the ranks (sum), to that power (product), as it is (avg, max, min)
    all-reduce         the same, of everything
    all-to-all         its own chunk for itself, once for each rank; where split sizes want more or fewer rows the
                       chunk's rows are repeated or left out, and where it has none there are zeros
    broadcast          what it sends

Every element of a result depends on the element sent alone, so merging and splitting launches change no bit, and an
exchange of token counts fits the exchange of tokens after it.

Limits: the numbers are not those of a real run, in which every rank sends something else. A sum is one product here,
so that the order in which a real one is made leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.terms import Kind
from commcc.replay.values import storage
from commcc.replay.virtual import DisagreementError, splits

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.graph.ops.collective_table import CollectiveOp

Tensor = torch.Tensor
#: A result, and what writes it.
Filled = tuple[Tensor, "Callable[[], object]"]

#: Reductions of what is the same everywhere that give just that.
_SAME = frozenset({"avg", "max", "min", "band", "bor"})
REDUCTIONS = frozenset({"sum", "product", "bxor"}) | _SAME


@dataclass(frozen=True)
class Peers:
    """A group, seen by one rank. place: its own, counted from 0."""

    size: int
    place: int


@dataclass(frozen=True)
class Receive:
    """Results of a launch, and what writes them. sent: the tensors that leave. Everything is kept alive by it."""

    sent: list[Tensor]
    results: list[Tensor]
    fill: Callable[[], None]

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes that leave and that arrive."""
        return sum(tensor.nbytes for tensor in self.sent), sum(tensor.nbytes for tensor in self.results)


def receive(fact: CollectiveOp, call: dict[str, Any], peers: Peers) -> Receive:
    """Results of one launch: new ones, or those that the launch names.

    Raises :class:`DisagreementError` or what PyTorch raises where shapes do not fit.
    """
    size = call.get("group_size", peers.size)
    if size != peers.size:
        raise DisagreementError(f"the launch is for {size} ranks, its group has {peers.size}")
    sent = list(call[fact.tensor]) if fact.coalesced else [call[fact.tensor]]
    named = call[fact.out] if fact.out is not None else None
    given = [None] * len(sent) if named is None else list(named) if fact.coalesced else [named]
    pairs = [_one(fact, call, peers, tensor, out) for tensor, out in zip(sent, given, strict=True)]

    def fill() -> None:
        for _, write in pairs:
            write()

    return Receive(sent, [result for result, _ in pairs], fill)


def _one(fact: CollectiveOp, call: dict[str, Any], peers: Peers, tensor: Tensor, out: Tensor | None) -> Filled:
    if "gather_dim" in fact.arguments:
        return _redistributed(tensor, call["gather_dim"], call["shard_dim"], peers)
    if fact.kind is Kind.ALL_TO_ALL:
        return _exchanged(tensor, call, peers)
    if fact.kind is Kind.ALL_GATHER:
        return _gathered(tensor, out, peers)
    if fact.kind is Kind.REDUCE_SCATTER:
        rows = tensor.shape[0]
        if rows % peers.size:
            raise DisagreementError(f"{rows} rows cannot be scattered to {peers.size} ranks")
        part = tensor.narrow(0, peers.place * (rows // peers.size), rows // peers.size)
        return _reduced(part, out, call["reduce_op"].lower(), peers.size)
    return _reduced(tensor, out, call["reduce_op"].lower() if fact.has_reduction else "avg", peers.size)


def _gathered(tensor: Tensor, out: Tensor | None, peers: Peers) -> Filled:
    rows = tensor.shape if tensor.dim() else torch.Size([1])
    result = tensor.new_empty([peers.size * rows[0], *rows[1:]]) if out is None else out
    whole = result.view(peers.size, *tensor.shape)
    if storage(whole) != storage(tensor):
        return result, partial(whole.copy_, tensor)
    # What is sent lies in the result, at its own place: it goes to the others only.
    before, after = whole[: peers.place], whole[peers.place + 1 :]

    def fill() -> None:
        before.copy_(tensor)
        after.copy_(tensor)

    return result, fill


def _reduced(part: Tensor, out: Tensor | None, operation: str, ranks: int) -> Filled:
    """``part`` reduced with ``ranks - 1`` others that are the same."""
    if operation not in REDUCTIONS:
        raise DisagreementError(f"reduction '{operation}' cannot be replayed")
    result = torch.empty_like(part, memory_format=torch.contiguous_format) if out is None else out
    # Written flat or not: its elements in order.
    target = result if result.shape == part.shape else result.view(part.shape)
    if part.dtype == torch.bool and operation in ("sum", "product"):
        operation = "bor"
    if operation == "bxor" and ranks % 2 == 0:
        return result, target.zero_
    if operation == "sum":
        return result, partial(torch.mul, part, ranks, out=target)
    if operation == "product":
        return result, partial(torch.pow, part, ranks, out=target)
    if target.data_ptr() == part.data_ptr():
        return result, lambda: None  # an in-place op: what is received is there already
    return result, partial(target.copy_, part)


def _exchanged(tensor: Tensor, call: dict[str, Any], peers: Peers) -> Filled:
    leaving = splits(call["input_split_sizes"], tensor.shape[0], peers.size)
    coming = list(call["output_split_sizes"]) or [leaving[peers.place]] * peers.size
    if len(coming) != peers.size or min(coming) < 0:
        raise DisagreementError(f"split sizes {coming} are not those of {peers.size} ranks")
    result = tensor.new_empty([sum(coming), *tensor.shape[1:]])
    chunk = tensor.narrow(0, sum(leaving[: peers.place]), leaving[peers.place])
    rows = chunk.shape[0]
    if not rows or not result.numel():
        return result, result.zero_
    if set(coming) == {rows}:
        return result, partial(result.view(peers.size, *chunk.shape).copy_, chunk)
    which = _repeated(rows, tuple(coming), tensor.device)
    # PyTorch can only copy numbers of one byte (float8): they have no kernel that picks rows.
    opaque = tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point
    source, target = (part.view(torch.uint8) if opaque else part for part in (chunk, result))
    return result, partial(torch.index_select, source, 0, which, out=target)


# Cached, so that repetitions do not pay for what a real exchange does not do.
@lru_cache(maxsize=1024)
def _repeated(rows: int, coming: tuple[int, ...], device: torch.device) -> Tensor:
    """Which rows of a chunk stand for what each rank sends: 0 1 2 0 1 for five of three."""
    longest = torch.arange(max(coming)) % rows
    return torch.cat([longest[:count] for count in coming]).to(device)


def _redistributed(tensor: Tensor, gather_dim: int, shard_dim: int, peers: Peers) -> Filled:
    """DTensor's change of the sharded dimension: its own piece along one, repeated along the other."""
    piece = tensor.chunk(peers.size, shard_dim)[peers.place]
    shape = list(piece.shape)
    shape[gather_dim] *= peers.size
    result = tensor.new_empty(shape)
    spread = [*piece.shape]
    spread.insert(gather_dim % piece.dim(), peers.size)
    return result, partial(result.view(spread).copy_, piece.unsqueeze(gather_dim % piece.dim()))
