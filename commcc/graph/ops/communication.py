"""Which ops communicate: launches and waits that the table of collectives describes, and all that may besides.

Limits: an op of an unknown library is told by its name or by a group among its arguments. A false alarm costs
freedom, a miss costs the program.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from commcc.graph.ops import libraries
from commcc.graph.ops.collective_table import COLLECTIVES, WAIT
from commcc.graph.ops.effects import LOCAL_OPS
from commcc.graph.ops.names import argument, library_of, op_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from commcc.graph.ops.collective_table import CollectiveOp

#: Names of ops that say so: of collectives and messages, of exchanges of tokens, of products fused with collectives.
_SOUNDS_LIKE_IT = re.compile(
    r"all_?gather|reduce_?scatter|all_?reduce|all_?to_?all"
    r"|(^|_)(a2a|nccl|nvshmem|isend|irecv|send|recv|barrier|p2p|exchange)(_|$)"
    r"|^(dispatch|combine)(_|$)|(^|_)((ag|ar|rs)_gemm|gemm_(ag|ar|rs))(_|$)"
)
#: Names of libraries that do: of expert parallelism (``deepep``, ``hybridep``, ``mori_ep``), or named after what they
#: communicate with.
_LIBRARY_SOUNDS_LIKE_IT = re.compile(r"(^|_|deep|hybrid)ep$|nccl|nvshmem")
_GROUP_ARGUMENTS = frozenset({"group_name", "process_group"})


def collective_of(target: Any) -> CollectiveOp | None:
    """The table entry of a collective launch, None for anything else."""
    return COLLECTIVES.get(op_name(target))


def group_size_of(launch: fx.Node) -> int | None:
    """The number of ranks that a launch names, an all-to-all by the number of its split sizes; None without one."""
    fact = collective_of(launch.target)
    if fact is not None and fact.has_group_size:
        size = argument(launch, "group_size")
        return size if isinstance(size, int) else None
    splits = [argument(launch, name) for name in ("output_split_sizes", "input_split_sizes")]
    return next((len(sizes) for sizes in splits if isinstance(sizes, (list, tuple)) and sizes), None)


def is_wait(target: Any) -> bool:
    return op_name(target) == WAIT


def is_local(target: Any) -> bool:
    """Whether the op is one of PyTorch's that only compute: it never launches a collective."""
    return library_of(target) in libraries.LOCAL - {"higher_order", "operator"}


def sounds_like_communication(name: str, arguments: Iterable[str] = ()) -> bool:
    """Whether ``LIBRARY.OP`` communicates by the name of the library or the op, or by those of its arguments."""
    library, _, op = name.partition(".")
    if library in libraries.COMMUNICATING:
        return True
    if not _GROUP_ARGUMENTS.isdisjoint(arguments):
        return True
    called = _SOUNDS_LIKE_IT.search(op) or _LIBRARY_SOUNDS_LIKE_IT.search(library)
    return library not in libraries.LOCAL and called is not None


@lru_cache(maxsize=4096)
def is_unknown_communication(target: Any) -> bool:
    """Whether the op communicates in a way the table does not describe: nothing may move across it.

    Told by its library, by a group argument in its schema, or by its name and that of its library.
    """
    name = op_name(target)
    if name in COLLECTIVES or name == WAIT or name in LOCAL_OPS:
        return False
    schema = getattr(target, "_schema", None)
    return sounds_like_communication(name, () if schema is None else [argument.name for argument in schema.arguments])
