"""``fx_graph_runnable`` repro files: the graph, its inputs and its process groups, read and never run.

    class true_graph_0_0(torch.nn.Module): ...        a sub-graph, from PyTorch 2.15 on
    class Repro(torch.nn.Module):
        def __init__(self):
            self.true_graph_0 = true_graph_0_0()      the name under which the graph finds it
            self.register_buffer('_tensor_constant0', tensor([1, 2]))                  value with data
            self.register_buffer('_tensor_constant1', torch.randn([5000]))             value without data
        def forward(self, primals_1, ...):           -> the graph, without any shapes
    def load_args(reader):
        buf0 = reader.storage(None, 1024)
        reader.tensor(buf0, (8, 32), is_leaf=True)   -> f32[8, 32][32, 1]cpu of the first input
        reader.symint(17, expr='s77')                -> Sym(s77)
    setup_fake_process_groups({'0': {'size': 4, 'rank': 0}})    -> group '0' of 4 ranks

Only these parts are looked at, and of Triton kernels a digest is kept; the rest of the file (imports, settings) is
skipped. In ``load_args`` anything but the calls that PyTorch writes there is refused with its line, except what only
prepares data.

Sizes for which the file gives a number stay symbols with that number as their hint, so that nothing
takes an example for a constant; the header keeps the numbers.

Limits: PyTorch before 2.15 leaves bodies of sub-graphs out, all of them the data of large constants
and of those on a GPU; shapes of all other nodes come from :func:`commcc.serialization.propagate.propagate`.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from commcc.base.errors import InputError
from commcc.graph.program import Note, ProcessGroup
from commcc.serialization.attributes import unknown_note
from commcc.serialization.fx import parse_text
from commcc.serialization.fx.source import outline
from commcc.serialization.fx.values import constants
from commcc.serialization.logs.triton_kernels import kernels_of
from commcc.serialization.shapes import ShapeContext, contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch._subclasses.fake_tensor import FakeTensor

    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.serialization.fx.source import ClassText

_CLASS = re.compile(r"^class (\w+)\((?:torch\.)?(?:nn\.)?Module\):", re.MULTILINE)
_CHILD = re.compile(r"^[ \t]*self\.(\w+) = (\w+)\(\)[ \t]*$", re.MULTILINE)
_LOAD_ARGS = re.compile(r"^def load_args\(reader\):", re.MULTILINE)
_NEXT_TOP_LEVEL = re.compile(r"^[^\s#]", re.MULTILINE)
_INIT = re.compile(r"^    def __init__\(self[^\n]*\n(?:(?:        [^\n]*|[ \t]*)\n)*", re.MULTILINE)
_SUBMODULE = re.compile(r"^([ \t]*)self\.\w+ = (?!torch\.nn\.Parameter\()[^\n]*$", re.MULTILINE)
_GROUPS = re.compile(r"^[ \t]*setup_fake_process_groups\((\{.{0,1000000}\})\)[ \t]*$", re.MULTILINE)
_HINTS = re.compile(r"^((?:[su]\d{1,9} = )+)(-?\d{1,18})[ \t]*$", re.MULTILINE)
_SYMBOL = re.compile(r"[su]\d{1,9}")
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_FILLED = ("torch.randn", "torch.randint", "torch.zeros", "torch.ones", "torch.empty", "torch.rand")
_HINT = "load_args must be as PyTorch writes it; dump the graph again"
_MOST_GRAPHS = 10_000
#: An argument without a value that a graph can carry (a DeviceMesh, a generator).
_NO_VALUE = object()


def parse_runnable(text: str, where: str) -> tuple[Program, ShapeContext]:
    """The program in a repro file, with values on its inputs only, and the context that they belong to."""
    ctx = ShapeContext()
    made = _read_classes(text, where, ctx)
    program = parse_text(made.source, where, [child.text(name) for name, child in made.children.items()])
    program = _with_constants(program, made)
    notes = _set_inputs(program, text, where, ctx)
    groups = _groups(program.groups, text, where)
    # Of a symbol without a value at trace time only the header can keep the number.
    numbers: dict[str, Json] = {name: info.to_json() for name, info in ctx.symbols.items() if info.hint is not None}
    header = {**({"symbols": numbers} if numbers else {}), **kernels_of(text), **program.header}
    return replace(program, groups=groups, header=header, notes=(*program.notes, *notes)), ctx


@dataclass(frozen=True)
class _Class:
    """One class: the text of its graph, its constants, and the sub-graphs that it makes, by the names they get.

    size: the number of graphs in it, its own among them.
    """

    source: str
    where: str
    held: Mapping[str, _Constant]
    children: Mapping[str, _Class]
    size: int

    def text(self, name: str) -> ClassText:
        """The outline of its graph, as a sub-graph called ``name``."""
        inner = [child.text(called) for called, child in self.children.items()]
        return replace(outline(self.source, self.where).graph, name=name, children=inner)


def _read_classes(text: str, where: str, ctx: ShapeContext) -> _Class:
    """``class Repro``, with what it makes of the classes that stand before it."""
    known: dict[str, _Class] = {}
    for match in _CLASS.finditer(text):
        body = _block(text, match)
        # Constants are made there, which the reader of graphs would refuse.
        init = _INIT.search(body)
        if init is not None:
            body = body[: init.start()] + "\n" * init.group(0).count("\n") + body[init.end() :]
        held = _read_constants(init.group(0), where, ctx) if init is not None else {}
        made = _CHILD.findall(init.group(0)) if init is not None else []
        children = {name: known[kind] for name, kind in made if kind in known}
        size = 1 + sum(child.size for child in children.values())
        if size > _MOST_GRAPHS:
            raise InputError(f"class {match[1][:60]} makes too many sub-graphs", where=where)
        known[match[1]] = _Class(body, where, held, children, size)
        if match[1] == "Repro":
            return known["Repro"]
    raise InputError("class Repro is missing", where=where, hint="dump the graph again")


def _block(text: str, match: re.Match[str]) -> str:
    """A top-level definition, with the lines before it left empty so that line numbers stay right."""
    end = _NEXT_TOP_LEVEL.search(text, match.end())
    return "\n" * text.count("\n", 0, match.start()) + text[match.start() : end.start() if end else len(text)]


def _set_inputs(program: Program, text: str, where: str, ctx: ShapeContext) -> list[Note]:
    for names, value in _HINTS.findall(text):
        for name in names.split(" = ")[:-1]:
            ctx.declare(name, hint=int(value))
    match = _LOAD_ARGS.search(text)
    if match is None:
        raise InputError("load_args is missing", where=where, hint="dump the graph again")
    args = _read_args(_block(text, match), where, ctx)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    if len(inputs) != len(args.values):
        raise InputError(
            f"load_args gives {len(args.values)} arguments to a graph of {len(inputs)} inputs",
            where=where,
            hint="the file is cut off or was edited; dump the graph again",
        )
    for node, value in zip(inputs, args.values, strict=True):
        if value is not _NO_VALUE:
            node.meta["val"] = value
    return [Note(f"inputs {inputs[a].name} and {inputs[b].name} share storage", inputs[b].name) for a, b in args.shared]


def _with_constants(program: Program, made: _Class) -> Program:
    """``program`` with the constants in place of what stands for them after reading the bodies alone."""
    known: list[Note] = []
    notes: list[Note] = []
    pending = [(program.graph, program.root, made)]
    while pending:
        graph, root, kind = pending.pop()
        inner = [(root._modules.get(name), child) for name, child in kind.children.items()]
        pending += [(module.graph, module, child) for module, child in inner if isinstance(module, fx.GraphModule)]
        for node in graph.nodes:
            name = str(node.target)
            constant = kind.held.get(name) if node.op == "get_attr" else None
            if constant is None:
                continue
            node.meta["val"] = constant.val
            # The body alone says nothing about it.
            known.append(unknown_note(name, None))
            if constant.data is None:
                notes.append(unknown_note(name, constant.val))
            if root._modules.pop(name, None) is not None:  # the empty module that stands for what is not known
                data = constant.val if constant.data is None else constant.data.clone()
                root.register_buffer(name, data, persistent=False)
    return replace(program, notes=(*(note for note in program.notes if note not in known), *notes))


def _groups(named: Mapping[str, ProcessGroup], text: str, where: str) -> dict[str, ProcessGroup]:
    """Groups that collectives name, completed by those that the file lists."""
    match = _GROUPS.search(text)
    if match is None:
        return dict(named)
    line = text.count("\n", 0, match.start(1)) + 1
    try:
        sizes = {name: info["size"] for name, info in ast.literal_eval(match.group(1)).items()}
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, MemoryError, RecursionError):
        raise InputError("setup_fake_process_groups is not a table of groups", where=f"{where}:{line}") from None
    out = dict(named)
    for name, size in sizes.items():
        if not isinstance(name, str) or type(size) is not int or size < 1:
            raise InputError(f"process group {name!r} has size {size!r}", where=f"{where}:{line}")
        known = out.get(name, ProcessGroup(name, None))
        if known.size not in (None, size):
            what = f"group {name!r} has {known.size} ranks in a collective and {size} in the file's table"
            raise InputError(what, where=where)
        out[name] = replace(known, size=size)
    return out


@dataclass
class _Arguments:
    """values: one per input, in order; shared: pairs of inputs that lie in one storage."""

    values: list[Any] = field(default_factory=list)
    shared: list[tuple[int, int]] = field(default_factory=list)


def _read_args(source: str, where: str, ctx: ShapeContext) -> _Arguments:
    """The arguments that ``load_args`` makes; raises :class:`InputError` with the line."""
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise InputError(f"load_args: {error.msg}", where=f"{where}:{error.lineno}", hint=_HINT) from None
    except (ValueError, RecursionError, MemoryError):
        raise InputError("load_args cannot be parsed", where=where, hint=_HINT) from None
    reader = _ArgumentReader(ctx)
    function = module.body[0]
    for statement in function.body if isinstance(function, ast.FunctionDef) else []:
        reader.read(statement, where)
    return reader.arguments


class _ArgumentReader:
    """State of ``load_args``: storages by variable, arguments in order."""

    def __init__(self, ctx: ShapeContext) -> None:
        self.ctx = ctx
        self.arguments = _Arguments()
        self.devices: dict[str, torch.device] = {}
        self.used_by: dict[str, int] = {}
        self.calls: dict[str, Callable[[ast.Call], Any]] = {
            "tensor": self._tensor,
            "symint": self._symint,
            "const": lambda _call: None,
            "unsupported": lambda _call: _NO_VALUE,
            "generator": lambda _call: _NO_VALUE,
            "opaque": lambda _call: _NO_VALUE,
        }

    def read(self, node: ast.stmt, where: str) -> None:
        """One statement of the function; errors name its line."""
        try:
            self._statement(node)
        except InputError as error:
            raise InputError(error.what, where=f"{where}:{node.lineno}", hint=error.hint or _HINT) from None
        except RecursionError:
            raise InputError("nested too deeply", where=f"{where}:{node.lineno}", hint=_HINT) from None

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.If, ast.Pass)):
            return  # fills example data
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # describes an unsupported argument
        if isinstance(node, ast.Assign):
            self._assign(node)
            return
        call = node.value if isinstance(node, ast.Expr) else None
        method = _method(call)
        if not isinstance(call, ast.Call) or method not in self.calls:
            raise InputError(f"{ast.unparse(node)[:80]!r} is not a call of the reader")
        self.arguments.values.append(self.calls[method](call))

    def _assign(self, node: ast.Assign) -> None:
        """``buf0 = reader.storage(...)``, or sizes as in ``u8 = u9 = 512``."""
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if len(names) != len(node.targets):
            raise InputError(f"{ast.unparse(node)[:80]!r} is not an assignment to a name")
        if _method(node.value) == "storage" and isinstance(node.value, ast.Call):
            device = _keyword(node.value, "device")
            for name in names:
                self.devices[name] = torch.device("cpu") if device is None else _device(device)
            return
        if all(_SYMBOL.fullmatch(name) for name in names):
            hint = _integer(node.value)
            for name in names:
                self.ctx.declare(name, hint=hint)
            return
        raise InputError(f"{ast.unparse(node)[:80]!r} is not a storage")

    def _tensor(self, call: ast.Call) -> Any:
        storage = call.args[0] if call.args else None
        if not isinstance(storage, ast.Name) or storage.id not in self.devices:
            raise InputError("a tensor without a storage")
        shape = self._sizes(_argument(call, 1, "shape"))
        stride = _argument(call, 2, "stride")
        dtype, offset = _keyword(call, "dtype"), _keyword(call, "storage_offset")
        grad = _keyword(call, "requires_grad")
        position = len(self.arguments.values)
        # Writing to one of them changes the other.
        if self.used_by.setdefault(storage.id, position) != position:
            self.arguments.shared.append((self.used_by[storage.id], position))
        return self.ctx.tensor(
            shape or [],
            self._sizes(stride) if stride is not None else contiguous_stride(shape or []),
            torch.float32 if dtype is None else _dtype(dtype),
            self.devices[storage.id],
            requires_grad=isinstance(grad, ast.Constant) and grad.value is True,
            storage_offset=0 if offset is None else self._size(offset),
        )

    def _symint(self, call: ast.Call) -> Any:
        """A symbol; a new one with the number as its hint when the file does not say which."""
        expr = _keyword(call, "expr")
        if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
            told = _argument(call, 0, "val")
            known = self.ctx.symbols.get(expr.value)
            is_number = isinstance(told, ast.Constant) and type(told.value) is int
            if is_number and _SYMBOL.fullmatch(expr.value) and (known is None or known.hint is None):
                self.ctx.declare(expr.value, hint=_integer(told))
            return self.ctx.parse_integer(expr.value)
        hint = _integer(_argument(call, 0, "val"))
        # A name that no other size has.
        number = 1 + max((int(name[1:]) for name in self.ctx.symbols if name[0] in "su"), default=-1)
        return self.ctx.integer(self.ctx.declare(f"s{number}", hint=hint))

    def _sizes(self, node: ast.expr | None) -> list[int | torch.SymInt]:
        if not isinstance(node, (ast.Tuple, ast.List)):
            raise InputError("sizes must be a tuple")
        sizes = [self._size(element) for element in node.elts]
        for size in sizes:
            if type(size) is int and size < 0:
                raise InputError(f"a size cannot be {size}")
        return sizes

    def _size(self, node: ast.expr) -> int | torch.SymInt:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        return self.ctx.parse_integer(ast.unparse(node))


def _method(node: ast.expr | None) -> str | None:
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "reader":
        return function.attr
    return None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The keyword argument ``name`` of a call."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """The argument at ``position``, or ``name`` given by keyword."""
    return call.args[position] if position < len(call.args) else _keyword(call, name)


def _integer(node: ast.expr | None) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise InputError("a size must be a number")


def _dtype(node: ast.expr) -> torch.dtype:
    """``torch.bfloat16`` as a dtype."""
    dtype = constants().get(ast.unparse(node))
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"unknown dtype {ast.unparse(node)[:40]!r}")
    return dtype


def _device(node: ast.expr) -> torch.device:
    """``device(type='cuda', index=0)`` or ``'cuda:0'``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("device", "torch.device"):
        kind, index = _argument(node, 0, "type"), _argument(node, 1, "index")
        text = str(kind.value) if isinstance(kind, ast.Constant) else ""
        text += f":{_integer(index)}" if index is not None else ""
    else:
        text = ""
    try:
        return torch.device(text)
    except RuntimeError:
        raise InputError(f"unknown device {ast.unparse(node)[:40]!r}") from None


@dataclass(frozen=True)
class _Constant:
    """One constant; ``data`` is None where the file does not give it."""

    val: FakeTensor
    data: torch.Tensor | None


def _read_constants(init: str, where: str, ctx: ShapeContext) -> dict[str, _Constant]:
    """Constants by name from the text of ``__init__``; those in an unknown form are left out."""
    source = "class Repro:\n" + _SUBMODULE.sub(r"\1pass", init)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("__init__ of the repro cannot be parsed", where=where, hint="dump the graph again") from None
    out: dict[str, _Constant] = {}
    for node in ast.walk(tree):
        named = _named(node)
        if named is not None:
            constant = _constant_of(named[1], ctx, where)
            if constant is not None:
                out[named[0]] = constant
    return out


def _named(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Name and value of ``self.register_buffer(name, value)`` and ``self.name = value``."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        return node.targets[0].attr, node.value
    if not isinstance(node, ast.Call) or len(node.args) != 2 or not isinstance(node.args[0], ast.Constant):
        return None
    name = node.args[0].value
    is_buffer = isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer"
    return (name, node.args[1]) if is_buffer and isinstance(name, str) and name.isidentifier() else None


def _constant_of(value: ast.expr, ctx: ShapeContext, where: str) -> _Constant | None:
    device: ast.expr | None = None
    # tensor(...).to(device=...)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        device, value = _argument(value, 0, "device"), value.func.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "torch.nn.Parameter" and value.args:
        value = value.args[0]
    if not isinstance(value, ast.Call):
        return None
    device = device or _keyword(value, "device")
    place = torch.device("cpu") if device is None else _device(device)
    dtype = _keyword(value, "dtype")
    kind = None if dtype is None else _dtype(dtype)
    function = ast.unparse(value.func)
    if function in _FILLED:
        sizes = _keyword(value, "size") or _argument(value, 0, "size")
        shape = ast.literal_eval(sizes) if isinstance(sizes, (ast.List, ast.Tuple)) else None
        if not isinstance(shape, (list, tuple)) or not all(type(size) is int for size in shape):
            raise InputError("the sizes of a constant must be numbers", where=where)
        return _Constant(ctx.tensor(shape, contiguous_stride(shape), kind or torch.float32, place), None)
    if function in ("tensor", "torch.tensor") and value.args:
        return _with_data(value, kind, place, ctx, where)
    return None


def _with_data(
    call: ast.Call, dtype: torch.dtype | None, device: torch.device, ctx: ShapeContext, where: str
) -> _Constant:
    try:
        data = torch.tensor(_literal(call.args[0]), dtype=dtype)
        size = _keyword(call, "size")
        if size is not None:
            data = data.reshape(ast.literal_eval(size))
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InputError(f"a constant is no tensor: {str(error)[:100]}", where=where) from None
    val = ctx.tensor(data.shape, data.stride(), data.dtype, device)
    return _Constant(val, data if device.type == "cpu" else None)


def _literal(node: ast.expr) -> Any:
    """Nested lists of numbers, as the printed form of a tensor has them."""
    if isinstance(node, ast.List):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, complex)):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NUMBERS:
        return _NUMBERS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_literal(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = _literal(node.left), _literal(node.right)
        return left + right if isinstance(node.op, ast.Add) else left - right
    raise ValueError(f"{ast.unparse(node)[:40]!r} is not a number")
