"""What the verifier says: data only, bounded, in a fixed order.

::

    verdict = verify(before, after)
    verdict.status                  # 'proved', 'unproved' or 'different'
    for finding in verdict.findings:
        print(finding)              # value: mm_3: operand mat2 is ..., BEFORE has ...

Each finding comes with the shortest way from its node to something that can be seen from outside: an output, a write
to an input, an op with an effect.

Limits: at most :data:`LIMIT` findings and as many gaps are kept; ``checked`` has the full counts. Ways are of data; a
node that no output needs has none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from commcc.graph.ops import facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.base.terms import Json

#: Findings, gaps and notes kept of each kind.
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


def _bounded(findings: dict[Finding, None]) -> tuple[Finding, ...]:
    rank = {rule: position for position, rule in enumerate(RULES)}
    return tuple(sorted(findings, key=lambda f: rank.get(f.rule, len(RULES)))[:LIMIT])


def _with_ways(findings: tuple[Finding, ...], ways: Ways | None) -> tuple[Finding, ...]:
    return findings if ways is None else tuple(replace(f, way=ways.from_node(f.node)) for f in findings)


def _one_line(text: str) -> str:
    return " ".join(text.split())


# Ways

#: Names of a way that are kept: the first half from the node on, the rest up to the end.
LONGEST = 8


class Ways:
    """Ways through AFTER and, for what AFTER lacks, through BEFORE."""

    def __init__(self, after: fx.Graph, before: fx.Graph) -> None:
        self._graphs = (after, before)
        self._steps: list[dict[str, str]] = []

    def from_node(self, name: str) -> tuple[str, ...]:
        """The node, those that lead on, and the end; empty when nothing outside depends on it."""
        if not name:
            return ()
        if not self._steps:
            self._steps = [next_steps(graph) for graph in self._graphs]
        for steps in self._steps:
            if name in steps:
                way = [name]
                while way[-1] in steps:
                    way.append(steps[way[-1]])
                half = LONGEST // 2
                middle = (f"{len(way) - 2 * half} more",)
                return tuple(way) if len(way) <= LONGEST else (*way[:half], *middle, *way[-half:])
        return ()


def next_steps(graph: fx.Graph) -> dict[str, str]:
    """For each node from which an end can be reached, the next node on a shortest way, or the end itself."""
    steps: dict[str, str] = {}
    queue: deque[fx.Node] = deque()
    for node, end in _ends(graph):
        if node.name not in steps:
            steps[node.name] = end
            queue.append(node)
    while queue:
        node = queue.popleft()
        for source in node.all_input_nodes:
            if source.name not in steps:
                steps[source.name] = node.name
                queue.append(source)
    return steps


def _ends(graph: fx.Graph) -> list[tuple[fx.Node, str]]:
    """Nodes whose value can be seen from outside, and as what."""
    ends: list[tuple[fx.Node, str]] = []
    for node in graph.nodes:
        if node.op == "output":
            values = node.args[0] if node.args else ()
            values = values if isinstance(values, (tuple, list)) else (values,)
            ends.extend((value, f"output {i}") for i, value in enumerate(values) if hasattr(value, "all_input_nodes"))
        elif node.op == "call_function":
            fact = facts(node.target)
            writes_inputs = fact.writing and any(operand.op == "placeholder" for operand in node.all_input_nodes)
            if writes_inputs or (fact.acts and not fact.random):
                ends.append((node, f"effect of {node.name}"))
    return ends
