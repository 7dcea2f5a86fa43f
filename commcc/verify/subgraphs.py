"""What a traced sub-graph comes to: two that compute, write, draw and launch the same are the same term.

::

    body = Body(walk, meeting(graph, root), kept)      walk: over the sub-graph, with parameter(i, node) for inputs
    term = table.intern(body.key())
    table.summaries[term] = body.summary()             what calling it does besides computing its outputs
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import sympy
import torch

from commcc.graph.index.traits import launches_inside
from commcc.graph.ops.operands import reaching
from commcc.serialization.shapes import symbols_of
from commcc.verify.barriers import sides
from commcc.verify.contents import CAST
from commcc.verify.pair import kind_of
from commcc.verify.sizes import strides_of
from commcc.verify.terms import ANYTHING, Opaque, Summary, Tensor, key_of
from commcc.verify.trace import OP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import fx

    from commcc.graph.ops import OpFacts
    from commcc.verify.sizes import Shape
    from commcc.verify.terms import Value
    from commcc.verify.trace import State


def parameter(position: int, node: fx.Node, fixed: Mapping[str, int]) -> str:
    """A name for an input of a sub-graph that inputs of other shapes do not share; with the numbers for ``fixed``
    symbols, as a graph has them that was fixed to these.
    """

    def told(size: Any) -> Any:
        expression: Any = getattr(getattr(size, "node", None), "expr", None)
        named = [symbol for symbol in getattr(expression, "free_symbols", ()) if str(symbol) in fixed]
        return expression.xreplace({symbol: sympy.Integer(fixed[str(symbol)]) for symbol in named}) if named else size

    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        number = isinstance(val, torch.SymInt) and getattr(told(val), "is_Integer", False)
        return f"{position}: {'int' if number else type(val).__name__}"
    shape, strides = (sizes and tuple(map(told, sizes)) for sizes in (tuple(val.shape), strides_of(val)))
    return f"{position}: {shape} {strides} {val.dtype} {val.device}"


def inputs_by_fixed(inputs: Iterable[tuple[fx.Node, Value]], fixed: Mapping[str, int]) -> list[Value | None]:
    """The inputs of a sub-graph of which fixed sizes decide what is known, None for others; empty without any."""
    known: list[Value | None] = []
    for node, value in inputs:
        val = node.meta.get("val")
        concerned = not symbols_of(val).isdisjoint(fixed) or (bool(fixed) and type(val) is int)
        known.append(value if concerned and isinstance(value, (int, Tensor)) else None)
    return known if any(value is not None for value in known) else []


def misfit(operands: Sequence[Any], inputs: Sequence[Value | None]) -> str:
    """Why a call may hand its sub-graph other sizes than those that it was traced for; empty where it does not."""
    if len(operands) != len(inputs):
        return "which operand becomes which input of a sub-graph that has fixed sizes is not known"
    for place, (handed, known) in enumerate(zip(operands, inputs, strict=True)):
        pairs: list[tuple[Any, Any]] = [] if known is None else [(handed, known)]
        if isinstance(known, Tensor):
            shape = handed.shape if isinstance(handed, Tensor) else None
            pairs = list(zip_longest(shape or (), known.shape or ()))
        if any(type(size) is int and (type(own) is not int or own != size) for own, size in pairs):
            return f"operand {place} is not known to be of the size to which this input of its sub-graph is fixed"
    return ""


def meeting(graph: fx.Graph, root: torch.nn.Module) -> list[fx.Node]:
    """The nodes that are handed a sub-graph which launches a collective."""
    users = dict.fromkeys(user for node in graph.find_nodes(op="get_attr") for user in node.users)
    return [user for user in users if launches_inside(user, root)]


def deeds_of(op: OpFacts) -> Summary:
    """What an op does that a higher-order op calls, besides computing its results."""
    if reaching(op):
        return ANYTHING
    unknown = op.effect or op.barrier
    shares: frozenset[Shape | None] = frozenset({None} if op.views else ())
    effects = unknown or op.host_sync or op.assertion
    return Summary(op.random, effects, op.writing, unknown, shares, fence=op.barrier)


@dataclass
class Body:
    """A sub-graph that was walked. meeting: calls of others that launch collectives. kept: for what those return of
    their constants.
    """

    walk: State
    meeting: list[fx.Node]
    kept: Tensor | None

    def key(self) -> tuple[Any, ...]:
        """All that it does: what it returns and how that is laid out, what it leaves in memory, what it launches."""
        trace, table, memory = self.walk.trace, self.walk.table, self.walk.memory
        outputs = tuple(o.constant if o.value is None else key_of(table, o.value) for o in trace.outputs)
        tensors = [o.value for o in trace.outputs if isinstance(o.value, Tensor)]
        owners: dict[int, tuple[str, int | str]] = {}
        for kind, values in (("input", enumerate(self._inputs)), ("constant", trace.constants.items())):
            owners.update((owner.root, (kind, at)) for at, owner in values if isinstance(owner, Tensor))
        for at, tensor in enumerate(tensors):
            owners.setdefault(tensor.root, ("output", at))
        # Contents do not tell a view from a copy: what is in whose storage, and where, is said as well.
        first, where = memory.first_of, memory.where
        layouts = tuple((t.meta.strides, first(t.root), owners[t.root], where(t).content) for t in tensors)
        constants = ((name, self._versions([value])) for name, value in trace.constants.items())
        written = tuple(constant for constant in constants if constant[1])
        places = (self._versions(self._inputs), written, self._versions(trace.hidden.values()))
        effects = tuple(term for term, _ in (*trace.effects, *trace.bare))
        drawn = tuple(term for term, _ in trace.random), tuple(term for term, _ in trace.draws)
        unused = tuple(sorted(self._unused_launches))
        apart = frozenset((key, frozenset(after)) for key, (after, _) in sides(trace).items())
        sent = frozenset((source, count) for source, count in trace.work.items() if table.keys[source][0] != CAST)
        more = (effects, drawn, unused, apart, sent, tuple(sorted(self._dead)))
        return ("graph", len(trace.inputs), trace.structure, outputs, layouts, places, *more)

    def doubt(self) -> str:
        """Why another key may be the same after all; empty where it is not."""
        undecided = next(filter(None, map(self.walk.table.undecided.get, self._terms())), "")
        if undecided or not (self._unused_launches or self._dead):
            return undecided
        if not self._unused_launches:
            return "it computes what it does not use; whether that runs was not decided"
        return "it launches what it does not use; other ranks may need it and wait for this one"

    def summary(self) -> Summary:
        """What calling it does besides computing its outputs."""
        trace = self.walk.trace
        if self._versions(trace.hidden.values()):
            return ANYTHING
        writes, state = bool(self._versions(self._inputs)), bool(self._versions(trace.constants.values()))
        # What waits for a launch of somebody else's lets others go on, whether its results are needed or not.
        fence = bool(trace.idle or trace.barriers)
        effects = fence or bool(trace.effects or trace.bare)
        return Summary(bool(trace.draws), effects, writes, state, *self._shared(), fence=fence)

    @property
    def _inputs(self) -> list[Value]:
        return [value for _, value in self.walk.trace.inputs]

    @cached_property
    def _unused_launches(self) -> list[int]:
        """Terms of what communicates though nothing outside needs it: without it, outputs are the same."""
        live = self.walk.trace.live
        # A call that does more than compute can be seen from outside, whether its results are needed or not.
        calls = {call.name for call in self.meeting if live.isdisjoint(user.name for user in call.users)}
        steps = (step for step in self.walk.trace.steps if step.node in calls or step.node not in live)
        return [step.term for step in steps if step.node in calls or kind_of(step.path)]

    @cached_property
    def _dead(self) -> set[int]:
        """Terms of what is computed and not used: it may not run."""
        live = self.walk.trace.live
        return {step.term for step in self.walk.trace.steps if step.kind == OP and step.node not in live}

    def _shared(self) -> tuple[frozenset[Shape | None], bool]:
        """Shapes of outputs that share storage with inputs, constants or each other; whether with constants."""
        trace, roots_of = self.walk.trace, self.walk.roots
        given = {root for value in self._inputs for root in roots_of(value)}
        kept = {root for value in (*trace.constants.values(), self.kept) for root in roots_of(value)}
        shapes: set[Shape | None] = set()
        keeps = False
        for output in trace.outputs:
            roots = set(roots_of(output.value))
            keeps = keeps or not roots.isdisjoint(kept)
            if isinstance(output.value, Opaque):  # it may hold tensors of any shape
                shapes.add(None)
            elif not roots.isdisjoint(given | kept):
                shape = output.value.shape if isinstance(output.value, Tensor) else None
                # Symbols have other names outside.
                shapes.add(shape if shape is not None and all(type(size) is int for size in shape) else None)
            given |= roots
        return frozenset(shapes), keeps

    def _versions(self, values: Iterable[Value]) -> tuple[tuple[int, int], ...]:
        """What is left in those of some values that are written: position and version."""
        memory = self.walk.memory
        tensors = [(at, value.root) for at, value in enumerate(values) if isinstance(value, Tensor)]
        return tuple((at, memory.version(root)) for at, root in tensors if memory.at(root).writes)

    def _terms(self) -> Iterator[int]:
        """Terms of all steps and of what they are given."""
        for step in self.walk.trace.steps:
            yield from (step.term, step.plain)
            yield from (key[1] for _, key in step.arguments if key[0] == "value")
        for value in self.walk.trace.constants.values():
            if isinstance(value, Tensor):
                yield self.walk.table.keys[value.content][1]
            elif isinstance(value, Opaque):
                yield value.term
