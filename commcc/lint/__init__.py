"""The gate: rules over graphs, with severities and limits, for people and for CI.

    from commcc.lint import Settings, lint
    report = lint(["dumps/bw.fx.txt.gz"], Settings(), load_model("h100"))
    report.count(Severity.ERROR)

A **rule** has an id, a default severity and typed options, and is one function from a graph to findings
(:mod:`commcc.lint.registry` lists them all). **Settings** say which rules run, how severe they are and
which limits they have, for all graphs or by path. What was found is data; :mod:`commcc.report` prints it.

Rules that look at several graphs together run after all others (:class:`commcc.lint.types.Rule` with a ``keep``).

Limits: what a rule measures is as good as the cost model, where it asks one.
"""

from __future__ import annotations

from commcc.lint.registry import RULES, rule_ids
from commcc.lint.running import Task, lint
from commcc.lint.settings import Settings
from commcc.lint.types import Finding, Outcome, Report, Result, Rule, Severity, Spot, Subject

__all__ = [
    "RULES",
    "Finding",
    "Outcome",
    "Report",
    "Result",
    "Rule",
    "Settings",
    "Severity",
    "Spot",
    "Subject",
    "Task",
    "lint",
    "rule_ids",
]
