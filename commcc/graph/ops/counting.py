"""Ops that count how often each of the numbers 0, 1, 2, ... comes up, and how many numbers have a count of their own.

    histc(x, bins=4, min=0, max=4)      4, and so with max=3: the last bin takes both of its ends
    bincount(x, minlength=4)            4, if no number is larger: else the result is longer

Limits: of numbers that are no whole ones nothing is said, nor of more bins than float32 keeps apart.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from commcc.graph.ops.names import argument, op_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx

#: The op whose result is as long as its numbers say.
BY_LENGTH = "aten.bincount"
#: Beyond this, edges of bins that are a little smaller than 1 may be rounded to the next number.
_MOST = 1024


def bins_of(arguments: Mapping[str, Any]) -> int | None:
    """How many numbers, from 0, have a bin of their own; None where a bin is of something else."""
    if "minlength" in arguments:
        return arguments["minlength"] if arguments.get("weights") is None else None
    bins, least, most = (arguments.get(name) for name in ("bins", "min", "max"))
    if type(bins) is not int or least != 0:
        return None
    return bins if most == bins or (most == bins - 1 and 1 < bins <= _MOST) else None


def spans_data(arguments: Mapping[str, Any]) -> bool:
    """Whether bins lie between the least and the largest number that there is, as those of ``histc`` with one number
    for both ends do; also where the ends are not known.
    """
    ends = [arguments[name] for name in ("min", "max") if name in arguments]
    known = all(isinstance(end, (bool, int, float)) for end in ends)
    return bool(ends) and (not known or ends[0] == ends[-1])


def is_as_long(node: fx.Node, bins: int | None) -> bool:
    """Whether a count is known to be so long: it says so, or else an exchange of it in parts of these sizes fails."""
    sizes = list(node.meta["val"].shape)
    if all(type(size) is int for size in sizes):
        return sizes == [bins]
    sent = [argument(user, "input_split_sizes") for user in node.users if op_name(user.target) == _EXCHANGE]
    return any(parts and all(type(part) is int for part in parts) and sum(parts) == bins for parts in sent)


_EXCHANGE = "_c10d_functional.all_to_all_single"


def marks(shape: Sequence[Any], chosen: object) -> int | None:
    """Of marks ``[rows, ..., numbers]`` summed over all dimensions but the last one, those of a row; else None."""
    between = shape[1:-1]
    whole = len(shape) > 1 and chosen == set(range(len(shape) - 1)) and all(type(size) is int for size in between)
    return prod(between) if whole else None


def marked(arguments: Mapping[str, Any], shape: Sequence[Any], of: Sequence[Any]) -> int | None:
    """How many places a scatter of ones marks in the last dimension of ``shape``; None where it does something else.

    of: sizes of the numbers of these places.
    """
    ones = type(arguments.get("value")) in (bool, int) and arguments["value"] == 1 and "reduce" not in arguments
    last = len(shape) > 1 and arguments["dim"] % len(shape) == len(shape) - 1 and type(of[-1]) is int
    return of[-1] if ones and last and of[1:-1] == shape[1:-1] else None
