"""Statements to FX nodes: the right-hand side decides the kind of node, names and order stay as written.

::

    mm = torch.ops.aten.mm.default(x, w)      call_function aten.mm.default
    getitem = mm[0]                           call_function operator.getitem
    add = u0 + 1                              call_function operator.add
    weight = self.weight                      get_attr "weight"
    x_1 = x                                   another name of x; renames an input that nothing used yet

Limits: calls of modules and methods, and all that Dynamo's own graphs have besides, are refused.
"""

from __future__ import annotations

import ast
import keyword
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.base.errors import InputError
from commcc.serialization.fx.values import Values, dotted
from commcc.serialization.targets import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.serialization.shapes import ShapeContext

#: Names that mean something else in the text, or would break code that FX generates from the graph.
_RESERVED = frozenset({*keyword.kwlist, "self", "torch", "inf", "nan", "device"})
#: Modules whose functions a text calls, even if a node has that name.
_MODULES = frozenset({"operator", "math"})
_ATTRIBUTE = re.compile(r"(?!__)\w{1,500}")
_LONGEST_NAME = 1000
_HINT = "only AOT, joint and post-grad graphs are read"

_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Div: "truediv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.MatMult: "matmul",
}
_UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.Gt: "gt", ast.LtE: "le", ast.GtE: "ge"}


def is_node_name(name: str) -> bool:
    """Whether a node may be called so in a text."""
    return name not in _RESERVED and name.isidentifier() and len(name) <= _LONGEST_NAME


class Nodes:
    """One graph under construction: its nodes by name."""

    def __init__(self, ctx: ShapeContext) -> None:
        self.graph = fx.Graph()
        self.env: dict[str, fx.Node] = {}
        self.names: set[str] = set()
        self.values = Values(self.env, ctx)
        self.forms: dict[type, Callable[[str, Any], fx.Node]] = {
            ast.Call: self._call,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.Compare: self._compare,
        }

    def placeholder(self, name: str, target: str, default: tuple[Any, ...] = ()) -> fx.Node:
        return self._create("placeholder", name, target, default, {})

    def output(self, name: str, value: Any) -> fx.Node:
        return self._create("output", name, "output", (value,), {})

    def statement(self, name: str, tree: ast.expr) -> fx.Node | None:
        """The node that ``name = tree`` makes; None for another name of an existing node."""
        if isinstance(tree, ast.Name):
            self._alias(name, tree)
            return None
        form = self.forms.get(type(tree))
        if form is None:
            raise InputError(f"{name[:60]!r} is assigned a {type(tree).__name__}, which no graph does")
        return form(name, tree)

    def delete(self, name: str) -> None:
        """Forget a name, as ``name = None`` after its last use does."""
        if self.env.pop(name, None) is None:
            raise InputError(f"{name[:80]!r} is deleted but not defined")

    def finish(self) -> fx.Graph:
        """The graph; names that FX will make up later cannot clash with those of the file."""
        self.graph._graph_namespace._used_names.update(node.name for node in self.graph.nodes)
        return self.graph

    def define(self, name: str) -> str:
        """Check a new name; Python reads names in normal form, so they are kept in it."""
        if not name.isascii():
            name = unicodedata.normalize("NFKC", name)
        if name in self.names:
            raise InputError(f"{name[:80]!r} is defined twice")
        if not is_node_name(name):
            raise InputError(f"{name[:80]!r} cannot be the name of a node")
        self.names.add(name)
        return name

    def _create(self, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        name = self.define(name)
        node = self.graph.create_node(op, target, args, kwargs, name=name)
        if node.name != name:
            node.name = name  # FX renames what could clash; the file's names are checked above
        if op != "output":
            self.env[name] = node
        return node

    def _alias(self, name: str, tree: ast.Name) -> None:
        node = self.values.value(tree)
        if not isinstance(node, fx.Node):
            raise InputError(f"{name[:60]!r} is assigned a number, which no graph does")
        name = self.define(name)
        if node.op == "placeholder" and node.name == node.target == tree.id and not node.users:
            # FX prints an input whose name is not its parameter's in this way.
            node.name = name
            self.names.discard(tree.id)
        self.env[name] = node

    def _call(self, name: str, tree: ast.Call) -> fx.Node:
        path = dotted(tree.func)
        if path is None:
            raise InputError("only ops can be called", hint=_HINT)
        if path == "getattr":
            return self._create("get_attr", name, _attribute_path(tree), (), {})
        owner = path.split(".")[0] if "." in path else None
        if owner == "self" or (owner in self.env and owner not in _MODULES):
            raise InputError(f"{path[:80]!r} calls a module or a method", hint=_HINT)
        target = resolve(path)
        args, kwargs = self.values.call_arguments(tree)
        return self._create("call_function", name, target, args, kwargs)

    def _attribute(self, name: str, tree: ast.Attribute) -> fx.Node:
        return self._create("get_attr", name, _attribute_path(tree), (), {})

    def _subscript(self, name: str, tree: ast.Subscript) -> fx.Node:
        args = (self.values.value(tree.value), self.values.value(tree.slice))
        return self._operator(name, "getitem", args)

    def _binary(self, name: str, tree: ast.BinOp) -> fx.Node:
        args = (self.values.value(tree.left), self.values.value(tree.right))
        return self._operator(name, _BINARY[type(tree.op)], args)

    def _unary(self, name: str, tree: ast.UnaryOp) -> fx.Node:
        inner = tree.operand
        if isinstance(tree.op, ast.USub) and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Pow):
            # FX prints pow(-1, x) without parentheses, and Python then reads -(1 ** x).
            base = ast.UnaryOp(op=tree.op, operand=inner.left)
            return self._operator(name, "pow", (self.values.value(base), self.values.value(inner.right)))
        if type(tree.op) not in _UNARY:
            raise InputError("'not' is not allowed in a graph")
        return self._operator(name, _UNARY[type(tree.op)], (self.values.value(inner),))

    def _compare(self, name: str, tree: ast.Compare) -> fx.Node:
        function = _COMPARE.get(type(tree.ops[0])) if len(tree.ops) == 1 else None
        if function is None:
            raise InputError("this comparison is not allowed in a graph")
        args = (self.values.value(tree.left), self.values.value(tree.comparators[0]))
        return self._operator(name, function, args)

    def _operator(self, name: str, function: str, args: tuple[Any, ...]) -> fx.Node:
        return self._create("call_function", name, resolve(f"operator.{function}"), args, {})


def _attribute_path(tree: ast.expr) -> str:
    """``a.0.b`` from ``getattr(self.a, "0").b``; each part is a plain word."""
    parts: list[str] = []
    while not isinstance(tree, ast.Name):
        if isinstance(tree, ast.Attribute):
            parts.append(tree.attr)
            tree = tree.value
            continue
        is_getattr = isinstance(tree, ast.Call) and dotted(tree.func) == "getattr" and len(tree.args) == 2
        key = tree.args[1] if isinstance(tree, ast.Call) and is_getattr else None
        if not isinstance(tree, ast.Call) or not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise InputError("only attributes of self can be read", hint=_HINT)
        parts.append(key.value)
        tree = tree.args[0]
    if tree.id != "self" or not all(_ATTRIBUTE.fullmatch(part) for part in parts) or not parts:
        path = ".".join([tree.id, *reversed(parts)])
        raise InputError(f"{path[:80]!r} is not an attribute of the graph's module", hint=_HINT)
    return ".".join(reversed(parts))
