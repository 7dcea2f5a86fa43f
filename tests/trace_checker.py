"""A strict reader of the Trace Event Format, as far as traces of simulated steps use it.

    trace = read_trace(data)            # raises AssertionError for whatever is wrong with it
    trace.slices[1, 101]                # [Found(start, ns, name, category, args), ...] of a thread, in order
    trace.counters[1, "live"]           # [(ns, bytes), ...]
    trace.flows[0]                      # [(pid, tid, ns), ...] of one arrow

Written from the format's description, without the writer: names of fields, their types, and what the
viewers need (flows inside slices, no overlap on a thread, threads with one process).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

FIELDS = {
    "M": {"ph", "pid", "name", "args"},
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"},
    "C": {"ph", "pid", "ts", "name", "args"},
    "s": {"ph", "id", "pid", "tid", "ts", "name", "cat"},
    "t": {"ph", "bp", "id", "pid", "tid", "ts", "name", "cat"},
    "f": {"ph", "bp", "id", "pid", "tid", "ts", "name", "cat"},
}
OPTIONAL = {"M": {"tid"}, "X": {"cname"}}
METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


@dataclass(frozen=True)
class Found:
    start: int
    ns: int
    name: str
    category: str
    args: dict

    @property
    def end(self) -> int:
        return self.start + self.ns


@dataclass(frozen=True)
class Trace:
    other: dict
    processes: dict[int, dict[str, object]]
    threads: dict[tuple[int, int], dict[str, object]]
    slices: dict[tuple[int, int], list[Found]]
    flows: list[list[tuple[int, int, int]]]
    counters: dict[tuple[int, str], list[tuple[int, int]]]

    def thread(self, pid: int, name: str) -> list[Found]:
        """Slices of the thread with this name."""
        (tid,) = (tid for (owner, tid), about in self.threads.items() if owner == pid and about["thread_name"] == name)
        return self.slices.get((pid, tid), [])

    def lanes(self, pid: int) -> list[list[Found]]:
        """Slices of all threads but the compute stream."""
        return [
            self.slices.get(key, [])
            for key, about in self.threads.items()
            if key[0] == pid and about["thread_name"] != "compute"
        ]


def nanoseconds(value) -> int:
    """Microseconds with exactly three digits after the point, as nanoseconds."""
    assert isinstance(value, Decimal), f"{value!r} is not written with a point"
    assert value.as_tuple().exponent == -3, f"{value} is not written to the nanosecond"
    assert value >= 0
    return int(value * 1000)


def read_trace(data: bytes) -> Trace:
    """Read and check a whole trace."""
    text = data.decode("ascii")
    document = json.loads(text, parse_float=_point, parse_constant=_no_constant)
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str) for value in document["otherData"].values())
    events = document["traceEvents"]
    for event in events:
        _check_fields(event)
    trace = Trace(document["otherData"], *_metadata(events), _slices(events), _flows(events), _counters(events))
    _check_names(trace)
    for key, slices in trace.slices.items():
        for one, other in pairwise(slices):
            assert one.end <= other.start, f"{one.name} and {other.name} overlap on {key}"
    for flow in trace.flows:
        for pid, tid, ns in flow:
            assert inside(trace, pid, tid, ns), f"an arrow touches no slice at {ns} ns of {pid}, {tid}"
    return trace


def inside(trace: Trace, pid: int, tid: int, ns: int) -> Found | None:
    """The slice of a thread that is open at a time: the one that an arrow there belongs to."""
    slices = trace.slices.get((pid, tid), [])
    place = bisect_right([each.start for each in slices], ns) - 1
    return slices[place] if place >= 0 and ns < slices[place].end else None


def _point(text: str) -> Decimal:
    return Decimal(text)


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def _check_fields(event: dict) -> None:
    phase = event["ph"]
    assert phase in FIELDS, phase
    assert FIELDS[phase] <= set(event) <= FIELDS[phase] | OPTIONAL.get(phase, set()), event
    for key, value in event.items():
        if key in ("pid", "tid", "id"):
            assert type(value) is int and value > 0, event
        elif key in ("ts", "dur"):
            assert nanoseconds(value) > (0 if key == "dur" else -1), event
        elif key == "args":
            assert isinstance(value, dict), event
        else:
            assert isinstance(value, str) and value, event
    assert event.get("bp", "e") == "e"


def _metadata(events: list[dict]) -> tuple[dict, dict]:
    processes: dict = defaultdict(dict)
    threads: dict = defaultdict(dict)
    for event in events:
        if event["ph"] == "M":
            key, kind = METADATA[event["name"]]
            assert type(event["args"][key]) is kind and len(event["args"]) == 1
            of_thread = event["name"].startswith("thread")
            assert of_thread == ("tid" in event)
            target = threads[event["pid"], event["tid"]] if of_thread else processes[event["pid"]]
            assert event["name"] not in target, f"{event['name']} is given twice"
            target[event["name"]] = event["args"][key]
    return processes, threads


def _check_names(trace: Trace) -> None:
    """Every process and thread has a name and a place, and a thread belongs to one process."""
    assert all(set(about) == {n for n in METADATA if n.startswith("process")} for about in trace.processes.values())
    assert all(set(about) == {"thread_name", "thread_sort_index"} for about in trace.threads.values())
    assert {pid for pid, _ in trace.threads} == set(trace.processes)
    assert set(trace.slices) <= set(trace.threads)
    assert {pid for pid, _ in trace.counters} <= set(trace.processes)
    tids = [tid for _, tid in trace.threads]
    assert len(tids) == len(set(tids)) and not set(tids) & set(trace.processes)
    for pid in trace.processes:
        places = [about["thread_sort_index"] for (owner, _), about in trace.threads.items() if owner == pid]
        assert sorted(places) == list(range(len(places)))


def _slices(events: list[dict]) -> dict:
    found: dict = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            times = nanoseconds(event["ts"]), nanoseconds(event["dur"])
            found[event["pid"], event["tid"]].append(Found(*times, event["name"], event["cat"], event["args"]))
    return dict(found)


def _flows(events: list[dict]) -> list[list[tuple[int, int, int]]]:
    arrows: dict = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            arrows[event["id"]].append(event)
    for arrow in arrows.values():
        phases = "".join(event["ph"] for event in arrow)
        assert phases == "s" + "t" * (len(arrow) - 2) + "f", phases
        assert len({(event["pid"], event["name"], event["cat"]) for event in arrow}) == 1
        assert all(one["ts"] <= other["ts"] for one, other in pairwise(arrow)), arrow
    return [[(e["pid"], e["tid"], nanoseconds(e["ts"])) for e in arrow] for arrow in arrows.values()]


def _counters(events: list[dict]) -> dict:
    found: dict = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            assert set(event["args"]) == {"bytes"} and type(event["args"]["bytes"]) is int
            found[event["pid"], event["name"]].append((nanoseconds(event["ts"]), event["args"]["bytes"]))
    for values in found.values():
        assert all(one[0] <= other[0] and one[1] != other[1] for one, other in pairwise(values))
    return dict(found)
