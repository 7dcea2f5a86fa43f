"""What PyTorch asks of a ``.pt2`` file before it loads it, besides what reading the graph finds out.

Usage::

    check_types(document, "ExportedProgram")        # every value is of the type that PyTorch's schema gives it
    check_names(document["graph_module"], names)    # signature and calling conventions are those of the graph
    is_known("TRAINING")                            # a set of rules that this PyTorch can check a program by

The types are those of the installed PyTorch (``torch/_export/serde/schema.py``): keys that it does not know are
skipped, as it skips them. Errors are :class:`InputError` with the place in the file.
Limits: what an op makes of its arguments is not looked at.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch._export.serde import schema
from torch._export.serde.union import _Union
from torch._export.verifier import load_verifier

from commcc.base.errors import InputError
from commcc.serialization.pt2.schema import argument_name, union

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    _Check = Callable[[Any], None]

_WORDS = {
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    float: "a number",
    dict: "a table",
    list: "a list",
}
_INFINITE = ("Infinity", "-Infinity", "NaN")


class _WrongType(Exception):
    """path: from the value up to the root of the document."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []


def check_types(document: Any, kind: str) -> None:
    """Raise :class:`InputError` for the first value that is not what the dataclass ``kind`` of the schema says."""
    try:
        _check_of(getattr(schema, kind))(document)
    except _WrongType as wrong:
        place = ".".join(reversed(wrong.path)).replace(".[", "[")
        raise InputError(f"{place[:200]} {wrong.what}") from None


@lru_cache(maxsize=256)
def _check_of(hint: Any) -> _Check:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _optional(next(part for part in parts if part is not type(None)))
    if origin is list:
        return _list_of(parts[0])
    if origin is dict:
        return _table_of(parts[1])
    if isinstance(hint, type) and issubclass(hint, _Union):
        return _alternatives(hint)
    if dataclasses.is_dataclass(hint):
        return _record(hint)
    return _single(int if issubclass(hint, IntEnum) else hint)


def _later(hint: Any) -> _Check:
    """A check that is made when it is first needed: types hold themselves."""
    made: list[_Check] = []

    def check(value: Any) -> None:
        if not made:
            made.append(_check_of(hint))
        made[0](value)

    return check


def _single(wanted: type) -> _Check:
    def check(value: Any) -> None:
        if type(value) is wanted or (wanted is float and (type(value) is int or value in _INFINITE)):
            return
        raise _WrongType(f"is {_shown(value)}, not {_WORDS[wanted]}")

    return check


def _optional(hint: Any) -> _Check:
    inner = _later(hint)
    return lambda value: None if value is None else inner(value)


def _list_of(hint: Any) -> _Check:
    inner, whole = _later(hint), _single(list)

    def check(value: Any) -> None:
        whole(value)
        for place, item in enumerate(value):
            _at(f"[{place}]", inner, item)

    return check


def _table_of(hint: Any) -> _Check:
    inner, whole = _later(hint), _single(dict)

    def check(value: Any) -> None:
        whole(value)
        for key, item in value.items():
            _at(key, inner, item)

    return check


def _record(kind: Any) -> _Check:
    hints = typing.get_type_hints(kind, globalns=vars(schema))
    missing = dataclasses.MISSING
    fields = [
        (field.name, _later(hints[field.name]), field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
    ]
    whole = _single(dict)

    def check(value: Any) -> None:
        whole(value)
        for name, inner, required in fields:
            if name in value:
                _at(name, inner, value[name])
            elif required:
                raise _WrongType(f"has no {name!r}")

    return check


def _alternatives(kind: type) -> _Check:
    inner = {name: _later(hint) for name, hint in typing.get_type_hints(kind, globalns=vars(schema)).items()}

    def check(value: Any) -> None:
        if type(value) is not dict or len(value) != 1 or (name := next(iter(value))) not in inner:
            raise _WrongType(f"is {_shown(value)}, which is no {kind.__name__}")
        _at(name, inner[name], value[name])

    return check


def _at(name: str, check: _Check, value: Any) -> None:
    try:
        check(value)
    except _WrongType as wrong:
        wrong.path.append(name[:40])
        raise


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def check_names(module: dict[str, Any], names: Container[str]) -> None:
    """The signature must list what the graph takes and returns, and conventions name nodes.

    module: the ``graph_module`` of a checked document, with its graph. names: of all nodes of the graph.
    """
    signature, graph = module["signature"], module["graph"]
    for what in ("input", "output"):
        specs, there = signature[f"{what}_specs"], graph[f"{what}s"]
        if len(specs) != len(there):
            raise InputError(f"the signature has {len(specs)} {what}s, the graph {len(there)}")
        for place, (spec, argument) in enumerate(zip(specs, there, strict=True)):
            said, found = _said(spec), _plain(argument)
            # What is written back goes by name, whatever the order.
            by_name = what == "output" and "user_output" not in spec
            if said not in (map(_plain, there) if by_name else (found,)):
                raise InputError(f"{what} {place} is {said} in the signature and {found} in the graph")
    calls = module["module_call_graph"]
    if not calls or calls[0]["fqn"]:
        raise InputError("the calls of modules do not begin with that of the program")
    for entry in calls:
        convention = entry["signature"] or {"inputs": [], "outputs": []}
        for argument in (*convention["inputs"], *convention["outputs"]):
            name = argument_name(argument)
            if name and name not in names:
                raise InputError(
                    f"the calling convention of {entry['fqn'][:60]!r} names {name[:60]!r}, which is no node"
                )


def _said(spec: dict[str, Any]) -> str:
    kind, value = union(spec)
    if kind == "constant_input":
        return _plain(value["value"])
    return _plain(value["arg"]) if kind.startswith("user_") and "user_input_name" not in value else value["arg"]["name"]


def _plain(argument: dict[str, Any]) -> str:
    """A name, or a number as JSON writes it."""
    name = argument_name(argument)
    return name if name is not None else json.dumps(argument, sort_keys=True)


def is_known(verifier: str) -> bool:
    """Whether this PyTorch has the rules that a program says it keeps; without them it is not loaded."""
    try:
        load_verifier(verifier)
    except KeyError:
        return False
    return True
