"""Which outputs share memory, with inputs, constants and each other.

Outputs that hold the same elements must do so in both graphs, and views of inputs must be the same part of
them. Outputs that are parts of one storage without overlapping, as PyTorch's bucketing returns gradients,
behave like outputs with storage of their own, but that none is freed before all are: a remark says so.

Limits: storage offsets count only for outputs that are views of inputs; where the place of a view in its
storage is not known, it is taken to overlap with all others there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from commcc.verify.sizes import Undecidable
from commcc.verify.values import Tensor

if TYPE_CHECKING:
    from commcc.verify.causes import Pair
    from commcc.verify.facts import Output, Trace
    from commcc.verify.memory import Memory
    from commcc.verify.places import Run

#: ``input``, ``constant`` or ``output``, and its name or path; empty for what is not a tensor.
Owner: TypeAlias = "tuple[str, str]"
_NOBODY: Owner = ("", "")


def compare_sharing(pair: Pair) -> None:
    """Report outputs that share memory in another way than in BEFORE."""
    old, new = pair.before.outputs, pair.after.outputs
    was, now = _owners(pair.before), _owners(pair.after)
    apart = _apart(pair, was), _apart(pair, now, after=True)
    parts: dict[tuple[Owner, bool], list[str]] = {}
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        before, after = was[i], now[i]
        if not before[0] or not after[0]:
            continue
        here = (after[0], pair.renamed.get(after[1], after[1])) if after[0] == "input" else after
        if before == here:
            if before[0] in ("input", "constant"):
                _compare_place(pair, a, b, before)
        elif apart[0][i] == apart[1][i] and apart[0][i][0] == "output":
            in_after = here != ("output", b.path)
            parts.setdefault((here if in_after else before, in_after), []).append(b.path)
        else:
            _report(pair, a, b, (before, here))
    for (owner, in_after), paths in parts.items():
        _remark(pair, owner, paths, in_after=in_after)


def _report(pair: Pair, old: Output, new: Output, owners: tuple[Owner, Owner]) -> None:
    text = f"output {new.path} {_sharing(owners[1], new)}, in BEFORE {_sharing(owners[0], old)}"
    guess = any(isinstance(o.value, Tensor) and o.value.may_copy for o in (old, new))
    (pair.report.gap if guess else pair.report.differs)("alias", new.node, text)


def _remark(pair: Pair, owner: Owner, paths: list[str], *, in_after: bool) -> None:
    shown = ", ".join([owner[1], *paths[:6]]) + (f" and {len(paths) - 6} more" if len(paths) > 6 else "")
    here, there = ("", "in BEFORE") if in_after else ("in BEFORE ", "now")
    text = (
        f"outputs {shown} are {here}parts of one storage that do not overlap, {there} each has storage of its own; "
        "values are the same, but such memory is freed only when none of them is used any more"
    )
    pair.report.note("alias", "output", text)


def _sharing(owner: Owner, output: Output) -> str:
    if owner[0] in ("input", "constant"):
        return f"is a view of {owner[0]} '{owner[1]}'"
    if owner == ("output", output.path):
        return "has storage of its own"
    return f"shares storage with output {owner[1]}"


def _owners(trace: Trace) -> list[Owner]:
    """For each output that is a tensor, the input, constant or first output whose storage it shares."""
    first: dict[int, Owner] = {}
    for sort, entries in (("input", trace.inputs), ("constant", trace.constants.items())):
        for name, value in entries:
            if isinstance(value, Tensor):
                first.setdefault(value.root, (sort, name))
    owners = []
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
    end, last = 0, 0
    for run, i in sorted(spans):
        if run.start < end:
            leader = _joined(leader, last, i)
        if run.start + run.length >= end:
            end, last = run.start + run.length, i
    members: dict[int, list[str]] = {}
    for i, path in enumerate(paths):
        members.setdefault(leader[i], []).append(path)
    return list(members.values())


def _joined(leader: list[int], first: int, second: int) -> list[int]:
    a, b = leader[first], leader[second]
    return leader if a == b else [min(a, b) if each in (a, b) else each for each in leader]


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
        pair.report.differs("alias", new.node, f"output {new.path} is another part of {owner[0]} '{owner[1]}'")
