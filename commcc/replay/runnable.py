"""What a program can be run by, whichever way: op by op, compiled, or as a recorded CUDA graph.

with run.running():                 # set up, and random numbers begun anew
    outputs = run.outputs(inputs)   # this is what is timed
results = run.results(outputs, inputs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from commcc.replay.values import RankResults

#: Inputs of one rank by name.
Inputs = dict[str, Any]


class Runnable(Protocol):
    """One program on one rank."""

    def running(self) -> AbstractContextManager[None]:
        """How everything is set up while it runs."""

    def outputs(self, inputs: Inputs) -> list[Any]:
        """Run it on these inputs, which are written where the program writes them."""

    def results(self, outputs: list[Any], inputs: Inputs) -> RankResults:
        """Outputs with the inputs that it writes."""


def run(program: Runnable, inputs: Inputs) -> RankResults:
    """All of it."""
    with program.running():
        outputs = program.outputs(inputs)
    return program.results(outputs, inputs)
