"""Numeric verification: both programs on the same inputs, on virtual or on real ranks, and the verdict.

    verify_numeric(before, after, Settings(ranks=4)).status        # 'equal'

An experiment, with one set of inputs for a seed: what it finds different is different, what it finds equal is not
proved. It closes gaps of the structural verifier the way a test does.

Limits: virtual ranks add in the order of ranks; a backend that adds in another order for another size of message
(gloo and NCCL do) rounds differently. Where BEFORE itself fails nothing can be said, and that is an error.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch

from commcc.base.errors import CommccError, GraphError, InputError
from commcc.base.terms import Kind
from commcc.base.text import plural
from commcc.graph.memory import live_bytes
from commcc.graph.ops.allowed import imported_ops
from commcc.replay.calls import raised_remarks
from commcc.replay.numeric.causes import Explainer, first_difference, upstream
from commcc.replay.numeric.compare import compare_rank
from commcc.replay.numeric.pair import Pair, Settings, make_pair
from commcc.replay.numeric.verdict import DIFFERENT, EQUAL, INCONCLUSIVE, STATUSES, About, Judge, Numeric
from commcc.replay.place import free_memory, require_memory
from commcc.replay.prepare import prepare
from commcc.replay.virtual import StepError, VirtualRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.program import Program
    from commcc.replay.numeric.compare import RankGaps

#: Most ranks that are run when nobody says how many.
MOST_BY_DEFAULT = 8
_UNSTEADY = "BEFORE by itself does not give it twice"


def verify_numeric(before: Program, after: Program, settings: Settings) -> Numeric:
    """Run both and compare. Raises :class:`CommccError` where they cannot be run at all.

    Where BEFORE gives what is no number, both are run once more on matrices of positive numbers: an optimizer takes
    roots of its moments.
    """
    first = _verify_once(before, after, settings)
    if settings.positive or all(value.status != INCONCLUSIVE for value in first.values):
        return first
    again = _verify_once(before, after, replace(settings, positive=True))
    if again.status == INCONCLUSIVE:
        return first
    said = "matrices of the inputs are positive: with others BEFORE gives what is no number"
    return replace(again, notes=(*again.notes, said), seconds=first.seconds + again.seconds)


def _verify_once(before: Program, after: Program, settings: Settings) -> Numeric:
    try:
        pair = make_pair(before, after, settings)
    except GraphError as error:
        # What is wrong with BEFORE is an error, of AFTER a difference.
        prepare(before, imported=imported_ops(settings.imports))
        failure = f"AFTER cannot be run: {error.what}"
        return Numeric(DIFFERENT, settings.ranks or 0, settings.real, settings.seed, settings.wide, 0, failure=failure)
    world = pair.layout.world
    if settings.ranks is None and world > MOST_BY_DEFAULT:
        raise InputError(
            f"the graph is for {world} ranks; --numeric runs at most {MOST_BY_DEFAULT} when it is not told how many",
            hint=f"--virtual-ranks {world} runs all of them in this process, as far as its memory goes",
        )
    started = time.perf_counter()
    if settings.real:
        ran = _on_real_ranks(pair, before, after, settings)
    else:
        peak = max(live_bytes(prepared.index).peak_bytes for prepared in (pair.old, pair.new))
        require_memory(
            f"{world} virtual ranks need",
            world * peak * (3 if pair.old.wide else 1),
            free_memory(),
            "capture a smaller model, with fewer ranks or shorter inputs; its graph has the same structure",
        )
        ran = _on_virtual_ranks(pair, settings)
    return _of_given_constants(pair, _numeric(pair, settings, ran, time.perf_counter() - started))


def _of_given_constants(pair: Pair, numeric: Numeric) -> Numeric:
    """The verdict where both programs ran on constants that they may not have: nobody knows whether these are alike."""
    given = sorted({*pair.old.given, *pair.new.given})
    if not given:
        return numeric
    few = f"{plural(len(given), 'constant')} of which no file has the values ({', '.join(given[:3])})"
    said = f"{few}: both graphs ran on the same synthetic ones, and nobody knows whether they have the same"
    status = numeric.status if numeric.status == DIFFERENT else INCONCLUSIVE
    return replace(numeric, status=status, notes=(*numeric.notes, said))


def judge_real(
    pair: Pair, settings: Settings, gaps: list[RankGaps], unsteady: Mapping[str, float | None] | None = None
) -> Numeric:
    """The verdict on what real ranks have that ran both programs for another purpose.

    unsteady: values that BEFORE itself does not return twice, with what they may differ by, of their largest number.
    """
    return _numeric(pair, settings, _Ran(gaps, unsteady=unsteady or {}), 0.0)


class _Ran(NamedTuple):
    """What came of both runs. gaps: of each rank. failure: why AFTER could not be run, or None. unsteady: as in
    :func:`judge_real`.
    """

    gaps: list[RankGaps]
    notes: tuple[str, ...] = ()
    failure: str | None = None
    unsteady: Mapping[str, float | None] = MappingProxyType({})


def _numeric(pair: Pair, settings: Settings, ran: _Ran, seconds: float) -> Numeric:
    ranks = ran.gaps
    explain = Explainer(pair, settings.real)

    def about(name: str) -> About:
        known, steady = explain(name), name not in ran.unsteady
        return known if steady else replace(known, tolerance=ran.unsteady[name], reasons=(_UNSTEADY, *known.reasons))

    values = Judge(settings.tolerance, about).values(ranks)
    here = [name for side in (pair.old, pair.new) for name in side.settings.raised]
    raised = [*here, *(name for rank in ranks for name in rank.raised)]
    worst = max((value.status for value in values), key=STATUSES.index, default=EQUAL)
    status = DIFFERENT if ran.failure is not None else worst
    # Real ranks keep no values, and running them again would take as long as the first time.
    part = first_difference(pair, settings.seed) if not settings.real and worst == DIFFERENT else None
    return Numeric(
        status=status,
        ranks=pair.layout.world,
        real=settings.real,
        seed=settings.seed,
        wide=settings.wide,
        compared=len(ranks[0].compared) if ranks else 0,
        values=values,
        failure=ran.failure,
        first=part,
        notes=(*_assumed(pair), *raised_remarks(raised), *ran.notes, *_remarks(ranks)),
        seconds=seconds,
    )


def _on_virtual_ranks(pair: Pair, settings: Settings) -> _Ran:
    """Every rank's comparison, remarks, and why AFTER failed if it did."""
    world = range(pair.layout.world)
    rank_inputs = [pair.maker.of_rank(rank) for rank in world]
    runs = [VirtualRun(prepared, pair.layout, settings.seed, pair.blocking) for prepared in (pair.old, pair.new)]
    try:
        old = runs[0]([pair.inputs(of=pair.old, rank_inputs=rank_inputs[rank]) for rank in world])
    except StepError as error:
        raise before_fails(pair, error.node, error.what) from error
    try:
        new = runs[1]([pair.inputs(of=pair.new, rank_inputs=rank_inputs[rank]) for rank in world])
    except StepError as error:
        hint = f" ({runs[1].early[0]})" if runs[1].early else ""
        return _Ran([], failure=f"AFTER: {error.what}{hint}")
    said = [
        [
            *run.early,
            *(f"'{name}' is launched and never waited for" for name in run.unwaited),
            *(f"'{name}' is returned before it is waited for" for name in run.returned),
        ]
        for run in runs
    ]
    known, told = set(said[0]), said[1]
    notes = tuple(f"AFTER: {text}" for text in told if text not in known)
    return _Ran([compare_rank(old[rank], new[rank], rank) for rank in world], notes)


def _on_real_ranks(pair: Pair, before: Program, after: Program, settings: Settings) -> _Ran:
    require_processes("--virtual-ranks runs them all in this one")
    # Imported here: virtual ranks need no process groups.
    from commcc.replay.numeric.real_ranks import run_pair
    from commcc.replay.ranks.failing import RanksError

    try:
        return _Ran(run_pair(pair, before, after, settings))
    except RanksError as error:
        if error.failed is None:
            raise
        program, node, reason = error.failed
        if program == "AFTER":
            return _Ran([], failure=f"AFTER: {reason}")
        raise before_fails(pair, node, reason) from error


def require_processes(hint: str | None = None) -> None:
    """Refuse where PyTorch has been built without process groups."""
    if not torch.distributed.is_available():
        raise InputError("this PyTorch cannot start processes", hint=hint)


def before_fails(pair: Pair, node: str, reason: str) -> CommccError:
    """BEFORE cannot be run: the node, and the inputs behind it whose values are a guess."""
    index = pair.old.index
    places = (index.position[node],) if node in index.position else ()
    behind = {index.names[place] for place in upstream(index, places)}
    guessed = [name for name in pair.maker.guessed() if name in behind]
    launch = index.launches.get(places[0]) if places else None
    if guessed:
        hint = f"synthetic integers lead there: {', '.join(guessed[:5])}"
    elif launch is not None and launch.kind is Kind.ALL_TO_ALL and not launch.splits:
        # As in ring attention: every rank has another neighbour, but all run this graph here.
        hint = "its split sizes are numbers, and may be those of one rank; then every rank has a graph of its own"
    elif any(note.assumed == "strides" for note in pair.old.program.notes):
        hint = "its text says no strides, and they are taken as contiguous; dump it with include_stride=True"
    else:
        hint = "the synthetic inputs do not fit this graph"
    if pair.maker.assumed:
        hint = f"{hint}; {pair.maker.assumed[0]}: --hint SYMBOL=NUMBER gives others"
    return InputError(f"BEFORE cannot be run: {reason}", hint=hint)


def _assumed(pair: Pair) -> tuple[str, ...]:
    """What was taken for granted."""
    told = {launch.group for graph in pair.old.index.with_inside() for launch in graph.launches.values()}
    fresh = sorted({launch.group for launch in pair.new.index.launches.values()} - told)
    groups = [
        f"AFTER uses group '{name}', which BEFORE does not use and which is split off from none"
        for name in fresh
        if pair.new.index.groups[name].origin is None
    ]
    racing = [
        f"BEFORE reads '{name}' without waiting for the host: taken to be there" for name in sorted(pair.blocking)
    ]
    fused = ["fused ops of tensor parallelism are run as the plain ops they stand for"]
    unfolded = fused if pair.old.unfolded or pair.new.unfolded else []
    return (*pair.layout.assumed, *groups, *pair.maker.assumed, *racing[:1], *unfolded)


def _remarks(ranks: Sequence[RankGaps]) -> tuple[str, ...]:
    """What weakens the comparison."""
    nan = list(dict.fromkeys(name for rank in ranks for name in rank.nan))
    infinite = list(dict.fromkeys(name for rank in ranks for name in rank.infinite))
    zero = [name for name in (ranks[0].compared if ranks else ()) if all(name in rank.zero for rank in ranks)]
    remarks = []
    if nan:
        few = f"{plural(len(nan), 'value')} of BEFORE with what is no number ({', '.join(nan[:3])})"
        remarks.append(f"{few}: equality there proves nothing; another --seed may give numbers everywhere")
    if infinite:
        few = f"{plural(len(infinite), 'value')} with infinities"
        remarks.append(f"{few}, as masks of attention have: {', '.join(infinite[:3])}")
    if zero:
        few = f"{plural(len(zero), 'value')} of nothing but zeros on all ranks"
        remarks.append(f"{few}, which proves little: {', '.join(zero[:3])}")
    return tuple(remarks)
