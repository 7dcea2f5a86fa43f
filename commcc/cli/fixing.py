"""``commcc lint --fix``: what a pass can mend of the findings, proved and written, before the report is made.

    commcc lint dumps --fix fixed/          # fixed/bw.fx.txt.gz for dumps/bw.fx.txt.gz; the report is of the result
    commcc lint bw.fx.txt --fix-in-place

A rule says which pass mends what it finds (:attr:`commcc.lint.types.Rule.fix`). A result is written where all of it is
proved to be the same program, and where no graph has more errors for it: gathers that one rank repeats and others do
not must not end on that rank alone. In place means through a temporary file that takes the name when it is complete.

Limits: graphs in logs, folders of PyTorch and repro files are mended into a folder only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import FindingError, OptionError
from commcc.base.files import output_folder
from commcc.lint.types import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.lint import Report, Settings, Task
    from commcc.lint.running import Run
    from commcc.lint.types import Result
    from commcc.timing.cost import CostModel


@dataclass(frozen=True)
class Fix:
    """One graph. passes: what was run. target: the file that holds the result. reason: why there is none."""

    graph: str
    passes: str
    target: str | None = None
    reason: str | None = None
    program: Program | None = None

    def to_json(self) -> dict[str, Json]:
        return {"graph": self.graph, "passes": self.passes, "written": self.target, "reason": self.reason}


@dataclass(frozen=True)
class Fixing:
    """What is needed to mend graphs. folder: where to; None for in place."""

    session: Session
    settings: Settings
    folder: Path | None
    model: CostModel | None
    hints: Mapping[str, int]
    say: Callable[[str], None]

    def all(self, report: Report, check: Callable[[Mapping[str, Program]], Report]) -> list[Fix]:
        """Every graph with a finding that has a fix; the results are written.

        check: the report of the run with some of its graphs replaced.
        """
        chosen = [(result, self._passes(result)) for result in report.results if result.error is None]
        fixable = [(result.graph, passes) for result, passes in chosen if passes]
        targets = self._targets([graph for graph, _ in fixable])
        fixes = [self._one(graph, passes, target) for (graph, passes), target in zip(fixable, targets, strict=True)]
        mended = {fix.graph: fix.program for fix in fixes if fix.program is not None}
        if mended:
            self.say("checking the results")
            after = check(mended)
            worse = _errors(after) - _errors(report)
            if worse:
                hint = "nothing was written; name all ranks of a run together, or run the passes by hand"
                raise FindingError(f"--fix would cause errors of {', '.join(sorted(worse))}", hint=hint)
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
            for fix in fixes:
                self._write(fix)
        return fixes

    def _passes(self, result: Result) -> str:
        """The passes that mend findings of one graph, each once, in the order of the rules."""
        from commcc.lint.registry import BY_ID

        options = self.settings.of(result.graph).options
        rules = (BY_ID[outcome.rule] for outcome in result.outcomes if outcome.findings)
        texts = [rule.fix(options[rule.id]) for rule in rules if rule.fix is not None]
        return ",".join(dict.fromkeys(texts))

    def _targets(self, graphs: Sequence[str]) -> list[Path | None]:
        """Where each result goes; None where it cannot."""
        from commcc import serialization

        targets: list[Path | None] = []
        for graph in graphs:
            whole = graph.lower().endswith(serialization.EXTENSIONS) and Path(graph).is_file()
            if self.folder is not None:
                targets.append(self.folder / (Path(graph) if whole else serialization.default_output(graph, "")).name)
            else:
                targets.append(Path(graph) if whole else None)
        there = [target for target in targets if target is not None]
        for target in there:
            if there.count(target) > 1:
                raise OptionError(f"--fix: two graphs would be written to {target}", hint="fix folders one by one")
            if self.folder is not None and target.exists():
                self.session.output(str(target), serialization.EXTENSIONS, "--fix")
        return targets

    def _one(self, graph: str, passes: str, target: Path | None) -> Fix:
        from commcc.passes.options import parse_pipeline
        from commcc.run import pipeline

        if target is None:
            return Fix(graph, passes, reason="in place only files of one graph can be mended; name a folder with --fix")
        self.say(f"mending {graph}")
        program = self.session.load(graph)
        result = pipeline.run(program, parse_pipeline(passes), model=self.model, hints=self.hints)
        if not result.changed:
            return Fix(graph, passes, reason="the passes changed nothing")
        if result.verified != "proved":
            return Fix(graph, passes, reason="the result could not be proved to be the same program")
        return Fix(graph, passes, str(target), program=result.program)

    def _write(self, fix: Fix) -> None:
        from commcc import serialization

        if fix.target is None or fix.program is None:
            return
        # Writing over what it was read from is what --fix-in-place asks for.
        program = fix.program if self.folder is not None else replace(fix.program, source=None)
        self.session.report_notes(serialization.save(program, fix.target), f"{fix.target}: ")


def mended(run: Run, report: Report, fixing: Fixing) -> tuple[Run, list[Json]]:
    """The run again, with what could be mended in place of what it was, and what was done."""
    from commcc.lint.expand import Item
    from commcc.lint.running import Run

    def again(task: Task, names: Mapping[str, str]) -> Run:
        other = Run(run.settings, task)
        for result in report.results:
            other.add(Item(names.get(result.graph, result.graph), result.error))
        return other

    def check(programs: Mapping[str, Program]) -> Report:
        def read(graph: str) -> Program:
            return programs[graph] if graph in programs else fixing.session.load(graph)

        return again(replace(run.task, load=read, progress=lambda _: None), {}).report()

    fixes = fixing.all(report, check)
    written = {fix.graph: fix.target for fix in fixes if fix.target is not None}
    task = replace(run.task, progress=lambda _: None)
    return (again(task, written) if written else run), [fix.to_json() for fix in fixes]


def _errors(report: Report) -> Counter[str]:
    """Numbers of errors by rule."""
    return Counter(
        outcome.rule
        for outcome in report.outcomes
        for f in outcome.findings
        if outcome.severity_of(f) is Severity.ERROR
    )


def fixing_folder(folder: str | None, in_place: bool) -> Path | None:
    """The folder of ``--fix``. Raises for one that cannot be used."""
    if folder is None:
        return None
    if in_place:
        raise OptionError("--fix and --fix-in-place contradict each other", hint="give one of them")
    return output_folder(folder, "name one with --fix")
