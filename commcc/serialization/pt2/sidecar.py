"""The extra file ``extra/commcc.json``: what a Program knows that no other part of a ``.pt2`` file has a place for.

Groups, header, history and symbols are plain JSON::

    data = encode_extra(program, symbols)        # {"commcc": 1, "groups": [...], "header": {...}, ...}
    extra = decode_extra(data)                   # Extra(groups, header, provenance, symbols)

What the graph file cannot say of the graph is a difference. Writing reads back what the schema keeps of a graph and
notes how the graph differs from that: the order of nodes, those that are missing or changed, and metadata. Reading
applies the difference::

    graph file: split -> getitem, getitem_1          sidecar: {"nodes": ["x", "split", "mm", "getitem_1", ...]}
    program:    x, split, mm, getitem_1, ...

An entry of ``nodes`` is the name of a node that is as the graph file has it, or the whole node, whose arguments are
JSON with tags for what JSON has not::

    encode_argument((Ref("x"), [1, 2.0], torch.float32))
    # {"$tuple": [{"$node": "x"}, [1, 2.0], {"$dtype": "float32"}]}

The sidecar is untrusted like the rest of the file, and other tools do not keep it up to date: it counts
only if writing the program that it describes gives the graph file again (see :mod:`commcc.serialization.pt2.program`).
It is written in one order; wrong types raise :class:`InputError`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from commcc.base.errors import InputError, OutputError
from commcc.serialization.metadata import NO_VAL, decode_json, encode_json, is_lost
from commcc.serialization.pt2.arguments import TEXT_HINT
from commcc.serialization.pt2.schema import DTYPES, LAYOUTS, MEMORY_FORMATS, check_name, check_path, device_of
from commcc.serialization.pt2.specs import GraphSpec, Ref, Spec, same_argument
from commcc.serialization.sections import group_json, group_of, note_of
from commcc.serialization.shapes import SymbolInfo
from commcc.serialization.symbols import SYMBOL_NAME
from commcc.serialization.targets import path_of, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from commcc.graph.program import Note, ProcessGroup, Program
    from commcc.serialization.pt2.metadata import MetadataReader, MetadataWriter
    from commcc.serialization.shapes import ShapeContext

SIDECAR_VERSION = 1
#: What the target of each kind of node must be.
_TARGETS: dict[str, Callable[[Any], Any]] = {
    "placeholder": check_name,
    "get_attr": check_path,
    "call_function": lambda path: resolve(str(path)),
    "output": check_name,
}
_DTYPES = {str(dtype)[6:]: dtype for dtype in DTYPES.values()}
_LAYOUTS = {str(layout): layout for layout in LAYOUTS.values()}
_FORMATS = {str(memory_format): memory_format for memory_format in MEMORY_FORMATS.values()}


@dataclass(frozen=True)
class Extra:
    """The parts of a Program that the sidecar carries, and what it says about symbols."""

    groups: Mapping[str, ProcessGroup]
    header: Mapping[str, Any]
    provenance: tuple[dict[str, Any], ...]
    symbols: Mapping[str, SymbolInfo]
    notes: tuple[Note, ...] = ()


#: In the order of the file; what is not known of a group is there as null.
_NO_GROUP: dict[str, Any] = {"name": None, "size": None, "ranks": None, "description": ""}
#: What a file without a sidecar has.
NO_EXTRA = Extra({}, {}, (), {})


def encode_extra(program: Program, symbols: Mapping[str, SymbolInfo]) -> dict[str, Any]:
    """The sidecar without its graph."""
    return {
        "commcc": SIDECAR_VERSION,
        "groups": [
            {**_NO_GROUP, **group_json(group), "name": group.name, "description": _line(group.description)}
            for group in program.groups.values()
        ],
        "header": dict(program.header),
        "provenance": list(program.provenance),
        "notes": [[_line(note.text), note.node] for note in program.notes],
        "symbols": {name: info.to_json() for name, info in symbols.items()},
    }


def decode_extra(data: Any) -> Extra:
    """What :func:`encode_extra` encoded."""
    if not isinstance(data, dict) or data.get("commcc") != SIDECAR_VERSION:
        raise InputError(f"was not written by this version of commcc (expected version {SIDECAR_VERSION})")
    header, provenance = data.get("header", {}), data.get("provenance", [])
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in provenance):
        raise InputError("header or provenance has the wrong type")
    # A header whose entries the text format could not write is refused.
    for name, bounds in header.get("symbols", {}).items():
        SymbolInfo.from_json(name, bounds)
    _check_line(header.get("class_name", ""), "the name of the class")
    groups = [group_of(entry["name"], entry) for entry in data.get("groups", [])]
    if len({group.name for group in groups}) != len(groups):
        raise InputError("two process groups have the same name")
    notes = tuple([note_of(entry) for entry in data.get("notes", [])])
    for group in groups:
        _check_line(group.description, "the description of a group")
    for note in notes:
        _check_line(note.text + (note.node or ""), "a note")
    symbols = {name: SymbolInfo.from_json(name, bounds) for name, bounds in data.get("symbols", {}).items()}
    return Extra({group.name: group for group in groups}, header, tuple(provenance), symbols, notes)


def _check_line(text: Any, what: str) -> None:
    """Texts from a file are shown on terminals as they are."""
    if not isinstance(text, str) or not text.isprintable():
        raise InputError(f"{what} is malformed")


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def declare_symbols(ctx: ShapeContext, ranges: Mapping[str, Any], symbols: Mapping[str, SymbolInfo]) -> None:
    """Tell a new context what a file says about its symbols; range constraints of expressions are skipped."""
    for name, bounds in ranges.items():
        if SYMBOL_NAME.fullmatch(name):
            ctx.declare(name, lower=bounds["min_val"], upper=bounds["max_val"])
    for name, info in symbols.items():
        ctx.declare(name, lower=info.lower, upper=info.upper, hint=info.hint)


def difference(
    program: GraphSpec, kept: GraphSpec, lifted: Mapping[str, str], writer: MetadataWriter
) -> dict[str, Any]:
    """How ``program`` differs from what the graph file keeps of it.

    lifted: the inputs that replace tensors of ``get_attr`` nodes, by the attribute they hold.
    writer: takes the metadata that nodes share.
    """
    known = {spec.name: spec for spec in kept.nodes}
    entries = [spec.name if _same(spec, known.get(spec.name)) else _encode_spec(spec, lifted) for spec in program.nodes]
    out: dict[str, Any] = {}
    # Most graphs need no list of nodes at all.
    if entries != [spec.name for spec in kept.nodes]:
        out["nodes"] = entries
    # Metadata are compared with what reading will have, nodes that changed included.
    restored = apply(out, kept) if out else kept
    values, metadata = {}, {}
    for spec, restored_spec in zip(program.nodes, restored.nodes, strict=True):
        if (shape := _shape(spec.val)) != _shape(restored_spec.val):
            values[spec.name] = shape
        if changed := writer.changes(spec, restored_spec):
            metadata[spec.name] = changed
    children = {
        name: child
        for name, spec in program.subgraphs.items()
        if name in kept.subgraphs and (child := difference(spec, kept.subgraphs[name], {}, writer))
    }
    extra = {"values": values, "metadata": metadata, "subgraphs": children}
    return {**out, **{key: value for key, value in extra.items() if value}}


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
    # The constant is an input in the graph file.
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
    specs: dict[str, Spec] = {}
    for entry in sidecar["nodes"] if "nodes" in sidecar else list(known):
        if isinstance(entry, str):
            spec = known[entry]
            spec = Spec(spec.name, spec.op, spec.target, spec.args, spec.kwargs, spec.val, dict(spec.meta))
        else:
            spec = _restore(entry, known, specs, out)
        if spec.name in specs:
            raise InputError(f"two nodes are called {spec.name[:60]!r}")
        _check_uses((spec.args, spec.kwargs), specs)
        specs[spec.name] = spec
    out.nodes = list(specs.values())
    # FX accepts nodes behind the output and never runs them.
    if not out.nodes or out.nodes[-1].op != "output" or any(spec.op == "output" for spec in out.nodes[:-1]):
        raise InputError("the output is not the last node")
    if reader is not None:
        _restore_values(sidecar.get("values", {}), out)
        for name, changes in sidecar.get("metadata", {}).items():
            reader.restore(specs[name], changes)
    children = sidecar.get("subgraphs", {})
    out.subgraphs = {name: apply(children.get(name, {}), child, reader) for name, child in kept.subgraphs.items()}
    return out


def _restore(entry: Any, known: dict[str, Spec], specs: dict[str, Spec], out: GraphSpec) -> Spec:
    name, op, path, args, kwargs, *source = entry
    if op not in _TARGETS:
        raise InputError(f"{str(op)[:40]!r} is not a kind of node")
    spec = Spec(check_name(name), op, _TARGETS[op](path), decode_argument(args), decode_argument(kwargs))
    if not isinstance(spec.args, tuple) or not isinstance(spec.kwargs, dict):
        raise InputError(f"the arguments of {name[:60]!r} are malformed")
    # FX would drop them, and the file would not come out the same.
    if (spec.args or spec.kwargs) and op in ("placeholder", "get_attr"):
        raise InputError(f"{name[:60]!r} has arguments")
    for key in spec.kwargs:
        check_name(key)
    like = known.get(source[0] if source else name)
    if spec.target is operator.getitem:
        # Its value comes from its producer, and its metadata from where PyTorch would take it.
        source, index = spec.args
        producer = specs[source.name]
        if not isinstance(producer.val, (list, tuple)) or not 0 <= index < len(producer.val):
            raise InputError(f"{spec.name[:60]!r} takes a result that does not exist")
        spec.val, spec.meta = producer.val[index], dict(known.get(spec.name, producer).meta)
    elif like is not None:
        spec.val, spec.meta = like.val, dict(like.meta) if not source else {}
    # Its value is that of the input that replaced it.
    if source and like is not None:
        out.attributes[path] = like.val
    return spec


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
            # A node whose value is None has no place for it in the graph file.
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


def encode_argument(arg: Any) -> Any:
    """An argument of a :class:`Spec` as JSON; :class:`OutputError` for what has no form."""
    if arg is None or isinstance(arg, (str, bool, int)):
        return arg
    if isinstance(arg, list):
        return [encode_argument(item) for item in arg]
    if isinstance(arg, tuple):
        return {"$tuple": [encode_argument(item) for item in arg]}
    if isinstance(arg, dict):
        return {"$dict": [[encode_argument(key), encode_argument(value)] for key, value in arg.items()]}
    if isinstance(arg, (OpOverload, HigherOrderOperator)):
        return {"$op": path_of(arg)}
    encoder = _ENCODERS.get(type(arg))
    if encoder is not None:
        return encoder(arg)
    encoded = encode_json(arg)
    if is_lost(encoded):
        raise OutputError(f"a .pt2 file cannot hold an argument of type {type(arg).__name__}", hint=TEXT_HINT)
    return encoded


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    Ref: lambda arg: {"$node": arg.name},
    torch.dtype: lambda arg: {"$dtype": str(arg)[6:]},
    torch.device: lambda arg: {"$device": [arg.type, arg.index]},
    torch.layout: lambda arg: {"$layout": str(arg)},
    torch.memory_format: lambda arg: {"$format": str(arg)},
    slice: lambda arg: {"$slice": [encode_argument(part) for part in (arg.start, arg.stop, arg.step)]},
}


def decode_argument(data: Any) -> Any:
    """What :func:`encode_argument` encoded; malformed data raise :class:`InputError` or a look-up error."""
    if isinstance(data, list):
        return [decode_argument(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise InputError(f"{str(data)[:60]!r} is not an argument")
    tag, body = next(iter(data.items()))
    decoder = _DECODERS.get(tag)
    return decode_json(data) if decoder is None else decoder(body)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda body: tuple([decode_argument(item) for item in body]),
    "$dict": lambda body: {decode_argument(key): decode_argument(value) for key, value in body},
    "$node": lambda body: Ref(str(body)),
    "$op": lambda body: resolve(str(body)),
    "$dtype": lambda body: _DTYPES[body],
    "$device": lambda body: device_of({"type": body[0], "index": body[1]}),
    "$layout": lambda body: _LAYOUTS[body],
    "$format": lambda body: _FORMATS[body],
    "$slice": lambda body: slice(*[decode_argument(item) for item in body]),
}
