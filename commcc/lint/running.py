"""Runs the rules: graph after graph, then those that look at all of them together.

What goes wrong with one graph is said in its result and hides nothing about the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commcc.base.errors import CommccError, GraphError
from commcc.lint.baseline import key_of, measured
from commcc.lint.expand import expand, reason
from commcc.lint.registry import RULES
from commcc.lint.types import Finding, Known, Outcome, Report, Result, Severity, Subject, places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commcc.graph.program import Program
    from commcc.lint.expand import Item
    from commcc.lint.settings import Effective, Settings
    from commcc.lint.types import Rule
    from commcc.timing.cost import CostModel

ILLEGAL = "illegal-graph"
BASELINE = "baseline-regression"
_NO_COSTS = "there is no cost model"
_NO_LIMIT = "no limit is set"
_NO_BASELINE = "there is no baseline"
_UPDATED = "the baseline is being written"
_QUOTED = re.compile(r"'([^']+)'")


@dataclass(frozen=True)
class Task:
    """What is needed besides the settings. known: the baseline's graphs, and the file it came from.

    load: reads a graph. updating: the baseline is to be written from this run, so nothing is compared with it.
    """

    model: CostModel | None = None
    hints: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, Known] | None = None
    baseline: str | None = None
    updating: bool = False
    load: Callable[[str], Program] | None = None
    progress: Callable[[str], None] = lambda _: None


def lint(graphs: Iterable[str], settings: Settings, task: Task | None = None) -> Report:
    """What the rules find in the graphs that the arguments stand for; see :mod:`commcc.lint.expand`."""
    run = Run(settings, task or Task())
    for item in expand(graphs):
        run.add(item)
    return run.report()


class Run:
    """Results so far. measured: what a baseline would store, by the graph as it was named.

    assumed: what the cost model had to assume of any graph, each once.
    """

    def __init__(self, settings: Settings, task: Task) -> None:
        self.settings, self.task = settings, task
        self.results: list[Result] = []
        self.measured: dict[str, Known] = {}
        self.assumed: dict[str, None] = {}
        self._together = [rule for rule in RULES if rule.across]
        self._kept: dict[str, list[Any]] = {rule.id: [] for rule in self._together}

    def add(self, item: Item) -> None:
        """Read and check one graph."""
        self.task.progress(f"checking {item.graph}")
        if item.error is not None:
            self.results.append(Result(item.graph, error=item.error))
            return
        try:
            self._checked(item.graph)
        except CommccError as error:
            self.results.append(Result(item.graph, error=reason(error, item.graph)))

    def _checked(self, graph: str) -> None:
        from commcc import serialization
        from commcc.timing import snapshot

        program = (self.task.load or serialization.load)(graph)
        chosen = self.settings.of(graph)
        try:
            seen = snapshot.take(program, self.task.model, self.task.hints)
        except GraphError as error:
            self.results.append(Result(graph, _illegal(program, graph, error, chosen)))
            return
        task = self.task
        known = None if task.known is None or task.baseline is None else task.known.get(key_of(graph, task.baseline))
        subject = Subject(graph, program, seen, known, task.baseline)
        outcomes = tuple(self._outcome(rule, subject, chosen) for rule in RULES if _wanted(rule, chosen))
        self.results.append(Result(graph, outcomes, seen.to_json()))
        self.measured[graph] = measured(seen)
        self.assumed.update(dict.fromkeys(snapshot.cost_warnings(seen)))
        for rule in self._together:
            # Overrides by path do not reach rules that look at several graphs.
            if rule.keep is not None and self.settings.of(None).severity[rule.id] is not Severity.OFF:
                self._kept[rule.id].append(rule.keep(subject))

    def _outcome(self, rule: Rule, subject: Subject, chosen: Effective) -> Outcome:
        """What a rule says of one graph, or why it has nothing to check."""
        options, skipped = chosen.options[rule.id], None
        if rule.idle(options):
            skipped = _NO_LIMIT
        elif rule.id == BASELINE and self.task.updating:
            skipped = _UPDATED
        elif rule.id == BASELINE and self.task.known is None:
            skipped = _NO_BASELINE
        elif rule.costed and self.task.model is None:
            skipped = _NO_COSTS
        findings = ordered(rule.check(subject, options)) if skipped is None else ()
        return Outcome(rule.id, chosen.severity[rule.id], findings, skipped)

    def report(self) -> Report:
        """Everything, with the rules that look at all graphs run now."""
        chosen = self.settings.of(None)
        across = []
        for rule in self._together:
            severity, options = chosen.severity[rule.id], chosen.options[rule.id]
            kept = tuple(self._kept[rule.id])
            if severity is not Severity.OFF and len(kept) > 1 and not rule.idle(options):
                across.append(Outcome(rule.id, severity, ordered(rule.check(kept, options))))
        model = self.task.model
        return Report(tuple(self.results), tuple(across), None if model is None else (model.name, model.hash))


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The heaviest first; among equals in the order in which they were found."""
    return tuple(sorted(findings, key=lambda finding: (finding.severity is Severity.INFO, -finding.weight)))


def _wanted(rule: Rule, chosen: Effective) -> bool:
    return not rule.across and chosen.severity[rule.id] is not Severity.OFF


def _illegal(program: Program, graph: str, error: GraphError, chosen: Effective) -> tuple[Outcome, ...]:
    """The outcomes of a graph that cannot run, with the nodes that the error names."""
    number = {node.name: i for i, node in enumerate(program.graph.nodes)}
    find = places(program, graph)
    named = [name for name in _QUOTED.findall(error.what) if name in number]
    spots = tuple(find(number[name]) for name in dict.fromkeys(named))
    finding = Finding(error.what, spots, remedy=error.hint or "")
    return tuple(
        Outcome(rule.id, chosen.severity[rule.id], (finding,))
        if rule.id == ILLEGAL
        else Outcome(rule.id, chosen.severity[rule.id], skipped="the graph is not legal")
        for rule in RULES
        if _wanted(rule, chosen)
    )
