"""One call in the words of the ``.pt2`` schema.

Usage::

    for written in write_call(node, scope):      # one node of the schema; several for torch.sym_sum
        nodes.append(written)

Ops give the names of their arguments from their schema, Python functions on numbers from their signature,
higher-order ops give none. ``torch.sym_sum``, which PyTorch cannot save, becomes a chain of additions.
Limits: ops that are not registered can be written only into the file they came from.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from commcc.base.errors import OutputError
from commcc.graph.ops import OpaqueOp
from commcc.serialization.pt2 import argument_writer as pt2_argument_writer
from commcc.serialization.pt2 import results as pt2_results
from commcc.serialization.pt2.argument_writer import TEXT_HINT, op_arguments, schema_path, write_argument
from commcc.serialization.pt2.schema import KEYWORD, POSITIONAL, check_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.serialization.pt2.read import OpaqueCall


class Scope(pt2_argument_writer.Scope, pt2_results.Values, Protocol):
    """What writing calls needs to know about the graph around them."""

    @property
    def results(self) -> pt2_results.ResultTable: ...

    @property
    def opaque(self) -> Mapping[OpaqueOp, OpaqueCall]: ...

    def metadata(self, node: fx.Node) -> dict[str, str]:
        """The metadata of a node that the schema has room for."""
        ...

    def unused(self, name: str) -> str:
        """A name that no node of the graph has."""
        ...


def write_call(node: fx.Node, scope: Scope) -> Iterator[dict[str, Any]]:
    """The nodes of the schema that stand for ``node``."""
    if node.target is torch.sym_sum:
        yield from _write_sum(node, scope)
        return
    yield {
        "target": schema_path(node.target),
        "inputs": _inputs(node, scope),
        "outputs": scope.results.outputs(node, scope),
        "metadata": scope.metadata(node),
        "is_hop_single_tensor_return": _is_single(node),
        "name": node.name,
    }


def _is_single(node: fx.Node) -> bool | None:
    if not isinstance(node.target, HigherOrderOperator):
        return None
    return isinstance(node.meta.get("val"), torch.Tensor)


def _inputs(node: fx.Node, scope: Scope) -> list[dict[str, Any]]:
    target = node.target
    if isinstance(target, OpOverload):
        return _inputs_by_schema(node, target, scope)
    names = _positional_names(target)
    if isinstance(target, OpaqueOp):
        known = scope.opaque.get(target)
        if known is None or len(known.arguments) < len(node.args):
            raise OutputError(f"{target.qualified_name} is not registered with this PyTorch", hint=TEXT_HINT)
        names = known.arguments
    names += ("",) * (len(node.args) - len(names))
    out = [
        _named(name, write_argument(arg, scope), POSITIONAL)
        for name, arg in zip(names, node.args)  # noqa: B905
    ]
    out.extend(_named(check_name(key), write_argument(arg, scope), KEYWORD) for key, arg in node.kwargs.items())
    return out


def _inputs_by_schema(node: fx.Node, target: OpOverload, scope: Scope) -> list[dict[str, Any]]:
    out, kwargs = [], node.kwargs
    for position, (name, keyword_only, empty) in enumerate(op_arguments(target)):
        if name in kwargs:
            out.append(_named(name, write_argument(kwargs[name], scope, empty), KEYWORD))
        elif position < len(node.args) and not keyword_only:
            out.append(_named(name, write_argument(node.args[position], scope, empty), POSITIONAL))
    if len(out) != len(node.args) + len(kwargs):
        raise OutputError(f"has arguments that {target} does not declare")
    return out


def _named(name: str, arg: dict[str, Any], kind: int) -> dict[str, Any]:
    return {"name": name, "arg": arg, "kind": kind}


@lru_cache(maxsize=256)
def _positional_names(target: Any) -> tuple[str, ...]:
    if isinstance(target, (HigherOrderOperator, OpaqueOp)):
        return ()
    try:
        return tuple(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return ()


def _write_sum(node: fx.Node, scope: Scope) -> Iterator[dict[str, Any]]:
    """``sym_sum([a, b, c])`` as ``a + b``, then ``+ c``."""
    if not isinstance(node.args[0], (list, tuple)) or "val" not in node.meta:
        raise OutputError("its terms or its value are not known", hint=TEXT_HINT)
    terms: list[Any] = [scope.effective(term) if isinstance(term, fx.Node) else term for term in node.args[0]]
    terms += [0] * (2 - len(terms))
    left, total = write_argument(terms[0], scope), _value(terms[0])
    for position, term in enumerate(terms[1:], 1):
        last = position == len(terms) - 1
        total = node.meta["val"] if last else total + _value(term)
        name = node.name if last else scope.unused(f"{node.name}_part_{position}")
        inputs = [_named("a", left, POSITIONAL), _named("b", write_argument(term, scope), POSITIONAL)]
        left = scope.register(name, total)
        yield {
            "target": "_operator.add",
            "inputs": inputs,
            "outputs": [left],
            "metadata": scope.metadata(node),
            "is_hop_single_tensor_return": None,
            "name": name,
        }


def _value(term: Any) -> Any:
    return term.meta.get("val", 0) if isinstance(term, fx.Node) else term
