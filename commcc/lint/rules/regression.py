"""The rule that compares a graph with what an earlier run stored for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.text import change
from commcc.lint.options import tolerances
from commcc.lint.tolerance import MEMORY, TIMED, Tolerance, flat, in_unit, quantity_of, side_by_side, tolerance_of
from commcc.lint.types import Finding, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.lint.types import Known, Subject

_UPDATE = "--update-baseline stores what is measured now"


@dataclass(frozen=True)
class BaselineOptions:
    """How much worse is fine."""

    tolerance: Mapping[str, Tolerance | None] | None = tolerances(
        "how much worse than the baseline a metric may be; none: it is not compared"
    )


def regression(subject: Subject, options: BaselineOptions) -> Iterator[Finding]:
    """Metrics that are worse than the baseline, and what could not be compared."""
    known = subject.baseline
    if known is None:
        text = f"the baseline {subject.against} has nothing on this graph"
        yield Finding(text, severity=Severity.WARNING, remedy=_UPDATE)
        return
    now = flat(subject.seen.to_json())
    differs, left_out = _incomparable(subject, known)
    if differs:
        yield Finding(differs, severity=Severity.WARNING, remedy=_UPDATE)
    better = []
    for metric, (base, measured) in side_by_side(known.metrics, now).items():
        tolerance = tolerance_of(metric, options.tolerance or {})
        if tolerance is None or metric.startswith(left_out):
            continue
        worse = base - measured if metric == "hidden_share" else measured - base
        allowed = tolerance.allowed(base)
        # The margin is for floating point alone: a tolerance of 1 % lets exactly 1 % pass.
        if worse > allowed + 1e-9 * max(abs(base), abs(measured)):
            yield _worse(metric, base, measured, tolerance)
        elif worse < -allowed - 1e-9 * abs(base):
            better.append(f"{metric} {_shown(metric, base)} -> {_shown(metric, measured)}")
    if better:
        yield Finding(f"better than the baseline: {', '.join(better)}", severity=Severity.INFO, remedy=_UPDATE)


def _incomparable(subject: Subject, known: Known) -> tuple[str, tuple[str, ...]]:
    """Why metrics mean something else than they did, and which: beginnings of their names. Empty where none do."""
    hints = {hint.symbol: hint.value for hint in subject.index.estimates.hints}
    changed = sorted(symbol for symbol in {*hints, *known.hints} if hints.get(symbol) != known.hints.get(symbol))
    if changed:
        symbol, others = changed[0], f" and {len(changed) - 1} others" if len(changed) > 1 else ""
        was, is_now = known.hints.get(symbol, "not known"), hints.get(symbol, "not known")
        text = f"only launches are compared: the size {symbol} was {was} in the baseline and is {is_now} now{others}"
        return text, (*TIMED, *MEMORY, "bytes.")
    prediction = subject.seen.prediction
    if known.model is None:
        text = "" if prediction is None else "the baseline has no simulated times: they are not compared"
        return text, TIMED
    name, digest = known.model
    if prediction is None:
        return f"without a cost model, times are not compared with those of {name} ({digest})", TIMED
    costs = prediction.costs
    if costs.hash == digest:
        return "", ()
    text = (
        f"times are not compared: the baseline's are of cost model {name} ({digest}), these are of {costs.model} "
        f"({costs.hash})"
    )
    return text, TIMED


def _worse(metric: str, base: float, now: float, tolerance: Tolerance) -> Finding:
    sign = -1 if metric == "hidden_share" else 1
    limit = base + sign * tolerance.allowed(base)
    # A share of a share says little.
    relative = f" ({change(base, now)})" if base and metric != "hidden_share" else ""
    bar = f", and {_shown(metric, limit)} was allowed" if tolerance.allowed(base) else ""
    return Finding(
        f"{metric} went from {_shown(metric, base)} to {_shown(metric, now)}{relative}{bar}",
        measured=in_unit(metric, now),
        limit=in_unit(metric, limit),
        unit=quantity_of(metric).unit,
        weight=abs(now - base) / abs(base) if base else abs(now),
        remedy=f"if that is meant, {_UPDATE}",
    )


def _shown(metric: str, value: float) -> str:
    return quantity_of(metric).show(in_unit(metric, value))


REGRESSION = (
    Rule(
        "baseline-regression",
        Severity.ERROR,
        regression,
        BaselineOptions,
        "metrics that are worse than a stored baseline",
        "Launches and bytes by kind, max consecutive compute, step time, exposed time, communication, hidden share, "
        "peak memory and bytes in flight, against those in the baseline file. By default what is simulated may be 1 % "
        "worse, and what is counted no worse at all. Under another cost model times are not compared, and with other "
        "hints only launches are, which is said. Needs --baseline FILE, or baseline: in the configuration.",
    ),
)
