"""A pipeline as a callable on graph modules.

    the_pass = graph_pass(pipeline="bucket,reorder", cost="h100")
    gm = the_pass(gm)                       # edited in place; (gm, example_inputs) -> gm as trainers keep in lists
    the_pass.results[0].verified            # "proved"
    graph_pass(plan="plan/")                # what ``commcc run --plan-out`` decided about the same graphs

The graph is taken as by :func:`commcc.capture.importing.from_graph_module`, with the ranks of its groups where there
is a process group. Planning reads no rank, clock or device.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

import commcc
from commcc.base.errors import CommccError
from commcc.capture.importing import from_graph_module
from commcc.live.agreement import Digest, compare, digest_of, launches_of
from commcc.live.groups import make, new_groups, stand_in
from commcc.live.options import ERROR, KEEP, RAISE, REPLAN, Options
from commcc.live.plans import MismatchError, Plans, apply, read_folder
from commcc.live.write_back import write_back
from commcc.passes.options import parse_pipeline, to_text
from commcc.run.forms import from_preset
from commcc.run.pipeline import RunResult, run
from commcc.serialization import save
from commcc.timing.cost import CostModel, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from commcc.graph.program import ProcessGroup, Program
    from commcc.passes.base import Pass

log = logging.getLogger("commcc.live")


@dataclass
class Made:
    """What has been made of one graph. result: None where it stayed as it was. ranks: those of its groups.

    groups: those that it names and the job does not have yet.
    """

    result: RunResult | None
    digest: Digest
    ranks: tuple[int, ...]
    seconds: float
    groups: tuple[ProcessGroup, ...] = ()

    def begin(self, timeout_s: float | None) -> None:
        """What ranks do before the graph first runs: compare, unless ``timeout_s`` is None, and make its groups."""
        if timeout_s is not None:
            compare(self.digest, self.ranks, timeout_s)
        make(self.groups, timeout_s)


@dataclass
class GraphPass:
    """Made by :func:`graph_pass`. results: of every graph so far that was rewritten."""

    passes: Sequence[Pass]
    model: CostModel
    on_refusal: str = KEEP
    report_dir: Path | None = None
    plans: Plans | None = None
    on_mismatch: str = ERROR
    results: list[RunResult] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)

    @property
    def settings(self) -> str:
        """Version, pipeline and cost model: what must be the same on all ranks, and for a compiled artifact."""
        planning = f"{','.join(map(to_text, self.passes))}, cost {self.model.name} {self.model.hash}"
        if self.plans is not None:
            other = f"others by {planning}" if self.on_mismatch == REPLAN else f"others: {self.on_mismatch}"
            planning = f"plans {self.plans.hash}, {other}"
        return f"commcc {commcc.__version__}, {planning}"

    def uuid(self) -> bytes:
        """Changes with whatever changes results; for caches of compiled code."""
        return hashlib.sha256(self.settings.encode()).digest()

    def __call__(self, gm: fx.GraphModule, example_inputs: object = None) -> fx.GraphModule:
        """Rewrite the graph of ``gm`` in place, and return ``gm``."""
        del example_inputs  # shapes are in the graph
        self.rewrite(gm)
        return gm

    def rewrite(self, gm: fx.GraphModule) -> Made:
        """As a call; returns what was made.

        Raises :class:`CommccError` under ``on_refusal="raise"``, and :class:`MismatchError` for a graph that no plan
        was made for under ``on_mismatch="error"``.
        """
        began = time.perf_counter()
        before = _with_ranks(from_graph_module(gm))
        ranks = tuple(sorted({rank for group in before.groups.values() for rank in group.ranks or ()}))
        result, why = self._run(before)
        groups: tuple[ProcessGroup, ...] = ()
        if result is not None and result.changed:
            program, groups = new_groups(before, result.program)
            stand_in(groups)
            result = replace(result, program=program)
            write_back(gm, program)
        self._report(before, result)
        after = before if result is None else result.program
        made = Made(result, digest_of(before, after, self.settings), ranks, time.perf_counter() - began, groups)
        self.made.append(made)
        log.info("%s", _line(len(self.made), made, why))
        return made

    def agree(self, timeout_s: float = 300.0) -> None:
        """Compare with the other ranks what has been made of all graphs since the last time, and make their groups.

        Raises AgreementError; backends of ``torch.compile`` do so by themselves, before a graph first runs.
        """
        waiting, self.made = self.made, []
        for made in waiting:
            made.begin(timeout_s)

    def _run(self, before: Program) -> tuple[RunResult | None, str]:
        """The proved result, or why there is none."""
        try:
            result = self._made_of(before)
        except MismatchError as error:
            if self.on_mismatch == ERROR:
                raise
            return None, str(error)
        except CommccError as error:
            if self.on_refusal == RAISE:
                raise
            return None, str(error)
        if result.verified != "proved":
            gaps = [text for verdict in result.verdicts if verdict.status != "proved" for text in _texts(verdict)]
            why = f"the result is not proved ({gaps[0] if gaps else 'no reason given'})"
            if self.on_refusal == RAISE:
                raise CommccError(why, hint="on_refusal='keep' leaves such graphs as they are")
            return None, why
        self.results.append(result)
        return result, ""

    def _made_of(self, before: Program) -> RunResult:
        if self.plans is None or (self.on_mismatch != REPLAN and not launches_of(before)):
            passes = () if self.plans is not None else self.passes
            return run(before, passes, model=self.model)
        try:
            return apply(self.plans.of(before), before)
        except MismatchError as error:
            if self.on_mismatch != REPLAN:
                raise
            log.info("%s", error.what)
            return run(before, self.passes, model=self.model)

    def _report(self, before: Program, result: RunResult | None) -> None:
        if self.report_dir is None:
            return
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.report_dir.mkdir(parents=True, exist_ok=True)
        kept = [("before", before)]
        if result is not None and result.changed:
            kept.append(("after", result.program))
        for kind, program in kept:
            save(program, self.report_dir / f"rank{rank}.graph{len(self.made) + 1}.{kind}.fx.txt")


def graph_pass(**options: Any) -> GraphPass:
    """A callable ``(gm, example_inputs=None) -> gm`` that rewrites graphs in place.

    options: fields of :class:`commcc.live.options.Options`. Raises :class:`OptionError`, and :class:`InputError` for
    plans that cannot be read.
    """
    given = Options.of(options)
    passes = parse_pipeline(given.pipeline) if given.pipeline is not None else from_preset(given.preset or "auto")
    model = given.cost if isinstance(given.cost, CostModel) else load_model(given.cost)
    plans = None if given.plan is None else read_folder(given.plan)
    folder = None if given.report_dir is None else Path(given.report_dir)
    return GraphPass(passes, model, given.on_refusal, folder, plans, given.on_mismatch)


def checked(made: Made, timeout_s: float | None, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, before whose first run ranks do what :meth:`Made.begin` says."""
    waiting = [made]

    def first(*args: Any) -> Any:
        if waiting:
            waiting[0].begin(timeout_s)
            waiting.clear()
        return call(*args)

    return first


def _with_ranks(program: Program) -> Program:
    """Groups with their ranks, as far as this process knows them."""
    if not dist.is_initialized():
        return program

    def ranks(group: ProcessGroup) -> ProcessGroup:
        try:
            resolve: Any = dist.distributed_c10d
            made = resolve._resolve_process_group(group.name)
        except (RuntimeError, ValueError, KeyError):
            return group
        return replace(group, ranks=tuple(dist.get_process_group_ranks(made)), size=made.size())

    return replace(program, groups={name: ranks(group) for name, group in program.groups.items()})


def _texts(verdict: Any) -> list[str]:
    return [finding.text for finding in (*verdict.gaps, *verdict.findings)]


def _line(number: int, made: Made, why: str) -> str:
    """One line for one graph."""
    took = f"{made.seconds:.1f} s"
    if made.result is None:
        return f"graph {number}: left as it is: {why} ({took})"
    if not made.result.changed:
        return f"graph {number}: nothing to gain ({took})"
    before, after = made.result.before, made.result.after
    return f"graph {number}: proved; {_launches(before)} launches became {_launches(after)} ({took})"


def _launches(metrics: Any) -> int:
    return sum(metrics.collectives.values())
