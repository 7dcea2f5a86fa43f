"""What the report of each pass says, in lines of a label and a text, and a table for bucket.

    for label, text in lines("reorder", report): ...     # ('moved', '412 nodes, 96 of them launches'), ...

The report of a stored plan is what its file says: one that does not have the form of its pass is told key by key.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from commcc.base.text import count, milliseconds, plural, share, size
from commcc.report.console import make_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from commcc.report.console import Section

    Document = Mapping[str, Any]
    Said = Iterator[tuple[str, str]]

#: Why strategy overlap did not merge a pair.
_REFUSED = {
    "bytes": "cap",
    "place": "what hides a member would have to move",
    "cycle": "what hides a member would not fit between",
    "exposed": "would be exposed",
    "memory": "would not fit in memory",
    "copies": "copies take longer than merging saves",
}
#: How many of a long list are named.
_MOST = 5
#: How a row says what another module overlaps it with, alone and for rows that are alike.
_OVERLAP = {"prefetched_by": "prefetched by", "waits_behind": "waited for after the launch of"}
_ALL_OVERLAP = {"prefetched_by": "prefetched", "waits_behind": "waited for after the next launch"}
#: How many pairs of a fused matmul and its collective are named.
_MOST_PAIRS = 4


def lines(name: str, report: Document) -> list[tuple[str, str]]:
    """The report of the pass of that name."""
    try:
        return list(_LINES.get(name, _by_key)(report))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return list(_by_key(report))


def tables(name: str, report: Document) -> list[Section]:
    """Tables below the lines."""
    try:
        return [_modules(report["modules"])] if name == "bucket" and report.get("modules") else []
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return []


def _reasons(label: str, reasons: Mapping[str, int]) -> Said:
    """What was left alone, each reason with its number."""
    label = f"{label} {sum(reasons.values()):,}"
    for reason, number in reasons.items():
        yield label, f"{number:,} x {reason}"
        label = ""


def _bucket(report: Document) -> Said:
    """Lines about the report of the bucket pass."""
    if report["buckets"]:
        for kind, merged in report["by_kind"].items():
            yield kind, f"{count(merged['members'])} launches into {plural(merged['buckets'], 'bucket')}"
    else:
        yield "buckets", "none"
    yield "groups", f"primary is {report['primary_group']}" if report["primary_group"] else "none is primary"
    # Strategies share this view; which keys there are tells which one it was.
    if "caps_mb" in report and "bucketings_tried" not in report:
        yield from _caps(report["caps_mb"])
    if "closed" in report:
        yield from _closed(report)
    if "entries" in report:
        yield from _entries(report)
    if "bucketings_tried" in report:
        yield from _tried(report)
    if "hidden" in report:
        yield from _kept(report)
    for key, label in (
        ("coalesced", "buckets without copies"),
        ("copies", "copies added"),
        ("shared_casts", "casts merged"),
        ("reordered_buckets", "reordered"),
    ):
        if report.get(key):
            yield label, count(report[key])
    for remark in report.get("remarks", ()):
        yield "remark", remark
    most_first = sorted(report["left_out"].items(), key=lambda item: (-item[1], item[0]))
    yield from _reasons("left out", dict(most_first))


def _closed(report: Document) -> Said:
    """What ended the buckets of a walk under caps."""
    closed = [f"{count(number)} for {reason}" for reason, number in report["closed"].items() if number]
    yield "closed", ", ".join(closed) or "no bucket before its time"
    yield "largest span", plural(report["largest_span"], "node")
    dormant = [f"{name}={_setting(knob['value'])}" for name, knob in report["knobs"].items() if knob["dormant"]]
    if dormant:
        yield "dormant", f"{', '.join(dormant)} (never closed a bucket)"


def _entries(report: Document) -> Said:
    """What strategy module made of its entries."""
    uncovered = report["uncovered"]
    yield "entries", plural(report["entries"], "entry")
    if uncovered:
        more = "" if len(uncovered) <= _MOST else f" and {len(uncovered) - _MOST:,} more"
        yield "uncovered", f"{len(uncovered):,}: {', '.join(uncovered[:_MOST])}{more}"
    if report["taken_apart"]:
        yield "taken apart", f"{plural(report['taken_apart'], 'bucket')} that would have waited for itself"
    if report["moved"]:
        yield "moved", f"{plural(report['moved'], 'node')} that are in no bucket"


def _tried(report: Document) -> Said:
    """What strategy auto chose from."""
    step = report["scheduled_step_ms"]
    yield "scheduled", f"{milliseconds(step['unmerged'])} unmerged, {milliseconds(step['merged'])} merged"
    unequal = report["unequal_tried"]
    yield (
        "tried",
        plural(report["bucketings_tried"], "bucketing") + (f", {unequal} of unequal sizes" if unequal else ""),
    )
    yield from _caps(report["caps_mb"])


def _caps(caps: Mapping[str, Any]) -> Said:
    """Caps that differ by kind and group; a strategy may also say a word in place of one."""
    for key, cap in caps.items():
        size_text = cap if isinstance(cap, str) else f"{cap:,.1f} MiB".replace(".0 MiB", " MiB")
        yield "cap", f"{key}: {size_text if cap else 'not merged'}"


def _kept(report: Document) -> Said:
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


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ":".join(map(_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _modules(rows: Sequence[Document]) -> Section:
    """Collectives and launches of every module; neighbours that are alike share a line."""
    numbers = ("collectives", "launches", "bytes")
    table = make_table("", "modules", "kind", *numbers, "overlap", numbers=numbers)
    kinds = dict.fromkeys(row["kind"] for row in rows)
    for kind in kinds:
        own = [row for row in rows if row["kind"] == kind]
        for _, alike in groupby(own, key=lambda row: (row["members"], row["launches"], row["bytes"])):
            run = list(alike)
            first, last = run[0], run[-1]
            names = first["entry"]
            if len(run) > 1:
                names = f"{names} ... {last['entry']} ({len(run)}, alike)"
            counted = (count(first["members"]), count(first["launches"]), size(first["bytes"] or None))
            key = next((key for key in _OVERLAP if key in first), "prefetched_by")
            named = [row[key] for row in run if row.get(key) is not None]
            if len(run) == 1:
                overlap = f"{_OVERLAP[key]} {named[0]}" if named else ""
            else:
                some = "" if len(named) == len(run) else f"{len(named)} of {len(run)} "
                overlap = f"{some}{_ALL_OVERLAP[key]}" if named else ""
            table.add_text(names, kind, *counted, overlap)
    return table


def _reorder(report: Document) -> Said:
    """Lines about the report of the reorder pass; what the table of metrics says is not said again."""
    before, after = report["step_ms"]
    yield "moved", f"{plural(report['moved_nodes'], 'node')}, {count(report['moved_launches'])} of them launches"
    bound = f"{share(report['over_bound'])} above the lower bound of {milliseconds(report['lower_bound_ms'])}"
    yield "step", f"{milliseconds(before)} before, {milliseconds(after)} after: {bound}"
    budget, peak = report["memory_budget_bytes"], report["peak_bytes"][1]
    if budget is not None:
        spare = f"{size(budget - peak)} to spare" if peak <= budget else f"{size(peak - budget)} too much"
        unknown = report.get("unknown_sizes", 0)
        known = f", {plural(unknown, 'unknown size')} not counted" if unknown else ""
        yield "budget", f"{size(budget)}: {spare}{known}"
    if report.get("control_edges"):
        yield "control edges", count(report["control_edges"])
    rounds = report["settings"]
    best = ", then ".join(f"target {target / 1000:g} and lead {lead / 1000:g}" for target, lead, *_ in rounds)
    own = "the best is the order that is there, with nodes moved" if report["moved_nodes"] else ""
    which = f"the best with {best}" if rounds else own or "none is better than the order that is there"
    yield "search", f"{plural(report['schedules_tried'], 'schedule')}; {which}"
    for remark in report["remarks"]:
        yield "remark", remark


def _async_tp(report: Document) -> Said:
    """Lines about the report of the async-tp pass."""
    fused = ", ".join(f"{count(number)} {kind}" for kind, number in report["fused"].items())
    total = report["collectives"]
    yield "fused", f"{fused or 'none'} of {plural(total, 'collective')}, {plural(report['matmuls_fused'], 'matmul')}"
    pairs = report["pairs"]
    for pair in pairs[:_MOST_PAIRS]:
        yield "", f"{pair['launch']} with {', '.join(pair['matmuls'])}"
    if len(pairs) > _MOST_PAIRS:
        yield "", f"and {len(pairs) - _MOST_PAIRS:,} more"
    yield from _reasons("left", report["left"])
    for remark in report["remarks"]:
        yield "remark", remark


def _ep_chunk(report: Document) -> Said:
    """Lines about the report of the ep-chunk pass; regions that are alike share one."""
    label = "regions"
    for alike in _alike(report["regions"], "module"):
        first = alike[0]
        sizes = "+".join(map(str, first["sizes"]))
        edits = [f"{count(first[key])} {key}" for key in ("split", "concatenated", "added") if first[key]]
        body = f"{plural(first['body'], 'node')} with {plural(first['exchanges'], 'exchange')}"
        yield label, f"{_named(alike, 'module')} {first['direction']}: {body}, cut {sizes}; {', '.join(edits)}"
        label = ""
    if report.get("tried_ms"):
        steps = (f"{plural(int(n), 'chunk')} {milliseconds(ms)}" for n, ms in report["tried_ms"].items())
        yield "steps", f"{', '.join(steps)}; taken: {count(report['chunks'])}"
    if report["skipped"]:
        yield "skipped", f"without exchanges: {', '.join(map(str, report['skipped']))}"
    if report["by_annotation"]:
        yield "remark", "no all-to-all is in the graph; modules were told by their annotations"
    for remark in report.get("remarks", ()):
        yield "remark", remark


def _ep_schedule(report: Document) -> Said:
    """Lines about the report of the ep-schedule pass."""
    for remark in report.get("remarks", ()):
        yield "remark", remark
    if not report["regions"]:
        return
    flight = report["in_flight"]
    yield (
        "chunks",
        f"{count(report['chunks'])}, in flight {flight['forward']} forward and {flight['backward']} backward",
    )
    for alike in _alike(report["regions"], "root", "soft_order"):
        yield f"{_named(alike, 'root')} {alike[0]['direction']}", alike[0]["strip"]
    if "exposed_exchange_ms" in report:
        before, after = report["exposed_exchange_ms"]
        shares = [share(value) or "none" for value in report["hidden_share_of_exchanges"]]
        total = milliseconds(report["exchange_ms"])
        yield (
            "exchanges",
            f"{total}, exposed {milliseconds(before)} -> {milliseconds(after)}; hidden {' -> '.join(shares)}",
        )
    if report.get("tried"):
        yield "tried", plural(len(report["tried"]), "order")


def _ep_concretize(report: Document) -> Said:
    """Lines about the report of the ep-concretize pass."""
    yield "fixed", report["fixed"]
    if report["symbols"]:
        gone = f"{plural(report['sizes_gone'], 'size')} and {plural(report['guards_gone'], 'guard')} gone"
        yield "values", f"{count(report['values_rewritten'])} rewritten, {gone}"


def _inline(report: Document) -> Said:
    """Lines about the report of the inline pass."""
    yield "calls", f"{count(report['calls'])} of {plural(report['regions'], 'region')}"
    if report["launches"]:
        yield "launches", ", ".join(f"{count(number)} {kind}" for kind, number in report["launches"].items())
    if report["left"]:
        yield from _reasons("left", report["left"])


def _alike(rows: Sequence[Document], *differ: str) -> list[list[Document]]:
    """Rows that are the same but for these keys, in order of the first of each kind."""
    groups: dict[str, list[Document]] = {}
    for row in rows:
        groups.setdefault(repr([value for key, value in row.items() if key not in differ]), []).append(row)
    return list(groups.values())


def _named(rows: Sequence[Document], key: str) -> str:
    names = [str(row[key]) for row in rows]
    return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _groups(report: Document) -> Said:
    """Lines about the report of the groups pass."""
    for group in report["groups"]:
        launches = plural(group["launches"], "launch")
        yield group["name"], f"a copy of {group['copy_of']} for {launches}: {group['reason']}"
    if not report["groups"]:
        yield "new groups", "none"
    for remark in (*report["not_shared"], *report["remarks"]):
        yield "remark", remark
    yield from _reasons("left out", report["left_out"])


def _split(report: Document) -> Said:
    """Lines about the report of the split pass; collectives that are alike share one."""
    yield "exposed", plural(report["exposed"], "collective")
    label = f"split {report['split']:,}"
    groups: dict[tuple[Any, ...], list[Document]] = {}
    for collective in report["collectives"]:
        groups.setdefault(
            (collective["kind"], collective["parts"], collective["body"], collective["gain_ms"]), []
        ).append(collective)
    for (kind, parts, body, gain), alike in sorted(groups.items(), key=lambda group: -group[0][3] * len(group[1])):
        nodes = plural(body, "node")
        yield label, f"{len(alike):,} x {kind} in {parts} parts with {nodes}, each {milliseconds(gain)} less by itself"
        label = ""
    before, after = report["step_ms"]
    yield "step", f"{milliseconds(before)} to {milliseconds(after)}"
    yield from _reasons("left whole", report["left_out"])


def _by_key(report: Document) -> Said:
    """Lines about a report of unknown keys."""
    for key, value in report.items():
        label = key.replace("_", " ")
        if isinstance(value, dict):
            yield label, ", ".join(f"{name} {_plain(part)}" for name, part in value.items()) or "none"
        elif isinstance(value, list):
            yield label, ", ".join(map(_plain, value)) or "none"
        else:
            yield label, _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    return count(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


#: By the name of the pass.
_LINES: Mapping[str, Callable[[Document], Said]] = {
    "inline": _inline,
    "groups": _groups,
    "bucket": _bucket,
    "reorder": _reorder,
    "ep-chunk": _ep_chunk,
    "ep-schedule": _ep_schedule,
    "ep-concretize": _ep_concretize,
    "async-tp": _async_tp,
    "split": _split,
}
