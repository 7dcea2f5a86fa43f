"""What ops compute, and how often: where two graphs part, and whether the same work is done.

An op of AFTER is a *cause* when BEFORE computes all its operands but not its result. Ops whose
operands are already unknown to BEFORE are consequences; they are counted, not listed.

Ops are counted by term; collectives and conversions by the elements of every source, so that a merged
launch counts for its members. Random ops and effects must come in the same order; host syncs and assertions
must be the same, in any order (whether what they read is there is an event of the trace).

Limits: ops are paired by name, else by kind in order, only to word the message. Copies and views are free: they are
counted, not compared.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops import argument, facts, group_size_of, is_compute
from commcc.graph.ops.twins import functional
from commcc.verify.claims import Claims
from commcc.verify.contents import CAST, gathered_as, is_widening
from commcc.verify.memory import LOAD
from commcc.verify.pair import Difference, settings
from commcc.verify.sizes import Poly, Undecidable
from commcc.verify.trace import CONVERSION, LAUNCH, OP, VIEW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import fx

    from commcc.verify.pair import Pair
    from commcc.verify.trace import Step, Trace


def report_causes(pair: Pair) -> None:
    """Report every op of AFTER that is a cause, and count the consequences.

    What nobody needs changes nothing, if it runs: it does where BEFORE has the same op on other contents of the same
    shapes. Conversions always run.
    """
    causes: list[Step] = []
    consequences = 0
    runs = {_outline(step) for step in pair.before.steps if step.kind in (OP, VIEW) and _runs_on_any(pair, step)}
    for step in pair.after.steps:
        if not _is_new(pair, step):
            continue
        if step.node not in pair.after.live:
            if pair.is_launch(step):
                text = f"{step.path} is communication that BEFORE does not have, and that nothing here needs"
                pair.report.gap("collective", step.node, text)
            elif (step.kind == OP or (step.kind == VIEW and step.operands)) and _outline(step) not in runs:
                text = f"{step.path} is dead code that BEFORE does not have; whether it runs was not decided"
                pair.report.gap("value", step.node, text)
            continue
        if _has_operands(pair, step) or (step.kind == LAUNCH and _sends_casts(pair, step)):
            causes.append(step)
        else:
            consequences += 1
            pair.uncaused = pair.uncaused or (step.node if step.kind == OP else "")
    if not pair.changed and not consequences:
        causes = [step for step in causes if step.kind != VIEW]
    causes = [step for step in causes if step.kind != VIEW or step.operands]  # new memory alone changes nothing
    missing = _missing(pair)
    for step in causes:
        if step.kind == LAUNCH:
            _report_launch(pair, step)
        elif step.kind == CONVERSION:
            _report_cast(pair, step)
        else:
            _report_op(pair, step, missing)
    pair.report.checked["consequences"] = consequences


def _runs_on_any(pair: Pair, step: Step) -> bool:
    """Whether an op that runs on some elements runs on all: what computes floats one by one, products, and views, but
    for those that show what lies around their operand, as much as there is.
    """
    node = pair.old_nodes.get(step.node)
    if node is None:
        return False
    val = node.meta.get("val")
    floats = isinstance(val, torch.Tensor) and val.dtype.is_floating_point
    by_element = torch.Tag.pointwise in getattr(node.target, "tags", ()) and floats
    view = step.kind == VIEW and not facts(node.target).storage
    return view or by_element or is_compute(node.target)


def _outline(step: Step) -> tuple[Any, ...]:
    """An op with its arguments, of tensors only shapes and dtypes."""

    return (step.path, tuple((name, _without_content(key)) for name, key in step.arguments))


def _without_content(key: tuple[Any, ...]) -> tuple[Any, ...]:
    if key[0] == "tensor":
        return key[2:]
    return ("list", tuple(map(_without_content, key[1]))) if key[0] == "list" else key


def _has_operands(pair: Pair, step: Step) -> bool:
    """Whether BEFORE has all that a step of AFTER works on."""
    return all(map(pair.known, step.operands)) and all(map(pair.seen, _terms(key for _, key in step.arguments)))


def _terms(keys: Iterable[tuple[Any, ...]]) -> Iterator[int]:
    """Terms of the arguments that are not tensors."""
    for key in keys:
        if key[0] == "value":
            yield key[1]
        elif key[0] == "int" and isinstance(key[1], Poly):
            yield from (variable for monomial, _ in key[1].terms for variable in monomial)
        elif key[0] == "list":
            yield from _terms(key[1])


def _sends_casts(pair: Pair, step: Step) -> bool:
    """Whether a launch sends conversions of what BEFORE has: then it may be the launch of another dtype."""
    sources = {_uncast(pair, source) for operand in step.operands for source in pair.table.sources_of(operand)}
    return sources <= pair.before.sources


def _is_new(pair: Pair, step: Step) -> bool:
    if step.kind in (LAUNCH, CONVERSION):
        done = [gathered_as(pair.table, source) for source in step.sources]
        return any(source not in pair.before.sources and not is_widening(pair.table, source) for source in done)
    return step.term not in pair.old_terms


def _missing(pair: Pair) -> dict[str, list[Step]]:
    """Steps of BEFORE that AFTER lacks, by op."""
    missing: dict[str, list[Step]] = {}
    for step in pair.before.steps:
        if step.term not in pair.new_terms:
            missing.setdefault(step.path, []).append(step)
    return missing


def _report_op(pair: Pair, step: Step, missing: dict[str, list[Step]]) -> None:
    if step.why:
        pair.report.gap("value", step.node, f"{step.path}: not decided: {step.why}")
        return
    candidates = missing.get(step.path, [])
    partner = next((old for old in candidates if old.node == step.node), None)
    if partner is None and candidates:
        taken = {other.node for other in pair.after.steps if other.path == step.path}
        partner = next((old for old in candidates if old.node not in taken), candidates[0])
    if partner is None:
        text = f"computes {step.path} of operands that BEFORE never gives it"
        doubt = pair.unexplained(None, step.path, after=False) or _in_place(pair, step, missing)
        pair.fail("value", step.node, text, (*step.operands,), doubt=doubt)
        return
    candidates.remove(partner)
    if partner.plain == step.plain:
        return
    differences = pair.words.differences(partner, step, pair.old_nodes, pair.new_nodes)
    was = "" if partner.node == step.node else f" (was '{partner.node}')"
    unknown = next(filter(None, (pair.table.undecided.get(either.plain) for either in (step, partner))), "")
    for difference in differences or [Difference(f"is another {step.path}")]:
        contents = (difference.new, difference.old)
        if not pair.early(difference.new):
            text = f"{step.path}{was}: {difference.text}"
            doubt = next(filter(None, map(pair.doubt, difference.keys)), "" if differences else unknown)
            doubt = doubt or _one_number(pair, difference.keys, partner, step)
            pair.fail(_rule(pair, contents), step.node, text, contents, contents, doubt)


def _one_number(pair: Pair, keys: tuple[Any, Any], partner: Step, step: Step) -> str:
    """Why two arguments may do the same: one number, whole and as a float, to results of one dtype."""
    numbers = [key[1] if key and key[0] in ("int", "float") else None for key in keys]
    if type(numbers[0]) is type(numbers[1]) or not all(isinstance(number, (int, str)) for number in numbers):
        return ""
    vals = [
        nodes[name].meta.get("val") for nodes, name in ((pair.old_nodes, partner.node), (pair.new_nodes, step.node))
    ]
    dtypes = [
        [getattr(part, "dtype", None) for part in (val if isinstance(val, (tuple, list)) else [val])] for val in vals
    ]
    if dtypes[0] != dtypes[1] or "-0.0" in numbers or float(numbers[0] or 0) != float(numbers[1] or 0):
        return ""
    return f"whether {numbers[1]} and {numbers[0]} give the same"


def _in_place(pair: Pair, step: Step, missing: dict[str, list[Step]]) -> str:
    """Whether BEFORE computes the same from the same operands in place, where AFTER does not, or the reverse."""

    def twin(nodes: Mapping[str, fx.Node], node: str) -> Any:
        return functional(nodes[node].target) if node in nodes else None

    mine = twin(pair.new_nodes, step.node)
    others = (old for olds in missing.values() for old in olds if old.arguments == step.arguments)
    partner = next((old for old in others if mine is not None and twin(pair.old_nodes, old.node) is mine), None)
    if partner is None:
        return ""
    pair.explained.add(partner.term)
    return f"whether {step.path} and {partner.path} compute the same"


def _rule(pair: Pair, contents: tuple[int | None, ...]) -> str:
    """Reading memory at another time is a matter of mutation, not of value."""
    for content in contents:
        if content is None:
            continue
        if content in pair.before.written or content in pair.after.written:
            return "mutation"
        if any(pair.table.keys[source][0] == LOAD for source in pair.table.sources_of(content)):
            return "mutation"
    return "value"


def _report_launch(pair: Pair, step: Step) -> None:
    """One finding for all members that are wrong in the same way."""
    wrong: dict[str, list[tuple[int, int | None]]] = {}
    for source in step.sources:
        if source not in pair.before.sources:
            twin = _twin(pair, pair.table.keys[source][0], pair.table.keys[source][1])
            wrong.setdefault(_changes(pair, source, twin), []).append((source, twin))
    for text, members in wrong.items():
        source, twin = members[0]
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        was = f" (in BEFORE '{pair.words.worker(twin)}')" if twin is not None else ""
        pair.explained.update(twin for _, twin in members if twin is not None)
        what = f"{pair.table.keys[source][0]} of {pair.words.inner(source)}{was}{more}: {text}"
        doubt = pair.unexplained(None, step.path, after=False) if twin is None else ""
        pair.fail("collective", step.node, what, tuple(source for source, _ in members), doubt=doubt)


def _changes(pair: Pair, source: int, twin: int | None) -> str:
    """What a launch does otherwise than its twin."""
    now = settings(pair.table, source)
    if twin is None:
        return "BEFORE has no such launch"
    was = settings(pair.table, twin)
    changes = [f"{name} {now.get(name)}, in BEFORE {was.get(name)}" for name in now if now.get(name) != was.get(name)]
    return "; ".join(changes) or "on another tensor or other rows than in BEFORE"


def _twin(pair: Pair, kind: str, inner: object) -> int | None:
    """The launch of BEFORE that takes the same source, or the same source before or after a cast."""
    wanted = {inner, _uncast(pair, inner)}
    near = None
    for source in pair.before.work:
        key = pair.table.keys[source]
        if key[0] != kind or source in pair.after.work:
            continue
        if key[1] == inner:
            return source
        if _uncast(pair, key[1]) in wanted:
            near = source if near is None else near
    return near


def _uncast(pair: Pair, source: int | object) -> int | object:
    while isinstance(source, int) and pair.table.keys[source][0] == CAST:
        source = pair.table.keys[source][1]
    return source


def _report_cast(pair: Pair, step: Step) -> None:
    new = [source for source in step.sources if source not in pair.before.sources]
    source = next(source for source in new if not is_widening(pair.table, source))
    inner = pair.table.keys[source][1]
    old = [s for s in pair.before.work if pair.table.keys[s][0] == CAST and pair.table.keys[s][1] == inner]
    pair.explained.update(old)
    was = f"BEFORE converts it to {_name(pair, old[0])}" if old else "BEFORE does not convert it"
    text = f"converts {pair.words.source(inner)} to {_name(pair, source)}; {was}"
    pair.fail("value", step.node, text, (source,))


def _name(pair: Pair, source: int) -> str:
    return str(pair.table.dtype.get(source, "?")).removeprefix("torch.")


# Work


def compare_ops(pair: Pair) -> None:
    """Ops computed more often than in BEFORE are remarks, and so are dead ones that are gone, launches excepted."""
    effects = {term for term, _ in (*pair.before.effects, *pair.after.effects)}
    old = Counter(step.term for step in _ops(pair.before))
    new = Counter(step.term for step in _ops(pair.after))
    seen: Counter[int] = Counter()
    for step in _ops(pair.after):
        seen[step.term] += 1
        if 0 < old[step.term] < seen[step.term] and step.plain not in effects:
            text = f"computes {step.path} again: {new[step.term]} times, in BEFORE {old[step.term]}"
            again = pair.report.gap if pair.is_launch(step) else pair.report.note
            again("duplicated", step.node, text)
    for group, node in pair.after.alone.items():
        if group not in pair.before.alone and pair.table.group_sizes.get(group) != 1:
            pair.report.gap("collective", node, f"takes group '{group}' to be of one rank, which BEFORE does not say")
    for step in _ops(pair.before):
        if step.plain in effects or new[step.term] >= old[step.term]:
            continue
        if new[step.term]:
            pair.report.note(
                "dropped", step.node, f"{step.path} is computed {new[step.term]} times, not {old[step.term]}"
            )
        else:
            _gone(pair, step)
    pair.report.checked["ops"] = sum(old.values())


def _ops(trace: Trace) -> Iterator[Step]:
    """Steps that count as computing something."""
    return (step for step in trace.steps if step.kind == OP)


def _gone(pair: Pair, step: Step) -> None:
    if step.node not in pair.before.live:
        _unneeded(pair, step.node, f"{step.path} was dead code and is gone", pair.is_launch(step))
    elif step.node not in pair.new_nodes and not pair.changed:
        _unneeded(pair, step.node, f"{step.path} is gone; no output needs it", pair.is_launch(step))
    elif step.node not in pair.new_nodes and step.term not in pair.explained:
        doubt = pair.unexplained(step, step.path, after=True)
        pair.fail("dropped", step.node, f"AFTER does not compute this {step.path}", step.operands, doubt=doubt)


def _unneeded(pair: Pair, node: str, text: str, launch: bool) -> None:
    """Something that nothing needs is gone. Of a launch, nothing on this rank: where graphs differ by rank, as those of
    ring attention do, the others wait for it for ever.
    """
    if launch and not _of_one_rank(pair, node):
        pair.report.gap("dropped", node, f"{text}, but other ranks may need it and wait for this one")
    else:
        pair.report.note("dropped", node, text)


def _of_one_rank(pair: Pair, name: str) -> bool:
    """Whether BEFORE's launch of that name is in a group of one rank, as far as launch and table say a size."""
    launch = pair.old_nodes.get(name)
    if launch is None:
        return False  # in a sub-graph
    sizes = {group_size_of(launch), pair.table.group_sizes.get(str(argument(launch, "group_name")))}
    return 1 in sizes and sizes <= {1, None}


def compare_elements(pair: Pair) -> None:
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
            converts = pair.table.keys[source][0] == CAST
            text = f"{'converts' if converts else 'moves'} {elements} elements for {what}, BEFORE {old}"
            (pair.report.note if converts else pair.report.gap)("duplicated", pair.after.workers[source], text)
        else:
            pair.report.note("dropped", pair.before.workers[source], f"{elements} elements of {what}, not {old}")
    for source in before:
        if source not in after and source not in pair.explained:
            _unsent(pair, source)


def _unsent(pair: Pair, source: int) -> None:
    worker, what = pair.before.workers[source], pair.words.source(source)
    inner = pair.table.keys[source][1]
    parts = (inner,) if isinstance(inner, int) else tuple(part for part, _ in inner)
    launch = pair.table.keys[source][0] != CAST
    if worker not in pair.before.live:
        _unneeded(pair, worker, f"{what} was dead code and is gone", launch)
    elif pair.known(source) and not pair.changed:
        _unneeded(pair, worker, f"{what} is gone; no output needs it", launch)
    elif all(other in pair.after.sources for other in parts):
        path = next((step.path for step in pair.before.steps if step.node == worker), "")
        doubt = pair.unexplained(None, path, after=True)
        pair.fail("dropped", worker, f"AFTER lacks {what}", (source,), doubt=doubt)


def compare_sequences(pair: Pair) -> None:
    """Random ops and effects, in order; host syncs and assertions in any.

    Ops of which nothing is known may draw as well: they keep their places among those that do. What only one graph has
    is reported where ops are.
    """
    _compare_sequence(pair, "random", pair.before.random, pair.after.random)
    sorted_out = _unordered_last(pair.before.effects, pair.old_nodes)
    _compare_sequence(pair, "effect", sorted_out, _unordered_last(pair.after.effects, pair.new_nodes))
    old, new = pair.before.draws, pair.after.draws
    moved = next(((was, now) for was, now in zip(old, new, strict=False) if was[0] != now[0]), None)
    if moved is not None and Counter(term for term, _ in old) == Counter(term for term, _ in new):
        text = f"comes where '{moved[0][1]}' does in BEFORE; one of them draws random numbers, the other one may"
        pair.report.gap("random", moved[1][1], text)
    pair.report.checked["random_ops"] = len(pair.before.random)
    pair.report.checked["effects"] = len(pair.before.effects)


def compare_bare(pair: Pair) -> None:
    """Launches that bring no element, in any order: ranks meet in them all the same."""
    old = Counter(term for term, _ in pair.before.bare)
    new = Counter(term for term, _ in pair.after.bare)
    for term, name in pair.after.bare:
        if new[term] > old[term] and (old[term] or name not in pair.after.live):
            text = f"launches this {new[term]} times, BEFORE {old[term]}; no element is sent"
            pair.report.gap("duplicated", name, text)
        elif not old[term]:
            pair.fail("collective", name, "BEFORE does not launch this; no element is sent", doubt=pair.rests_on(term))
    for term, name in pair.before.bare:
        if new[term] >= old[term]:
            continue
        if new[term] or name not in pair.before.live:
            pair.report.note("dropped", name, f"is launched {new[term]} times, not {old[term]}; no element is sent")
        else:
            pair.fail("collective", name, "AFTER does not launch this; no element is sent", doubt=pair.rests_on(term))


def _unordered_last(effects: list[tuple[int, str]], nodes: Mapping[str, fx.Node]) -> list[tuple[int, str]]:
    """Effects in their order, then what may come in any: host syncs and assertions, sorted by what they ask for."""
    fact = {name: facts(nodes[name].target) for _, name in effects if name in nodes}
    free = [
        effect for effect in effects if effect[1] in fact and (fact[effect[1]].host_sync or fact[effect[1]].assertion)
    ]
    kept = set(free)
    return [effect for effect in effects if effect not in kept] + sorted(free)


def _without_checks(pair: Pair, old: list[tuple[int, str]], new: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The ops of BEFORE but for reads by the host and checks of sizes that AFTER has not: results do not depend on
    them. Assertions about what a tensor holds are the program's own, and have to stay.
    """
    lost = Counter(term for term, _ in old) - Counter(term for term, _ in new)
    gone, claims = [], Claims(pair.old_nodes.values())
    # Of several that ask for the same, those are gone whose names are.
    for term, name in sorted(old, key=lambda effect: effect[1] in pair.new_nodes) if lost else ():
        node = pair.old_nodes.get(name)
        fact = None if node is None else facts(node.target)
        if node is None or fact is None or not lost[term]:
            continue
        sizes = fact.assertion and claims.about_sizes(node)
        if sizes and ("bool", "False") in dict(pair.table.keys[term][2]).values():
            continue  # it fails for the sizes that both are compared for: BEFORE never gets further
        if sizes or fact.host_sync:
            lost[term] -= 1
            gone.append((term, name))
            pair.report.note("effect", name, f"is not {'checked' if sizes else 'read by the host'} in AFTER")
    return [effect for effect in old if effect not in gone]


def _compare_sequence(pair: Pair, rule: str, old: list[tuple[int, str]], new: list[tuple[int, str]]) -> None:
    if [term for term, _ in old] == [term for term, _ in new]:
        return
    old = _without_checks(pair, old, new)
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
            text = "AFTER does not do this; it has an effect besides its result"
            pair.fail(rule, name, text, doubt=pair.rests_on(term))
    for term, name in new:
        if term in added and kinds[_path(pair.new_nodes, name)] < 0:
            kinds[_path(pair.new_nodes, name)] += 1
            text = "BEFORE does not do this; it has an effect besides its result"
            pair.fail(rule, name, text, doubt=pair.rests_on(term))


def _path(nodes: object, name: str) -> str:
    node = nodes.get(name) if hasattr(nodes, "get") else None
    return str(getattr(node, "target", name))


def compare_layouts(pair: Pair) -> None:
    """A remark on ops that survive and read tensors with other strides, where values do not depend on strides but for
    the order in which a sum adds up. For all others, how the operands lie is part of what they compute.
    """
    strides = pair.table.strides
    relaid = [step for step in _ops(pair.after) if step.strides not in strides.get(step.plain, (step.strides,))]
    if relaid:
        ops = ", ".join(dict.fromkeys(step.path for step in relaid))
        more = f" and {len(relaid) - 1} more" if len(relaid) > 1 else ""
        pair.report.note(
            "value",
            relaid[0].node,
            f"reads tensors with other strides than in BEFORE, and may round differently{more} ({ops})",
        )
