"""What an assertion is about: sizes, or what a tensor holds.

::

    Claims(graph.nodes).about_sizes(node)

    _assert_scalar(item(counts[0]) >= 0)         of sizes, where the item is the size of something
    _assert_scalar(item(all(x > 0)))             of what x holds, as every assertion that is handed a tensor

Limits: an item that nothing but arithmetic and assertions of its own graph uses is no size, though another graph may
use it as one. Numbers that a graph is given are taken for sizes.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from commcc.graph.ops import facts
from commcc.graph.ops.functions import plain_name
from commcc.graph.ops.operands import nodes_in
from commcc.verify.arguments import bind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx


class Claims:
    """The assertions of one graph. nodes: all of its nodes."""

    def __init__(self, nodes: Iterable[fx.Node]) -> None:
        self._nodes = nodes

    def about_sizes(self, check: fx.Node) -> bool:
        """Whether all that an assertion is handed are sizes, and what Python computes of them."""
        if "Tensor" in _types(check.target).values() or not _types(check.target):
            return False
        symbolic = (torch.SymInt, torch.SymBool, torch.SymFloat)
        if not all(
            self._in_shapes(part) for part in (*check.args, *check.kwargs.values()) if isinstance(part, symbolic)
        ):
            return False
        seen = dict.fromkeys(check.all_input_nodes)
        for node in (rest := list(seen)):
            if self._is_size(node):
                continue
            if node.op != "call_function" or plain_name(node.target) is None:
                return False
            operands = [operand for operand in node.all_input_nodes if operand not in seen]
            seen.update(dict.fromkeys(operands))
            rest += operands
        return True

    def _is_size(self, node: fx.Node) -> bool:
        val = node.meta.get("val")
        if isinstance(val, bool) or not isinstance(val, (int, torch.SymInt)):
            return False
        if node.op == "placeholder":
            return True
        return node.op == "call_function" and (
            not facts(node.target).reads or self._in_shapes(val) or _given_as_size(node)
        )

    def _in_shapes(self, number: Any) -> bool:
        """Whether all symbols of a number are in the shapes of tensors; a plain number has none that says so."""
        symbols = _symbols(number)
        return bool(symbols) and symbols <= self._symbols

    @cached_property
    def _symbols(self) -> set[Any]:
        found: set[Any] = set()
        for node in self._nodes:
            val = node.meta.get("val")
            for part in val if isinstance(val, (list, tuple)) else (val,):
                for size in part.shape if isinstance(part, torch.Tensor) else ():
                    found |= _symbols(size)
        return found


def _symbols(number: Any) -> set[Any]:
    expression = getattr(getattr(number, "node", None), "expr", None)
    return set(getattr(expression, "free_symbols", ()))


def _types(target: Any) -> dict[str, str]:
    """The types of the arguments of an op, by name; empty where it has no schema."""
    schema = getattr(target, "_schema", None)
    return {} if schema is None else {argument.name: str(argument.type) for argument in schema.arguments}


def _given_as_size(node: fx.Node) -> bool:
    """Whether an op is handed a number, or what Python computes of it, where it takes nothing but whole numbers."""
    seen = {node}
    for number in (rest := [node]):
        for user in number.users:
            if user in seen or user.op != "call_function" or facts(user.target).assertion:
                continue
            seen.add(user)
            if plain_name(user.target) is not None:
                rest.append(user)
                continue
            types = _types(user.target)
            if number in nodes_in([given for name, given in bind(user).items() if "int" in types.get(name, "")]):
                return True
    return False
