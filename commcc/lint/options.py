"""Options of rules: fields of a frozen dataclass, each with a sort of value, read from text or a file.

    @dataclass(frozen=True)
    class PeakMemory:
        max: float | None = setting(None, BYTES, "live bytes at the peak")

    value_of(fields(PeakMemory)["max"], node)       # 60 GiB -> 64424509440

A value is a figure (:mod:`commcc.lint.quantities`), a figure by selector (``all_gather``, ``fsdp``,
``all_gather/fsdp`` or ``total``), a tolerance by metric, or names. ``none`` takes a limit away.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.errors import closest
from commcc.base.terms import Kind, Role
from commcc.base.text import shown
from commcc.lint.tolerance import TOLERATED, read_tolerance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commcc.base.yaml_file import Node
    from commcc.lint.quantities import Quantity

KINDS = tuple(str(kind) for kind in Kind)
ROLES = tuple(str(role) for role in Role)
TOTAL = "total"


@dataclass(frozen=True)
class NoOptions:
    """Of rules that have none."""


@dataclass(frozen=True)
class Sort:
    """What an option may be. keys: selectors of a mapping, empty for a plain value; a plain value
    for a mapping is about the first of them.

    meaning: for manuals, as in ``a size such as 25 MiB``. several: a list of names. shown: a value as text.
    """

    meaning: str
    one: Callable[[str, str], Any]
    keys: tuple[str, ...] = ()
    several: bool = False
    shown: Callable[[Any], str] = str


def setting(default: Any, sort: Sort | Quantity, help: str) -> Any:
    """A field that is an option; None as its default means that there is no limit."""
    return dataclasses.field(default=default, metadata={"sort": _sort(sort), "help": help})


def _sort(sort: Sort | Quantity) -> Sort:
    return sort if isinstance(sort, Sort) else figure(sort)


def figure(quantity: Quantity) -> Sort:
    """One figure."""
    return Sort(quantity.meaning, lambda _key, text: quantity.parse(text), shown=quantity.show)


def by_role(quantity: Quantity) -> Sort:
    """A figure for each of some kinds and roles of collectives; one alone is about all of them."""
    pairs = tuple(f"{kind}/{role}" for kind in KINDS for role in ROLES)
    meaning = f"{quantity.meaning}, or one for each of: {TOTAL}, a kind, a role, KIND/ROLE"
    return Sort(meaning, lambda _key, text: quantity.parse(text), (TOTAL, *KINDS, *ROLES, *pairs))


def by_kind(quantity: Quantity, *kinds: Kind) -> Sort:
    """A figure for each of some kinds of collectives; one alone is about the first."""
    names = tuple(map(str, kinds))
    meaning = f"{quantity.meaning} for {names[0]}, or one for each of: {', '.join(names)}"
    return Sort(meaning, lambda _key, text: quantity.parse(text), names)


def tolerances() -> Sort:
    """A tolerance for each metric of a baseline; one alone is about those that have no other."""
    return Sort("such as 2 % or 100 MiB, or one for each metric", read_tolerance, TOLERATED)


def names(meaning: str, check: Callable[[str], str]) -> Sort:
    """One or several texts; ``check`` gives a text back, or raises ``ValueError``."""
    return Sort(meaning, lambda _key, text: check(text), several=True)


def options_of(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The options by name."""
    return {each.name: each for each in dataclasses.fields(cls)}


def value_of(option: dataclasses.Field[Any], node: Node) -> Any:
    """The value that a file gives to an option; what is wrong is noted at its line, and None stands in for it.

    Of a mapping None stands for a key whose limit is taken away.
    """
    sort: Sort = option.metadata["sort"]
    if sort.several:
        return _names(sort, node)
    if not sort.keys:
        return _one(sort, option.name, node)
    if not isinstance(node.value, dict):
        if node.is_null or node.value == "none":
            return None
        return {sort.keys[0]: _one(sort, sort.keys[0], node)}
    found: dict[str, Any] = {}
    for key, each in node.value.items():
        if key in sort.keys:
            found[key] = _one(sort, key, each)
        else:
            known = ", ".join(name for name in sort.keys if "/" not in name)
            near = closest(key, sort.keys) or f" (it has {known})"
            each.fail(f"'{option.name}' has no '{shown(key)}'{near}")
    return found


def _names(sort: Sort, node: Node) -> tuple[str, ...]:
    """A list of texts, or one text with commas."""
    found: list[str] = []
    for each in node.items() if isinstance(node.value, list) else [node]:
        text = each.text()
        parts = [part for piece in text.split(",") if (part := piece.strip())]
        try:
            found += [sort.one("", part) for part in parts]
        except ValueError as error:
            each.fail(f"'{node.name}': {error}")
    return tuple(found)


def _one(sort: Sort, key: str, node: Node) -> Any:
    if node.is_null or node.value == "none":
        return None
    text = node.text()
    if not text:
        return None
    try:
        return sort.one(key, text)
    except ValueError as error:
        node.fail(f"'{node.name}' {error}")
        return None


def built(cls: type[Any], given: Mapping[str, Any]) -> Any:
    """The options with what was given; keys of a mapping whose limit was taken away are gone."""
    values = {
        name: {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value
        for name, value in given.items()
    }
    return cls(**values)
