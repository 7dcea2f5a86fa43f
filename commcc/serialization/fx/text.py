"""FX text: read every form that PyTorch prints, write one form that loses nothing.

Usage::

    program = parse_text(path.read_text(), "llama.txt")     # print_readable, AOT dumps, TORCH_LOGS, ...
    text, notes = write_text(program)                       # notes: what the text could not hold
    write_text(parse_text(text, "again"))[0] == text

Nothing in a text is executed: expressions go through Python's parser only, names of ops through
:mod:`commcc.serialization.targets`. Order and names of nodes come back as written.

Limits: a text of PyTorch has no storage offsets, no ``requires_grad``, no values of constants and only
the sizes of process groups; strides and devices may be missing too, and are then taken as contiguous and
as the first device that the text names. ``header["assumed"]`` says which of the two it was.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import _disable_current_modes

from commcc.base.errors import GraphError, InputError
from commcc.base.gc_pause import no_collection
from commcc.graph.program import Note, Program
from commcc.serialization.fx.attributes import attach, subclass_note
from commcc.serialization.fx.build import Reading, build_graph
from commcc.serialization.fx.groups import with_used_groups
from commcc.serialization.fx.header import FileHeader, read_header
from commcc.serialization.fx.source import outline
from commcc.serialization.fx.tables import TableReader
from commcc.serialization.fx.write import write_text
from commcc.serialization.shapes import ShapeContext

if TYPE_CHECKING:
    from torch import fx, nn

    from commcc.serialization.fx.source import ClassText

__all__ = ["parse_text", "write_text"]

_DEVICE = re.compile(r"device\(type='([a-z]{1,20})'(?:, index=(\d{1,4}))?\)")
_ASSUMED = {
    "strides": "strides are not in the text and taken as contiguous",
    "devices": "devices are not in the text and taken as {device}",
}


def parse_text(source: str, where: str) -> Program:
    """The program in a text that holds one graph; anything else raises :class:`InputError` with its line.

    where: the file, for messages.
    """
    try:
        with warnings.catch_warnings(), no_collection(), _disable_current_modes():
            warnings.simplefilter("ignore")  # Python's parser warns about odd literals
            return _parse(source, where)
    except (RecursionError, MemoryError):
        raise InputError("is nested too deeply to be a graph", where=where) from None


def _parse(source: str, where: str) -> Program:
    found = outline(source, where)
    own = read_header(found.comments, where)
    header = own or FileHeader()
    ctx = ShapeContext()
    _declare(ctx, header.header.get("symbols", {}), where)
    tables = TableReader(found.footer, where) if own is not None else None
    reading = Reading(where, ctx, _device(source), tables)
    graph, root = _module(found.graph, reading)
    known = {**dict(header.header), **_extra_header(reading, found.graph)}
    try:
        groups = with_used_groups(graph, header.groups)
    except GraphError as error:
        raise InputError(error.what, where=where) from None
    notes = header.notes if own is not None else _notes(reading)
    return Program(graph, root, groups, "fx_text", header=known, notes=notes, provenance=tuple(header.provenance))


def _module(text: ClassText, reading: Reading, path: str = "") -> tuple[fx.Graph, nn.Module]:
    """A graph and the module that owns what it refers to, sub-graphs first."""
    graph = build_graph(text, reading)
    children = {child.name: _module(child, reading, f"{path}{child.name}.") for child in text.children}
    if len(children) != len(text.children):
        raise InputError("two sub-graphs have the same name", where=f"{reading.where}:{text.line}")
    try:
        return graph, attach(graph, children, reading, path)
    except InputError as error:
        if error.where is not None:
            raise
        raise InputError(error.what, where=f"{reading.where}:{text.line}", hint=error.hint) from None


def _device(source: str) -> str:
    """The device for annotations without one: the first that an argument names, else the CPU."""
    match = _DEVICE.search(source)
    if match is None:
        return "cpu"
    return match[1] if match[2] is None else f"{match[1]}:{match[2]}"


def _declare(ctx: ShapeContext, symbols: Any, where: str) -> None:
    if not isinstance(symbols, dict):
        raise InputError("the symbols are not an object", where=where)
    for name, body in symbols.items():
        if not isinstance(body, list) or len(body) != 3 or not all(_is_bound(bound) for bound in body):
            raise InputError(f"symbol {name[:40]!r} is not [lower, upper, hint]", where=where)
        lower, upper, hint = body
        try:
            ctx.declare(name, lower=lower, upper=upper, hint=hint)
        except InputError as error:
            raise InputError(error.what, where=where) from None


def _is_bound(value: Any) -> bool:
    return value is None or (type(value) is int and value.bit_length() < 70)


def _extra_header(reading: Reading, text: ClassText) -> dict[str, Any]:
    """What a text of PyTorch's says about the whole graph."""
    if reading.tables is not None:
        return {}
    extra: dict[str, Any] = {} if text.name == "GraphModule" else {"class_name": text.name}
    if reading.assumed:
        extra["assumed"] = list(reading.assumed)
    return extra


def _notes(reading: Reading) -> tuple[Note, ...]:
    notes = [Note(_ASSUMED[what].format(device=reading.device)) for what in reading.assumed]
    notes += [Note(f"metadata in comments could not be read whole: {what}") for what in reading.lost]
    notes += [subclass_note(kind, nodes) for kind, nodes in reading.wrapped.items()]
    return (*notes, *reading.notes)
