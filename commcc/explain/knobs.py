"""What would change it: moves, merging, queues, limits, splitting.

A command is named only where the registry of passes has that pass, with these options and values; else the same advice
says what would have to change, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.errors import OptionError
from commcc.base.terms import GIB, Kind, Role
from commcc.base.text import duration, least_size, listed, plural
from commcc.explain.merging import merge
from commcc.explain.parts import in_parts
from commcc.explain.reasons import move_words
from commcc.explain.trials import own_stream, trial
from commcc.explain.types import Knob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.explain.moves import Move
    from commcc.explain.reasons import Case


def knobs(case: Case) -> tuple[Knob, ...]:
    """What helps, the largest saving first, and after it what helps besides; at least one if it is exposed."""
    if not case.exposed_ns:
        return ()
    helpful = [knob for make in _MAKERS for knob in make(case)]
    helpful.sort(key=lambda knob: (knob.besides, -(knob.saves_ns or 0)))
    if not helpful:
        return (Knob(f"none: {_nothing_else(case)}"),)
    saved = sum(knob.saves_ns or 0 for knob in helpful)
    left = case.findings.cost - saved
    # Advice whose saving is not known may cover the rest.
    if left * 2 > case.findings.cost and all(knob.saves_ns is not None for knob in helpful):
        helpful.append(Knob(f"for the rest none: {_nothing_else(case, saved)}", besides=True))
    return tuple(helpful)


def command_of(name: str, **options: str) -> str | None:
    """``commcc NAME --OPTION VALUE``; None where there is no such pass, or it does not take these options."""
    from commcc.passes import registry
    from commcc.passes.options import build

    try:
        build(registry.get(name), options)
    except OptionError:
        return None
    return " ".join([f"commcc {name}", *(f"--{key.replace('_', '-')} {value}" for key, value in options.items())])


def _knob(text: str, command: str | None, then: str, saves_ns: int | None = None, besides: bool = False) -> Knob:
    """Advice with the command that follows it, if there is one. then: what the command does."""
    if command is None:
        return Knob(text, None, saves_ns, besides)
    return Knob(f"{text}; '{command}' {then}", command.split()[1], saves_ns, besides)


def _imperative(case: Case, move: Move) -> str:
    words = move_words(case, move).replace("launched", "launch it", 1)
    return words.replace("waited for", "wait for it", 1)


def _move(case: Case) -> Iterator[Knob]:
    best = case.findings.best
    if best is None:
        return
    text = f"{_imperative(case, best)}: saves {duration(best.saves_ns)} (simulated)"
    yield _knob(text, command_of("reorder"), "schedules for that", best.saves_ns)


def _beyond(case: Case) -> Iterator[Knob]:
    """Independent compute that can only overlap with it by trading places with other compute."""
    move, best = case.findings.beyond, case.findings.best
    if move is None:
        return
    saves = move.saves_ns - (best.saves_ns if best is not None else 0)
    scene, index = case.scene, case.search.context.index
    parts = []
    if move.above is not None:
        passed = [n for n in range(move.above, scene.launch) if n not in scene.before and index.compute[n]]
        if passed:
            parts.append(f"{listed(case.search.context.names(reversed(passed)))} below its launch")
    if move.below is not None and scene.first_wait is not None:
        passed = [n for n in range(scene.first_wait, move.below) if n not in scene.after and index.compute[n]]
        if passed:
            parts.append(f"{listed(case.search.context.names(passed))} above its wait")
    if not parts:
        return
    more = "" if best is None else " more"
    text = f"overlap it with independent compute ({' and '.join(parts)}): saves {duration(saves)}{more} (simulated)"
    yield _knob(text, command_of("reorder"), "schedules for that", saves, besides=best is not None)


def _limits(case: Case) -> Iterator[Knob]:
    for name, (saves, move) in case.findings.lifted.items():
        besides = case.findings.best is not None or case.findings.beyond is not None
        more = f": saves {duration(saves)}{' more' if besides else ''} (simulated)"
        if name == "window":
            text = f"allow {plural(move.trial.within, 'compute node')} between launch and wait (max_compute_prefetch)"
        elif name == "memory":
            unknown = len(case.search.context.index.estimates.unknown)
            text = f"allow a peak of {least_size(case.search.peak(move), unknown, brief=True)} (memory_budget)"
        else:
            text = f"allow {move.trial.in_flight / GIB:.1f} GiB in flight (max_in_flight_gb)"
        yield Knob(f"{text}{more}", None, saves, besides)


def _groups(case: Case) -> Iterator[Knob]:
    """A queue of its own for all of its role, or of its kind, when others share the queue."""
    if not case.search.notable(max(case.findings.queue, case.findings.queue_after)):
        return
    context, own = case.search.context, case.scene.collective
    stream = context.stream_members[context.timeline.spans[own.launch].stream]
    mates = [context.ident.by_launch[n] for n in stream]
    for what, apart in (
        (f"{own.role} collectives", [c for c in mates if c.role is not own.role]),
        (f"{own.kind} collectives", [c for c in mates if c.kind is not own.kind]),
    ):
        if not apart:
            continue
        # The other ones stay in the queue, and this kind leaves it together.
        others = {c.launch for c in apart}
        saves, move = _with_queue(case, [n for n in stream if n not in others])
        if not case.search.notable(saves):
            continue
        names = sorted({str(c.role) if c.role is not own.role else str(c.kind) for c in apart})
        best = case.findings.best
        text = f"give the {what} of group {own.group} a process group of their own, apart from {listed(names)}"
        text += f", and {_imperative(case, move)}" if move is not None and move is not best else ""
        text += f": saves {duration(saves)}{'' if best is None else ' more'} (simulated)"
        # The option names roles, and the one kind that it can split off.
        yield _knob(text, command_of("groups", roles=what.split()[0]), "does that", saves, besides=best is not None)
        return


def _with_queue(case: Case, members: list[int]) -> tuple[int, Move | None]:
    """What the step gains when ``members`` have a queue of their own, with the move that then suits best."""
    search, best = case.search, case.findings.best
    alone = own_stream(search.context, members)
    step = search.context.timeline.step_ns - (0 if best is None else best.saves_ns)
    # Moves were ranked with the shared queue; alone another one may be best, so the four best are tried again.
    legal = sorted((m for m in case.findings.moves if not search.broken(m)), key=lambda m: -m.saves_ns)
    tried = dict.fromkeys([best, None, *(m for m in legal if m is not best)][:4])
    gains = [(step - trial(search.context, case.scene, search.order(m), alone).step_ns, m) for m in tried]
    return max(gains, key=lambda gain: gain[0])


def _bucket(case: Case) -> Iterator[Knob]:
    """Merging, when latency is much of its time."""
    if not case.search.notable(case.findings.latency):
        return
    merged = merge(case.search.context, case.scene.collective)
    own = case.scene.collective
    # A bucket is what merging makes; the bytes that go into one are for whoever made it to say.
    if merged is None or own.derived == "bucket" or own.launch in case.search.context.index.merged_from:
        return
    text = f"merge it with the {merged.others} next to it on group {case.scene.collective.group}"
    together = least_size(merged.bytes, merged.unknown, brief=True)
    text += f" ({together} together): {duration(merged.merged_ns)} instead of {duration(merged.apart_ns)}"
    # A command that leaves this one alone would mislead, so its reason is said instead.
    if merged.obstacle is not None:
        why = str(merged.obstacle)
        why = why if why.startswith("its ") else f"it {why}"
        alone = f"; '{command_of('bucket')}' leaves it alone: {why}" if command_of("bucket") else ""
        yield Knob(f"{text}{alone}")
        return
    groups = {} if merged.group is None else {"groups": merged.group}
    yield _knob(text, command_of("bucket", bucket_cap_mb=f"{merged.cap_mb:g}", **groups), "does that")


def _chunk(case: Case) -> Iterator[Knob]:
    own = case.scene.collective
    if own.kind is not Kind.ALL_TO_ALL or own.role is not Role.EP or not case.search.notable(case.findings.left):
        return
    text = "split the tokens of this expert-parallel region into chunks, so that the exchange of one chunk overlaps "
    text += f"with the experts of another: {duration(case.findings.left)} is left to hide"
    yield _knob(text, command_of("ep-chunk"), "does that")


def _async_tp(case: Case) -> Iterator[Knob]:
    own, index = case.scene.collective, case.search.context.index
    if own.role is not Role.TP or not case.search.notable(case.findings.left):
        return
    before, after = case.scene.blocker, case.scene.need
    if own.kind is Kind.ALL_GATHER and after is not None and index.compute[after]:
        partner, how = after, f"all-gather -> {index.names[after]}"
    elif own.kind is Kind.REDUCE_SCATTER and before is not None and index.compute[before]:
        partner, how = before, f"{index.names[before]} -> reduce-scatter"
    else:
        return
    hides = min(case.findings.left, case.search.context.costs.ns[partner])
    text = f"split the pair {how} into pieces, the transfer of one overlapped with the product of the next "
    text += f"(asynchronous tensor parallelism): at most {duration(hides)} to hide"
    yield _knob(text, command_of("async-tp"), "does that where PyTorch's own pass can")


def _split(case: Case) -> Iterator[Knob]:
    """In parts, each beside what is computed for another, or of another."""
    parts = in_parts(case.search.context, case.scene.launch) if case.search.notable(case.findings.left) else None
    if parts is None or not case.search.notable(parts.saves_ns):
        return
    text = f"launch it in {parts.count} parts, each beside the compute of another: saves {duration(parts.saves_ns)}"
    besides = case.findings.best is not None
    yield _knob(f"{text} (simulated)", command_of("split"), "does that", parts.saves_ns, besides)


def _asynchronous(case: Case) -> Iterator[Knob]:
    if not case.search.context.index.launches[case.scene.launch].asynchronous:
        saves = case.findings.asynchronous
        yield Knob("capture the graph with an asynchronous collective and a wait in place of this op", None, saves)


def _nothing_else(case: Case, saved_ns: int = 0) -> str:
    """Why nothing in reach of the tool helps. saved_ns: what the advice that comes first saves."""
    context, launch = case.search.context, case.scene.launch
    paths, jobs, bound = context.paths, context.jobs, context.prediction.bound.ns
    step = max(bound, context.timeline.step_ns - saved_ns)
    through = paths.head[launch] + jobs.compute[launch] + jobs.transfer[launch] + paths.landed[launch]
    # A longest path that is shorter than the step is no reason: streams that are busy for longer may be.
    if _nearly(through, step):
        return f"the critical path goes through it, and takes {duration(through)} in every order"
    if case.search.notable(max(case.findings.queue, case.findings.queue_after)):
        return f"others take its place in its queue; less to send on group {case.scene.collective.group} would help"
    if case.search.notable(case.findings.cost):
        if _nearly(bound, step):
            return "less to send, or a faster link, is all that would help here"
        return "no change to it alone helps but less to send, or a faster link"
    return "other collectives overlap with it; explain those that are waited for"


def _nearly(ns: int, step_ns: int) -> bool:
    """Whether it is the step, but for 1 %."""
    return ns * 100 >= step_ns * 99


_MAKERS = (_asynchronous, _move, _beyond, _limits, _groups, _bucket, _chunk, _split, _async_tp)
