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

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from commcc.graph.index.waits import waits_for_unknown
from commcc.graph.ops import ALL, draws, facts, is_getitem
from commcc.graph.ops.constants import COPIES
from commcc.graph.ops.effects import CASTING
from commcc.graph.ops.operands import called, handed_group
from commcc.graph.ops.views import GATHERING
from commcc.graph.program import is_plain
from commcc.serialization.attributes import content_hash, find, surroundings_hash
from commcc.serialization.fake_ops import UnknownValue
from commcc.verify.annotations import check_allocation, hold_against, hold_element_against, note_uses
from commcc.verify.entangled import WHY, entangled, lazily, named, peculiarities
from commcc.verify.explained import Explainer
from commcc.verify.hidden import opaque_in
from commcc.verify.host import copies_across
from commcc.verify.launches import launch, wait
from commcc.verify.memory import Flight
from commcc.verify.normalise import check_order
from commcc.verify.regroup import regroups
from commcc.verify.same import opening
from commcc.verify.sizes import UNKNOWN, Impossible, Undecidable, mismatch, relevant
from commcc.verify.subgraphs import Body, deeds_of, inputs_by_fixed, meeting, parameter
from commcc.verify.terms import ANYTHING, Opaque, Summary, Tensor, Value, all_tensors, key_of, tensors_in
from commcc.verify.trace import OP, VIEW, Event, Output, Step, Trace
from commcc.verify.verdict import Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.graph.ops import OpFacts
    from commcc.graph.program import Program
    from commcc.verify.terms import Op, Terms

MAX_DEPTH = 16
_NOTHING = Summary()


class Tracer(Explainer):
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
        self.depth, self.acted = depth, 0  # acted: effects so far whose order counts
        self.inner = depth > 0
        self.groups = groups or {}
        self._memory_of: dict[int, tuple[str, torch.Tensor, Tensor]] = {}
        self._kept: Tensor | None = None
        self._elements: dict[tuple[Any, ...], Value] = {}
        #: What lies around constants in their storages, where something does.
        self._around: dict[int, str] = {}

    def walk(self, graph: fx.Graph, inputs: dict[str, str] | None = None) -> Trace:
        """Trace all nodes; ``inputs`` gives placeholders the names that they have in the other graph."""
        for node in graph.nodes:
            self.trace.nodes += 1
            events = len(self.trace.events)
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
            if len(self.trace.events) > events and node in self.env:
                # A mistake is the same in another graph only where it is made on the way to the same value.
                value = key_of(self.table, self.env[node])
                self.trace.events[events:] = [replace(e, key=(*e.key, value)) for e in self.trace.events[events:]]
        self.find_live(graph)
        return self.trace

    def _placeholder(self, node: fx.Node, name: str) -> Value:
        term = self.table.intern(("input", name))
        val = node.meta.get("val")
        value = val if self.fixed and type(val) is int else self.result(node, val, term, ())
        if isinstance(val, (tuple, list)):
            value = Opaque(term)
        if name in self.table.in_flight and isinstance(value, Tensor):
            self.memory.fill(Flight(node.name, ("begun elsewhere", term)), value)
        self.trace.inputs.append((node.name, value))
        self.trace.metas[node.name] = self.symbols.meta_of(val, term) if isinstance(val, torch.Tensor) else UNKNOWN
        return value

    def _output(self, node: fx.Node) -> None:
        structure: list[str] = []
        self._leaves(node, node.args[0] if node.args else None, "", structure)
        self.trace.structure = "".join(structure)
        for root, storage in sorted(self.memory.used().items()):
            filled, begun = self.memory.first_together(root), len(self.trace.events)
            for flight, _ in storage.filling:
                key = ("unwaited", flight.key)
                if key not in [event.key for event in self.trace.events[begun:][-4:]]:
                    event = Event("wait", flight.node, "its result is never waited for", key, flight.doubt, filled)
                    self.trace.events.append(event)

    def _leaves(self, node: fx.Node, part: Any, path: str, structure: list[str]) -> None:
        if isinstance(part, (tuple, list, dict)):
            names = list(part) if isinstance(part, dict) else range(len(part))
            structure.append(opening(part, self.table))
            for name in names:
                structure.append(f"{name!r}:" if isinstance(part, dict) else "")
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
        if is_getitem(node.target):
            return self._getitem(node)
        op = self.table.op(node.target)
        fact, path, twin = op.fact, op.path, op.twin
        if fact.wait:
            waited = None if waits_for_unknown(node) else wait(self, node)
            if waited is not None:
                return waited
            return self._opaque(node, self.arguments(node), "", self.table.fence(node.target))
        if fact.launch is not None and fact.launch.asynchronous:
            return launch(self, node, fact.launch, self.groups)
        arguments = self.arguments(node, read=fact.reads)
        known = self.arithmetic(node, path, arguments)
        if known is not None:
            return known
        why, fills = "", fact.name in COPIES
        if fills or regroups(twin):
            try:
                if not op.signature.takes(arguments):
                    raise Undecidable("arguments that the op does not take")
                if fills:
                    return self.filled(node, path, arguments)
                if lazily(self, node, all_tensors(arguments)):
                    raise Undecidable("a view, or a copy, of what is conjugated or negated only when it is read")
                return self.regrouped(node, path, arguments) if twin == path else self.delivered(node, twin, arguments)
            except Impossible as reason:
                keys = tuple(key_of(self.table, value) for value in arguments.values())
                self.event("value", node, f"{path} cannot run: {reason}", ("impossible", path, keys))
            except Undecidable as reason:
                why = str(reason)
        return self._opaque(node, arguments, why)

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
            return self._element(node, source, index)
        return self._opaque(node, self.arguments(node), "")

    def _element(self, node: fx.Node, source: Opaque, index: int) -> Value:
        """One of several results, or of a list of inputs; the same one each time that it is asked for."""
        key = ("out", source.term, index, *self.hidden.written((source,)))
        term, known = self.table.intern(key), self._elements.get((key, source.made))
        if known is not None:
            return self.memory.current(known) if isinstance(known, Tensor) else known
        if self.first:
            hold_element_against(self, node, source.term, index)
        value = self.result(node, node.meta.get("val"), term, () if source.base is None else (source.base,))
        self._elements[key, source.made] = value
        if isinstance(value, Tensor) and value.base is not None:
            self.memory.suppose(value, "")
        if isinstance(value, (Tensor, Opaque)):
            self.hidden.keep(source, index, value)
        return value

    # Ops that are not

    def _opaque(self, node: fx.Node, arguments: dict[str, Any], why: str, op: Op | None = None) -> Value:
        """A term made of the op and its operands; writes, random numbers and effects are recorded."""
        table, trace, op = self.table, self.trace, op or self.table.op(node.target)
        fact, path = op.fact, op.path
        keys = tuple([(name, key_of(table, value)) for name, value in arguments.items()])
        tensors = all_tensors(arguments)
        handed = opaque_in(arguments.values())
        does = self._deeds(node, op, handed)
        every = does.writes or fact.writes_keywords or fact.writes == ALL
        written = self.hidden.all_in(map(arguments.get, named(arguments, ALL if every else fact.writes)))
        keys = (*keys, *self.hidden.written(self.hidden.found_in(handed))) if handed else keys
        operands = [*tensors, *self.hidden.reached_from(self.hidden.found_in(handed))] if handed else tensors
        if written and (shared := entangled(node, self.root, self.memory, table, operands, written)):
            keys, why = (*keys, *shared), why or WHY
        keys = (*keys, *peculiarities(self, node, op, tensors))
        around = tuple(self._surroundings(tensor) for tensor in tensors) if fact.storage else ()
        seen = (*around, self._surroundings(self._constants())) if does.keeps else around
        strides = tuple([tensor.meta.strides for tensor in tensors])
        same = table.intern(("op", path, keys, seen) if seen else ("op", path, keys))
        known = table.strides.setdefault(same, {strides})
        self.relaid = strides not in known
        plain = term = same if fact.blind or not tensors else self._as_it_lies(same, tensors)
        if self.first:
            known.add(strides)
        self.host.asked(node, tensors)
        if does != _NOTHING:
            term = self._does(node, does, plain)
        unknown = next(filter(None, (table.undecided.get(value.term) for value in handed)), "")
        if why or unknown or (around and does.state):
            table.undecided.setdefault(plain, why or unknown or f"what {path} reads around its operands")
        self.write(node, term, written, crossing=copies_across(arguments))
        if fact.joins is not None:
            joined = named(arguments, ALL if fact.views == ALL else fact.joins)
            self.memory.link(tensor.root for tensor in self.hidden.all_in(map(arguments.get, joined)))
        val = self._restated(node, plain) if self.relaid else node.meta.get("val")
        if fact.allocates and not self.relaid and not self.first:
            check_allocation(self, node, val, term)
        # Of dtypes without a common one, shape functions of these say something of their own.
        undecided = bool(why) and not fact.writing and fact.name not in GATHERING
        if self.first and (undecided or not regroups(op.twin)):
            hold_against(self, node, fact, arguments, term)
        value = self._result(node, val, term, fact, arguments)
        self.relaid = False
        self.host.copied(node, arguments, value)
        if does.shares and does is not op.does:
            self._share(value, tensors, does)
        gives = tensors_in(value) or (isinstance(value, Opaque) and (tensors or handed))
        free = not (written or does.effects or op.fact.body) and (fact.looks or fact.allocates or not gives)
        kind, contents = VIEW if free else OP, tuple([tensor.content for tensor in tensors])
        step = Step(node.name, path, kind, term, plain, keys, contents, (), strides, why, len(trace.barriers))
        trace.steps.append(step)
        return value

    def _does(self, node: fx.Node, does: Summary, plain: int) -> int:
        """Record what an op does besides computing its results; its term, with its place among others that do it."""
        table, trace, term = self.table, self.trace, plain
        if does.random:
            term = table.intern(("draw", len(trace.random), plain))
            trace.random.append((plain, node.name))
        if does.random or does.state:
            trace.draws.append((plain, node.name))
        if does.state:  # what it does, and so what it gives, may depend on how often it was called
            term = table.intern(("call", self.acted, term))
        if does.effects:
            trace.effects.append((plain, node.name))
            self.acted += not (facts(node.target).host_sync or facts(node.target).assertion)  # these come in any order
        if does.fence:
            trace.barriers.append(node.name)
        return term

    def _as_it_lies(self, same: int, tensors: list[Tensor]) -> int:
        """The term of an op whose results may depend on how its operands lie, which is then part of it."""
        table = self.table
        metas = [(tensor.meta.shape, tensor.meta.strides) for tensor in tensors]
        lies = tuple([steps if shape is None or steps is None else relevant(shape, steps) for shape, steps in metas])
        key = table.keys[same]
        term = table.intern((*key, *(() if len(key) > 3 else ((),)), lies))
        if self.first:
            table.lying.add(term)
        elif self.relaid and term not in table.lying:
            table.undecided.setdefault(term, f"{key[1]} reads tensors that lie otherwise than in BEFORE")
        return term

    def _deeds(self, node: fx.Node, op: Op, handed: Sequence[Opaque]) -> Summary:
        """What calling an op does besides computing its result, by itself or through what it is handed."""
        table = self.table
        inner = [table.summaries[value.term] for value in handed if value.term in table.summaries]
        inner.extend(map(deeds_of, called(node)) if op.fact.body or op.fact.effect else ())
        if op.fact.body and not inner and handed:
            inner.append(ANYTHING)
        own = replace(op.does, random=False) if op.does.random and not draws(node) else op.does
        does = reduce(or_, inner, own) if inner else own
        return replace(does, fence=True) if handed_group(node, table.group_sizes) else does

    def _constants(self) -> Tensor:
        """What stands for constants that sub-graphs return: whoever writes to such a result writes there."""
        if self._kept is None:
            self._kept = self.memory.allocate(self.table.intern(("kept",)), UNKNOWN)
        return self._kept

    def _share(self, value: Value, operands: list[Tensor], does: Summary) -> None:
        """Results of a sub-graph that may be in the storage of any operand, of each other, or of its own constants."""
        results = [part for part in tensors_in(value) if part.shape in does.shares or None in does.shares]
        for result in results:
            self.memory.suppose(result, "")
        linked = [*results, *operands, *([self._constants()] if does.keeps else ())]
        for part in self.hidden.found_in((value,)):
            self.hidden.join(part, linked)
        if results:
            self.memory.link(tensor.root for tensor in linked)

    def _surroundings(self, tensor: Tensor) -> tuple[Any, ...]:
        place, around = self.memory.where(tensor), self._around.get(tensor.root)
        known = () if around is None else (around,)
        return (place.content, place.shape, tensor.meta.strides, self.memory.version(tensor.root), *known)

    def _restated(self, node: fx.Node, plain: int) -> Any:
        """What an op gives for operands that are laid out in another way than in the first graph.

        Its ``val`` may be what it was before somebody laid them out anew.
        """
        try:
            return self.evaluated(node)
        except (UnknownValue, Undecidable) as reason:
            text = "gives tensors whose strides are not known, from tensors laid out in another way than in BEFORE"
            self.event("value", node, text, ("relaid", plain), str(reason))
            return node.meta.get("val")

    def _result(self, node: fx.Node, val: Any, term: int, fact: OpFacts, arguments: dict[str, Any]) -> Value:
        if (not any(fact.bases) and not fact.views) or (fact.lists and isinstance(val, torch.Tensor)):
            return self.result(node, val, term, ())
        # Tensors in whose storage each result may be.
        owners = [
            all_tensors(arguments if names == ALL else {name: arguments.get(name) for name in names})
            for names in fact.bases or (fact.views,)
        ]
        if len(owners) == 1 and len(fact.views) == 1 and isinstance(arguments.get(fact.views[0]), tuple):
            owners = [[owner] for owner in owners[0]]  # a list of results, each in the storage of its own argument
            if val is None and fact.writes == fact.views and len(owners) == len(arguments[fact.views[0]]):
                return tuple([self._written_part(node, term, at, owner) for at, (owner,) in enumerate(owners)])
        unseen = self.hidden.found_in(arguments.get(name) for name in named(arguments, *fact.bases, fact.views))
        if unseen:
            owners = [[*tensors, *self.hidden.reached_from(unseen)] for tensors in owners or [[]]]
        bases = tuple(tensors[0] if tensors else None for tensors in owners)
        value = self.result(node, val, term, bases)
        for part in opaque_in((value,)) if node.users else ():
            self.hidden.join(part, [tensor for tensors in owners for tensor in tensors])
        for index, result in enumerate(value if isinstance(value, tuple) else (value,)):
            candidates = owners[index if index < len(owners) else 0] if owners else []
            if not isinstance(result, Tensor) or result.base is None:
                continue
            if fact.sometimes or len(candidates) > 1 or lazily(self, node, candidates):
                self.memory.suppose(result, fact.name)
                self.memory.link(tensor.root for tensor in candidates)
            name = next((n for n, held in arguments.items() if result.base in all_tensors(held)), None)
            if name is not None and name not in fact.writes and fact.writes != ALL:
                result.via = (node, arguments, index, name)
        return value

    def _written_part(self, node: fx.Node, term: int, at: int, owner: Tensor) -> Tensor:
        """One of several tensors that an op writes and hands on."""
        content = self.table.intern(("array", self.table.intern(("out", term, at))))
        self.table.describe(content, owner.meta)
        return self.tensor(content, owner.meta, node, owner)

    # Attributes

    def _attribute(self, node: fx.Node) -> Value:
        """The value of a ``get_attr`` node."""
        name = str(node.target)
        held = find(self.root, name)
        if isinstance(held, fx.GraphModule):
            casting = self.casting or any(facts(user.target).name in CASTING for user in node.users)
            term = self._subgraph(held, casting)
            if self.first and term in self.table.fixed_inputs:
                note_uses(self, node)
            return Opaque(term)
        known = self.trace.constants.get(name)
        if isinstance(known, Tensor):
            return self._now(node, known)
        val = node.meta.get("val")
        value = self.result(node, held if val is None else val, self._constant(name, held), ())
        if isinstance(value, Tensor) and is_plain(held):
            wrong = mismatch(self.symbols.meta_of(held, value.content)._replace(device=None), value.meta)
            if wrong:
                self.event("value", node, f"its val says {wrong}", ("val", value.content, wrong))
            value = self._same_memory(node, value, held)
            if not self.table.one_root and (around := surroundings_hash(held)) is not None:
                self._around[value.root] = around
        self.trace.constants[name] = value
        return value

    def _now(self, node: fx.Node, known: Tensor) -> Tensor:
        now = self.memory.current(known)
        return self.tensor(now.content, now.meta, node, now)

    def _constant(self, name: str, held: object) -> int:
        """The term of a constant: its content, where that is known, else what it is called."""
        table = self.table
        if isinstance(held, torch.Tensor):
            digest = None if table.one_root else content_hash(held)
            if digest is not None:
                return table.intern(("constant", digest))
        elif held is not None and isinstance(held, (bool, int, float, str)):
            return table.intern(("constant", key_of(table, held)))
        if isinstance(held, FakeTensor) and self.depth == 0:  # a file without its value: the same by name, if believed
            which: object = str(held.dtype), tuple(map(str, held.shape)), tuple(map(str, held.stride()))
        else:
            which = None if held is None else table.foreign(held)
        term = table.intern(("attribute", name, which))
        if not table.one_root:
            table.undecided[term] = f"what constant '{name}' holds is not known"
        return term

    def _same_memory(self, node: fx.Node, value: Tensor, held: torch.Tensor) -> Tensor:
        """The constant as a view of another one that it is; writing to one that overlaps with another is a doubt."""
        if not held.numel():
            return value
        pointer = held.untyped_storage().data_ptr()
        other, known, first = self._memory_of.setdefault(pointer, (str(node.target), held, value))
        if first is value:
            return value
        if (known.storage_offset(), known.shape, known.stride()) == (held.storage_offset(), held.shape, held.stride()):
            return self._now(node, first)
        why = f"constants '{other}' and '{node.target}' share memory"
        if self.memory.at(first.root).writes:
            self.trace.doubts.setdefault(why, node.name)
        self.memory.at(first.root).doubt = self.memory.at(value.root).doubt = why
        return value

    def _subgraph(self, module: fx.GraphModule, casting: bool) -> int:
        table = self.table
        known = table.subgraphs.get(id(module))
        if known is not None:
            return known[0]
        places = module.graph.find_nodes(op="placeholder")
        if self.depth >= MAX_DEPTH or any(node.args for node in places):  # default values are not looked into
            return table.foreign(module)
        report = Report()
        if not check_order(module.graph, report, " in a sub-graph"):
            self.trace.events.extend(Event(f.rule, f.node, f.text, (f,)) for f in report.findings)
            return table.foreign(module)
        deeper: Any = {"depth": self.depth + 1, "groups": self.groups, "fixed": self.fixed}
        inner = Tracer(table, module, first=self.first, **deeper)
        inner.casting = casting
        trace = inner.walk(module.graph, {node.name: parameter(i, node, self.fixed) for i, node in enumerate(places)})
        self.trace.events.extend(replace(event, filled=None) for event in trace.events)
        for name in ("live", "doubts", "alone", "disputed"):
            getattr(self.trace, name).update(getattr(trace, name))
        if inner.leaves_in_flight():
            self.trace.doubts.setdefault("a launch or copy that a sub-graph begins still fills it afterwards", "")
        body = Body(inner, meeting(module.graph, module), inner._kept)
        term = table.intern(body.key())
        if doubt := body.doubt():
            table.undecided.setdefault(term, f"in a sub-graph: {doubt}")
        table.summaries[term] = body.summary()
        if self.first and (known_by := inputs_by_fixed([(node, inner.env[node]) for node in places], self.fixed)):
            table.fixed_inputs.setdefault(term, []).append(known_by)
        given = [value.meta for _, value in trace.inputs if isinstance(value, Tensor)]
        table.signatures[term] = (given, [o.value.meta for o in trace.outputs if isinstance(o.value, Tensor)])
        table.subgraphs[id(module)] = (term, module)
        return term


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
