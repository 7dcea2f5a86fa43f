"""What the verifier says: data only, bounded, in a fixed order.

::

    verdict = verify(before, after)
    verdict.status                  # 'proved', 'unproved' or 'different'
    for finding in verdict.findings:
        print(finding)              # value: mm_3: operand mat2 is ..., BEFORE has ...

Limits: at most :data:`LIMIT` findings and as many gaps are kept; ``checked`` has the full counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json
    from commcc.verify.paths import Ways

#: Findings, gaps and notes kept of each sort.
LIMIT = 50

#: Every rule that a finding can name, in the order in which findings are listed.
RULES = (
    "order",
    "input",
    "wait",
    "collective",
    "mutation",
    "random",
    "effect",
    "value",
    "output",
    "alias",
    "dropped",
    "duplicated",
)


@dataclass(frozen=True)
class Finding:
    """One difference, gap or remark.

    rule: one of :data:`RULES`. node: name of the node in AFTER (in BEFORE for what AFTER lacks), empty
    when it is not about one node. text: one line, what is there and what BEFORE has. way: names of nodes from
    there to an output or an effect that depends on it, empty for remarks and where nothing does.
    """

    rule: str
    node: str
    text: str
    way: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.node}: {self.text}" if self.node else f"{self.rule}: {self.text}"

    def to_json(self) -> dict[str, Json]:
        return {"rule": self.rule, "node": self.node, "text": self.text, "way": list(self.way)}


@dataclass(frozen=True)
class Verdict:
    """Whether AFTER is the same program as BEFORE.

    status: ``different`` when there is any finding, ``unproved`` when there is none but something could
    not be decided, else ``proved``.
    findings: differences. unproved: what could not be decided. notes: harmless changes (dead code that
    is gone, work that is now done once).
    checked: counts of what was compared.
    """

    status: str
    findings: tuple[Finding, ...] = ()
    unproved: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    checked: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """The verdict as JSON with stable keys."""
        return {
            "status": self.status,
            "findings": [finding.to_json() for finding in self.findings],
            "unproved": [finding.to_json() for finding in self.unproved],
            "notes": [finding.to_json() for finding in self.notes],
            "checked": dict(self.checked),
        }


@dataclass
class Report:
    """Collects findings while the comparison runs; exact repetitions are kept once."""

    findings: dict[Finding, None] = field(default_factory=dict)
    unproved: dict[Finding, None] = field(default_factory=dict)
    notes: dict[Finding, None] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)

    def differs(self, rule: str, node: str, text: str) -> None:
        self.findings[Finding(rule, node, _one_line(text))] = None

    def gap(self, rule: str, node: str, text: str) -> None:
        self.unproved[Finding(rule, node, _one_line(text))] = None

    def note(self, rule: str, node: str, text: str) -> None:
        self.notes[Finding(rule, node, _one_line(text))] = None

    def absorb(self, other: Report) -> None:
        """Take over all that another report says."""
        for name in ("findings", "unproved", "notes", "checked"):
            getattr(self, name).update(getattr(other, name))

    def verdict(self, ways: Ways | None = None) -> Verdict:
        """The bounded result; findings sorted by rule, then in the order they were made, each with its way out."""
        status = "different" if self.findings else "unproved" if self.unproved else "proved"
        counts = {"findings": len(self.findings), "gaps": len(self.unproved), "notes": len(self.notes)}
        return Verdict(
            status,
            _with_ways(_bounded(self.findings), ways),
            _with_ways(_bounded(self.unproved), ways),
            _bounded(self.notes),
            {**self.checked, **counts},
        )


def _bounded(found: dict[Finding, None]) -> tuple[Finding, ...]:
    rank = {rule: position for position, rule in enumerate(RULES)}
    return tuple(sorted(found, key=lambda f: rank.get(f.rule, len(RULES)))[:LIMIT])


def _with_ways(found: tuple[Finding, ...], ways: Ways | None) -> tuple[Finding, ...]:
    return found if ways is None else tuple(replace(each, way=ways.from_node(each.node)) for each in found)


def _one_line(text: str) -> str:
    return " ".join(text.split())
