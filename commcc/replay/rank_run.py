"""Runs a program as one rank of a real process group, node by node.

::

    RankRun(prepared, rank=0, seed=0, progress=told)(inputs)      # told("launches", "all_gather_3")

    with run.running():                 # set up, and random numbers begun anew; so for every Runnable
        outputs = run.outputs(inputs)   # this is what is timed
    results = run.results(outputs, inputs)

Groups must be registered under the names in the graph (:mod:`commcc.replay.ranks.worker`).

Limits: on the CPU a copy to the host is there at once, so a copy that is read too early goes unnoticed. On a CUDA
device results may not be there yet when this returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch

from commcc.graph.ops import is_wait
from commcc.replay.codegen import GeneratedCode
from commcc.replay.place import CpuPlace, Place
from commcc.replay.values import RankResults, leaves, tensors_in
from commcc.replay.virtual import rank_seed

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import fx

    from commcc.replay.prepare import Prepared, Step

#: Inputs of one rank by name.
Inputs = dict[str, Any]


class Runnable(Protocol):
    """One program on one rank, however it runs: op by op, compiled, or as a recorded CUDA graph."""

    def running(self) -> AbstractContextManager[None]:
        """How everything is set up while it runs."""

    def outputs(self, inputs: Inputs) -> list[Any]:
        """Run it on these inputs, which are written where the program writes them."""

    def results(self, outputs: list[Any], inputs: Inputs) -> RankResults:
        """Outputs with the inputs that it writes."""


def run(program: Runnable, inputs: Inputs) -> RankResults:
    """All of it, and the wait for what it returns in flight, which is another graph's part."""
    with program.running():
        outputs = program.outputs(inputs)
        for tensor in tensors_in(outputs):
            torch.ops._c10d_functional.wait_tensor(tensor)  # nothing for what is there already
    return program.results(outputs, inputs)


@dataclass(frozen=True)
class RankRun:
    """progress: told before every launch and wait what is done (``launches``, ``waits for``) and the node."""

    prepared: Prepared
    rank: int
    seed: int
    progress: Callable[[str, str], None]
    place: Place = field(default_factory=CpuPlace)

    def __call__(self, inputs: Inputs) -> RankResults:
        """Run on these inputs, which are written where the program writes them. Raises :class:`StepError`."""
        return run(self, inputs)

    def running(self) -> AbstractContextManager[None]:
        """How everything is set up while the program runs."""
        return self.place.running(rank_seed(self.seed, self.rank))

    def outputs(self, inputs: Inputs) -> list[Any]:
        """What the program returns, with everything set up."""
        return leaves(self._run(inputs))

    def results(self, outputs: list[Any], inputs: Inputs) -> RankResults:
        """With the inputs that it writes."""
        return RankResults(outputs, {name: inputs[name] for name in sorted(self.prepared.written)})

    @cached_property
    def _run(self) -> GeneratedCode:
        steps = tuple(told(step, self.progress) for step in self.prepared.steps)
        return GeneratedCode(replace(self.prepared, steps=steps, network=self._inside))

    def _inside(self, node: fx.Node, call: Callable[..., Any]) -> Callable[..., Any]:
        """A launch or a wait of a sub-graph, which says first what it is about to do."""
        own = call if self.prepared.network is None else self.prepared.network(node, call)
        return telling(own, "waits for" if is_wait(node.target) else "launches", node.name, self.progress)


def told(step: Step, tell: Callable[[str, str], None]) -> Step:
    """A step as it is, or a launch or a wait that says first what it is about to do."""
    if step.fact is None and not step.waits:
        return step
    doing = "waits for" if step.waits else "launches"
    return replace(step, call=telling(step.call, doing, step.name, tell))


def telling(call: Callable[..., Any], doing: str, name: str, tell: Callable[[str, str], None]) -> Callable[..., Any]:
    """The call, which first tells what it does with which node."""

    def telling_call(*args: Any, **kwargs: Any) -> Any:
        tell(doing, name)
        return call(*args, **kwargs)

    return telling_call
