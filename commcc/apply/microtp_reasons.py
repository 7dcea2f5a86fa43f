"""Why PyTorch's micro-pipeline pass leaves a collective alone: its own conditions, asked of its own functions.

    of_gather(pipeline, match)     # "no matmul takes what it gathers as its left operand (it goes to view)"

The pass itself says nothing, or logs; an empty text means that none of its conditions stands against it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from commcc.graph import ops

if TYPE_CHECKING:
    from torch import fx

#: Gathers of the last dimension are cut along it; the pass wants pieces of this size at least.
SMALLEST_LAST = 1024
_SCALED = "its matmul is scaled, which commcc cannot verify"


def of_gather(pipeline: Any, match: Any) -> str:
    """Why an all-gather is not fused with the matmuls behind it; empty when it can be."""
    shard = match.shard_node.meta["val"]
    last = pipeline._is_last_dim(shard, match.gather_dim)
    if last and shard.shape[-1] < SMALLEST_LAST:
        return f"gathers the last dimension, and its shard of {shard.shape[-1]} is smaller than {SMALLEST_LAST}"
    matmuls = pipeline._find_consumer_matmuls(match.res_node)
    if not matmuls:
        return f"no matmul takes what it gathers as its left operand (it goes to {_users(match.res_node)})"
    free = [m for m in matmuls if match.res_node not in m.arg_ancestor_nodes]
    if not free:
        return "the other operand of its matmul depends on what it gathers"
    if len({type(m) for m in free}) > 1:
        return "both plain and scaled matmuls take what it gathers"
    if last and len(match.res_node.users) > len(free):
        return "gathers the last dimension, and not only matmuls use it"
    return _SCALED if type(free[0]) is not pipeline._Matmul else ""


def of_scatter(pipeline: Any, match: Any) -> str:
    """Why a reduce-scatter is not fused with the matmul before it; empty when it can be."""
    matmul = _producer(pipeline, match.input_node)
    if matmul is None:
        return f"what it reduces is no result of a matmul ({_name(match.input_node)})"
    inside = getattr(match.match, "nodes", match.match)
    if len(match.input_node.users) != 1 and any(user not in inside for user in match.input_node.users):
        return "the result of its matmul has other users too"
    if match.wait_tensor_node in matmul.arg_ancestor_nodes:
        return "an operand of its matmul depends on what it scatters"
    return _SCALED if type(matmul) is not pipeline._Matmul else ""


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
