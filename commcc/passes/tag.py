"""tag: writes the role of each eligible collective into the graph.

Phase one of bucketing before overlap. Four kinds are tagged:

1. all-gathers derived from one parameter (``fsdp``);
2. reduce-scatters that only lead to outputs (``fsdp``);
3. all-reduces that only lead to outputs (``ddp``, or ``fsdp`` as part of an HSDP gradient);
4. all-reduces of one number that a parameter is scaled by before it is gathered (``fsdp``).

Tags survive partitioning, saving and loading, and copying of nodes; ``bucket`` uses them when they
are there. On a joint graph with placeholder descriptors only parameters and buffers count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commcc.passes.base import Pass, PlanContext
from commcc.passes.options import to_text
from commcc.plan import PassReport, Plan, TagEntry
from commcc.planning.eligibility import is_taggable

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class TagReport(PassReport):
    """tagged: eligible collectives by ``role.kind``. new: those that did not carry their tag yet."""

    tagged: Mapping[str, int]
    new: int


@dataclass(frozen=True)
class Tag(Pass):
    """See the module docstring; no options."""

    name: ClassVar[str] = "tag"
    summary: ClassVar[str] = "write the role of parameter gathers and gradient reductions into the graph"

    def plan(self, context: PlanContext) -> Plan:
        """Tags for eligible collectives that do not carry the same tag already."""
        index = context.index
        eligible = [c for c in context.ident.collectives if is_taggable(c)]
        # Writing a tag once more would count as a change.
        new = [c for c in eligible if index.tags.get(c.launch, (None,))[0] is not c.role]
        counts = Counter(f"{c.role}.{c.kind}" for c in eligible)
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            edits=tuple(TagEntry(c.launch, c.role, c.evidence) for c in new),
            report=TagReport(dict(sorted(counts.items())), len(new)),
        )
