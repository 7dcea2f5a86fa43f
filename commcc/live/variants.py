"""Graphs of one function for inputs of other sizes, which launched the same collectives and no longer do.

    variants = Variants()
    variants.other(1, before, after, trains=True)      # None
    variants.other(2, before, after, trains=True)      # 1, where the two launched the same, and now do not

Parameters have the same sizes whatever a batch has: without commcc a rank may run the graph for 8 rows while another
runs that for 12. Once they are rewritten differently, or one of them only, it may not: which is not seen where ranks
compare, since each of them has made the same of both. Limits: graphs are taken for those of one function where they
call the same ops in the same order, sizes aside.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from commcc.graph.ops import argument, collective_of, op_name

if TYPE_CHECKING:
    from commcc.graph.program import Program


@dataclass
class Variants:
    """Of one process. seen: for each function with its launches the number of its first graph, and what that launches
    now; as hashes, since jobs have large graphs.
    """

    seen: dict[tuple[bool, str, str], tuple[int, str]] = field(default_factory=dict)

    def other(self, number: int, before: Program, after: Program, *, trains: bool) -> int | None:
        """Number of an earlier graph that this one may no longer run beside; None for the first, and those like it.

        trains: whether a backward comes with it; an evaluation is not run beside a step that trains.
        """
        launches = _launches(before)
        if not launches:
            return None
        now = _hash(_launches(after))
        first, then = self.seen.setdefault((trains, _hash(launches), _hash(_calls(before))), (number, now))
        return first if then != now else None


def _launches(program: Program) -> list[str]:
    """Op, group and result of each, in order."""
    groups: dict[Any, int] = {}
    told = []
    for node in program.graph.nodes:
        if node.op == "call_function" and collective_of(node.target) is not None:
            group = groups.setdefault(str(argument(node, "group_name")), len(groups))
            told.append(f"{op_name(node.target)} {group} {_tensors(node.meta.get('val'))}")
    return told


def _tensors(value: Any) -> list[str]:
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _calls(program: Program) -> list[str]:
    """What is computed with tensors; how sizes are found out is left out."""
    calls = (node for node in program.graph.nodes if node.op == "call_function")
    return [op_name(node.target) for node in calls if _tensors(node.meta.get("val"))]


def _hash(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
