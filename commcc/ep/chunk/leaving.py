"""What leaves a body, and how it becomes whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

from commcc.ep.chunk.refuse import named, refuse
from commcc.ep.chunk.state import OVER_TOKENS, State
from commcc.graph import ops
from commcc.plan import Join

if TYPE_CHECKING:
    from torch import fx

    from commcc.ep.chunk.body import Draft
    from commcc.ep.chunk.region import Trial
    from commcc.ep.chunk.view import View

#: What to do with one half of a step.
JOINT = "dump forward and backward as one graph, as it is before the partitioner (TORCH_LOGS=aot_joint_graph)"
#: Bytes of an integer that holds any number of tokens.
_FITS = 4
PROOFS = {
    "rows": "the chunks are slices of it along this dimension",
    "sum": "every chunk has its part of the sum",
    "last": "the last of a chain of writes",
}


def kept_whole(view: View, trial: Trial, members: set[int]) -> set[int]:
    """Nodes at the end of a body that run once on the whole: behind a reduction, rounding of a sum, and views in front.

    Parts of a sum are added up before they are rounded, as the whole does it. Then up from everything that is used
    outside, where strides and memory of a view count, and from what runs once: nodes of one operand that is a part of
    a sum of the same dtype.
    """
    whole, index = set(trial.after) | _rounded(view, trial, members), view.index
    ends = [node for node in members if any(user not in members and view.alive[user] for user in index.users[node])]
    ends += [pred for node in whole for pred in index.data_preds[node]]
    for end in sorted(set(ends), reverse=True):
        node = end
        while node in members and _follows(view, trial, members | whole, node, whole):
            whole.add(node)
            node = index.data_preds[node][0]
    return whole & members


def _rounded(view: View, trial: Trial, members: set[int]) -> set[int]:
    """Nodes that give parts of a sum another dtype in which they are rounded, and what is made of these.

    None that something else of a chunk reads: only where all that comes behind is a sum can it run once.
    """
    index, states, late = view.index, trial.states, set[int]()
    for node in sorted(members, reverse=True):
        inside = any(user in members and user not in late for user in index.users[node] if view.alive[user])
        acts = node in index.stays or node in index.launches or node in index.wait_of
        # A sum of sums, and of what all chunks share.
        own = [pred for pred in index.data_preds[node] if pred in members or states.get(view.nodes[pred]) is not None]
        if own and not inside and not acts and all(_is_sum(states.get(view.nodes[n])) for n in (node, *own)):
            late.add(node)
    rounded: set[int] = set()
    for node in sorted(late):
        preds = index.data_preds[node]
        if rounded.intersection(preds) or any(_rounds(view, trial, pred, node) for pred in preds):
            rounded.add(node)
    return rounded


def _is_sum(state: object) -> bool:
    return isinstance(state, State) and state.kind == "sum"


def _rounds(view: View, trial: Trial, source: int, node: int) -> bool:
    """Whether a sum is in another dtype behind a node, that does not hold all that it was before.

    No dtype does of integers: what has wrapped around in a few bits is not what would have in more.
    """
    before, after = (view.nodes[number].meta.get("val") for number in (source, node))
    if not (isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)):
        return False
    if before.device != after.device or not _is_sum(trial.states.get(view.nodes[source])):
        return False
    floats = before.dtype.is_floating_point and after.dtype.is_floating_point
    return before.dtype != after.dtype and (not floats or torch.promote_types(before.dtype, after.dtype) != after.dtype)


def check_widened(view: View, trial: Trial, members: set[int]) -> None:
    """Refuse what widens a part of a sum in small integers and cannot wait until all of it is added up.

    How many tokens there are fits in four bytes: these may be widened.
    """
    for number in sorted(members):
        node, val = view.nodes[number], view.nodes[number].meta.get("val")
        state = trial.states.get(node)
        if not isinstance(val, torch.Tensor) or not isinstance(state, State) or state.kind not in ("sum", "last"):
            continue
        for source in node.all_input_nodes:
            small = source.meta.get("val")
            if not (isinstance(small, torch.Tensor) and _is_sum(trial.states.get(source))):
                continue
            few_bits = not small.dtype.is_floating_point and small.dtype.itemsize < _FITS
            if few_bits and small.dtype != val.dtype:
                old, new = (str(dtype).removeprefix("torch.") for dtype in (small.dtype, val.dtype))
                what = f"makes {new} of '{source.name}', a sum over tokens that may have wrapped around in {old}"
                refuse(trial.root, node, what, "sum in the dtype that is wanted: x.sum(dtype=...)")


def _follows(view: View, trial: Trial, members: set[int], node: int, whole: set[int]) -> bool:
    index = view.index
    if node in whole or len(index.data_preds[node]) != 1 or node in index.stays:
        return False
    source = index.data_preds[node][0]
    state, before, after = trial.states.get(view.nodes[source]), index.tensors[source], index.tensors[node]
    if source not in members or not isinstance(state, State) or state.kind != "sum" or before is None or after is None:
        return False
    inside = any(user in members and user not in whole and view.alive[user] for user in index.users[node])
    return not inside and (before.dtype, before.device) == (after.dtype, after.device)


def leaving(view: View, trial: Trial, draft: Draft, inside: set[int]) -> tuple[Join, ...]:
    """How every value that is used outside becomes whole. inside: both bodies, whose nodes read chunks."""
    joins = []
    for number in draft.body:
        users = [user for user in view.index.users[number] if user not in inside and view.alive[user]]
        if not users:
            continue
        node = view.nodes[number]
        _check_rewritten(view, draft, number, users, inside)
        state = trial.states.get(node)
        if not isinstance(state, State) or state.kind not in PROOFS:
            _refuse(view, draft, node, users, state)
        if state.kind == "rows" or (state.kind == "sum" and ops.facts(node.target).views):
            _check_memory(view, draft, number, inside)
        joins.append(Join(number, state.kind, state.dim, PROOFS[state.kind]))
    return tuple(joins)


def _check_rewritten(view: View, draft: Draft, number: int, users: list[int], inside: set[int]) -> None:
    """What leaves is copied where it is computed: a later write on one side would not be seen on the other."""
    index = view.index
    writes = [
        node
        for node, targets in index.writes.items()
        if node > number and any(set(index.storages[number]) & set(index.storages[target]) for target in targets)
    ]
    late = next((node for node in writes if node in inside and max(users) > node), None)
    if late is not None:
        what = f"is used outside the region by {named(view.nodes[user] for user in users)} after '{index.names[late]}'"
        hint = f"use the result of '{index.names[late]}' there"
        refuse(draft.root, view.nodes[number], f"{what} has written to it", hint)
    readers = {n for n in view.sharing(number) if n in inside}
    outer = next((node for node in writes if node not in inside), None)
    if outer is not None and any(user > outer and user in inside for n in readers for user in index.users[n]):
        what = f"is written by '{index.names[outer]}' outside the region and read inside after that"
        refuse(draft.root, view.nodes[number], what, "write to a copy outside the module")


def _check_memory(view: View, draft: Draft, number: int, inside: set[int]) -> None:
    """Chunks are put together in new memory: neither a caller may see that, nor what asks how a tensor lies, nor who
    reads another view of what is written.
    """
    index, node = view.index, view.nodes[number]
    own = set(index.storages[number])
    # What lies otherwise than joined chunks, as far as that goes.
    strided, rest = {number}, [number]
    while rest:
        at = rest.pop()
        tensor = index.tensors[at]
        for user in index.users[at] if tensor is not None and not tensor.contiguous else ():
            if user not in inside and user not in strided:
                strided.add(user)
                rest.append(user)
    seen = next((n for n in sorted(strided - {number}) if index.ops[n] == "output"), None)
    asks = (user for at in strided for user in index.users[at] if user not in inside)
    asking = next((user for user in asks if ops.facts(view.nodes[user].target).storage), seen)
    if asking is not None:
        what = f"lies in memory otherwise than what is put together of chunks, which '{index.names[asking]}' shows"
        refuse(draft.root, node, what, "make it contiguous in the module, or leave this module whole")
    shown = [other for other in index.output_slots if own.intersection(index.storages[other])]
    outer = [n for n in view.sharing(number) if n not in inside and index.ops[n] == "placeholder"]
    others = sorted({*outer, *shown} - {number})
    if shown and others:
        what = f"is returned, or a view of it, in the memory of '{index.names[others[0]]}'; joined chunks are a copy"
        refuse(draft.root, node, what, "return a copy of it (clone)")
    targets = ((at, own & set(index.storages[target])) for at, written in index.writes.items() for target in written)
    first = min((at for at, met in targets if met and at not in inside), default=len(view.nodes))
    # All that leaves in this memory gets memory of its own.
    apart = {n: [user for user in index.users[n] if user not in inside] for n in view.sharing(number) if n in inside}
    leave = [n for n, users in apart.items() if users]
    if len(leave) > 1 and any(user > first for n in leave for user in apart[n]):
        what = f"is written by '{index.names[first]}' in the memory of {named(view.nodes[n] for n in leave)}"
        refuse(draft.root, node, f"{what}, which chunks have copies of", "write to a copy outside the module")


def _refuse(view: View, draft: Draft, node: fx.Node, users: list[int], state: object) -> NoReturn:
    if isinstance(state, State) and state.kind == "routed":
        what, hint = "holds the tokens of a chunk in an order of its own", "keep what uses it inside the module"
    elif isinstance(state, State) and state.kind == "folded":
        what = f"has its tokens in {state.apart} blocks in dimension {state.dim}: chunks do not lie side by side there"
        hint = "take them apart inside the module , or use dim=batch"
    else:
        why = state.why if isinstance(state, State) and state.why else "an op that is not known"
        mixes = (
            "which mixes tokens" if why.endswith(OVER_TOKENS) else "of which no rule says that it keeps tokens apart"
        )
        what = f"cannot be made whole from chunks: it depends on {why}, {mixes}"
        hint = "keep what uses it inside the module, or choose a smaller module"
    folded = isinstance(state, State) and state.kind == "folded"
    whole_step = any(view.exchanges(launch) and view.notes[launch].backward for launch in view.index.launches)
    if not (folded or whole_step) and any(view.index.ops[user] == "output" for user in users):
        hint = f"what is saved for a backward graph has to be whole: {JOINT}"
    users_text = named(view.nodes[user] for user in users)
    mixer = state.mixer if isinstance(state, State) else None
    refuse(draft.root, node, f"is used outside the region by {users_text}, but {what}", hint, mixer)
