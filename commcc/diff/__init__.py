"""What a rewrite did to a graph, whoever did it::

    d = diff(load("g.fx.txt"), load("g.bucket.fx.txt"))
    d.merged[0]     # Merge(into='all_gather_into_tensor_98', members=('all_gather_into_tensor', ...), ...)
    d.moved         # nodes in both graphs whose place among the others changed, and past how many
    d.added         # nodes that only the second graph has, by op

Nodes are matched by name, and renamed ones by structure. Says nothing about whether the rewrite is
right; that is :mod:`commcc.verify`. Close to linear time.

Limits: a graph whose names have nothing in common with the other's is matched from its inputs on by
structure, as far as the two do the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.callables import also_a_function
from commcc.base.text import natural_key
from commcc.diff.lineage import lineage
from commcc.diff.match import match
from commcc.diff.moves import moves, stationary
from commcc.diff.types import Change, GroupChange, Merge, Move, OpGroup, Rename, Split, to_json
from commcc.timing.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.base.terms import Json
    from commcc.diff.match import Matching, Side
    from commcc.graph.metrics import GraphMetrics
    from commcc.graph.program import Program
    from commcc.timing.cost import CostModel

__all__ = ["Change", "GraphDiff", "GroupChange", "Merge", "Move", "OpGroup", "Rename", "Split", "diff"]


@dataclass(frozen=True)
class GraphDiff:
    """The difference between two graphs; every list is in graph order, groups of ops largest first.

    first, last: the two graphs, with predictions if a cost model was given.
    replaced: collectives that another single one stands for. changed: nodes whose constants differ.
    rewired: nodes whose constants are the same and whose operands are not. retyped: nodes whose results are said to
    have another dtype, size, stride or device. groups: process groups of one name with other ranks.
    """

    first: Snapshot
    last: Snapshot
    merged: tuple[Merge, ...]
    split: tuple[Split, ...]
    replaced: tuple[Change, ...]
    moved: tuple[Move, ...]
    added: tuple[OpGroup, ...]
    removed: tuple[OpGroup, ...]
    renamed: tuple[Rename, ...]
    changed: tuple[Change, ...]
    rewired: tuple[str, ...]
    retyped: tuple[Change, ...]
    groups: tuple[GroupChange, ...]

    @property
    def before(self) -> GraphMetrics:
        return self.first.metrics

    @property
    def after(self) -> GraphMetrics:
        return self.last.metrics

    @property
    def identical(self) -> bool:
        """Whether the two graphs are the same, names and order included."""
        nodes = (self.merged, self.split, self.moved, self.added, self.removed, self.renamed, self.changed)
        return not any((*nodes, self.rewired, self.retyped, self.groups))

    def to_json(self) -> dict[str, Json]:
        """Everything, under the names of the fields."""
        lists: dict[str, tuple[Any, ...]] = {
            "merged": self.merged,
            "split": self.split,
            "replaced": self.replaced,
            "moved": self.moved,
            "added": self.added,
            "removed": self.removed,
            "renamed": self.renamed,
            "changed": self.changed,
            "retyped": self.retyped,
            "groups": self.groups,
        }
        return {
            "identical": self.identical,
            "before": self.first.to_json(),
            "after": self.last.to_json(),
            **{name: [to_json(item) for item in items] for name, items in lists.items()},
            "rewired": list(self.rewired),
        }


def diff(
    before: Program,
    after: Program,
    *,
    model: CostModel | None = None,
    hints: Mapping[str, int] | None = None,
) -> GraphDiff:
    """Compare two graphs; raises :class:`commcc.base.errors.GraphError` on an illegal one.

    model: prices both graphs. hints: numbers for symbolic sizes (:mod:`commcc.graph.index.hints`).
    """
    matching = match(before, after, hints)
    old, new = matching.before.index, matching.after.index
    still = stationary(matching)
    merged, split, replaced = lineage(matching, still)
    changed, rewired = _changes(matching)
    return GraphDiff(
        first=Snapshot.of(old).priced(model),
        last=Snapshot.of(new).priced(model),
        merged=merged,
        split=split,
        replaced=replaced,
        moved=moves(matching, still),
        added=_by_op(matching.after, (a for a in range(len(new)) if a not in matching.to_before)),
        removed=_by_op(matching.before, (b for b in range(len(old)) if b not in matching.to_after)),
        renamed=tuple(Rename(old.names[b], new.names[matching.to_after[b]], old.ops[b]) for b in matching.renamed),
        changed=changed,
        rewired=rewired,
        retyped=_retyped(matching),
        groups=_regrouped(before, after),
    )


def _by_op(side: Side, nodes: Iterable[int]) -> tuple[OpGroup, ...]:
    names: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        names[side.index.ops[node]].append(side.index.names[node])
    ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(OpGroup(op, tuple(members)) for op, members in ordered)


def _changes(matching: Matching) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Nodes in both graphs with other constants, and those with other operands only."""
    changed: list[Change] = []
    rewired: list[str] = []
    names, ops = matching.after.index.names, matching.after.index.ops
    for a, b in sorted(matching.to_before.items()):
        constants = matching.before.constants(b), matching.after.constants(a)
        if constants[0] != constants[1]:
            changed.append(Change(names[a], ops[a], *constants))
            continue
        # Operands are compared as pairs of nodes: a renamed operand is no other one.
        operands = tuple(matching.to_after.get(operand) for operand in matching.before.operands(b))
        if operands != matching.after.operands(a):
            rewired.append(names[a])
    return tuple(changed), tuple(rewired)


def _retyped(matching: Matching) -> tuple[Change, ...]:
    """Nodes in both graphs whose results are said to be other ones."""
    names, ops = matching.after.index.names, matching.after.index.ops
    sides = ((a, matching.before.result(b), matching.after.result(a)) for a, b in sorted(matching.to_before.items()))
    return tuple(Change(names[a], ops[a], was, now) for a, was, now in sides if was and now and was != now)


def _regrouped(before: Program, after: Program) -> tuple[GroupChange, ...]:
    """Process groups of both graphs with other ranks, or another size where a table does not tell the ranks."""
    changes = []
    for name in sorted(before.groups.keys() & after.groups.keys(), key=natural_key):
        was, now = before.groups[name], after.groups[name]
        if was.ranks is not None and now.ranks is not None:
            texts = [f"ranks {', '.join(map(str, group.ranks or ()))}" for group in (was, now)]
        elif was.size is not None and now.size is not None:
            texts = [f"{group.size:,} ranks" for group in (was, now)]
        else:
            continue
        if texts[0] != texts[1]:
            changes.append(GroupChange(name, *texts))
    return tuple(changes)


also_a_function(__name__, "commcc.api")
