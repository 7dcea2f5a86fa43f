"""Collectives: what a launch gives, and what a wait sets free.

The result of a launch is written in terms of gathers and reductions of whole sources
(:mod:`commcc.verify.contents`), so that a merged launch and its members are the same terms; memory is in use between a
launch and its wait.

Limits: all-to-all is a term of its own; launches whose layout cannot be decided too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from commcc.base.terms import Kind
from commcc.graph.ops import argument, facts, is_getitem
from commcc.graph.ops.names import constants_of
from commcc.graph.ops.operands import written
from commcc.graph.ops.products import DENSE
from commcc.graph.ops.views import BY_INDEX
from commcc.verify.annotations import hold_against
from commcc.verify.barriers import place
from commcc.verify.contents import (
    BROADCAST,
    REDUCE,
    Over,
    counts,
    gather,
    pointwise,
    scatter,
)
from commcc.verify.entangled import WHY, is_lazy, shared_results
from commcc.verify.hidden import opaque_in
from commcc.verify.memory import Flight
from commcc.verify.sizes import (
    UNKNOWN,
    Meta,
    Shape,
    Undecidable,
    contiguous_strides,
    is_contiguous,
    is_dense,
    product,
)
from commcc.verify.terms import Opaque, Tensor, Value, key_of, path_of, tensors_in
from commcc.verify.trace import LAUNCH, OP, State, Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from commcc.graph.ops.collective_table import CollectiveOp
    from commcc.verify.contents import Run
    from commcc.verify.terms import Terms


def launch(state: State, node: fx.Node, fact: CollectiveOp, groups: Mapping[str, str]) -> Value:
    """The result of an asynchronous collective; its storage is in flight until the wait.

    groups: process groups that stand for another one.
    """
    arguments = _named_alike({**constants_of(node.target), **state.arguments(node)}, groups)
    table, trace = state.table, state.trace
    inputs = tensors_in(arguments.get(fact.tensor))
    outs = tensors_in(arguments.get(fact.out)) if fact.out is not None else []
    unseen = state.hidden.found_in(arguments.values())
    keys = tuple((name, key_of(table, value)) for name, value in arguments.items())
    shared = shared_results(node, state.memory, table, [*inputs, *state.hidden.reached_from(unseen)], outs)
    keys = (*keys, *shared, *state.hidden.written(unseen))
    term = table.intern(("op", path_of(node.target), keys))
    lazily = any(is_lazy(state, tensor) for tensor in outs)
    outputs, why = _described(state, fact, inputs, outs, arguments) if not (shared or lazily) else ([], WHY)
    if lazily:
        # PyTorch fills a copy of what is conjugated when it is read, and copies back what is there before the wait.
        text = f"{path_of(node.target)} writes into a tensor that is conjugated or negated only when it is read"
        state.event("collective", node, text, ("lazy", tuple(out.content for out in outs)))
        trace.barriers.append(node.name)
    metas = [tensor.meta for tensor in inputs]
    plain = [m.shape is not None and m.strides is not None and is_contiguous(m.shape, m.strides) for m in metas]
    # PyTorch's shape function says one thing, its kernel does another.
    if fact.kind is Kind.BROADCAST and not outs and not all(plain) and layout_counts(node):
        trace.doubts.setdefault("how a broadcast of a tensor lies that is not contiguous", node.name)
    alone = bool(outputs) and _is_alone(table, fact, arguments, inputs)
    if alone:
        trace.alone.setdefault(str(arguments["group_name"]), node.name)
    if why:
        table.undecided.setdefault(term, why)
    for tensor, out in zip(inputs, outs, strict=False):
        _check_target(state, node, fact, tensor, out, str(arguments.get("group_name")))
    into = state.hidden.reached_from(state.hidden.found_in((arguments.get(fact.out or ""),)))
    state.write(node, term, [*outs, *into], tuple(content for content, _ in outputs))
    if outputs:
        value = _explained(state, node, fact, outputs, outs, alone=alone)
    else:
        if state.first and fact.kind is Kind.ALL_TO_ALL:
            hold_against(state, node, facts(node.target), arguments, term)
        value = state.result(node, node.meta.get("val"), term, tuple(_targets(state, arguments.get(fact.out or ""))))
    lent = [*inputs, *state.hidden.reached_from(unseen)]
    if unseen or opaque_in((value,)):
        value = _of_unseen(state, node, fact, value, term, arguments)
    trace.launches += 1
    if outputs and not alone and all(meta.shape is not None and product(meta.shape) == 0 for _, meta in outputs):
        trace.bare.append((term, node.name))  # no element tells what was launched, and on which group
    # What a rank has sent to itself, others have made.
    sources = () if alone else tuple(dict.fromkeys(s for content, _ in outputs for s in table.sources_of(content)))
    operands = tuple(tensor.content for tensor in inputs)
    strides = tuple(tensor.meta.strides for tensor in inputs)
    kind, path = LAUNCH if outputs else OP, path_of(node.target)
    step = Step(node.name, path, kind, term, term, keys, operands, sources, strides, why, len(trace.barriers))
    trace.steps.append(step)
    _take_off(state, node, value, lent)
    return value


def layout_counts(launched: fx.Node) -> bool:
    """Whether something may tell how the result of a launch lies in memory, or what is computed of it element by
    element: what looks at strides, views that only some layouts have or that else are copies, whoever sees an output.
    """
    seen, stack = {launched}, [launched]
    while stack:
        node = stack.pop()
        for user in node.users:
            handed_on = _hands_on(node, user)
            if handed_on is None:
                return True
            if handed_on and user not in seen:
                seen.add(user)
                stack.append(user)
    return False


def _hands_on(node: fx.Node, user: fx.Node) -> bool | None:
    """Whether the result of a user may lie as an operand does; None where the user may tell how that lies."""
    if user.op != "call_function":
        return None
    fact = facts(user.target)
    if fact.wait or is_getitem(user.target) or path_of(user.target) in BY_INDEX:
        return True
    if not fact.blind or (fact.views and fact.views != fact.writes):
        return None
    if fact.views:  # it writes, and gives what it has written
        return node in written(user)
    flat = [part.dim() < 2 for part in tree_leaves(user.meta.get("val")) if isinstance(part, torch.Tensor)]
    ordered = fact.name in DENSE or argument(user, "memory_format") is torch.contiguous_format
    return not (ordered or (flat and all(flat)))


def _named_alike(arguments: dict[str, Any], groups: Mapping[str, str]) -> dict[str, Any]:
    """Arguments with the group that its own stands for."""
    group = arguments.get("group_name")
    return {**arguments, "group_name": groups.get(group, group)} if isinstance(group, str) else arguments


def _described(
    state: State, fact: CollectiveOp, inputs: list[Tensor], outs: list[Tensor], arguments: dict[str, Any]
) -> tuple[list[tuple[int, Meta]], str]:
    """Content and shape of every output; none, and perhaps a reason, for launches that stay terms."""
    if fact.kind not in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.BROADCAST) or not inputs:
        return [], ""
    try:
        if opaque_in(arguments.get(name) for name in (fact.tensor, fact.out) if name is not None):
            raise Undecidable("a tensor whose shape is not known, among others")
        metas = [_meta(fact, tensor, arguments) for tensor in inputs]
        alone = _is_alone(state.table, fact, arguments, inputs)
        contents = [tensor.content if alone else _content(state, fact, tensor, arguments) for tensor in inputs]
        if outs and len(outs) != len(inputs):
            raise Undecidable("another number of output buffers than of inputs")
        for out, meta in zip(outs, metas, strict=False):
            if out.shape is None or product(out.shape) != product(meta.shape or ()) or out.dtype != meta.dtype:
                raise Undecidable("an output buffer that does not fit")
    except Undecidable as reason:
        return [], str(reason)
    if outs:
        metas = [out.meta for out in outs]
    return list(zip(contents, metas, strict=True)), ""


def _is_alone(table: Terms, fact: CollectiveOp, arguments: dict[str, Any], inputs: list[Tensor]) -> bool:
    """Whether a group has one rank, which then gets what it sends: as its table says, or the collective itself.

    What a group of any size refuses is no copy: a sender that is not in it, the larger of two complex numbers.
    """
    how, dtypes = arguments.get("reduce_op", "sum"), [tensor.dtype for tensor in inputs]
    ordered, bitwise = how not in ("sum", "avg"), how in ("band", "bor", "bxor")
    if any(t is None or (ordered and t.is_complex) or (bitwise and t.is_floating_point) for t in dtypes):
        return False
    if arguments.get("src", 0) != 0:
        return False
    sizes = {table.group_sizes.get(str(arguments.get("group_name")))}
    if fact.has_group_size:
        sizes.add(arguments.get("group_size"))
    return 1 in sizes and sizes <= {1, None} and arguments.get("reduce_op", "sum") in _PLAIN_REDUCTIONS


#: Reductions of one number that are this number.
_PLAIN_REDUCTIONS = frozenset({"sum", "avg", "product", "min", "max", "band", "bor", "bxor"})


def _content(state: State, fact: CollectiveOp, tensor: Tensor, arguments: dict[str, Any]) -> int:
    table = state.table
    group = key_of(table, arguments.get("group_name"))
    if fact.kind is Kind.ALL_REDUCE:
        how = (key_of(table, arguments.get("reduce_op")), group)
        return pointwise(table, tensor.content, REDUCE, how)
    if fact.kind is Kind.BROADCAST:
        return pointwise(table, tensor.content, BROADCAST, (key_of(table, arguments.get("src")), group))
    if fact.kind is Kind.ALL_GATHER:
        return gather(table, tensor.content, arguments["group_size"], Over(group))
    return scatter(table, tensor.content, arguments["group_size"], Over(group, str(arguments.get("reduce_op"))))


def _meta(fact: CollectiveOp, tensor: Tensor, arguments: dict[str, Any]) -> Meta:
    """Shape and strides of an output: gathers and scatters are along the first dimension."""
    shape, strides = tensor.shape, tensor.meta.strides
    if shape is None:
        raise Undecidable("a tensor whose shape is not known")
    if not fact.has_group_size:
        # A reduction copies its input into the usual order. A broadcast copies it as it lies; of several reductions
        # at once, PyTorch's shape function says so, and its kernel does otherwise.
        usual = (fact.kind is Kind.ALL_REDUCE and not fact.coalesced) or (
            strides is not None and is_contiguous(shape, strides)
        )
        kept = fact.kind is Kind.BROADCAST and strides is not None and is_dense(shape, strides)
        laid = contiguous_strides(shape) if usual else strides if kept else None
        return Meta(shape, laid, tensor.dtype, tensor.meta.device)
    size = arguments.get("group_size")
    if not isinstance(size, int) or size < 1:
        raise Undecidable("a group size that is not a number")
    if not shape or (fact.kind is Kind.REDUCE_SCATTER and shape[0] % size != 0):
        raise Undecidable("a first dimension that does not divide by the group size")
    first = shape[0] * size if fact.kind is Kind.ALL_GATHER else shape[0] // size
    new: Shape = (first, *shape[1:])
    return Meta(new, contiguous_strides(new), tensor.dtype, tensor.meta.device)


def _explained(
    state: State, node: fx.Node, fact: CollectiveOp, outputs: list[tuple[int, Meta]], outs: list[Tensor], *, alone: bool
) -> Value:
    bases: list[Tensor | None] = [*outs] or [None] * len(outputs)
    val = node.meta.get("val")
    vals = list(val) if isinstance(val, (tuple, list)) else [val]
    results = []
    for (content, meta), base in zip(outputs, bases, strict=True):
        result = state.tensor(content, meta, node, base)
        if not alone:
            state.worked(node, counts(state.table, content))
        results.append(result)
    for result, said in zip(results, vals, strict=False):
        state.check(node, result, said)
    return tuple(results) if fact.coalesced else results[0]


def _check_target(state: State, node: fx.Node, fact: CollectiveOp, tensor: Tensor, out: Tensor, group: str) -> None:
    """What a collective writes into has no holes: kernels write one piece of memory, or complain. If it is in what the
    collective reads, it is the row of its rank.
    """
    part = {Kind.ALL_GATHER: (tensor, out), Kind.REDUCE_SCATTER: (out, tensor)}.get(fact.kind)
    if part is not None and tensor.root == out.root and state.memory.apart(*part) is not None:
        _in_place(state, node, part, group)
    shape, strides = out.shape, out.meta.strides
    if shape is None or strides is None or not is_dense(shape, strides):
        doubt = "how it lies in memory is not known" if shape is None or strides is None else ""
        text = f"{path_of(node.target)} writes into a tensor that is no one piece of memory"
        state.event("collective", node, text, ("pieces", out.content, strides), doubt)


def _in_place(state: State, node: fx.Node, ends: tuple[Tensor, Tensor], group: str) -> None:
    """A gather that sends part of its own output must send the row of its rank, and a rank has one row in a group; a
    scatter that writes part of its own input must write that row.
    """
    try:
        sent, filled = (_run(state, tensor) for tensor in ends)
    except Undecidable as reason:
        state.event("collective", node, f"works in place on a part of a tensor: {reason}", ("in place", group))
        return
    row = (sent.start - filled.start) // sent.length
    if row * sent.length != sent.start - filled.start or not 0 <= row * sent.length < filled.length:
        text = f"works in place, but on what is no row of the whole: {sent.length} elements from {sent.start}"
        state.event("collective", node, text, ("in place", group, sent, filled))
        return
    known = state.trace.rows.setdefault(group, (row, node.name))
    if known[0] != row:
        text = f"works in place as rank {row} of group '{group}', where '{known[1]}' is rank {known[0]}"
        state.event("collective", node, text, ("in place", group, row, known[0]))


def _run(state: State, tensor: Tensor) -> Run:
    """The run of elements that a tensor is in its storage."""
    runs = state.memory.runs(tensor)
    if len(runs) != 1 or runs[0].length == 0:
        raise Undecidable("it is not one run of elements")
    return runs[0]


def _targets(state: State, written: Any) -> list[Tensor]:
    """What a launch writes, by place: tensors, and what stands for those without a shape."""
    parts = written if isinstance(written, tuple) else (written,)
    whole = [state.hidden.all_in((part,)) for part in parts]
    return [found[0] for found in whole if found]


def _of_unseen(
    state: State, node: fx.Node, fact: CollectiveOp, value: Value, term: int, arguments: dict[str, Any]
) -> Value:
    """The result of a launch that sends, or writes into, values without a shape: a tensor, or one for each of a list.

    Where it is in one of these values, nothing crosses the launch, or its wait.
    """
    table, trace, given = state.table, state.trace, arguments.get(fact.tensor)
    bases = _targets(state, arguments.get(fact.out or ""))
    if isinstance(value, Opaque) and fact.coalesced and isinstance(given, tuple):
        value = tuple(Opaque(table.intern(("out", term, at))) for at in range(len(given)))
    elif isinstance(value, Opaque) and fact.coalesced:
        trace.doubts.setdefault("how many tensors a launch sends that is handed a list without shapes", node.name)
        return value
    parts = value if isinstance(value, tuple) else (value,)
    spread = bases if len(bases) == len(parts) else [None] * len(parts)
    made = tuple(
        state.tensor(table.intern(("array", part.term)), UNKNOWN, node, base) if isinstance(part, Opaque) else part
        for part, base in zip(parts, spread, strict=True)
    )
    value = made if isinstance(value, tuple) else made[0]
    if any(map(state.hidden.has, bases)):
        trace.barriers.append(node.name)
    return value


def _take_off(state: State, node: fx.Node, value: Value, inputs: list[Tensor]) -> None:
    results = tensors_in(value)
    key = ("launch", path_of(node.target), tuple(result.content for result in results))
    flight = Flight(node.name, key, tuple(inputs), len(results))
    for result in results:
        state.memory.fill(flight, result)
    for tensor in inputs:
        state.memory.lend(flight, tensor)


def wait(state: State, node: fx.Node) -> Value | None:
    """The tensor that is waited for, from now on free to be read; None for what is not a tensor.

    A wait for what no launch fills, or fills no more, does nothing. None as well for what is conjugated or negated only
    when it is read, and for a call that is given more than the op takes.
    """
    value = state.resolve(node.args[0] if node.args else node.kwargs.get("tensor"), None)
    state.trace.waits += 1
    if not isinstance(value, Tensor) or len(node.args) + len(node.kwargs) > 1:
        return None
    if is_lazy(state, value):
        return None  # PyTorch waits for a copy, made on the spot, that nobody fills
    storage = state.memory.at(value.root)
    waited = [use for use in state.memory.users(value, reading=False) if use[:2] in storage.filling]
    if not waited:
        state.trace.idle.append(node.name)
    # In a sub-graph, what began outside it may be waited for.
    if state.hidden.has(value) or (state.inner and not waited):
        state.trace.barriers.append(node.name)
    for flight, part, _ in waited:
        doubt = state.memory.apart(part, value)
        if doubt:  # it stays in flight: who reads it now reads what may not be there
            state.event("wait", node, f"may wait for launch '{flight.node}' or not", ("wait", flight.key), doubt)
            flight.doubt = doubt
            continue
        storage.filling.remove((flight, part))
        flight.waits_left -= 1
        for tensor in flight.inputs if flight.waits_left <= 0 else ():
            reading = state.memory.at(tensor.root).reading
            reading[:] = [use for use in reading if use[0] is not flight]
            for other, _, doubt in state.memory.users(tensor, reading=False):
                text = f"launch '{flight.node}', which is waited for here, sends what '{other.node}' still fills"
                state.event("wait", node, text, ("sent", flight.key, other.key), doubt)
    now = state.memory.current(value)
    for source in state.table.sources_of(now.content):
        place(state.trace, node, "wait", source)
    result = state.tensor(now.content, now.meta, node, now)
    state.check(node, result, node.meta.get("val"))
    return result
