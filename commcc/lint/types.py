"""What the gate is made of: a graph under test, rules, and what they find. Plain data; no torch.

    def peak_memory(subject: Subject, options: PeakMemory) -> Iterator[Finding]:
        if subject.memory.peak_bytes > options.max:
            yield Finding("...", (subject.spot(subject.memory.peak_at),), measured=..., limit=options.max, unit="bytes")

A rule says what it found and where; how severe that is, and what becomes of it, is decided elsewhere.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from commcc.base.errors import CommccError
from commcc.plan import Removal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commcc.base.terms import Json
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.graph.memory import Memory
    from commcc.graph.metrics import GraphMetrics
    from commcc.graph.program import Program
    from commcc.timing.predict import Prediction
    from commcc.timing.snapshot import Snapshot


class Severity(str, Enum):
    """How much a finding weighs: only errors end a run with exit code 1. A rule that is off is not run."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    OFF = "off"

    def __str__(self) -> str:
        return self.value


#: From the heaviest down, those that a finding can have.
SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True)
class Spot:
    """A node of a graph, and where that is written.

    graph: as the user named it. line: in the graph's file, counted from 1 in the decompressed text. file: that
    file, where ``graph`` is a folder. source: ``model.py:98``, the line of the model that made the node. None where
    nothing tells.
    """

    graph: str
    node: str
    module: str | None = None
    source: str | None = None
    line: int | None = None
    file: str | None = None


def places(program: Program, graph: str) -> Callable[[int], Spot]:
    """Where a node is, by its number in the index; its module is left out. graph: the path it was read from.

    That is the line of the model that made it, and its line in the graph's file. Of a stack trace the innermost frame
    counts that was reached without going through PyTorch (calls of modules do not count): the model's line, not that
    of the wrapper which shards its parameters. A node without a trace of its own is where the node that feeds it comes
    from. Limits: ``.pt2`` files have no lines.
    """
    from commcc.graph.source_lines import source_of
    from commcc.serialization import file_and_lines

    nodes = list(program.graph.nodes)
    file: str | None = None
    lines: dict[str, int] = {}
    with suppress(CommccError):  # the file went away, or is another one by now
        file, lines = file_and_lines(graph)

    def find(node: int) -> Spot:
        name = nodes[node].name
        return Spot(graph, name, None, source_of(nodes[node]), lines.get(name), file)

    return find


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    text: what is wrong, in one sentence without a full stop. spots: the nodes it is about, the most telling
    first. measured, limit: both in ``unit``: ``count``, ``bytes``, ``ns`` or ``share``. remedy: what to do.
    severity: where it is not the rule's own. weight: the heaviest findings of a rule are shown first. details:
    lines that show it.
    """

    text: str
    spots: tuple[Spot, ...] = ()
    measured: float | None = None
    limit: float | None = None
    unit: str = "count"
    remedy: str = ""
    severity: Severity | None = None
    weight: float = 0
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """What an earlier run stored for this graph.

    metrics: by dotted name, as ``collectives.all_gather`` or ``step_ms``. model: name and hash of the cost
    model that made the simulated ones. hints: numbers that stood for sizes known only at run time.
    """

    metrics: Mapping[str, float]
    model: tuple[str, str] | None = None
    hints: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """One graph under test.

    graph: as the user named it. baseline: what is stored for it, None where nothing is. against: the baseline
    file, None where the run has none.
    """

    graph: str
    program: Program
    seen: Snapshot
    baseline: Known | None = None
    against: str | None = None

    @property
    def index(self) -> GraphIndex:
        return self.seen.index

    @property
    def ident(self) -> Identification:
        return self.seen.ident

    @property
    def metrics(self) -> GraphMetrics:
        return self.seen.metrics

    @property
    def prediction(self) -> Prediction:
        """What the cost model predicts; only rules that are ``costed`` may ask."""
        assert self.seen.prediction is not None, "a rule that is not costed asks for a prediction"
        return self.seen.prediction

    @property
    def memory(self) -> Memory:
        """Live bytes over the graph's order."""
        return self.seen.memory

    @cached_property
    def removable(self) -> Removal:
        """What the cleanup pass would remove, metadata aside; several rules ask."""
        from commcc.passes.base import PlanContext
        from commcc.passes.cleanup import Cleanup

        removal = Cleanup(metadata="keep").plan(PlanContext(self.program, self.index, self.ident)).rewrite
        assert isinstance(removal, Removal)
        return removal

    @cached_property
    def _places(self) -> Callable[[int], Spot]:
        return places(self.program, self.graph)

    def spot(self, node: int) -> Spot:
        """Where a node of the index is; a wait is in the module of its collective."""
        collective = self.ident.by_launch.get(self.index.wait_of.get(node, node))
        module = self.index.modules[node] if collective is None else collective.module
        return replace(self._places(node), module=module)

    def spots(self, *nodes: int) -> tuple[Spot, ...]:
        return tuple(map(self.spot, nodes))


@dataclass(frozen=True)
class Rule:
    """One check.

    check: of one graph, ``(Subject, options)``; of a rule that is ``across`` graphs, of what it keeps of all that were
    read, in the order of the command line: ``(tuple[Any, ...], options)``. keep: of such a rule, what it keeps of a
    graph, which is all that the run holds on to; it is not called for fewer than two graphs, and overrides by path do
    not reach it. options: a frozen
    dataclass of options (:mod:`commcc.lint.options`). summary: what it finds, in a few words. about: a paragraph for
    people. needs: options of which one has to be set, or there is nothing to check. costed: asks what a cost model
    predicts. fix: of a rule whose findings a pass mends, the pass as a text, from the options.
    """

    id: str
    severity: Severity
    check: Callable[[Any, Any], Iterable[Finding]]
    options: type[Any]
    summary: str
    about: str
    needs: tuple[str, ...] = ()
    costed: bool = False
    keep: Callable[[Subject], Any] | None = None
    fix: Callable[[Any], str] | None = None

    @property
    def across(self) -> bool:
        """Whether it looks at several graphs together."""
        return self.keep is not None

    def idle(self, options: Any) -> bool:
        """Whether no limit is set that it could check."""
        return bool(self.needs) and all(getattr(options, name) in (None, (), {}) for name in self.needs)


@dataclass(frozen=True)
class Outcome:
    """What one rule said of one graph, or of all of them. findings: the heaviest first.

    skipped: why it was not run.
    """

    rule: str
    severity: Severity
    findings: tuple[Finding, ...] = ()
    skipped: str | None = None

    def severity_of(self, finding: Finding) -> Severity:
        return finding.severity or self.severity


@dataclass(frozen=True)
class Result:
    """What was said of one graph. error: why it could not be read; then there are no outcomes.

    metrics: as in every report, with the costed ones if there are any.
    """

    graph: str
    outcomes: tuple[Outcome, ...] = ()
    metrics: Mapping[str, Json] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Report:
    """A whole run. across: outcomes of rules that look at all graphs together."""

    results: tuple[Result, ...]
    across: tuple[Outcome, ...] = ()
    model: tuple[str, str] | None = None

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return (*(outcome for result in self.results for outcome in result.outcomes), *self.across)

    def count(self, severity: Severity) -> int:
        """Findings of that severity."""
        return sum(outcome.severity_of(f) is severity for outcome in self.outcomes for f in outcome.findings)

    @property
    def failed(self) -> bool:
        """Whether an error was found."""
        return self.count(Severity.ERROR) > 0

    @property
    def unread(self) -> tuple[Result, ...]:
        """Graphs that could not be read."""
        return tuple(result for result in self.results if result.error is not None)
