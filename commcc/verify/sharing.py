"""Which outputs share memory: with inputs, constants and each other, as in BEFORE.

Outputs that hold the same elements must share memory alike in both graphs, and views of inputs must be the same part
of them. Outputs that are parts of one storage without overlapping, as PyTorch's bucketing returns gradients,
behave like outputs with storage of their own, but that none is freed before all are: a remark says so.

Limits: two inputs are taken not to share storage. Storage offsets count only for outputs that are views of inputs;
where the place of a view in its storage is not known, it is taken to overlap with all others there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from commcc.verify.memory import supposed_of
from commcc.verify.sizes import Undecidable
from commcc.verify.terms import Opaque, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from commcc.verify.contents import Run
    from commcc.verify.memory import Memory
    from commcc.verify.pair import Pair
    from commcc.verify.trace import Output, Trace

#: ``input``, ``constant`` or ``output``, and its name or path; empty for what is not a tensor.
Owner: TypeAlias = "tuple[str, str]"
_NOBODY: Owner = ("", "")


def compare_sharing(pair: Pair) -> None:
    """Report outputs that share memory in another way than in BEFORE."""
    old, new = pair.before.outputs, pair.after.outputs
    was, now = _owners(pair.before), _owners(pair.after)
    apart = _apart(pair, was), _apart(pair, now, after=True)
    parts: dict[tuple[Owner, bool], list[str]] = {}
    known: set[str] = set()
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        before, after = was[i], now[i]
        if not before[0] or not after[0]:
            continue
        here = _as_in_before(pair, after)
        if before == here:
            if before[0] in ("input", "constant"):
                _compare_place(pair, a, b, before)
            elif before[1] != b.path:
                _compare_overlap(pair, (a, b), before, (apart[0][i], apart[1][i]))
            continue
        known.add(a.path)
        if apart[0][i] == apart[1][i] and apart[0][i][0] == "output":
            in_after = here != ("output", b.path)
            parts.setdefault((here if in_after else before, in_after), []).append(b.path)
        else:
            text = f"output {b.path} {_sharing(here, b)}, in BEFORE {_sharing(before, a)}"
            guess = any(isinstance(output.value, Tensor) and output.value.may_copy for output in (a, b))
            (pair.report.gap if guess else pair.report.differs)("alias", b.node, text)
    for (owner, in_after), paths in parts.items():
        _remark(pair, owner, paths, in_after=in_after)
    _compare_linked(pair, known)
    for a, b, first, second in zip(old, new, _copies(pair.before), _copies(pair.after), strict=True):
        if first != second and a.path not in known:
            text = f"output {b.path} may be in a copy that other outputs are in too, in BEFORE with others"
            pair.report.gap("alias", b.node, text)


def _copies(trace: Trace) -> list[tuple[str, ...]]:
    """For each output the copies that it may be in, each by the first output that may be in it."""
    first: dict[int, str] = {}
    values = ((output.value, output.path) for output in trace.outputs)
    made = ((supposed_of(value) if isinstance(value, Tensor) else (), path) for value, path in values)
    return [tuple(dict.fromkeys(first.setdefault(which, path) for which in found)) for found, path in made]


def _compare_linked(pair: Pair, known: Collection[str]) -> None:
    """Outputs that may share memory with something else than in BEFORE: what a sub-graph gives, or an op that is not
    known, may be a view of any of its operands. known: paths of outputs that surely share it otherwise.
    """
    was, now = _may_own(pair.before, pair), _may_own(pair.after, pair)
    for old, new, before, after in zip(pair.before.outputs, pair.after.outputs, was, now, strict=True):
        here = _as_in_before(pair, after)
        if before != here and old.path not in known:
            text = f"output {new.path} {_sharing(here, new, sure=False)}, in BEFORE {_sharing(before, old, sure=False)}"
            pair.report.gap("alias", new.node, text)


def _as_in_before(pair: Pair, owner: Owner) -> Owner:
    """What owns a storage in AFTER, by the name that BEFORE has for it."""
    return ("input", pair.renamed.get(owner[1], owner[1])) if owner[0] == "input" else owner


def _given(trace: Trace, stands_for: Callable[[int], int]) -> dict[int, Owner]:
    """The first input or constant in each storage. stands_for: of a storage, the one that counts."""
    first: dict[int, Owner] = {}
    for kind, entries in (("input", trace.inputs), ("constant", trace.constants.items())):
        for name, held in entries:
            if isinstance(held, Tensor):
                first.setdefault(stands_for(held.root), (kind, name))
    return first


def _may_own(trace: Trace, pair: Pair) -> list[Owner]:
    """For each output the first input, constant or output whose storage it may share; its own where it shares none."""
    memory, keys = trace.memory, pair.table.keys
    if memory is None:
        return [_NOBODY for _ in trace.outputs]
    unseen = {keys[content][1:]: place for content, place in trace.hidden.items() if keys[content][0] == "hidden"}
    first, owners = _given(trace, memory.first_together), []
    for output in trace.outputs:
        value: object = output.value
        if isinstance(value, Opaque):
            value = unseen.get((value.term, value.made))
        own = ("output", output.path)
        owners.append(first.setdefault(memory.first_together(value.root), own) if isinstance(value, Tensor) else own)
    return owners


def _compare_overlap(pair: Pair, outputs: tuple[Output, Output], owner: Owner, apart: tuple[Owner, Owner]) -> None:
    """Two outputs in one storage in both graphs: they overlap in both, or in neither."""
    if apart[0] == apart[1]:
        return
    sure = True
    for trace, output in zip((pair.before, pair.after), outputs, strict=True):
        first = next(candidate for candidate in trace.outputs if candidate.path == owner[1])
        try:
            sure = sure and trace.memory is not None and bool(_runs(trace.memory, first) + _runs(trace.memory, output))
        except Undecidable:
            sure = False
    text = f"output {outputs[1].path} does not share the same elements with output {owner[1]} as in BEFORE"
    (pair.report.differs if sure else pair.report.gap)("alias", outputs[1].node, text)


def _remark(pair: Pair, owner: Owner, paths: list[str], *, in_after: bool) -> None:
    shown = ", ".join([owner[1], *paths[:6]]) + (f" and {len(paths) - 6} more" if len(paths) > 6 else "")
    here, there = ("", "in BEFORE") if in_after else ("in BEFORE ", "now")
    text = (
        f"outputs {shown} are {here}parts of one storage that do not overlap, {there} each has storage of its own; "
        "values are the same, but such memory is freed only when none of them is used any more"
    )
    pair.report.note("alias", "output", text)


def _sharing(owner: Owner, output: Output, *, sure: bool = True) -> str:
    if owner[0] in ("input", "constant"):
        return f"{'is' if sure else 'may be'} a view of {owner[0]} '{owner[1]}'"
    if owner == ("output", output.path):
        return "has storage of its own"
    return f"{'shares' if sure else 'may share'} storage with output {owner[1]}"


def _owners(trace: Trace) -> list[Owner]:
    """For each output that is a tensor, the input, constant or first output whose storage it shares."""
    first, owners = _given(trace, int), []
    for term, place in trace.hidden.items():
        first.setdefault(place.root, ("hidden", str(term)))
    for output in trace.outputs:
        if not isinstance(output.value, Tensor):
            owners.append(_NOBODY)
            continue
        owners.append(first.setdefault(output.value.root, ("output", output.path)))
    return owners


def _apart(pair: Pair, owners: list[Owner], *, after: bool = False) -> list[Owner]:
    """Owners, where outputs that share storage but no element count as having storage of their own."""
    trace = pair.after if after else pair.before
    if trace.memory is None:
        return owners
    sharing: dict[int, list[Output]] = {}
    for output, owner in zip(trace.outputs, owners, strict=True):
        if isinstance(output.value, Tensor) and owner[0] == "output":
            sharing.setdefault(output.value.root, []).append(output)
    first: dict[str, Owner] = {}
    for outputs in sharing.values():
        for cluster in _clusters(trace.memory, outputs):
            first.update(dict.fromkeys(cluster, ("output", cluster[0])))
    return [first.get(o.path, owner) for o, owner in zip(trace.outputs, owners, strict=True)]


def _clusters(memory: Memory, outputs: list[Output]) -> list[list[str]]:
    """Paths of outputs in one storage, together where they overlap, directly or through others; in their order."""
    paths = [output.path for output in outputs]
    if len(paths) < 2:
        return [paths]
    try:
        spans = [(run, i) for i, output in enumerate(outputs) for run in _runs(memory, output)]
    except Undecidable:
        return [paths]
    leader = list(range(len(paths)))

    def root(i: int) -> int:
        while leader[i] != i:
            leader[i] = i = leader[leader[i]]
        return i

    end, last = 0, 0
    for run, i in sorted(spans):
        if run.start < end:
            one, other = root(last), root(i)
            leader[max(one, other)] = min(one, other)
        if run.start + run.length >= end:
            end, last = run.start + run.length, i
    members: dict[int, list[str]] = {}
    for i, path in enumerate(paths):
        members.setdefault(root(i), []).append(path)
    return list(members.values())


def _runs(memory: Memory, output: Output) -> list[Run]:
    value = output.value
    if not isinstance(value, Tensor) or value.may_copy:
        raise Undecidable("a view that may be a copy")
    return memory.runs(value)


def _compare_place(pair: Pair, old: Output, new: Output, owner: Owner) -> None:
    if not isinstance(old.value, Tensor) or not isinstance(new.value, Tensor):
        return
    if pair.before.memory is None or pair.after.memory is None:
        return
    was, now = pair.before.memory.where(old.value), pair.after.memory.where(new.value)
    if (was.content, was.shape) != (now.content, now.shape):
        text = f"output {new.path} is another part of {owner[0]} '{owner[1]}'"
        pair.fail("alias", new.node, text, (now.content, was.content))
