"""Reads the fields of a plan from an untrusted YAML file; the other half of :mod:`commcc.run.planfile.fields`.

A :class:`Decoder` without an index checks types and keys only, so that all mistakes of that sort are
named before anything is done; with one it also turns names of nodes into numbers. Whatever is wrong is
noted with its line, and a stand-in returned.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

from commcc.base.errors import closest
from commcc.base.reasons import Reason
from commcc.base.text import shown
from commcc.base.yaml_file import to_number
from commcc.plan import PARTS, Plan, Rewrite
from commcc.run.planfile import moves
from commcc.run.planfile.fields import default_of, hints_of, item_of, mark_of, optional, part_hint, unknown

if TYPE_CHECKING:
    from commcc.base.terms import Json
    from commcc.base.yaml_file import Node
    from commcc.graph.index import GraphIndex
    from commcc.plan import PassReport

#: Names that get a did-you-mean; looking for one among all nodes of a graph takes its time.
_SUGGESTED = 5
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)


class Decoder:
    """Makes values of YAML nodes; with ``index`` names of nodes become numbers, without they become 0."""

    def __init__(self, index: GraphIndex | None = None) -> None:
        self.index = index
        self._unknown = 0

    def plan(self, node: Node, text: str, fingerprint: str, report: PassReport) -> Plan:
        """A plan from a mapping of its parts."""
        given = node.mapping((), PARTS)
        read = {name: self.value(given[name], part_hint(name), name) for name in PARTS if name in given}
        of_rewrites: dict[type, dict[str, Any]] = {}
        edits: dict[str, tuple[Any, ...]] = {}
        for name, part in read.items():
            if PARTS[name] in get_args(Rewrite):
                of_rewrites.setdefault(PARTS[name], {})[name] = part
            else:
                edits[name] = part
        if len(of_rewrites) > 1:
            first, second = (next(iter(parts)) for parts in list(of_rewrites.values())[:2])
            node.fail(f"a pass cannot have both '{first}' and '{second}'")
        left_out = edits.pop("left_out", ())
        rewrite = next((kind(**parts) for kind, parts in of_rewrites.items()), None)
        return Plan(text, fingerprint, rewrite, tuple(chain.from_iterable(edits.values())), left_out, report)

    def value(self, node: Node, hint: Any, where: str) -> Any:
        """The value that ``hint`` asks for."""
        mark, inner, item = mark_of(hint), optional(hint), item_of(hint)
        if mark is not None:
            return self._marked(node, mark)
        if inner is not None:
            return None if node.is_null else self.value(node, inner, where)
        if item is not None:
            return tuple(self.value(each, item, where) for each in node.items())
        if hint is Reason:
            return Reason.of("stated", text=self._scalar(node, str, where))
        if dataclasses.is_dataclass(hint):
            return self.fields(node, hint)  # type: ignore[arg-type]
        if typing.get_origin(hint) is Mapping:
            return {key: to_json(each) for key, each in node.entries().items()}
        return self._scalar(node, hint, where)

    def fields(self, node: Node, cls: type[Any]) -> Any:
        """A dataclass; None when a field that has to be there is missing."""
        hints, chosen = hints_of(cls), dataclasses.fields(cls)
        required = [f.name for f in chosen if default_of(f) is dataclasses.MISSING]
        found = node.mapping(required, [f.name for f in chosen])
        if any(found[name].missing for name in required):
            return None
        values = {name: self.value(each, hints[name], f"{cls.__name__}.{name}") for name, each in found.items()}
        return cls(**values)

    def _marked(self, node: Node, mark: str) -> Any:
        if mark == "count":
            return node.integer()
        return self.order(node) if mark == "order" else self.node(node)

    def node(self, node: Node) -> int:
        """A node by its name."""
        name = node.text()
        if self.index is None or not name:
            return 0
        found = self.index.position.get(name)
        if found is None:
            self._unknown += 1
            near = closest(name, self.index.names) if self._unknown <= _SUGGESTED and len(name) < 200 else ""
            node.fail(f"no node '{shown(name)}' in the graph{near}")
        return found or 0

    def order(self, node: Node) -> tuple[int, ...]:
        """An order from its moves."""
        read: list[tuple[int | None, tuple[int, ...]]] = []
        for each in node.items():
            parts = each.mapping(("after", "nodes"))
            after = None if parts["after"].is_null else self.node(parts["after"])
            read.append((after, tuple(self.node(name) for name in parts["nodes"].items())))
        if self.index is None or self._unknown:
            return ()
        try:
            return moves.decode(len(self.index), read)
        except ValueError as error:
            node.fail(f"the order cannot be made: {error}")
            return tuple(range(len(self.index)))

    def _scalar(self, node: Node, hint: Any, where: str) -> Any:
        if hint is bool:
            return node.flag()
        if hint is str:
            return node.value if isinstance(node.value, str) and not node.is_null else node.text()
        if hint is float:
            return node.number()
        if isinstance(hint, type) and issubclass(hint, Enum):
            word = node.text([str(each.value) for each in hint])
            return hint(word) if word else next(iter(hint))
        raise unknown(hint, where)


def to_json(node: Node) -> Json:
    """Any value, numbers and switches as such."""
    if isinstance(node.value, list):
        return [to_json(each) for each in node.value]
    if isinstance(node.value, dict):
        return {key: to_json(each) for key, each in node.value.items()}
    if not node.plain or node.value is None:
        return node.value
    if node.is_null:
        return None
    if node.value in ("true", "false"):
        return node.value == "true"
    if _INTEGER.fullmatch(node.value):
        return int(node.value)
    number = to_number(node.value)
    return node.value if number is None else number
