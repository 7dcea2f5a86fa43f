"""Run a graph on terms instead of tensors: one walk in graph order, every node visited once.

::

    table = Terms()
    before = trace_program(table, program, first=True)
    after = trace_program(table, rewritten, first=False)
    before.outputs[0].value.content == after.outputs[0].value.content

Limits: nothing is executed and no ``val`` of a regrouping op or collective is believed; the shapes of
all other results come from ``val``, once for both graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.verify import calls, subgraphs
from commcc.verify.arguments import bind, key_of
from commcc.verify.facts import Event, Output, Trace
from commcc.verify.host import HostCopies
from commcc.verify.memory import Memory
from commcc.verify.opfacts import facts_of
from commcc.verify.shapes import Formed
from commcc.verify.sizes import Size, Undecidable, product, variable
from commcc.verify.symbols import Symbols, mismatch
from commcc.verify.values import UNKNOWN, Meta, Opaque, Tensor, Value
from commcc.verify.views import regroup, regroups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.program import Program
    from commcc.verify.table import Terms


_PLAIN = frozenset({int, str, bool, float, type(None), torch.dtype, torch.device})


class Tracer:
    """State of one walk. first: this is the graph whose ``val`` stand for both. groups: what stands for which.

    fixed: numbers for symbols.
    """

    def __init__(
        self,
        table: Terms,
        root: torch.nn.Module,
        *,
        first: bool,
        depth: int = 0,
        groups: Mapping[str, str] | None = None,
        fixed: Mapping[str, int] | None = None,
    ) -> None:
        self.table = table
        self.root = root
        self.first = first
        self.depth = depth
        self.groups = groups or {}
        self.fixed = fixed or {}
        self.symbols = Symbols(table, self.fixed)
        self.memory = Memory(table, self._replay)
        self.env: dict[fx.Node, Value] = {}
        self.trace = Trace(memory=self.memory)
        self.host = HostCopies()
        self.relaid = False

    def walk(self, graph: fx.Graph, inputs: dict[str, str] | None = None) -> Trace:
        """Trace all nodes; ``inputs`` gives placeholders the names that they have in the other graph."""
        for node in graph.nodes:
            self.trace.nodes += 1
            if node.op == "placeholder":
                self.env[node] = self._placeholder(node, (inputs or {}).get(node.name, node.name))
            elif node.op == "output":
                self._output(node)
            elif node.op == "get_attr":
                self.env[node] = subgraphs.attribute(self, node)
            elif node.op == "call_function":
                self.env[node] = calls.call(self, node)
            else:
                self.env[node] = Opaque(self.table.foreign(node))
        return self.trace

    # Reading

    def resolve(self, argument: Any, reader: fx.Node | None) -> Any:
        """An argument with nodes replaced by values; ``reader`` reads the tensors among them now."""
        if type(argument) in _PLAIN:
            return argument
        if isinstance(argument, fx.Node):
            return self.env[argument] if reader is None else self._fresh(argument, reader)
        if isinstance(argument, (tuple, list)):
            return tuple(self.resolve(part, reader) for part in argument)
        if isinstance(argument, dict):
            return {name: self.resolve(part, reader) for name, part in argument.items()}
        if isinstance(argument, slice):
            return slice(*(self.resolve(part, reader) for part in (argument.start, argument.stop, argument.step)))
        # A size may be written in place of the node that computes it.
        return self.symbols.size_or(argument, argument) if isinstance(argument, torch.SymInt) else argument

    def arguments(self, node: fx.Node, *, read: bool = True) -> dict[str, Any]:
        """All arguments of a node by name, resolved, and read unless told otherwise."""
        reader = node if read else None
        return {name: self.resolve(value, reader) for name, value in bind(node).items()}

    def _fresh(self, operand: fx.Node, reader: fx.Node) -> Value:
        value = self.env[operand]
        if isinstance(value, Tensor):
            fresh = self.read(value, reader, operand.name)
            if fresh is not value:
                self.env[operand] = fresh
            return fresh
        if isinstance(value, tuple):
            return tuple(self.read(v, reader, operand.name) if isinstance(v, Tensor) else v for v in value)
        return value

    def read(self, tensor: Tensor, reader: fx.Node, name: str) -> Tensor:
        """The tensor as it reads now; reading what a launch or a copy has not delivered yet is an event."""
        flight = self.memory.storages[tensor.root].filling
        if flight is not None:
            text = f"reads '{name}' before the wait of launch '{flight.node}'"
            self.event("wait", reader, text, ("read", flight.key, _path(reader)))
        if self.host.coming:
            self.host.check(self, tensor, reader)
        fresh = self.memory.current(tensor)
        if fresh is not tensor:
            self.saw(fresh.content, name)
            if fresh.content != tensor.content:
                writer = self.trace.writers.get(self.memory.version(tensor.root), "")
                self.trace.written.setdefault(fresh.content, writer)
        return fresh

    def event(self, rule: str, node: fx.Node, text: str, key: tuple[Any, ...]) -> None:
        self.trace.events.append(Event(rule, node.name, text, key))

    # Results

    def saw(self, content: int, name: str) -> None:
        """Remember that some node holds this content."""
        if content not in self.trace.names:
            self.trace.names[content] = name
            self.trace.sources.update(self.table.sources_of(content))

    def tensor(self, content: int, meta: Meta, node: fx.Node, base: Tensor | None = None) -> Tensor:
        """A tensor in storage of its own, or in the storage of ``base``."""
        self.saw(content, node.name)
        root = self.memory.allocate() if base is None else base.root
        made = Tensor(content, meta, root, self.memory.stamp(root), base)
        return made if base is not None else self.memory.own(made)

    def result(self, node: fx.Node, val: Any, term: int, bases: tuple[Tensor | None, ...]) -> Value:
        """The result of an op that is not explained, from its ``val``; ``bases``: what each part is a view of."""
        if isinstance(val, torch.Tensor):
            source = self.table.source(("array", term), None, None)
            meta = self._settle(node, source, self.symbols.meta_of(val, source))
            numel = None if meta.shape is None else product(meta.shape)
            self.table.source(("array", term), numel, meta.dtype)
            return self.tensor(source, meta, node, bases[0] if bases else None)
        if isinstance(val, (tuple, list)):
            spread = bases if len(bases) == len(val) else (bases[:1] or (None,)) * len(val)
            parts = (self.table.intern(("out", term, i)) for i in range(len(val)))
            made = zip(val, parts, spread, strict=True)
            return tuple(self.result(node, v, part, () if b is None else (b,)) for v, part, b in made)
        if isinstance(val, torch.SymInt):
            return self._size(val, term)
        return Opaque(term, bases[0] if bases else None)

    def _size(self, val: torch.SymInt, term: int) -> Size:
        size: Size = variable(term)
        self.symbols.define(val, size)
        known = self.symbols.size_or(val, size) if self.fixed else size
        return known if isinstance(known, int) else size

    def _settle(self, node: fx.Node, source: int, meta: Meta) -> Meta:
        """What is known about the results of a term; the second graph must agree with the first.

        Strides may follow those of the operands, where an op reads tensors that are laid out in another way.
        """
        known = self.table.metas.setdefault(source, [])
        if meta in known:
            return meta
        if self.first or not known or (self.relaid and any(m._replace(strides=meta.strides) == meta for m in known)):
            known.append(meta)
            return meta
        for candidate in known:
            if not mismatch(candidate, meta):
                return candidate
        text = f"its val says {mismatch(known[0], meta)}"
        self.event("input" if node.op == "placeholder" else "value", node, text, ("val", source, text))
        return known[0]

    def check(self, node: fx.Node, tensor: Tensor, val: Any) -> None:
        """Compare what was computed about a tensor with its ``val``, and fill in what is only said there."""
        if not isinstance(val, torch.Tensor):
            return
        said = self.symbols.meta_of(val, tensor.content)
        wrong = mismatch(tensor.meta, said)
        if wrong:
            self.event("value", node, f"its val says {wrong}", ("val", tensor.content, wrong))
        known = tensor.meta
        tensor.meta = Meta(
            said.shape if known.shape is None else known.shape,
            said.strides if known.strides is None else known.strides,
            said.dtype if known.dtype is None else known.dtype,
            said.device if known.device is None else known.device,
        )

    # Boundary

    def _placeholder(self, node: fx.Node, name: str) -> Value:
        term = self.table.intern(("input", name))
        val = node.meta.get("val")
        value = val if self.fixed and type(val) is int else self.result(node, val, term, ())
        if isinstance(val, (tuple, list)):
            value = Opaque(term)
        self.trace.inputs.append((node.name, value))
        self.trace.metas[node.name] = self.symbols.meta_of(val, term) if isinstance(val, torch.Tensor) else UNKNOWN
        return value

    def _output(self, node: fx.Node) -> None:
        structure: list[str] = []
        self._leaves(node, node.args[0] if node.args else None, "", structure)
        self.trace.structure = "".join(structure)
        for storage in self.memory.storages:
            if storage.filling is not None:
                self._never_waited(storage.filling.node, storage.filling.key)

    def _never_waited(self, name: str, key: tuple[Any, ...]) -> None:
        event = Event("wait", name, "its result is never waited for", ("unwaited", key))
        if event not in self.trace.events[-4:]:
            self.trace.events.append(event)

    def _leaves(self, node: fx.Node, part: Any, path: str, structure: list[str]) -> None:
        if isinstance(part, (tuple, list, dict)):
            names = list(part) if isinstance(part, dict) else range(len(part))
            structure.append("{" if isinstance(part, dict) else "(")
            for name in names:
                structure.append(f"{name}:" if isinstance(part, dict) else "")
                self._leaves(node, part[name], f"{path}.{name}" if path else str(name), structure)
            structure.append(")")
            return
        structure.append("*")
        if isinstance(part, fx.Node):
            self.trace.outputs.append(Output(path, part.name, self._fresh(part, node)))
        else:
            self.trace.outputs.append(Output(path, "", None, key_of(self.table, part)))

    def _replay(self, view: Tensor, place: Tensor) -> Tensor:
        """The view that made a tensor, over another base."""
        if view.via is None:
            return place
        node, index, base = view.via
        path = facts_of(node.target).path
        arguments = {**self.arguments(node, read=False), base: place}
        if regroups(path):
            try:
                formed = regroup(self.table, path, arguments)
                part = formed if isinstance(formed, Formed) else formed[index]
                return Tensor(part.content, Meta(part.shape, part.strides, part.dtype, None), place.root)
            except Undecidable:
                pass
        keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
        numel = None if view.shape is None else product(view.shape)
        term = self.table.intern(("op", path, keys))
        if isinstance(node.meta.get("val"), (tuple, list)):
            term = self.table.intern(("out", term, index))
        return Tensor(self.table.source(("array", term), numel, view.dtype), view.meta, place.root)


def _path(node: fx.Node) -> str:
    return facts_of(node.target).path if node.op == "call_function" else node.op


def trace_program(
    table: Terms,
    program: Program,
    *,
    first: bool,
    inputs: dict[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    fixed: Mapping[str, int] | None = None,
) -> Trace:
    """Trace the graph of a program; the graph must be in order (:func:`commcc.verify.order.check_order`).

    inputs: names of placeholders in the other graph. groups: process groups that stand for another one.
    fixed: numbers for symbols in sizes.
    """
    return Tracer(table, program.root, first=first, groups=groups, fixed=fixed).walk(program.graph, inputs)
