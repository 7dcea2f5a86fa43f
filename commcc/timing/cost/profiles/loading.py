"""Finds the files of a profile, reads each, and puts their times together.

A path is a trace (``.json``, ``.json.gz``), a folder of traces as ``tensorboard_trace_handler`` writes
them (``*.pt.trace.json``, also ``.gz``), or a YAML profile (``.yaml``, ``.yml``). Several files are one
profile: ops in one pool, traces as the ranks of one run. A rank that wrote several traces counts once.

Which op the time of a trace belongs to::

    aten::linear ------------------      CPU only: linear 18 us, addmm 12 us (each with what it calls)
      aten::t --   aten::addmm -----     GPU: a kernel of 500 us launched in addmm counts 500 us for addmm
                       launch            and 500 us for linear, once each

A trace where anything ran on a device counts kernels, copies and fills, wherever on the device they
ran; an op that launched none gives nothing. Otherwise an op counts its duration on the CPU. Kernels of
collectives count for no op. An op inside a call of the same op with the same inputs is not counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from commcc.base.errors import InputError
from commcc.base.gc_pause import no_collection
from commcc.timing.cost.profiles.measured import CollectiveKey, Occurrence, Pool
from commcc.timing.cost.profiles.profile_yaml import read_profile
from commcc.timing.cost.profiles.source import ProfileSource
from commcc.timing.cost.profiles.trace import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commcc.timing.cost.profiles.measured import OpKey
    from commcc.timing.cost.profiles.trace import Call, Trace


_MOST_FILES = 20_000
_TRACES = (".pt.trace.json", ".pt.trace.json.gz")
_KINDS = "a trace (.json, .json.gz), a folder of *.pt.trace.json, or a profile (.yaml)"
_RECORD = "record with torch.profiler.profile(record_shapes=True) and export_chrome_trace"


@no_collection()
def load_profile(paths: Sequence[str]) -> ProfileSource:
    """Read all files into one source of prices.

    :class:`~commcc.base.errors.InputError`, with file and line, for what cannot be read, for a trace without
    shapes and for one in which nothing can be used.
    """
    pool = Pool()
    traces = _Traces()
    for path in paths:
        for file in _files(Path(path)):
            if file.suffix.lower() in (".yaml", ".yml"):
                read_profile(file, pool)
            else:
                traces.read(file)
    traces.add_to(pool)
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    name = f"profile {Path(paths[0]).name}{more}" if paths else "profile"
    return ProfileSource(name, pool.profile())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        name = path.name.lower()
        if not name.endswith((".json", ".json.gz", ".yaml", ".yml")):
            raise InputError("is not a file that a profile can be read from", where=str(path), hint=f"give {_KINDS}")
        return [path]
    try:
        entries = list(islice(path.iterdir(), _MOST_FILES + 1))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    if len(entries) > _MOST_FILES:
        raise InputError(f"holds more than {_MOST_FILES} files", where=str(path))
    traces = [entry for entry in entries if entry.name.endswith(_TRACES) and entry.is_file()]
    if not traces:
        raise InputError("the folder holds no *.pt.trace.json or *.pt.trace.json.gz", where=str(path), hint=_RECORD)
    # By the numbers in the names, so that rank10 follows rank9.
    pieces = {entry: re.split(r"(\d{1,18})", entry.name) for entry in traces}
    return sorted(traces, key=lambda e: [(int(part), "") if part.isdecimal() else (-1, part) for part in pieces[e]])


@dataclass
class _Side:
    """Traces of one kind. names: of the files. by_rank: collectives of each rank, in order of time."""

    names: list[str] = field(default_factory=list)
    pool: Pool = field(default_factory=Pool)
    by_rank: dict[object, list[Occurrence]] = field(default_factory=dict)


class _Traces:
    """Takes the times out of one trace after the other, so that only one is in memory.

    Traces in which nothing ran on a device are left out when there are others: a rank that recorded
    only its CPU would mix the times of launches with those of kernels.
    """

    def __init__(self) -> None:
        self._device, self._host = _Side(), _Side()
        self._warnings: list[str] = []

    def read(self, path: Path) -> None:
        """Add one file."""
        trace = read_trace(path)
        side = self._device if trace.on_device else self._host
        used = 0
        for key, arguments, ns in op_times(trace):
            side.pool.op(key, ns, arguments=arguments)
            used += 1
        occurrences = trace.occurrences if trace.on_device else self._gloo(trace)
        self._check(trace, ops=used, collectives=len(occurrences))
        side.names.append(path.name)
        # A trace that names no rank counts as a rank of its own.
        side.by_rank.setdefault(path if trace.rank is None else trace.rank, []).extend(occurrences)

    def add_to(self, pool: Pool) -> None:
        """Put everything that was read into ``pool``."""
        # See the class: launch times on a CPU are no times of kernels.
        side = self._device if self._device.names else self._host
        pool.ops.update(side.pool.ops)
        pool.occurrences(side.by_rank.values())
        pool.warnings += self._warnings
        if side is self._device:
            pool.warnings += [f"{name} is left out: nothing ran on a device there" for name in self._host.names]

    def _gloo(self, trace: Trace) -> list[Occurrence]:
        """Collectives of gloo, whose group the trace does not name: its size is known if all are alike."""
        if len(trace.groups) == 1:
            (size,) = trace.groups
            return [Occurrence("gloo", CollectiveKey(kind, size, sent), ns) for _, kind, sent, ns in trace.gloo]
        if trace.gloo:
            sizes = ", ".join(map(str, sorted(trace.groups))) or "unknown"
            what = f"{len(trace.gloo)} gloo collectives are left out"
            self._warnings.append(f"{trace.path.name}: {what}: the process groups have several sizes ({sizes})")
        return []

    def _check(self, trace: Trace, *, ops: int, collectives: int) -> None:
        name = trace.path.name
        if not ops and not collectives:
            if any(trace.calls.values()) and not trace.shapes:
                raise InputError("the trace has no input shapes", where=str(trace.path), hint=_RECORD)
            what = "the trace holds no op with tensor inputs and no collective of known size"
            raise InputError(what, where=str(trace.path), hint=_RECORD)
        if not trace.shapes:
            self._warnings.append(f"{name}: no input shapes were recorded (record_shapes=True), its ops are left out")
        if trace.unsized:
            self._warnings.append(f"{name}: {trace.unsized} collectives are left out, their size is not recorded")


def op_times(trace: Trace) -> Iterator[tuple[OpKey, str, int]]:
    """Every call of an op that can be matched: its key, its other arguments and its time in ns."""
    for calls in trace.calls.values():
        yield from _thread_times(calls, on_device=trace.on_device)


@dataclass(slots=True)
class _Open:
    """A call that has not ended yet, with the device work of what it called so far."""

    call: Call
    outermost: bool
    ns: int
    launched: int


def _thread_times(calls: list[Call], *, on_device: bool) -> Iterator[tuple[OpKey, str, int]]:
    """Calls of one thread; a call is inside another that began no later and has not ended."""
    stack: list[_Open] = []
    keys: set[OpKey] = set()

    def close() -> Iterator[tuple[OpKey, str, int]]:
        done = stack.pop()
        if stack:
            stack[-1].ns += done.ns
            stack[-1].launched += done.launched
        call = done.call
        if call.key is None or not done.outermost:
            return
        # An op inside a call of itself was counted with the outer call.
        keys.discard(call.key)
        if not on_device:
            yield call.key, call.arguments, call.end - call.start
        elif done.launched:
            yield call.key, call.arguments, done.ns

    # Of two that begin together the longer is outside, and of two alike the one with the lower id.
    for call in sorted(calls, key=lambda call: (call.start, -call.end, call.external)):
        while stack and stack[-1].call.end <= call.start:
            yield from close()
        stack.append(_Open(call, call.key not in keys, call.own_ns, call.launched))
        if call.key is not None:
            keys.add(call.key)
    while stack:
        yield from close()
