"""Statements to FX nodes, and the two parts of a text that may span lines: parameters and ``return``.

The right-hand side of a statement decides the kind of node; names and order stay as written::

    mm = torch.ops.aten.mm.default(x, w)      call_function aten.mm.default
    getitem = mm[0]                           call_function operator.getitem
    add = u0 + 1                              call_function operator.add
    weight = self.weight                      get_attr "weight"
    x_1 = x                                   another name of x; renames an input that nothing used yet

In a signature, trailing comments are descriptors (``expanded_def=True``), comments of their own line are commcc's
metadata for the parameter below::

    def forward(
        self,
        # {"$target": "x"}
        x_1: "f32[32, 64][64, 1]cpu",  # ParamAOTInput(target='weight')
    ):

Limits: calls of modules and methods, and all that Dynamo's own graphs have besides, are refused.
"""

from __future__ import annotations

import ast
import keyword
import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.base.errors import InputError, located
from commcc.serialization.fx.commcc_comments import load_object
from commcc.serialization.fx.source import check_runs, expression_tree
from commcc.serialization.fx.values import Values, dotted
from commcc.serialization.targets import check_call, resolve

if TYPE_CHECKING:
    from commcc.serialization.fx.source import Line
    from commcc.serialization.shapes import ShapeContext

#: Names that mean something else in the text, or would break code that FX generates from the graph.
_RESERVED = frozenset({*keyword.kwlist, "self", "torch", "inf", "nan", "device"})
#: Modules whose functions a text calls, even if a node has that name.
_MODULES = frozenset({"operator", "math"})
_ATTRIBUTE = re.compile(r"(?!__)\w{1,500}")
_LONGEST_NAME = 1000
#: Calls whose constant arguments are kept by their text: how long, and how many of these.
_LONGEST_KNOWN, _MOST_KNOWN = 1000, 10_000
_COMMENT = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|#""")
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
        #: Arguments that are the same whatever the nodes are called, by their text; ops that were called before.
        self._constants: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {"": ((), {})}
        self._called: set[str] = set()

    def placeholder(self, name: str, target: str, default: tuple[Any, ...] = ()) -> fx.Node:
        return self._create("placeholder", name, target, default, {})

    def output(self, name: str, value: Any) -> fx.Node:
        return self._create("output", name, "output", (value,), {})

    def statement(self, name: str, text: str) -> fx.Node | None:
        """The node that ``name = text`` makes; None for another name of an existing node."""
        path, _, inside = text.partition("(")
        if path in self._called and inside.endswith(")") and len(text) <= _LONGEST_KNOWN:
            args, rest = self._leading(inside[:-1])
            known = self._constants.get(rest)
            if known is not None:
                return self._create("call_function", name, resolve(path), (*args, *known[0]), known[1])
        tree = expression_tree(text)
        if isinstance(tree, ast.Call):
            return self._call(name, tree, text)
        if isinstance(tree, ast.Subscript):
            return self._operator(name, "getitem", tree.value, tree.slice)
        if isinstance(tree, ast.Attribute):
            return self._create("get_attr", name, _attribute_path(tree), (), {})
        if isinstance(tree, ast.BinOp):
            return self._operator(name, _BINARY[type(tree.op)], tree.left, tree.right)
        if isinstance(tree, ast.UnaryOp):
            return self._unary(name, tree)
        if isinstance(tree, ast.Compare):
            function = _COMPARE.get(type(tree.ops[0])) if len(tree.ops) == 1 else None
            if function is None:
                raise InputError("this comparison is not allowed in a graph")
            return self._operator(name, function, tree.left, tree.comparators[0])
        if isinstance(tree, ast.Name):
            self._alias(name, tree)
            return None
        raise InputError(f"{name[:60]!r} is assigned a {type(tree).__name__}, which no graph does")

    def _leading(self, text: str) -> tuple[list[fx.Node], str]:
        """The nodes that arguments begin with, by name, and the text of those that follow."""
        args: list[fx.Node] = []
        while (node := self.env.get((parts := text.partition(", "))[0])) is not None:
            args.append(node)
            text = parts[2]
            if not parts[1]:
                break
        return args, text

    def _remember(self, text: str, tree: ast.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the arguments of a call behind its leading nodes, where no name in them can be that of a node.

        Most calls of a graph end in the same few texts, and parsing these takes a quarter of the time of reading it.
        """
        path, _, inside = text.partition("(")
        if not path.startswith("torch.ops.") or len(self._constants) >= _MOST_KNOWN:
            return
        self._called.add(path)
        leading, rest = self._leading(inside[:-1])
        following = [*tree.args[len(leading) :], *tree.keywords]
        names = {part.id for argument in following for part in ast.walk(argument) if isinstance(part, ast.Name)}
        if names <= _RESERVED:
            self._constants[rest] = (args[len(leading) :], kwargs)

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
        # Operands are set afterwards and past ``Node.__setattr__``, as in :func:`commcc.graph.copying.copy_node`.
        node = self.graph.create_node(op, target, name=name)
        if args:
            object.__setattr__(node, "args", args)
        if kwargs:
            object.__setattr__(node, "kwargs", kwargs)
        if node.name != name:
            node.name = name  # FX renames what could clash; the file's names are checked above
        # Nothing may use the result of a graph.
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

    def _call(self, name: str, tree: ast.Call, text: str) -> fx.Node:
        path = dotted(tree.func)
        if path is None:
            raise InputError("only ops can be called", hint=_HINT)
        if path == "getattr":
            return self._create("get_attr", name, _attribute_path(tree), (), {})
        owner = path.split(".")[0] if "." in path else None
        # operator and math are modules even in a graph with a node of that name.
        if owner == "self" or (owner in self.env and owner not in _MODULES):
            raise InputError(f"{path[:80]!r} calls a module or a method", hint=_HINT)
        # Arguments are read last, so that an op that is not one is what the message is about.
        target = resolve(path)
        args, kwargs = self.values.call_arguments(tree)
        check_call(target, args, kwargs)
        if text.startswith(f"{path}(") and text.endswith(")"):
            self._remember(text, tree, args, kwargs)
        return self._create("call_function", name, target, args, kwargs)

    def _unary(self, name: str, tree: ast.UnaryOp) -> fx.Node:
        inner = tree.operand
        if isinstance(tree.op, ast.USub) and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Pow):
            # FX prints pow(-1, x) without parentheses, and Python then reads -(1 ** x).
            return self._operator(name, "pow", ast.UnaryOp(op=tree.op, operand=inner.left), inner.right)
        if type(tree.op) not in _UNARY:
            raise InputError("'not' is not allowed in a graph")
        return self._operator(name, _UNARY[type(tree.op)], inner)

    def _operator(self, name: str, function: str, *operands: ast.expr) -> fx.Node:
        args = tuple([self.values.value(operand) for operand in operands])
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


@dataclass(frozen=True)
class Parameter:
    """One input: ``annotation`` as printed, ``default`` empty or of one value."""

    name: str
    target: str
    annotation: str | None
    default: tuple[Any, ...] = ()
    desc: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What is returned; ``desc`` has one descriptor for each element, if the text has them."""

    value: Any
    desc: list[str] | None


def read_signature(lines: list[Line], values: Values, where: str) -> list[Parameter]:
    """The parameters after ``self``; errors name the line."""
    code: list[str] = []
    descs: dict[int, str] = {}
    metas: dict[int, dict[str, Any]] = {}
    for index, (number, line) in enumerate(lines, 1):
        if line.startswith("# {"):
            with located(f"{where}:{number}"):
                # Python will say that the parameter is on the next line.
                metas[index + 1] = load_object(line[2:], "the metadata above a parameter")
        bare, comment = _split_comment(line)
        code.append(bare)
        if comment:
            descs[index] = comment
    with located(f"{where}:{lines[0][0]}"):
        function = _parse_function("\n".join(code))
    out = []
    for arg, target, default in _parameters(function.args):
        annotation = arg.annotation
        # Annotations that are no strings are types that FX adds; they say nothing about shapes.
        text = annotation.value if isinstance(annotation, ast.Constant) and type(annotation.value) is str else None
        value = () if default is None else (values.value(default),)
        meta = metas.pop(arg.lineno, {})
        out.append(Parameter(arg.arg, target, text, value, descs.get(arg.lineno), meta))
    return out


def _parse_function(code: str) -> ast.FunctionDef:
    check_runs(code)
    try:
        module = compile(f"{code} pass", "<graph>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        raise InputError("cannot parse the parameters of 'forward'", hint="dump the graph again") from None
    function = module.body[0] if isinstance(module, ast.Module) and len(module.body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or not function.args.args or function.args.args[0].arg != "self":
        raise InputError("'forward' has no parameter 'self'")
    return function


def _parameters(args: ast.arguments) -> list[tuple[ast.arg, str, ast.expr | None]]:
    """All parameters but ``self``: the syntax, the name as FX writes it, the default."""
    first_default = len(args.args) - len(args.defaults)
    out: list[tuple[ast.arg, str, ast.expr | None]] = []
    for position, arg in enumerate(args.args[1:], 1):
        default = args.defaults[position - first_default] if position >= first_default else None
        out.append((arg, arg.arg, default))
    if args.vararg is not None:
        out.append((args.vararg, f"*{args.vararg.arg}", None))
    out += [(arg, arg.arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg is not None:
        out.append((args.kwarg, f"**{args.kwarg.arg}", None))
    return out


def read_result(lines: list[Line], values: Values) -> Result:
    """The value after ``return``, which may be a pytree call around it."""
    parts = [_split_comment(line) for _, line in lines]
    descs = [comment for _, comment in parts if comment]
    code = "\n".join(text for text, _ in parts)[len("return") :].strip()
    tree = expression_tree(code)
    if isinstance(tree, ast.Call):
        if dotted(tree.func) != "pytree.tree_unflatten" or not tree.args:
            raise InputError("a call is returned; only values can be")
        tree = tree.args[0]
    value = values.value(tree)
    count = len(value) if isinstance(value, (tuple, list)) else 1
    return Result(value, descs if descs and len(descs) == count else None)


def _split_comment(line: str) -> tuple[str, str | None]:
    """A line without the comment at its end, and that comment without its ``#``."""
    if "#" not in line:
        return line, None
    for match in _COMMENT.finditer(line):
        if match[0] == "#":
            return line[: match.start()].rstrip(), line[match.end() :].strip()
    return line, None
