"""What one node computes: regrouping ops are explained, everything else becomes a term of its operands.

Limits: an op that is not in the schema tables is taken to compute from its arguments alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.verify import launches
from commcc.verify.arguments import key_of
from commcc.verify.elements import CAST, cast, counts, is_widening
from commcc.verify.facts import CAST as CASTS
from commcc.verify.facts import OP, VIEW, Step
from commcc.verify.fixed import settle
from commcc.verify.opfacts import OpFacts, facts_of
from commcc.verify.shapes import COPY, INVALID, MAYBE, Formed
from commcc.verify.sizes import Impossible, Size, Undecidable, apply_function, product
from commcc.verify.values import Meta, Opaque, Tensor, Value, is_size, tensors_in
from commcc.verify.views import regroup

if TYPE_CHECKING:
    from torch import fx

    from commcc.graph.ops import Aliasing
    from commcc.verify.trace import Tracer

_ARITHMETIC = {
    "operator.add": "add",
    "operator.sub": "sub",
    "operator.mul": "mul",
    "operator.neg": "neg",
    "operator.floordiv": "floordiv",
    "operator.mod": "mod",
    "torch.sym_sum": "add",
    "torch.sym_max": "max",
    "torch.sym_min": "min",
}
#: Ops that overwrite their targets with the elements of their sources.
FILLS = frozenset({"aten.copy_.default", "aten._foreach_copy_.default"})
#: What a regrouping op calls the tensor, or the tensors, that it regroups.
_OPERANDS = ("self", "a", "tensors", "ag_ins", "rs_ins")
_SIZES = frozenset({"aten.sym_size.int", "aten.sym_numel.default"})


def call(tracer: Tracer, node: fx.Node) -> Value:
    """The result of a node that calls an op."""
    facts = facts_of(node.target)
    if facts.getitem:
        return _getitem(tracer, node)
    if facts.wait:
        return launches.wait(tracer, node)
    if facts.launch is not None:
        return launches.launch(tracer, node, facts.launch)
    path = facts.path
    arguments = tracer.arguments(node, read=facts.reads)
    size = _arithmetic(tracer, path, arguments)
    if size is not None:
        tracer.symbols.define(node.meta.get("val"), size)
        return size
    known = settle(tracer, path, arguments) if tracer.fixed else None
    if known is not None:
        return known
    why = ""
    if facts.explained or path in FILLS:
        try:
            return (filled if path in FILLS else _regrouped)(tracer, node, path, arguments)
        except Impossible as reason:
            keys = tuple(key_of(tracer.table, value) for value in arguments.values())
            tracer.event("value", node, f"{path} cannot run: {reason}", ("impossible", path, keys))
        except Undecidable as reason:
            why = str(reason)
    return opaque(tracer, node, arguments, why)


def _arithmetic(tracer: Tracer, path: str, arguments: dict[str, Any]) -> Size | None:
    """The value of integer arithmetic, None for anything else."""
    name = _ARITHMETIC.get(path)
    try:
        if name is not None:
            values = list(arguments.values())
            flat = values[0] if path == "torch.sym_sum" and values and isinstance(values[0], tuple) else tuple(values)
            return apply_function(name, flat, tracer.table.function) if flat and all(map(is_size, flat)) else None
        if path not in _SIZES:
            return None
        tensor = arguments.get("self")
        if not isinstance(tensor, Tensor) or tensor.shape is None:
            return None
        return product(tensor.shape) if path == "aten.sym_numel.default" else tensor.shape[arguments["dim"]]
    except (Undecidable, IndexError, KeyError, TypeError):
        return None


def _getitem(tracer: Tracer, node: fx.Node) -> Value:
    if len(node.args) != 2 or node.kwargs:
        return opaque(tracer, node, tracer.arguments(node), "")
    source, index = (tracer.resolve(argument, None) for argument in node.args)
    if isinstance(source, tuple) and isinstance(index, int) and -len(source) <= index < len(source):
        value: Value = source[index]
        if isinstance(value, Tensor):
            tracer.check(node, value, node.meta.get("val"))
        return value
    if isinstance(source, Opaque) and isinstance(index, int):
        term = tracer.table.intern(("out", source.term, index))
        return tracer.result(node, node.meta.get("val"), term, () if source.base is None else (source.base,))
    return opaque(tracer, node, tracer.arguments(node), "")


# Ops that are explained


def _regrouped(tracer: Tracer, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value:
    formed = regroup(tracer.table, path, arguments)
    if not isinstance(formed, Formed):
        return tuple(_formed(tracer, node, part, i, arguments) for i, part in enumerate(formed))
    made = _formed(tracer, node, formed, 0, arguments)
    tracer.check(node, made, node.meta.get("val"))
    if formed.alias == COPY:
        tracer.trace.copies += 1
    operand = next((arguments[name] for name in _OPERANDS if name in arguments), None)
    note_cast(tracer, node, made.content, tensors_in(operand), arguments)
    tracer.host.copied(path, node, arguments, made)
    return made


def _formed(tracer: Tracer, node: fx.Node, formed: Formed, index: int, arguments: dict[str, Any]) -> Tensor:
    name = next((n for n in _OPERANDS if n in arguments), "self")
    operand = arguments[name]
    first = operand[0] if isinstance(operand, tuple) else operand
    device = None if arguments.get("device") is not None else first.meta.device
    meta = Meta(formed.shape, formed.strides, formed.dtype, device)
    if formed.alias == COPY:
        return tracer.tensor(formed.content, meta, node)
    if formed.alias == INVALID:
        text = "is a view that the strides of its operand do not allow; use reshape"
        tracer.event("value", node, text, ("view", formed.content, formed.shape, first.meta.strides))
    made = tracer.tensor(formed.content, meta, node, first)
    made.via = (node, index, name)
    made.may_copy = formed.alias == MAYBE or first.may_copy
    return made


def note_cast(tracer: Tracer, node: fx.Node, made: int, operands: list[Tensor], arguments: dict[str, Any]) -> None:
    """Record the elements that an op which made the content ``made`` of its operands converted."""
    if not operands or all(operand.content == made for operand in operands):
        return
    work = counts(tracer.table, made)
    old = {source for operand in operands for source in tracer.table.sources_of(operand.content)}
    old.update(tracer.table.keys[source][1] for source in tuple(old) if is_widening(tracer.table, source))
    fresh = {source: n for source, n in work.items() if tracer.table.keys[source][0] == CAST and source not in old}
    if fresh:
        worked(tracer, node, fresh)
        keys = tuple((name, key_of(tracer.table, value)) for name, value in arguments.items())
        contents = tuple(operand.content for operand in operands)
        step = Step(node.name, facts_of(node.target).path, CASTS, made, made, keys, contents, tuple(fresh))
        tracer.trace.steps.append(step)


def worked(tracer: Tracer, node: fx.Node, work: dict[int, Size]) -> None:
    """Add elements that a node converted or sent to what the graph does in all."""
    trace = tracer.trace
    for source, elements in work.items():
        trace.work[source] = trace.work.get(source, 0) + elements
        trace.workers.setdefault(source, node.name)


# Writes of known elements


def _filled_with(tracer: Tracer, target: Tensor, source: Tensor) -> int:
    """The content of ``target`` after ``copy_``."""
    if target.shape is None or target.shape != source.shape or target.dtype is None:
        raise Undecidable("a copy into another shape")
    if target.meta.device != source.meta.device or target.meta.device is None:
        raise Undecidable("a copy between devices")
    return cast(tracer.table, source.content, target.dtype, ())


def filled(tracer: Tracer, node: fx.Node, path: str, arguments: dict[str, Any]) -> Value:
    """``copy_`` and ``_foreach_copy_``: the targets hold the elements of the sources, converted."""
    targets, sources = tensors_in(arguments.get("self")), tensors_in(arguments.get("src"))
    if len(targets) != len(sources) or not targets:
        raise Undecidable("another number of targets than of sources")
    contents = tuple(_filled_with(tracer, t, s) for t, s in zip(targets, sources, strict=True))
    keys = tuple((name, key_of(tracer.table, value)) for name, value in arguments.items())
    term = tracer.table.intern(("op", path, keys))
    write(tracer, node, term, targets, contents)
    tracer.trace.copies += 1
    for content, source in zip(contents, sources, strict=True):
        note_cast(tracer, node, content, [source], arguments)
    made = [tracer.tensor(c, t.meta, node, t) for c, t in zip(contents, targets, strict=True)]
    for tensor, target in zip(made, targets, strict=True):
        tensor.may_copy = target.may_copy
    return made[0] if isinstance(arguments.get("self"), Tensor) else tuple(made)


# Ops that are not


def opaque(tracer: Tracer, node: fx.Node, arguments: dict[str, Any], why: str) -> Value:
    """A term made of the op and its operands; writes, random numbers and effects are recorded."""
    table, trace, facts = tracer.table, tracer.trace, facts_of(node.target)
    path = facts.path
    keys = tuple((name, key_of(table, value)) for name, value in arguments.items())
    tensors = _operands(arguments)
    around = tuple(_surroundings(tracer, tensor) for tensor in tensors) if facts.sees_storage else ()
    plain = term = table.intern(("op", path, keys, around) if around else ("op", path, keys))
    inner = [table.summaries[v.term] for v in arguments.values() if type(v) is Opaque and v.term in table.summaries]
    if facts.random or any(summary.random for summary in inner):
        term = table.intern(("draw", len(trace.random), plain))
        trace.random.append((plain, node.name))
    tracer.host.asked(node, tensors)
    effect = facts.effect or any(summary.effects for summary in inner)
    if effect:
        trace.effects.append((term, node.name))
    if why:
        table.undecided.setdefault(term, why)
    written = _written(facts.aliasing, arguments, everything=any(summary.writes for summary in inner))
    write(tracer, node, term, written)
    strides = tuple(tensor.meta.strides for tensor in tensors)
    known = table.strides.setdefault(plain, {strides})
    tracer.relaid = strides not in known
    if tracer.first:
        known.add(strides)
    value = _result(tracer, node, term, facts, arguments)
    tracer.relaid = False
    free = not written and not effect and (facts.free or not tensors_in(value))
    contents = tuple(tensor.content for tensor in tensors)
    step = Step(node.name, path, VIEW if free else OP, term, plain, keys, contents, (), strides, why)
    trace.steps.append(step)
    return value


def _operands(arguments: dict[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in arguments.values():
        if type(value) is Tensor:
            found.append(value)
        elif isinstance(value, (tuple, dict)):
            found.extend(_all_tensors(value))
    return found


def _all_tensors(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in _all_tensors(part)]
    return tensors_in(value)


def _surroundings(tracer: Tracer, tensor: Tensor) -> tuple[Any, ...]:
    place = tracer.memory.where(tensor)
    return (place.content, place.shape, tensor.meta.strides, tracer.memory.version(tensor.root))


def _written(facts: Aliasing, arguments: dict[str, Any], *, everything: bool) -> list[Tensor]:
    if facts.writes_keywords or everything:
        return [tensor for value in arguments.values() for tensor in _all_tensors(value)]
    return [tensor for name in facts.writes for tensor in _all_tensors(arguments.get(name))]


def write(tracer: Tracer, node: fx.Node, term: int, written: list[Tensor], contents: tuple[int, ...] = ()) -> None:
    """Record writes; writing what a launch in flight reads or fills is an event.

    contents: what each tensor holds afterwards, where that is known.
    """
    for place, tensor in enumerate(written):
        storage = tracer.memory.storages[tensor.root]
        for flight in (*storage.reading, *([storage.filling] if storage.filling else [])):
            text = f"writes memory that launch '{flight.node}' still uses: its wait comes later"
            tracer.event("mutation", node, text, ("write", flight.key, facts_of(node.target).path))
        version = tracer.memory.write(tensor, term, place, contents[place] if contents else None)
        tracer.trace.versions.add(version)
        tracer.trace.writers.setdefault(version, node.name)


def _result(tracer: Tracer, node: fx.Node, term: int, facts: OpFacts, arguments: dict[str, Any]) -> Value:
    writes, names = facts.aliasing.writes, facts.bases
    if not any(names):
        return tracer.result(node, node.meta.get("val"), term, ())
    owners = [arguments.get(name) if name is not None else None for name in names]
    if len(owners) == 1 and isinstance(owners[0], tuple):
        owners = list(owners[0])
    bases = tuple(owner if isinstance(owner, Tensor) else None for owner in owners)
    value = tracer.result(node, node.meta.get("val"), term, bases)
    for index, made in enumerate(value if isinstance(value, tuple) else (value,)):
        at = index if index < len(names) else 0
        name = names[at] if names else None
        if isinstance(made, Tensor) and made.base is not None and name is not None and name not in writes:
            made.via = (node, index, name)
    return value
