"""What ``.pt2`` files promise besides their graphs: signature, trees, guards, weights.

Both files must say the same of every input and output (parameters and buffers by name, what is written back and
where), and hold the same weights and constants, byte for byte. Names of nodes do not count.

Limits: a graph from a text has no signature: there is nothing to compare with, which is a remark. Symbols that only
one file has a range for are not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.errors import CommccError
from commcc.serialization.pt2.contract import contract, differing_entries

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.verify.verdict import Report


def compare_exported(before: Program, after: Program, report: Report) -> None:
    """Report in what the files of two programs differ besides the graph; nothing when it is one file."""
    if before.carrier is after.carrier:
        return
    try:
        old, new = contract(before), contract(after)
        entries = differing_entries(before, after) if old and new else []
    except CommccError as error:
        report.gap("input", "", f"the weights cannot be compared: {error.what} ({error.where})")
        return
    if not old or not new:
        side = "AFTER" if old else "BEFORE"
        report.note("input", "", f"{side} is no .pt2 file: names of parameters and weights are not compared")
        return
    for what in dict.fromkeys((*old, *new)):
        if (what in old and what in new) or not what.startswith("range of "):
            _compare(what, old.get(what), new.get(what), report)
    for name in entries:
        report.differs("input", "", f"'{name}' has other values than in BEFORE's file")


def _compare(what: str, old: Any, new: Any, report: Report) -> None:
    if old == new:
        return
    rule = "output" if what.startswith("output") else "input"
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
        old, new = ({key: each.get(key) for key in keys} for each in (old, new))
    report.differs(rule, "", f"{what} is {_shown(new)}, in BEFORE's file {_shown(old)}")


def _shown(fact: Any) -> str:
    text = "missing" if fact is None else str(fact)
    return text if len(text) <= 160 else f"{text[:157]}..."
