"""A graph as Chakra execution traces, one file a rank, for simulators of networks that read them (ASTRA-sim, ...)::

    traces = Traces.of(program, seen, make_layout([(program, seen.index)]))
    traces.write(3, stream)                     # step.3.et

The format is MLCommons Chakra's, version 0.0.4: messages of protobuf, each behind its length, first ``GlobalMetadata``,
then a ``METADATA`` node with the process groups of the rank, as PyTorch's own traces have it, then the nodes.

    ==============================  ===============================================================================
    a launch of a collective        ``COMM_COLL``: ``comm_type``, ``comm_size`` (bytes of the input), ``pg_name``
    an op that takes time           ``COMP``: ``num_ops`` (FLOPs, if they are known), ``tensor_size`` (of the result)
    what a launch takes             ``COMP`` in front of it, ``NAME.launch``
    a wait                          ``COMP`` of no time behind its collective
    an input in flight at the start ``COMP`` of the CPU until it arrives (``--hint``), behind those that arrive earlier
    views, inputs, outputs          none: who uses them depends on what they show
    ==============================  ===============================================================================

``data_deps`` are values, ``ctrl_deps`` the order: of the compute stream, of the queue of each process group, and of a
launch behind what stands before it. Durations and starts are those of the simulated step, in whole microseconds that
add up; ``duration_nanos`` has them exactly. Every part of a process group has a number of its own as ``pg_name``, which
simulators want; ``pg_desc`` has the group's name.

Limits: all ranks run the same graph. Collectives in sub-graphs are part of the time of the node that runs them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from commcc.base.errors import CommccError
from commcc.base.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from commcc.graph.index import GraphIndex
    from commcc.replay.layout import Layout
    from commcc.timing.predict import Prediction
    from commcc.timing.snapshot import Snapshot

VERSION = "0.0.4"
#: Names of node types, and of types of collectives, with their numbers in the format.
METADATA, COMP, COMM_COLL = 1, 4, 7
COLLECTIVES = {
    Kind.ALL_REDUCE: 0,
    Kind.ALL_GATHER: 2,
    Kind.BROADCAST: 5,
    Kind.ALL_TO_ALL: 6,
    Kind.REDUCE_SCATTER: 7,
}
_STRING, _INT64, _UINT64, _BOOL, _INT32, _ENUM = 9, 3, 4, 8, 5, 14
#: Fields that are written, as (name, number, type, repeated); a type that is a text is a message.
_MESSAGES: dict[str, tuple[tuple[str, int, int | str, bool], ...]] = {
    "AttributeProto": (
        ("name", 1, _STRING, False),
        ("int32_val", 7, _INT32, False),
        ("int64_val", 9, _INT64, False),
        ("uint64_val", 13, _UINT64, False),
        ("bool_val", 27, _BOOL, False),
        ("string_val", 29, _STRING, False),
    ),
    "GlobalMetadata": (("version", 1, _STRING, False), ("attr", 2, "AttributeProto", True)),
    "IOInfo": (("values", 1, _STRING, False), ("shapes", 2, _STRING, False), ("types", 3, _STRING, False)),
    "Node": (
        ("id", 1, _UINT64, False),
        ("name", 2, _STRING, False),
        ("type", 3, _INT32, False),
        ("ctrl_deps", 4, _UINT64, True),
        ("data_deps", 5, _UINT64, True),
        ("start_time_micros", 6, _UINT64, False),
        ("duration_micros", 7, _UINT64, False),
        ("inputs", 8, "IOInfo", False),
        ("outputs", 9, "IOInfo", False),
        ("attr", 10, "AttributeProto", True),
    ),
}
_MOST = (1 << 63) - 1
#: Of these a number of zero says something; the format has them in a ``oneof``.
_ONE_OF = "AttributeProto"


def messages() -> dict[str, Any]:
    """Classes of protobuf by name. Raises :class:`CommccError` where protobuf is not installed."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise CommccError("writing .et takes protobuf", hint="pip install 'commcc[chakra]'") from None
    file = descriptor_pb2.FileDescriptorProto(name="commcc_chakra.proto", package="ChakraProtoMsg", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        if message == _ONE_OF:
            described.oneof_decl.add(name="value")
        for name, number, kind, repeated in fields:
            field = described.field.add(name=name, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                field.type, field.type_name = 11, f".ChakraProtoMsg.{kind}"
            else:
                field.type = kind
            if message == _ONE_OF and name != "name":
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in _MESSAGES
    }


@dataclass(frozen=True)
class Traces:
    """The traces of all ranks. bytes_of: what each launch sends, by node."""

    index: GraphIndex
    prediction: Prediction
    layout: Layout
    bytes_of: dict[int, int]

    @classmethod
    def of(cls, seen: Snapshot, layout: Layout) -> Traces:
        """Of a graph that has been priced."""
        assert seen.prediction is not None
        sent = {collective.launch: collective.input_bytes for collective in seen.ident.collectives}
        return cls(seen.index, seen.prediction, layout, sent)

    def write(self, rank: int, stream: BinaryIO) -> None:
        """The trace of one rank."""
        types = self._types
        _put(stream, types["GlobalMetadata"](version=VERSION))
        _put(stream, self._groups_of(rank))
        for node, message in self._nodes.items():
            if node in self._launching:
                stream.write(self._before[node])
            if node in self.index.launches:
                group = self.index.launches[node].group
                own = types["Node"]()
                own.CopyFrom(message)
                if group in self.layout.parts:
                    number = self.numbers[group, self.layout.mine(group, rank)]
                    own.attr.append(self._attr("pg_name", string_val=str(number)))
                _put(stream, own)
            else:
                stream.write(self._plain[node])

    @property
    def counts(self) -> Counter[str]:
        """Nodes of a trace by type."""
        kinds = {COMP: "COMP", COMM_COLL: "COMM_COLL"}
        return Counter(kinds[message.type] for message in (*self._nodes.values(), *self._launching.values()))

    @cached_property
    def numbers(self) -> dict[tuple[str, tuple[int, ...]], int]:
        """A number for every part of every process group."""
        parts = [(name, part) for name, whole in sorted(self.layout.parts.items()) for part in whole]
        return {key: number for number, key in enumerate(parts)}

    @cached_property
    def _types(self) -> dict[str, Any]:
        return messages()

    def _attr(self, name: str, **value: Any) -> Any:
        fitting = {key: _fitting(item) for key, item in value.items()}
        return self._types["AttributeProto"](name=name, **fitting)

    def _groups_of(self, rank: int) -> Any:
        """The node that says which groups the rank is in."""
        mine = [(name, self.layout.mine(name, rank)) for name in sorted(self.layout.parts)]
        said = [
            {"pg_name": str(self.numbers[name, part]), "pg_desc": name, "ranks": part, "group_size": len(part)}
            for name, part in mine
        ]
        node = self._types["Node"](id=0, name="## process_group:init ##", type=METADATA)
        node.inputs.values = f"['{json.dumps(said, separators=(',', ':'))}']"
        node.attr.append(self._attr("rank", int64_val=rank))
        return node

    @cached_property
    def _plain(self) -> dict[int, bytes]:
        """What is the same on every rank, as it is written."""
        return {n: _framed(message) for n, message in self._nodes.items() if n not in self.index.launches}

    @cached_property
    def _before(self) -> dict[int, bytes]:
        """What launches collectives, as it is written."""
        for node, message in self._launching.items():
            message.id = self._ids[node] - 1
        return {node: _framed(message) for node, message in self._launching.items()}

    @cached_property
    def _nodes(self) -> dict[int, Any]:
        """A message for every node that a trace has, by node of the index, in graph order."""
        index, line = self.index, self.prediction.timeline
        shown = _Shown(index, self._ids)
        compute: set[int] = set()
        queues: dict[str, int] = {}
        by_node: dict[int, Any] = {}
        arrived = (0, 0)  # the number of the last input in flight, and when it is there
        for node, number in self._ids.items():
            span, before = line.spans.get(node), set(compute)
            start, end = (span.start, span.end) if span is not None else (line.start[node], line.end[node])
            if node in line.arrivals:
                before = {arrived[0]} - {0}
                start, end = arrived[1], line.arrivals[node]
                arrived = (number, end)
            elif span is not None:
                before = {number - 1} if node in self._launching else before
                before |= {queues[span.stream]} if span.stream in queues else set()
                queues[span.stream] = number
            elif node in index.wait_of or node in index.begun_elsewhere:
                start = end  # what the wait stalls is its collective's time
            data = shown.through(index.data_preds[node])
            message = self._types["Node"](
                id=number,
                name=_fitting(index.names[node]),
                type=COMM_COLL if node in index.launches else COMP,
                data_deps=sorted(data),
                ctrl_deps=sorted((shown.through(index.order_preds[node]) | before) - data),
                start_time_micros=_micros(start),
                duration_micros=_micros(end) - _micros(start),
            )
            message.attr.extend(self._attributes(node, end - start))
            by_node[node] = message
            if node in self._launching:
                self._launching[node].ctrl_deps.extend(sorted(compute))
                compute = {number - 1}
            elif node not in index.launches and node not in line.arrivals:
                compute = {number}
        return by_node

    @cached_property
    def _ids(self) -> dict[int, int]:
        """Ids of the nodes of the index that a trace has; what launches a collective has the one before it."""
        index, ns = self.index, self.prediction.costs.ns
        # Inputs in flight are behind one another: each takes as long as it comes after the one before it.
        ends = self.prediction.timeline.arrivals
        arrivals = sorted(ends, key=lambda node: (ends[node], node))
        arriving = {wait for wait, source in index.begun_elsewhere.items() if source in arrivals}
        ids = {node: number for number, node in enumerate(arrivals, 1)}
        number = len(ids)
        for node in range(len(index)):
            if node in index.launches or node in index.wait_of or node in arriving or ns[node]:
                number += 2 if node in self._launching else 1
                ids[node] = number
        return ids

    @cached_property
    def _launching(self) -> dict[int, Any]:
        """What each launch takes of the compute stream, by launch; nothing where it takes no time."""
        line, by_launch = self.prediction.timeline, {}
        for node in self.index.launches:
            start, end = line.start[node], line.end[node]
            if end > start:
                times = {"start_time_micros": _micros(start), "duration_micros": _micros(end) - _micros(start)}
                by_launch[node] = self._types["Node"](name=f"{self.index.names[node]}.launch", type=COMP, **times)
                by_launch[node].attr.append(self._attr("is_cpu_op", bool_val=False))
                by_launch[node].attr.append(self._attr("duration_nanos", uint64_val=end - start))
        return by_launch

    def _attributes(self, node: int, ns: int) -> Iterator[Any]:
        """What a simulator asks of a node, in the types that its readers expect."""
        index = self.index
        # What another graph launched takes nothing of the device's time here.
        yield self._attr("is_cpu_op", bool_val=node in self.prediction.timeline.arrivals)
        launch = index.launches.get(node)
        if launch is not None:
            yield self._attr("comm_type", int64_val=COLLECTIVES[launch.kind])
            yield self._attr("comm_size", int64_val=self.bytes_of.get(node, 0))
            yield self._attr("pg_desc", string_val=launch.group)
        else:
            if node in index.estimates.flops:
                yield self._attr("num_ops", int64_val=index.estimates.flops[node])
            result = sum(index.estimates.buffer_bytes[buffer] for buffer in index.estimates.buffers[node])
            yield self._attr("tensor_size", uint64_val=result)
        yield self._attr("op", string_val=index.ops[node])
        yield self._attr("duration_nanos", uint64_val=ns)
        if index.modules[node]:
            yield self._attr("module", string_val=index.modules[node])


class _Shown:
    """What nodes depend on that are in the trace, through those that are not."""

    def __init__(self, index: GraphIndex, ids: dict[int, int]) -> None:
        self.behind: list[frozenset[int]] = []
        for node in range(len(index)):
            own = ids.get(node)
            self.behind.append(self.through(index.preds(node)) if own is None else frozenset((own,)))

    def through(self, nodes: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self.behind[node] for node in nodes))


def _micros(ns: int) -> int:
    """Rounded where it stands in the step, so that durations add up."""
    return int(_fitting((ns + 500) // 1000))


def _fitting(value: Any) -> Any:
    """Numbers of files can be larger than the format's, and names hold what UTF-8 cannot."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return value if isinstance(value, bool) else min(value, _MOST)


def _framed(message: Any) -> bytes:
    """A message behind its length, seven bits a byte, the lowest first."""
    data: bytes = message.SerializeToString(deterministic=True)
    head, length = bytearray(), len(data)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*head, length)) + data


def _put(stream: BinaryIO, message: Any) -> None:
    stream.write(_framed(message))
