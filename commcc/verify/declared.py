"""What programs declare besides their graphs: process groups, and what ``.pt2`` files promise.

A rewrite may split a group off another one, to run on another stream; the table of AFTER records the origin.
The record is a claim, and it is believed only if all of this holds:

1. BEFORE has no group of that name, neither in its table nor in its graph;
2. BEFORE has the origin, with exactly the same ranks and size (or the origin is split off such a group);
3. every collective on the new group is of one kind.

::

    table of AFTER: "ep_extra": {"size": 4, "ranks": [0, 1, 2, 3], "origin": "0"}
    all_to_all_single(x, None, None, 'ep_extra')   is the same term as   all_to_all_single(x, None, None, '0')

Two files must say the same of every input and output (parameters and buffers by name, what is written back and where),
of trees and guards, and hold the same weights and constants, byte for byte. Names of nodes do not count.

Limits: groups that both programs have are compared by name; ranks that neither table knows are taken to be those of the
origin, which is what the record means. A graph from a text has no signature: there is nothing to compare with, which is
a remark. Symbols that only one file has a range for are not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.base.errors import CommccError
from commcc.graph.ops import argument, collective_of
from commcc.graph.program import ProcessGroup
from commcc.serialization.attributes import find
from commcc.serialization.pt2.contract import contract, differing_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.graph.program import Program
    from commcc.verify.verdict import Report


def compare_groups(before: Program, after: Program, report: Report) -> dict[str, str]:
    """Report groups that differ; for new groups of AFTER, the group of BEFORE that each stands for."""
    for name, group in after.groups.items():
        old = before.groups.get(name)
        pairs = () if old is None else (("size", old.size, group.size), ("ranks", old.ranks, group.ranks))
        for what, was, now in pairs:
            if was is not None and now is not None and was != now:
                report.differs("collective", "", f"process group '{name}' has {what} {now}, in BEFORE {was}")
        if old is not None and old.origin != group.origin:
            text = f"process group '{name}' is {_origin(group)}, in BEFORE it is {_origin(old)}"
            report.differs("collective", "", text)
    stands_for: dict[str, str] = {}
    for name, group in after.groups.items():
        if name in before.groups or group.origin is None:
            continue
        root, problem = _check(before, after, group)
        if problem:
            report.differs("collective", "", f"process group '{name}' {problem}")
        else:
            stands_for[name] = root
    return stands_for


def _origin(group: ProcessGroup) -> str:
    return "split off no other" if group.origin is None else f"split off '{group.origin}'"


def _check(before: Program, after: Program, group: ProcessGroup) -> tuple[str, str]:
    """The group of BEFORE that a split-off group goes back to, or what is wrong with it."""
    known = {**{name: ProcessGroup(name, None) for name in _used(before)}, **before.groups}
    root = _root(known, after.groups, group)
    if root is None:
        return "", f"is split off '{group.origin}', which BEFORE does not have"
    if any(group.name in _words(node) for node in _nodes(before.graph, before.root)):
        return "", f"is called what a group in BEFORE is called, and cannot be split off '{root}'"
    old = known[root]
    size = old.size
    if size is None:  # what collectives say, where the table does not
        said = (argument(node, "group_size") for _, node in _launches(before, root))
        size = next((each for each in said if isinstance(each, int)), None)
    for what, was, now in (("size", size, group.size), ("ranks", old.ranks, group.ranks)):
        if was != now:
            return "", f"has {what} {now}, but '{root}', which it is split off, has {was} in BEFORE"
    kinds: dict[str, str] = {}  # with a node for each
    for kind, node in _launches(after, group.name):
        kinds.setdefault(kind, node.name)
    if len(kinds) > 1:
        listed = " and ".join(f"{kind} ('{node}')" for kind, node in kinds.items())
        return "", f"was split off '{root}' for collectives of one kind, and has {listed}"
    return root, ""


def _root(old: Mapping[str, ProcessGroup], new: Mapping[str, ProcessGroup], group: ProcessGroup) -> str | None:
    seen: set[str] = set()
    at: ProcessGroup | None = group
    while at is not None and at.origin is not None and at.origin not in seen:
        if at.origin in old:
            return at.origin
        seen.add(at.origin)
        at = new.get(at.origin)
    return None


def _nodes(graph: fx.Graph, root: Any, depth: int = 0) -> Iterator[fx.Node]:
    """All nodes of a graph and of the sub-graphs that it refers to."""
    for node in graph.nodes:
        yield node
        module = find(root, str(node.target)) if node.op == "get_attr" and depth < 16 else None
        if isinstance(module, fx.GraphModule):
            yield from _nodes(module.graph, module, depth + 1)


def _words(node: fx.Node) -> set[Any]:
    """All strings among the arguments of a node."""
    found: set[Any] = set()
    stack: list[Any] = [*node.args, *node.kwargs.values()]
    while stack:
        argument_ = stack.pop()
        if isinstance(argument_, str):
            found.add(argument_)
        elif isinstance(argument_, (tuple, list)):
            stack.extend(argument_)
        elif isinstance(argument_, dict):
            stack.extend(argument_.values())
    return found


def _launches(program: Program, name: str) -> Iterator[tuple[str, fx.Node]]:
    for node in _nodes(program.graph, program.root):
        fact = collective_of(node.target) if node.op == "call_function" else None
        if fact is not None and argument(node, "group_name") == name:
            yield str(fact.kind), node


def _used(program: Program) -> set[str]:
    """Groups that collectives name; a program made in memory may have no table."""
    nodes = (n for n in _nodes(program.graph, program.root) if n.op == "call_function" and collective_of(n.target))
    return {name for node in nodes if isinstance(name := argument(node, "group_name"), str)}


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
