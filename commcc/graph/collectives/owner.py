"""The module that a collective serves.

1. metadata of the launch, its waits and what it sends;
2. for a gather, metadata of what uses the result, for a reduction of what makes the input, a few ops away;
3. the parameter: the descriptor of the input that is gathered, or of the gradient that is returned.

    ParamAOTInput(target='layers.0.wq.parametrizations.weight.original')  ->  layers.0.wq
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commcc.graph.index.modules import clean_path

if TYPE_CHECKING:
    from commcc.graph.index import GraphIndex, Launch

#: Nodes to look at beyond the launch; casts, views and pads are few.
_NEAR = 30
_TARGET = re.compile(r"(?:Param|Buffer)AOTInput\(target=(?:'([^']+)'|\"([^\"]+)\")")


def module_of(index: GraphIndex, number: int, launch: Launch, derived: str | None, anchor: int | None) -> str | None:
    """The cleaned path of the module; None when nothing tells it.

    derived, anchor: as in :class:`commcc.graph.collectives.Collective`; without ``derived`` only the metadata counts.
    """
    near = (number, *launch.waits, *launch.inputs)
    own = next((index.modules[n] for n in near if index.modules[n] is not None), None)
    if own is not None or derived is None:
        return own
    gradient = derived == "terminal"
    starts, neighbours = (launch.inputs, index.data_preds) if gradient else (launch.waits, index.users)
    return _nearest(index, starts, neighbours) or _parameter(index, anchor, gradient=gradient)


def _nearest(index: GraphIndex, starts: tuple[int, ...], neighbours: tuple[tuple[int, ...], ...]) -> str | None:
    """The first module met from ``starts``, nearest nodes first, through ops of one input and up to the next one."""
    queue, seen = list(starts), set(starts)
    for at in range(_NEAR):
        if at >= len(queue):
            break
        path = index.modules[queue[at]]
        if path is not None:
            return path
        passes = len(index.data_preds[queue[at]]) == 1
        fresh = [n for n in neighbours[queue[at]] if n not in seen] if passes else []
        seen.update(fresh)
        queue += fresh
    return None


def _parameter(index: GraphIndex, anchor: int | None, *, gradient: bool) -> str | None:
    """The module that holds the parameter, from descriptors."""
    if anchor is None:
        return None
    descriptor = index.output_descriptors[anchor] if gradient else index.descriptors.get(anchor)
    match = _TARGET.search(descriptor or "")
    if match is None:
        return None
    target = match[1] or match[2]
    path = clean_path(target)
    return path if ".parametrizations." in target else path.rpartition(".")[0] or None
