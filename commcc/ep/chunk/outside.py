"""What comes into a module with nothing of single tokens left, but is made of them: how many each expert gets, for one.

router -> choice [tokens, k] ---------------> rows of the module
                -> marks [tokens, experts] -> counts [experts] -> how many tokens it exchanges
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.ep.chunk.grid import infer
from commcc.graph import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.ep.chunk.body import Draft
    from commcc.ep.chunk.view import View

#: From one token to counts it is a few nodes; more of them is another module.
_MOST_NODES = 32


@dataclass(frozen=True)
class Counted:
    """entering: what comes in. around: the module that holds what makes it too. nodes: what makes it of values that
    hold tokens; empty where that does more than compute.
    """

    entering: int
    nodes: frozenset[int]
    around: str


def counted_outside(view: View, root: str, drafts: Sequence[Draft], policy: str) -> Counted | None:
    """The first such value that an exchange of the module depends on; None where there is none."""
    inside = {node for draft in drafts for node in draft.body}
    entering = [node for draft in drafts for node in draft.enters if node not in inside]
    grid = infer([tuple(view.nodes[node].meta["val"].shape) for node in entering], policy)
    if grid is None:
        return None

    def holds_tokens(node: int) -> bool:
        shape = getattr(view.nodes[node].meta.get("val"), "shape", None)
        return shape is not None and grid.dim_of(shape) is not None

    without = [node for node in entering if not holds_tokens(node) and _decides(view, node, inside)]
    if not without:
        return None
    counted: set[int] = set()
    stack = list(without)
    while stack:
        node = stack.pop()
        if not view.calls(node) or _acts(view, node) or node in inside or len(counted) > _MOST_NODES:
            return Counted(without[0], frozenset(), _around(view, without[0], root))
        counted.add(node)
        for pred in view.index.data_preds[node]:
            if not view.data[pred] or pred in counted:
                continue
            # Marks of what each token chose, whole numbers or the zeros to begin with, go along up to the choice: that
            # they are such marks is what can be proved.
            tensor = view.index.tensors[pred]
            marks = view.calls(pred) and pred not in entering
            marks = marks and (
                not ops.facts(view.nodes[pred].target).reads or (tensor is not None and "float" not in tensor.dtype)
            )
            if marks or not holds_tokens(pred):
                stack.append(pred)
    return Counted(without[0], frozenset(counted), _around(view, without[0], root))


def _acts(view: View, node: int) -> bool:
    """Whether a node does more than compute, or write to what was computed."""
    index = view.index
    if node in index.launches or ops.draws(view.nodes[node]):
        return True
    fetched = [target for target in index.writes.get(node, ()) if not view.calls(view.sharing(target)[0])]
    return bool(fetched) or (node in index.stays and node not in index.writes)


def _decides(view: View, node: int, inside: set[int]) -> bool:
    """Whether an exchange of the module depends on it through what has no tokens of its own: its sizes."""
    seen, stack = {node}, [node]
    while stack:
        for user in view.index.users[stack.pop()]:
            launch = view.index.launches.get(user)
            if launch is not None and view.exchanges(user) and seen.intersection(launch.splits):
                return True
            if user in inside and user not in seen:
                seen.add(user)
                stack.append(user)
    return False


def _around(view: View, node: int, root: str) -> str:
    """The smallest module that holds the module and what makes the value."""
    parts = view.notes[node].module.split(".")
    common: list[str] = []
    for one, other in zip(root.split("."), parts, strict=False):
        if one != other:
            break
        common.append(one)
    return ".".join(common) or root
