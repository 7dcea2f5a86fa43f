"""Which argument each result of an op shares storage with, from its schema."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from commcc.ops import aliasing

#: Ops that look at storage itself, not at the elements of a tensor.
_STORAGE_OPS = frozenset(
    {"aten.as_strided", "aten.as_strided_", "aten.set_", "aten.resize_", "inductor.resize_storage_bytes_"}
)


@lru_cache(maxsize=4096)
def result_bases(target: Any) -> tuple[str | None, ...]:
    """For each result, the name of the argument whose storage it is in; None for fresh storage."""
    schema = getattr(target, "_schema", None)
    views = aliasing(target).views
    if schema is None:
        return views[:1]
    owners: dict[str, str] = {}
    for argument in schema.arguments:
        for mark in () if argument.alias_info is None else argument.alias_info.before_set:
            owners.setdefault(mark, argument.name)
    bases: list[str | None] = []
    for result in schema.returns:
        marks = () if result.alias_info is None else sorted(result.alias_info.before_set)
        bases.append(next((owners[mark] for mark in marks if mark in owners), None))
    if not any(bases) and views:
        return tuple(views[0] for _ in schema.returns)
    return tuple(bases)


def sees_storage(name: str) -> bool:
    """Whether the result of the op called ``namespace.op`` depends on what is around its argument in memory."""
    return name in _STORAGE_OPS
