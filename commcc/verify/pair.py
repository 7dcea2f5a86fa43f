"""Both traces side by side, and terms in words: what a content is, and in which argument two ops differ.

::

    pair = Pair(table, before, after, report, old_nodes, new_nodes, renamed)
    pair.known(content)          # whether BEFORE has it
    pair.words.content(term)     # "all_gather of 'primals_3' (all_gather_into_tensor_2)"
    pair.words.differences(...)  # "argument 'mat2' ('reshape_7') is ..., in BEFORE ('wait_tensor_1') ..."

Limits: words are for people; nothing is decided by them. Descriptions stop after a few pieces and levels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.graph.ops import is_getitem
from commcc.graph.ops.collective_table import COLLECTIVES
from commcc.verify.arguments import bind
from commcc.verify.contents import BITS, BROADCAST, CAST, GATHER, REDUCE, SCATTER, same_elements
from commcc.verify.memory import EARLY, LOAD
from commcc.verify.regroup import regroups
from commcc.verify.sizes import Poly, Undecidable
from commcc.verify.terms import Leaf, Tensor, leaves, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.verify.terms import Terms
    from commcc.verify.trace import Step, Trace
    from commcc.verify.verdict import Report

#: Terms that stand for one other term, by their first operand.
_WRAPPERS = frozenset({"array", "out", CAST, BITS, GATHER, SCATTER, REDUCE, BROADCAST})


@dataclass
class Pair:
    """Both traces, with what the comparison asks of them again and again.

    old_nodes, new_nodes: nodes by name. changed: whether anything that can be seen from outside differs.
    explained: sources and ops of BEFORE that a reported difference already accounts for. renamed: name in BEFORE
    of each input of AFTER. consequences: what follows from differences reported elsewhere. uncaused: the first op of
    AFTER on what BEFORE lacks. same: contents of AFTER that turned out to hold the elements of one of BEFORE.
    meeting: nodes whose sub-graphs launch collectives.
    guessed: which of strides and devices only one of the two files tells. same_constants: constants of one name whose
    values neither file has are taken to be the same.
    """

    table: Terms
    before: Trace
    after: Trace
    report: Report
    old_nodes: Mapping[str, fx.Node]
    new_nodes: Mapping[str, fx.Node]
    renamed: Mapping[str, str]
    meeting: frozenset[str] = frozenset()
    guessed: frozenset[str] = frozenset()
    same_constants: bool = False
    changed: bool = False
    explained: set[int] = field(default_factory=set)
    consequences: list[str] = field(default_factory=list)
    uncaused: str = ""
    same: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.words = Words(self.table, self.before, self.after)
        self.old_terms = {step.term for step in self.before.steps}
        self.new_terms = {step.term for step in self.after.steps}
        self._known: dict[int, bool] = {}
        self._rests_on: dict[int, str] = {}

    def known(self, content: int) -> bool:
        """Whether BEFORE has every source of a content."""
        known = self._known.get(content)
        if known is None:
            known = self._known[content] = all(map(self._has, self.table.sources_of(content)))
        return known

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
        """The op that made a source or a part of a result, before its place among random ops and effects."""
        while True:
            key = self.table.keys[term]
            inner = key[2] if key[0] in ("draw", "call") else key[1] if key[0] in _WRAPPERS else None
            if not isinstance(inner, int):
                return term
            term = inner

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
            origin = self._origin(source)
            key, known = self.table.keys[origin], self.table.undecided
            reason = known.get(origin) or (known.get(key[4]) if key[0] == LOAD else "") or self.rests_on(source)
            if reason:
                return reason
        return ""

    def rests_on(self, term: int) -> str:
        """Why something that a term is made of, and that only one graph has, was not decided; empty when all was."""
        if not self._strange:
            return ""
        known, stack = self._rests_on, [term]
        while stack:
            at = stack[-1]
            reason = self._strange.get(at) or next(filter(None, map(known.get, self.table.parts_of(at))), "")
            missing = [] if reason or at in known else [part for part in self.table.parts_of(at) if part not in known]
            known.setdefault(at, "")
            if missing:
                stack.extend(missing)
            else:
                known[at] = reason
                stack.pop()
        return known[term]

    @cached_property
    def _strange(self) -> dict[int, str]:
        """Terms that were not decided and that only one graph has."""
        only = (
            step.plain
            for old, new in ((self.before, self.new_terms), (self.after, self.old_terms))
            for step in old.steps
            if step.term not in new
        )
        reasons = {term: self.table.undecided[term] for term in only if term in self.table.undecided}
        for one, other in ((self.before, self.after), (self.after, self.before)):
            alone = (one.versions - other.versions) | (one.sources - other.sources)
            reasons.update((term, self.table.undecided[term]) for term in alone if term in self.table.undecided)
        for old, new in ((self.before.constants, self.after.constants), (self.after.constants, self.before.constants)):
            for name, value in old.items():
                term = self.table.keys[value.content][1] if isinstance(value, Tensor) else getattr(value, "term", -1)
                if term in self.table.undecided and new.get(name) is not value:
                    reasons[term] = self.table.undecided[term]
        return reasons

    def doubt(self, key: Any) -> str:
        """Why an argument or size, given as a key, was not decided, empty when it was."""
        if isinstance(key, Poly):
            terms = (self._origin(term) for monomial, _ in key.terms for term in monomial)
            return next(filter(None, map(self.table.undecided.get, terms)), "")
        if not isinstance(key, tuple) or not key:
            return ""
        if key[0] == "tensor":
            return self.undecided(key[1]) or next(filter(None, map(self.doubt, key[2] or ())), "")
        if key[0] == "value":
            return self.table.undecided.get(self._origin(key[1]), "")
        parts = key[1] if key[0] == "list" else key[1:] if key[0] == "int" else ()
        return next(filter(None, map(self.doubt, parts)), "")

    def unexplained(self, step: Step | None, path: str, *, after: bool) -> str:
        """Why something that one graph lacks may be there after all, as an op that was not decided; empty if not.

        step: the op that is missing, if it is one; path: its name. after: AFTER lacks it, not BEFORE.
        """
        if step is not None and step.why:
            return step.why
        fact = kind_of(path)
        doubts = self._doubts[after]
        return next((why for other, why in doubts if other == path or (fact and kind_of(other) == fact)), "")

    @cached_property
    def _doubts(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Ops that were not decided and that the other graph does not have, with the reason: BEFORE's, AFTER's."""
        by_side: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
        sides = ((self.before, self.new_terms), (self.after, self.old_terms))
        for (trace, there), doubts in zip(sides, by_side, strict=True):
            for step in (step for step in trace.steps if step.term not in there):
                # Why it, or what it works on, was not decided.
                why = step.why or next(filter(None, map(self.undecided, step.operands)), "")
                if why:
                    doubts.append((step.path, why))
        return by_side

    def fail(
        self,
        rule: str,
        node: str,
        text: str,
        contents: tuple[int | None, ...] = (),
        twins: tuple[int | None, int | None] = (None, None),
        doubt: str = "",
    ) -> None:
        """A difference, or a gap when one of the contents was not decided, or there is another doubt.

        twins: a content of AFTER and the one that BEFORE has in its place; if they hold the same elements,
        there is no difference, and :attr:`same` says so.
        """
        reason = doubt or next(filter(None, map(self.undecided, contents)), "") or self._told_apart(*twins)
        if self.same and twins[0] in self.same:
            return
        if reason:
            self.report.gap(rule, node, f"{text}; not decided: {reason}")
        else:
            self.report.differs(rule, node, text)

    def is_launch(self, step: Step) -> bool:
        """Whether a step launches a collective, explained or not, or calls a sub-graph that launches one."""
        return bool(kind_of(step.path)) or step.node in self.meeting

    def early(self, content: int | None) -> bool:
        """Whether a content was read before it was there, which is an event of its own."""
        sources = () if content is None else self.table.sources_of(content)
        return any(self.table.keys[source][0] == EARLY for source in sources)


def kind_of(path: str) -> str:
    """The kind of collective that an op launches; empty for other ops."""
    fact = COLLECTIVES.get(path.rpartition(".")[0])
    return "" if fact is None else str(fact.kind)


# Words


_PIECES = 3
_LEVELS = 4
_COLLECTIVES = frozenset({GATHER, SCATTER, REDUCE, BROADCAST})


@dataclass(frozen=True)
class Difference:
    """One argument that differs: where, and in words what it is and was; terms when it has them."""

    text: str
    new: int | None = None
    old: int | None = None
    keys: tuple[Any, Any] = (None, None)


class Words:
    """Descriptions that use the node names of both graphs."""

    def __init__(self, table: Terms, before: Trace, after: Trace) -> None:
        self._table = table
        self._before = before
        self._after = after

    def content(self, content: int, level: int = 0) -> str:
        """What a tensor holds."""
        writer = self._before.written.get(content) or self._after.written.get(content)
        return self._content(content, level) + (f" after the write by '{writer}'" if writer else "")

    def _content(self, content: int, level: int) -> str:
        items = self._table.layout_of(content)
        if items is None:
            return self.source(content, level)
        if len(items) == 1 and isinstance(items[0], Leaf):
            leaf = items[0]
            end = leaf.start + leaf.length
            return f"elements {leaf.start}:{end} of {self.source(leaf.source, level)}"
        shown = leaves(items)[:_PIECES]
        parts = [f"{leaf.start}+{leaf.length} of {self.source(leaf.source, level + 1)}" for leaf in shown]
        more = len(leaves(items)) - len(parts)
        return f"pieces [{', '.join(parts)}{f', and {more} more' if more > 0 else ''}]"

    def source(self, source: int, level: int = 0) -> str:
        """What a source is: a node, or a collective, cast or load of another source."""
        key = self._table.keys[source]
        kind, name = key[0], self._name(source)
        if level >= _LEVELS:
            return name or "..."
        if kind in _COLLECTIVES:
            inner = self.source(key[1], level + 1) if isinstance(key[1], int) else "several tensors"
            return f"{kind} of {inner}" + (f" ({name})" if name and "new" not in name else "")
        if kind == CAST:
            return f"{self.source(key[1], level + 1)} as {key[2].removeprefix('torch.')}"
        if kind == BITS:
            return f"{self.source(key[1], level + 1)} viewed as {key[2].removeprefix('torch.')}"
        if kind == EARLY:
            return f"{self.content(key[1], level + 1)} before it is there"
        if kind == LOAD:
            writer = self._before.writers.get(key[4]) or self._after.writers.get(key[4]) or "a write"
            return f"{name or 'memory'} after the write by '{writer}'"
        return name or "a value that no node has a name for"

    def inner(self, source: int) -> str:
        """What a collective is given."""
        inner = self._table.keys[source][1]
        return self.source(inner) if isinstance(inner, int) else "several tensors"

    def _name(self, term: int) -> str:
        name = self._before.names.get(term)
        if name is not None:
            return f"'{name}'"
        name = self._after.names.get(term)
        return f"'{name}' (new)" if name is not None else ""

    def worker(self, source: int) -> str:
        """The node that did the work of a source, in whichever graph."""
        return self._before.workers.get(source) or self._after.workers.get(source) or "?"

    def key(self, key: tuple[Any, ...] | None) -> str:
        """An argument in words."""
        if key is None:
            return "not given"
        if key[0] == "tensor":
            return self.content(key[1])
        if key[0] == "none":
            return "None"
        if key[0] == "list":
            shown = [self.key(part) for part in key[1][:8]]
            return f"[{', '.join(shown)}{', ...' if len(key[1]) > len(shown) else ''}]"
        if key[0] == "value":
            kind = self._table.keys[key[1]][0]
            return {"graph": "a sub-graph", "input": "an input", "object": "an object"}.get(kind, "another value")
        return str(key[1]) if len(key) > 1 and isinstance(key[1], (str, int)) else "another value"

    def differences(
        self, old: Step, new: Step, olds: Mapping[str, fx.Node], news: Mapping[str, fx.Node]
    ) -> list[Difference]:
        """Every argument in which two calls of one op differ; ``olds`` and ``news`` are nodes by name."""
        was, now = dict(old.arguments), dict(new.arguments)
        here, there = _operands(news.get(new.node)), _operands(olds.get(old.node))
        differences: list[Difference] = []
        for name in dict.fromkeys((*was, *now)):
            differences.extend(self._compare(name, was.get(name), now.get(name), here.get(name), there.get(name)))
        return differences

    def _compare(self, label: str, was: Any, now: Any, here: Any, there: Any) -> Iterator[Difference]:
        if was == now:
            return
        lists = was is not None and now is not None and was[0] == now[0] == "list"
        if lists and len(was[1]) == len(now[1]):
            for i, (a, b) in enumerate(zip(was[1], now[1], strict=True)):
                yield from self._compare(f"{label}[{i}]", a, b, _at(here, i), _at(there, i))
            return
        tensors = was is not None and now is not None and was[0] == now[0] == "tensor"
        if tensors and was[1] == now[1]:
            what = "shape" if was[2] != now[2] else "dtype"
            at = 2 if what == "shape" else 3
            text = f"argument '{label}'{_called(here)} has {what} {now[at]}, in BEFORE{_called(there)} {was[at]}"
            yield Difference(text, keys=(now, was))
            return
        text = f"argument '{label}'{_called(here)} is {self.key(now)}, in BEFORE{_called(there)} {self.key(was)}"
        yield Difference(text, _term(now), _term(was), (now, was))


def settings(table: Terms, source: int) -> dict[str, str]:
    """Group, size, reduction and dtype of a collective, in words."""
    key = table.keys[source]
    values = {"dtype": str(table.dtype.get(source, "?")).removeprefix("torch.")}
    if key[0] == GATHER:
        values.update(group=_word(key[3]), group_size=str(key[2]))
    elif key[0] == SCATTER:
        over = key[-1]
        values.update(group=_word(over.group), reduction=over.reduction)
        values.update(group_size=str(key[3] if len(key) > 4 else len(key[1])))
    elif key[0] in (REDUCE, BROADCAST):
        first = "reduction" if key[0] == REDUCE else "root"
        values.update({first: str(key[2][0][-1]), "group": _word(key[2][1])})
    return values


def _word(key: tuple[Any, ...]) -> str:
    return repr(key[1]) if key[0] == "str" else str(key[-1])


def _operands(node: fx.Node | None) -> dict[str, Any]:
    return {} if node is None else bind(node)


def _term(key: Any) -> int | None:
    return key[1] if key is not None and key[0] in ("tensor", "value") else None


def _at(argument: Any, index: int) -> Any:
    return argument[index] if isinstance(argument, (list, tuple)) and index < len(argument) else None


def _called(argument: Any) -> str:
    if not isinstance(argument, fx.Node):
        return ""
    return f" ('{argument.name}'{_piece_of(argument)})"


def _piece_of(node: fx.Node) -> str:
    """Which part of a split a node is, looking through reshapes and copies."""
    at: Any = node
    for _ in range(_LEVELS * 2):
        if not isinstance(at, fx.Node) or at.op != "call_function" or not at.args:
            return ""
        if is_getitem(at.target):
            return f", part {at.args[-1]} of '{at.args[0]}'"
        if not regroups(path_of(at.target)):
            return ""
        at = at.args[0]
    return ""
