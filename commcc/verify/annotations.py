"""What the ``val`` of BEFORE say of results, held against what the ops give in this PyTorch.

Of ops that are not explained, shapes and dtypes come from there for both graphs, so that what is wrong in both alike
would be proved. Calls that look alike are looked at once.

Where sizes are symbols, ops are evaluated for several sets of numbers; what holds for one of them may be what the
graph is for.

Limits: what makes symbols is believed, dtypes under autocast, sizes known only at run time, of which more may be known
than a file tells, and devices. Ops of libraries besides PyTorch's own are not looked at, nor are higher-order ops that
give more or fewer results than their graph, or what an op gives (scans with a carry, ``run_and_save_rng_state``). What
another PyTorch, or a kernel for another device, may well give is a remark: strides, and second results of ops that are
not of the core set.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from commcc.graph.ops import facts, libraries
from commcc.graph.ops.effects import CALLS, WRAPPERS
from commcc.graph.regions import CALL
from commcc.serialization.by_numbers import evaluations
from commcc.serialization.fake_ops import UnknownValue
from commcc.verify.hidden import opaque_in
from commcc.verify.sizes import Meta, Undecidable, mismatch, strides_of
from commcc.verify.subgraphs import misfit
from commcc.verify.terms import Opaque, Tensor, all_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.ops import OpFacts
    from commcc.verify.pair import Pair
    from commcc.verify.trace import State

_UNSAID = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_ASKED = libraries.TESTED | libraries.ARITHMETIC | {"_c10d_functional", "_c10d_functional_autograd", "higher_order"}


def hold_against(state: State, node: fx.Node, fact: OpFacts, arguments: Mapping[str, Any], term: int) -> None:
    """Remember where the ``val`` of a node is not what its op gives. term: that of the call."""
    if fact.body:
        _hold_body_against(state, node, fact, arguments, term)
    target, val = node.target, node.meta.get("val")
    if fact.name.partition(".")[0] not in _ASKED:
        return
    said = [part for part in (val if isinstance(val, (tuple, list)) else (val,)) if isinstance(part, torch.Tensor)]
    if not said:
        return
    seen = ((str(part.dtype), tuple(map(str, part.shape)), str(strides_of(part))) for part in said)
    looks = (id(target), state.casting, *((name, _looks(value)) for name, value in arguments.items()), *seen)
    tags = getattr(target, "tags", ())
    if looks in state.table.judged:
        return
    if _UNSAID.intersection(tags) and not _indexes_by_numbers(arguments):
        return  # a new symbol would come into being
    state.table.judged.add(looks)
    try:
        runs = state.evaluated(node, partial(evaluations, said=said, fixed=state.fixed))
    except (UnknownValue, Undecidable, TypeError, ValueError):  # given what it does not take
        return
    unbacked = any(str(name).startswith("u") for numbers, _, _ in runs for name in numbers)
    tensors = [[part for part in pytree.tree_leaves(result) if isinstance(part, torch.Tensor)] for _, result, _ in runs]
    if any(len(parts) != len(said) for parts in tensors):
        return
    for at in range(len(said)):
        pairs = [(_meta(parts[at]), _meta(told[at])) for parts, (_, _, told) in zip(tensors, runs, strict=True)]
        if state.casting:  # nothing here says what autocast makes of which op
            pairs = [(known._replace(dtype=None), told) for known, told in pairs]
        # Further results, as the random state of attention, are of other shapes in other releases.
        sure = torch.Tag.core in tags or not at or isinstance(val, list)
        _dispute(state, node, pairs, sure=sure, unbacked=unbacked)


def check_allocation(state: State, node: fx.Node, val: Any, term: int) -> None:
    """Memory that only the second graph allocates must be what its ``val`` says.

    Where all of it is overwritten, its operands are compared nowhere else.
    """
    source = state.table.intern(("array", term))
    if not isinstance(val, torch.Tensor) or state.table.metas.get(source):
        return
    said = state.symbols.meta_of(val, source)
    doubt = "how large it is, and how large its val says, are other sums of symbols"
    try:
        meta = state.symbols.meta_of(state.evaluated(node), source)
    except (UnknownValue, Undecidable) as reason:
        meta, doubt = Meta(None, None, None, None), str(reason)
    wrong = mismatch(meta, said)
    if wrong:
        state.event("value", node, f"its val says {wrong}", ("val", source, wrong))
    elif not meta.same(said):
        state.event("value", node, "allocates memory of an unknown size", ("allocated", term), doubt)


def compare_annotations(pair: Pair) -> None:
    """What BEFORE says wrongly is not proved, or a remark where this PyTorch may be another one."""
    for node, (text, sure) in pair.before.disputed.items():
        (pair.report.gap if sure else pair.report.note)("value", node, text)


def note_uses(state: State, graph: fx.Node) -> None:
    """Remember who uses a sub-graph for fixed sizes otherwise than to hand it operands as they are."""
    for user in graph.users:
        if user.op != "call_function" or facts(user.target).name not in CALLS or user.kwargs:
            why = "what it hands a sub-graph that was compared for fixed sizes is not known"
            state.trace.disputed.setdefault(user.name, (why, True))


def _hold_sizes_against(state: State, node: fx.Node) -> None:
    """Remember a call that may hand its sub-graph other sizes than those that this was fixed to."""
    fixed, leaves = state.table.fixed_inputs, pytree.tree_leaves(state.resolve(node.args, None))
    graphs = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Opaque) and leaf.term in state.table.signatures]
    operands = leaves[graphs[-1] + 1 :] if graphs else []
    if facts(node.target).name == CALL:  # behind its sub-graph it names it
        operands = operands[1:]
    for inputs in (inputs for at in graphs for inputs in fixed.get(leaves[at].term, ())):
        if why := misfit(operands, inputs):
            state.trace.disputed.setdefault(node.name, (why, True))


def _hold_body_against(state: State, node: fx.Node, fact: OpFacts, arguments: Mapping[str, Any], term: int) -> None:
    """Remember where inputs of a sub-graph are not what it is handed, and where what is said of its results is not what
    it returns. term: that of the call.
    """
    if state.table.fixed_inputs:
        _hold_sizes_against(state, node)
    signatures = state.table.signatures
    bodies = [signatures[value.term] for value in opaque_in(arguments.values()) if value.term in signatures]
    operands = [tensor.meta for tensor in all_tensors(arguments)]
    if fact.name in WRAPPERS:
        # It is given operands by name, those that are written apart: which input takes which is not said, nor is which
        # graph of a loop is its condition.
        operands = []
        bodies = [body for body in bodies if len(bodies) == 1 or not _is_condition(body[1])]
        if len({tuple(meta.dtype for meta in outputs) for _, outputs in bodies}) > 1:
            return
    val, calls = node.meta.get("val"), fact.name in CALLS
    for inputs, outputs in bodies if calls else bodies[-1:]:  # a loop has its condition first
        handed = list(zip(operands, inputs, strict=True)) if len(operands) == len(inputs) else []
        said = [_meta(part) for part in val if isinstance(part, torch.Tensor)] if isinstance(val, (tuple, list)) else []
        if fact.name in WRAPPERS:  # behind the results is what was written
            said = said[: len(outputs)]
        returned = list(zip(outputs, said, strict=True)) if len(said) == len(outputs) else []
        for known, told in (*handed, *returned):
            # Loops and maps hand on parts.
            handed_on = known if calls else known._replace(shape=None)
            _dispute(state, node, [(handed_on, told._replace(strides=None))])
        # Maps and scans stack what their graph gives.
        state.returned[term] = outputs if calls else [meta._replace(shape=None) for meta in outputs]


def _is_condition(outputs: Sequence[Meta]) -> bool:
    return [meta.dtype for meta in outputs] == [torch.bool]


def hold_element_against(state: State, node: fx.Node, term: int, index: int) -> None:
    """The same of one of the results of a call of which nothing is said itself."""
    outputs, val = state.returned.get(term, ()), node.meta.get("val")
    if isinstance(val, torch.Tensor) and 0 <= index < len(outputs):
        _dispute(state, node, [(outputs[index], _meta(val)._replace(strides=None))])


def _indexes_by_numbers(arguments: Mapping[str, Any]) -> bool:
    listed = [part for value in arguments.values() if isinstance(value, tuple) for part in all_tensors(value)]
    return bool(listed) and not any(part.dtype in (torch.bool, torch.uint8) for part in listed)


def _meta(val: torch.Tensor) -> Meta:
    return Meta(tuple(val.shape), strides_of(val), val.dtype, None)


def _looks(value: Any) -> Any:
    """All that the shape of a result can depend on."""
    if isinstance(value, Tensor):
        return value.meta
    if isinstance(value, (tuple, list)):
        return tuple(map(_looks, value))
    return repr(value)


def _dispute(
    state: State, node: fx.Node, pairs: list[tuple[Meta, Meta]], *, sure: bool = True, unbacked: bool = False
) -> None:
    """Remember what a ``val`` gets wrong of a result, if anything.

    pairs: what is known and what is told, for each set of numbers; wrong is only what is wrong for all of them.
    sure: but for strides. unbacked: more may be known of sizes than a file tells (that some add up to a number).
    """
    wrong = [_difference(*pair) for pair in pairs]
    if not wrong or not all(wrong):
        return
    if unbacked and any(len(known.shape or ()) == len(told.shape or ()) for known, told in pairs):
        return
    text = f"its val in BEFORE says {wrong[0]} by this PyTorch; what rests on it was taken from there"
    state.trace.disputed.setdefault(node.name, (text, sure and not any(w.startswith("strides") for w in wrong)))


def _difference(known: Meta, told: Meta) -> str:
    """What is wrong, in words. Sizes that are symbols are left out, and strides with them: comparing symbols would
    decide what they are.
    """
    if known.shape is None or told.shape is None:
        known, told = (meta._replace(shape=None, strides=None) for meta in (known, told))
    else:
        pairs = list(zip_longest(known.shape, told.shape, fillvalue=0))
        plain = [type(one) is int and type(other) is int for one, other in pairs]
        steps = (*(known.strides or ()), *(told.strides or ()))
        laid = len(known.shape) == len(told.shape) and all(type(number) is int for number in steps) and all(plain)
        known, told = (
            meta._replace(
                shape=tuple(size if own else -1 for size, own in zip(meta.shape or (), plain, strict=False)),
                strides=meta.strides if laid else None,
            )
            for meta in (known, told)
        )
    return mismatch(known._replace(device=None), told._replace(device=None))
