"""What a caller sees: inputs, outputs, what is left in memory, what shares storage.

Limits: two inputs are taken not to share storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.verify.memory import INITIAL
from commcc.verify.sharing import compare_sharing
from commcc.verify.sizes import Poly
from commcc.verify.symbols import mismatch
from commcc.verify.values import Opaque, Tensor, Value

if TYPE_CHECKING:
    from torch import fx

    from commcc.verify.causes import Pair
    from commcc.verify.facts import Output
    from commcc.verify.verdict import Report


def match_inputs(before: fx.Graph, after: fx.Graph, report: Report) -> dict[str, str]:
    """Which input of BEFORE each input of AFTER stands for; differences in names, order and number reported."""
    old = [node.name for node in before.nodes if node.op == "placeholder"]
    new = [node.name for node in after.nodes if node.op == "placeholder"]
    report.checked["inputs"] = len(old)
    if len(old) != len(new):
        report.differs("input", "", f"{len(new)} inputs, BEFORE has {len(old)}{_odd(old, new)}")
    matched: dict[str, str] = {}
    for position, name in enumerate(new):
        there = old[position] if position < len(old) else ""
        if name in old:
            matched[name] = name
        elif there and there not in new:
            matched[name] = there
            report.differs("input", name, f"input {position} is called '{there}' in BEFORE")
        else:
            report.differs("input", name, f"input {position} is not in BEFORE")
    moved = [(p, a, b) for p, (a, b) in enumerate(zip(old, new, strict=False)) if a != b and b in old]
    if moved and len(old) == len(new):
        position, was, now = moved[0]
        report.differs("input", now, f"is input {position}, where BEFORE has '{was}'")
    return matched


def _odd(old: list[str], new: list[str]) -> str:
    gone = [name for name in old if name not in new]
    return f"; without '{gone[0]}'" if gone else ""


def compare_inputs(pair: Pair) -> None:
    """Each input must be the same sort of thing, and be left with the same contents."""
    old = dict(pair.before.inputs)
    for name, value in pair.after.inputs:
        was = old.get(pair.renamed.get(name, name))
        if was is None:
            continue
        if type(was) is not type(value):
            pair.report.differs("input", name, f"is {_sort(value)}, in BEFORE {_sort(was)}")
        elif isinstance(was, Tensor) and isinstance(value, Tensor):
            _compare_final(pair, f"input '{name}'", was, value)
    _compare_constants(pair)


def _compare_constants(pair: Pair) -> None:
    """Constants that are written must be left with the same contents, also when one graph has no use for them."""
    for name in dict.fromkeys((*pair.before.constants, *pair.after.constants)):
        was, now = pair.before.constants.get(name), pair.after.constants.get(name)
        if isinstance(was, Tensor) and isinstance(now, Tensor):
            _compare_final(pair, f"constant '{name}'", was, now)
            continue
        for trace, value in ((pair.before, was), (pair.after, now)):
            if isinstance(value, Tensor) and trace.memory is not None and trace.memory.storages[value.root].writes:
                pair.changed = True
                pair.report.differs("mutation", name, "this constant is written in one of the graphs only")


def _sort(value: Value) -> str:
    return "a tensor" if isinstance(value, Tensor) else "not a tensor" if isinstance(value, Opaque) else "a size"


def _compare_final(pair: Pair, name: str, was: Tensor, now: Tensor) -> None:
    if pair.before.memory is None or pair.after.memory is None:
        return
    old, new = pair.before.memory.version(was.root), pair.after.memory.version(now.root)
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
    pair.fail("mutation", node, text, (), (keys[0][1], keys[1][1]) if known else (None, None))


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
            _compare_layout(pair, was, now)
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
        pair.report.differs("output", now.node, f"{label} is {_shown(pair, now)}, in BEFORE {_shown(pair, was)}")
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


def _compare_layout(pair: Pair, old: Output, new: Output) -> None:
    if not isinstance(old.value, Tensor) or not isinstance(new.value, Tensor):
        return
    wrong = mismatch(old.value.meta, new.value.meta)
    if wrong:
        pair.report.differs("output", new.node, f"output {new.path} has {wrong} in BEFORE")
