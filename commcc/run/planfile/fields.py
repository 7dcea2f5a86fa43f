"""The parts of a plan as plain data with nodes by name, and back; driven by the annotations in :mod:`commcc.plan`.

    encode_plan(plan, names)    # {'buckets': [{'kind': 'all_gather', 'members': ['ag_1', ...

A kind of edit that :mod:`commcc.plan` gets later is stored without a change here, as long as the annotations of its
fields say what their numbers are: ``Node``, ``NodeOrder`` or ``Count``. Anything else, a bare ``int`` above all, is an
:class:`InternalError` that names the field. Fields that are as by default, and parts that are empty, are left out.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast

from commcc.base.errors import InternalError
from commcc.base.reasons import Reason
from commcc.base.terms import Json, Kind, Role
from commcc.plan import PARTS
from commcc.run.planfile import moves

if TYPE_CHECKING:
    from commcc.plan import Plan

#: What annotations in ``commcc.plan`` name that is imported there for type checkers only.
_NAMES = {"Mapping": Mapping, "Json": Any, "Kind": Kind, "Role": Role, "Reason": Reason}


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
        return [encode(each, item, names, where) for each in value]
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
    if typing.get_origin(hint) is Mapping:
        return dict(value)
    raise unknown(hint, where)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """What the field holds when it is not given; ``dataclasses.MISSING`` when it has to be."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
