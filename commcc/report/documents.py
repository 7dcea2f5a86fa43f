"""Parts that the JSON documents of the commands share: stable keys, ``"schema": 1``, plain values only.

The document of a command is built where its tables are drawn from it, so that the two never disagree. Key order is
fixed; nothing depends on the machine, except seconds and what was measured on it.

Every document of a command that takes ``--cost`` has ``cost_model`` (None with ``--cost none``) and ``hints`` (those
that were used). Times are milliseconds, exact to the nanosecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.text import listed, plural
from commcc.base.text import milliseconds as text_of_ms
from commcc.timing.predict import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.graph.collectives import Collective
    from commcc.graph.index import Tensor
    from commcc.graph.index.hints import Hint
    from commcc.graph.program import Note
    from commcc.timing.predict import Prediction
    from commcc.timing.snapshot import Snapshot

SCHEMA = 1


def document(command: str, **fields: Json) -> dict[str, Json]:
    """A command's document: schema, command, then its fields."""
    return {"schema": SCHEMA, "command": command, **fields}


def notes_json(notes: Iterable[Note]) -> list[Json]:
    """Notes of a reader or writer."""
    return [{"text": note.text, "node": note.node} for note in notes]


def costs(*snapshots: Snapshot) -> dict[str, Json]:
    """``cost_model`` and ``hints``; what each source priced is that of the last graph."""
    from commcc.timing.snapshot import hints_used  # PyTorch comes with it, and `commcc doctor` is to work without

    prediction = snapshots[-1].prediction
    hints: list[Json] = [{"symbol": h.symbol, "value": h.value, "source": h.source} for h in hints_used(*snapshots)]
    return {"cost_model": None if prediction is None else prediction.model_json(), "hints": hints}


def cut_ends(seen: Snapshot) -> dict[str, Json]:
    """What is in flight where the graph begins and ends: inputs with their waits, and launches that are returned.

    ends_ms: when the collective of an input has ended, where that is not at the start.
    """
    index, ends = seen.index, seen.index.estimates.arrivals
    inputs: list[Json] = [
        {
            "input": index.names[source],
            "wait": index.names[wait],
            **({"ends_ms": milliseconds(ends[source])} if source in ends else {}),
        }
        for wait, source in index.begun_elsewhere.items()
    ]
    outputs: list[Json] = [
        index.names[launch]
        for launch, facts in index.launches.items()
        if facts.asynchronous and not facts.waits and not index.output_storages.isdisjoint(index.storages[launch])
    ]
    return {"in_flight_at_start": inputs, "in_flight_at_end": outputs}


def cut_lines(document: Mapping[str, Any]) -> list[str]:
    """The same in words, of the document or of one of its graphs; nothing for a graph that is not cut."""
    inputs, outputs = document.get("in_flight_at_start", ()), document.get("in_flight_at_end", ())
    lines: list[str] = []
    if inputs:
        ends = [entry["ends_ms"] for entry in inputs if entry.get("ends_ms")]
        how = f"the last until {text_of_ms(max(ends))}" if ends else "simulated as arrived"
        names = listed([entry["input"] for entry in inputs], most=5)
        lines.append(f"in flight at the start, {how}: {plural(len(inputs), 'input')}: {names}")
    if outputs:
        tail = document.get("tail_ms")
        more = f", {text_of_ms(tail)} beyond it" if tail else ""
        lines.append(f"in flight at the end{more}, for another graph to wait for: {listed(outputs, most=5)}")
    return lines


def carried_line(document: Mapping[str, Any]) -> list[str]:
    """What a forward launches and its backward waits for, of a step."""
    names = document.get("carried_over") or ()
    return [f"in flight from the forward to the backward: {listed(names, most=5)}"] if names else []


def collective(seen: Snapshot, facts: Collective) -> dict[str, Json]:
    """One collective with all that is known of it."""
    index = seen.index
    return {
        "name": index.names[facts.launch],
        "position": facts.launch,
        "waits": [index.names[wait] for wait in facts.waits],
        "kind": str(facts.kind),
        "group": facts.group,
        "group_size": facts.group_size,
        "reduction": facts.reduction,
        "dtype": facts.dtype,
        "input_bytes": facts.input_bytes,
        "output_bytes": facts.output_bytes,
        "wire_bytes": facts.wire_bytes,
        **({"unknown_size": True} if facts.unknown else {}),
        "role": str(facts.role),
        "evidence": facts.evidence,
        "module": facts.module,
        "merged_from": list(index.merged_from.get(facts.launch, ())),
        **collective_costs(seen.prediction, facts.launch),
    }


def collective_costs(prediction: Prediction | None, launch: int) -> dict[str, Json]:
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


def launches_costs(prediction: Prediction | None, launches: Iterable[int]) -> dict[str, Json]:
    """The time of some launches together, what of it is exposed, and the share that is hidden; none without costs."""
    if prediction is None:
        return {}
    timeline, chosen = prediction.timeline, tuple(launches)
    total = sum(timeline.spans[launch].ns for launch in chosen)
    exposed = sum(timeline.exposed.get(launch, 0) for launch in chosen)
    hidden = round(1 - exposed / total, 6) if total else None
    return {"ms": milliseconds(total), "exposed_ms": milliseconds(exposed), "hidden_share": hidden}


def result_text(tensor: Tensor | None) -> str | None:
    """``bfloat16[8192, 1792]``."""
    return None if tensor is None else f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


#: Where numbers for sizes come from, in words.
_SOURCES = {
    "given": "given",
    "file": "from the file",
    "step": "from the other half of the step",
    "balanced": "balanced over ranks",
    "assumed": "assumed",
}


def hints_note(hints: Sequence[Hint]) -> str | None:
    """One line: ``240 sizes known only at run time: u0=8, u1=8, u2=8 and 237 more (balanced over ranks); ...``."""
    if not hints:
        return None
    by_source: dict[str, list[str]] = {}
    for hint in hints:
        by_source.setdefault(hint.source, []).append(f"{hint.symbol}={hint.value}")
    named = ", ".join(f"{listed(by_source[source])} ({_SOURCES[source]})" for source in sorted(by_source))
    return f"{plural(len(hints), 'size')} known only at run time: {named}; --hint SYMBOL=NUMBER sets them"
