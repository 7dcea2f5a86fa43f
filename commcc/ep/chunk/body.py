"""Which nodes of a module work on its tokens, in one direction.

    draft = draft_of(view, "layers.1.moe", backward=False, known=frozenset())
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

if TYPE_CHECKING:
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


def draft_of(view: View, root: str, backward: bool, known: frozenset[int], grid: Grid | None = None) -> Draft:
    """Without a grid all token data counts, with one only tensors that hold tokens of that grid."""
    body: set[int] = set()
    enters: dict[int, int | None] = {}
    for node in view.near(root):
        if not _candidate(view, node, root, backward, body, known):
            continue
        preds = view.index.data_preds[node]
        inside = [pred for pred in preds if pred in body or pred in known]
        outside = _entering(view, [pred for pred in preds if pred not in body and pred not in known], grid)
        enters.update(outside)
        if inside or outside:
            body.add(node)
    if grid is not None:
        body |= _made_for(view, root, backward, body, grid)
    return Draft(root, backward, known, sorted(body), dict(sorted(enters.items())))


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


def _made_for(view: View, root: str, backward: bool, body: set[int], grid: Grid) -> set[int]:
    """Constants of the grid's size that only the body uses."""
    made: set[int] = set()
    # What the body writes to is each chunk's own, whatever its size.
    written = {target for node in body for target in view.index.writes.get(node, ())}
    for node in reversed(view.near(root)):
        note, shape = view.notes[node], getattr(view.nodes[node].meta.get("val"), "shape", None)
        if not (view.constant[node] and view.calls(node) and note.backward == backward and view.within(node, root)):
            continue
        used_inside = all(user in body or user in made for user in view.index.users[node] if view.alive[user])
        sized = shape is not None and grid.made_for(shape) is not None
        if view.alive[node] and used_inside and (sized or node in written):
            made.add(node)
    return made
