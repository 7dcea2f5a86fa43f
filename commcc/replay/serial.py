"""Runs a program as one rank of a real process group, node by node.

    RankRun(prepared, rank=0, seed=0, progress=told)(inputs)      # told("launches", "all_gather_3")

Groups must be registered under the names in the graph (:mod:`commcc.replay.ranks.groups`).

Limits: on the CPU a copy to the host is there at once, so a copy that is read too early goes unnoticed. On a CUDA
device results may not be there yet when this returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.fx.node import map_arg

from commcc.replay.place import CpuPlace, Place
from commcc.replay.values import RankResults, leaves
from commcc.replay.virtual import StepError, rank_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from commcc.replay.prepare import Prepared, Step


@dataclass(frozen=True)
class RankRun:
    """progress: told before every launch and wait what is done (``launches``, ``waits for``) and the node."""

    prepared: Prepared
    rank: int
    seed: int
    progress: Callable[[str, str], None]
    place: Place = field(default_factory=CpuPlace)

    def __call__(self, inputs: dict[str, Any]) -> RankResults:
        """Run on these inputs, which are written where the program writes them. Raises :class:`StepError`."""
        env: dict[fx.Node, Any] = {node: inputs[node.name] for node in self.prepared.inputs}
        env.update((node, self.prepared.constant(node)) for node in self.prepared.constants)
        with self.place.running(rank_seed(self.seed, self.rank)):
            for step in self.prepared.steps:
                env[step.node] = self._call(step, env)
                for node in step.frees:
                    env.pop(node, None)
        outputs = leaves(map_arg(self.prepared.output, env.__getitem__))
        return RankResults(outputs, {name: inputs[name] for name in sorted(self.prepared.written)})

    def _call(self, step: Step, env: dict[fx.Node, Any]) -> Any:
        if step.fact is not None or step.waits:
            self.progress("waits for" if step.waits else "launches", step.name)
        try:
            return step.call(*map_arg(step.args, env.__getitem__), **map_arg(step.kwargs, env.__getitem__))
        except Exception as error:
            raise StepError.of(step, error) from error
