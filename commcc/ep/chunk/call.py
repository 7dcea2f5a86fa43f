"""One node of a body as a chunk runs it, for the rules that say what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commcc.ep.chunk.state import OVER_TOKENS, State
from commcc.graph import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import fx

    from commcc.ep.chunk.state import States


@dataclass(frozen=True)
class Call:
    """One node as a chunk runs it. states: of tensor operands that differ by chunk. dim: of the tokens in the result.

    shapes: of those operands, in the whole. shape: of the result. counted: ``dim`` is as long as tokens came in.
    samples: that lie before the sequence which is cut, where it is the sequence. folds: ``dim`` is long enough for the
    sequences of all of them. known: states of all nodes before.
    """

    node: fx.Node
    op: str
    states: Mapping[fx.Node, State]
    shapes: Mapping[fx.Node, Sequence[Any]]
    shape: Sequence[Any]
    dim: int | None
    counted: bool = False
    samples: int = 1
    folds: bool = False
    known: Mapping[Any, States] = field(default_factory=dict)

    def of(self, name: str) -> State | None:
        """The state of the argument ``name``; None when it is the same in every chunk."""
        value = ops.argument(self.node, name)
        return self.states.get(value) if hasattr(value, "op") else None

    @property
    def kinds(self) -> set[str]:
        return {state.kind for state in self.states.values()}

    def unknown(self) -> State:
        """Nothing known, and which op it is from; rows that came in stay rows in an order of their own, unless they
        meet what depends on all tokens.
        """
        known = sorted((state for state in self.states.values() if state.why), key=lambda state: not state.spoilt)
        if self.counted and self.dim is not None and not (known and known[0].spoilt):
            return State("routed", self.dim)
        if known:
            return State("own", None, known[0].why, mixer=known[0].mixer, spoilt=known[0].spoilt)
        return State("own", None, f"'{self.node.name}' ({self.op})", mixer=self.node)

    def tokens(self) -> State:
        """Rows, or folded, when all operands are, else routed; nothing known where rows meet rows in another order."""
        slices = {(state.kind, state.apart) for state in self.states.values()} - {("routed", 1)}
        if self.dim is None or self.kinds & {"own", "sum", "last"} or len(slices) > 1:
            return self.unknown()
        return self.sliced(self.states.values())

    def sliced(self, states: Iterable[State]) -> State:
        """Slices along ``dim`` when all of ``states`` are such slices, else tokens in an order of their own."""
        alike = {(state.kind, state.apart) for state in states} or {("rows", 1)}
        kind, apart = min(alike)
        return State(kind, self.dim, apart=apart) if len(alike) == 1 else State("routed", self.dim)


def in_other_orders(states: Iterable[State]) -> bool:
    """Whether tokens of one operand meet those of another in another order, so that they are not the same tokens."""
    return len({(state.kind, state.apart) for state in states if state.kind in ("rows", "folded", "routed")}) > 1


def mixed(call: Call) -> State:
    """Nothing known, because the op works across tokens."""
    spoilt = call.kinds <= {"rows", "folded"}  # tokens in an order of the chunk's own are not those of other chunks
    why = f"'{call.node.name}' ({call.op}{OVER_TOKENS}"
    return State("own", None, why, mixer=call.node, spoilt=spoilt)


def dims(call: Call, default: int | None) -> set[int | None]:
    """The dimensions that an op works on, counted from the left of its first operand; all when it names none."""
    first = next(iter(call.states))
    rank = len(call.shapes[first])
    given = ops.argument(call.node, "dims", ops.argument(call.node, "dim", default))
    if given is None or given == []:
        return set(range(rank))
    return {dim % rank if rank else 0 for dim in (given if isinstance(given, (list, tuple)) else [given])}


def indexed(call: Call) -> set[int | None]:
    """Dimensions of the operand that are indexed."""
    lists = ops.argument(call.node, "indices")
    if isinstance(lists, (list, tuple)):
        return {i for i, index in enumerate(lists) if index is not None}
    return dims(call, 0)


def product(sizes: Sequence[Any]) -> object:
    """The number of elements; its text where sizes are symbols."""
    total: Any = 1
    for size in sizes:
        total = total * size
    return total if isinstance(total, int) else str(total)
