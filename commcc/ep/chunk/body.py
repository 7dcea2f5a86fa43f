"""Which nodes of a module work on its tokens, in one direction.

    draft = draft_of(view, "layers.1.moe", None)
    draft.body                 # numbers of the nodes to be cloned for each chunk
    draft.enters               # activations from outside that they read

1. Candidates are the calls inside the module; a call without a module belongs to it when all token data that it
   reads is made inside.
2. Of these, the body has what token data reaches. Gathers of parameters are not reached, and shared by the chunks.
3. Constants made for the tokens (index tables, zeros) are in it when nothing else uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commcc.graph import ops
from commcc.graph.ops.row_wise import ROW_RULES, RowRule

if TYPE_CHECKING:
    from collections.abc import Collection

    from commcc.ep.chunk.grid import Grid
    from commcc.ep.chunk.view import View


@dataclass
class Draft:
    """A region while it is planned. known: nodes of the other direction's body, whose values exist for each chunk."""

    root: str
    backward: bool
    known: frozenset[int]
    body: list[int]
    enters: dict[int, int | None] = field(default_factory=dict)


def draft_of(
    view: View, root: str, forward: Draft | None, grid: Grid | None = None, whole: Collection[int] = ()
) -> Draft:
    """Of the backward pass where a draft of the forward pass is given. Without a grid all token data counts, with one
    only tensors that hold tokens of that grid. whole: nodes that need all tokens and are not cut, wherever they are.
    """
    backward, known = forward is not None, frozenset(forward.body if forward is not None else ())
    body: set[int] = set()
    enters: dict[int, int | None] = {}
    bare = _Bare(view, forward) if forward is not None and view.bare else None
    for node in view.near(root):
        if node in whole:
            continue
        if not (node in bare.body if bare else _candidate(view, node, root, backward, body, known)):
            continue
        preds = view.index.data_preds[node]
        inside = [pred for pred in preds if pred in body or pred in known]
        outside = _entering(view, [pred for pred in preds if pred not in body and pred not in known], grid)
        enters.update(outside)
        if inside or outside:
            body.add(node)
    if grid is not None:
        body |= _own_constants(view, root, backward, body, grid)
    return Draft(root, backward, known, sorted(body), dict(sorted(enters.items())))


class _Bare:
    """Which backward nodes are a module's, in a graph that says so of none: those that read what its forward pass has
    made for itself, its parameters, or nothing but its tokens and what these nodes make.
    """

    def __init__(self, view: View, forward: Draft) -> None:
        self.view, self.known = view, frozenset((*forward.body, *forward.enters))
        inside = set(forward.body)
        # What leaves the module is read by gradients of others too.
        self.own = {node for node in inside if all(user in inside for user in self._forward_users(node))}
        for node in reversed(range(len(view.index))):
            users = self._forward_users(node)
            shared = view.data[node] or view.notes[node].backward or not users
            if not shared and all(user in inside or user in self.own for user in users):
                self.own.add(node)
        for node in range(len(view.index)):
            preds = view.index.data_preds[node]
            if view.notes[node].backward and not view.data[node] and preds and self.own.issuperset(preds):
                self.own.add(node)
        again = view.twins
        self.own |= {node for node, twin in again.items() if twin in self.own}
        self.known |= {node for node, twin in again.items() if twin in self.known}
        self.body = {node for node, twin in again.items() if twin in inside and self._calls(node)}
        for node in range(len(view.index)):
            if self._has(node):
                self.body.add(node)
        self.entering = {tensor.numel for node in forward.enters if (tensor := view.index.tensors[node]) is not None}
        for node in reversed(range(len(view.index))):
            self._enter(node)
            self._leave(node)

    def _enter(self, node: int) -> None:
        """A gradient comes in as it lies outside, with the tokens first: turned round only inside."""
        users = [user for user in self.view.index.users[node] if self.view.alive[user]]
        turns = ROW_RULES.get(ops.op_name(self.view.nodes[node].target)) in (
            RowRule.TURN,
            RowRule.SWAP,
            RowRule.PERMUTE,
        )
        if turns and users and self._calls(node) and self.body.issuperset(users):
            self.body.add(node)

    def _leave(self, node: int) -> None:
        """What leaves does so before it is seen otherwise: outside it may be samples again."""
        view, index = self.view, self.view.index
        users = [user for user in index.users[node] if view.alive[user]]
        preds = index.data_preds[node]
        reads = [pred for pred in preds if view.data[pred]]
        if node not in self.body or self.body.intersection(users) or len(reads) != 1 or self.own.intersection(preds):
            return
        result, read = index.tensors[node], index.tensors[reads[0]]
        if reads[0] not in self.body or result is None or read is None or result.numel != read.numel:
            return
        # The gradient of a parameter is added up in the dtype that it is rounded to; that of tokens never is.
        if result.dtype == read.dtype or result.numel in self.entering:
            self.body.discard(node)

    def _calls(self, node: int) -> bool:
        view = self.view
        return view.notes[node].backward and view.calls(node) and view.alive[node] and view.data[node]

    def _forward_users(self, node: int) -> list[int]:
        view = self.view
        return [u for u in view.index.users[node] if view.alive[u] and view.calls(u) and not view.notes[u].backward]

    def _has(self, node: int) -> bool:
        view, body = self.view, self.body
        if not self._calls(node):
            return False
        if node in view.index.launches and not view.exchanges(node):
            return False
        preds = view.index.data_preds[node]
        reads = [pred for pred in preds if view.data[pred]]
        closed = any(pred in body for pred in reads) and all(pred in body or pred in self.known for pred in reads)
        return closed or any(pred in self.own for pred in preds)


def _entering(view: View, preds: list[int], grid: Grid | None) -> dict[int, int | None]:
    """Those of ``preds`` that hold token data, and the dimension of the tokens where that is known."""
    data = [pred for pred in preds if view.data[pred] and view.index.tensors[pred] is not None]
    if grid is None:
        return dict.fromkeys(data)
    dims = {pred: grid.dim_of(view.nodes[pred].meta["val"].shape) for pred in data}
    return {pred: dim for pred, dim in dims.items() if dim is not None}


def _candidate(view: View, node: int, root: str, backward: bool, body: set[int], known: frozenset[int]) -> bool:
    note = view.notes[node]
    if note.backward != backward or not view.calls(node) or not view.alive[node]:
        return False
    if note.module and not ops.is_getitem(view.nodes[node].target):
        return view.within(node, root)
    reads = [pred for pred in view.index.data_preds[node] if view.data[pred]]
    inside = bool(reads) and all(pred in body or pred in known for pred in reads)
    if note.module:
        return inside or view.within(node, root)
    return inside and node not in view.index.launches


def _own_constants(view: View, root: str, backward: bool, body: set[int], grid: Grid) -> set[int]:
    """Constants of the grid's size that only the body uses."""
    constants: set[int] = set()
    # What the body writes to is each chunk's own, whatever its size.
    written = {target for node in body for target in view.index.writes.get(node, ())}
    for node in reversed(view.near(root)):
        note, shape = view.notes[node], getattr(view.nodes[node].meta.get("val"), "shape", None)
        if not (view.constant[node] and view.calls(node) and note.backward == backward and view.within(node, root)):
            continue
        used_inside = all(user in body or user in constants for user in view.index.users[node] if view.alive[user])
        sized = shape is not None and grid.factory_dim(shape) is not None
        if view.alive[node] and used_inside and (sized or node in written):
            constants.add(node)
    return constants
