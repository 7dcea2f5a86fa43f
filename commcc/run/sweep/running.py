"""Runs the settings of a sweep, in processes of their own when there is more than one core.

Processes are started afresh and read the graph themselves: what they get is text and numbers. Passes at
the start of the pipeline that no parameter concerns run once in each.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from commcc.base.errors import CommccError, InputError, InternalError
from commcc.run.sweep.outcome import Outcome, SweepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from commcc.graph.program import Program
    from commcc.run.sweep.grid import Grid
    from commcc.timing.cost import CostModel


@dataclass(frozen=True)
class Task:
    """What every setting has in common: the graph by path, and what prices it."""

    graph: str
    trust: bool
    model: CostModel
    hints: Mapping[str, int]
    ops: str | None = None
    imports: tuple[str, ...] = ()


class Worker:
    """Runs settings one after the other on a graph that it has read once."""

    def __init__(self, task: Task, fixed: str, program: Program | None = None) -> None:
        from commcc import serialization
        from commcc.passes.options import parse_pipeline
        from commcc.run import pipeline

        self.task = task
        if program is None:
            from commcc.serialization.op_files import read_with

            program = serialization.load(task.graph, trust=task.trust, descriptions=read_with(task.ops, task.imports))
        self.program = program
        if fixed:
            self.program = pipeline.run(self.program, parse_pipeline(fixed), model=task.model, hints=task.hints).program

    def run(self, text: str) -> Outcome:
        """The outcome of the passes in ``text``; a pass that cannot run gives an outcome with an error."""
        from commcc.passes.options import parse_pipeline
        from commcc.run import pipeline

        start = time.perf_counter()
        try:
            result = pipeline.run(self.program, parse_pipeline(text), model=self.task.model, hints=self.task.hints)
        # A bug in commcc must not pass for a setting that does not work.
        except InternalError:
            raise
        except CommccError as error:
            return Outcome({}, error=error.render(), seconds=time.perf_counter() - start)
        metrics = result.last.to_json()
        return Outcome(metrics, result.verified, result.changed, time.perf_counter() - start)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sweep(
    grid: Grid, task: Task, program: Program, *, jobs: int = 0, progress: Callable[[int], None] | None = None
) -> SweepResult:
    """Run every setting; ``progress`` is told how many are done. jobs: processes, 0 for one on each core.

    program: the graph of ``task``, read already.
    """
    from commcc.timing import snapshot

    seen = snapshot.take(program, task.model, task.hints)
    done: dict[int, Outcome] = {}
    for number, outcome in _outcomes(grid, task, program, min(jobs or cores(), len(grid.points))):
        done[number] = outcome
        if progress is not None:
            progress(len(done))
    return SweepResult(grid, tuple(done[number] for number in range(len(grid.points))), seen)


def _outcomes(grid: Grid, task: Task, program: Program, jobs: int) -> Iterator[tuple[int, Outcome]]:
    from commcc.passes.options import to_text

    fixed = ",".join(map(to_text, grid.points[0].passes[: grid.fixed]))
    texts = [",".join(map(to_text, point.passes[grid.fixed :])) for point in grid.points]
    if jobs <= 1:
        worker = Worker(task, fixed, program)
        yield from ((number, worker.run(text)) for number, text in enumerate(texts))
        return
    # A fork would copy the threads of PyTorch and LLVM in whatever state they are.
    context = multiprocessing.get_context("spawn")
    packed = pickle.dumps((task, fixed))
    # Only the process that people started answers Ctrl-C; it ends the others.
    leave_interrupts = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(jobs, context, initializer=signal.signal, initargs=leave_interrupts) as pool:
        waiting = {pool.submit(_run, packed, text): number for number, text in enumerate(texts)}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BrokenProcessPool:
            raise InputError(
                "a process of the sweep died", where=task.graph, hint="it may have run out of memory; try --jobs 1"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@cache
def _worker(packed: bytes) -> Worker:
    """The worker of this process, built when its first setting comes."""
    task, fixed = pickle.loads(packed)
    return Worker(task, fixed)


def _run(packed: bytes, text: str) -> Outcome:
    return _worker(packed).run(text)
