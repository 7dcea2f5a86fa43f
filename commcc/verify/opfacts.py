"""Facts about ops, looked up once for each op: storage, effects, and how the verifier treats it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from commcc.graph.ops import (
    ALL,
    aliasing,
    collective_of,
    facts,
    is_effect,
    is_getitem,
    is_host_sync,
    is_random,
    is_unknown_communication,
    is_wait,
)
from commcc.verify.regroup import regroups
from commcc.verify.terms import path_of

if TYPE_CHECKING:
    from commcc.graph.ops import Aliasing
    from commcc.graph.ops.collective_table import CollectiveOp


@dataclass(frozen=True)
class OpFacts:
    """What there is to know about one op.

    bases: for each result, the name of the argument whose storage it is in, None for fresh storage.
    launch: the collective that it starts, if it does. explained: the op only regroups elements.
    sees_storage: its result depends on what is around its argument in memory. reads: it reads elements.
    free: it computes nothing: a view or an allocation.
    """

    path: str
    aliasing: Aliasing
    bases: tuple[str | None, ...]
    launch: CollectiveOp | None
    getitem: bool
    wait: bool
    explained: bool
    random: bool
    effect: bool
    sees_storage: bool
    reads: bool
    free: bool


@lru_cache(maxsize=4096)
def facts_of(target: Any) -> OpFacts:
    """The facts about an op."""
    collective = collective_of(target)
    fact = facts(target)
    return OpFacts(
        path=path_of(target),
        aliasing=aliasing(target),
        bases=_result_bases(target),
        launch=collective if collective is not None and collective.asynchronous else None,
        getitem=is_getitem(target),
        wait=is_wait(target),
        explained=regroups(path_of(target)),
        random=is_random(target),
        effect=is_effect(target) or is_host_sync(target) or is_unknown_communication(target),
        sees_storage=fact.storage,
        reads=fact.reads,
        free=fact.allocates or (fact.views not in ((), ALL) and not fact.sometimes),
    )


def _result_bases(target: Any) -> tuple[str | None, ...]:
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
