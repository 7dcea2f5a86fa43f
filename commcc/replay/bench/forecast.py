"""What the simulator predicted for a graph, next to what was measured: for the step, by kind and by collective.

::

    result = forecast(prepared.index, prediction, times, step_ns=27_000_000, exposed_ns=20_000_000)
    result.step.error                     # -0.92: predicted 92 % too short
    result.collectives[0].transfer        # Compared(measured=540_000, predicted=71_000)

    model_text("", device="cpu")                     # 'laptop-cpu,fused=no': the cost text that predicts a replay
    model_text("h100,skew=1.2", device="cuda")       # 'h100,skew=1.2,fused=no'

An eager replay calls ops one by one, so nothing is fused unless the text says so. An error is (predicted - measured)
/ measured. The step is the sum of four parts: compute, launches, time that the rank stalls for communication, and the
rest, which is what the host needs between ops. What late ranks and outliers cost within collectives makes them
exposed for longer; the simulator knows one rank only, and no late ones.

Limits: parts are measured in runs of their own, so they do not add up to the step exactly. Without a cost text a CUDA
device is told by the name that it has; one that is not known counts as an H100.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch

from commcc.replay.place import CUDA
from commcc.timing.cost import load_model
from commcc.timing.cost.devices import device_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.base.terms import Json, Kind
    from commcc.graph.index import GraphIndex
    from commcc.replay.bench.recording import NodeTimes
    from commcc.timing.cost import CostModel
    from commcc.timing.predict import Prediction

#: Processes on one machine's CPU that talk through gloo; a CUDA device that is not known.
_CPU_MODEL, _CUDA_MODEL = "laptop-cpu", "h100-sxm"


@dataclass(frozen=True)
class Compared:
    """Nanoseconds, or a share; measured: None where it is not known."""

    measured: float | None
    predicted: float | None

    @property
    def error(self) -> float | None:
        """Of the measured value; None where there is none, or it is 0."""
        return self.predicted / self.measured - 1 if self.measured and self.predicted is not None else None

    def to_json(self, digits: int = 6, scale: float = 1e-6) -> dict[str, Json]:
        """Milliseconds, or with a scale of 1 as it is."""
        return {
            "measured": _scaled(self.measured, scale, digits),
            "predicted": _scaled(self.predicted, scale, digits),
            "error": _scaled(self.error, 1.0, 4),
        }


@dataclass(frozen=True)
class CollectiveForecast:
    """One collective. transfer: time on its group's stream. exposed: time that the rank stood still for it.

    unknown: a size of what it sends has no number, so that bytes are those that are known.
    """

    node: str
    kind: Kind
    group: str
    bytes: int
    transfer: Compared
    exposed: Compared
    unknown: bool = False

    def to_json(self) -> dict[str, Json]:
        return {
            "node": self.node,
            "kind": str(self.kind),
            "group": self.group,
            "bytes": self.bytes,
            **({"unknown_size": True} if self.unknown else {}),
            "transfer_ms": self.transfer.to_json(),
            "exposed_ms": self.exposed.to_json(),
        }


@dataclass(frozen=True)
class KindForecast:
    """All collectives of a kind whose time was measured. count: those; of: all there are."""

    kind: Kind
    count: int
    of: int
    transfer: Compared
    exposed: Compared

    def to_json(self) -> dict[str, Json]:
        return {
            "kind": str(self.kind),
            "count": self.count,
            "of": self.of,
            "transfer_ms": self.transfer.to_json(),
            "exposed_ms": self.exposed.to_json(),
        }


@dataclass(frozen=True)
class Forecast:
    """One graph, nanoseconds. hidden_share: of communication, 0 to 1."""

    step: Compared
    compute: Compared
    launches: Compared
    exposed: Compared
    rest: Compared
    communication: Compared
    late: Compared
    hidden_share: Compared
    kinds: tuple[KindForecast, ...]
    collectives: tuple[CollectiveForecast, ...]

    @property
    def typical_error(self) -> float | None:
        """Median over collectives of the size of the error of their time."""
        errors = [abs(e) for collective in self.collectives if (e := collective.transfer.error) is not None]
        return median(errors) if errors else None

    def to_json(self) -> dict[str, Json]:
        return {
            "step_ms": self.step.to_json(),
            "compute_ms": self.compute.to_json(),
            "launches_ms": self.launches.to_json(),
            "exposed_ms": self.exposed.to_json(),
            "rest_ms": self.rest.to_json(),
            "communication_ms": self.communication.to_json(),
            "late_ranks_ms": self.late.to_json(),
            "hidden_share": self.hidden_share.to_json(scale=1.0),
            "typical_error": _scaled(self.typical_error, 1.0, 4),
            "kinds": [kind.to_json() for kind in self.kinds],
            "collectives": [collective.to_json() for collective in self.collectives],
        }


def forecast(
    index: GraphIndex, prediction: Prediction, times: NodeTimes, *, step_ns: float, exposed_ns: float
) -> Forecast:
    """Put a prediction next to what was measured of the same graph. step_ns, exposed_ns: of the runs that count."""
    timeline = prediction.timeline
    collectives = tuple(_collective(index, prediction, times, node) for node in sorted(index.launches))
    names = {index.names[node] for node in index.launches}
    compute = sum(ns for node, ns in times.ops.items() if node not in names)
    launches = sum(ns for node, ns in times.ops.items() if node in names)
    known = all(collective.transfer.measured is not None for collective in collectives)
    moved = sum(collective.transfer.measured or 0 for collective in collectives) if known else None
    hidden = 1 - min(exposed_ns / moved, 1) if moved else None
    return Forecast(
        step=Compared(step_ns, timeline.step_ns),
        compute=Compared(compute, timeline.compute_ns + timeline.slowed_ns),
        launches=Compared(launches, timeline.launch_ns),
        exposed=Compared(exposed_ns, timeline.exposed_ns),
        rest=Compared(max(0.0, step_ns - compute - launches - exposed_ns), 0),
        communication=Compared(moved, timeline.communication_ns),
        late=Compared(sum(times.late.values()) if times.late else None, 0),
        hidden_share=Compared(hidden, timeline.hidden_share),
        kinds=tuple(_kinds(collectives)),
        collectives=collectives,
    )


def _collective(index: GraphIndex, prediction: Prediction, times: NodeTimes, node: int) -> CollectiveForecast:
    launch, name = index.launches[node], index.names[node]
    waits = [index.names[wait] for wait in launch.waits] or [name]
    waited = [times.waits[wait] for wait in waits if wait in times.waits]
    tensors = [index.tensors[i] for i in launch.inputs]
    return CollectiveForecast(
        name,
        launch.kind,
        launch.group,
        sum(tensor.bytes for tensor in tensors if tensor is not None),
        Compared(times.transfers.get(name), prediction.timeline.spans[node].ns),
        Compared(sum(waited) if waited else None, prediction.timeline.exposed.get(node, 0)),
        unknown=any(tensor is None or tensor.numel is None for tensor in tensors),
    )


def _kinds(collectives: Iterable[CollectiveForecast]) -> Iterable[KindForecast]:
    by_kind: dict[Kind, list[CollectiveForecast]] = {}
    for collective in collectives:
        by_kind.setdefault(collective.kind, []).append(collective)
    for kind, of_kind in sorted(by_kind.items()):
        known = [collective for collective in of_kind if collective.transfer.measured is not None]
        yield KindForecast(
            kind,
            len(known),
            len(of_kind),
            _sum([collective.transfer for collective in known]),
            _sum([collective.exposed for collective in known if collective.exposed.measured is not None]),
        )


def _sum(parts: list[Compared]) -> Compared:
    if not parts:
        return Compared(None, None)
    return Compared(sum(part.measured or 0 for part in parts), sum(part.predicted or 0 for part in parts))


def _scaled(value: float | None, scale: float, digits: int) -> float | None:
    return None if value is None else round(value * scale, digits)


def model_text(text: str, *, device: str, compiled: bool = False) -> str:
    """The cost text that counts for a replay; text: what was asked for, may be empty."""
    chosen = text or _CPU_MODEL
    if not text and device == CUDA:
        # The device file whose name is in what the driver calls the device (``NVIDIA H200``).
        name = torch.cuda.get_device_name().lower() if torch.cuda.is_available() else ""
        words = name.replace(" ", "-").split("-")
        chosen = next((known for known in device_names() if known.partition("-")[0] in words), _CUDA_MODEL)
    return chosen if compiled else with_settings(chosen, {"fused": "no"})


def with_settings(text: str, settings: Mapping[str, str]) -> str:
    """A cost text with these settings, unless it has them already."""
    keys = {part.partition("=")[0].strip() for part in text.split(",")}
    return ",".join([text, *(f"{key}={value}" for key, value in settings.items() if key not in keys)])


def replay_model(text: str, *, device: str, compiled: bool = False) -> CostModel:
    """The model of :func:`model_text`. Raises :class:`CommccError` for a wrong text or file."""
    return load_model(model_text(text, device=device, compiled=compiled))
