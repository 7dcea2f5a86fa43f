"""The canonical text: one node a line as PyTorch prints it, with metadata in comments.

::

    # commcc: {"fx_text": 1}
    class GraphModule(torch.nn.Module):
        def forward(
            self,
            # {"desc": "ParamAOTInput(target='w')"}
            primals_1: "f32[8, 8][8, 1]cuda:0",
        ):
            # {"seq_nr": 3, "stack_trace": 0}
            mm: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(primals_1, primals_1)
            return (
                mm,
            )
        # commcc: meta ["stack_trace", 0, "..."]

Equal programs give equal bytes, and what is read from a text is written as that text again.
Limits: deletions (``x = None``) are not written, they follow from the graph; ``node.type`` is not kept.
"""

from __future__ import annotations

import keyword
import operator
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from commcc.base.errors import InputError, OutputError
from commcc.graph.program import Note, is_plain
from commcc.serialization.attributes import find, subclass_note, unknown_note
from commcc.serialization.fx.commcc_comments import (
    AT,
    WHERE,
    TableWriter,
    constant_line,
    dump,
    encode_constant,
    has_value,
    header_lines,
    json_key,
)
from commcc.serialization.fx.statements import is_node_name
from commcc.serialization.fx.values import argument_text
from commcc.serialization.metadata import (
    DERIVED_KEYS,
    INLINE,
    encode_entry,
    encode_json,
    is_annotated,
    is_lost,
    lost_notes,
)
from commcc.serialization.sections import with_used_groups
from commcc.serialization.shapes import SymbolInfo, default_symbol, format_val, symbols_in
from commcc.serialization.symbols import stable_text
from commcc.serialization.targets import path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.base.terms import Json
    from commcc.graph.program import Program

_CLASS_NAME = re.compile(r"[^\s()#]{1,100}")
_PLAIN_TENSORS = (torch.Tensor, FakeTensor, nn.Parameter)


def write_text(program: Program) -> tuple[str, tuple[Note, ...]]:
    """The canonical text of ``program``, and notes on what it could not hold.

    What would make the text a different program (calls of modules, tensors among the arguments) raises
    :class:`OutputError`, collectives that disagree on the size of a group :class:`GraphError`.
    """
    parts = WrittenParts()
    name = program.header.get("class_name")
    # The header may come from another file format.
    if not isinstance(name, str) or not _CLASS_NAME.fullmatch(name):
        name = "GraphModule"
    body = GraphWriter(program.graph, program.root, parts).lines(name)
    # Notes that were read are not new, and are written again as they are.
    new = tuple(note for note in parts.all_notes() if note not in program.notes)
    header = {key: value for key, value in program.header.items() if key != "symbols"}
    symbols = parts.sizes.symbols(program.header.get("symbols"))
    if symbols:
        header["symbols"] = symbols
    complete = replace(program, groups=with_used_groups(program.graph, program.root, program.groups))
    head = header_lines(complete, header, (*program.notes, *new))
    return "\n".join([*head, *body, *parts.tables.lines(), *parts.constants, ""]), new


class Sizes:
    """Prints sizes so that they read back to the same text, and collects the symbols in them."""

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}
        self._symbols: dict[str, SymbolInfo] = {}

    def text(self, size: object) -> str:
        if type(size) is int:
            return str(size)
        node: Any = size.node  # type: ignore[attr-defined]
        expr = node.expr
        known = self._texts.get(expr)
        if known is None:
            try:  # a text that reads back as another one would not be written the same again
                known = self._texts[expr] = stable_text(expr, default_symbol)
            except InputError as error:
                raise OutputError(error.what) from None
            self._symbols.update(symbols_in(node.shape_env, getattr(expr, "free_symbols", ())))
        return known

    def symbols(self, header: Json) -> dict[str, Json]:
        """``[lower, upper, hint]`` of every symbol; what ``header`` says about one is kept as it is."""
        known = dict(header) if isinstance(header, dict) else {}
        written = {name: info.to_json() for name, info in self._symbols.items()}
        merged: dict[str, Any] = {**written, **known}
        return {name: merged[name] for name in sorted(merged, key=lambda name: (len(name), name))}


@dataclass
class WrittenParts:
    """What all graphs of one file share while it is written."""

    sizes: Sizes = field(default_factory=Sizes)
    tables: TableWriter = field(default_factory=TableWriter)
    constants: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    lost: dict[str, list[str]] = field(default_factory=dict)
    wrapped: dict[str, list[str]] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)

    def note_memory(self, path: str, value: torch.Tensor) -> None:
        """A note where a constant shares memory with another one: each is written with its own."""
        if not is_plain(value) or not value.numel():
            return
        first = self.owners.setdefault(value.untyped_storage().data_ptr(), path)
        if first != path:
            self.notes.append(Note(f"constants {first} and {path} share memory, which a text does not say"))

    def all_notes(self) -> Iterator[Note]:
        """What could not be written."""
        yield from self.notes
        for kind, nodes in self.wrapped.items():
            yield subclass_note(kind, nodes)
        yield from lost_notes(self.lost)


class GraphWriter:
    """Writes one graph; sub-graphs follow as nested classes.

    path: where the graph stands in the outermost one (``body.``), for constants.
    """

    def __init__(self, graph: fx.Graph, root: nn.Module, parts: WrittenParts, path: str = "") -> None:
        self.graph = graph
        self.root = root
        self.parts = parts
        self.path = path
        self.names: set[str] = set()
        self.targets: dict[Any, str] = {operator.getitem: ""}

    def lines(self, name: str, indent: str = "") -> list[str]:
        nodes = list(self.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        out = [f"{indent}class {name}(torch.nn.Module):", f"{indent}    def forward(", f"{indent}        self,"]
        self.indent = f"{indent}        "
        for node in inputs:
            out += self._statement(node, f"{self._head(node)},", _extra_of_input(node))
        out.append(f"{indent}    ):")
        for node in nodes:
            if node.op == "output":
                out += self._output(node)
            elif node.op != "placeholder":
                out += self._statement(node, f"{self._head(node)} = {self._value(node)}")
        if not nodes or nodes[-1].op != "output":
            raise OutputError("the graph has no output at its end")
        return out + self._attributes(indent + "    ")

    def _head(self, node: fx.Node) -> str:
        name = node.name
        if name in self.names or not is_node_name(name):
            what = f"{name!r} is used twice or means something else in a text"
            raise OutputError(what, hint="rename the node, or write .pt2")
        self.names.add(name)
        val = node.meta.get("val")
        if not is_annotated(val):
            return name
        # A DTensor is written with the shape that it shows, and a note.
        if isinstance(val, torch.Tensor) and type(val) not in _PLAIN_TENSORS:
            self.parts.wrapped.setdefault(type(val).__name__, []).append(name)
        return f'{name}: "{format_val(val, self.parts.sizes.text)}"'

    def _statement(self, node: fx.Node, line: str, extra: Mapping[str, Json] | None = None) -> list[str]:
        meta = self._meta(node, extra)
        return [f"{self.indent}# {meta}", self.indent + line] if meta else [self.indent + line]

    def _value(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            chain = "self"
            for part in str(node.target).split("."):
                chain = f"{chain}.{part}" if part.isidentifier() else f'getattr({chain}, "{part}")'
            return chain
        if node.op != "call_function":
            raise OutputError(f"node {node.name!r} calls a {node.op.removeprefix('call_')}, which text cannot hold")
        target: Any = node.target
        try:
            args = [argument_text(arg) for arg in node.args]
            # As FX prints it.
            if target is operator.getitem and len(args) == 2 and not node.kwargs and isinstance(node.args[0], fx.Node):
                return f"{args[0]}[{args[1]}]"
            # Names of ops are worked out once; that of getitem is needed only where it is no plain subscript.
            path = self.targets.get(target)
            if not path:
                path = self.targets[target] = path_of(target)
            for key, value in node.kwargs.items():
                if not key.isidentifier() or keyword.iskeyword(key):
                    raise OutputError(f"the keyword {key!r} cannot be written")
                args.append(f"{key} = {argument_text(value)}")
        except OutputError as error:
            raise OutputError(f"node {node.name!r}: {error.what}") from None
        return f"{path}({', '.join(args)})"

    def _output(self, node: fx.Node) -> list[str]:
        value = node.args[0]
        meta = self._meta(node, {"$name": node.name} if node.name != "output" else None)
        lines = [f"{self.indent}# {meta}"] if meta else []
        # A single value, or nothing at all, fits on the line.
        if not isinstance(value, (tuple, list)) or not value:
            return [*lines, f"{self.indent}return {argument_text(value)}"]
        opening, closing = ("(", ")") if isinstance(value, tuple) else ("[", "]")
        items = [f"{self.indent}    {argument_text(item)}," for item in value]
        return [*lines, f"{self.indent}return {opening}", *items, f"{self.indent}{closing}"]

    def _meta(self, node: fx.Node, extra: Mapping[str, Json] | None) -> str:
        """The JSON above a node, empty if there is nothing to say."""
        parts = [f"{json_key(key)}: {dump(value)}" for key, value in (extra or {}).items()]
        where: list[str] = []
        for key in sorted(node.meta, key=str):
            entry = self._entry(node, key, node.meta[key])
            if entry is not None:
                (where if key in WHERE else parts).append(f"{json_key(key)}: {entry}")
        if where:
            number = self.parts.tables.intern(AT, f"{{{', '.join(where)}}}")
            parts.insert(0, f"{json_key(AT)}: {number}")
        return f"{{{', '.join(parts)}}}" if parts else ""

    def _entry(self, node: fx.Node, key: Any, value: Any) -> int | str | None:
        """One value as JSON or as its number in a table, None if it cannot or need not be written."""
        # Most metadata are sequence numbers.
        if type(value) is int and key in INLINE:
            return value
        tables = self.parts.tables
        number = None if key in INLINE else tables.known(key, value)
        if number is not None:
            return number
        encoded: Any = encode_entry(key, value, self.parts.sizes.text)
        if is_lost(encoded) or key.startswith("$"):
            # An annotation says all of most values.
            if key not in DERIVED_KEYS and not (key == "val" and is_annotated(value)):
                self.parts.lost.setdefault(str(key), []).append(node.name)
            return None
        return dump(encoded) if key in INLINE else tables.number(key, value, encoded)

    def _attributes(self, indent: str) -> list[str]:
        """Nested classes for sub-graphs; constants go to the end of the file."""
        out: list[str] = []
        seen: set[str] = set()
        for node in self.graph.nodes:
            # Two nodes may refer to one constant.
            if node.op != "get_attr" or node.target in seen:
                continue
            path = str(node.target)
            seen.add(path)
            value = find(self.root, path)
            if isinstance(value, fx.GraphModule):
                out += GraphWriter(value.graph, value, self.parts, f"{self.path}{path}.").lines(path, indent)
                continue
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self.parts.note_memory(self.path + path, value)
                body = encode_constant(value, self.parts.sizes.text)
                self.parts.constants.append(constant_line(self.path + path, body))
            if not isinstance(value, torch.Tensor) or not has_value(value):
                self.parts.notes.append(unknown_note(path, value))
        return out


def _extra_of_input(node: fx.Node) -> dict[str, Json]:
    extra: dict[str, Json] = {}
    if node.target != node.name:
        extra["$target"] = str(node.target)
    if node.args:
        default = encode_json(node.args[0])
        if is_lost(default):
            raise OutputError(f"the default of input {node.name!r} cannot be written")
        extra["$default"] = default
    return extra
