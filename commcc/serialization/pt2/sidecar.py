"""The extra file ``extra/commcc.json``: what a ``.pt2`` graph cannot say, as a difference.

Writing reads back what the schema keeps of a graph and notes how the graph differs from that: the order
of nodes, those that are missing or changed, and metadata. Reading applies the difference::

    graph file: split -> getitem, getitem_1          sidecar: {"nodes": ["x", "split", "mm", "getitem_1", ...]}
    program:    x, split, mm, getitem_1, ...

An entry of ``nodes`` is the name of a node that is as the graph file has it, or the whole node.
The sidecar is untrusted like the rest of the file, and other tools do not keep it up to date: it counts
only if writing the program that it describes gives the graph file again (see :mod:`commcc.serialization.pt2.program`).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.serialization.pt2.build import same_argument
from commcc.serialization.pt2.schema import NO_VAL, GraphSpec, Ref, Spec, check_name, check_path
from commcc.serialization.pt2.sidecar_args import decode_argument, encode_argument
from commcc.serialization.targets import path_of, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from commcc.serialization.pt2.sidecar_meta import MetadataReader, MetadataWriter

_OPS = ("placeholder", "get_attr", "call_function", "output")


def difference(
    program: GraphSpec, kept: GraphSpec, lifted: Mapping[str, str], writer: MetadataWriter
) -> dict[str, Any]:
    """How ``program`` differs from what the graph file keeps of it.

    lifted: the inputs that replace tensors of ``get_attr`` nodes, by the attribute they hold.
    writer: takes the metadata that nodes share.
    """
    entries = _entries(program, kept, lifted)
    out: dict[str, Any] = {}
    if entries != [spec.name for spec in kept.nodes]:
        out["nodes"] = entries
    restored = apply(out, kept) if out else kept
    values, metadata = {}, {}
    for spec, found in zip(program.nodes, restored.nodes, strict=True):
        if (shape := _shape(spec.val)) != _shape(found.val):
            values[spec.name] = shape
        if changed := writer.changes(spec, found):
            metadata[spec.name] = changed
    children = {
        name: child
        for name, spec in program.subgraphs.items()
        if name in kept.subgraphs and (child := difference(spec, kept.subgraphs[name], {}, writer))
    }
    extra = {"values": values, "metadata": metadata, "subgraphs": children}
    return {**out, **{key: value for key, value in extra.items() if value}}


def _entries(program: GraphSpec, kept: GraphSpec, lifted: Mapping[str, str]) -> list[Any]:
    known = {spec.name: spec for spec in kept.nodes}
    return [spec.name if _same(spec, known.get(spec.name)) else _encode_spec(spec, lifted) for spec in program.nodes]


def _same(spec: Spec, kept: Spec | None) -> bool:
    return (
        kept is not None
        and spec.op == kept.op
        and spec.target == kept.target
        and same_argument(spec.args, kept.args)
        and same_argument(spec.kwargs, kept.kwargs)
    )


def _encode_spec(spec: Spec, lifted: Mapping[str, str]) -> list[Any]:
    target = path_of(spec.target) if spec.op == "call_function" else str(spec.target)
    out = [spec.name, spec.op, target, encode_argument(spec.args), encode_argument(spec.kwargs)]
    if spec.op == "get_attr" and target in lifted:
        out.append(lifted[target])
    return out


def _shape(val: Any) -> str:
    """Which parts of a value are lists, tuples or None; empty for a single value."""
    if val is NO_VAL:
        return "absent"
    return _nesting(val) if isinstance(val, (list, tuple)) else ""


def _nesting(val: Any) -> str:
    if isinstance(val, (list, tuple)):
        inner = "".join(_nesting(item) for item in val)
        return f"[{inner}]" if isinstance(val, list) else f"({inner})"
    return "."


def apply(sidecar: dict[str, Any], kept: GraphSpec, reader: MetadataReader | None = None) -> GraphSpec:
    """The graph that a difference describes; leaves ``kept`` as it is.

    Anything that does not fit raises :class:`InputError`, or what malformed JSON does to code that reads it.
    Without ``reader`` only the nodes are restored.
    """
    known = {spec.name: spec for spec in kept.nodes}
    out = GraphSpec([], attributes=dict(kept.attributes))
    made: dict[str, Spec] = {}
    for entry in sidecar["nodes"] if "nodes" in sidecar else list(known):
        spec = _copy(known[entry]) if isinstance(entry, str) else _restore(entry, known, made, out)
        if spec.name in made:
            raise InputError(f"two nodes are called {spec.name[:60]!r}")
        _check_uses((spec.args, spec.kwargs), made)
        made[spec.name] = spec
    out.nodes = list(made.values())
    if not out.nodes or out.nodes[-1].op != "output" or any(spec.op == "output" for spec in out.nodes[:-1]):
        raise InputError("the output is not the last node")
    if reader is not None:
        _restore_values(sidecar.get("values", {}), out)
        for name, changes in sidecar.get("metadata", {}).items():
            reader.restore(made[name], changes)
    children = sidecar.get("subgraphs", {})
    out.subgraphs = {name: apply(children.get(name, {}), child, reader) for name, child in kept.subgraphs.items()}
    return out


def _copy(spec: Spec) -> Spec:
    return Spec(spec.name, spec.op, spec.target, spec.args, spec.kwargs, spec.val, dict(spec.meta))


def _restore(entry: Any, known: dict[str, Spec], made: dict[str, Spec], out: GraphSpec) -> Spec:
    name, op, path, args, kwargs, *source = entry
    if op not in _OPS:
        raise InputError(f"{str(op)[:40]!r} is not a kind of node")
    spec = Spec(check_name(name), op, _TARGETS[op](path), decode_argument(args), decode_argument(kwargs))
    if not isinstance(spec.args, tuple) or not isinstance(spec.kwargs, dict):
        raise InputError(f"the arguments of {name[:60]!r} are malformed")
    if (spec.args or spec.kwargs) and op in ("placeholder", "get_attr"):
        raise InputError(f"{name[:60]!r} has arguments")
    for key in spec.kwargs:
        check_name(key)
    like = known.get(source[0] if source else name)
    if spec.target is operator.getitem:
        _take_result(spec, known, made)
    elif like is not None:
        spec.val, spec.meta = like.val, dict(like.meta) if not source else {}
    if source and like is not None:
        out.attributes[path] = like.val
    return spec


_TARGETS: dict[str, Callable[[Any], Any]] = {
    "placeholder": check_name,
    "get_attr": check_path,
    "call_function": lambda path: resolve(str(path)),
    "output": check_name,
}


def _take_result(spec: Spec, known: dict[str, Spec], made: dict[str, Spec]) -> None:
    """A getitem gets its value from its producer, and its metadata where PyTorch would take it from."""
    source, index = spec.args
    producer = made[source.name]
    values = producer.val
    if not isinstance(values, (list, tuple)) or not 0 <= index < len(values):
        raise InputError(f"{spec.name[:60]!r} takes a result that does not exist")
    spec.val, spec.meta = values[index], dict(known.get(spec.name, producer).meta)


def _check_uses(arg: Any, defined: Container[str]) -> None:
    if isinstance(arg, Ref):
        if arg.name not in defined:
            raise InputError(f"{arg.name[:60]!r} is used before it is defined")
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            _check_uses(item, defined)
    elif isinstance(arg, dict):
        _check_uses(list(arg.values()), defined)
    elif isinstance(arg, slice):
        _check_uses((arg.start, arg.stop, arg.step), defined)


def _restore_values(shapes: dict[str, str], out: GraphSpec) -> None:
    for spec in out.nodes:
        shape = shapes.get(spec.name)
        if shape == "absent":
            spec.val = NO_VAL
        elif shape == "":
            spec.val = None if spec.val is NO_VAL else spec.val
        elif shape is not None:
            spec.val = _nest(iter(shape), spec.val)


def _nest(shape: Any, val: Any) -> Any:
    kind = next(shape)
    if kind == ".":
        return val
    items = [_nest(shape, item) for item in val]
    if next(shape) != {"[": "]", "(": ")"}[kind]:
        raise InputError("a value has another number of parts")
    return items if kind == "[" else tuple(items)
