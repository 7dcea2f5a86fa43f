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
from commcc.graph.ops.arithmetic import ADDITIVE, ELEMENTWISE, SCALING
from commcc.graph.ops.collective_table import ALL_REDUCE, EXCHANGE
from commcc.graph.ops.constants import COUNTING_UP, FILLED, REPLACING, ZEROS
from commcc.graph.ops.described import RESULT
from commcc.graph.ops.filled import is_filled
from commcc.graph.ops.indexing import ADDING, BY_ELEMENT, COUNTING, PICKING, PUTTING
from commcc.graph.ops.products import BIASED
from commcc.graph.ops.reductions import ALONG, NORMS, REDUCING, SORTING
from commcc.graph.ops.sizes import REPEAT, TAKEN
from commcc.graph.ops.twins import functional
from commcc.graph.ops.views import LAYOUT, RESHAPES, TAKING

if TYPE_CHECKING:
    from collections.abc import Callable


def state_of(call: Call) -> State:
    """The state of the (single-tensor) result of ``call``."""
    state, result = _rule(call)(call), call.node.meta.get("val")
    if state.kind == "sum" and isinstance(result, torch.Tensor) and not result.dtype.is_floating_point:
        parts = call.states.items()
        sums = [source.meta["val"] for source, given in parts if given.kind == "sum" and not given.counts]
        if any(value.dtype.is_floating_point for value in sums):  # each part would be rounded to whole numbers
            return call.unknown()
    return state


def _rule(call: Call) -> Callable[[Call], State]:
    op = call.op
    described = ops.described_as(call.node.target)
    if described is not None and described.like is None:
        return _described
    for names, rule in _FAMILIES:
        if op in names:
            return rule
    if "scaled_dot_product" in op or "_attention" in op:
        return _attention
    if any(norm in op for norm in NORMS):
        return _norm
    if op in ops.COMPUTE:
        return _contraction
    target = functional(call.node.target)
    pointwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    return _elementwise if pointwise or op in ELEMENTWISE else Call.unknown


def _described(call: Call) -> State:
    """As its description says: row by row, the tokens of every operand in the dimension that is named."""
    described = ops.described_as(call.node.target)
    assert described is not None
    if not isinstance(call.node.meta.get("val"), torch.Tensor):
        return call.unknown()  # the description is of one result
    tokens, bound = dict(described.tokens), described.bound(call.node.args, call.node.kwargs)
    named = {value: tokens.get(name) for name, value in bound.items() if hasattr(value, "op")}
    fits = all(state.dim == named.get(source) for source, state in call.states.items() if len(call.shapes[source]))
    if not fits or call.dim is None or call.dim != tokens.get(RESULT):
        return call.unknown()
    return mixed(call) if in_other_orders(call.states.values()) else call.tokens()


def _layout(call: Call) -> State:
    if not call.states:  # what all chunks share, and as long in each as only a run can tell
        return call.unknown()
    if call.kinds == {"sum"}:
        return SUM
    cut = {state.dim for state in call.states.values()}
    if call.op == "aten.cat" and "routed" not in call.kinds and dims(call, 0) & cut:
        return call.unknown()
    if call.op in TAKING and dims(call, 0) & cut and not _whole(call):
        if call.kinds == {"routed"} and call.dim is not None and _by_counts(call):
            return call.tokens()
        return mixed(call)  # the first rows of a chunk are not those of the whole
    return call.tokens()


def _by_counts(call: Call) -> bool:
    """Whether what is taken is as long as the chunk's own counts say: tokens of one expert, or from one rank."""
    given = [ops.argument(call.node, name, 0) for name in TAKEN.get(call.op, ())]
    sizes = [part for size in given for part in (size if isinstance(size, (list, tuple)) else (size,))]
    # A slice may begin at the first row; all other numbers are read from what the chunk has counted.
    return any(size in call.known for size in sizes) and all(size == 0 or size in call.known for size in sizes)


def _whole(call: Call) -> bool:
    """Whether the result is as large as the operand."""
    return str(list(call.shape)) == str(list(next(iter(call.shapes.values()), ())))


def _view(call: Call) -> State:
    """Slices stay slices; what lies before them in the dimension that they are in now are blocks of tokens."""
    if call.kinds == {"sum"}:
        return SUM
    if not call.states:  # what all chunks share, in a shape that only a run can tell
        return call.unknown()
    (source, state), *_ = call.states.items()
    if state.kind not in ("rows", "folded") or state.dim is None or call.dim is None:
        return call.tokens()
    outside, before = product(call.shapes[source][: state.dim]), product(call.shape[: call.dim])
    if outside == before:
        return call.tokens()
    if not (isinstance(outside, int) and isinstance(before, int)) or outside * state.apart % max(before, 1):
        return call.unknown()
    apart = outside * state.apart // before
    return State("rows" if apart == 1 else "folded", call.dim, apart=apart)


def _elementwise(call: Call) -> State:
    if call.op in REPLACING:
        return _replaced(call)
    if "sum" in call.kinds:
        return _linear(call)
    for source, state in call.states.items():
        # Operands are broadcast from the right; slices must lie in the same dimension of the result.
        place = None if state.dim is None else len(call.shape) - len(call.shapes[source]) + state.dim
        if state.kind in ("rows", "folded") and place != call.dim:
            return call.unknown()
    if in_other_orders(call.states.values()) and not call.kinds & {"own", "last"}:
        return mixed(call)
    return call.tokens()


def _replaced(call: Call) -> State:
    """All of the target is overwritten: with elements of a source where one is named, whatever was there before."""
    source = call.of("src") or call.of("source")
    named = ops.argument(call.node, "src", ops.argument(call.node, "source"))
    target: Any = ops.argument(call.node, "self")
    if source is not None and len(call.shapes[named]) == len(call.shape) and source.dim == call.dim:
        return source
    filled = not hasattr(named, "op") and target in call.states and call.states[target].kind != "sum"
    return call.states[target] if filled and call.states[target].dim == call.dim else call.unknown()


def _linear(call: Call) -> State:
    """Sums of parts are parts of the sum; so is a part times what is the same in every chunk."""
    tensors = [arg for arg in call.node.args[:2] if hasattr(arg, "op")]
    if call.op in ADDITIVE and call.kinds == {"sum"} and len(tensors) == 2 and all(t in call.states for t in tensors):
        return SUM
    if ops.argument(call.node, "rounding_mode") is not None:
        return call.unknown()
    scaled = [arg for arg in call.node.args[:2] if hasattr(arg, "op") and arg in call.states]
    if call.op in SCALING and call.kinds == {"sum"} and scaled == [call.node.args[0]]:
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
    if call.op in SORTING and call.dim is not None and "own" not in call.kinds:
        return State("routed", call.dim)
    return mixed(call)


def _contraction(call: Call) -> State:
    """Where the tokens are in the result they were not summed over; else every chunk has its part of the sum."""
    operands = {source: state for source, state in call.states.items() if source is not ops.argument(call.node, "offs")}
    kinds = {state.kind for state in operands.values()}
    if kinds & {"own", "last"}:
        return call.unknown()
    if "convolution" in call.op and (call.dim != 0 or "backward" in call.op):
        return mixed(call)
    if in_other_orders(operands.values()):
        return mixed(call)
    if call.dim is not None:
        return call.unknown() if "sum" in kinds else call.sliced(operands.values())
    bias = call.op in BIASED or ops.argument(call.node, "bias") is not None
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
    index: Any = ops.argument(call.node, "indices", ops.argument(call.node, "index"))
    by_rows = table.kind == "routed" and call.op not in BY_ELEMENT and table.dim in indexed(call)
    unsorted = call.known.get(_inverted(index)) if by_rows and not call.counted else None
    if isinstance(unsorted, State) and unsorted.kind in ("rows", "folded"):
        return State(unsorted.kind, call.dim, apart=unsorted.apart)
    by_token = call.op in BY_ELEMENT and table.dim not in dims(call, None)
    if by_token:
        return call.tokens()
    return call.tokens() if table.dim not in indexed(call) and not indices else State("routed", call.dim)


def _inverted(index: Any) -> Any:
    """What was sorted, if an index is the order of the order of it: that puts sorted rows back; None otherwise."""
    index = index[0] if isinstance(index, (list, tuple)) and len(index) == 1 else index
    # numbers[order] = 0, 1, 2, ... is the order of the order too.
    if ops.op_name(functional(getattr(index, "target", None))) == "aten.index_put":
        values, order = ops.argument(index, "values"), ops.argument(index, "indices")
        numbered = ops.op_name(getattr(values, "target", "")) in COUNTING_UP and not ops.argument(index, "accumulate")
        return _sorted_by(order[0]) if numbered and isinstance(order, (list, tuple)) and len(order) == 1 else None
    first = _sorted_by(index)
    return None if first is None else _sorted_by(first)


def _sorted_by(index: Any) -> Any:
    """What an index has been sorted by; None where it is none."""
    if ops.op_name(getattr(index, "target", "")) == "aten.argsort":
        return ops.argument(index, "self")
    source: Any = index.args[0] if ops.is_getitem(getattr(index, "target", None)) and index.args[1] == 1 else None
    return ops.argument(source, "self") if ops.op_name(getattr(source, "target", "")) == "aten.sort" else None


def _put(call: Call) -> State:
    """Rows put into a buffer. Into the chunk's own rows by the chunk's own numbers: its slice is complete again."""
    base = call.of("self")
    if call.kinds & {"own", "last"}:
        return call.unknown()
    values = (ops.argument(call.node, name) for name in ("values", "source", "src"))
    broadcast = any(len(call.shapes[value]) != len(call.shape) for value in values if value in call.shapes)
    if broadcast and (base is None or base.kind == "sum" or base.dim in indexed(call)):
        return mixed(call)  # a chunk of one row is put to other places than rows of the whole
    adds = call.op in ADDING or ops.argument(call.node, "accumulate") is True
    if base is None or base.kind == "sum":
        # Zeros that are not cut collect parts of a sum.
        buffer = ops.argument(call.node, "self")
        zeros = base is not None or is_filled(buffer, 0)
        return SUM if adds and zeros and call.dim is None else call.unknown()
    if call.dim is None:
        return call.unknown()
    return State(base.kind, call.dim, apart=base.apart) if base.dim in indexed(call) else call.tokens()


def _constant(call: Call) -> State:
    if call.dim is not None:
        if call.counted:
            return State("routed", call.dim)
        like = call.sliced(call.states.values()) if call.kinds <= {"rows", "folded"} and _whole(call) else None
        if like is not None and like.kind != "routed":
            return like
        folded = call.folds and product(call.shape[: call.dim]) == 1
        return State("folded", call.dim, apart=call.samples) if folded else State("rows", call.dim)
    return SUM if call.op in ZEROS else call.unknown()


def _counted(call: Call) -> State:
    open_ended = call.op == "aten.histc" and ops.argument(call.node, "min", 0) == ops.argument(call.node, "max", 0)
    if open_ended or ops.argument(call.node, "scale_grad_by_freq") is True:
        return mixed(call)
    if call.kinds & {"own", "last", "sum"} or call.dim is not None:
        return call.unknown()
    return State("sum", counts=len(call.node.all_input_nodes) == 1)  # no weights, and no gradients, are added up


def _exchanged(call: Call) -> State:
    if call.kinds == {"sum"}:
        return SUM
    if call.kinds & {"own", "last"} or call.dim is None:
        return call.unknown()
    sizes = ops.argument(call.node, "output_split_sizes")
    if all(type(size) is int for size in sizes or (None,)):  # equal for all: of each rank's tokens the same slice
        return call.tokens()
    return State("routed", call.dim)


def _repeated(call: Call) -> State:
    if call.dim is None:
        return call.unknown()
    if call.op in COUNTING_UP:  # numbers of the chunk's own tokens
        return State("routed", call.dim)
    source = call.of("self") or call.of("repeats")
    if source is None:
        return call.unknown()
    if source.kind in ("rows", "folded") and ops.argument(call.node, "dim") is not None:
        return call.tokens()
    return State("routed", call.dim)


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
    (RESHAPES, _view),
    (LAYOUT, _layout),
    (REDUCING, _reduction),
    (ALONG, _along),
    (PICKING, _picked),
    (PUTTING, _put),
    (COUNTING, _counted),
    (FILLED, _constant),
    (frozenset({EXCHANGE}), _exchanged),
    (frozenset({ALL_REDUCE}), Call.tokens),  # to each element of a chunk every rank does what it does in the whole
    (frozenset({REPEAT, *COUNTING_UP}), _repeated),
)
