"""How long steps take, one by one: those at which a rank stands still for communication, or all of them.

::

    times = StepTimes(place)                           # waits; StepTimes(place, which=every) takes all steps
    steps = tuple(map(times.step, prepared.steps))     # the same steps, timed
    ...                                                # run them
    times.taken()                                      # {'wait_tensor_3': 120_000, ...} nanoseconds, of this run

On the CPU that is the time in the calls; on a CUDA device the time between what was queued before the call and
what is queued after it: for a wait what the stream of the rank stood still.

Limits: a host that is late with its launches lets a device stand still as well, which no wait shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.replay.place import Place
    from commcc.replay.prepare import Step


def holds_up(step: Step) -> bool:
    """Whether a rank stands still at this step until a collective has ended."""
    return step.waits or (step.fact is not None and not step.fact.asynchronous)


def every(_step: Step) -> bool:
    """All steps."""
    return True


@dataclass
class StepTimes:
    """Stamps around steps of one run after the other; which: the steps to time."""

    place: Place
    which: Callable[[Step], bool] = holds_up
    _stamps: list[tuple[str, Any, Any]] = field(default_factory=list)

    def step(self, step: Step) -> Step:
        """A step as it is, or timed if it is to be."""
        return replace(step, call=self.timed(step.name, step.call)) if self.which(step) else step

    def forget(self) -> None:
        """A new run begins."""
        self._stamps.clear()

    def taken(self) -> dict[str, int]:
        """Nanoseconds of each step since :meth:`forget`, by node; the place must have been synchronized."""
        return {name: self.place.elapsed_ns(start, end) for name, start, end in self._stamps}

    def newest(self) -> str | None:
        """The newest wait of this run that the rank's device has ended; any thread may ask."""
        return next((name for name, _, end in reversed(tuple(self._stamps)) if self.place.reached(end)), None)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that counts under this name."""
        place, stamps = self.place, self._stamps

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = place.stamp()
            try:
                return call(*args, **kwargs)
            finally:
                stamps.append((name, start, place.stamp()))

        return timed
