"""Results of ops computed on shapes alone: no data, no device, no process group, no autograd.

    evaluator = Evaluator(ctx)
    evaluator.run(torch.ops.aten.mm.default, (a, b), {})      # a FakeTensor
    evaluator.run_higher_order(op, args, {}, call_subgraph)   # sub-graphs among the arguments are fx.GraphModule

Ops run under the graph's ``FakeTensorMode`` with the device that the graph records. A build of PyTorch
without that device cannot do this for every op; then the op runs once more on ``meta`` tensors and its
results get the device back. Autograd is off throughout: on a fake CUDA tensor it aborts the process.

An op that comes from a file is only called when it has a shape function and cannot do anything else:
ops without a dispatcher entry (``aten::save``), with host effects, or of unknown namespaces raise
:class:`UnknownValue`, and no real kernel is ever used as a stand-in.

Nothing that a file describes is called: sub-graphs are not run as code, their nodes are evaluated one by one, like
those of the graph.

Limits: the results of ops that loop over a size in Python (RNN cells) are not computed; ``scan``,
``associative_scan``, ``map`` and saved random-number states have no rule here.
"""

from __future__ import annotations

import contextlib
import operator
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch._guards import SLoc
from torch._library import simple_registry
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import ValueRangesSLoc
from torch.utils import _pytree as pytree
from torch.utils._traceback import CapturedTraceback

from commcc.base.errors import InputError
from commcc.graph.ops import OpaqueOp, op_name
from commcc.graph.ops.effects import UNSHAPED
from commcc.graph.ops.functions import bounded, plain_name, transform_name
from commcc.graph.ops.libraries import SHAPED
from commcc.graph.ops.sizes import MOST_RESULTS
from commcc.serialization.fake_memo import History
from commcc.serialization.shapes import contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from commcc.graph.ops.described import Description
    from commcc.serialization.shapes import ShapeContext

    CallSubgraph = Callable[[fx.GraphModule, Sequence[Any]], Any]

_SCALARS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
_PLAIN = (*_SCALARS, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class UnknownValue(Exception):
    """The value of a node cannot be computed; the text says why."""


class Evaluator:
    """Calls ops on fake values of one :class:`ShapeContext`, and once only on operands that look alike."""

    def __init__(self, ctx: ShapeContext, history: History | None = None) -> None:
        self.ctx = ctx
        self.history = History(ctx) if history is None else history
        # Shape functions narrow the ranges of symbols, and look up who set the bounds or made the symbol.
        unknown = SLoc("", None)
        stacks = getattr(ctx.shape_env, "var_to_stack", {})
        for symbol in ctx.shape_env.var_to_range:
            ctx.shape_env.var_to_range_sloc.setdefault(symbol, ValueRangesSLoc(unknown, unknown))
            stacks.setdefault(symbol, CapturedTraceback.extract())  # type: ignore[no-untyped-call]

    def run(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of ``target``; raises :class:`UnknownValue`."""
        if isinstance(target, OpaqueOp) and target.described is not None:
            return self._described(target.described, args, kwargs)
        if isinstance(target, OpaqueOp):
            raise UnknownValue(f"{target.qualified_name} is not registered with this PyTorch")
        if isinstance(target, HigherOrderOperator) and target._name in _BY_SHAPES:
            return self.call(target, _without_subgraphs(args), kwargs)
        if not isinstance(target, OpOverload):
            return self._python_function(target, args, kwargs)
        # Called for its effect alone (print, assertions).
        if not target._schema.returns:
            return None
        check_callable(target)
        _check_outputs(target, args)
        return self.history.once(target, args, kwargs, lambda: self.call(target, *self._spared(target, args, kwargs)))

    def run_open(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As :meth:`run`, and of an operator of Python, or an op whose overload is left open, on tensors as well."""
        if isinstance(target, OpOverloadPacket):
            try:
                name = torch._C._jit_resolve_packet(target._qualified_op_name, *args, **kwargs)
            except (RuntimeError, TypeError) as error:
                raise UnknownValue(f"{target} is not run on these arguments: {str(error)[:80]}") from None
            return self.run(getattr(target, name or "default"), args, kwargs)
        if plain_name(target) is not None:
            return self.call(bounded(target), args, kwargs)
        if isinstance(target, HigherOrderOperator) and target._name in _BY_OP:
            return _BY_OP[target._name](self, args, kwargs)
        return self.run(target, args, kwargs)

    def _described(self, described: Description, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if described.like is not None:
            return self.run(described.like, *described.as_like(args, kwargs))
        try:
            sizes = described.sizes(args, kwargs)
        except (ValueError, KeyError, AttributeError, StopIteration) as error:  # it is called otherwise
            raise UnknownValue(f"the shape that is described of {described.name} does not fit: {error}") from None
        if sizes is None:
            if described.runs is not None:
                return self.run(described.runs, args, kwargs)
            raise UnknownValue(f"{described.name} is not registered, and its description names no shape")
        like, shape = sizes
        if any(type(size) is int and size < 0 for size in shape):
            raise UnknownValue(f"the shape that is described of {described.name} does not fit: {shape}")
        return self.ctx.tensor(shape, contiguous_stride(shape), like.dtype, like.device)

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``function`` under the fake mode, on the recorded devices, else on ``meta``."""
        try:
            return checked(self._attempt(function, args, kwargs))
        except UnknownValue as first:
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
            if not tensors:
                raise
            # Results are where they were asked for, else where the first tensor is; one without dimensions is often
            # a number on the CPU.
            asked = kwargs.get("device")
            first_tensor = next((tensor for tensor in tensors if tensor.dim()), tensors[0])
            device = asked if isinstance(asked, torch.device) else first_tensor.device
            meta = torch.device("meta")
            on_meta = pytree.tree_map_only(FakeTensor, lambda t: self._moved(t, meta), (list(args), dict(kwargs)))
            try:
                result = checked(self._attempt(function, *on_meta))
            except UnknownValue:
                raise first from None
            return pytree.tree_map_only(FakeTensor, lambda t: self._moved(t, device), result)

    def _attempt(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            with torch.no_grad(), _without_fallback(self.ctx.fake_mode):
                return function(*args, **kwargs)
        # PyTorch's shape functions raise whatever wrong arguments make them stumble over.
        except Exception as error:
            text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise UnknownValue(f"{type(error).__name__}: {text[:160]}") from None

    def _spared(
        self, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Arguments in which every tensor that ``op`` writes is a copy, since ops can change shapes in place."""
        written = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        # Most ops write nothing.
        if not written:
            return args, kwargs
        names = [a.name for a in op._schema.arguments]
        copies = [self._copied(value) if name in written else value for name, value in zip(names, args, strict=False)]
        return copies, {name: self._copied(value) if name in written else value for name, value in kwargs.items()}

    def _copied(self, value: Any) -> Any:
        return pytree.tree_map_only(FakeTensor, lambda tensor: self._moved(tensor, tensor.device), value)

    def _moved(self, tensor: FakeTensor, device: torch.device) -> FakeTensor:
        try:
            return self.ctx.tensor(
                tensor.shape, tensor.stride(), tensor.dtype, device, storage_offset=tensor.storage_offset()
            )
        except InputError as error:
            raise UnknownValue(error.what) from None

    def _python_function(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``operator.*``, ``torch.sym_*``, ``math.*`` on symbolic and plain numbers."""
        # Not for the numbers only: it takes results apart.
        if target is operator.getitem:
            return _item(*args)
        if transform_name(target) is not None and not any(isinstance(arg, FakeTensor) for arg in args):
            return None  # enters or leaves a level, as exported programs have it
        if plain_name(target) is None:
            raise UnknownValue(f"{getattr(target, '__name__', target)} is not run on shapes")
        for leaf in pytree.tree_leaves((args, kwargs)):
            if not isinstance(leaf, _SCALARS):
                raise UnknownValue(f"{getattr(target, '__name__', target)} of a {type(leaf).__name__}")
        return self._attempt(bounded(target), args, kwargs)

    def run_higher_order(
        self, op: HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any], call_subgraph: CallSubgraph
    ) -> Any:
        """The result of ``op``; sub-graphs among the arguments are ``fx.GraphModule``. Raises ``UnknownValue``."""
        name = op._name
        if name in _NO_RESULT:
            return None
        if name in _BY_OP:
            return _BY_OP[name](self, args, kwargs)
        if name in _SUBGRAPH:
            which, first = _SUBGRAPH[name]
            subgraph = args[which] if which < len(args) else None
            if not isinstance(subgraph, fx.GraphModule):
                raise UnknownValue("its sub-graph is not in the file")
            # Of a loop what goes round, then what stays as it is.
            lists = name in ("cond", "while_loop") and all(isinstance(given, (list, tuple)) for given in args[first:])
            operands = list(chain.from_iterable(args[first:])) if lists else args[first:]
            # The other branch, and the condition of a loop.
            for other in [arg for arg in args[:first] if lists and isinstance(arg, fx.GraphModule)]:
                with contextlib.suppress(UnknownValue):
                    call_subgraph(other, operands)
            return call_subgraph(subgraph, operands)
        if name in ("auto_functionalized", "auto_functionalized_v2"):
            if not args or not isinstance(args[0], OpOverload):
                raise UnknownValue(f"{name} of an op that is not registered with this PyTorch")
            check_callable(args[0])
            return self.call(op, args, kwargs)
        if name in _BY_SHAPES:
            return self.run(op, args, kwargs)
        raise UnknownValue(f"there is no shape rule for the higher-order op {name}")


def check_callable(op: OpOverload) -> None:
    """Raise :class:`UnknownValue` unless calling ``op`` under a fake mode can only compute shapes."""
    name, overload = op._schema.name, op._schema.overload_name
    if op_name(op) in UNSHAPED or not torch._C._dispatch_has_kernel(f"{name}.{overload}" if overload else name):
        raise UnknownValue(f"{op} is not run on shapes")
    # A kernel of its own would run if there is no shape function.
    if op.namespace not in SHAPED and simple_registry.singleton.find(name).fake_impl.kernel is None:
        raise UnknownValue(f"{op} has no shape function")


def checked(value: Any) -> Any:
    """``value`` if it is made of fake tensors and plain values only."""
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, FakeTensor):
            # No annotation can say what it is.
            if leaf.layout is not torch.strided:
                raise UnknownValue(f"the result is a {leaf.layout} tensor")
        elif not isinstance(leaf, _PLAIN):
            raise UnknownValue(f"the result is a {type(leaf).__name__}")
    return value


@contextlib.contextmanager
def _without_fallback(mode: Any) -> Iterator[None]:
    """The fake mode, with real kernels forbidden as stand-ins for missing shape functions."""
    before = mode.allow_fallback_kernels
    mode.allow_fallback_kernels = False
    try:
        with mode:
            yield
    finally:
        mode.allow_fallback_kernels = before


def _check_outputs(op: OpOverload, args: Sequence[Any]) -> None:
    """Keep a hostile ``split`` from making more tensors than fit into memory."""
    if not any("[]" in str(result.type) or "List" in str(result.type) for result in op._schema.returns):
        return
    tensor = args[0] if args and isinstance(args[0], FakeTensor) else None
    sizes = [size for size in tensor.shape if isinstance(size, int)] if tensor is not None else []
    piece = args[1] if len(args) > 1 and "split" in op._schema.name and type(args[1]) is int else 1
    if "sizes" not in op._schema.name and max(sizes, default=0) // max(piece, 1) > MOST_RESULTS:
        raise UnknownValue("it has too many results")


def _item(value: Any, index: Any) -> Any:
    if isinstance(value, (tuple, list)) and type(index) is int and -len(value) <= index < len(value):
        return value[index]
    if isinstance(value, dict) and isinstance(index, str) and index in value:
        return value[index]
    raise UnknownValue(f"no item {str(index)[:40]!r} in a {type(value).__name__}")


def _with_effects(evaluator: Evaluator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    token, op, *operands = args
    if getattr(op, "_name", None) in _NO_RESULT:
        return (token, None)
    result = evaluator.run(op, operands, kwargs)
    return (token, *result) if isinstance(result, tuple) else (token, result)


def _with_dtype(evaluator: Evaluator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    op, dtype, *operands = (*args, None, None) if len(args) < 2 else args
    result = evaluator.run(op, operands, kwargs)
    if not isinstance(result, FakeTensor) or not isinstance(dtype, torch.dtype):
        raise UnknownValue("out_dtype of what is not one tensor")
    return evaluator.ctx.tensor(result.shape, result.stride(), dtype, result.device)


def _triton_functional(_evaluator: Evaluator, _args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors, cloned = kwargs.get("kwargs"), kwargs.get("tensors_to_clone")
    if not isinstance(tensors, dict) or not isinstance(cloned, (list, tuple)):
        raise UnknownValue("the kernel's arguments are not given by name")
    return {name: tensors.get(name) for name in cloned}


_NO_RESULT = frozenset({"print", "triton_kernel_wrapper_mutation"})
_BY_OP: dict[str, Callable[[Evaluator, Sequence[Any], Mapping[str, Any]], Any]] = {
    "with_effects": _with_effects,
    "run_with_rng_state": lambda evaluator, args, kwargs: evaluator.run(args[1], args[2:], kwargs),
    "graphsafe_run_with_rng_state": lambda evaluator, args, kwargs: evaluator.run(
        args[0], args[1:], {name: value for name, value in kwargs.items() if name != "rng_state"}
    ),
    "triton_kernel_wrapper_functional": _triton_functional,
    "out_dtype": _with_dtype,
}
#: Position of the sub-graph whose results are the op's, and of its first operand.
_SUBGRAPH = {"invoke_subgraph": (0, 2), "control_deps": (1, 2), "cond": (1, 3), "while_loop": (1, 2)}


#: Higher-order ops that do not call their sub-graphs to find out shapes.
_BY_SHAPES = frozenset({"flex_attention", "flex_attention_backward"})


def _without_subgraphs(args: Any) -> Any:
    if isinstance(args, nn.Module):
        return _not_called
    return type(args)(_without_subgraphs(arg) for arg in args) if isinstance(args, (tuple, list)) else args


def _not_called(*_args: object) -> Any:
    raise UnknownValue("the shape rule asks for the result of a sub-graph")
