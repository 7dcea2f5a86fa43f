"""A pipeline as a callable on graph modules.

    the_pass = graph_pass(pipeline="bucket,reorder", cost="h100")
    gm = the_pass(gm)                       # edited in place; (gm, example_inputs) -> gm as trainers keep in lists
    the_pass.results[0].verified            # "proved"

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
from commcc.base.errors import CommccError, OptionError
from commcc.capture.importing import from_graph_module
from commcc.live.agreement import Digest, compare, digest_of
from commcc.live.write_back import write_back
from commcc.passes.options import parse_pipeline, to_text
from commcc.run.forms import from_preset
from commcc.run.pipeline import RunResult, run
from commcc.serialization import save
from commcc.timing.cost import DEFAULT_MODEL, CostModel, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from commcc.graph.program import ProcessGroup, Program
    from commcc.passes.base import Pass

log = logging.getLogger("commcc.live")

KEEP, RAISE = "keep", "raise"
#: Passes that split process groups, which nobody makes in a running job.
_NEW_GROUPS = ("groups",)


@dataclass
class Made:
    """What has been made of one graph. ranks: those of its groups. digest: None where the graph stayed as it was."""

    result: RunResult | None
    digest: Digest
    ranks: tuple[int, ...]
    seconds: float


@dataclass
class GraphPass:
    """Made by :func:`graph_pass`. results: of every graph so far that was rewritten."""

    passes: Sequence[Pass]
    model: CostModel
    on_refusal: str = KEEP
    report_dir: Path | None = None
    results: list[RunResult] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)

    @property
    def settings(self) -> str:
        """Version, pipeline and cost model: what must be the same on all ranks, and for a compiled artifact."""
        pipeline = ",".join(map(to_text, self.passes))
        return f"commcc {commcc.__version__}, {pipeline}, cost {self.model.name} {self.model.hash}"

    def uuid(self) -> bytes:
        """Changes with whatever changes results; for caches of compiled code."""
        return hashlib.sha256(self.settings.encode()).digest()

    def __call__(self, gm: fx.GraphModule, example_inputs: object = None) -> fx.GraphModule:
        """Rewrite the graph of ``gm`` in place, and return ``gm``."""
        del example_inputs  # shapes are in the graph
        self.rewrite(gm)
        return gm

    def rewrite(self, gm: fx.GraphModule) -> Made:
        """As a call; returns what was made. Raises :class:`CommccError` under ``on_refusal="raise"`` only."""
        began = time.perf_counter()
        before = _with_ranks(from_graph_module(gm))
        ranks = tuple(sorted({rank for group in before.groups.values() for rank in group.ranks or ()}))
        result, why = self._run(before)
        if result is not None and result.changed:
            write_back(gm, result.program)
            self._report(before, result)
        after = before if result is None else result.program
        made = Made(result, digest_of(before, after, self.settings), ranks, time.perf_counter() - began)
        self.made.append(made)
        log.info("%s", _line(len(self.made), made, why))
        return made

    def agree(self, timeout_s: float = 300.0) -> None:
        """Compare with the other ranks what has been made of all graphs since the last time.

        Raises AgreementError; backends of ``torch.compile`` do so by themselves, before a graph first runs.
        """
        waiting, self.made = self.made, []
        for made in waiting:
            compare(made.digest, made.ranks, timeout_s)

    def _run(self, before: Program) -> tuple[RunResult | None, str]:
        """The proved result, or why there is none."""
        try:
            result = run(before, self.passes, model=self.model)
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

    def _report(self, before: Program, result: RunResult) -> None:
        if self.report_dir is None:
            return
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.report_dir.mkdir(parents=True, exist_ok=True)
        for kind, program in (("before", before), ("after", result.program)):
            save(program, self.report_dir / f"rank{rank}.graph{len(self.results)}.{kind}.fx.txt")


def graph_pass(
    *,
    pipeline: str | None = None,
    preset: str | None = None,
    cost: str | CostModel = DEFAULT_MODEL,
    on_refusal: str = KEEP,
    report_dir: str | Path | None = None,
) -> GraphPass:
    """A callable ``(gm, example_inputs=None) -> gm`` that rewrites graphs in place.

    pipeline, preset: as ``--passes`` and ``--preset`` of ``commcc run``; the preset ``auto`` without either. cost: as
    ``--cost``, the same on all ranks. on_refusal: ``keep`` leaves a graph that cannot be rewritten, or whose result
    is not proved, as it is and says so in the log; ``raise`` raises. report_dir: where each rewritten graph is kept,
    before and after, for ``commcc simulate`` and ``commcc diff``.
    Raises :class:`OptionError`.
    """
    if pipeline is not None and preset is not None:
        raise OptionError("a pipeline and a preset are given", hint="give one of them")
    if on_refusal not in (KEEP, RAISE):
        raise OptionError(f"on_refusal is '{KEEP}' or '{RAISE}', not {on_refusal!r}")
    passes = parse_pipeline(pipeline) if pipeline is not None else from_preset(preset or "auto")
    split = [instance.name for instance in passes if instance.name in _NEW_GROUPS]
    if split:
        hint = "leave it out; the other passes work in a running job"
        raise OptionError(f"pass '{split[0]}' needs process groups that a running job does not make", hint=hint)
    model = cost if isinstance(cost, CostModel) else load_model(cost)
    return GraphPass(passes, model, on_refusal, None if report_dir is None else Path(report_dir))


def checked(made: Made, timeout_s: float, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, before whose first run ranks compare what they have made."""
    waiting = [made]

    def first(*args: Any) -> Any:
        if waiting:
            compare(waiting[0].digest, waiting[0].ranks, timeout_s)
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
