"""What compiled code launches when, against the plan, and how long compiling takes with commcc in it.

    call = watched(compiled.current_callable, program, told)     # the first run is watched, told(OrderKept) after it
    with clock.compiling(): ...                                  # everything that a backend does
    with clock.ours(): ...                                       # and what of it is commcc's
    clock.share                                                  # 0.07

Limits: those of :mod:`commcc.replay.compiled.calls`. Dynamo's own time, before it calls a backend, is not counted.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.errors import bug
from commcc.graph.ops import collective_of, is_wait
from commcc.replay.compiled.calls import OrderKept, Recorder, order_of
from commcc.replay.prepare import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from commcc.graph.program import Program

log = logging.getLogger("commcc.live")


@dataclass
class Clock:
    """Seconds of compiling, and those of them that are commcc's; nested intervals count once."""

    total: float = 0.0
    own: float = 0.0
    _began: float | None = None

    @contextmanager
    def compiling(self) -> Iterator[None]:
        if self._began is not None:
            yield
            return
        self._began = time.perf_counter()
        try:
            yield
        finally:
            self.total += time.perf_counter() - self._began
            self._began = None

    @contextmanager
    def ours(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.own += time.perf_counter() - began

    @property
    def so_far(self) -> float:
        """Seconds of compiling, up to now where it goes on."""
        return self.total + (0.0 if self._began is None else time.perf_counter() - self._began)

    @property
    def share(self) -> float | None:
        """None where nothing but commcc has been timed, as in a list of passes."""
        total = self.so_far
        return self.own / total if total > 0 else None


def watched(call: Callable[..., Any], program: Program, told: Callable[[OrderKept], None]) -> Callable[..., Any]:
    """``call``, of whose first run ``told`` learns whether communication is where the program has it.

    A bug in that ends no job.
    """
    waiting = [program]

    def first(*args: Any) -> Any:
        if not waiting:
            return call(*args)
        planned = waiting.pop()
        with Recorder(lambda op, *args, **kwargs: op(*args, **kwargs), lambda _what, _name: None) as seen:
            result = call(*args)
        try:
            told(order_of(_steps(planned), seen.calls).kept)
        except Exception as error:
            log.warning("the order of compiled code is not compared: %s", bug(error, "the job goes on"))
        return result

    return first


def _steps(program: Program) -> list[Step]:
    """Its calls."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return [
        Step(node, node.target, node.args, node.kwargs, collective_of(node.target), (), waits=is_wait(node.target))
        for node in calls
    ]
