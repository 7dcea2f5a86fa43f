"""What may do anything, so that nothing moves across it: unknown ops, streams, waits for what began elsewhere.

::

    place(trace, node, "wait", content)      # of what is no step: waits, and copies of what is there
    sides(trace)                             # {key: (after how many barriers, a node)}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.verify.trace import LAUNCH, OP

if TYPE_CHECKING:
    from torch import fx

    from commcc.verify.pair import Pair
    from commcc.verify.trace import Trace


def place(trace: Trace, node: fx.Node, *key: Any) -> None:
    """Remember before and after which barriers a node stands that is no step. key: what it is."""
    trace.placed.append((key, node.name, len(trace.barriers)))


def sides(trace: Trace) -> dict[Any, tuple[set[int], str]]:
    """After how many barriers each op is computed, each source moved, and each wait and copy made; none without any."""
    found: dict[Any, tuple[set[int], str]] = {}
    if not trace.barriers:
        return found
    for step in trace.steps:
        if step.node in trace.live and step.kind in (OP, LAUNCH):
            for source in step.sources or (step.term,):
                found.setdefault(source, (set(), step.node))[0].add(step.barriers)
    for key, node, after in trace.placed:
        if node in trace.live:
            found.setdefault(key, (set(), node))[0].add(after)
    return found


def compare_barriers(pair: Pair) -> None:
    """All that both graphs do stands on the same side of every op that may do anything."""
    old, new = sides(pair.before), sides(pair.after)
    for key, (after, node) in new.items():
        was = old.get(key)
        if was is not None and was[0] != after:
            at = min(*(after ^ was[0]), len(pair.after.barriers) - 1)
            text = f"stands on the other side of '{pair.after.barriers[at]}' than in BEFORE"
            pair.report.gap("effect", node, f"{text}; what that op does is not known")
