"""What documents say about costs: the model, the hints, and the costs of each collective.

Every document of a command that takes ``--cost`` has ``cost_model`` (None with ``--cost none``) and
``hints`` (those that were used). Times are milliseconds, exact to the nanosecond.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from commcc.base.text import plural
from commcc.timing.predict import milliseconds
from commcc.timing.snapshot import hints_used

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.base.terms import Json
    from commcc.timing.predict import Prediction
    from commcc.timing.snapshot import Snapshot


def costs(*snapshots: Snapshot) -> dict[str, Json]:
    """``cost_model`` and ``hints``; what each source priced is that of the last graph."""
    prediction = snapshots[-1].prediction
    hints: list[Json] = [{"symbol": h.symbol, "value": h.value, "source": h.source} for h in hints_used(*snapshots)]
    return {"cost_model": None if prediction is None else prediction.model_json(), "hints": hints}


def collective(prediction: Prediction | None, launch: int) -> dict[str, Json]:
    """The costed keys of one collective; none without a prediction."""
    if prediction is None:
        return {}
    costs, timeline = prediction.costs, prediction.timeline
    share = timeline.hidden_share_of(launch)
    return {
        "ms": milliseconds(timeline.spans[launch].ns),
        "exposed_ms": milliseconds(timeline.exposed.get(launch, 0)),
        "hidden_share": None if share is None else round(share, 6),
        "latency_ms": milliseconds(costs.latency_ns.get(launch, 0)),
        "priced_by": costs.sources[costs.priced_by[launch]],
        "how": costs.how.get(launch, ""),
    }


def group(prediction: Prediction | None, launches: Iterable[int]) -> dict[str, Json]:
    """The costed keys of one process group."""
    if prediction is None:
        return {}
    timeline, chosen = prediction.timeline, tuple(launches)
    total = sum(timeline.spans[launch].ns for launch in chosen)
    exposed = sum(timeline.exposed.get(launch, 0) for launch in chosen)
    return {
        "ms": milliseconds(total),
        "exposed_ms": milliseconds(exposed),
        "hidden_share": round(1 - exposed / total, 6) if total else None,
    }


def hints_note(hints: Iterable[Mapping[str, Any]]) -> str | None:
    """One line about the hints of a document: ``240 sizes known only at run time: balanced 240; ...``."""
    sources = Counter(hint["source"] for hint in hints)
    if not sources:
        return None
    total = sum(sources.values())
    counted = ", ".join(f"{source} {number:,}" for source, number in sorted(sources.items()))
    return f"{plural(total, 'size')} known only at run time: {counted}; --hint SYMBOL=NUMBER sets them"
