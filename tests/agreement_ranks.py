"""Ranks for the tests of rank agreement: hand-made traces, and the programs of all ranks of a sample.

traces({0: "a ~a b", 1: "b a ~b"}, {"a": (0, 1), "b": (0, 1)})      # launch on a, wait for it, launch on b, ...
programs(load("tiny.fx.txt"))                                       # one program for each rank of its mesh
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.base.terms import Kind
from commcc.graph.program import ProcessGroup, Program
from commcc.lint.ranks.types import Launch, Sent, Splits, Trace
from tests.mesh_groups import parts_by_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def sent(kind: Kind = Kind.ALL_REDUCE, count: int | None = 8, dtype: str = "float32") -> Sent:
    return Sent(kind, "sum" if kind is Kind.ALL_REDUCE else None, (dtype,), (count,), None, "cuda", None)


def traces(steps: Mapping[int, str], groups: Mapping[str, tuple[int, ...]]) -> dict[int, Trace]:
    """One trace for each rank. ``~a`` waits for the oldest launch on ``a`` that was not waited for."""
    return {rank: _trace(text.split(), rank, groups) for rank, text in steps.items()}


def _trace(words: list[str], rank: int, groups: Mapping[str, tuple[int, ...]]) -> Trace:
    launches: list[Launch] = []
    steps: list[int] = []
    waiting: dict[str, deque[int]] = {name: deque() for name in groups}
    counts: Counter[str] = Counter()
    for word in words:
        name = word.removeprefix("~")
        if word.startswith("~"):
            steps.append(~waiting[name].popleft())
            continue
        waiting[name].append(len(launches))
        steps.append(len(launches))
        launches.append(Launch(f"{name}_{counts[name]}", name, sent(), None, f"{name} {counts[name]}"))
        counts[name] += 1
    own = {name: ProcessGroup(name, len(ranks), ranks) for name, ranks in groups.items() if rank in ranks}
    return Trace(tuple(launches), tuple(steps), (), own)


def exchange(rank: int, splits: Splits, ranks: tuple[int, ...]) -> Trace:
    """A rank that makes one all-to-all."""
    what = Sent(Kind.ALL_TO_ALL, None, ("float32",), (), None, "cuda", None)
    launch = Launch("a2a", "g", what, splits, "tokens")
    return Trace((launch,), (0, ~0), (), {"g": ProcessGroup("g", len(ranks), ranks)})


def stands_still(ranks: Mapping[int, Trace], *, in_order: bool) -> bool:
    """The oracle: runs all ranks, step by step, until nobody can go on; whether somebody is not at the end.

    in_order: a rank goes on from a launch when all ranks of the group have made it; else a wait does so.
    """
    at = dict.fromkeys(ranks, 0)
    made: set[tuple[Any, int]] = set()
    while any(_goes_on(rank, trace, at, made, in_order) for rank, trace in ranks.items()):
        pass
    return any(at[rank] < len(trace.steps) for rank, trace in ranks.items())


def _goes_on(rank: int, trace: Trace, at: dict[int, int], made: set[tuple[Any, int]], in_order: bool) -> bool:
    """Take the next step of a rank as far as it goes; whether anything happened."""
    if at[rank] == len(trace.steps):
        return False
    step = trace.steps[at[rank]]
    wanted = instance(trace, step if step >= 0 else ~step)
    fresh = step >= 0 and (wanted, rank) not in made
    made |= {(wanted, rank)} if step >= 0 else set()
    if (step < 0 or in_order) and any((wanted, other) not in made for other in wanted[0]):
        return fresh
    at[rank] += 1
    return True


def instance(trace: Trace, launch: int) -> tuple[tuple[int, ...], str, int]:
    name = trace.launches[launch].group
    ranks = trace.groups[name].ranks
    assert ranks is not None
    return ranks, name, sum(each.group == name for each in trace.launches[:launch])


def programs(program: Program) -> dict[int, Program]:
    """A program for each rank of the sample's mesh: one graph, the groups that each rank has under each name."""
    parts = parts_by_name(program)
    mesh: dict[str, Any] = program.header["mesh"]  # type: ignore[assignment]
    found = {}
    for rank in range(math.prod(mesh["shape"])):
        groups = {
            name: replace(group, ranks=next(part for part in parts[name] if rank in part))
            for name, group in program.groups.items()
        }
        found[rank] = replace(program, groups=groups)
    return found


def copied(program: Program) -> tuple[Program, fx.Graph]:
    """A program with a graph of its own, which may be changed."""
    graph, env = fx.Graph(), {}
    for node in program.graph.nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
        env[node].name = node.name
    return replace(program, graph=graph), graph


def value(node: fx.Node) -> torch.Tensor:
    found: torch.Tensor = node.meta["val"]
    return found
