"""Reads Chakra execution traces by the bytes of the wire format, with no library of protobuf.

Field numbers are those of MLCommons Chakra's schema; what is not in it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Of an attribute's value: name of the field, by number.
VALUES = {5: "float", 7: "int32", 9: "int64", 13: "uint64", 27: "bool", 29: "string"}
TYPES = {1: "METADATA", 4: "COMP", 5: "SEND", 6: "RECV", 7: "COLL"}


@dataclass
class Node:
    id: int = 0
    name: str = ""
    type: str = ""
    control: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    start: int = 0
    micros: int = 0
    inputs: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    #: Of which field of the format each attribute is.
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> set[int]:
        return {*self.control, *self.data}


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        assert shift < 70


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
            yield number, value
        else:
            assert wire == 2, (number, wire)
            length, at = varint(data, at)
            assert at + length <= len(data)
            yield number, data[at : at + length]
            at += length


def packed(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = varint(value, at)
        found.append(one)
    return found


def node_of(data: bytes) -> Node:
    node = Node()
    for number, value in fields(data):
        if number == 1:
            node.id = value
        elif number == 2:
            node.name = value.decode()
        elif number == 3:
            node.type = TYPES[value]
        elif number == 4:
            node.control += packed(value)
        elif number == 5:
            node.data += packed(value)
        elif number == 6:
            node.start = value
        elif number == 7:
            node.micros = value
        elif number == 8:
            node.inputs = dict(fields(value))[1].decode()
        else:
            assert number == 10, number
            parts = dict(fields(value))
            name = parts.pop(1).decode()
            ((kind, content),) = parts.items()  # one value, and of a kind that is known
            assert name not in node.attributes
            node.kinds[name] = VALUES[kind]
            node.attributes[name] = content.decode() if isinstance(content, bytes) else content
    return node


def read(path: Path) -> tuple[str, list[Node]]:
    """The version of a trace, and its nodes."""
    data, at = path.read_bytes(), 0
    messages = []
    while at < len(data):
        length, at = varint(data, at)
        assert 0 < length <= len(data) - at
        messages.append(data[at : at + length])
        at += length
    return dict(fields(messages[0]))[1].decode(), [node_of(each) for each in messages[1:]]


def replayed(nodes: list[Node]) -> int:
    """Microseconds of the step, when every node starts as soon as what it depends on has ended."""
    end: dict[int, int] = {}
    for node in nodes:
        assert node.id not in end
        end[node.id] = max((end[each] for each in node.needs), default=0) + node.micros
    return max(end.values())
