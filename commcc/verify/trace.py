"""What tracing one graph yields, and the state of the walk that yields it.

::

    state = State(Terms(), first=True)
    state.trace.steps          # every op and launch, with its term and the terms of its operands
    state.trace.outputs        # what the graph returns
    state.trace.events         # what is illegal in the graph taken alone

:class:`State` is all that reading, making and writing tensors needs: values of nodes, memory, symbols. What each
node does is in :mod:`commcc.verify.explained` and :mod:`commcc.verify.tracer`. A copy to the host is the same term
whether it blocks or not; using one that nobody has waited for is an event (:mod:`commcc.verify.host`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.base.errors import InputError
from commcc.graph.ops import ALL, facts, is_getitem
from commcc.serialization.fake_ops import Evaluator, UnknownValue
from commcc.serialization.propagate import context_of, quiet
from commcc.verify.arguments import bind, with_floats
from commcc.verify.hidden import Hidden
from commcc.verify.host import HostCopies
from commcc.verify.memory import EARLY, Memory
from commcc.verify.sizes import Meta, Size, Symbols, Undecidable, is_contiguous, mismatch, number, product, variable
from commcc.verify.terms import Opaque, Tensor, Value, all_tensors, key_of, path_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commcc.verify.sizes import Shape
    from commcc.verify.terms import Terms

# Kinds of steps.
OP = "op"
VIEW = "view"
CONVERSION = "conversion"
LAUNCH = "launch"


@dataclass(slots=True)
class Step:
    """One op that is not mere regrouping.

    kind: ``op``, ``view`` (opaque views cost nothing), ``conversion`` or ``launch``.
    term: what it computes; plain: the same without its place among the random ops.
    arguments: keys by argument name. operands: contents of all tensors that it reads.
    sources: those that casts and launches are made of, empty for the rest.
    strides: strides of the tensors that it reads. barriers: how many ops before it let nothing pass.
    """

    node: str
    path: str
    kind: str
    term: int
    plain: int
    arguments: tuple[tuple[str, tuple[Any, ...]], ...]
    operands: tuple[int, ...]
    sources: tuple[int, ...] = ()
    strides: tuple[Shape | None, ...] = ()
    why: str = ""
    barriers: int = 0


@dataclass(frozen=True)
class Event:
    """Something illegal; ``key`` is equal for the same mistake in another graph. doubt: why it may not be so.

    filled: the storage that a launch leaves unfinished. launch: the one that is disturbed.
    """

    rule: str
    node: str
    text: str
    key: tuple[Any, ...]
    doubt: str = ""
    filled: int | None = None
    launch: str = ""


@dataclass(frozen=True)
class Output:
    """One leaf of what the graph returns; ``path`` is its place in the nested tuple."""

    path: str
    node: str
    value: Value | None
    constant: tuple[Any, ...] | None = None


@dataclass
class Trace:
    """All facts about one graph.

    names: first node that holds a content. sources, versions: all that occur. work: elements moved or
    converted, by source; workers: the first node that did it. random, effects: term and node, in order.
    bare: the same of launches that bring no element. draws: of random ops, and of those that may be.
    placed: key, node and barriers before it of what is no step (:mod:`commcc.verify.barriers`).
    constants: what ``get_attr`` nodes read, by name.
    hidden: memory of values without a shape, by term. detached: contents without gradient, and the first node that
    says so. disputed: what may be wrong in what a node says, and whether that is sure. writers: who made each version.
    rows: rank in each group as gathers in place take it to be, and the first that does. idle: waits for nothing.
    alone: groups that are taken to be of one rank, and the first launch that does.
    doubts: why what is written or read may be something else, and the first node that this is about.
    written: contents that were read after a write had put them there, and the last node that wrote there.
    live: names of the nodes that can be seen from outside: outputs, effects, random numbers and memory that stays need
    them. read: the storages that these read, and those that stay.
    """

    steps: list[Step] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    sources: set[int] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)
    work: dict[int, Size] = field(default_factory=dict)
    workers: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    random: list[tuple[int, str]] = field(default_factory=list)
    effects: list[tuple[int, str]] = field(default_factory=list)
    bare: list[tuple[int, str]] = field(default_factory=list)
    draws: list[tuple[int, str]] = field(default_factory=list)
    placed: list[tuple[tuple[Any, ...], str, int]] = field(default_factory=list)
    barriers: list[str] = field(default_factory=list)
    inputs: list[tuple[str, Value]] = field(default_factory=list)
    metas: dict[str, Meta] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    structure: str = ""
    writers: dict[int, str] = field(default_factory=dict)
    written: dict[int, str] = field(default_factory=dict)
    rows: dict[str, tuple[int, str]] = field(default_factory=dict)
    alone: dict[str, str] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    doubts: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Value] = field(default_factory=dict)
    hidden: dict[int, Tensor] = field(default_factory=dict)
    detached: dict[int, str] = field(default_factory=dict)
    disputed: dict[str, tuple[str, bool]] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    copies: int = 0
    launches: int = 0
    waits: int = 0
    nodes: int = 0
    memory: Memory | None = None


_PLAIN = frozenset({int, str, bool, float, type(None), torch.dtype, torch.device})


class State:
    """State of one walk. first: this is the graph whose ``val`` stand for both. fixed: numbers for symbols.

    returned: what sub-graphs return, by the term of their call.
    relaid: the op at hand reads tensors that are laid out in another way than in the first graph. inner: this is a
    sub-graph. casting: one under autocast.
    """

    def __init__(self, table: Terms, *, first: bool, fixed: Mapping[str, int] | None = None) -> None:
        self.table = table
        self.first = first
        self.fixed = fixed or {}
        self.symbols = Symbols(table, self.fixed)
        self.memory = Memory(table)
        self.env: dict[fx.Node, Value] = {}
        self.returned: dict[int, list[Meta]] = {}
        self.given: Counter[int] = Counter()  # values without a shape, by term
        self.trace = Trace(memory=self.memory)
        self.hidden = Hidden(table, self.memory)
        self.host = HostCopies()
        self.relaid = self.inner = self.casting = False
        #: The argument of the op at hand that is read.
        self._name = ""
        self._evaluator: Evaluator | None = None

    # Reading

    def resolve(self, argument: Any, reader: fx.Node | None) -> Any:
        """An argument with nodes replaced by values; ``reader`` reads the tensors among them now."""
        if type(argument) is fx.Node:
            return self.env[argument] if reader is None else self.fresh(argument, reader)
        if type(argument) in _PLAIN:
            return argument
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
        operands = () if read else tuple(self.env[operand] for operand in node.all_input_nodes)
        read = read or any(self.memory.at(tensor.root).reshaped for tensor in all_tensors(operands))
        reader = node if read else None
        signature = self.table.op(node.target).signature
        bound = bind(node, signature)
        for name, value in bound.items():
            if type(value) not in _PLAIN:
                self._name = name
                bound[name] = self.resolve(value, reader)
        self._name = ""
        return with_floats(node, bound, signature.numbers) if signature.numbers else bound

    def fresh(self, operand: fx.Node, reader: fx.Node) -> Value:
        """What a node's value is when another node reads it."""
        value = self.env[operand]
        if type(value) is Tensor:
            storage = self.memory.at(value.root)
            if storage.writes == value.stamp:
                if not (storage.filling or storage.group or self.host.coming):
                    return value  # as nearly every operand is
                return self.read(value, reader, operand.name)
            now = self.env[operand] = self.memory.current(value)
            self._note_written(now, value, operand.name)
            return self.read(now, reader, operand.name)
        if isinstance(value, tuple):
            return tuple(self.read(v, reader, operand.name) if isinstance(v, Tensor) else v for v in value)
        return value

    def read(self, tensor: Tensor, reader: fx.Node, name: str) -> Tensor:
        """The tensor as it reads now; reading what a launch or a copy has not delivered yet is an event."""
        now = self.memory.current(tensor)
        if now is not tensor:
            self._note_written(now, tensor, name)
        if not self.memory.coming(now) and not self.host.coming:
            return now
        # Who reads a view reads the elements; where it begins, the view has to know.
        fact = facts(reader.target) if reader.op == "call_function" else None
        looks = fact is not None and fact.looks and self._name in fact.views
        users = [] if looks else self.memory.users(now, reading=False)
        what = path_of(reader.target) if reader.op == "call_function" else reader.op
        for flight, _, doubt in users:
            text = f"reads '{name}' before the wait of launch '{flight.node}'"
            self.event("wait", reader, text, ("read", flight.key, what), doubt)
        copy = None if looks else self.host.coming.get(tensor.root)
        if copy is not None:
            text = f"reads '{copy.node}' before the host has waited for that copy"
            self.event("wait", reader, text, ("early", copy.content, str(reader.target)))
        early = [key for key in (*(flight.key for flight, _, _ in users), copy and copy.content) if key]
        if not early:
            return now
        doubts = [doubt for _, _, doubt in users]
        return self._unfinished(now, tuple(early), doubts[0] if copy is None and all(doubts) else "")

    def _unfinished(self, tensor: Tensor, early: tuple[Any, ...], doubt: str) -> Tensor:
        """A tensor that is read before it is there: whatever it holds, it is not what it will hold, unless in doubt."""
        numel = None if tensor.shape is None else product(tensor.shape)
        content = self.table.source((EARLY, tensor.content, early), numel, tensor.dtype)
        if doubt:
            self.table.undecided.setdefault(content, doubt)
        return replace(tensor, content=content)

    def _note_written(self, now: Tensor, tensor: Tensor, name: str) -> None:
        self.saw(now.content, name)
        if now.content != tensor.content:
            writer = self.trace.writers.get(self.memory.version(tensor.root), "")
            self.trace.written.setdefault(now.content, writer)

    def event(
        self, rule: str, node: fx.Node, text: str, key: tuple[Any, ...], doubt: str = "", launch: str = ""
    ) -> None:
        self.trace.events.append(Event(rule, node.name, text, key, doubt, launch=launch))

    # Results

    def saw(self, content: int, name: str) -> None:
        """Remember that some node holds this content."""
        if content not in self.trace.names:
            self.trace.names[content] = name
            self.trace.sources.update(self.table.sources_of(content))

    def tensor(self, content: int, meta: Meta, node: fx.Node, base: Tensor | None = None) -> Tensor:
        """A tensor in storage of its own, or in the storage of ``base``."""
        if content not in self.trace.names:
            self.saw(content, node.name)
        if base is None:
            return self.memory.allocate(content, meta)
        # A view of what may be a copy, or what is written there, may be in the copy as well.
        return Tensor(content, meta, base.root, self.memory.at(base.root).writes, base, None, base.may_copy)

    def result(self, node: fx.Node, val: Any, term: int, bases: tuple[Tensor | None, ...]) -> Value:
        """The result of an op that is not explained, from its ``val``; ``bases``: what each part is a view of."""
        if isinstance(val, torch.Tensor):
            source = self.table.intern(("array", term))
            meta = self._settle(node, source, self.symbols.meta_of(val, source))
            self.table.describe(source, meta)
            return self.tensor(source, meta, node, bases[0] if bases else None)
        if isinstance(val, (tuple, list)):
            spread = bases if len(bases) == len(val) else (bases[:1] or (None,)) * len(val)
            parts = (self.table.intern(("out", term, i)) for i in range(len(val)))
            triples = zip(val, parts, spread, strict=True)
            return tuple(self.result(node, v, part, () if b is None else (b,)) for v, part, b in triples)
        if isinstance(val, torch.SymInt):
            return self._size(val, term)
        self.given[term] += 1
        return Opaque(term, bases[0] if bases else None, self.given[term])

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
        if said == tensor.meta:
            return  # as nearly every val does
        if tensor.shape is not None and len(tensor.shape) != len(said.shape or ()):
            said = said._replace(strides=None)  # those of another number of dimensions
        if tensor.meta.strides is None and said.strides is not None:
            tensor.meta = tensor.meta._replace(strides=self._laid_out(node, tensor, said.shape, said.strides))
        wrong = mismatch(tensor.meta, said)
        if wrong:
            self.event("value", node, f"its val says {wrong}", ("val", tensor.content, wrong))
        missing = {what: part for what, part in said._asdict().items() if getattr(tensor.meta, what) is None}
        tensor.meta = tensor.meta._replace(**missing)

    def _laid_out(self, node: fx.Node, tensor: Tensor, shape: Shape | None, said: Shape) -> Shape:
        """Strides of a result as PyTorch makes them, of operands as they really lie.

        Where they cannot be worked out, AFTER may only say what BEFORE says of the same op on operands that lie alike.
        """
        launch = facts(node.target).launch is not None  # how it lays out its results, only the device knows
        try:
            result = None if launch or node.op != "call_function" else self.evaluated(node)
        except (UnknownValue, Undecidable):
            result = None
        if isinstance(result, torch.Tensor):
            meta = self.symbols.meta_of(result, tensor.content)
            if meta.shape == shape and meta.strides is not None:
                return meta.strides
        # What may be a view or a copy is one of sizes that happen to fit, and else a copy.
        if tensor.may_copy and shape is not None and is_contiguous(shape, said):
            return said
        arguments = self.arguments(node, read=False)
        keys = tuple((name, key_of(self.table, value)) for name, value in arguments.items())
        strides = tuple(operand.meta.strides for operand in all_tensors(arguments))
        key = (path_of(node.target), keys, strides, tensor.content)
        if self.first:
            self.table.believed.setdefault(key, []).append(said)
        known = self.table.believed.get(key, [])
        if said not in known:
            doubt = "" if known else "only its val says how it lies in memory"
            text = f"its val says strides {said}, they are {known[0]} in BEFORE" if known else f"has strides {said}"
            self.event("value", node, text, ("lies", key, said), doubt)
        return said

    def evaluated(self, node: fx.Node, run: Callable[..., Any] = Evaluator.run_open) -> Any:
        """What an op gives for stand-ins for its operands, laid out as these really are; run: how it is evaluated."""
        if self._evaluator is None:
            self._evaluator = Evaluator(context_of(node.graph))
        try:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._stand_in)
        except InputError as error:
            raise Undecidable(error.what) from None
        with quiet():
            return run(self._evaluator, node.target, args, kwargs)

    def _stand_in(self, operand: fx.Node) -> Any:
        value, val = self.env[operand], operand.meta.get("val")
        if isinstance(val, torch.SymInt) and (isinstance(value, int) or self.symbols.size(val) != value):
            return number(value)
        if not isinstance(value, Tensor):
            return val
        # With symbolic sizes, its val is one, where it says the same.
        if isinstance(val, torch.Tensor) and self.symbols.meta_of(val, value.content) == value.meta:
            return val
        shape, strides, dtype, device = value.meta
        if shape is None or strides is None or dtype is None or device is None or self._evaluator is None:
            raise Undecidable("a tensor whose shape is not known")
        sizes, steps = [number(size) for size in shape], [number(step) for step in strides]
        return self._evaluator.ctx.tensor(sizes, steps, dtype, torch.device(device))

    def leaves_in_flight(self) -> bool:
        """Whether an input or a constant is still filled when the graph ends, or a copy to the host is on its way."""
        outside = [*(value for _, value in self.trace.inputs), *self.trace.constants.values()]
        return bool(self.host.coming) or any(
            self.memory.at(tensor.root).filling for value in outside for tensor in tensors_in(value)
        )

    # Writing and working

    def write(
        self,
        node: fx.Node,
        term: int,
        written: list[Tensor],
        contents: tuple[int, ...] = (),
        *,
        crossing: bool = False,
    ) -> None:
        """Record writes; writing what a launch or a copy on its way reads or fills is an event.

        contents: what each tensor holds afterwards, where that is known. crossing: what is written comes from another
        device, one copy after the other.
        """
        for place, tensor in enumerate(written):
            storage = self.memory.at(tensor.root)
            for flight, _, doubt in self.memory.users(tensor, reading=True):
                text = f"writes memory that launch '{flight.node}' still uses: its wait comes later"
                self.event("mutation", node, text, ("write", flight.key, path_of(node.target)), doubt, flight.node)
            for copy in () if crossing else self.host.uses(self.memory, tensor):
                text = f"writes memory that copy '{copy.node}' still uses: the host waits for it later"
                self.event("mutation", node, text, ("write", copy.content, path_of(node.target)))
            if storage.doubt:
                self.trace.doubts.setdefault(storage.doubt, node.name)
            if torch.Tag.inplace_view in getattr(node.target, "tags", ()):
                storage.reshaped = True
                if storage.lifted:
                    self.trace.doubts.setdefault("aten.lift gives its operand itself, whose sizes change", node.name)
            version = self.memory.write(tensor, term, place, contents[place] if contents else None)
            fact = facts(node.target)
            if fact.effect and fact.writes == ALL:  # nobody knows what it does
                why = f"whether {path_of(node.target)} writes to it, which --ops can say"
                self.table.undecided.setdefault(version, why)
            self.trace.versions.add(version)
            self.trace.writers.setdefault(version, node.name)

    def find_live(self, graph: fx.Graph) -> None:
        """Fill in which nodes can be seen from outside, backwards: a write counts if its memory stays or is read later.

        Limits: of one storage, all parts are read by whoever reads one.
        """
        read, env = self.trace.read, self.env
        live: set[fx.Node] = set()
        self.trace.hidden = self.hidden.stays
        inputs = (value for _, value in self.trace.inputs)
        for stays in (*inputs, *self.trace.constants.values(), *self.trace.hidden.values()):
            read.update(self.roots(stays))
        for node in reversed(graph.nodes):
            if node not in live and node.op != "output" and (node.op != "call_function" or not self._shows(node, read)):
                continue
            used = node._input_nodes
            live.add(node)
            live.update(used)
            # One of several results reads nothing of the others.
            for value in map(env.get, (node,) if is_getitem(node.target) else used):
                if type(value) is Tensor:
                    read.add(self.memory.first_together(value.root))
                else:
                    read.update(self.roots(value))
        self.trace.live.update(node.name for node in live)

    def roots(self, value: Any) -> Iterable[int]:
        """The storages of all tensors in a value, and in what it is a part of: one for all that may be the same."""
        if type(value) is Tensor:
            return (self.memory.first_together(value.root),)
        held = value.base if isinstance(value, Opaque) and value.base is not None else value
        tensors = all_tensors(held)
        if isinstance(value, Opaque):
            tensors = [*tensors, *self.hidden.reached_from(self.hidden.found_in((value,)))]
        return {self.memory.first_together(tensor.root) for tensor in tensors}

    def _shows(self, node: fx.Node, read: set[int]) -> bool:
        """Whether an op does something that can be seen where the storages in ``read`` are read later."""
        fact = facts(node.target)
        if not (fact.pure or fact.writing or fact.wait or fact.launch) or fact.acts or fact.body or fact.joins:
            return True
        filled: list[fx.Node] = [node] if fact.wait or fact.launch else []
        if fact.writing:
            every = fact.writes_keywords or fact.writes == ALL
            bound = bind(node)
            written = list(bound.values()) if every else [bound.get(name) for name in fact.writes]
            fx.node.map_arg(written, filled.append)
        return any(not read.isdisjoint(self.roots(self.env.get(place))) for place in filled)

    def worked(self, node: fx.Node, work: dict[int, Size]) -> None:
        """Add elements that a node converted or sent to what the graph does in all."""
        for source, elements in work.items():
            self.trace.work[source] = self.trace.work.get(source, 0) + elements
            self.trace.workers.setdefault(source, node.name)
