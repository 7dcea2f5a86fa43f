"""Which values of a graph may be others in the next run: those behind ops that do not give the same twice.

::

    sums = Sums()
    steps = tuple(map(sums.step, prepared.steps))     # the same steps, which leave sums of what they read and give
    ...                                               # run them
    first, second = sums.taken(), ...                 # of one run each
    behind(prepared, varying(first, second))          # {'output[3]', 'input p7'}

Kernels of a device that add atomically round in another order each time (the backward of attention, of embeddings).
What comes of it may round to the same number in two runs and not in a third, so that runs alone do not tell which
values these are. An op that reads the same twice and gives something else is such an op, and so is every other node
of its kind.

Limits: an op that happens to give the same in both runs at every place is not found. Sub-graphs that communicate,
launches and waits are not looked at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from commcc.graph.ops import op_name
from commcc.graph.ops.undeclared import ALLOCATIONS
from commcc.replay.values import is_freed, tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.replay.prepare import Prepared, Step

#: Whole numbers as large as an element.
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Seen(NamedTuple):
    """One call: a sum of the bits of each tensor that it read, and of each that it gave."""

    read: tuple[int, ...]
    gave: tuple[int, ...]


class Sums:
    """Steps of one program that leave sums."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def step(self, step: Step) -> Step:
        """The same step; one that only looks at what is there, allocates or communicates leaves nothing."""
        passive = step.looks or step.asks or op_name(step.node.target) in ALLOCATIONS
        if passive or step.fact is not None or step.waits or step.meets:
            return step

        def call(*args: Any, **kwargs: Any) -> Any:
            read = _sums((args, kwargs))
            result = step.call(*args, **kwargs)
            self._seen[step.name] = read, _sums(result)
            return result

        return replace(step, call=call)

    def taken(self) -> dict[str, Seen]:
        """What the last run left, by node; its device is waited for."""
        result = {name: Seen(*(tuple(map(int, sums)) for sums in both)) for name, both in self._seen.items()}
        self._seen.clear()
        return result


def varying(one: Mapping[str, Seen], other: Mapping[str, Seen]) -> set[str]:
    """Nodes that read the same in both runs and gave something else."""
    return {
        name
        for name, seen in one.items()
        if name in other and seen.read == other[name].read and seen.gave != other[name].gave
    }


def behind(prepared: Prepared, nodes: set[str]) -> set[str]:
    """Values that depend on these nodes, or on others of their kind: ``output[3]``, ``input p7``."""
    index = prepared.index
    kinds = {index.ops[index.position[name]] for name in nodes}
    reached: set[int] = set()
    storages: set[int] = set()
    for node, preds in enumerate(index.data_preds):
        held = {storage for pred in preds for storage in index.storages[pred]}
        if index.ops[node] in kinds or not reached.isdisjoint(preds) or not storages.isdisjoint(held):
            written = index.writes.get(node, ())
            reached.update((node, *written))
            storages.update(storage for changed in (node, *written) for storage in index.storages[changed])
    outputs = (f"output[{place}]" for place, node in enumerate(index.outputs) if node in reached)
    inputs = (f"input {name}" for name in prepared.written if index.position[name] in reached)
    return {*outputs, *inputs}


def _sums(values: Any) -> list[torch.Tensor]:
    """A sum of the bits of every tensor in there, each a number on its device."""
    return [_sum(tensor) for tensor in tensors_in(values) if not is_freed(tensor)]


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg()
    real = torch.view_as_real(plain) if plain.is_complex() else plain
    return real.view(_WHOLE[real.itemsize]).sum(dtype=torch.int64)
