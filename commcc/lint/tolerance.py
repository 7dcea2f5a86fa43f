"""Metrics that a baseline holds, and how much worse than it each may be.

    read_tolerance("step_ms", "2 %")            # Tolerance(relative=0.02)
    read_tolerance("peak_bytes", "100 MiB")     # Tolerance(absolute=104857600)
    tolerance_of("collectives.all_gather", {"collectives": Tolerance(absolute=5)})

Metrics go by dotted names; a tolerance for ``collectives`` is for all of its kinds, ``default`` for whatever has
none. Shares are compared in points: 1 % of ``hidden_share`` is one point. Metrics that by themselves are neither
better nor worse for being more (nodes, compute, the lower bound, runs of compute without a gather) are stored, and
compared only where they have a tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.terms import Kind
from commcc.lint.quantities import BYTES, COUNT, SHARE, TIME, Quantity

if TYPE_CHECKING:
    from commcc.base.terms import Json

DEFAULT = "default"
#: Metrics of :class:`commcc.graph.metrics.GraphMetrics` that are mappings by kind.
FAMILIES = ("collectives", "bytes", "max_consecutive_compute")
#: What a cost model makes.
TIMED = ("step_ms", "exposed_ms", "communication_ms", "compute_ms", "lower_bound_ms", "hidden_share")
MEMORY = ("peak_bytes", "in_flight_bytes")
#: Neither better nor worse for being more. Gathers that run ahead leave long runs of compute without a launch.
NEUTRAL = (
    *("nodes", "compute_nodes", "compute_ms", "lower_bound_ms"),
    *("max_consecutive_compute.all_gather", "max_consecutive_compute.all_to_all"),
)
#: Families in which a kind that a graph does not have counts as 0.
_COUNTED = ("collectives", "bytes")
_KINDS = tuple(map(str, Kind))
#: What a tolerance may be given for.
TOLERATED = (
    DEFAULT,
    *("nodes", "compute_nodes"),
    *FAMILIES,
    *(f"{family}.{kind}" for family in FAMILIES for kind in _KINDS),
    *TIMED,
    *MEMORY,
)


@dataclass(frozen=True)
class Tolerance:
    """Either a share of the baseline's figure or an amount in the metric's own unit (ms, bytes, points as shares)."""

    relative: float | None = None
    absolute: float | None = None

    def allowed(self, base: float) -> float:
        """By how much a figure may be worse than ``base``."""
        return abs(base) * self.relative if self.relative is not None else self.absolute or 0.0


EXACT = Tolerance(absolute=0.0)
_SIMULATED = Tolerance(relative=0.01)
_POINT = Tolerance(absolute=0.01)


def flat(metrics: Mapping[str, Json]) -> dict[str, float]:
    """The metrics of a report by dotted name.

    Left out: those by process group, those without a value, and runs between launches that there are none of.
    """
    numbers: dict[str, float] = {}
    for key, value in metrics.items():
        if key in FAMILIES and isinstance(value, Mapping):
            numbers.update(
                (f"{key}.{name}", number) for name, number in value.items() if isinstance(number, (int, float))
            )
        elif isinstance(value, (int, float)):
            numbers[key] = value
    runs = "max_consecutive_compute."
    idle = [name for name in numbers if name.startswith(runs) and not numbers.get(name.replace(runs, "collectives."))]
    return {name: value for name, value in numbers.items() if name not in idle}


def side_by_side(base: Mapping[str, float], now: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Metrics that both have, by name; a kind that only one of them launches is 0 in the other."""
    families = {name.partition(".")[0] for name in base} & {name.partition(".")[0] for name in now}
    both = {
        name: (base.get(name, 0), now.get(name, 0))
        for name in {*base, *now}
        if (name in base and name in now) or name.partition(".")[0] in families.intersection(_COUNTED)
    }
    return dict(sorted(both.items()))


def tolerance_of(metric: str, given: Mapping[str, Tolerance | None]) -> Tolerance | None:
    """The tolerance of a metric, the most specific that is given; None where it is not to be compared."""
    for name in (metric, metric.partition(".")[0]):
        if name in given:
            return given[name]
    if metric in NEUTRAL:
        return None
    usual = given.get(DEFAULT)
    if DEFAULT in given:
        return Tolerance(absolute=usual.relative) if usual and metric.endswith("_share") else usual
    return _POINT if metric.endswith("_share") else _SIMULATED if metric in (*TIMED, *MEMORY) else EXACT


def read_tolerance(metric: str, text: str) -> Tolerance:
    """A tolerance from ``2 %`` or from an amount in a unit of the metric; ``ValueError`` says what was expected."""
    if metric.endswith("_share"):
        return Tolerance(absolute=SHARE.parse(text))
    if text.rstrip().endswith("%"):
        return Tolerance(relative=SHARE.parse(text))
    if metric == DEFAULT:
        raise ValueError(f"must be a percentage such as 2 %, not '{text}': metrics have several units")
    quantity = quantity_of(metric)
    amount = quantity.parse(text)
    return Tolerance(absolute=amount / 1e6 if quantity is TIME else amount)


def quantity_of(metric: str) -> Quantity:
    """What a metric is measured in; times are stored in ms and shown as such."""
    if metric.endswith("_ms"):
        return TIME
    if metric.endswith("_bytes") or metric.partition(".")[0] == "bytes":
        return BYTES
    return SHARE if metric.endswith("_share") else COUNT


def in_unit(metric: str, value: float) -> float:
    """A stored figure in the unit of its quantity: ms as ns."""
    return value * 1e6 if metric.endswith("_ms") else value
