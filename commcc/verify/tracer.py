"""Run a graph on terms instead of tensors: one walk in graph order, every node visited once.

::

    table = Terms()
    before = trace_program(table, program, first=True)
    after = trace_program(table, rewritten, first=False)
    before.outputs[0].value.content == after.outputs[0].value.content

Regrouping ops are explained, everything else becomes a term of its operands. The sub-graph of a higher-order op is
traced like a graph of its own; two sub-graphs are the same term when they compute the same outputs, writes and
effects from their inputs, whatever their nodes are called.

Limits: nothing is executed and no ``val`` of a regrouping op or collective is believed; the shapes of
all other results come from ``val``, once for both graphs. At most :data:`MAX_DEPTH` levels of sub-graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.graph.ops import op_name
from commcc.graph.ops.arithmetic import ON_SIZES
from commcc.graph.ops.constants import COPIES
from commcc.graph.ops.sizes import EXTENTS
from commcc.verify import launches
from commcc.verify.contents import CAST, cast, counts, is_widening
from commcc.verify.normalise import check_order, find
from commcc.verify.opfacts import OpFacts, facts_of
from commcc.verify.regroup import regroup
from commcc.verify.reshaping import COPY, INVALID, MAYBE, Formed
from commcc.verify.sizes import Impossible, Size, Undecidable, apply_function, product
from commcc.verify.symbols import settled
from commcc.verify.terms import UNKNOWN, Meta, Opaque, Summary, Tensor, Value, all_tensors, is_size, key_of, tensors_in
from commcc.verify.trace import CONVERSION, OP, VIEW, Event, Output, State, Step, Trace
from commcc.verify.verdict import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.ops import Aliasing
    from commcc.graph.program import Program
    from commcc.verify.terms import Terms

#: What a regrouping op calls the tensor, or the tensors, that it regroups.
_OPERANDS = ("self", "a", "tensors", "ag_ins", "rs_ins")
MAX_DEPTH = 16


class Tracer(State):
    """The walk. groups: which process groups stand for another one. depth: of sub-graphs."""

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
        super().__init__(table, first=first, fixed=fixed)
        self.root = root
        self.depth = depth
        self.groups = groups or {}

    def walk(self, graph: fx.Graph, inputs: dict[str, str] | None = None) -> Trace:
        """Trace all nodes; ``inputs`` gives placeholders the names that they have in the other graph."""
        for node in graph.nodes:
            self.trace.nodes += 1
            if node.op == "placeholder":
                self.env[node] = self._placeholder(node, (inputs or {}).get(node.name, node.name))
            elif node.op == "output":
                self._output(node)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "call_function":
                self.env[node] = self._call(node)
            else:
                self.env[node] = Opaque(self.table.foreign(node))
        return self.trace

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
            self.trace.outputs.append(Output(path, part.name, self.fresh(part, node)))
        else:
            self.trace.outputs.append(Output(path, "", None, key_of(self.table, part)))

    # One node

    def _call(self, node: fx.Node) -> Value:
        """The result of a node that calls an op."""
        facts = facts_of(node.target)
        if facts.getitem:
            return self._getitem(node)
        if facts.wait:
            waited = launches.wait(self, node)
            return (
                self._opaque(node, self.arguments(node), "a wait on what is not a tensor") if waited is None else waited
            )
        if facts.launch is not None:
            return launches.launch(self, node, facts.launch, self.groups)
        path = facts.path
        arguments = self.arguments(node, read=facts.reads)
        size = self._arithmetic(path, arguments)
        if size is not None:
            self.symbols.define(node.meta.get("val"), size)
            return size
        known = settled(self.table, path, arguments) if self.fixed else None
        if known is not None:
            return known
        why, fills = "", op_name(node.target) in COPIES
        if facts.explained or fills:
            try:
                return (self._filled if fills else self._regrouped)(node, path, arguments)
            except Impossible as reason:
                keys = tuple(key_of(self.table, value) for value in arguments.values())
                self.event("value", node, f"{path} cannot run: {reason}", ("impossible", path, keys))
            except Undecidable as reason:
                why = str(reason)
        return self._opaque(node, arguments, why)

    def _arithmetic(self, path: str, arguments: dict[str, Any]) -> Size | None:
        """The value of integer arithmetic, None for anything else."""
        name = ON_SIZES.get(path)
        try:
            if name is not None:
                values = list(arguments.values())
                flat = (
                    values[0] if path == "torch.sym_sum" and values and isinstance(values[0], tuple) else tuple(values)
                )
                return apply_function(name, flat, self.table.function) if flat and all(map(is_size, flat)) else None
            if path not in EXTENTS:
                return None
            tensor = arguments.get("self")
            if not isinstance(tensor, Tensor) or tensor.shape is None:
                return None
            return product(tensor.shape) if path == "aten.sym_numel.default" else tensor.shape[arguments["dim"]]
        except (Undecidable, IndexError, KeyError, TypeError):
            return None

    def _getitem(self, node: fx.Node) -> Value:
        if len(node.args) != 2 or node.kwargs:
            return self._opaque(node, self.arguments(node), "")
        source, index = (self.resolve(argument, None) for argument in node.args)
        if isinstance(source, tuple) and isinstance(index, int) and -len(source) <= index < len(source):
            value: Value = source[index]
            if isinstance(value, Tensor):
                self.check(node, value, node.meta.get("val"))
            return value
        if isinstance(source, Opaque) and isinstance(index, int):
            term = self.table.intern(("out", source.term, index))
            return self.result(node, node.meta.get("val"), term, () if source.base is None else (source.base,))
        return self._opaque(node, self.arguments(node), "")

    # Ops that are explained

    def _regrouped(self, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value:
        formed = regroup(self.table, path, arguments)
        if not isinstance(formed, Formed):
            return tuple(self._formed(node, part, i, arguments) for i, part in enumerate(formed))
        made = self._formed(node, formed, 0, arguments)
        self.check(node, made, node.meta.get("val"))
        if formed.alias == COPY:
            self.trace.copies += 1
        operand = next((arguments[name] for name in _OPERANDS if name in arguments), None)
        self._note_cast(node, made.content, tensors_in(operand), arguments)
        self.host.copied(path, node, arguments, made)
        return made

    def _formed(self, node: fx.Node, formed: Formed, index: int, arguments: dict[str, Any]) -> Tensor:
        name = next((n for n in _OPERANDS if n in arguments), "self")
        operand = arguments[name]
        first = operand[0] if isinstance(operand, tuple) else operand
        device = None if arguments.get("device") is not None else first.meta.device
        meta = Meta(formed.shape, formed.strides, formed.dtype, device)
        if formed.alias == COPY:
            return self.tensor(formed.content, meta, node)
        if formed.alias == INVALID:
            text = "is a view that the strides of its operand do not allow; use reshape"
            self.event("value", node, text, ("view", formed.content, formed.shape, first.meta.strides))
        made = self.tensor(formed.content, meta, node, first)
        made.via = (node, index, name)
        made.may_copy = formed.alias == MAYBE or first.may_copy
        return made

    def _note_cast(self, node: fx.Node, made: int, operands: list[Tensor], arguments: dict[str, Any]) -> None:
        """Record the elements that an op which made the content ``made`` of its operands converted."""
        if not operands or all(operand.content == made for operand in operands):
            return
        work = counts(self.table, made)
        old = {source for operand in operands for source in self.table.sources_of(operand.content)}
        old.update(self.table.keys[source][1] for source in tuple(old) if is_widening(self.table, source))
        fresh = {source: n for source, n in work.items() if self.table.keys[source][0] == CAST and source not in old}
        if fresh:
            self.worked(node, fresh)
            keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
            contents = tuple(operand.content for operand in operands)
            step = Step(node.name, facts_of(node.target).path, CONVERSION, made, made, keys, contents, tuple(fresh))
            self.trace.steps.append(step)

    def _filled(self, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value:
        """``copy_`` and ``_foreach_copy_``: the targets hold the elements of the sources, converted."""
        targets, sources = tensors_in(arguments.get("self")), tensors_in(arguments.get("src"))
        if len(targets) != len(sources) or not targets:
            raise Undecidable("another number of targets than of sources")
        contents = tuple(self._filled_with(t, s) for t, s in zip(targets, sources, strict=True))
        keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
        term = self.table.intern(("op", path, keys))
        self.write(node, term, targets, contents)
        self.trace.copies += 1
        for content, source in zip(contents, sources, strict=True):
            self._note_cast(node, content, [source], arguments)
        made = [self.tensor(c, t.meta, node, t) for c, t in zip(contents, targets, strict=True)]
        for tensor, target in zip(made, targets, strict=True):
            tensor.may_copy = target.may_copy
        return made[0] if isinstance(arguments.get("self"), Tensor) else tuple(made)

    def _filled_with(self, target: Tensor, source: Tensor) -> int:
        """The content of ``target`` after ``copy_``."""
        if target.shape is None or target.shape != source.shape or target.dtype is None:
            raise Undecidable("a copy into another shape")
        if target.meta.device != source.meta.device or target.meta.device is None:
            raise Undecidable("a copy between devices")
        return cast(self.table, source.content, target.dtype, ())

    # Ops that are not

    def _opaque(self, node: fx.Node, arguments: dict[str, Any], why: str) -> Value:
        """A term made of the op and its operands; writes, random numbers and effects are recorded."""
        table, trace, facts = self.table, self.trace, facts_of(node.target)
        path = facts.path
        keys = tuple((name, key_of(table, value)) for name, value in arguments.items())
        tensors = all_tensors(arguments)
        around = tuple(self._surroundings(tensor) for tensor in tensors) if facts.sees_storage else ()
        plain = term = table.intern(("op", path, keys, around) if around else ("op", path, keys))
        inner = [table.summaries[v.term] for v in arguments.values() if type(v) is Opaque and v.term in table.summaries]
        if facts.random or any(summary.random for summary in inner):
            term = table.intern(("draw", len(trace.random), plain))
            trace.random.append((plain, node.name))
        self.host.asked(node, tensors)
        effect = facts.effect or any(summary.effects for summary in inner)
        if effect:
            trace.effects.append((term, node.name))
        if why:
            table.undecided.setdefault(term, why)
        written = _written(facts.aliasing, arguments, everything=any(summary.writes for summary in inner))
        self.write(node, term, written)
        strides = tuple(tensor.meta.strides for tensor in tensors)
        known = table.strides.setdefault(plain, {strides})
        self.relaid = strides not in known
        if self.first:
            known.add(strides)
        value = self._result(node, term, facts, arguments)
        self.relaid = False
        free = not written and not effect and (facts.free or not tensors_in(value))
        contents = tuple(tensor.content for tensor in tensors)
        step = Step(node.name, path, VIEW if free else OP, term, plain, keys, contents, (), strides, why)
        trace.steps.append(step)
        return value

    def _surroundings(self, tensor: Tensor) -> tuple[Any, ...]:
        place = self.memory.where(tensor)
        return (place.content, place.shape, tensor.meta.strides, self.memory.version(tensor.root))

    def _result(self, node: fx.Node, term: int, facts: OpFacts, arguments: dict[str, Any]) -> Value:
        writes, names = facts.aliasing.writes, facts.bases
        if not any(names):
            return self.result(node, node.meta.get("val"), term, ())
        owners = [arguments.get(name) if name is not None else None for name in names]
        if len(owners) == 1 and isinstance(owners[0], tuple):
            owners = list(owners[0])
        bases = tuple(owner if isinstance(owner, Tensor) else None for owner in owners)
        value = self.result(node, node.meta.get("val"), term, bases)
        for index, made in enumerate(value if isinstance(value, tuple) else (value,)):
            at = index if index < len(names) else 0
            name = names[at] if names else None
            if isinstance(made, Tensor) and made.base is not None and name is not None and name not in writes:
                made.via = (node, index, name)
        return value

    # Attributes

    def _attribute(self, node: fx.Node) -> Value:
        """The value of a ``get_attr`` node."""
        name = str(node.target)
        found = find(self.root, name)
        if isinstance(found, fx.GraphModule):
            return Opaque(self._subgraph(found))
        known = self.trace.constants.get(name)
        if isinstance(known, Tensor):
            now = self.memory.current(known)
            return self.tensor(now.content, now.meta, node, now)
        val = node.meta.get("val")
        term = self.table.intern(("attribute", name))
        value = self.result(node, val if val is not None else found, term, ())
        self.trace.constants[name] = value
        return value

    def _subgraph(self, module: fx.GraphModule) -> int:
        table = self.table
        known = table.subgraphs.get(id(module))
        if known is not None:
            return known[0]
        if self.depth >= MAX_DEPTH:
            return table.foreign(module)
        report = Report()
        if not check_order(module.graph, report, " in a sub-graph"):
            self.trace.events.extend(Event(f.rule, f.node, f.text, (f,)) for f in report.findings)
            return table.foreign(module)
        doubts = len(table.undecided)
        deeper: Any = {"depth": self.depth + 1, "groups": self.groups, "fixed": self.fixed}
        inner = Tracer(table, module, first=self.first, **deeper)
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        found = inner.walk(module.graph, {node.name: _parameter(i, node) for i, node in enumerate(places)})
        self.trace.events.extend(found.events)
        term = table.intern(self._key(found))
        if len(table.undecided) > doubts:
            table.undecided.setdefault(term, "something in a sub-graph")
        memory = inner.memory.storages
        shared = [value for _, value in found.inputs] + list(found.constants.values())
        writes = any(memory[value.root].writes for value in shared if isinstance(value, Tensor))
        table.summaries[term] = Summary(bool(found.random), bool(found.effects), writes)
        table.subgraphs[id(module)] = (term, module)
        return term

    def _key(self, found: Trace) -> tuple[Any, ...]:
        table, memory = self.table, found.memory
        outputs = tuple(o.constant if o.value is None else key_of(table, o.value) for o in found.outputs)
        versions = tuple(
            memory.version(v.root) for _, v in found.inputs if memory is not None and isinstance(v, Tensor)
        )
        effects = tuple(term for term, _ in found.effects)
        random = tuple(term for term, _ in found.random)
        return ("graph", len(found.inputs), found.structure, outputs, versions, effects, random)


def _written(facts: Aliasing, arguments: dict[str, Any], *, everything: bool) -> list[Tensor]:
    if facts.writes_keywords or everything:
        return [tensor for value in arguments.values() for tensor in all_tensors(value)]
    return [tensor for name in facts.writes for tensor in all_tensors(arguments.get(name))]


def _parameter(position: int, node: fx.Node) -> str:
    """A name for an input of a sub-graph that inputs of other shapes do not share."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return f"{position}: {type(val).__name__}"
    strides = tuple(val.stride()) if val.layout is torch.strided else None
    return f"{position}: {tuple(val.shape)} {strides} {val.dtype} {val.device}"


def trace_program(
    table: Terms,
    program: Program,
    *,
    first: bool,
    inputs: dict[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    fixed: Mapping[str, int] | None = None,
) -> Trace:
    """Trace the graph of a program; the graph must be in order (:func:`commcc.verify.normalise.check_order`).

    inputs: names of placeholders in the other graph. groups: process groups that stand for another one.
    fixed: numbers for symbols in sizes.
    """
    return Tracer(table, program.root, first=first, groups=groups, fixed=fixed).walk(program.graph, inputs)
