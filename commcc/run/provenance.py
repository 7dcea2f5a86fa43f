"""What is stored with a result: how each pass came to it, oldest first, in ``Program.provenance``.

    entry["pass"], entry["input"], entry["output"]      # 'bucket{bucket_cap_mb=25}', fingerprints
    entry["options"]                                    # all of them, defaults too
    entry["cost_model"], entry["hints"]                 # {'name': 'h100-sxm', 'hash': ...} or None, {'u0': 512}
    entry["reasons"]["buckets"], entry["metrics"]       # names of nodes by reason; the graph after the pass
    entry["spans"]                                      # [{'members': [...], 'span': 140}], of a pass that merged

Every format that commcc writes keeps the entries, and later passes add theirs. Files written before have
entries of ``pass`` and ``input`` only, so every reader has to do without the other keys.

Limits: no times and no paths, so that equal runs store equal bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc import __version__
from commcc.plan import Merging

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.plan import Plan
    from commcc.timing.snapshot import Snapshot

#: Fields by which an edit is named in the reasons, the first that it has.
_SUBJECTS = ("members", "keep", "launch", "nodes", "node", "name")


def entry(
    plan: Plan, before: Snapshot, after: Snapshot, options: Mapping[str, Json], cost_model: Json, *, dropped: str | None
) -> dict[str, Json]:
    """The entry of one pass; ``after`` is ``before`` where it changed nothing or was dropped."""
    names = before.index.names
    buckets = plan.rewrite.buckets if isinstance(plan.rewrite, Merging) else ()
    # How far apart members stood cannot be told once they are merged.
    spans: list[Json] = [
        {"members": [names[m] for m in bucket.members], "span": max(bucket.members) - min(bucket.members)}
        for bucket in buckets
    ]
    return {
        "pass": plan.pass_text,
        "changed": plan.changes and dropped is None,
        **({} if dropped is None else {"dropped": dropped}),
        "input": before.index.fingerprint,
        "output": after.index.fingerprint,
        "options": dict(options),
        "cost_model": cost_model,
        "hints": {hint.symbol: hint.value for hint in before.index.estimates.hints},
        "reasons": reasons(plan, names),
        **({"spans": spans} if spans else {}),
        "report": plan.report.to_json(),
        "metrics": after.to_json(),
        "commcc": __version__,
    }


def reasons(plan: Plan, names: Sequence[str]) -> dict[str, Json]:
    """For each kind of edit, and for what was left out: every reason with the names that it is about."""
    told: dict[str, Json] = {}
    for kind, edits in plan.parts():
        said = [edit for edit in edits if hasattr(edit, "reason")]
        by_reason: dict[str, Json] = {}
        for edit in said:
            listed = by_reason.setdefault(str(edit.reason), [])
            assert isinstance(listed, list)
            listed.append(_subject(edit, names))
        if by_reason:
            told[kind] = by_reason
    return told


def _subject(edit: Any, names: Sequence[str]) -> str:
    """The name of the node that stands for an edit: the first member of a bucket, the launch of a tag."""
    for field in _SUBJECTS:
        value = getattr(edit, field, None)
        if isinstance(value, tuple) and value:
            value = value[0]
        if isinstance(value, (int, str)):
            return value if isinstance(value, str) else names[value]
    return type(edit).__name__
