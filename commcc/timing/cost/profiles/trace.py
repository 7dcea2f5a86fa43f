"""Reads a Kineto trace (``export_chrome_trace``, ``tensorboard_trace_handler``) into plain facts.

    trace = read_trace(Path("rank0.pt.trace.json.gz"))
    trace.calls[thread][0].key, trace.occurrences[0].key, trace.on_device

What is read of the format (kineto, ``output_json.cpp``): complete events (``"ph": "X"``) with ``ts`` and
``dur`` in microseconds and a category. ``cpu_op`` is an op, with ``Input Dims``, ``Input type`` and
``Concrete Inputs`` when shapes were recorded; ``kernel``, ``gpu_memcpy`` and ``gpu_memset`` ran on a
device; ``cuda_runtime``, ``cuda_driver`` and the like are launches. ``External id`` of a device event is
that of the innermost op that was open when it was launched. Where it is missing, or is no op's, as in
traces of PyTorch 1 that repeat ``correlation`` there, ``correlation`` leads to the launch, and thread
and time of the launch to the op. Everything else is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commcc.base.text import shown
from commcc.graph.ops.libraries import COLLECTIVE
from commcc.timing.cost.profiles import collectives
from commcc.timing.cost.profiles.dtypes import tensor_dtype
from commcc.timing.cost.profiles.json_stream import JsonStream, open_json
from commcc.timing.cost.profiles.measured import Occurrence, OpKey

if TYPE_CHECKING:
    from pathlib import Path

    from commcc.base.terms import Kind

_OP = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*", re.ASCII)
#: These only start collectives, or wait for them; their own time says nothing.
_COMMUNICATION = tuple(f"{library}::" for library in sorted(COLLECTIVE))
_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_COMMS = "record_param_comms"
#: Microseconds; 30 years. Kineto counts from the epoch or from the start of the program.
_LATEST = 1e15


@dataclass(slots=True)
class Call:
    """One op on one thread, times in ns. key: None for what cannot be matched (no shapes, no ``::`` name).

    arguments: its other arguments as the trace prints them. own_ns, launched: device time and number of
    the kernels that it launched itself, not through ops that it called.
    """

    key: OpKey | None
    start: int
    end: int
    external: int
    arguments: str = ""
    own_ns: int = 0
    launched: int = 0


@dataclass
class Trace:
    """Facts of one file, times in ns.

    rank: of the process, if the trace names it. calls: by thread. on_device: whether anything ran on a
    device. occurrences: collectives in order of time. shapes: whether any op has its input shapes.
    gloo: start, kind, input bytes and duration of gloo's collectives. groups: sizes of process groups.
    unsized: collectives that the trace does not give the size of.
    """

    path: Path
    rank: int | None = None
    calls: dict[tuple[Any, Any], list[Call]] = field(default_factory=dict)
    on_device: bool = False
    shapes: bool = False
    occurrences: list[Occurrence] = field(default_factory=list)
    gloo: list[tuple[int, Kind, int, int]] = field(default_factory=list)
    groups: frozenset[int] = frozenset()
    unsized: int = 0


def read_trace(path: Path) -> Trace:
    """Read one file; :class:`~commcc.base.errors.InputError`, with the line, for what is no trace."""
    with open_json(path) as stream:
        reader = _Reader(stream)
        if stream.peek() == "[":
            reader.events()
        else:
            reader.document()
        stream.end()
    return reader.finish()


@dataclass(slots=True)
class _Message:
    """The kernels of one collective: start of the first, duration of all."""

    start: int
    link: tuple[int | None, int | None]
    args: dict[str, Any]
    ns: int = 0


class _Reader:
    """Takes events one by one; what belongs together may come in any order."""

    def __init__(self, stream: JsonStream) -> None:
        self._stream = stream
        self._trace = Trace(stream.path)
        self._keys: dict[OpKey, OpKey] = {}
        self._messages: dict[object, _Message] = {}
        #: By External id: what the op that starts a collective says about it.
        self._described: dict[int, dict[str, Any]] = {}
        #: By correlation: External id, thread and start of a launch.
        self._launches: dict[int, tuple[int | None, tuple[Any, Any], int]] = {}
        #: External id, correlation and duration of what ran on the device.
        self._work: list[tuple[int | None, int | None, int]] = []

    def events(self) -> None:
        """The list of events."""
        for event in self._stream.items():
            if type(event) is not dict:
                self._stream.fail("is no trace: an event is not an object")
            category = event.get("cat")
            if event.get("ph") != "X" or type(category) is not str:
                continue
            if category == "cpu_op" or category == "user_annotation":
                self._op(event, category)
            elif category in _DEVICE_WORK:
                self._device_work(event)
            elif category.endswith(("_runtime", "_driver")):
                self._launch(event)

    def document(self) -> None:
        """The object around the events, as Kineto writes it."""
        has_events = False
        for key in self._stream.members():
            if key == "traceEvents":
                self.events()
                has_events = True
            else:
                self._header(key, self._stream.value())
        if not has_events:
            self._stream.fail("is no trace: it has no 'traceEvents'", hint="use profiler.export_chrome_trace(PATH)")

    def _header(self, key: str, value: Any) -> None:
        if key != "distributedInfo" or not isinstance(value, dict):
            return
        rank = value.get("rank")
        self._trace.rank = rank if type(rank) is int else None
        config = value.get("pg_config")
        groups = [group for group in config if isinstance(group, dict)] if isinstance(config, list) else []
        sizes = [group.get("pg_size") for group in groups] or [value.get("world_size")]
        self._trace.groups = frozenset(size for size in sizes if type(size) is int and 0 < size < 1 << 31)

    def _op(self, event: dict[str, Any], category: str) -> None:
        name, args = self._name(event), self._args(event)
        if not name.startswith(collectives.GLOO) and category != "cpu_op":
            return
        start, duration = self._time(event)
        if name.startswith(collectives.GLOO):
            known = collectives.of_gloo(name, args)
            if known is not None:
                self._trace.gloo.append((start, *known, duration))
            elif collectives.kind_of(name.removeprefix(collectives.GLOO)) is not None:
                self._trace.unsized += 1
        # Annotations are read for gloo's collectives only; they are no ops.
        if category != "cpu_op":
            return
        external = _identity(args.get("External id"))
        if name == _COMMS and external is not None:
            self._described[external] = args
        self._trace.shapes |= "Input Dims" in args
        key = self._key(name, args)
        call = Call(key, start, start + duration, -1 if external is None else external)
        if key is not None:
            concrete = args.get("Concrete Inputs")
            parts = concrete if type(concrete) is list else []
            call.arguments = "\n".join(part for part in parts if type(part) is str)
        self._trace.calls.setdefault(self._thread(event), []).append(call)

    def _key(self, name: str, args: dict[str, Any]) -> OpKey | None:
        if not _OP.fullmatch(name) or name.startswith(_COMMUNICATION):
            return None
        shapes, types = args.get("Input Dims"), args.get("Input type")
        if type(shapes) is not list or type(types) is not list or len(shapes) != len(types):
            return None
        inputs = []
        for shape, type_name in zip(shapes, types, strict=True):
            dtype = tensor_dtype(type_name)
            if dtype is None and (shape or type_name == "TensorList"):
                return None  # a list of tensors, whose dtypes are not recorded, or an exotic dtype
            if shape and dtype is not None:
                if type(shape) is not list or not all(type(size) is int for size in shape):
                    return None
                inputs.append((dtype, tuple(shape)))
        op_key = OpKey(name.replace("::", "."), tuple(inputs))
        return self._keys.setdefault(op_key, op_key) if inputs else None

    def _device_work(self, event: dict[str, Any]) -> None:
        name, args = self._name(event), self._args(event)
        start, duration = self._time(event)
        self._trace.on_device = True
        link = _identity(args.get("External id")), _identity(args.get("correlation"))
        external = link[0]
        if collectives.is_kernel(name, args):
            # Several kernels of one collective have one External id.
            mark: object = external if external is not None else ("kernel", len(self._messages))
            message = self._messages.setdefault(mark, _Message(start, link, args))
            message.start = min(message.start, start)
            message.ns += duration
        else:
            self._work.append((*link, duration))

    def _launch(self, event: dict[str, Any]) -> None:
        args = self._args(event)
        correlation = _identity(args.get("correlation"))
        if correlation is not None:
            start, _ = self._time(event)
            self._launches[correlation] = (_identity(args.get("External id")), self._thread(event), start)

    def finish(self) -> Trace:
        """Give device work to the ops that launched it, and put collectives in order."""
        threads = self._trace.calls
        by_external = {call.external: call for calls in threads.values() for call in calls} if self._work else {}
        for external, correlation, duration in self._work:
            launch = self._launches.get(correlation) if correlation is not None else None
            # An id that only repeats the correlation may be another op's by chance.
            mark = launch[0] if launch is not None and external == correlation else external
            call = by_external.get(mark) if mark is not None and (launch is None or mark != correlation) else None
            if call is None and launch is not None:
                # The launch stands as a call of its own that ends at once, inside the op.
                call = Call(None, launch[2], launch[2], -1)
                threads.setdefault(launch[1], []).append(call)
            if call is not None:
                call.own_ns += duration
                call.launched += 1
        self._trace.occurrences = self._occurrences()
        self._trace.gloo.sort()
        return self._trace

    def _occurrences(self) -> list[Occurrence]:
        timed = []
        for message in self._messages.values():
            external, correlation = message.link
            if external is None and correlation is not None:
                external = self._launches.get(correlation, (None,))[0]
            args = message.args
            if "Collective name" not in args and external is not None:
                args = self._described.get(external, args)
            described = collectives.of_message(args)
            if described is not None:
                timed.append((message.start, Occurrence(*described, message.ns)))
            elif "Collective name" not in args or collectives.kind_of(args["Collective name"]) is not None:
                self._trace.unsized += 1
        return [occurrence for _, occurrence in sorted(timed)]

    def _name(self, event: dict[str, Any]) -> str:
        name = event.get("name")
        return name if type(name) is str else ""

    def _args(self, event: dict[str, Any]) -> dict[str, Any]:
        args = event.get("args")
        return args if type(args) is dict else {}

    def _thread(self, event: dict[str, Any]) -> tuple[Any, Any]:
        pid, tid = event.get("pid"), event.get("tid")
        if not isinstance(pid, (int, str)) or not isinstance(tid, (int, str)):
            self._stream.fail(f"is no trace: event '{shown(self._name(event))}' has no 'pid' and 'tid'")
        return pid, tid

    def _time(self, event: dict[str, Any]) -> tuple[int, int]:
        """Start and duration in ns."""
        start, duration = _number(event.get("ts")), _number(event.get("dur"))
        if start is None or duration is None:
            self._stream.fail(f"is no trace: event '{shown(self._name(event))}' has no 'ts' and 'dur' in numbers")
        if not -_LATEST < start < _LATEST or not 0 <= duration < _LATEST:
            self._stream.fail(f"event '{shown(self._name(event))}' has an impossible time")
        return round(start * 1000), round(duration * 1000)


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) else None


def _identity(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
