"""What the ops of a graph ask of its inputs: indices within extents, group ends in order, positive divisors.

::

    constraints_of(placeholder)
    # InputConstraints(low=0, high=128, why="'embedding' (aten.embedding)")

An input that adds up to what a square root is taken of is above zero. An integer's way is followed through views,
casts, copies, collectives and arithmetic with constants, up to the ops that index with it; the strictest of several
bounds counts. What passes through a mask (``where``) is bounded only where other bounds allow it, since the mask
keeps what is outside away from the index.

Limits: indices that the graph works out from data are the graph's own; ops of other libraries ask for nothing.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from commcc.graph.ops import argument, argument_names, collective_of, is_getitem, is_wait, op_name
from commcc.graph.ops.arithmetic import ADDITIVE, GROWING, MASKS, POSITIVE, SCALING
from commcc.graph.ops.effects import NUMBERS, RANDOM_WRAPPERS
from commcc.graph.ops.indexing import BY_DIMENSION, CLASSES, INDEXED, MASKED, ONCE, ONCE_OR_ADDED
from commcc.graph.ops.products import GROUPED
from commcc.graph.ops.views import PASSING
from commcc.graph.program import attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import fx, nn

#: Ops on lists of tensors do to each what the op of the rest of the name does.
_LISTS = "aten._foreach_"
#: The number for a size, symbolic or not; None when nothing tells it.
Size = "Callable[[Any], int | None]"


@dataclass(frozen=True)
class InputConstraints:
    """What one input must be.

    low, high: integers from ``low`` to below ``high``; ``high`` is None when nothing indexes with them.
    once: none may come twice along ``once_dim``, or at all where that is None.
    ends: ends of groups, in order, the last one this. counts: not negative, with this sum.
    exactly: every element is this number. places: of each of the last dimensions one number for each index along it,
    which an element has the sum of. state: the state of a random-number generator.
    positive: above zero. fan: of a convolution's weight, how many products the larger of its sums has. log_sums:
    attention's log-sum-exp over rows of this length. why: whose bound counts.
    """

    low: int = 0
    high: int | None = None
    once: bool = False
    once_dim: int | None = None
    ends: int | None = None
    counts: int | None = None
    exactly: int | None = None
    places: tuple[tuple[int, ...], ...] = ()
    state: bool = False
    positive: bool = False
    fan: int | None = None
    log_sums: int | None = None
    why: str = ""


class _At(NamedTuple):
    """A node on the way: numbers there are ``value * times + plus``; whether a mask or a running sum lies before."""

    node: fx.Node
    times: int = 1
    plus: int = 0
    masked: bool = False
    summed: bool = False
    module: nn.Module | None = None


def constraints_of(
    placeholder: fx.Node, size: Callable[[Any], int | None], root: nn.Module | None = None
) -> InputConstraints:
    """Everything the graph asks of one input; contradictions raise ``ValueError``.

    root: holds the sub-graphs, in which the numbers are followed as well.
    """
    search = _Search(placeholder, size)
    queue, seen = deque([_At(placeholder, module=root)]), {placeholder}
    while queue:
        at = queue.popleft()
        for user in at.node.users:
            search.ask(user, at)
            fresh = [onward for onward in (_onward(user, at), *_inside(user, at)) if onward and onward.node not in seen]
            seen.update(onward.node for onward in fresh)
            queue.extend(fresh)
    return search.result()


def _inside(user: fx.Node, at: _At) -> Iterator[_At]:
    """The same numbers as inputs of the sub-graphs that ``user`` runs; a map gives a part of them."""
    if not isinstance(user.target, HigherOrderOperator) or at.module is None:
        return
    leaves = tree_leaves(user.args)
    held = {leaf: attribute(at.module, leaf) for leaf in leaves if isinstance(leaf, Node) and leaf.op == "get_attr"}
    graphs = {leaf: owner for leaf, owner in held.items() if isinstance(owner, GraphModule)}
    last = max((place for place, leaf in enumerate(leaves) if leaf in graphs), default=len(leaves))
    operands = [leaf for leaf in leaves[last + 1 :] if not isinstance(leaf, str)]
    for module in graphs.values():
        places = list(module.graph.find_nodes(op="placeholder"))
        matched = zip(places, operands, strict=True) if len(places) == len(operands) else ()
        yield from (at._replace(node=place, module=module) for place, operand in matched if operand is at.node)


def _onward(user: fx.Node, at: _At) -> _At | None:
    """The same numbers behind ``user``; None where they are others."""
    if user.op != "call_function":
        return None
    name = op_name(user.target)
    fact = collective_of(user.target)
    if name in PASSING or is_wait(user.target) or (fact is not None and not fact.has_reduction):
        return at._replace(node=user)
    if name in MASKS:
        return at._replace(node=user, masked=True) if argument(user, MASKS[name]) is not at.node else None
    if name == "aten.cumsum":
        return at._replace(node=user, summed=True)
    val = at.node.meta.get("val")
    if isinstance(val, torch.Tensor) and val.dtype.is_floating_point:
        onward = _part_of_lists(user, at.node) if name.startswith(_LISTS) else user
        return at._replace(node=onward) if onward is not None and _keeps_sign(user, name, at.node) else None
    other = argument(user, "other")
    if type(other) is not int or argument(user, "self") is not at.node:
        return None
    if name in ADDITIVE:
        step = other * int(argument(user, "alpha", 1) or 0)
        return at._replace(node=user, plus=at.plus + (step if name == "aten.add" else -step))
    if name == "aten.mul" and other > 0:
        return at._replace(node=user, times=at.times * other, plus=at.plus * other)
    return None


def _keeps_sign(user: fx.Node, name: str, node: fx.Node) -> bool:
    """Whether ``user`` adds something to a number above zero, or makes it larger or smaller, as moments of an
    optimizer are on their way to a square root.
    """
    first, other = (*user.args[:2], None, None)[:2]
    own = first is node or (name.startswith(_LISTS) and isinstance(first, (list, tuple)) and node in first)
    name = name.replace(_LISTS, "aten.")
    if name in SCALING:
        return own and isinstance(other, (int, float)) and other > 0
    return (own and name in GROWING) or (name == "aten.add" and other is node)


def _part_of_lists(user: fx.Node, node: fx.Node) -> fx.Node | None:
    """The result that an op on lists of tensors makes of ``node``."""
    first = user.args[0] if user.args else None
    place = list(first).index(node) if isinstance(first, (list, tuple)) and node in first else None
    return next((part for part in user.users if is_getitem(part.target) and part.args[1] == place), None)


class _Search:
    """What ops have asked so far. Bounds behind a mask are soft."""

    def __init__(self, placeholder: fx.Node, size: Callable[[Any], int | None]) -> None:
        self._input = placeholder
        self._size = size
        self.asked = InputConstraints()
        self._low, self._why = 0, ""
        self._high: int | None = None
        self._soft: list[tuple[int, int, str]] = []

    def result(self) -> InputConstraints:
        low, high, why = self._low, self._high, self._why
        for soft_low, soft_high, soft_why in self._soft:
            if max(low, soft_low) < min(high or soft_high, soft_high):
                low, high, why = max(low, soft_low), min(high or soft_high, soft_high), why or soft_why
        if high is not None and low >= high:
            raise ValueError(f"no number is what {why} asks for")
        return replace(self.asked, low=low, high=high, why=why or self.asked.why)

    def ask(self, user: fx.Node, at: _At) -> None:
        """What ``user`` asks of the numbers at ``at``."""
        if user.op != "call_function":
            return
        name = op_name(user.target)
        why = f"'{user.name}' ({name})"
        extent = self._extent(user, name, at.node)
        if extent is not None and not at.summed:
            # 0 <= value * times + plus < extent
            low, high = -(at.plus // at.times), (extent - 1 - at.plus) // at.times + 1
            if at.masked or name in MASKED:
                self._soft.append((low, high, why))
            else:
                self._low = max(self._low, low)
                if self._high is None or high < self._high:
                    self._high, self._why = high, why
        self._ask_integers(user, name, at, why)
        self._ask_floats(user, name, at.node, why)

    def _ask_integers(self, user: fx.Node, name: str, at: _At, why: str) -> None:
        asked = self.asked
        if name in GROUPED and argument(user, "offs") is at.node:
            # The last group ends where the dimension does that both have, or that only one has.
            one, other = self._extents(argument(user, "self")), self._extents(argument(user, "mat2"))
            along = other[-1:] if len(one) == 3 else one[:1] if len(other) == 3 else one[-1:]
            rows = along[0] if along else None
            self.asked = replace(asked, counts=rows, why=why) if at.summed else replace(asked, ends=rows, why=why)
        elif name == "aten.repeat_interleave" and argument(user, "repeats") is at.node:
            total = self._number(argument(user, "output_size"))
            self.asked = replace(asked, counts=total, why=why)
        elif name == "prims._low_memory_max_pool_offsets_to_indices" and argument(user, "self") is at.node:
            self.asked = replace(asked, places=self._places(user), why=why)
        elif name in RANDOM_WRAPPERS and at.node in (*user.args[:1], user.kwargs.get("rng_state")):
            self.asked = replace(asked, state=True, why=why)
        elif name in NUMBERS and not at.summed:
            number = self._size(user.meta.get("val"))
            if number is not None:
                self.asked = replace(asked, exactly=number, why=why)
        elif name in ONCE and argument(user, "index") is at.node:
            index, dim = argument(user, "index"), int(argument(user, "dim", 0))
            extents = self._extents(index)
            nowhere = asked.once and asked.once_dim is None  # twice at all, which is more than along one dimension
            if len(extents) > dim and extents[dim] != 1 and not nowhere:
                self.asked = replace(asked, once=True, once_dim=dim if index is self._input else None)
        elif name in ONCE_OR_ADDED and not argument(user, "accumulate", False) and at.node in argument(user, "indices"):
            self.asked = replace(asked, once=True, once_dim=None)

    def _places(self, user: fx.Node) -> tuple[tuple[int, ...], ...]:
        """The first place in each window of a pooling that is within the pooled tensor, of each dimension."""
        lists = ("kernel_size", "stride", "padding", "dilation")
        kernel, *geometry = ([self._number(number) or 0 for number in argument(user, name)] for name in lists)
        result = []
        for dim, (stride, padding, dilation) in enumerate(
            zip(*geometry, strict=True), len(user.meta["val"].shape) - len(kernel)
        ):
            windows = self._of_dim(user, dim) or 0
            result.append(tuple(-(-max(0, padding - window * stride) // dilation) for window in range(windows)))
        weights = [math.prod(kernel[dim + 1 :]) for dim in range(len(kernel))]
        return tuple(tuple(place * weight for place in places) for places, weight in zip(result, weights, strict=True))

    def _ask_floats(self, user: fx.Node, name: str, node: fx.Node, why: str) -> None:
        power = argument(user, "exponent") if name == "aten.pow" and argument(user, "self") is node else 1
        whole = isinstance(power, (int, float)) and power >= 0 and float(power).is_integer()
        if name.startswith(_LISTS) and POSITIVE.get(name.replace(_LISTS, "aten.")) == "self":
            whole = not (isinstance(user.args[0], (list, tuple)) and node in user.args[0])
        if argument(user, POSITIVE.get(name, "-")) is node or not whole:
            self.asked = replace(self.asked, positive=True)
        if name.endswith("_attention_backward"):
            known = argument_names(user.target)
            sums = next(
                (argument(user, spelling) for spelling in ("logsumexp", "log_sumexp") if spelling in known), None
            )
            if sums is node:
                keys = self._extents(argument(user, "key"))
                self.asked = replace(self.asked, log_sums=keys[-2] if len(keys) > 1 else 1, why=why)
        if "convolution" in name and "weight" in argument_names(user.target) and argument(user, "weight") is node:
            extents = [extent or 1 for extent in self._extents(node)]
            self.asked = replace(self.asked, fan=math.prod(extents) // max(1, min(extents[:2], default=1)))
        if name == "aten._scaled_mm" and node in (argument(user, "scale_a"), argument(user, "scale_b")):
            self.asked = replace(self.asked, positive=True, why=why)

    def _extent(self, user: fx.Node, name: str, node: fx.Node) -> int | None:
        """How many places there are for an index that ``user`` takes from ``node``; None when it takes none."""
        if name in INDEXED:
            table, index, dim = INDEXED[name]
            if argument(user, index) is not node:
                return None
            along = argument(user, dim, 0) if dim is not None else 0
            return self._of_dim(argument(user, table), along)
        if name in BY_DIMENSION:
            held = argument(user, "indices")
            extents = [self._of_dim(argument(user, "self"), i) for i, used in enumerate(held) if used is node]
            return min((e for e in extents if e is not None), default=None)
        if name in CLASSES:
            if argument(user, "target") is not node:
                return None
            scores = self._extents(argument(user, "self"))
            return scores[1] if len(scores) > 1 else scores[0] if scores else None
        if name == "aten.embedding_dense_backward":
            return self._size(argument(user, "num_weights")) if argument(user, "indices") is node else None
        return self._size(argument(user, "num_classes")) if name == "aten.one_hot" else None

    def _number(self, value: Any) -> int | None:
        """An operand that is a size, or the node of one."""
        return self._size(value.meta.get("val") if hasattr(value, "meta") else value)

    def _of_dim(self, table: Any, dim: Any) -> int | None:
        extents = self._extents(table)
        return extents[dim] if isinstance(dim, int) and -len(extents) <= dim < len(extents) else None

    def _extents(self, node: Any) -> list[int | None]:
        val = getattr(node, "meta", {}).get("val")
        return [self._size(extent) for extent in val.shape] if isinstance(val, torch.Tensor) else []
