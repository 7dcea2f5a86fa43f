"""A run recorded once as a CUDA graph and replayed: no launch costs the host anything any more.

::

    require_capturable(prepared, "graph 1")        # InputError with the node and why, before any rank is started
    run = CapturedRun(RankRun(...), place)
    ready = run.ready(inputs)                      # the first time it warms up and records; copies what is given
    results = run(ready)                           # replays

What can be recorded: no host that waits for the device, no size that depends on data, nothing on the CPU. A recorded
program reads and writes the memory that it was recorded with, so that inputs are copied there before each replay.

Limits: nothing can be timed or told within a replay, launches and waits least of all. Memory of inputs is kept twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import InputError
from commcc.replay.place import CUDA
from commcc.replay.rank_run import run
from commcc.replay.values import RankResults, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import fx

    from commcc.replay.prepare import Prepared
    from commcc.replay.rank_run import Runnable

#: Runs before the recording: communicators, workspaces and libraries are set up in the first ones.
WARM_UPS = 3


@dataclass
class CapturedRun:
    """A program on the current CUDA device. told: what the rank is at, for its last words."""

    program: Runnable
    told: Callable[[str], None]
    _graph: Any = field(default=None, init=False)
    _inputs: dict[str, Any] = field(default_factory=dict, init=False)
    _outputs: list[Any] = field(default_factory=list, init=False)

    def ready(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Bring inputs to where the graph reads them; the first time the graph is recorded."""
        if self._graph is None:
            self._inputs = {
                name: value.clone(memory_format=torch.preserve_format) if isinstance(value, torch.Tensor) else value
                for name, value in inputs.items()
            }
            self._record(inputs)
        self._restore(inputs)
        return self._inputs

    def __call__(self, inputs: dict[str, Any]) -> RankResults:
        """Run once on inputs that :meth:`ready` gave, or on others, which are copied first."""
        return run(self, self._inputs if inputs is self._inputs else self.ready(inputs))

    def running(self) -> AbstractContextManager[None]:
        return self.program.running()

    def outputs(self, inputs: dict[str, Any]) -> list[Any]:
        """Replay; ``inputs`` are those that :meth:`ready` gave."""
        assert inputs is self._inputs, "the graph reads its own inputs"
        self.told("replays a CUDA graph")
        self._graph.replay()
        return self._outputs

    def results(self, outputs: list[Any], inputs: dict[str, Any]) -> RankResults:
        return self.program.results(outputs, inputs)

    def release(self) -> None:
        """Destroy the graph: NCCL waits for all graphs that hold its collectives before a communicator can go."""
        if self._graph is not None:
            self._graph.reset()
        self._graph, self._outputs = None, []

    def _record(self, inputs: dict[str, Any]) -> None:
        # Each run begins with what was given, since a program may write its inputs.
        # mypy: it has no annotations.
        make: Any = torch.cuda.Stream
        stream = make()
        stream.wait_stream(torch.cuda.current_stream())
        with self.program.running(), torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.program.outputs(self._inputs)
                self._restore(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.told("records a CUDA graph")
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as the one with which NCCL watches its work, may call CUDA meanwhile.
        with self.program.running(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._outputs = self.program.outputs(self._inputs)
        self._graph = graph

    def _restore(self, inputs: dict[str, Any]) -> None:
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor) and value is not self._inputs[name]:
                self._inputs[name].copy_(value)


def require_capturable(prepared: Prepared, called: str) -> None:
    """Raise :class:`InputError` for a program that cannot be recorded; called: what to call it."""
    if prepared.homes.device != CUDA:
        raise InputError("--cuda-graphs needs a CUDA device", hint="leave it out on the CPU, where nothing is queued")
    problems = list(_problems(prepared))
    if problems:
        node, reason = problems[0]
        more = f", and {len(problems) - 1} more nodes" if len(problems) > 1 else ""
        raise InputError(
            f"{called} cannot be recorded as a CUDA graph: at node '{node}' {reason}{more}",
            hint="leave --cuda-graphs away, or make the graph static; commcc explain shows host syncs",
        )


def _problems(prepared: Prepared) -> Iterator[tuple[str, str]]:
    """Nodes that cannot be recorded, with the reason."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    def on_host(node: fx.Node) -> bool:
        return any(prepared.homes.of(tensor.device).type == "cpu" for tensor in tensors_in(node.meta.get("val")))

    for node in (*prepared.inputs, *prepared.constants):
        if on_host(node):
            yield node.name, "a tensor is on the CPU"
    for step in prepared.steps:
        if step.host_wait or step.host_copy is not None:
            yield step.name, "the host waits for the device, or is sent something"
        elif on_host(step.node):
            yield step.name, "a tensor is on the CPU"
        elif any(free_unbacked_symbols(tensor) for tensor in tensors_in(step.node.meta.get("val"))):
            yield step.name, "sizes depend on data"
