"""What every rank of a group receives, from what each of them sends. Plain tensors, no process groups.

    received("all_gather", calls)      # calls: the arguments of each rank's launch, by name, in group order

A sum is made rank after rank in the dtype of the tensors, so that merging launches changes no bit.

Limits: ``premul_sum`` and reductions of float8 are not there (nor are they on gloo).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.base.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commcc.graph.ops.collective_table import CollectiveOp

Tensor = torch.Tensor
#: The arguments of one rank's launch.
Call = dict[str, Any]

_PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


class DisagreementError(ValueError):
    """Ranks of one group whose launches do not fit together."""


def received(fact: CollectiveOp, calls: Sequence[Call]) -> list[list[Tensor]]:
    """For each rank the tensors that it receives: one, or one for each of a coalesced launch's inputs."""
    sent = [call[fact.tensor] if fact.coalesced else [call[fact.tensor]] for call in calls]
    if len({len(tensors) for tensors in sent}) > 1:
        raise DisagreementError("ranks send different numbers of tensors")
    size = calls[0].get("group_size", len(calls))
    if size != len(calls):
        raise DisagreementError(f"the launch is for {size} ranks, its group has {len(calls)}")
    columns = [_one(fact, calls, list(tensors)) for tensors in zip(*sent, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _one(fact: CollectiveOp, calls: Sequence[Call], tensors: list[Tensor]) -> list[Tensor]:
    """Results of one tensor of each rank."""
    if "gather_dim" in fact.arguments:
        # DTensor's change of the sharded dimension: everybody's piece along one, joined along the other.
        pieces = [tensor.chunk(len(tensors), calls[0]["shard_dim"]) for tensor in tensors]
        return [torch.cat([piece[rank] for piece in pieces], calls[0]["gather_dim"]) for rank in range(len(tensors))]
    if fact.kind is Kind.ALL_TO_ALL:
        return _exchanged(tensors, calls)
    shapes = {(tuple(tensor.shape), tensor.dtype) for tensor in tensors}
    if len(shapes) > 1:
        raise DisagreementError(
            f"ranks send different shapes: {' and '.join(str(list(s)) for s, _ in sorted(shapes, key=str))}"
        )
    if fact.kind is Kind.ALL_GATHER:
        whole = torch.cat([tensor.reshape(1) if not tensor.dim() else tensor for tensor in tensors])
        return [whole, *(whole.clone() for _ in tensors[1:])]
    if fact.kind is Kind.BROADCAST:
        return [tensors[calls[0]["src"]].clone() for _ in tensors]
    whole = _reduced(calls[0]["reduce_op"], tensors)
    if fact.kind is Kind.ALL_REDUCE:
        return [whole, *(whole.clone() for _ in tensors[1:])]
    if whole.shape[0] % len(tensors):
        raise DisagreementError(f"{whole.shape[0]} rows cannot be scattered to {len(tensors)} ranks")
    return [part.clone(memory_format=torch.contiguous_format) for part in whole.chunk(len(tensors))]


def _reduced(operation: str, tensors: list[Tensor]) -> Tensor:
    combine = _PAIRWISE.get(operation.lower())
    if combine is None:
        raise DisagreementError(f"reduction '{operation}' cannot be replayed")
    whole = tensors[0].clone(memory_format=torch.contiguous_format)
    for tensor in tensors[1:]:
        whole = combine(whole, tensor)
    return whole / len(tensors) if operation.lower() == "avg" else whole


def _exchanged(tensors: list[Tensor], calls: Sequence[Call]) -> list[Tensor]:
    """All-to-all along the first dimension; empty split sizes stand for equal shares."""
    ranks = range(len(tensors))
    leaving = [
        splits(call["input_split_sizes"], tensor.shape[0], len(tensors))
        for call, tensor in zip(calls, tensors, strict=True)
    ]
    pieces = [torch.split(tensor, sizes) for tensor, sizes in zip(tensors, leaving, strict=True)]
    results = []
    for rank in ranks:
        wanted = list(calls[rank]["output_split_sizes"])
        for other in ranks:
            if wanted and leaving[other][rank] != wanted[other]:
                raise DisagreementError(
                    f"number {other} of the group sends {leaving[other][rank]} rows to number {rank}, which expects"
                    f" {wanted[other]}"
                )
        results.append(torch.cat([pieces[other][rank] for other in ranks]))
    return results


def splits(given: Sequence[int], rows: int, ranks: int) -> list[int]:
    """Rows for each rank of an all-to-all: as given, or in equal shares. Raises :class:`DisagreementError`."""
    if not given:
        if rows % ranks:
            raise DisagreementError(f"{rows} rows cannot be split among {ranks} ranks")
        return [rows // ranks] * ranks
    if sum(given) != rows or len(given) != ranks or min(given) < 0:
        raise DisagreementError(f"split sizes {list(given)} are not those of {rows} rows for {ranks} ranks")
    return list(given)
