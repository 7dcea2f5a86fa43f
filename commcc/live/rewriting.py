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
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

import commcc
from commcc.base.errors import CommccError, InternalError, bug
from commcc.base.gc_pause import no_collection
from commcc.base.text import plural
from commcc.base.text import share as shown_share
from commcc.capture.importing import from_graph_module
from commcc.capture.world import known_group
from commcc.graph.joint_waits import take_apart
from commcc.graph.restoring import Original
from commcc.graph.structure import structure_of
from commcc.live.agreement import UNREAD, Digest, compare, compare_all, digest_of, launches_of, refuse
from commcc.live.groups import make, new_groups, stand_in
from commcc.live.options import ERROR, KEEP, RAISE, REPLAN, Options
from commcc.live.plans import MismatchError, Plans, apply, read_folder
from commcc.live.reports import Reports
from commcc.live.rounding import Rounding, rounding_of
from commcc.live.sizes import fixed_sizes, require_sizes, told_sizes
from commcc.live.variants import Variants
from commcc.live.watching import Clock
from commcc.live.write_back import write_back
from commcc.passes.options import parse_pipeline, to_text
from commcc.run.forms import from_preset
from commcc.run.pipeline import RunResult, run
from commcc.serialization.op_files import described, hash_of, read_ops, undescribed
from commcc.serialization.sections import with_used_groups
from commcc.timing.cost import CostModel, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import fx

    from commcc.base.terms import Json
    from commcc.graph.metrics import GraphMetrics
    from commcc.graph.ops.described import Description
    from commcc.graph.program import ProcessGroup, Program
    from commcc.graph.structure import Structure
    from commcc.passes.base import Pass
    from commcc.replay.compiled.calls import OrderKept

log = logging.getLogger("commcc.live")

_EVALUATES = "it runs without gradients, and no plan was made for it; on_mismatch='replan' plans it in the job"
_OTHER_LAUNCHES = (
    "graph %d has the collectives of graph %d, for inputs of other sizes, and launches them otherwise now: in each step"
    " all ranks must have inputs of the same sizes, or they wait for ever or exchange the wrong tensors"
)
_KEEPS = "on_refusal='keep' leaves such graphs as they are"


class _Made(NamedTuple):
    """A proved result and what follows from it, or why there is none. groups: to be made before it runs."""

    result: RunResult | None
    why: str = ""
    rounding: Rounding | None = None
    groups: tuple[ProcessGroup, ...] = ()


class _Read(NamedTuple):
    """A graph of the job. digest: where it stays as it is."""

    program: Program
    structure: Structure
    digest: Digest

    @property
    def ranks(self) -> tuple[int, ...]:
        return _members(self.program.groups)


@dataclass
class GraphOutcome:
    """What has been made of one graph. result: None where it stayed as it was, and why then. ranks: of its groups.

    groups: those that it names and the job does not have yet. number: among the graphs of the process, from 1.
    rounding: which of its results may round differently; None where it stayed as it was.
    """

    result: RunResult | None
    digest: Digest
    ranks: tuple[int, ...]
    seconds: float
    groups: tuple[ProcessGroup, ...] = ()
    number: int = 1
    why: str = ""
    rounding: Rounding | None = None

    def begin(self, timeout_s: float | None) -> None:
        """What ranks do before the graph first runs: compare, unless ``timeout_s`` is None, and make its groups."""
        if timeout_s is not None:
            compare(self.digest, self.ranks, timeout_s, f"graph {self.number}")
        make(self.groups, timeout_s)

    @property
    def text(self) -> str:
        """What was made of it, in words."""
        if self.result is None:
            return f"left as it is: {self.why}"
        if not self.result.changed:
            return "nothing to gain"
        launches = f"{plural(_launches(self.result.before), 'launch')} became {_launches(self.result.after)}"
        sizes = told_sizes(fixed_sizes(self.result.source, self.result.program))
        only = f"; for inputs with {sizes} only" if sizes else ""
        return f"proved; {launches}" + (f"; {self.rounding.text}" if self.rounding is not None else "") + only

    def to_json(self) -> dict[str, Json]:
        """For the summary of a job."""
        launches = None if self.result is None else [_launches(end) for end in (self.result.before, self.result.after)]
        rewritten = self.result is not None and self.result.changed
        return {
            "graph": self.number,
            "text": self.text,
            "rewritten": rewritten,
            "launches": launches if launches is None else [*launches],
            "rounding": None if self.rounding is None else self.rounding.to_json(),
            "fingerprint": self.digest.before,
            "seconds": round(self.seconds, 3),
        }


@dataclass
class GraphPass:
    """Made by :func:`graph_pass`. results: of every graph so far that was rewritten. clock: of a backend's work.
    fused: whether Inductor compiles what it makes. agrees: whether ranks compare by themselves before a graph runs.
    descriptions: of ops of other libraries.
    """

    passes: Sequence[Pass]
    model: CostModel
    on_refusal: str = KEEP
    reports: Reports | None = None
    plans: Plans | None = None
    on_mismatch: str = ERROR
    results: list[RunResult] = field(default_factory=list)
    outcomes: list[GraphOutcome] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    variants: Variants = field(default_factory=Variants)
    graphs: int = 0
    fused: bool = False
    agrees: bool = False
    descriptions: Mapping[str, Description] = field(default_factory=dict)

    @property
    def settings(self) -> str:
        """Version, pipeline and cost model: what must be the same on all ranks, and for a compiled artifact."""
        planning = f"{','.join(map(to_text, self.passes))}, cost {self.model.name} {self.model.hash}"
        if self.plans is not None:
            other = f"others by {planning}" if self.on_mismatch == REPLAN else f"others: {self.on_mismatch}"
            planning = f"plans {self.plans.hash}, {other}"
        known = f", ops {hash_of(self.descriptions)}" if self.descriptions else ""
        return f"commcc {commcc.__version__}, {planning}{known}"

    def uuid(self) -> bytes:
        """Changes with whatever changes results; for caches of compiled code."""
        return hashlib.sha256(f"{self.settings}, {self.on_refusal}".encode()).digest()

    def __call__(self, gm: fx.GraphModule, example_inputs: object = None) -> fx.GraphModule:
        """Rewrite the graph of ``gm`` in place, and return ``gm``."""
        del example_inputs  # shapes are in the graph
        self.tell(self.rewrite(gm))
        return gm

    def rewrite(self, gm: fx.GraphModule, *, trains: bool = True) -> GraphOutcome:
        """As a call, but the log does not say it; returns what was made. trains: whether a backward comes with it.

        Raises :class:`CommccError` under ``on_refusal="raise"``, and :class:`MismatchError` for a graph that no plan
        was made for under ``on_mismatch="error"``, if it trains: what only evaluates is left as it is.
        """
        with self.clock.ours(), no_collection():  # a job has millions of objects, and what is made here stays
            return self._rewritten(gm, trains)

    def _rewritten(self, gm: fx.GraphModule, trains: bool) -> GraphOutcome:
        began = time.perf_counter()
        self.graphs += 1
        read: _Read | None = None
        original = Original(gm)
        try:
            read = self._read(gm)
            made = self._run(read.program, read.structure, trains)
            digest = read.digest
            if made.result is not None:
                digest = digest_of(read.program, made.result.program, self.settings, read.structure)
            if made.result is None:
                original.restore()
            elif made.result.changed:
                stand_in(made.groups)
                write_back(gm, read.program, undescribed(made.result.program))
        except BaseException as error:
            original.restore()
            if not isinstance(error, Exception):
                raise
            try:
                made = self._left(error)
            except CommccError as told:
                if self.agrees:
                    refuse(str(told), _ranks_of(gm))
                raise
            digest = Digest(self.settings, UNREAD, UNREAD, 0) if read is None else read.digest
        if made.result is not None:
            self.results.append(made.result)
        if read is not None:
            self._report(read.program, made.result)
            self._compare_variants(read.program, made.result, trains)
        seconds = time.perf_counter() - began
        ranks = _ranks_of(gm) if read is None else read.ranks
        outcome = GraphOutcome(made.result, digest, ranks, seconds, made.groups, self.graphs, made.why, made.rounding)
        self.outcomes.append(outcome)
        return outcome

    def _read(self, gm: fx.GraphModule) -> _Read:
        if take_apart(gm.graph):  # what is compiled has the waits that are looked for in it
            gm.recompile()
        before = described(_with_ranks(from_graph_module(gm)), self.descriptions)
        before, here = (before, structure_of(before)) if self.plans is None else self.plans.fitted(before)
        return _Read(before, here, digest_of(before, before, self.settings, here))

    def _left(self, error: Exception) -> _Made:
        """The graph stays as it is, and why; raises :class:`CommccError` where a job is not to go on."""
        ours = isinstance(error, CommccError)
        if ours and (self.on_refusal == RAISE or isinstance(error, MismatchError)):
            raise error
        if self.on_refusal == RAISE:
            raise bug(error, _KEEPS) from error
        if not ours:  # a bug here must not end a job that can go on without this graph's gain
            error = bug(error, "the graph stays as it is, and on_refusal='raise' shows the traceback")
        if isinstance(error, InternalError):
            log.warning("graph %d: %s", self.graphs, error)
        elif self.plans is not None:  # somebody decided it, and counts on it
            log.warning("graph %d stays as it is: %s", self.graphs, error)
        return _Made(None, str(error))

    def _report(self, before: Program, result: RunResult | None) -> None:
        """Keep both graphs, which may fail as any writing of files."""
        if self.reports is not None:
            with self._going_on("its report is not there"):
                self.reports.graph(self.graphs, before, result, self.model)

    def _compare_variants(self, before: Program, result: RunResult | None, trains: bool) -> None:
        """Say which graphs for other sizes ranks may no longer run beside this one."""
        with self._going_on("it is not compared with those for other sizes"):
            after = before if result is None else result.program
            other = self.variants.other(self.graphs, before, after, trains=trains)
            if other is not None:
                log.warning(_OTHER_LAUNCHES, self.graphs, other)

    @contextmanager
    def _going_on(self, without: str) -> Iterator[None]:
        """What a job can do without does not end it, unless it is to; the log says what is missing."""
        try:
            yield
        except Exception as error:
            if self.on_refusal == RAISE:
                raise
            told = error if isinstance(error, CommccError) else bug(error, "on_refusal='raise' shows the traceback")
            log.warning("graph %d: %s: %s", self.graphs, without, told)

    def program_of(self, gm: fx.GraphModule) -> Program | None:
        """What is compiled, to compare the order of its code with; None where it cannot be read."""
        with self._going_on("the order of its code is not compared"):
            return from_graph_module(gm)
        return None

    def tell(self, outcome: GraphOutcome) -> None:
        """One line of the log; a backend does so when the graph has been compiled."""
        share = self.clock.share
        of_all = "" if share is None else f", {shown_share(share)} of compiling so far"
        log.info("graph %d: %s (%.1f s%s)", outcome.number, outcome.text, outcome.seconds, of_all)
        self.keep(outcome.number, outcome.to_json())

    def ordered(self, outcome: GraphOutcome, order: OrderKept) -> None:
        """Say what compiled code does elsewhere than the graph has it."""
        if order.moved or order.missing:
            why = "its fusions do that; all else that moves collectives is switched off"
            log.warning("graph %d: %s (%s)", outcome.number, order.text, why)
        self.keep(outcome.number, {"order": order.to_json()})

    def keep(self, number: int, about: dict[str, Json]) -> None:
        """Into the summary of the reports."""
        if self.reports is not None:
            share = self.clock.share
            compiling: dict[str, Json] = {
                "seconds": round(self.clock.so_far, 3),
                "commcc_seconds": round(self.clock.own, 3),
                "commcc_share": None if share is None else round(share, 4),
            }
            with self._going_on("the summary of the reports is not written"):
                self.reports.summary(number, about, {"settings": self.settings, "compiling": compiling})

    def agree(self, timeout_s: float = 300.0) -> None:
        """Compare with all other ranks, which call this too, what has been made of all graphs since the last time, and
        make their groups.

        Raises AgreementError; backends of ``torch.compile`` do so by themselves, before a graph first runs.
        """
        waiting, self.outcomes = self.outcomes, []
        compare_all(self.settings, [outcome.digest for outcome in waiting], timeout_s)
        for outcome in waiting:
            make(outcome.groups, timeout_s)

    @property
    def makes_groups(self) -> bool:
        """Whether graphs may name groups that the job does not have."""
        stored = () if self.plans is None else [job for plan in self.plans.by_structure.values() for job in plan.jobs]
        return "groups" in {instance.name for instance in (*self.passes, *stored)}

    def _run(self, before: Program, here: Structure, trains: bool) -> _Made:
        """Planned, proved and ready to be written back, or why not. Nothing of the job is changed here."""
        try:
            result = self._result_of(before, here)
            if result.verified != "proved":
                gaps = [text for verdict in result.verdicts if verdict.status != "proved" for text in _texts(verdict)]
                why = f"the result is not proved ({gaps[0] if gaps else 'no reason given'})"
                raise CommccError(why, hint=_KEEPS if self.on_refusal == RAISE else None)
            rounding = rounding_of(result, fused=self.fused)
            if not result.changed:
                return _Made(result, "", rounding)
            require_sizes(before, result.program)
            program, groups = new_groups(before, result.program)
            return _Made(replace(result, program=program), "", rounding, groups)
        except MismatchError as error:
            if self.on_mismatch == ERROR and trains:
                raise
            return _Made(None, str(error) if trains else _EVALUATES)

    def _result_of(self, before: Program, here: Structure) -> RunResult:
        if self.plans is None or (self.on_mismatch != REPLAN and not launches_of(before)):
            passes = () if self.plans is not None else self.passes
            return run(before, passes, model=self.model)
        try:
            return apply(self.plans.of(before, here), before, here)
        except MismatchError as error:
            if self.on_mismatch != REPLAN:
                raise
            log.info("%s", error.what)
            return run(before, self.passes, model=self.model)


def graph_pass(**options: Any) -> GraphPass:
    """A callable ``(gm, example_inputs=None) -> gm`` that rewrites graphs in place.

    options: fields of :class:`commcc.live.options.Options`. Raises :class:`OptionError`, and :class:`InputError` for
    plans or descriptions of ops that cannot be read.
    """
    given = Options.of(options)
    passes = parse_pipeline(given.pipeline) if given.pipeline is not None else from_preset(given.preset or "auto")
    model = given.cost if isinstance(given.cost, CostModel) else load_model(given.cost)
    plans = None if given.plan is None else read_folder(given.plan)
    reports = None if given.report_dir is None else Reports(Path(given.report_dir))
    descriptions = {} if given.ops is None else read_ops(given.ops)
    return GraphPass(passes, model, given.on_refusal, reports, plans, given.on_mismatch, descriptions=descriptions)


def checked(outcome: GraphOutcome, timeout_s: float | None, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, before whose first run ranks do what :meth:`GraphOutcome.begin` says."""
    waiting = [outcome]

    def first(*args: Any) -> Any:
        if waiting:
            waiting[0].begin(timeout_s)
            waiting.clear()
        return call(*args)

    return first


def _with_ranks(program: Program) -> Program:
    """Groups with what this process knows of them."""
    return replace(program, groups=_known(program.groups))


def _known(groups: Mapping[str, ProcessGroup]) -> dict[str, ProcessGroup]:
    return {name: known_group(group) if dist.is_initialized() else group for name, group in groups.items()}


def _members(groups: Mapping[str, ProcessGroup]) -> tuple[int, ...]:
    return tuple(sorted({rank for group in groups.values() for rank in group.ranks or ()}))


def _ranks_of(gm: fx.GraphModule) -> tuple[int, ...]:
    """Ranks that a graph communicates with, as far as that can be told of one that could not be read."""
    try:
        return _members(_known(with_used_groups(gm.graph, gm, {})))
    except Exception:  # what is wrong with the graph is told already
        return ()


def _texts(verdict: Any) -> list[str]:
    return [finding.text for finding in (*verdict.findings, *verdict.unproved)]


def _launches(metrics: GraphMetrics) -> int:
    return sum(metrics.collectives.values()) + sum(metrics.in_sub_graphs.values())
