"""What a caller sees: inputs, outputs, constants, what is left in memory, what files declare; what shares storage is
compared by :mod:`commcc.verify.sharing`.

Two ``.pt2`` files must say the same of every input and output (parameters and buffers by name, what is written back and
where), of trees and guards, and hold the same weights and constants, byte for byte. Names of nodes do not count.

AFTER may be fixed to sizes; BEFORE is then compared for inputs of that size::

    header of AFTER: "fixed": {"u0": 160}
    x: f32[u0, 8]   s = sym_size(x, 0)   _assert_scalar(s >= 2)      is what x: f32[160, 8] is in AFTER

This is a claim of AFTER, said with the verdict. Symbols are believed where they are a whole size of an input of BEFORE,
or an input. Comparisons of numbers are evaluated, and asserts of what is true do nothing.

Limits: a graph from a text has no signature: there is nothing to compare with, which is a remark. Symbols that only one
file has a range for are not compared. Arithmetic on fixed sizes that :mod:`commcc.verify.explained` does not know is
taken from the values in BEFORE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.base.errors import CommccError
from commcc.serialization.pt2.contract import contract, differing_entries
from commcc.serialization.shapes import bounds_of, input_sizes
from commcc.verify.memory import INITIAL
from commcc.verify.same import same_values
from commcc.verify.sharing import compare_sharing
from commcc.verify.sizes import Poly, mismatch
from commcc.verify.terms import Opaque, Tensor, Value, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.graph.program import Program
    from commcc.verify.pair import Pair
    from commcc.verify.trace import Output
    from commcc.verify.verdict import Report

# Inputs and constants

_HIDDEN = "memory of values without a shape"


def match_inputs(before: fx.Graph, after: fx.Graph, report: Report) -> dict[str, str]:
    """Which input of BEFORE each input of AFTER stands for; differences in names, order and number reported."""
    olds, news = ({node.name: node.args for node in g.nodes if node.op == "placeholder"} for g in (before, after))
    old, new = list(olds), list(news)
    report.checked["inputs"] = len(old)
    if len(old) != len(new):
        gone = next((f"; without '{name}'" for name in old if name not in news), "")
        report.differs("input", "", f"{len(new)} inputs, BEFORE has {len(old)}{gone}")
    matched: dict[str, str] = {}
    for position, name in enumerate(new):
        there = old[position] if position < len(old) else ""
        if name in olds:
            matched[name] = name
        elif there and there not in news:
            matched[name] = there
            report.differs("input", name, f"input {position} is called '{there}' in BEFORE")
        else:
            report.differs("input", name, f"input {position} is not in BEFORE")
    for name, was in matched.items():
        if not same_values(news[name], olds[was]):
            report.differs("input", name, "has another default value than in BEFORE")
    moved = [(p, a, b) for p, (a, b) in enumerate(zip(old, new, strict=False)) if a != b and b in olds]
    if moved and len(old) == len(new):
        position, was, now = moved[0]
        report.differs("input", now, f"is input {position}, where BEFORE has '{was}'")
    return matched


def compare_inputs(pair: Pair) -> None:
    """Each input must be the same kind of thing, and be left with the same contents."""
    old = dict(pair.before.inputs)
    for name, value in pair.after.inputs:
        was = old.get(pair.renamed.get(name, name))
        if was is None:
            continue
        if type(was) is not type(value):
            pair.report.differs("input", name, f"is {_kind(value)}, in BEFORE {_kind(was)}")
        elif isinstance(was, Tensor) and isinstance(value, Tensor):
            _compare_final(pair, f"input '{name}'", was, value)
    compare_constants(pair)
    for term in dict.fromkeys((*pair.before.hidden, *pair.after.hidden)):
        name = _HIDDEN if pair.table.keys[term][0] == "hidden" else "an element of a list of inputs"
        _compare_final(pair, name, pair.before.hidden.get(term), pair.after.hidden.get(term))


def _kind(value: Value) -> str:
    return "a tensor" if isinstance(value, Tensor) else "not a tensor" if isinstance(value, Opaque) else "a size"


def _compare_final(pair: Pair, name: str, was: Tensor | None, now: Tensor | None) -> None:
    """Memory must be left with the same contents; None where one of the graphs does not touch it."""
    if pair.before.memory is None or pair.after.memory is None:
        return
    first = was or now
    untouched = -1 if first is None else pair.table.intern((INITIAL, first.content))
    old = untouched if was is None else pair.before.memory.version(was.root)
    new = untouched if now is None else pair.after.memory.version(now.root)
    if old == new:
        return
    pair.changed = True
    writer = pair.after.writers.get(new), pair.before.writers.get(old)
    left, right = (f"last written by '{w}'" if w else "never written" for w in writer)
    if left == right:
        right = "by the same op, but with other values or in another order"
    node = writer[0] or writer[1] or ""
    text = f"{name} is left with other contents: {left}, in BEFORE {right}"
    keys = [pair.table.keys[version] for version in (new, old)]
    known = all(key[0] == INITIAL for key in keys)
    doubt = pair.rests_on(new) or pair.rests_on(old)
    pair.fail("mutation", node, text, (), (keys[0][1], keys[1][1]) if known else (None, None), doubt)


def compare_constants(pair: Pair) -> None:
    """Constants of one name must hold the same, and written ones be left with the same contents.

    A constant that holds what another one of BEFORE does was renamed; what reads it is compared.
    """
    held = {value.content for value in pair.before.constants.values() if isinstance(value, Tensor)}
    for name in dict.fromkeys((*pair.before.constants, *pair.after.constants)):
        was, now = pair.before.constants.get(name), pair.after.constants.get(name)
        if not _known(pair, name, was, now):
            continue
        if isinstance(was, Tensor) and isinstance(now, Tensor):
            if now.content != was.content and now.content not in held:
                text = "constant has other values, another shape or another dtype than in BEFORE"
                pair.fail("value", name, text, (now.content, was.content))
            _compare_final(pair, f"constant '{name}'", was, now)
            continue
        if was is not None and now is not None and was != now:
            both = isinstance(was, Opaque) and isinstance(now, Opaque)
            doubt = pair.table.undecided.get(now.term, "") if isinstance(now, Opaque) and both else ""
            what = f"cannot be compared: {doubt}" if doubt else "is something else than in BEFORE"
            (pair.report.gap if doubt else pair.report.differs)("value", name, f"constant {what}")
        for trace, value in ((pair.before, was), (pair.after, now)):
            if isinstance(value, Tensor) and trace.memory is not None and trace.memory.at(value.root).writes:
                pair.changed = True
                pair.report.differs("mutation", name, "this constant is written in one of the graphs only")


def _known(pair: Pair, name: str, was: Value | None, now: Value | None) -> bool:
    """Whether a constant can be compared; where a file does not have its value, that is a gap or a remark."""
    terms = {_term(pair, value) for value in (was, now)}
    if not any(term in pair.table.undecided and pair.table.keys[term][0] == "attribute" for term in terms):
        return True
    same = len(terms) == 1
    if same and pair.same_constants:
        pair.report.note("value", name, "the value of this constant is in neither file: it is taken to be the same")
    elif same:
        hint = "--same-constants takes it to be the same"
        pair.report.gap("value", name, f"the value of this constant is in neither file; {hint}")
    else:
        pair.report.gap("value", name, "the value of this constant is not known")
    return same


def _term(pair: Pair, value: Value | None) -> int:
    if isinstance(value, Tensor):
        term: int = pair.table.keys[value.content][1]
        return term
    return value.term if isinstance(value, Opaque) else -1


def compare_detached(pair: Pair) -> None:
    """An exported program may yet be trained: what keeps gradients from a tensor does so in both graphs."""
    old, new = pair.before.detached, pair.after.detached
    for content in dict.fromkeys((*old, *new)):
        if (content in old) != (content in new):
            side, node = ("AFTER", old[content]) if content in old else ("BEFORE", new[content])
            text = f"'{node}' keeps gradients from its operand, which {side} does not; training may give others"
            pair.report.gap("value", new.get(content, ""), text)


# Outputs


def compare_outputs(pair: Pair) -> None:
    """Number, nesting, values, layout and sharing of the outputs."""
    old, new = pair.before.outputs, pair.after.outputs
    pair.report.checked["outputs"] = len(old)
    if pair.before.structure != pair.after.structure:
        pair.changed = True
        text = (
            f"{len(new)} outputs, BEFORE has {len(old)}" if len(old) != len(new) else "outputs are nested differently"
        )
        pair.report.differs("output", "output", text)
        if len(old) != len(new):
            return
    places = {_identity(output.value): output.path for output in reversed(old)}
    follow: list[str] = []
    for was, now in zip(old, new, strict=True):
        if _same(was, now):
            both = isinstance(was.value, Tensor) and isinstance(now.value, Tensor)
            wrong = mismatch(was.value.meta, now.value.meta) if both else ""  # type: ignore[union-attr]
            if wrong:
                pair.report.differs("output", now.node, f"output {now.path} has {wrong} in BEFORE")
        elif not _explain(pair, was, now, places):
            follow.append(now.path)
        pair.changed = pair.changed or not _same(was, now)
    if follow:
        shown = ", ".join(follow[:10]) + (", ..." if len(follow) > 10 else "")
        pair.consequences.append(f"{len(follow)} outputs follow from other differences: {shown}")
    compare_sharing(pair)


def _identity(value: Value | None) -> tuple[Any, ...] | None:
    return (value.content, value.shape, value.dtype) if isinstance(value, Tensor) else None


def _same(old: Output, new: Output) -> bool:
    return old.constant == new.constant and _equal(old.value, new.value)


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return (old.content, old.shape, old.dtype) == (new.content, new.shape, new.dtype)
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(_equal(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, Opaque) and isinstance(new, Opaque):
        return old.term == new.term
    return type(old) is type(new) and bool(old == new)


def _explain(pair: Pair, was: Output, now: Output, places: dict[Any, str]) -> bool:
    """Report an output that is itself wrong; False when it only follows from a difference elsewhere."""
    label, new, old = f"output {now.path}", now.value, was.value
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        if not _has(pair, new):
            return False
        keys = (side.constant if side.value is None else key_of(pair.table, side.value) for side in (now, was))
        doubt = next(filter(None, map(pair.doubt, keys)), "")
        pair.fail("output", now.node, f"{label} is {_shown(pair, now)}, in BEFORE {_shown(pair, was)}", doubt=doubt)
        return True
    contents = (new.content, old.content)
    if new.content == old.content:
        text = f"{label} has shape {new.shape} {new.dtype}, in BEFORE {old.shape} {old.dtype}"
        pair.report.differs("output", now.node, text)
        return True
    place = places.get(_identity(new))
    if place is not None:
        text = f"{label} holds what BEFORE returns as output {place}; in BEFORE it is '{was.node}'"
        pair.fail("output", now.node, text, contents)
        return True
    if not pair.known(new.content):
        return False
    text = f"{label} is {pair.words.content(new.content)}, in BEFORE ('{was.node}') {pair.words.content(old.content)}"
    pair.fail("value", now.node, text, contents, contents)
    return True


def _has(pair: Pair, value: Value | None) -> bool:
    """Whether BEFORE has all of a value."""
    if isinstance(value, tuple):
        return all(_has(pair, part) for part in value)
    if isinstance(value, Tensor):
        return pair.known(value.content)
    if isinstance(value, Poly):
        return all(pair.seen(term) for monomial, _ in value.terms for term in monomial)
    return not isinstance(value, Opaque) or pair.seen(value.term)


def _shown(pair: Pair, output: Output) -> str:
    if output.value is None:
        return pair.words.key(output.constant)
    return f"'{output.node}'"


# What is declared


def compare_exported(before: Program, after: Program, report: Report) -> None:
    """Report in what the files of two programs differ besides the graph; nothing when it is one file."""
    if before.carrier is after.carrier:
        return
    try:
        fixed = _claims(after)
        old, new = contract(before, fixed), contract(after, fixed)
        entries = differing_entries(before, after) if old and new else []
    except CommccError as error:
        report.gap("input", "", f"the weights cannot be compared: {error.what} ({error.where})")
        return
    if not old or not new:
        side = "AFTER" if old else "BEFORE"
        report.note("input", "", f"{side} is no .pt2 file: names of parameters and weights are not compared")
        return
    for what in dict.fromkeys((*old, *new)):
        if (what in new and old.get(what) is not None) or not what.startswith("range of "):
            _compare_entry(what, old.get(what), new.get(what), report)
    for name in entries:
        report.differs("input", "", f"'{name}' has other values than in BEFORE's file")


def _compare_entry(what: str, old: Any, new: Any, report: Report) -> None:
    if old == new:
        return
    rule = "output" if what.startswith("output") else "input"
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
        old, new = ({key: entry.get(key) for key in keys} for entry in (old, new))
    report.differs(rule, "", f"{what} is {_said(new)}, in BEFORE's file {_said(old)}")


def _said(fact: Any) -> str:
    text = "missing" if fact is None else str(fact)
    return text if len(text) <= 160 else f"{text[:157]}..."


#: Under which key the header of a program says to which sizes it is fixed.
_FIXED = "fixed"


def fixed_sizes(before: Program, after: Program, report: Report) -> dict[str, int]:
    """Numbers that AFTER has for symbols of BEFORE's inputs; those that cannot be are findings."""
    old, new = _claims(before), _claims(after)
    there = dict(input_sizes(before.graph))
    fixed: dict[str, int] = {}
    for name, number in new.items():
        if old.get(name) == number:
            continue
        if name in old:
            report.differs("input", "", f"'{name:.40}' is fixed to {number!r:.40}, in BEFORE to {old[name]!r:.40}")
        elif type(number) is not int or number < 1:
            report.differs("input", "", f"'{name:.40}' is fixed to {number!r:.40}, which is no size")
        elif name not in there:  # the claim is of no use: inputs are compared as BEFORE has them
            report.note("input", "", f"AFTER is fixed to {name:.40} = {number}, which is no size of an input of BEFORE")
        else:
            low, high = bounds_of(there[name])
            if number < (low or 0) or number > (number if high is None else high):
                bounds = f"from {'?' if low is None else low} to {'?' if high is None else high}"
                report.differs("input", "", f"'{name:.40}' is fixed to {number}, in BEFORE it is {bounds}")
            fixed[name] = number
            report.note("input", "", f"compared for {name} = {number} only, which AFTER is fixed to")
    return fixed


def _claims(program: Program) -> Mapping[str, Any]:
    claims = program.header.get(_FIXED)
    return {str(name): number for name, number in claims.items()} if isinstance(claims, dict) else {}
