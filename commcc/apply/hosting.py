"""Makes copies to the host blocking or non-blocking.

b = _to_copy(y, device=cpu)   ->   b = _to_copy(y, device=cpu, non_blocking=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.graph.index import GraphIndex
    from commcc.plan import Plan


def set_blocking(nodes: Mapping[str, fx.Node], index: GraphIndex, plan: Plan) -> None:
    """Change copies in a graph that nobody else has yet; ``nodes`` by name."""
    for copy in plan.host_copies:
        node = nodes[index.names[copy.node]]
        if copy.node not in index.host_copies:
            raise InternalError(f"'{node.name}' is no copy from a device to the host", where="apply")
        kwargs = {name: value for name, value in node.kwargs.items() if name != "non_blocking"}
        node.kwargs = {**kwargs, "non_blocking": True} if copy.non_blocking else kwargs
