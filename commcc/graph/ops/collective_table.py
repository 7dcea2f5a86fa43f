"""Argument layout of every collective op; the part of the op table that :mod:`commcc.graph.ops` looks up.

    COLLECTIVES["_c10d_functional.all_reduce"].arguments     # ("input", "reduce_op", "group_name")

Limits: an op that communicates and is not here is a barrier to every pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from commcc.base.terms import Kind

WAIT = "_c10d_functional.wait_tensor"
EXCHANGE = "_c10d_functional.all_to_all_single"
ALL_REDUCE = "_c10d_functional.all_reduce"
#: What the name of an op ends with that launches several tensors in one call.
COALESCED = "_coalesced"


@dataclass(frozen=True)
class CollectiveOp:
    """Argument layout of one collective op.

    arguments: names of all arguments, positional order; ``out`` is keyword-only where it is last.
    tensor: name of the argument that holds the tensor (a list of them when ``coalesced``).
    out: name of the argument the result is written to, None when the op allocates it.
    asynchronous: the result needs a ``wait_tensor`` before it is read.
    """

    kind: Kind
    arguments: tuple[str, ...]
    tensor: str
    coalesced: bool = False
    out: str | None = None
    asynchronous: bool = True

    @property
    def has_group_size(self) -> bool:
        return "group_size" in self.arguments

    @property
    def has_reduction(self) -> bool:
        return "reduce_op" in self.arguments


_AG = ("input", "group_size", "group_name")
_RS = ("input", "reduce_op", "group_size", "group_name")
_AR = ("input", "reduce_op", "group_name")
_A2A = ("input", "output_split_sizes", "input_split_sizes", "group_name")
_BC = ("input", "src", "group_name")


def _many(arguments: tuple[str, ...]) -> tuple[str, ...]:
    return ("inputs", *arguments[1:])


COLLECTIVES: dict[str, CollectiveOp] = {
    "_c10d_functional.all_gather_into_tensor": CollectiveOp(Kind.ALL_GATHER, _AG, "input"),
    "_c10d_functional.all_gather_into_tensor_out": CollectiveOp(Kind.ALL_GATHER, (*_AG, "out"), "input", out="out"),
    "_c10d_functional.all_gather_into_tensor_coalesced": CollectiveOp(
        Kind.ALL_GATHER, _many(_AG), "inputs", coalesced=True
    ),
    "_c10d_functional.reduce_scatter_tensor": CollectiveOp(Kind.REDUCE_SCATTER, _RS, "input"),
    "_c10d_functional.reduce_scatter_tensor_out": CollectiveOp(Kind.REDUCE_SCATTER, (*_RS, "out"), "input", out="out"),
    "_c10d_functional.reduce_scatter_tensor_coalesced": CollectiveOp(
        Kind.REDUCE_SCATTER, _many(_RS), "inputs", coalesced=True
    ),
    "_c10d_functional.all_reduce": CollectiveOp(Kind.ALL_REDUCE, _AR, "input"),
    "_c10d_functional.all_reduce_": CollectiveOp(Kind.ALL_REDUCE, _AR, "input", out="input"),
    "_c10d_functional.all_reduce_coalesced": CollectiveOp(Kind.ALL_REDUCE, _many(_AR), "inputs", coalesced=True),
    "_c10d_functional.all_reduce_coalesced_": CollectiveOp(
        Kind.ALL_REDUCE, _many(_AR), "inputs", coalesced=True, out="inputs"
    ),
    EXCHANGE: CollectiveOp(Kind.ALL_TO_ALL, _A2A, "input"),
    "_c10d_functional.broadcast": CollectiveOp(Kind.BROADCAST, _BC, "input"),
    "_c10d_functional.broadcast_": CollectiveOp(Kind.BROADCAST, _BC, "input", out="input"),
    "_dtensor.shard_dim_alltoall": CollectiveOp(
        Kind.ALL_TO_ALL, ("input", "gather_dim", "shard_dim", "group_name"), "input", asynchronous=False
    ),
}
#: Libraries of those.
LAUNCHING = frozenset(op.partition(".")[0] for op in COLLECTIVES)
