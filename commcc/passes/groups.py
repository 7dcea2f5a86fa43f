"""groups: gives the collectives of one role a process group of their own, so that they run on another stream.

Collectives of one group run one after another, in the order in which they are launched. Where token exchanges
share a group with the gathers of parameters, each waits behind the other although the data does not say so::

    a2a = all_to_all_single(x, ..., '0')              a2a = all_to_all_single(x, ..., 'ep_extra')
    ag  = all_gather_into_tensor(p, 4, '0')     ->    ag  = all_gather_into_tensor(p, 4, '0')

The new group is an entry in the program's table: the same ranks, size and description as its origin, to be
made with a stream of high priority. What can be moved:

1. ``ep``: all-to-alls of expert parallelism, those of token counts too, off a group that carries anything else;
2. ``all_gather``: gathers of parameters, off a group that carries anything else (their reduce-scatters).

It runs before ``bucket``. Limits: only collectives on one and the same group share it; two groups with equal
ranks have streams of their own already and are left alone. Collectives that take their group from a node stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from commcc.base.errors import closest
from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.base.record import Record
from commcc.base.terms import Kind, Role
from commcc.passes.base import Pass, PlanContext
from commcc.passes.options import to_text
from commcc.plan import LeftOut, NewGroup, PassReport, Plan, Regroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex

ROLES = ("ep", "all_gather")


@dataclass(frozen=True)
class SplitOff(Record):
    """A new group, and how many launches move to it."""

    name: str
    copy_of: str
    role: str
    launches: int
    reason: Reason


@dataclass(frozen=True)
class GroupsReport(PassReport):
    """not_shared: groups that had nothing else to carry. left_out: numbers of launches by reason."""

    groups: tuple[SplitOff, ...]
    moved: int
    not_shared: tuple[str, ...]
    left_out: Mapping[str, int]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Groups(Pass):
    """Which collectives to move; see the module docstring."""

    name: ClassVar[str] = "groups"
    summary: ClassVar[str] = "give collectives of one role a process group of their own, with the same ranks"

    roles: str | tuple[str, ...] = option(
        "ep",
        "what to move off shared groups: ep (all-to-alls of expert parallelism), all_gather (gathers of parameters), "
        "or both, ep:all_gather",
        choices=ROLES,
    )
    high_priority: bool = option(True, "ask for streams of high priority for the new groups")

    def problems(self) -> Iterator[str]:
        """Words that name no role."""
        for role in self._roles():
            if role not in ROLES:
                yield f"roles: no role '{role}'{closest(role, list(ROLES))}"

    def plan(self, context: PlanContext) -> Plan:
        """New groups, and the launches that move to them."""
        draft = _Draft(context.index)
        for role in dict.fromkeys(self._roles()):
            draft.move(role, context.ident, high_priority=self.high_priority)
        return Plan(
            pass_text=to_text(self),
            fingerprint=context.index.fingerprint,
            edits=(*draft.groups, *sorted(draft.moved.values(), key=lambda move: move.launch)),
            left_out=tuple(sorted(draft.left, key=lambda entry: entry.launch)),
            report=draft.report(),
        )

    def _roles(self) -> tuple[str, ...]:
        return (self.roles,) if isinstance(self.roles, str) else self.roles


@dataclass
class _Draft:
    """The plan while it is made: roles are moved one after another, each seeing what those before it moved."""

    index: GraphIndex
    groups: list[NewGroup] = field(default_factory=list)
    moved: dict[int, Regroup] = field(default_factory=dict)
    left: list[LeftOut] = field(default_factory=list)
    unshared: list[str] = field(default_factory=list)

    def move(self, role: str, ident: Identification, *, high_priority: bool) -> None:
        """Split ``role`` off every group that it shares."""
        shared = {}
        for group in dict.fromkeys(c.group for c in ident.collectives):
            here = [c for c in ident.collectives if c.group == group and c.launch not in self.moved]
            wanted = [c for c in here if _has_role(c, role)]
            if wanted and len(wanted) < len(here):
                shared[group] = (self._movable(wanted), [c for c in here if not _has_role(c, role)])
            elif wanted:  # it has a stream to itself already
                self.unshared.append(f"{role} has group {group} to itself")
        # Where all launches are held in place, no group is needed.
        shared = {group: split for group, split in shared.items() if split[0]}
        for group, (wanted, others) in shared.items():
            # An earlier run may have split off a group for the same.
            known = self.index.groups.values()
            again = (g.name for g in known if g.origin == group and g.name.startswith(f"{role}_extra"))
            name = next(again, None) or self._free(f"{role}_extra", group, alone=len(shared) == 1)
            if name not in self.index.groups:
                reason = Reason.of("shared_group", wanted=_counted(wanted), group=group, others=_counted(others))
                self.groups.append(NewGroup(name, group, role, reason, high_priority))
            self.moved.update({c.launch: Regroup(c.launch, name) for c in wanted})

    def _movable(self, wanted: list[Collective]) -> list[Collective]:
        movable = []
        for collective in wanted:
            if collective.group.startswith("%"):  # the name of a node stands for its group
                self.left.append(LeftOut(collective.launch, Reason.of("group_from_node")))
            elif collective.launch in self.index.control:
                self.left.append(LeftOut(collective.launch, Reason.of("control_edge")))
            else:
                movable.append(collective)
        return movable

    def _free(self, wanted: str, origin: str, *, alone: bool) -> str:
        """A name that no group has; it names the origin where several groups are split for one role."""
        taken = {*self.index.group_names, *(group.name for group in self.groups)}
        base = wanted if alone else f"{wanted}_{origin}"
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        return name

    def report(self) -> GroupsReport:
        """The pass's account, by new group."""
        counts = Counter(move.group for move in self.moved.values())
        remark = (
            "groups with the same ranks share the links between them; unless --cost says share_link=topology, "
            "each is simulated as if it had them to itself"
        )
        return GroupsReport(
            groups=tuple(SplitOff(g.name, g.origin, g.role, counts[g.name], g.reason) for g in self.groups),
            moved=len(self.moved),
            not_shared=tuple(self.unshared),
            left_out=dict(sorted(Counter(str(entry.reason) for entry in self.left).items())),
            remarks=(remark,) if self.groups else (),
        )


def _has_role(collective: Collective, role: str) -> bool:
    if role == "ep":
        return collective.role in (Role.EP, Role.EP_COUNT) and collective.kind is Kind.ALL_TO_ALL
    return collective.role is Role.FSDP and collective.kind is Kind.ALL_GATHER


def _counted(collectives: list[Collective]) -> str:
    counts = Counter(f"{c.role} {c.kind}" for c in collectives)
    return ", ".join(f"{number} {what}" for what, number in counts.items())
