"""Which module each node of a ``.pt2`` file belongs to, so that ``torch.export.unflatten`` can take it apart again.

Usage::

    moved = settle(data["nodes"])                   # module stacks of a written graph, cut to where nodes stand
    now = crossings(kept.nodes, calls)              # values that pass a module by its calling convention
    calls, lost = keep_conventions(calls, now - known)

PyTorch makes a module of each call of one (``layers.0``, ``layers.0@1``), from the nodes between its first and its
last, which must be all of one piece: of two pieces the second would silently take the place of the first. A node that
a pass moved out of its module, or put into a merged launch, belongs to the module around the place where it stands.

A module whose calling convention was kept on export gets what that convention names and nothing else, so that one that
needs more, or gives more, loses it; PyTorch then makes a module that takes whatever its nodes need.
Limits: of several pieces of one call the longest stays the module, the first of equals.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from commcc.serialization.pt2.metadata import parse_stack, stack_text
from commcc.serialization.pt2.schema import argument_name
from commcc.serialization.pt2.specs import Ref, map_arguments

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from commcc.serialization.pt2.specs import Spec

#: One level of a module stack: its key (with ``@`` and a number for a later call), path and type.
_Level = tuple[str, str, str]
_Stack = tuple[_Level, ...]
#: A call by its name, and a value that passes it by: what comes in or what goes out.
Crossing = tuple[str, str]

# What PyTorch writes for a node of no module: one that belongs to the module around it.
_ANYWHERE = "_empty_nn_module_stack_from_metadata_hook"


def settle(nodes: list[dict[str, Any]]) -> int:
    """Cut the module stacks of written nodes, in place, so that each call is of one piece; how many were cut."""
    texts = [node["metadata"].get("nn_module_stack") for node in nodes]
    parsed = {text: parse_stack(text) for text in texts if text}
    roots = {stack[:1] for stack in parsed.values() if stack[0][0] != _ANYWHERE}
    # Made by something other than torch.export: there is nothing to be taken apart.
    if len(roots) != 1:
        return 0
    (root,) = roots
    written = [parsed[text] if text else root for text in texts]
    stacks: list[_Stack] = []
    for stack in written:
        nowhere = stack[0][0] == _ANYWHERE
        stacks.append((stacks[-1] if stacks else root) if nowhere else _nested(stack))
    places = _cut(stacks)
    moved = 0
    for node, text, stack, kept in zip(nodes, texts, stacks, places, strict=True):
        if len(kept) < len(stack) or not text:
            node["metadata"]["nn_module_stack"] = stack_text(kept)
            moved += 1
    return moved


def _nested(stack: _Stack) -> _Stack:
    """The part of a stack whose paths are one inside the other, which is what PyTorch goes by."""
    paths = [path.split("@")[0] for _, path, _ in stack]
    for depth, (outer, inner) in enumerate(pairwise(paths), start=1):
        if not (len(outer) < len(inner) and inner.startswith(outer)):
            return stack[:depth]
    return stack


def _cut(stacks: Sequence[_Stack]) -> list[_Stack]:
    out = list(stacks)
    work = [(0, len(out), 0)]
    while work:
        start, end, depth = work.pop()
        for spans in _pieces(out, start, end, depth):
            longest = max(spans, key=lambda span: span[1] - span[0])
            work.append((*longest, depth + 1))
            for at in (at for span in spans if span != longest for at in range(*span)):
                out[at] = out[at][:depth]
    return out


def _pieces(stacks: Sequence[_Stack], start: int, end: int, depth: int) -> list[list[tuple[int, int]]]:
    """For each call at ``depth`` where its pieces between two places begin and end."""
    pieces = defaultdict(list)
    for level, places in groupby(range(start, end), lambda at: stacks[at][depth : depth + 1]):
        if level:
            found = list(places)
            pieces[level].append((found[0], found[-1] + 1))
    return list(pieces.values())


def crossings(nodes: Iterable[Spec], calls: list[dict[str, Any]]) -> frozenset[Crossing]:
    """Values that calls with a convention take or give without its naming them.

    nodes: of the whole graph, in order. calls: the ``module_call_graph`` of the file.
    """
    conventions = {entry["fqn"]: entry["signature"] for entry in calls if entry["fqn"] and entry["signature"]}
    if not conventions:
        return frozenset()
    takes = {fqn: _named(signature["inputs"]) for fqn, signature in conventions.items()}
    gives = {fqn: _named(signature["outputs"]) for fqn, signature in conventions.items()}
    inside: dict[str, frozenset[str]] = {}
    everywhere: set[str] = set()
    out: set[Crossing] = set()
    for node in nodes:
        if node.op == "placeholder":
            everywhere.add(node.name)
            continue
        stack = node.meta.get("nn_module_stack") or {}
        names = [path + _number(key) for key, (path, _) in stack.items()]
        inside[node.name] = frozenset(names) & takes.keys()
        used = set(_refs((node.args, tuple(node.kwargs.values()))))
        # A call inside another one is given its arguments by that one.
        used |= {name for fqn in inside[node.name] for name in takes[fqn] if name in inside}
        for name in used - everywhere:
            out |= {(fqn, name) for fqn in inside[node.name] - inside[name] if name not in takes[fqn]}
            out |= {(fqn, name) for fqn in inside[name] - inside[node.name] if name not in gives[fqn]}
    known = inside.keys() | everywhere
    for fqn in conventions:
        elsewhere = [name for name in gives[fqn] & inside.keys() if fqn not in inside[name]]
        out |= {(fqn, name) for name in elsewhere if name not in takes[fqn]}
        # PyTorch does not load a file that names what is not there.
        out |= {(fqn, name) for name in (gives[fqn] | takes[fqn]) - known if name}
    return frozenset(out)


def keep_conventions(
    calls: list[dict[str, Any]], crossed: Collection[Crossing]
) -> tuple[list[dict[str, Any]], list[str]]:
    """``calls`` without the conventions that no longer hold, and the modules that had them.

    A module keeps the conventions of all of its calls or of none, since PyTorch makes one module of them.
    """
    broken = {fqn.split("@")[0] for fqn, _ in crossed}
    lost = {fqn for entry in calls if entry["signature"] and (fqn := entry["fqn"].split("@")[0]) in broken}
    kept = [{**entry, "signature": None} if entry["fqn"].split("@")[0] in lost else entry for entry in calls]
    return kept, sorted(lost)


def _named(arguments: list[dict[str, Any]]) -> frozenset[str]:
    return frozenset(name for argument in arguments if (name := argument_name(argument)) is not None)


def _number(key: str) -> str:
    _, at, number = key.rpartition("@")
    return f"@{number}" if at and number != "0" else ""


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.name
        return
    found: list[str] = []

    def visit(item: Any) -> Any:
        found.extend(_refs(item))
        return item

    map_arguments(value, visit)
    yield from found
