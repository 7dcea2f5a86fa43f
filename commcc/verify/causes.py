"""Where two graphs part: the first ops that differ, not everything that follows from them.

An op of AFTER is a *cause* when BEFORE computes all its operands but not its result. Ops whose
operands are already unknown to BEFORE are consequences; they are counted, not listed.

Limits: ops are paired by name, else by kind in order, only to word the message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commcc.verify.elements import BITS, BROADCAST, CAST, GATHER, REDUCE, SCATTER, is_widening
from commcc.verify.elementwise import same_elements
from commcc.verify.explain import Difference, Words, settings
from commcc.verify.facts import CAST as CASTS
from commcc.verify.facts import LAUNCH, OP, VIEW, Step, Trace
from commcc.verify.memory import LOAD
from commcc.verify.sizes import Poly, Undecidable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import fx

    from commcc.verify.table import Terms
    from commcc.verify.verdict import Report


#: Terms that stand for one other term, by their first operand.
_WRAPPERS = frozenset({"array", "out", "draw", CAST, BITS, GATHER, SCATTER, REDUCE, BROADCAST})


@dataclass
class Pair:
    """Both traces, with what the comparison asks of them again and again.

    old_nodes, new_nodes: nodes by name. changed: whether anything that can be seen from outside differs.
    explained: sources of BEFORE that a reported difference already accounts for. renamed: name in BEFORE
    of each input of AFTER. consequences: what follows from differences reported elsewhere. same: contents of
    AFTER that turned out to hold the elements of one of BEFORE.
    """

    table: Terms
    before: Trace
    after: Trace
    report: Report
    old_nodes: Mapping[str, fx.Node]
    new_nodes: Mapping[str, fx.Node]
    renamed: Mapping[str, str]
    changed: bool = False
    explained: set[int] = field(default_factory=set)
    consequences: list[str] = field(default_factory=list)
    same: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.words = Words(self.table, self.before, self.after)
        self.old_terms = {step.term for step in self.before.steps}
        self.new_terms = {step.term for step in self.after.steps}
        self._known: dict[int, bool] = {}

    def known(self, content: int) -> bool:
        """Whether BEFORE has every source of a content."""
        found = self._known.get(content)
        if found is None:
            found = self._known[content] = all(map(self._has, self.table.sources_of(content)))
        return found

    def _has(self, source: int) -> bool:
        key = self.table.keys[source]
        if key[0] == LOAD:
            return key[4] in self.before.versions
        return source in self.before.sources

    def seen(self, term: int) -> bool:
        """Whether BEFORE computes what a value that is not a tensor stands for."""
        term = self._origin(term)
        key = self.table.keys[term]
        if key[0] == "size":
            return self.known(key[1])
        return key[0] != "op" or term in self.old_terms

    def _origin(self, term: int) -> int:
        """The op that made a source or a part of a result, before its place among the random ops."""
        while True:
            key = self.table.keys[term]
            if key[0] not in _WRAPPERS or not isinstance(key[-1 if key[0] == "draw" else 1], int):
                return term
            term = key[2] if key[0] == "draw" else key[1]

    def _told_apart(self, new: int | None, old: int | None) -> str:
        """Why two contents cannot be told apart, empty when they can, or are the same."""
        if new is None or old is None or new == old or self.table.layout_of(new) is None:
            return ""
        try:
            if same_elements(self.table, new, old):
                self.same[new] = old
        except Undecidable as reason:
            return str(reason)
        return ""

    def undecided(self, content: int | None) -> str:
        """Why a content was not decided, empty when it was."""
        for source in () if content is None else self.table.sources_of(content):
            reason = self.table.undecided.get(self._origin(source))
            if reason:
                return reason
        return ""

    def fail(
        self,
        rule: str,
        node: str,
        text: str,
        contents: tuple[int | None, ...] = (),
        twins: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """A difference, or a gap when one of the contents was not decided.

        twins: a content of AFTER and the one that BEFORE has in its place; if they hold the same elements,
        there is no difference, and :attr:`same` says so.
        """
        reason = next(filter(None, map(self.undecided, contents)), "") or self._told_apart(*twins)
        if self.same and twins[0] in self.same:
            return
        if reason:
            self.report.gap(rule, node, f"{text}; not decided: {reason}")
        else:
            self.report.differs(rule, node, text)


def report_causes(pair: Pair) -> None:
    """Report every op of AFTER that is a cause, and count the consequences."""
    causes: list[Step] = []
    consequences = 0
    for step in pair.after.steps:
        if not _is_new(pair, step):
            continue
        if _has_operands(pair, step) or (step.sort == LAUNCH and _sends_casts(pair, step)):
            causes.append(step)
        else:
            consequences += 1
    if not pair.changed and not consequences:
        causes = [step for step in causes if step.sort != VIEW]
    causes = [step for step in causes if step.sort != VIEW or step.operands]  # new memory alone changes nothing
    missing = _missing(pair)
    for step in causes:
        if step.sort == LAUNCH:
            _report_launch(pair, step)
        elif step.sort == CASTS:
            _report_cast(pair, step)
        else:
            _report_op(pair, step, missing)
    pair.report.checked["consequences"] = consequences


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
    if step.sort in (LAUNCH, CASTS):
        return any(source not in pair.before.sources and not is_widening(pair.table, source) for source in step.made)
    return step.term not in pair.old_terms


def _missing(pair: Pair) -> dict[str, list[Step]]:
    """Steps of BEFORE that AFTER lacks, by op."""
    found: dict[str, list[Step]] = {}
    for step in pair.before.steps:
        if step.term not in pair.new_terms:
            found.setdefault(step.path, []).append(step)
    return found


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
        pair.fail("value", step.node, f"computes {step.path} of operands that BEFORE never gives it", (*step.operands,))
        return
    candidates.remove(partner)
    if partner.plain == step.plain:
        return
    found = pair.words.differences(partner, step, pair.old_nodes, pair.new_nodes)
    was = "" if partner.node == step.node else f" (was '{partner.node}')"
    for difference in found or [Difference(f"is another {step.path}")]:
        contents = (difference.new, difference.old)
        pair.fail(_rule(pair, contents), step.node, f"{step.path}{was}: {difference.text}", contents, contents)


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
    for source in step.made:
        if source not in pair.before.sources:
            twin = _twin(pair, pair.table.keys[source][0], pair.table.keys[source][1])
            wrong.setdefault(_changes(pair, source, twin), []).append((source, twin))
    for text, members in wrong.items():
        source, twin = members[0]
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        was = f" (in BEFORE '{pair.words.worker(twin)}')" if twin is not None else ""
        pair.explained.update(twin for _, twin in members if twin is not None)
        what = f"{pair.table.keys[source][0]} of {pair.words.inner(source)}{was}{more}: {text}"
        pair.fail("collective", step.node, what, tuple(source for source, _ in members))


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
    new = [source for source in step.made if source not in pair.before.sources]
    source = next(source for source in new if not is_widening(pair.table, source))
    inner = pair.table.keys[source][1]
    old = [s for s in pair.before.work if pair.table.keys[s][0] == CAST and pair.table.keys[s][1] == inner]
    pair.explained.update(old)
    was = f"BEFORE converts it to {_name(pair, old[0])}" if old else "BEFORE does not convert it"
    text = f"converts {pair.words.source(inner)} to {_name(pair, source)}; {was}"
    pair.fail("value", step.node, text, (source,))


def _name(pair: Pair, source: int) -> str:
    return str(pair.table.dtype.get(source, "?")).removeprefix("torch.")


def is_work(step: Step) -> bool:
    """Whether a step counts as computing something."""
    return step.sort == OP
