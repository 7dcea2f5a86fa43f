"""Results of higher-order ops on shapes, without calling anything that a file describes.

Sub-graphs are not run as code: their nodes are evaluated one by one, like those of the graph.

Limits: ``scan``, ``associative_scan``, ``map`` and saved random-number states have no rule here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._ops import OpOverload

from commcc.serialization.fake_ops import Evaluator, UnknownValue, check_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx
    from torch._ops import HigherOrderOperator

    CallSubgraph = Callable[[fx.GraphModule, Sequence[Any]], Any]


def run_higher_order(
    evaluator: Evaluator,
    call_subgraph: CallSubgraph,
    op: HigherOrderOperator,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The result of ``op``; sub-graphs among the arguments are ``fx.GraphModule``. Raises ``UnknownValue``."""
    name = op._name
    if name in _NO_RESULT:
        return None
    if name in _BY_OP:
        return _BY_OP[name](evaluator, args, kwargs)
    if name in _SUBGRAPH:
        which, first = _SUBGRAPH[name]
        operands = args[first] if name in ("cond", "while_loop") else args[first:]
        return call_subgraph(_subgraph(args, which), operands)
    if name in ("auto_functionalized", "auto_functionalized_v2"):
        if not args or not isinstance(args[0], OpOverload):
            raise UnknownValue(f"{name} of an op that is not registered with this PyTorch")
        check_callable(args[0])
        return evaluator.call(op, args, kwargs)
    if name in ("flex_attention", "flex_attention_backward"):
        # Neither calls its sub-graphs to find out shapes.
        return evaluator.call(op, _without_subgraphs(args), kwargs)
    raise UnknownValue(f"there is no shape rule for the higher-order op {name}")


def _with_effects(evaluator: Evaluator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    token, op, *operands = args
    if getattr(op, "_name", None) in _NO_RESULT:
        return (token, None)
    result = evaluator.run(op, operands, kwargs)
    return (token, *result) if isinstance(result, tuple) else (token, result)


def _second(evaluator: Evaluator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return evaluator.run(args[1], args[2:], kwargs)


def _graphsafe(evaluator: Evaluator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    own = {name: value for name, value in kwargs.items() if name != "rng_state"}
    return evaluator.run(args[0], args[1:], own)


def _triton_functional(_evaluator: Evaluator, _args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors, cloned = kwargs.get("kwargs"), kwargs.get("tensors_to_clone")
    if not isinstance(tensors, dict) or not isinstance(cloned, (list, tuple)):
        raise UnknownValue("the kernel's arguments are not given by name")
    return {name: tensors.get(name) for name in cloned}


_NO_RESULT = frozenset({"print", "triton_kernel_wrapper_mutation"})
_BY_OP: dict[str, Callable[[Evaluator, Sequence[Any], Mapping[str, Any]], Any]] = {
    "with_effects": _with_effects,
    "run_with_rng_state": _second,
    "graphsafe_run_with_rng_state": _graphsafe,
    "triton_kernel_wrapper_functional": _triton_functional,
}
#: Position of the sub-graph whose results are the op's, and of its first operand.
_SUBGRAPH = {"invoke_subgraph": (0, 2), "control_deps": (1, 2), "cond": (1, 3), "while_loop": (1, 2)}


def _subgraph(args: Sequence[Any], position: int) -> Any:
    from torch import fx

    found = args[position] if position < len(args) else None
    if not isinstance(found, fx.GraphModule):
        raise UnknownValue("its sub-graph is not in the file")
    return found


def _without_subgraphs(args: Any) -> Any:
    from torch import nn

    if isinstance(args, nn.Module):
        return _not_called
    return type(args)(_without_subgraphs(arg) for arg in args) if isinstance(args, (tuple, list)) else args


def _not_called(*_args: object) -> Any:
    raise UnknownValue("the shape rule asks for the result of a sub-graph")
