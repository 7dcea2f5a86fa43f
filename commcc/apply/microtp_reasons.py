"""Why PyTorch's micro-pipeline pass leaves a collective alone: its own conditions, asked of its own functions.

    str(of_gather(pipeline, match))     # "no matmul takes what it gathers as its left operand (it goes to view)"

The pass itself says nothing, or logs; None means that none of its conditions stands against it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from commcc.base.reasons import Reason
from commcc.graph import ops

if TYPE_CHECKING:
    from torch import fx

#: Gathers of the last dimension are cut along it; the pass wants pieces of this size at least.
SMALLEST_LAST = 1024
_SCALED = Reason.of("tp_scaled")


def of_gather(pipeline: Any, match: Any) -> Reason | None:
    """Why an all-gather is not fused with the matmuls behind it; None when it can be."""
    shard = match.shard_node.meta["val"]
    last = pipeline._is_last_dim(shard, match.gather_dim)
    if last and shard.shape[-1] < SMALLEST_LAST:
        return Reason.of("tp_small_shard", shard=shard.shape[-1], smallest=SMALLEST_LAST)
    matmuls = pipeline._find_consumer_matmuls(match.res_node)
    if not matmuls:
        return Reason.of("tp_no_matmul", users=_users(match.res_node))
    free = [m for m in matmuls if match.res_node not in m.arg_ancestor_nodes]
    if not free:
        return Reason.of("tp_other_operand")
    if len({type(m) for m in free}) > 1:
        return Reason.of("tp_both_kinds")
    if last and len(match.res_node.users) > len(free):
        return Reason.of("tp_last_dimension")
    return _SCALED if type(free[0]) is not pipeline._Matmul else None


def of_scatter(pipeline: Any, match: Any) -> Reason | None:
    """Why a reduce-scatter is not fused with the matmul before it; None when it can be."""
    matmul = _producer(pipeline, match.input_node)
    if matmul is None:
        return Reason.of("tp_no_product", input=_name(match.input_node))
    inside = getattr(match.match, "nodes", match.match)
    if len(match.input_node.users) != 1 and any(user not in inside for user in match.input_node.users):
        return Reason.of("tp_other_users")
    if match.wait_tensor_node in matmul.arg_ancestor_nodes:
        return Reason.of("tp_operand")
    return _SCALED if type(matmul) is not pipeline._Matmul else None


def _producer(pipeline: Any, node: fx.Node) -> Any:
    """The pass's own search, which trips over inputs of the graph."""
    if any(not hasattr(operand, "target") for operand in node.args[:1]):
        return None
    return pipeline._find_producer_matmul(node)


def _users(node: fx.Node) -> str:
    counts = Counter(_name(user) for user in node.users)
    return ", ".join(name if number == 1 else f"{number} x {name}" for name, number in counts.items()) or "nothing"


def _name(node: fx.Node) -> str:
    if node.op != "call_function":
        return "the output" if node.op == "output" else "an input"
    return ops.op_name(node.target).rpartition(".")[2].replace("reshape", "view")
