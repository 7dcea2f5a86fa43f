"""FX text to programs: signature, body and result of each ``forward`` function, with metadata and values.

Forms of inputs: parameters; the pytree form of joint graphs (``x, y, = fx_pytree.tree_flatten_spec(...)``);
the boxed form (``x = next(args_iter)``). Forms of metadata: PyTorch's comments, which hold for all nodes
below them, and commcc's, which hold for the next node.

Nothing in a text is executed: expressions go through Python's parser only, names of ops through
:mod:`commcc.serialization.targets`. Order and names of nodes come back as written.

Limits: a text of PyTorch has no storage offsets, no ``requires_grad``, no values of constants and only
the sizes of process groups; strides and devices may be missing too, and are then taken as contiguous and
as the first device that the text names. ``header["assumed"]`` says which of the two it was.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import _disable_current_modes

from commcc.base.errors import InputError, located
from commcc.base.gc_pause import no_collection
from commcc.graph.program import Note, Program
from commcc.serialization.attributes import find, put, sub_graph, subclass_note, unknown_note
from commcc.serialization.fx.commcc_comments import FileHeader, TableReader, decode_constant, load_object, read_header
from commcc.serialization.fx.source import outline
from commcc.serialization.fx.statements import Nodes, Parameter, read_result, read_signature
from commcc.serialization.fx.torch_comments import read_comment
from commcc.serialization.metadata import NO_VAL, decode_json
from commcc.serialization.sections import with_used_groups
from commcc.serialization.shapes import ShapeContext, SymbolInfo, parse_val, split_annotation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.serialization.fx.source import ClassText

_DEVICE = re.compile(r"device\(type='([a-z]{1,20})'(?:, index=(\d{1,4}))?\)")
_ASSIGNMENT = re.compile(r'([^\W\d]\w*)(?: ?: ?(?:"([^"]*)"|[\w.\[\], |]+))? = (.+)')
_DELETION = re.compile(r"((?:\w+ = )+)None;?")
_DECLARATION = re.compile(r'([^\W\d]\w*) ?: ?"([^"]*)"(?:; ?)?')
_FLATTEN = " = fx_pytree.tree_flatten_spec("
_BOXED = "args_iter = iter(args_list)"
_ASSUMED = {
    "strides": "strides are not in the text and taken as contiguous",
    "devices": "devices are not in the text and taken as {device}",
}


@dataclass
class Reading:
    """What all functions of one text share.

    device: for annotations that name none. tables: only in texts that commcc wrote.
    assumed: what the annotations leave out, in order of first occurrence. lost: comments that were
    cut. wrapped: nodes whose values are tensor subclasses, by class.
    """

    where: str
    ctx: ShapeContext
    device: str
    tables: TableReader | None = None
    notes: list[Note] = field(default_factory=list)
    assumed: dict[str, None] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)
    wrapped: dict[str, list[str]] = field(default_factory=dict)

    def all_notes(self) -> tuple[Note, ...]:
        """What could not be read or was assumed."""
        notes = [Note(_ASSUMED[what].format(device=self.device), assumed=what) for what in self.assumed]
        notes += [Note(f"metadata in comments could not be read whole: {what}") for what in self.lost]
        notes += [subclass_note(kind, nodes) for kind, nodes in self.wrapped.items()]
        return (*notes, *self.notes)


def parse_text(source: str, where: str, inner: Sequence[ClassText] = ()) -> Program:
    """The program in a text that holds one graph; anything else raises :class:`InputError` with its line.

    where: the file, for messages. inner: sub-graphs that stand in another text.
    """
    try:
        with warnings.catch_warnings(), no_collection(), _disable_current_modes():
            warnings.simplefilter("ignore")  # Python's parser warns about odd literals
            return _parse(source, where, inner)
    except (RecursionError, MemoryError):
        raise InputError("is nested too deeply to be a graph", where=where) from None


def _parse(source: str, where: str, inner: Sequence[ClassText]) -> Program:
    parts = outline(source, where)
    parts.graph.children += inner
    own = read_header(parts.comments, where)
    # A text that commcc wrote says all in its header and tables; PyTorch's comments in it mean nothing.
    header = own or FileHeader()
    ctx = ShapeContext()
    with located(where):
        symbols = header.header.get("symbols", {})
        if not isinstance(symbols, dict):
            raise InputError("the symbols are not an object")
        for name, data in symbols.items():
            info = SymbolInfo.from_json(name, data)
            ctx.declare(name, lower=info.lower, upper=info.upper, hint=info.hint)
    # Annotations without a device get the first that an argument names, else the CPU.
    match = _DEVICE.search(source)
    device = "cpu" if match is None else match[1] if match[2] is None else f"{match[1]}:{match[2]}"
    reading = Reading(where, ctx, device, TableReader(parts.footer, where) if own is not None else None)
    graph, root = _module(parts.graph, reading)
    known = dict(header.header)
    if own is None:
        if parts.graph.name != "GraphModule":
            known["class_name"] = parts.graph.name
        if reading.assumed:
            known["assumed"] = list(reading.assumed)
    with located(where):
        # PyTorch's texts name groups in collectives only.
        groups = with_used_groups(graph, root, header.groups)
    notes = reading.all_notes() if own is None else header.notes
    return Program(graph, root, groups, "fx_text", header=known, notes=notes, provenance=header.provenance)


def _module(text: ClassText, reading: Reading, path: str = "") -> tuple[fx.Graph, nn.Module]:
    """A graph and the module that owns what it refers to; ``path`` is where it stands in the outermost one."""
    graph = _Function(text, reading).build()
    # Sub-graphs first: what is then still missing under a name is a constant.
    children = {child.name: _module(child, reading, f"{path}{child.name}.") for child in text.children}
    root = nn.Module()
    with located(f"{reading.where}:{text.line}"):
        if len(children) != len(text.children):
            raise InputError("two sub-graphs have the same name")
        for name, (child, owner) in children.items():
            put(root, name, sub_graph(owner, child, name))
        for node in graph.nodes:
            if node.op == "get_attr" and find(root, node.target) is None:
                put(root, node.target, _constant(node, path, reading))
    return graph, root


def _constant(node: fx.Node, path: str, reading: Reading) -> Any:
    """What a text says about a constant; a fake tensor where it has no value, an empty module where nothing."""
    stored = reading.tables.constants.get(path + str(node.target)) if reading.tables is not None else None
    if stored is not None:
        number, body = stored
        with located(f"{reading.where}:{number}"):
            return decode_constant(body, reading.ctx)
    val = node.meta.get("val")
    reading.notes.append(unknown_note(str(node.target), val))
    # FX needs something there; a module is what a sub-graph would be.
    return val if isinstance(val, torch.Tensor) else nn.Module()


class _Function:
    """One ``forward`` function while it is read; ``number`` is the line that an error is about.

    sticky: metadata of PyTorch's last comment. pending: what commcc says about the next node.
    declared: inputs with annotations that are unpacked from a pytree later.
    """

    def __init__(self, text: ClassText, reading: Reading) -> None:
        self.text = text
        self.number = text.forward_line
        self.reading = reading
        self.nodes = Nodes(reading.ctx)
        self.sticky: dict[str, Any] = {}
        self.pending: dict[str, Any] = {}
        self.comments: dict[str, dict[str, Any] | None] = {}
        self.declared: dict[str, Parameter] = {}
        self.flat = any(_FLATTEN in line for _, line in text.body)
        self.boxed = any(line == _BOXED for _, line in text.body)

    def build(self) -> fx.Graph:
        """The graph; anything that is not a graph raises :class:`InputError` with its line."""
        try:
            parameters = read_signature(self.text.signature, self.nodes.values, self.reading.where)
            # Other forms unpack their inputs in the body, under the names that the nodes have.
            if not (self.flat or self.boxed):
                for parameter in parameters:
                    self._placeholder(parameter)
            for number, line in self.text.body:
                self.number = number
                self._line(line)
            # What follows is about the first line of the result.
            self.number = self.text.result[0][0]
            result = read_result(self.text.result, self.nodes.values)
            name = self.pending.pop("$name", "output")
            if not isinstance(name, str):
                raise InputError("the name of the output is not a string")
            node = self.nodes.output(name, result.value)
            self._set_meta(node, None, self.pending)
            if result.desc is not None:
                node.meta["desc"] = result.desc
            return self.nodes.finish()
        except InputError as error:
            if error.where is not None:
                raise
            raise InputError(error.what, where=f"{self.reading.where}:{self.number}", hint=error.hint) from None

    def _placeholder(self, parameter: Parameter) -> None:
        meta = dict(parameter.meta)
        target = meta.pop("$target", parameter.target)
        default = (decode_json(meta.pop("$default")),) if "$default" in meta else parameter.default
        if not isinstance(target, str) or not target.lstrip("*").isidentifier():
            raise InputError("the name of a parameter is not an identifier")
        node = self.nodes.placeholder(parameter.name, target, default)
        self._set_meta(node, parameter.annotation, meta)
        if parameter.desc is not None:
            node.meta["desc"] = parameter.desc

    def _line(self, line: str) -> None:
        if line[0] == "#":
            self._comment(line)
            return
        code = line
        deleted: list[str] = []
        if line.endswith(("None", "None;")):  # `x = ...;  y = z = None` at the last use of y and z
            start = line.rfind(";", 0, -1) + 1
            deletion = _DELETION.fullmatch(line[start:].strip())
            if deletion is not None:
                code, deleted = line[: max(start - 1, 0)].rstrip(), deletion[1].split(" = ")[:-1]
        match = _ASSIGNMENT.fullmatch(code) if code else None
        if match is not None and _FLATTEN not in code:
            self._assign(match[1], match[2], match[3])
        elif code:
            self._other(code)
        for name in deleted:
            self.nodes.delete(name)

    def _comment(self, line: str) -> None:
        if self.reading.tables is not None:
            if line.startswith("# {"):
                self.pending = load_object(line[2:], "the metadata above a node")
            return
        # The same comment stands above many nodes.
        if line not in self.comments:
            comment = read_comment(line)
            self.comments[line] = None if comment is None else comment.meta
            self.reading.lost.update(dict.fromkeys(() if comment is None else comment.lost))
        meta = self.comments[line]
        # A comment that is none of metadata leaves what holds as it is.
        if meta is not None:
            self.sticky = meta

    def _assign(self, name: str, annotation: str | None, expression: str) -> None:
        if self.boxed and expression in ("iter(args_list)", "next(args_iter)"):
            # iter(args_list) itself is no input.
            if expression[0] == "n":
                self._placeholder(Parameter(name, name, annotation))
            return
        node = self.nodes.statement(name, expression)
        # Another name of a node; what the comment says is for the next statement.
        if node is None:
            return
        meta, self.pending = self.pending, {}
        self._set_meta(node, annotation, meta)
        if self.sticky:
            node.meta.update(self.sticky)

    def _other(self, code: str) -> None:
        """Lines that are no nodes: declarations and the unpacking of inputs."""
        names, separator, _ = code.partition(_FLATTEN)
        if separator:
            for name in filter(None, (part.strip() for part in names.split(","))):
                self._placeholder(self.declared.get(name) or Parameter(name, name, None))
        elif self.flat and (match := _DECLARATION.match(code)) is not None:
            self._declare(code, match)
        elif code != "pass" and not (self.boxed and code == "args_list.clear()"):
            # A graph without statements has a pass.
            raise InputError(f"not a statement of a graph: {code[:80]!r}", hint="the text is damaged; dump it again")

    def _declare(self, code: str, match: re.Match[str] | None) -> None:
        """``x: "f32[4]"; y: "f32[4]"``, with a descriptor of the last one behind ``#``."""
        end = 0
        while match is not None:
            end = match.end()
            self.declared[match[1]] = Parameter(match[1], match[1], match[2])
            last, match = match[1], _DECLARATION.match(code, end)
        rest = code[end:].strip()
        if rest.startswith("# "):
            self.declared[last] = Parameter(last, last, self.declared[last].annotation, desc=rest[2:])
        elif rest:
            raise InputError(f"not a statement of a graph: {rest[:80]!r}")

    def _set_meta(self, node: fx.Node, annotation: str | None, meta: dict[str, Any]) -> None:
        reading = self.reading
        val = NO_VAL
        if annotation is not None:
            parts = split_annotation(annotation)
            if parts is not None:
                if parts.stride is None:
                    reading.assumed["strides"] = None
                if parts.device is None:
                    reading.assumed["devices"] = None
                if parts.wrapper is not None:
                    reading.wrapped.setdefault(parts.wrapper, []).append(node.name)
            val = node.meta["val"] = parse_val(annotation, reading.ctx, device=reading.device)
        if meta and reading.tables is not None:
            node.meta.update(reading.tables.meta(meta, reading.ctx, val))
