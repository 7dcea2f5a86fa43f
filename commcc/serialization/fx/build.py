"""One ``forward`` function to one FX graph: signature, body and result, with metadata and values.

Forms of inputs: parameters; the pytree form of joint graphs (``x, y, = fx_pytree.tree_flatten_spec(...)``);
the boxed form (``x = next(args_iter)``). Forms of metadata: PyTorch's comments, which hold for all nodes
below them, and commcc's, which hold for the next node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.serialization.fx.comments import read_comment
from commcc.serialization.fx.header import load
from commcc.serialization.fx.nodes import Nodes
from commcc.serialization.fx.signature import Parameter, read_result, read_signature
from commcc.serialization.fx.source import expression_tree
from commcc.serialization.metadata import NO_VAL, decode_json
from commcc.serialization.shapes import parse_val, split_annotation

if TYPE_CHECKING:
    from torch import fx

    from commcc.graph.program import Note
    from commcc.serialization.fx.source import ClassText
    from commcc.serialization.fx.tables import TableReader
    from commcc.serialization.shapes import ShapeContext

_ASSIGNMENT = re.compile(r'([^\W\d]\w*)(?: ?: ?(?:"([^"]*)"|[\w.\[\], |]+))? = (.+)')
_DELETION = re.compile(r"((?:\w+ = )+)None;?")
_DECLARATION = re.compile(r'([^\W\d]\w*) ?: ?"([^"]*)"(?:; ?)?')
_FLATTEN = " = fx_pytree.tree_flatten_spec("
_BOXED = "args_iter = iter(args_list)"


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


def build_graph(text: ClassText, reading: Reading) -> fx.Graph:
    """The graph of one class; anything that is not a graph raises :class:`InputError` with its line."""
    return _Function(text, reading).build()


class _Function:
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
        try:
            return self._build()
        except InputError as error:
            if error.where is not None:
                raise
            raise InputError(error.what, where=f"{self.reading.where}:{self.number}", hint=error.hint) from None

    def _build(self) -> fx.Graph:
        self._inputs()
        for number, line in self.text.body:
            self.number = number
            self._line(line)
        self.number = self.text.result[0][0]
        self._result()
        return self.nodes.finish()

    def _inputs(self) -> None:
        parameters = read_signature(self.text.signature, self.nodes.values, self.reading.where)
        if not (self.flat or self.boxed):
            for parameter in parameters:
                self._placeholder(parameter)

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
        code, deleted = _split_deletion(line)
        match = _ASSIGNMENT.fullmatch(code) if code else None
        if match is not None and _FLATTEN not in code:
            self._assign(match[1], match[2], match[3])
        elif code:
            self._other(code)
        for name in deleted:
            self.nodes.delete(name)

    def _assign(self, name: str, annotation: str | None, expression: str) -> None:
        if self.boxed and expression in ("iter(args_list)", "next(args_iter)"):
            if expression[0] == "n":
                self._placeholder(Parameter(name, name, annotation))
            return
        node = self.nodes.statement(name, expression_tree(expression))
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
            raise InputError(f"not a statement of a graph: {code[:80]!r}", hint="the text is damaged; dump it again")

    def _declare(self, code: str, match: re.Match[str] | None) -> None:
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

    def _result(self) -> None:
        result = read_result(self.text.result, self.nodes.values)
        name = self.pending.pop("$name", "output")
        if not isinstance(name, str):
            raise InputError("the name of the output is not a string")
        node = self.nodes.output(name, result.value)
        meta, self.pending = self.pending, {}
        self._set_meta(node, None, meta)
        if result.desc is not None:
            node.meta["desc"] = result.desc

    def _comment(self, line: str) -> None:
        if self.reading.tables is not None:
            if line.startswith("# {"):
                self.pending = _as_dict(load(line[2:]))
            return
        if line not in self.comments:
            found = read_comment(line)
            self.comments[line] = None if found is None else found.meta
            self.reading.lost.update(dict.fromkeys(() if found is None else found.lost))
        meta = self.comments[line]
        if meta is not None:
            self.sticky = meta

    def _set_meta(self, node: fx.Node, annotation: str | None, meta: dict[str, Any]) -> None:
        reading = self.reading
        val = NO_VAL
        if annotation is not None:
            val = node.meta["val"] = self._value(annotation, node.name)
        if meta and reading.tables is not None:
            node.meta.update(reading.tables.meta(meta, reading.ctx, val))

    def _value(self, annotation: str, name: str) -> Any:
        reading = self.reading
        parts = split_annotation(annotation)
        if parts is not None:
            if parts.stride is None:
                reading.assumed["strides"] = None
            if parts.device is None:
                reading.assumed["devices"] = None
            if parts.wrapper is not None:
                reading.wrapped.setdefault(parts.wrapper, []).append(name)
        return parse_val(annotation, reading.ctx, device=reading.device)


def _split_deletion(line: str) -> tuple[str, list[str]]:
    """A statement, and the names that are set to None at the end of its line."""
    if not line.endswith(("None", "None;")):
        return line, []
    start = line.rfind(";", 0, -1) + 1
    match = _DELETION.fullmatch(line[start:].strip())
    if match is None:
        return line, []
    return line[: max(start - 1, 0)].rstrip(), match[1].split(" = ")[:-1]


def _as_dict(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError("the metadata above a node is not an object")
    return data
