"""What the report of the bucket pass says, in lines and tables."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from commcc.base.text import count, milliseconds, plural, size
from commcc.report.console import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commcc.report.console import Section

    Document = Mapping[str, Any]

#: Why strategy overlap did not merge a pair.
_REFUSED = {
    "bytes": "cap",
    "place": "what hides a member would have to move",
    "cycle": "what hides a member would not fit between",
    "exposed": "would be exposed",
    "memory": "no room in memory",
    "copies": "copies take longer than merging saves",
}
#: How many of a long list are named.
_SHOWN = 5
#: How a row says beside which other module it runs.
_BESIDE = {"prefetched_by": "prefetched by", "waits_behind": "waited for after the launch of"}
_ALL_BESIDE = {"prefetched_by": "prefetched", "waits_behind": "waited for after the next launch"}


def lines(report: Document) -> Iterator[tuple[str, str]]:
    """Lines about the report of the bucket pass."""
    if report["buckets"]:
        for kind, made in report["by_kind"].items():
            yield kind, f"{count(made['members'])} launches into {plural(made['buckets'], 'bucket')}"
    else:
        yield "buckets", "none"
    yield "groups", f"primary is {report['primary_group']}" if report["primary_group"] else "none is primary"
    if "closed" in report:
        yield from _closed(report)
    if "entries" in report:
        yield from _entries(report)
    if "bucketings_tried" in report:
        yield from _tried(report)
    if "hidden" in report:
        yield from _kept(report)
    for key, label in (
        ("copies", "copies added"),
        ("shared_casts", "casts merged"),
        ("reordered_buckets", "reordered"),
    ):
        if report.get(key):
            yield label, count(report[key])
    for remark in report.get("remarks", ()):
        yield "remark", remark
    yield from _left_out(report["left_out"])


def _closed(report: Document) -> Iterator[tuple[str, str]]:
    """What ended the buckets of a walk under caps."""
    closed = [f"{count(number)} for {reason}" for reason, number in report["closed"].items() if number]
    yield "closed", ", ".join(closed) or "no bucket before its time"
    yield "largest span", plural(report["largest_span"], "node")
    dormant = [f"{name}={_setting(knob['value'])}" for name, knob in report["knobs"].items() if knob["dormant"]]
    if dormant:
        yield "dormant", f"{', '.join(dormant)} (never closed a bucket)"


def _entries(report: Document) -> Iterator[tuple[str, str]]:
    """What strategy module made of its entries."""
    uncovered = report["uncovered"]
    yield "entries", plural(report["entries"], "entry")
    if uncovered:
        more = "" if len(uncovered) <= _SHOWN else f" and {len(uncovered) - _SHOWN:,} more"
        yield "uncovered", f"{len(uncovered):,}: {', '.join(uncovered[:_SHOWN])}{more}"
    if report["taken_apart"]:
        yield "taken apart", f"{plural(report['taken_apart'], 'bucket')} that would have waited for itself"
    if report["moved"]:
        yield "moved", f"{plural(report['moved'], 'node')} that are in no bucket"


def _tried(report: Document) -> Iterator[tuple[str, str]]:
    """What strategy auto chose from."""
    step = report["scheduled_step_ms"]
    yield "scheduled", f"{milliseconds(step['unmerged'])} unmerged, {milliseconds(step['merged'])} merged"
    yield "tried", plural(report["bucketings_tried"], "bucketing")
    for key, cap in report["caps_mb"].items():
        yield "cap", f"{key}: {cap if isinstance(cap, str) else f'{count(cap)} MiB' if cap else 'not merged'}"


def _kept(report: Document) -> Iterator[tuple[str, str]]:
    """What strategy overlap had to keep, and what it refused for that."""
    yield "hidden", f"{plural(report['hidden'], 'collective')}, kept so"
    refused = report["refused"]
    said = [f"{count(refused[key])} ({why})" for key, why in _REFUSED.items() if refused.get(key)]
    if said:
        yield "refused", f"pairs: {', '.join(said)}"
    if report["not_kept"]:
        said = [f"{count(number)} ({reason})" for reason, number in report["not_kept"].items()]
        yield "not kept", f"buckets: {', '.join(said)}"
    if report["buckets"]:
        yield (
            "weighed",
            f"copies {milliseconds(report['copies_ms'])}, latency {milliseconds(report['latency_ms'])} less",
        )
        step = report["step_ms"]
        yield "step", f"{milliseconds(step['before'])} -> {milliseconds(step['merged'])}, simulated"


def _left_out(reasons: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    label = f"left out {sum(reasons.values()):,}"
    for reason, number in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        yield label, f"{number:,} x {reason}"
        label = ""


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ":".join(map(_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def modules(rows: Sequence[Document]) -> Section:
    """Collectives and launches of every module; neighbours that are alike share a line."""
    numbers = ("collectives", "launches", "bytes")
    table = make_table("", "modules", "kind", *numbers, "beside", numbers=numbers)
    kinds = dict.fromkeys(row["kind"] for row in rows)
    for kind in kinds:
        own = [row for row in rows if row["kind"] == kind]
        for _, alike in groupby(own, key=lambda row: (row["members"], row["launches"], row["bytes"])):
            run = list(alike)
            first, last = run[0], run[-1]
            names = first["entry"]
            if len(run) > 1:
                names = f"{names} ... {last['entry']} ({len(run)}, each)"
            counted = (count(first["members"]), count(first["launches"]), size(first["bytes"]))
            table.add_text(names, kind, *counted, _beside(run))
    return table


def _beside(run: Sequence[Document]) -> str:
    key = next((key for key in _BESIDE if key in run[0]), "prefetched_by")
    named = [row[key] for row in run if row.get(key) is not None]
    if not named:
        return ""
    if len(run) == 1:
        return f"{_BESIDE[key]} {named[0]}"
    return _ALL_BESIDE[key] if len(named) == len(run) else f"{len(named)} of {len(run)} {_ALL_BESIDE[key]}"
