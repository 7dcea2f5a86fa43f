"""Is the same work done: ops, collectives and conversions, no more and no less.

Ops are counted by term; collectives and conversions by the elements of every source, so that a merged
launch counts for its members. Random ops and effects must come in the same order; host syncs and assertions
must be the same, in any order (what they read is checked by :mod:`commcc.verify.host`).

Limits: copies and views are free: they are counted, not compared.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commcc.graph.ops import aliasing, is_assertion, is_effect, is_host_sync, is_random, is_unknown_communication
from commcc.verify.causes import is_work
from commcc.verify.elements import CAST
from commcc.verify.sizes import Undecidable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.verify.causes import Pair
    from commcc.verify.facts import Step


#: Namespaces of ops whose values are those of the elements they read, however these lie in memory.
_STRIDE_BLIND = ("aten.", "prims.")


def compare_ops(pair: Pair, live: set[str]) -> None:
    """Ops computed more often than in BEFORE are differences, dead ones that are gone are remarks."""
    effects = {term for term, _ in (*pair.before.effects, *pair.after.effects)}
    old = Counter(step.term for step in pair.before.steps if is_work(step))
    new = Counter(step.term for step in pair.after.steps if is_work(step))
    seen: Counter[int] = Counter()
    for step in filter(is_work, pair.after.steps):
        seen[step.term] += 1
        if 0 < old[step.term] < seen[step.term] and step.term not in effects:
            text = f"computes {step.path} again: {new[step.term]} times, in BEFORE {old[step.term]}"
            pair.report.differs("duplicated", step.node, text)
    for step in filter(is_work, pair.before.steps):
        if step.term in effects or new[step.term] >= old[step.term]:
            continue
        if new[step.term]:
            pair.report.note(
                "dropped", step.node, f"{step.path} is computed {new[step.term]} times, not {old[step.term]}"
            )
        else:
            _gone(pair, step, live)
    pair.report.checked["ops"] = sum(old.values())


def _gone(pair: Pair, step: Step, live: set[str]) -> None:
    if step.node not in live:
        pair.report.note("dropped", step.node, f"{step.path} was dead code and is gone")
    elif step.node not in pair.new_nodes and not pair.changed:
        pair.report.note("dropped", step.node, f"{step.path} is gone; no output needs it")
    elif step.node not in pair.new_nodes:
        pair.fail("dropped", step.node, f"AFTER does not compute this {step.path}", step.operands)


def compare_elements(pair: Pair, live: set[str]) -> None:
    """Elements sent and converted, source by source."""
    before, after = pair.before.work, pair.after.work
    for source, elements in after.items():
        old = before.get(source)
        if old is None or old == elements:
            continue
        try:
            more = old < elements
        except Undecidable as reason:
            pair.report.gap("duplicated", pair.after.workers[source], f"amount of work: {reason}")
            continue
        what = pair.words.source(source)
        if more:
            text = f"{_verb(pair, source)} {elements} elements for {what}, BEFORE {old}"
            pair.report.differs("duplicated", pair.after.workers[source], text)
        else:
            pair.report.note("dropped", pair.before.workers[source], f"{elements} elements of {what}, not {old}")
    for source in before:
        if source not in after and source not in pair.explained:
            _unsent(pair, source, live)


def _verb(pair: Pair, source: int) -> str:
    return "converts" if pair.table.keys[source][0] == CAST else "moves"


def _unsent(pair: Pair, source: int, live: set[str]) -> None:
    worker, what = pair.before.workers[source], pair.words.source(source)
    if worker not in live:
        pair.report.note("dropped", worker, f"{what} was dead code and is gone")
    elif pair.known(source) and not pair.changed:
        pair.report.note("dropped", worker, f"{what} is gone; no output needs it")
    elif all(other in pair.after.sources for other in _origin(pair, source)):
        pair.fail("dropped", worker, f"AFTER lacks {what}", (source,))


def _origin(pair: Pair, source: int) -> tuple[int, ...]:
    inner = pair.table.keys[source][1]
    return (inner,) if isinstance(inner, int) else tuple(part for part, _ in inner)


def compare_sequences(pair: Pair) -> None:
    """Random ops and effects, in order; host syncs and assertions in any."""
    _compare_sequence(pair, "random", pair.before.random, pair.after.random)
    sorted_out = _unordered_last(pair.before.effects, pair.old_nodes)
    _compare_sequence(pair, "effect", sorted_out, _unordered_last(pair.after.effects, pair.new_nodes))
    pair.report.checked["random_ops"] = len(pair.before.random)
    pair.report.checked["effects"] = len(pair.before.effects)


def _unordered_last(effects: list[tuple[int, str]], nodes: Mapping[str, fx.Node]) -> list[tuple[int, str]]:
    """Effects in their order, then what may come in any: host syncs and assertions, sorted by what they ask for."""
    free = [each for each in effects if each[1] in nodes and _any_order(nodes[each[1]].target)]
    kept = set(free)
    return [each for each in effects if each not in kept] + sorted(free)


def _any_order(target: object) -> bool:
    return is_host_sync(target) or is_assertion(target)


def _compare_sequence(pair: Pair, rule: str, old: list[tuple[int, str]], new: list[tuple[int, str]]) -> None:
    if [term for term, _ in old] == [term for term, _ in new]:
        return
    pair.changed = True
    lost = Counter(term for term, _ in old) - Counter(term for term, _ in new)
    added = Counter(term for term, _ in new) - Counter(term for term, _ in old)
    if not lost and not added:
        at, (was, now) = next((i, (a, b)) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a[0] != b[0])
        text = f"is number {at} of the {rule} ops; in BEFORE '{was[1]}' comes there, and order decides results"
        pair.report.differs(rule, now[1], text)
        return
    kinds = Counter(_path(pair.old_nodes, name) for term, name in old if term in lost)
    kinds.subtract(_path(pair.new_nodes, name) for term, name in new if term in added)
    for term, name in old:
        if term in lost and kinds[_path(pair.old_nodes, name)] > 0:
            kinds[_path(pair.old_nodes, name)] -= 1
            pair.report.differs(rule, name, "AFTER does not do this; it has an effect besides its result")
    for term, name in new:
        if term in added and kinds[_path(pair.new_nodes, name)] < 0:
            kinds[_path(pair.new_nodes, name)] += 1
            pair.report.differs(rule, name, "BEFORE does not do this; it has an effect besides its result")


def _path(nodes: object, name: str) -> str:
    node = nodes.get(name) if hasattr(nodes, "get") else None
    return str(getattr(node, "target", name))


def compare_layouts(pair: Pair) -> None:
    """Ops that survive and read tensors with other strides: a remark for PyTorch's own, whose values do not
    depend on strides; a gap for all others, which may well read memory as it lies."""
    relaid: list[Step] = []
    for step in filter(is_work, pair.after.steps):
        known = pair.table.strides.get(step.plain)
        if known is None or step.strides in known:
            continue
        if step.path.startswith(_STRIDE_BLIND):
            relaid.append(step)
            continue
        text = f"{step.path} reads tensors laid out as {step.strides}, in BEFORE {min(known, key=str)}"
        pair.report.gap("value", step.node, text)
    if relaid:
        ops = ", ".join(dict.fromkeys(step.path for step in relaid))
        more = f" and {len(relaid) - 1} more" if len(relaid) > 1 else ""
        pair.report.note("value", relaid[0].node, f"reads tensors with other strides than in BEFORE{more} ({ops})")


def live_nodes(graph: fx.Graph) -> set[str]:
    """Names of the nodes that outputs, writes, random numbers or effects need."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live or _acts(node):
            live.add(node)
            live.update(node.all_input_nodes)
    return {node.name for node in live}


def _acts(node: fx.Node) -> bool:
    target = node.target
    if node.op != "call_function":
        return False
    if is_effect(target) or is_host_sync(target) or is_unknown_communication(target) or is_random(target):
        return True
    return not aliasing(target).pure
