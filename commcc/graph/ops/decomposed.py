"""What an op is made of, by PyTorch's own decompositions.

    made = parts_of(layer_norm, {"x": 0})     # x: f32[60, 16], whose rows are 60
    [op_name(n.target) for n in made.graph.nodes if n.op == "call_function"]
    # ['aten.var_mean', '_operator.getitem', '_operator.getitem', 'aten.add', 'aten.rsqrt', 'aten.sub', ...]

Traced on fake tensors of two sizes. Where both traces are the same but for sizes, nothing else depends on how many
rows there are. Limits: one level of decomposition; symbols stand for numbers of the tracer's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from commcc.graph.ops.names import library_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: Sizes that stand for symbols, one after another; no tensor has them by chance, and both halves of them are whole.
_FIRST, _STEP = 1_006, 34
#: Arguments that are sizes of a result.
SIZES = frozenset({"size", "sizes", "shape", "input_sizes"})


@dataclass(frozen=True)
class Parts:
    """graph: of the ops, whose placeholders stand for ``operands``, in order. cut: by name, the dimensions of a size
    that follows the number of rows.
    """

    graph: fx.Graph
    operands: tuple[fx.Node, ...]
    cut: dict[str, tuple[int, ...]]


def parts_of(node: fx.Node, rows: Mapping[str, int], sizes: Collection[int] = ()) -> Parts | None:
    """The ops that ``node`` is made of; None where PyTorch does not say, or something else than sizes depends on them.

    rows: by name of an operand the dimension of its rows. sizes: places of sizes among the arguments that follow their
    number.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or library_of(target) not in ("aten", "prims"):
        return None
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
        return None
    operands = tuple(node.all_input_nodes)
    if not all(isinstance(used.meta.get("val"), torch.Tensor) for used in operands):
        return None
    try:
        whole, twice = (_traced(_resized(node, sizes, factor), operands, rows, factor) for factor in (1, 2))
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError, KeyError, IndexError):
        return None
    if whole is None or twice is None:
        return None
    if not _same_shapes(node.meta.get("val"), fx.node.map_arg(whole.output_node().args[0], lambda n: n.meta["val"])):
        return None  # a decomposition that gives something else than the op
    cut = _differences(whole, twice)
    return None if cut is None else Parts(whole, operands, cut)


def _same_shapes(recorded: Any, traced: Any) -> bool:
    """Whether results are as they were recorded, as far as sizes are numbers."""
    several = isinstance(recorded, (list, tuple)), isinstance(traced, (list, tuple))
    if any(several):
        alike = all(several) and len(recorded) == len(traced)
        return alike and all(_same_shapes(*pair) for pair in zip(recorded, traced, strict=True))
    if not isinstance(recorded, torch.Tensor) or not isinstance(traced, torch.Tensor):
        return recorded is None or traced is None
    known = zip(recorded.shape, traced.shape, strict=False)
    return len(recorded.shape) == len(traced.shape) and all(type(a) is not int or a == b for a, b in known)


def _resized(node: fx.Node, sizes: Collection[int], factor: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The op and its arguments, with sizes of so many times the rows."""
    target: Any = node.target
    named = [argument.name in SIZES for argument in target._schema.arguments]

    def scaled(value: Any) -> Any:
        return [size * factor if at in sizes else size for at, size in enumerate(value)]

    args = tuple(scaled(value) if sizes and own else value for value, own in zip(node.args, named, strict=False))
    return target, args, {name: scaled(v) if sizes and name in SIZES else v for name, v in node.kwargs.items()}


def _traced(
    called: tuple[Any, tuple[Any, ...], dict[str, Any]],
    operands: tuple[fx.Node, ...],
    rows: Mapping[str, int],
    factor: int,
) -> fx.Graph | None:
    target, *_ = called
    arguments: Any = called[1:]
    call = decomposition_table.get(target)
    if call is None and target._can_decompose():
        call = target.decompose
    if call is None:
        return None
    symbols: dict[Any, int] = {}

    def sized(used: fx.Node) -> torch.Tensor:
        val = used.meta["val"]
        sizes = [_number(size, symbols) for size in val.shape]
        if used.name in rows:
            sizes[rows[used.name]] *= factor
        return torch.empty(sizes, dtype=val.dtype)

    def run(*given: torch.Tensor) -> Any:
        args, kwargs = fx.node.map_arg(arguments, dict(zip(operands, given, strict=True)).get)
        result = call(*args, **kwargs)
        return tuple(result) if isinstance(result, tuple) else result  # named ones would be nodes of their own

    with FakeTensorMode():
        return make_fx(run, tracing_mode="fake")(*map(sized, operands)).graph


def _number(size: Any, symbols: dict[Any, int]) -> int:
    """A size as a number: symbols get one each, the same wherever they stand."""
    if type(size) is int:
        return size
    expr = size.node.expr
    for symbol in sorted(expr.free_symbols, key=str):
        symbols.setdefault(symbol, _FIRST + _STEP * len(symbols))
    return int(expr.xreplace({symbol: symbols[symbol] for symbol in expr.free_symbols}))


def _differences(whole: fx.Graph, twice: fx.Graph) -> dict[str, tuple[int, ...]] | None:
    """The places of sizes that differ between two traces, by node; None where anything else does."""
    cut: dict[str, tuple[int, ...]] = {}
    pairs = list(zip(whole.nodes, twice.nodes, strict=False))
    if len(whole.nodes) != len(twice.nodes):
        return None
    for one, other in pairs:
        alike = (one.op, one.name, str(one.target)) == (other.op, other.name, str(other.target))
        if not alike or one.op == "get_attr":  # a constant of the tracer's is a tensor that the text does not show
            return None
        names = [argument.name for argument in one.target._schema.arguments] if hasattr(one.target, "_schema") else []
        for place, (first, second) in enumerate(zip(_arguments(one), _arguments(other), strict=True)):
            if first == second:
                continue
            named = names[place] if place < min(len(names), len(one.args)) else ""
            if named not in SIZES or len(first) != len(second):
                return None
            places = tuple(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
            # One size follows the rows, as they do: another one would be another dimension that is cut.
            if len(places) != 1 or first[places[0]] * 2 != second[places[0]]:
                return None
            cut[one.name] = places
    return cut


def _arguments(node: fx.Node) -> list[Any]:
    """Arguments with names in place of nodes."""
    named: list[Any] = fx.node.map_arg([*node.args, sorted(node.kwargs.items())], lambda used: f"%{used.name}")
    return named
