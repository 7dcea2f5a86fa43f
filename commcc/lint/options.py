"""Options of rules: figures with units, read from a file or from texts of the command line.

    @dataclass(frozen=True)
    class PeakMemory:
        max: float | None = figure(None, BYTES, "live bytes at the peak")

    value_of(options_of(PeakMemory)["max"], node)       # 60 GiB -> 64424509440

A value is a figure (:mod:`commcc.lint.quantities`), a figure by selector (``all_gather``, ``fsdp``,
``all_gather/fsdp`` or ``total``), a tolerance by metric, or names. ``none`` takes a limit away; as a tolerance it
leaves the metric out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.errors import closest
from commcc.base.options import Option, option, options_of
from commcc.base.terms import Kind, Role
from commcc.base.text import shown
from commcc.lint.tolerance import TOLERATED, read_tolerance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.yaml_file import Node
    from commcc.lint.quantities import Quantity

KINDS = tuple(str(kind) for kind in Kind)
ROLES = tuple(str(role) for role in Role)
TOTAL = "total"


@dataclass(frozen=True)
class NoOptions:
    """Of rules that have none."""


def figure(default: Any, quantity: Quantity, help: str) -> Any:
    """An option that is one figure; none means that there is no limit."""
    return option(default, help, one=lambda _, text: quantity.parse(text), takes=quantity.meaning, show=quantity.show)


def by_role(quantity: Quantity, help: str) -> Any:
    """A figure for each of some kinds and roles of collectives; one alone is about all of them."""
    pairs = tuple(f"{kind}/{role}" for kind in KINDS for role in ROLES)
    takes = f"{quantity.meaning}, or one for each of: {TOTAL}, a kind, a role, KIND/ROLE"
    keys = (TOTAL, *KINDS, *ROLES, *pairs)
    return option(None, help, keys=keys, one=lambda _, text: quantity.parse(text), takes=takes)


def by_kind(quantity: Quantity, kinds: tuple[Kind, ...], help: str) -> Any:
    """A figure for each of some kinds of collectives; one alone is about the first."""
    names = tuple(map(str, kinds))
    takes = f"{quantity.meaning} for {names[0]}, or one for each of: {', '.join(names)}"
    return option(None, help, keys=names, one=lambda _, text: quantity.parse(text), takes=takes)


def tolerances(help: str) -> Any:
    """A tolerance for each metric of a baseline; one alone is about those that have no other."""
    takes = "such as 2 % or 100 MiB, or one for each metric"
    return option(None, help, keys=TOLERATED, one=read_tolerance, takes=takes, none="not compared")


def value_of(option: Option, node: Node) -> Any:
    """The value that a file gives to an option; what is wrong is noted at its line, and None stands in for it.

    Of a mapping None stands for a key whose limit is taken away, or for what ``none`` means to the option.
    """
    if option.kind == "names":
        return _names(option, node)
    if not option.keys:
        return _one(option, "", node)
    if not isinstance(node.value, dict):
        # One figure for a mapping is about the first of its keys.
        one = _one(option, option.keys[0], node)
        return one if one is None and option.none is None else {option.keys[0]: one}
    values: dict[str, Any] = {}
    for key, child in node.value.items():
        if key in option.keys:
            values[key] = _one(option, key, child)
        else:
            known = ", ".join(name for name in option.keys if "/" not in name)
            near = closest(key, option.keys) or f" (it has {known})"
            child.fail(f"'{option.name}' has no '{shown(key)}'{near}")
    return values


def _names(option: Option, node: Node) -> tuple[str, ...]:
    """A list of texts, or one text with commas."""
    assert option.one is not None
    names: list[str] = []
    for item in node.items() if isinstance(node.value, list) else [node]:
        parts = [part for piece in item.text().split(",") if (part := piece.strip())]
        try:
            names += [option.one("", part) for part in parts]
        except ValueError as error:
            item.fail(f"'{node.name}': {error}")
    return tuple(names)


def _one(option: Option, key: str, node: Node) -> Any:
    text = "none" if node.is_null else node.text()
    if not text:
        return None
    try:
        return option.read(text, key)
    except ValueError as error:
        node.fail(f"'{node.name}'{' ' if option.one is not None else ': '}{error}")
        return None


def built(cls: type[Any], given: Mapping[str, Any]) -> Any:
    """The options with what was given; keys of a mapping whose limit was taken away are gone."""
    options = options_of(cls)
    values = {
        name: {key: limit for key, limit in value.items() if limit is not None or options[name].none is not None}
        if isinstance(value, dict)
        else value
        for name, value in given.items()
    }
    return cls(**values)
