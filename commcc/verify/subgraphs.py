"""Attributes of the program: constants by name and kind, sub-graphs by what they compute.

The sub-graph of a higher-order op is traced like a graph of its own; two sub-graphs are the same term
when they compute the same outputs, writes and effects from their inputs, whatever their nodes are called.

Limits: at most :data:`MAX_DEPTH` levels of nesting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.verify import trace as tracing
from commcc.verify.arguments import key_of
from commcc.verify.facts import Event
from commcc.verify.order import check_order
from commcc.verify.values import Opaque, Tensor
from commcc.verify.verdict import Report

if TYPE_CHECKING:
    from commcc.verify.facts import Trace
    from commcc.verify.trace import Tracer
    from commcc.verify.values import Value

MAX_DEPTH = 16


@dataclass(frozen=True)
class Summary:
    """What calling a sub-graph does besides computing its outputs."""

    random: bool
    effects: bool
    writes: bool


def attribute(tracer: Tracer, node: fx.Node) -> Value:
    """The value of a ``get_attr`` node."""
    name = str(node.target)
    found = find(tracer.root, name)
    if isinstance(found, fx.GraphModule):
        return Opaque(_subgraph(tracer, found))
    known = tracer.trace.constants.get(name)
    if isinstance(known, Tensor):
        now = tracer.memory.current(known)
        return tracer.tensor(now.content, now.meta, node, now)
    val = node.meta.get("val")
    term = tracer.table.intern(("attribute", name))
    value = tracer.result(node, val if val is not None else found, term, ())
    tracer.trace.constants[name] = value
    return value


def find(root: torch.nn.Module, name: str) -> Any:
    """What ``name`` refers to below a module, None when there is nothing; runs no code of the module."""
    at: Any = root
    for part in name.split("."):
        if not isinstance(at, torch.nn.Module):
            return None
        places = (at._modules, at._parameters, at._buffers, at.__dict__)
        at = next((place[part] for place in places if part in place), None)
    return at


def _subgraph(tracer: Tracer, module: fx.GraphModule) -> int:
    table = tracer.table
    known = table.subgraphs.get(id(module))
    if known is not None:
        return known[0]
    if tracer.depth >= MAX_DEPTH:
        return table.foreign(module)
    report = Report()
    if not check_order(module.graph, report, " in a sub-graph"):
        tracer.trace.events.extend(Event(f.rule, f.node, f.text, (f,)) for f in report.findings)
        return table.foreign(module)
    doubts = len(table.undecided)
    inner = tracing.Tracer(
        table, module, first=tracer.first, depth=tracer.depth + 1, groups=tracer.groups, fixed=tracer.fixed
    )
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    found = inner.walk(module.graph, {node.name: _parameter(i, node) for i, node in enumerate(places)})
    tracer.trace.events.extend(found.events)
    term = table.intern(_key(tracer, found))
    if len(table.undecided) > doubts:
        table.undecided.setdefault(term, "something in a sub-graph")
    memory = inner.memory.storages
    shared = [value for _, value in found.inputs] + list(found.constants.values())
    writes = any(memory[value.root].writes for value in shared if isinstance(value, Tensor))
    table.summaries[term] = Summary(bool(found.random), bool(found.effects), writes)
    table.subgraphs[id(module)] = (term, module)
    return term


def _parameter(position: int, node: fx.Node) -> str:
    """A name for an input of a sub-graph that inputs of other shapes do not share."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return f"{position}: {type(val).__name__}"
    strides = tuple(val.stride()) if val.layout is torch.strided else None
    return f"{position}: {tuple(val.shape)} {strides} {val.dtype} {val.device}"


def _key(tracer: Tracer, found: Trace) -> tuple[Any, ...]:
    table, memory = tracer.table, found.memory
    outputs = tuple(o.constant if o.value is None else key_of(table, o.value) for o in found.outputs)
    versions = tuple(memory.version(v.root) for _, v in found.inputs if memory is not None and isinstance(v, Tensor))
    effects = tuple(term for term, _ in found.effects)
    random = tuple(term for term, _ in found.random)
    return ("graph", len(found.inputs), found.structure, outputs, versions, effects, random)
