"""What tensors hold that are made out of nothing: the same number everywhere, or 0, 1, 2, ...

filling(full([8], 1))     1, as of ones([8])
counts_to(iota(8))        8, as of arange(8)
"""

from __future__ import annotations

from typing import Any

from torch import fx

from commcc.graph.ops.constants import COUNTING_UP, FILLED
from commcc.graph.ops.names import argument, op_name

_NUMBERS = {"zeros": 0, "ones": 1}


def filling(node: fx.Node) -> Any:
    """What all elements of a factory's result are; None where they are not alike, or not written to."""
    name = op_name(node.target)
    if name not in FILLED:
        return None
    kind = name.removeprefix("aten.").removeprefix("new_").removesuffix("_like")
    return argument(node, "fill_value") if kind == "full" else _NUMBERS.get(kind)


def is_filled(node: object, number: int) -> bool:
    """Whether a node makes a tensor of nothing but this number."""
    value = filling(node) if isinstance(node, fx.Node) else None
    return isinstance(value, (bool, int, float)) and value == number


def counts_to(node: fx.Node) -> Any:
    """How far a node counts 0, 1, 2, ...; None where it gives something else."""
    end = COUNTING_UP.get(op_name(node.target), "")
    plain = (argument(node, "start", 0), argument(node, "step", 1)) == (0, 1)
    return argument(node, end) if end and plain else None
