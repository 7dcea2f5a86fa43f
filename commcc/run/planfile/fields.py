"""The parts of a plan as plain data with nodes by name, and back; driven by the annotations in :mod:`commcc.plan`.

    encode_plan(plan, names)    # {'buckets': [{'kind': 'all_gather', 'members': ['ag_1', ...

A kind of edit that :mod:`commcc.plan` gets later is stored without a change here, as long as the annotations of its
fields say what their numbers are: ``Node``, ``NodeOrder`` or ``Count``. Anything else, a bare ``int`` above all, is an
:class:`InternalError` that names the field. Fields that are as by default, and parts that are empty, are left out.

A :class:`Decoder` reads them again, from a file that is not trusted: whatever is wrong is noted with its line, and a
stand-in returned.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from enum import Enum
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from commcc.base.errors import InternalError, closest
from commcc.base.reasons import Reason
from commcc.base.terms import Kind, Role
from commcc.base.text import shown
from commcc.base.yaml_file import to_number
from commcc.plan import PARTS, Plan, Rewrite
from commcc.run.planfile import moves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.base.yaml_file import Node
    from commcc.graph.index import GraphIndex
    from commcc.plan import PassReport

#: Names that get a did-you-mean; looking for one among all nodes of a graph takes its time.
_SUGGESTED = 5
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)

#: What annotations in ``commcc.plan`` name that is imported there for type checkers only.
_NAMES = {"Kind": Kind, "Role": Role, "Reason": Reason}


def hints_of(cls: type[Any]) -> Mapping[str, Any]:
    """Annotations of a dataclass by field, with the marks of ``Node``, ``NodeOrder`` and ``Count``."""
    return _hints_of(cast("Any", cls))


@cache
def _hints_of(cls: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(cls, localns=_NAMES, include_extras=True)
    except NameError as error:
        raise InternalError(f"plan files do not know the annotations of {cls.__name__}: {error}") from None


def mark_of(hint: Any) -> str | None:
    """``node``, ``order`` or ``count`` for an annotated hint."""
    return str(hint.__metadata__[0]) if typing.get_origin(hint) is Annotated else None


def optional(hint: Any) -> Any:
    """``X`` for ``X | None``, else None."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    others = [part for part in parts if part is not types.NoneType]
    return others[0] if len(parts) == 2 and len(others) == 1 else None


def item_of(hint: Any) -> Any:
    """``X`` for ``tuple[X, ...]``, else None."""
    parts = typing.get_args(hint)
    return parts[0] if typing.get_origin(hint) is tuple and len(parts) == 2 and parts[1] is Ellipsis else None


def part_hint(name: str) -> Any:
    """The annotation of a part of a plan: that of a field of its rewrite, or a tuple of one kind of edit."""
    owner = PARTS[name]
    return hints_of(owner).get(name, tuple[owner, ...])  # type: ignore[valid-type]


def unknown(hint: Any, where: str) -> InternalError:
    """The error for a field that cannot be stored."""
    return InternalError(
        f"plan files cannot hold '{where}' of type {hint}",
        hint="annotate it in commcc/plan.py with Node, NodeOrder or Count, or teach planfile/fields.py its type",
    )


def encode_plan(plan: Plan, names: Sequence[str]) -> dict[str, Json]:
    """The parts of a plan by name."""
    return {name: encode(part, part_hint(name), names, name) for name, part in plan.parts() if part}


def encode(value: Any, hint: Any, names: Sequence[str], where: str = "plan") -> Json:
    """``value`` as plain data."""
    mark, inner, item = mark_of(hint), optional(hint), item_of(hint)
    if mark == "node":
        return str(names[value])
    if mark == "order":
        return moves.encode(value, names)
    if mark == "count" or hint in (bool, str, float):
        return cast("Json", value)
    if inner is not None:
        return None if value is None else encode(value, inner, names, where)
    if item is not None:
        return [encode(part, item, names, where) for part in value]
    if hint is Reason:
        return str(value)
    if dataclasses.is_dataclass(hint):
        hints = hints_of(type(value))
        return {
            field.name: encode(
                getattr(value, field.name), hints[field.name], names, f"{type(value).__name__}.{field.name}"
            )
            for field in dataclasses.fields(hint)
            if getattr(value, field.name) != default_of(field)
        }
    if isinstance(hint, type) and issubclass(hint, Enum):
        return str(value.value)
    raise unknown(hint, where)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """What the field holds when it is not given; ``dataclasses.MISSING`` when it has to be."""
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


class Decoder:
    """Makes values of YAML nodes; with ``index`` names of nodes become numbers.

    Without it they become 0: types and keys are checked, so that all mistakes of that kind are named before anything
    is done.
    """

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
            return node.integer() if mark == "count" else self.order(node) if mark == "order" else self.node(node)
        if inner is not None:
            return None if node.is_null else self.value(node, inner, where)
        if item is not None:
            return tuple(self.value(entry, item, where) for entry in node.items())
        if hint is Reason:
            return Reason.of("stated", text=self._scalar(node, str, where))
        if dataclasses.is_dataclass(hint):
            return self.fields(node, hint)  # type: ignore[arg-type]
        return self._scalar(node, hint, where)

    def fields(self, node: Node, cls: type[Any]) -> Any:
        """A dataclass; None when a field that has to be there is missing."""
        hints, chosen = hints_of(cls), dataclasses.fields(cls)
        required = [f.name for f in chosen if default_of(f) is dataclasses.MISSING]
        given = node.mapping(required, [f.name for f in chosen])
        if any(given[name].missing for name in required):
            return None
        values = {name: self.value(entry, hints[name], f"{cls.__name__}.{name}") for name, entry in given.items()}
        return cls(**values)

    def node(self, node: Node) -> int:
        """A node by its name."""
        name = node.text()
        if self.index is None or not name:
            return 0
        number = self.index.position.get(name)
        if number is None:
            self._unknown += 1
            near = closest(name, self.index.names) if self._unknown <= _SUGGESTED and len(name) < 200 else ""
            node.fail(f"no node '{shown(name)}' in the graph{near}")
        return number or 0

    def order(self, node: Node) -> tuple[int, ...]:
        """An order from its moves."""
        read: list[tuple[int | None, tuple[int, ...]]] = []
        for move in node.items():
            parts = move.mapping(("after", "nodes"))
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
            word = node.text([str(member.value) for member in hint])
            return hint(word) if word else next(iter(hint))
        raise unknown(hint, where)


def to_json(node: Node) -> Json:
    """Any value, numbers and switches as such."""
    if isinstance(node.value, list):
        return [to_json(part) for part in node.value]
    if isinstance(node.value, dict):
        return {key: to_json(part) for key, part in node.value.items()}
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
