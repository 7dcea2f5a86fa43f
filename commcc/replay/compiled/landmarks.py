"""Launches, waits and large ops stay where the graph has them, whatever Inductor fuses around them.

    with torch._inductor.config.patch({**order_options(), **landmark_options()}): ...

A fused kernel stands where the first of its ops stood, and takes what the others wait for along. So each landmark is
made to depend on the one before it: a fusion that would move one is a cycle then, which Inductor refuses. Limits: it
is a private hook of Inductor, taken only where the job does not use it; kernels of Inductor's own may still move.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import commcc

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOOK = "_pre_fusion_custom_pass"


def landmark_options() -> Mapping[str, Any]:
    """Settings that keep landmarks in order; none where the job uses the hook, or this PyTorch has none."""
    import torch._inductor.config as inductor_config
    from torch._inductor import custom_graph_pass

    there = getattr(inductor_config, _HOOK, custom_graph_pass)
    # Those of commcc may be there for a moment only: a backward is compiled when it first runs.
    return {_HOOK: _hook()} if there in (None, _hook()) else {}


@cache
def _hook() -> Any:
    from torch._inductor import custom_graph_pass

    kind: Any = getattr(custom_graph_pass, "CustomSchedulerPass", custom_graph_pass.CustomGraphPass)

    class Landmarks(kind):  # type: ignore[misc]
        def __call__(self, nodes: list[Any]) -> list[Any]:
            return in_a_chain(nodes)

        def uuid(self) -> str:  # part of the key of compiled code
            return f"landmarks, commcc {commcc.__version__}"

    return Landmarks()


def in_a_chain(nodes: list[Any]) -> list[Any]:
    """The nodes of a scheduler in their order, each landmark dependent on the last one; none if none communicates."""
    from torch._inductor.dependencies import StarDep
    from torch._inductor.scheduler import ExternKernelSchedulerNode
    from torch._inductor.utils import is_collective, is_wait

    landmarks = [node for node in nodes if isinstance(node, ExternKernelSchedulerNode) or node.is_template()]
    if not any(is_collective(node.node) or is_wait(node.node) for node in landmarks):
        return nodes
    named = [(node, min(node.get_buffer_names())) for node in landmarks if node.get_buffer_names()]
    for (_, before), (node, _) in pairwise(named):
        # Not among what is read: nothing is kept in memory for it.
        node.unmet_dependencies.add(StarDep(before))
    _set_ancestors(nodes)
    return nodes


def _set_ancestors(nodes: list[Any]) -> None:
    """As the scheduler's own ``compute_ancestors``, which knows no groups: on a GPU what is put into one tensor, as the
    members of a bucket are, is by now one node for several ops.
    """
    known: dict[str, set[str]] = {}
    for node in nodes:
        parts = node.get_nodes()
        for part in parts:
            part.ancestors = _ancestors(part, known)
        if parts != [node]:
            node.ancestors = type(node.ancestors)().union(*(part.ancestors for part in parts))
        known.update((op, node.ancestors) for op in node.get_operation_names())


def _ancestors(node: Any, known: Mapping[str, set[str]]) -> Any:
    """Names of all ops that a node depends on, in the scheduler's kind of set."""
    own = node.get_operation_names()
    before = {node.scheduler.name_to_buf[dep.name].defining_op_name(): None for dep in node.unmet_dependencies}
    ops = [op for op in before if op not in own]
    return type(own)(ops).union(*(known[op] for op in ops))
