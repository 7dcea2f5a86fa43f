"""What a chunk's results are, given what its operands are: one rule for each family of ops.

    state_of(Call(node, op, {x: State("rows", 0)}, dim=0))      # of aten.silu: State('rows', 0)

1. elementwise and layout: slices stay slices; what is linear keeps parts of sums;
2. reductions and contractions over the tokens: a part of a sum (``sum``, matrix products), else nothing known;
3. along a dimension (softmax, sort): unchanged off the tokens; a sort of tokens leaves them in an order of its own;
4. rows picked by an index are in an order of their own; rows put back into a chunk's own buffer are its slice again;
5. exchanges deliver the chunk's tokens; attention keeps samples apart, and only samples.

Limits: what an op of no family makes is ``own``, unless it has as many rows as tokens came in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from commcc.ep.chunk.call import Call, dims, in_other_orders, indexed, mixed, product
from commcc.ep.chunk.state import SUM, State
from commcc.graph import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.ep.chunk.state import Kind


_VIEWS = frozenset({"aten.view", "aten.reshape", "aten._unsafe_view"})
_LAYOUT = frozenset(
    {
        *(f"aten.{n}" for n in ("t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "slice", "select")),
        *(f"aten.{n}" for n in ("detach", "alias", "clone", "_to_copy", "contiguous", "unbind", "split", "narrow")),
        *(f"aten.{n}" for n in ("split_with_sizes", "chunk", "cat", "stack", "view_as_complex", "view_as_real")),
        *(
            f"aten.{n}"
            for n in ("_conj", "conj", "resolve_conj", "_conj_physical", "slice_backward", "select_backward")
        ),
        *("prims.convert_element_type", "aten.lift_fresh_copy", "aten.squeeze_copy", "_c10d_functional.wait_tensor"),
    }
)
_TAKING = frozenset(
    f"aten.{n}" for n in ("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "slice_backward")
)
_ELEMENTWISE = frozenset({"aten.fill", "aten.floor_divide", "aten.one_hot", "aten.bucketize"})
_ADDITIVE = frozenset({"aten.add", "aten.sub"})
_SCALING = frozenset({"aten.mul", "aten.div"})
_REDUCING = frozenset(
    f"aten.{n}"
    for n in (
        *("sum", "mean", "amax", "amin", "prod", "var", "std", "var_mean", "linalg_vector_norm", "all", "any"),
        *("argmax", "argmin", "logsumexp", "max", "min", "norm", "count_nonzero"),
    )
)
_ALONG = frozenset(
    f"aten.{n}"
    for n in (
        *("_softmax", "_log_softmax", "softmax", "cumsum", "cumprod", "sort", "argsort", "topk", "flip", "roll"),
        *("_softmax_backward_data", "_log_softmax_backward_data", "logcumsumexp", "cummax", "cummin"),
    )
)
_SORTING = frozenset({"aten.sort", "aten.argsort", "aten.flip", "aten.roll"})
_PICKING = frozenset({"aten.index", "aten.index_select", "aten.gather", "aten.embedding", "aten.take_along_dim"})
_PUTTING = frozenset(
    f"aten.{n}" for n in ("index_add", "index_put", "_unsafe_index_put", "index_copy", "scatter", "scatter_add")
)
_ADDING = frozenset({"aten.index_add", "aten.scatter_add"})
_COUNTING = frozenset({"aten.histc", "aten.bincount", "aten.embedding_dense_backward"})
_ZEROS = frozenset({"aten.zeros", "aten.zeros_like", "aten.new_zeros"})
_CONSTANTS = _ZEROS | {
    *(f"aten.{n}{like}" for n in ("ones", "full", "empty") for like in ("", "_like")),
    *(f"aten.new_{n}" for n in ("ones", "full", "empty")),
    "aten.empty_strided",
    "aten.new_empty_strided",
}
_NORMS = ("layer_norm", "rms_norm", "group_norm")


def state_of(call: Call) -> State:
    """The state of the (single-tensor) result of ``call``."""
    rule = _rule(call)
    return rule(call)


def _rule(call: Call) -> Callable[[Call], State]:
    op = call.op
    for names, rule in _FAMILIES:
        if op in names:
            return rule
    if "scaled_dot_product" in op or "_attention" in op:
        return _attention
    if any(norm in op for norm in _NORMS):
        return _norm
    if op in ops.COMPUTE:
        return _contraction
    target = call.node.target
    pointwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    return _elementwise if pointwise or op in _ELEMENTWISE else Call.unknown


def _layout(call: Call) -> State:
    if call.kinds == {"sum"}:
        return SUM
    cut = {state.dim for state in call.states.values()}
    if call.op == "aten.cat" and call.sliced(call.kinds) and dims(call, 0) & cut:
        return call.unknown()
    if call.op in _TAKING and dims(call, 0) & cut and not _whole(call):
        return mixed(call)  # the first rows of a chunk are not those of the whole
    return call.tokens()


def _whole(call: Call) -> bool:
    """Whether the result is as large as the operand."""
    return str(list(call.shape)) == str(list(next(iter(call.shapes.values()))))


def _view(call: Call) -> State:
    """Slices stay slices when as many elements lie before them as did in the operand; with all samples before them or
    none, the sequence is cut beside the samples or folded with them.
    """
    if call.kinds == {"sum"}:
        return SUM
    (source, state), *_ = call.states.items()
    if state.kind not in ("rows", "folded") or state.dim is None or call.dim is None:
        return call.tokens()
    before = product(call.shapes[source][: state.dim]), product(call.shape[: call.dim])
    if before[0] == before[1]:
        return call.tokens()
    if state.kind == "rows" and before == (call.samples, 1):
        return State("folded", call.dim)
    return State("rows", call.dim) if state.kind == "folded" and before == (1, call.samples) else call.unknown()


def _elementwise(call: Call) -> State:
    if "sum" in call.kinds:
        return _linear(call)
    for source, state in call.states.items():
        # Operands are broadcast from the right; slices must lie in the same dimension of the result.
        place = None if state.dim is None else len(call.shape) - len(call.shapes[source]) + state.dim
        if state.kind in ("rows", "folded") and place != call.dim:
            return call.unknown()
    if in_other_orders(call.kinds) and not call.kinds & {"own", "last"}:
        return mixed(call)
    return call.tokens()


def _linear(call: Call) -> State:
    """Sums of parts are parts of the sum; so is a part times what is the same in every chunk."""
    tensors = [arg for arg in call.node.args[:2] if hasattr(arg, "op")]
    if call.op in _ADDITIVE and call.kinds == {"sum"} and len(tensors) == 2 and all(t in call.states for t in tensors):
        return SUM
    if ops.argument(call.node, "rounding_mode") is not None:
        return call.unknown()
    scaled = [arg for arg in call.node.args[:2] if hasattr(arg, "op") and arg in call.states]
    if call.op in _SCALING and call.kinds == {"sum"} and scaled == [call.node.args[0]]:
        return SUM
    if call.op == "aten.mul" and call.kinds == {"sum"} and len(scaled) == 1:
        return SUM
    return SUM if call.op == "aten.neg" else call.unknown()


def _reduction(call: Call) -> State:
    state = call.of("self")
    if state is None or state.kind in ("own", "last"):
        return call.unknown()
    if state.kind == "sum":
        return SUM if call.op == "aten.sum" else call.unknown()
    if state.dim not in dims(call, None):
        return call.tokens()
    return SUM if call.op == "aten.sum" else mixed(call)


def _along(call: Call) -> State:
    cut = {state.dim for state in call.states.values()}
    if not cut & dims(call, -1):
        return SUM if call.kinds == {"sum"} and call.op == "aten.cumsum" else call.tokens()
    if call.kinds == {"sum"}:
        return SUM if call.op == "aten.cumsum" else call.unknown()
    if call.op in _SORTING and call.dim is not None and "own" not in call.kinds:
        return State("routed", call.dim)
    return mixed(call)


def _contraction(call: Call) -> State:
    """Where the tokens are in the result they were not summed over; else every chunk has its part of the sum."""
    kinds = {state.kind for source, state in call.states.items() if source is not ops.argument(call.node, "offs")}
    if kinds & {"own", "last"}:
        return call.unknown()
    operands = [source for source in call.states if source is not ops.argument(call.node, "offs")]
    if "convolution" in call.op and (call.dim != 0 or "backward" in call.op):
        return mixed(call)
    if in_other_orders(kinds):
        return mixed(call)
    if call.dim is not None:
        return call.unknown() if "sum" in kinds else State(call.sliced(kinds) or "routed", call.dim)
    bias = call.op in ("aten.addmm", "aten.baddbmm", "aten.addmv") or ops.argument(call.node, "bias") is not None
    if bias or (len(operands) != 1 if "sum" in kinds else len(operands) < 2):
        return call.unknown()
    return SUM


def _picked(call: Call) -> State:
    """Rows by an index. A table that all chunks share gives a slice for a slice of indices."""
    name = "weight" if call.op == "aten.embedding" else "self"
    source: Any = ops.argument(call.node, name)
    table = call.states.get(source)
    if table is None:
        return call.tokens()
    indices = {state.kind for other, state in call.states.items() if other is not source}
    if table.kind not in ("rows", "folded", "routed") or indices & {"own", "last"} or call.dim is None:
        return call.unknown()
    by_token = call.op in ("aten.gather", "aten.take_along_dim") and table.dim not in dims(call, None)
    if by_token:
        return call.tokens()
    return call.tokens() if table.dim not in indexed(call) and not indices else State("routed", call.dim)


def _put(call: Call) -> State:
    """Rows put into a buffer. Into the chunk's own rows by the chunk's own numbers: its slice is complete again."""
    base = call.of("self")
    if call.kinds & {"own", "last"}:
        return call.unknown()
    adds = call.op in _ADDING or ops.argument(call.node, "accumulate") is True
    if base is None or base.kind == "sum":
        # Zeros that are not cut collect parts of a sum.
        made = ops.argument(call.node, "self")
        zeros = base is not None or ops.op_name(getattr(made, "target", "")) in _ZEROS
        return SUM if adds and zeros and call.dim is None else call.unknown()
    if call.dim is None:
        return call.unknown()
    return State(base.kind, call.dim) if base.dim in indexed(call) else call.tokens()


def _constant(call: Call) -> State:
    if call.dim is not None:
        like = [state.kind for state in call.states.values() if _whole(call)]
        own: Kind = "folded" if call.folds and product(call.shape[: call.dim]) == 1 else "rows"
        return State("routed" if call.counted else call.sliced(like or [own]) or own, call.dim)
    return SUM if call.op in _ZEROS else call.unknown()


def _counted(call: Call) -> State:
    open_ended = call.op == "aten.histc" and ops.argument(call.node, "min", 0) == ops.argument(call.node, "max", 0)
    if open_ended or ops.argument(call.node, "scale_grad_by_freq") is True:
        return mixed(call)
    return SUM if not call.kinds & {"own", "last", "sum"} and call.dim is None else call.unknown()


def _exchanged(call: Call) -> State:
    if call.kinds == {"sum"}:
        return SUM
    if call.kinds & {"own", "last"} or call.dim is None:
        return call.unknown()
    return State("routed", call.dim)


def _repeated(call: Call) -> State:
    source = call.of("self") or call.of("repeats")
    if call.dim is None or source is None:
        return call.unknown()
    return (
        call.tokens()
        if source.kind in ("rows", "folded") and ops.argument(call.node, "dim") is not None
        else State("routed", call.dim)
    )


def _numbered(call: Call) -> State:
    return State("routed", call.dim) if call.dim is not None else call.unknown()


def _norm(call: Call) -> State:
    """Normalising over features keeps tokens apart; gradients of its weights are sums over tokens."""
    if call.dim is not None:
        return call.tokens()
    return SUM if "backward" in call.op and not call.kinds & {"own", "last", "sum"} else call.unknown()


def _attention(call: Call) -> State:
    """Samples stay apart. Seeds of random numbers are not looked at: none are drawn."""
    wide = {state.kind for source, state in call.states.items() if len(call.shapes[source]) > 2}
    if call.dim is None or not wide <= {"rows"}:
        return call.unknown()
    return State("rows", call.dim)


_FAMILIES: tuple[tuple[frozenset[str], Callable[[Call], State]], ...] = (
    (_VIEWS, _view),
    (_LAYOUT, _layout),
    (_REDUCING, _reduction),
    (_ALONG, _along),
    (_PICKING, _picked),
    (_PUTTING, _put),
    (_COUNTING, _counted),
    (frozenset(_CONSTANTS), _constant),
    (frozenset({"_c10d_functional.all_to_all_single"}), _exchanged),
    (frozenset({"aten.repeat_interleave"}), _repeated),
    (frozenset({"aten.arange"}), _numbered),
)
