"""Runs a program as one rank of a real process group, through Inductor.

::

    run = CompiledRun(RankRun(prepared, rank=0, seed=0, progress=told), times.step, nullcontext, Direct())
    results = run(inputs)          # the first call compiles
    run.order.kept.moved         # what Inductor has put elsewhere; () when the order is that of the graph

What is told of progress and timed is as in an eager run: launches and waits, by their nodes.

Limits: those of :mod:`commcc.replay.compiled.inductor` and :mod:`commcc.replay.compiled.calls`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from commcc.replay.compiled.calls import Listener, Order, Recorder, match
from commcc.replay.compiled.inductor import Compiled
from commcc.replay.runnable import run
from commcc.replay.serial import told

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from commcc.replay.prepare import Step
    from commcc.replay.serial import RankRun
    from commcc.replay.values import RankResults


class Network(Protocol):
    """What launches and waits go through."""

    def step(self, step: Step) -> Step:
        """A launch or a wait on this network."""

    def at_once(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """What a launch or a wait gives back, where nothing is timed."""

    @property
    def end(self) -> Step | None:
        """What comes behind the last step, if there is anything."""


class Direct:
    """Process groups, to which the ops go by themselves."""

    end = None

    def step(self, step: Step) -> Step:
        return step

    def at_once(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)


@dataclass
class CompiledRun:
    """eager: the same program node by node. wrap: of every launch and wait, as its timing. turn: held while it
    compiles, so that ranks can take turns.
    """

    eager: RankRun
    wrap: Callable[[Step], Step]
    turn: Callable[[], AbstractContextManager[None]]
    network: Network
    order: Order | None = field(default=None, init=False)
    _compiled: Compiled | None = field(default=None, init=False)
    _listener: Listener | None = field(default=None, init=False)
    _end: Callable[[], object] | None = field(default=None, init=False)

    def __call__(self, inputs: dict[str, Any]) -> RankResults:
        """Run on these inputs, which are written where the program writes them. Raises :class:`CompileError`."""
        self.compile(inputs)
        return run(self, inputs)

    def running(self) -> AbstractContextManager[None]:
        """How everything is set up while the program runs."""
        return self.eager.running()

    def results(self, outputs: list[Any], inputs: dict[str, Any]) -> RankResults:
        """With the inputs that it writes."""
        return self.eager.results(outputs, inputs)

    def compile(self, inputs: dict[str, Any]) -> None:
        """Compile for inputs like these, unless it is done."""
        if self._compiled is None:
            with self.turn(), self.running():
                self._compiled = Compiled(self.eager.prepared, inputs)

    def outputs(self, inputs: dict[str, Any]) -> list[Any]:
        """What a compiled program gives back; the first run is watched call by call."""
        assert self._compiled is not None, "compile comes first"
        if self._listener is None:
            return self._watched(self._compiled, inputs)
        with self._listener:
            found = self._compiled(inputs)
        if self._end is not None:
            self._end()
        return found

    def _watched(self, compiled: Compiled, inputs: dict[str, Any]) -> list[Any]:
        progress = self.eager.progress
        with Recorder(self.network.at_once, progress) as seen:
            found = compiled(inputs)
        self.order = match(self.eager.prepared, seen.calls)
        self._listener = Listener(self.order, lambda step: told(self.wrap(self.network.step(step)), progress))
        if self.network.end is not None:
            self._end = told(self.wrap(self.network.end), progress).call
        return found
