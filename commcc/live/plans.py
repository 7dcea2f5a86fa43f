"""Plans that ``commcc run --plan-out`` wrote, applied to graphs of a running job.

    plans = read_folder("plan/")                  # or one file
    plan = plans.of(program)                      # MismatchError, naming the first node that differs from the nearest
    result = apply(plan, program)                 # planned nowhere; applied and verified

Graphs are found by what they compute (:mod:`commcc.graph.structure`), since nodes and groups are called otherwise on
every machine. The program takes the names of the plan's graph, its passes are applied and verified as ``commcc run
--plan`` does, and what comes out takes the names of the job again.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import commcc
from commcc.base.errors import CommccError, InputError
from commcc.base.text import listed, plural
from commcc.graph.ops import op_name
from commcc.graph.structure import renamed, structure_of, with_equal_groups_joined
from commcc.run.pipeline import RunResult, run
from commcc.run.planfile import StoredPlan, read_plan_file
from commcc.serialization.shapes import format_val

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import fx

    from commcc.graph.program import Program
    from commcc.graph.structure import Structure

log = logging.getLogger("commcc.live")

_PATTERNS = ("*.yaml", "*.yml")


class MismatchError(CommccError):
    """No plan was made for this graph."""

    exit_code = 1


@dataclass(frozen=True)
class Plans:
    """Of one folder or file. by_structure: of two plans for the same graph the one whose file comes last counts."""

    where: str
    by_structure: Mapping[str, StoredPlan]

    @property
    def hash(self) -> str:
        """Of all files, in an order that does not depend on what they are called."""
        hashes = sorted(plan.hash for plan in self.by_structure.values())
        return hashlib.sha256("".join(hashes).encode()).hexdigest()

    def fitted(self, program: Program) -> tuple[Program, Structure]:
        """The program and its structure, with groups of equal meshes joined if a plan was made for that, and none for
        it as it is.
        """
        here, joined = structure_of(program), with_equal_groups_joined(program)
        if joined is program or here.fingerprint in self.by_structure:
            return program, here
        there = structure_of(joined)
        if there.fingerprint not in self.by_structure:
            return program, here
        others = [name for name in program.groups if name not in joined.groups]
        log.info("groups of equal meshes are one in the plan: %s of the job are not used", listed(others, 8))
        return joined, there

    def of(self, program: Program, here: Structure | None = None) -> StoredPlan:
        """The plan for this graph, or :class:`MismatchError`. here: its structure, where it is known."""
        here = here or structure_of(program)
        plan = self.by_structure.get(here.fingerprint)
        if plan is None:
            known = (program.groups[name].size for name in here.groups if name in program.groups)
            sizes = {size for size in known if size is not None}
            raise MismatchError(self._difference(program, here, sizes), where=self.where, hint=_HINT)
        return plan

    def _difference(self, program: Program, here: Structure, sizes: set[int]) -> str:
        """In which node the graph differs first from the plan's that it is most like. here: of the program.
        sizes: of its groups.
        """

        def alike(plan: StoredPlan) -> tuple[int, int]:
            digests = b"" if plan.source is None else plan.source.digests
            first = here.first_difference(digests)
            count = len(digests) // 2
            return min(len(here.names), count) if first is None else first, -abs(len(here.names) - count)

        nearest = max(self.by_structure.values(), key=alike)
        same, counted = alike(nearest)[0], len(here.names)
        then = 0 if nearest.source is None else len(nearest.source.names)
        if same < min(counted, then):
            node, other = list(program.graph.nodes)[same], nearest.source.names[same] if nearest.source else ""
            what = f"differs first in node {same:,}, here '{here.names[same]}' ({_node_said(node)}), there '{other}'"
        elif counted == then:
            what = "has groups of other sizes"
        else:
            what = f"has {then:,} nodes, this one {counted:,}"
        then_sizes = {len(ranks) for _, ranks in (nearest.source.groups if nearest.source else ()) if ranks is not None}
        if sizes and then_sizes and then_sizes != sizes:
            counts = (" and ".join(map(str, sorted(numbers))) for numbers in (then_sizes, sizes))
            what += "; its groups have {} ranks, those of the job {}".format(*counts)
        if nearest.writer not in ("", commcc.__version__):
            what += f"; commcc {nearest.writer} wrote it, this is {commcc.__version__}"
        known = plural(len(self.by_structure), "plan")
        return f"no plan was made for this graph ({known}); that of {nearest.path.name} {what}"


_HINT = (
    "capture and plan again with the --mesh, --level, --device and --attention of this job,"
    " or on_mismatch='replan' or 'skip'"
)


def read_folder(path: str | Path) -> Plans:
    """The plans of a folder, or one file; raises :class:`InputError` where there is none that can be applied."""
    path = Path(path)
    files = sorted({file for pattern in _PATTERNS for file in path.glob(pattern)}) if path.is_dir() else [path]
    plans = [read_plan_file(file) for file in files]
    nameless = [plan.path.name for plan in plans if plan.source is None]
    if nameless:
        what = f"'{nameless[0]}' does not say what its graph is"
        raise InputError(what, where=str(path), hint="write it again with commcc run --plan-out")
    if not plans:
        raise InputError("no plan is there", where=str(path), hint="commcc run GRAPH --plan-out FILE writes one")
    chosen = {plan.source.structure: plan for plan in plans if plan.source is not None}
    for plan in plans:
        other = chosen[plan.source.structure] if plan.source is not None else plan
        if other.hash != plan.hash:
            log.info("%s and %s are for the same graph; the last one counts", plan.path, other.path.name)
    return Plans(str(path), chosen)


def apply(plan: StoredPlan, program: Program, here: Structure | None = None) -> RunResult:
    """What the plan makes of a program with its structure, under the program's names. here: that, where it is known.

    Raises :class:`InputError` where ranks of groups lie otherwise, or where the plan does not fit after all.
    """
    source = plan.source
    if source is None:
        raise InputError("does not say what its graph is", where=str(plan.path))
    here = here or structure_of(program)
    for things, then, now in (("nodes", source.names, here.names), ("groups", source.groups, here.groups)):
        if len(then) != len(now):
            what = f"names {len(then):,} {things} of a graph that has {len(now):,}"
            raise InputError(what, where=str(plan.path), hint="write it again with commcc run --plan-out")
    for name, (theirs, ranks) in zip(here.groups, source.groups, strict=True):
        own = program.groups[name].ranks if name in program.groups else None
        if ranks is not None and own is not None and _offsets(ranks) != _offsets(own):
            what = f"group '{theirs}' of the plan has ranks {_said(ranks)}, the job's '{name}' {_said(own)}"
            raise InputError(what, where=str(plan.path), hint="the mesh must be that of the plan")
    # Names that the program does not have are left to new nodes, which no plan can foresee.
    nodes = dict(zip(here.names, source.names, strict=True))
    groups = {name: theirs for name, (theirs, _) in zip(here.groups, source.groups, strict=True)}
    result = run(renamed(program, nodes, groups), plan.elsewhere)
    if not result.changed:
        return replace(result, program=program, source=program)
    return replace(result, program=_back(result.program, nodes, groups), source=program)


def _back(program: Program, nodes: Mapping[str, str], groups: Mapping[str, str]) -> Program:
    """The program under the names of the job; what is new and is called as something of the job is numbered."""
    return renamed(program, _own(nodes, [node.name for node in program.graph.nodes]), _own(groups, program.groups))


def _own(theirs: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """What these names of the plan are in the job. theirs: names of the plan by those of the job."""
    own = {other: name for name, other in theirs.items()}
    names = list(names)
    taken = {own[name] for name in names if name in own}
    for name in names:
        if name not in own:
            free, number = name, 0
            while free in taken or free in theirs:
                number += 1
                free = f"{name}_new{number}"
            own[name] = free
            taken.add(free)
    return own


def _node_said(node: fx.Node) -> str:
    """Its op, and the type and shape of its result."""
    value = node.meta.get("val")
    shape = format_val(value).partition("][")[0] + "]" if isinstance(value, torch.Tensor) else ""
    return f"{op_name(node.target) if node.op == 'call_function' else node.op} {shape}".strip()


def _offsets(ranks: Sequence[int]) -> list[int]:
    return [rank - ranks[0] for rank in ranks]


def _said(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
