"""LLVM code of kernels: a small part of Python, with static types, over 64-bit integers.

    text, returned = Module().kernel(function, (Array(8), INT))

Values are integers and truth values; arrays of one or two dimensions; arrays of records of integers, single records,
which are references as in numpy, and columns of such arrays; and named tuples of all these, which nothing changes.
Statements: assignments, ``if``, ``while``, ``for`` over ranges and arrays, ``return``; functions that are ``compiled``
are called, and made once for the types of their arguments. A name has one type. Nothing is allocated.

Limits: no negative indices, no check of bounds, numbers wrap at 64 bits, and no division by zero.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn

from commcc.base.kernel_types import (
    BOOL,
    INT,
    NOTHING,
    WORD,
    Array,
    Compiled,
    Group,
    Record,
    Records,
    Several,
    Table,
    Type,
    Value,
    llvm_of,
    load,
    lowest_bit,
    places,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.RShift: "ashr", ast.LShift: "shl"}
_ARITHMETIC |= {ast.BitOr: "or", ast.BitAnd: "and"}
_COMPARED = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}


class Module:
    """Functions, each written once for the types of its arguments."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.known: dict[tuple[Any, tuple[Type, ...]], tuple[str, Type]] = {}

    def kernel(self, function: Callable[..., Any], types: tuple[Type, ...]) -> tuple[str, Type]:
        """The text of a module, and what its ``kernel(arguments, result)`` returns; both are addresses of words."""
        name, returned = self.function(function, types)
        body = [f"define void @{'kernel'}(ptr noalias %arguments, ptr noalias %result) {{"]
        given = []
        for number, (kind, begin) in enumerate(zip(types, places(types), strict=True)):
            lines, value = load(kind, "%arguments", begin, f"%a{number}")
            body += lines
            given.append(str(value))
        call = f"call {llvm_of(returned)} @{name}({', '.join(given)})"
        body.append(f"  %r = {call}" if returned.parts else f"  {call}")
        for place, part in enumerate(returned.parts):
            single = len(returned.parts) == 1
            body.append(
                f"  %v{place} = " + (f"add {part} %r, 0" if single else f"extractvalue {llvm_of(returned)} %r, {place}")
            )
            body.append(f"  %w{place} = " + (f"zext i1 %v{place} to i64" if part == "i1" else f"add i64 %v{place}, 0"))
            body.append(f"  %p{place} = getelementptr i64, ptr %result, i64 {place}")
            body.append(f"  store i64 %w{place}, ptr %p{place}")
        return "\n".join([*self.texts, *body, "  ret void", "}", "!0 = !{}", ""]), returned

    def function(self, function: Callable[..., Any], types: tuple[Type, ...]) -> tuple[str, Type]:
        """The name and the type of the result of a function for arguments of these types."""
        if (function, types) not in self.known:
            name = f"{function.__name__}.{len(self.known)}"
            self.known[function, types] = name, NOTHING  # taken
            writer = _Function(self, function, types)
            self.texts.append(writer.text(name))
            self.known[function, types] = name, writer.returned or NOTHING
        return self.known[function, types]


def _several(values: Sequence[Value], named: type | None) -> Value:
    return Value(Several(tuple(v.type for v in values), named), tuple(part for v in values for part in v.parts))


class _Function:
    """One function for one choice of types on its way to text."""

    def __init__(self, module: Module, function: Callable[..., Any], types: tuple[Type, ...]) -> None:
        self.module, self.function, self.types = module, function, types
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.locals: dict[str, Value] = {}
        self.returned: Type | None = None
        self.count = 0
        self.ended = False
        self.loops: list[tuple[str, str]] = []

    def text(self, name: str) -> str:
        source = textwrap.dedent(inspect.getsource(self.function))
        tree = ast.parse(source).body[0]
        assert isinstance(tree, ast.FunctionDef)
        given = []
        for argument, kind in zip(tree.args.args, self.types, strict=True):
            value = Value(kind, tuple(f"%{argument.arg}.{place}" for place in range(len(kind.parts))))
            given.append(str(value))
            self._set(argument.arg, value)
        self._block(tree.body)
        if not self.ended:
            self._line("ret void" if self.returned is None else "unreachable")
        head = f"define internal {llvm_of(self.returned or NOTHING)} @{name}({', '.join(given)}) {{"
        return "\n".join([head, "entry:", *self.slots, *self.lines, "}"])

    # Lines

    def _line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def _new(self, text: str) -> str:
        """The name of what an instruction gives."""
        self.count += 1
        self._line(f"%t{self.count} = {text}")
        return f"%t{self.count}"

    def _int(self, text: str) -> Value:
        return Value(INT, (self._new(text),))

    def _labels(self, *names: str) -> list[str]:
        self.count += 1
        return [f"{name}{self.count}" for name in names]

    def _goto(self, label: str) -> None:
        if not self.ended:
            self._line(f"br label %{label}")
        self.ended = True

    def _start(self, label: str) -> None:
        self._goto(label)
        self.lines.append(f"{label}:")
        self.ended = False

    def _branch(self, test: ast.expr, yes: str, no: str) -> None:
        self._line(f"br i1 {self._truth(self._value(test))}, label %{yes}, label %{no}")
        self.ended = True

    def _wrong(self, node: ast.AST, why: str) -> NoReturn:
        code = self.function.__code__
        line = code.co_firstlineno + getattr(node, "lineno", 1) - 1
        raise TypeError(f"{code.co_filename}:{line}: no kernel can have this: {why}")

    # Statements

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.ended:
                return
            method = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if method is None:
                self._wrong(statement, type(statement).__name__)
            method(statement)

    def _pass(self, statement: ast.Pass) -> None:
        pass

    def _expr(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self._value(statement.value)

    def _assign(self, statement: ast.Assign) -> None:
        values = self._tuple(statement.value)
        for target in statement.targets:
            if isinstance(target, ast.Tuple):
                for element, value in zip(target.elts, values, strict=True):
                    self._store(element, value)
            else:
                (value,) = values
                self._store(target, value)

    def _tuple(self, node: ast.expr) -> list[Value]:
        """The items of a tuple, or of what a function returned; else the one value."""
        if isinstance(node, ast.Tuple):
            return [self._value(element) for element in node.elts]
        value = self._value(node)
        if not isinstance(value.type, Several):
            return [value]
        starts = list(accumulate((len(item.parts) for item in value.type.items), initial=0))
        return [
            Value(item, value.parts[begin : begin + len(item.parts)])
            for item, begin in zip(value.type.items, starts, strict=False)
        ]

    def _store(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._set(target.id, value)
        else:
            self._line(f"store i64 {self._number(value)}, ptr {self._address(target)}")

    def _set(self, name: str, value: Value) -> None:
        """Assign to a name; its type is that of the first value."""
        if name not in self.locals:
            slots = tuple(f"%{name}.slot{place}" for place in range(len(value.parts)))
            self.slots += [f"  {s} = alloca {part}" for s, part in zip(slots, value.type.parts, strict=True)]
            self.locals[name] = Value(value.type, slots)
        known = self.locals[name]
        if known.type == INT:
            value = Value(INT, (self._number(value),))
        if known.type != value.type:
            raise TypeError(f"{self.function.__name__}: '{name}' is {known.type}, then {value.type}")
        for slot, part, kind in zip(known.parts, value.parts, value.type.parts, strict=True):
            self._line(f"store {kind} {part}, ptr {slot}")

    def _augassign(self, statement: ast.AugAssign) -> None:
        if isinstance(statement.target, ast.Name):
            old = self._value(ast.Name(statement.target.id, ast.Load()))
            self._set(statement.target.id, self._operation(statement.op, old, self._value(statement.value), statement))
            return
        added = self._value(statement.value)
        address = self._address(statement.target)
        new = self._operation(statement.op, self._int(f"load i64, ptr {address}"), added, statement)
        self._line(f"store i64 {new.part}, ptr {address}")

    def _return(self, statement: ast.Return) -> None:
        self.ended = True
        if statement.value is None:
            self._line("ret void")
            return
        value = self._value(statement.value)
        self.returned = self.returned or value.type
        if self.returned != value.type:
            self._wrong(statement, f"{value.type} is returned, and {self.returned} before")
        if len(value.parts) == 1:
            self._line(f"ret {value}")
            return
        result = "undef"
        for place, (kind, part) in enumerate(zip(value.type.parts, value.parts, strict=True)):
            result = self._new(f"insertvalue {llvm_of(value.type)} {result}, {kind} {part}, {place}")
        self._line(f"ret {llvm_of(value.type)} {result}")

    def _if(self, statement: ast.If) -> None:
        yes, no, end = self._labels("then", "else", "end")
        self._branch(statement.test, yes, no)
        ended = True
        for label, body in ((yes, statement.body), (no, statement.orelse)):
            self._start(label)
            self._block(body)
            ended = ended and self.ended
            self._goto(end)
        self._start(end)
        if ended:
            self._line("unreachable")
            self.ended = True

    def _while(self, statement: ast.While) -> None:
        test, body, end = self._labels("test", "body", "end")
        self._start(test)
        self._branch(statement.test, body, end)
        self._loop(statement.body, body, test, end)
        self._start(end)

    def _loop(self, statements: Sequence[ast.stmt], body: str, again: str, end: str) -> None:
        self.loops.append((again, end))
        self._start(body)
        self._block(statements)
        self._goto(again)
        self.loops.pop()

    def _break(self, _statement: ast.Break) -> None:
        self._goto(self.loops[-1][1])

    def _continue(self, _statement: ast.Continue) -> None:
        self._goto(self.loops[-1][0])

    def _for(self, statement: ast.For) -> None:
        """Over a range with a step above 0, or over an array; the loop counts by itself."""
        over, step = statement.iter, "1"
        items: Value | None = None
        begin = "0"
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range":
            bounds = [self._number(self._value(argument)) for argument in over.args]
            begin, end = ("0", bounds[0]) if len(bounds) == 1 else bounds[:2]
            step = bounds[2] if len(bounds) == 3 else step
        else:
            items = self._value(over)
            end = items.parts[1]
        self.count += 1
        counter = f"%counter{self.count}"
        self.slots.append(f"  {counter} = alloca i64")
        self._line(f"store i64 {begin}, ptr {counter}")
        test, body, again, after = self._labels("test", "body", "again", "end")
        self._start(test)
        at = self._int(f"load i64, ptr {counter}")
        more = self._new(f"icmp slt i64 {at.part}, {end}")
        self._line(f"br i1 {more}, label %{body}, label %{after}")
        self.ended = True
        self._start(body)
        self._store(statement.target, at if items is None else self._item(items, [at], statement))
        self._loop(statement.body, f"{body}.in", again, after)
        self._start(again)
        self._line(f"store i64 {self._new(f'add nsw i64 {at.part}, {step}')}, ptr {counter}")
        self._goto(test)
        self._start(after)

    # Values

    def _value(self, node: ast.expr) -> Value:
        method = getattr(self, f"_value_{type(node).__name__.lower()}", None)
        if method is None:
            self._wrong(node, type(node).__name__)
        value: Value = method(node)
        return value

    def _number(self, value: Value) -> str:
        """As an integer."""
        if value.type == BOOL:
            return self._new(f"zext i1 {value.part} to i64")
        if value.type != INT:
            raise TypeError(f"{self.function.__name__}: {value.type} is no number")
        return value.part

    def _truth(self, value: Value) -> str:
        return value.part if value.type == BOOL else self._new(f"icmp ne i64 {self._number(value)}, 0")

    def _value_constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, bool):
            return Value(BOOL, (str(node.value).lower(),))
        if not isinstance(node.value, int):
            self._wrong(node, repr(node.value))
        return Value(INT, (str(node.value),))

    def _value_name(self, node: ast.Name) -> Value:
        if node.id in self.locals:
            known = self.locals[node.id]
            pairs = zip(known.type.parts, known.parts, strict=True)
            return Value(known.type, tuple(self._new(f"load {kind}, ptr {slot}") for kind, slot in pairs))
        known = self._global(node.id)
        if not isinstance(known, int):
            self._wrong(node, f"'{node.id}'")
        return self._value_constant(ast.copy_location(ast.Constant(known), node))

    def _global(self, name: str) -> Any:
        return self.function.__globals__.get(name)

    def _value_attribute(self, node: ast.Attribute) -> Value:
        of = self._value(node.value)
        if isinstance(of.type, Group):
            names = [name for name, _ in of.type.fields]
            at = names.index(node.attr)
            kind, begin = of.type.fields[at][1], places(kind for _, kind in of.type.fields)[at]
            self.count += 1
            lines, value = load(kind, of.part, begin, f"%f{self.count}")
            self.lines += lines
            return value
        if isinstance(of.type, Records):
            column = self._field(of, node)
            return Value(Array(WORD * len(of.type.fields)), (column, of.parts[1]))
        return self._int(f"load i64, ptr {self._address(node, of)}")

    def _field(self, of: Value, node: ast.Attribute) -> str:
        if not isinstance(of.type, Record) or node.attr not in of.type.fields:
            self._wrong(node, f"'{node.attr}' of {of.type}")
        return self._new(f"getelementptr inbounds i64, ptr {of.part}, i64 {of.type.fields.index(node.attr)}")

    def _address(self, node: ast.expr, of: Value | None = None) -> str:
        """Where a number is stored."""
        if isinstance(node, ast.Attribute):
            return self._field(of or self._value(node.value), node)
        if not isinstance(node, ast.Subscript):
            self._wrong(node, "this on the left of '='")
        return self._item_address(self._value(node.value), self._tuple(node.slice), node)

    def _item_address(self, of: Value, at: Sequence[Value], node: ast.AST) -> str:
        places = [self._number(value) for value in at]
        if isinstance(of.type, Table):
            row = self._new(f"mul nsw i64 {places[0]}, {of.parts[2]}")
            place = row if len(places) == 1 else self._new(f"add nsw i64 {row}, {places[1]}")
            return self._new(f"getelementptr inbounds i64, ptr {of.part}, i64 {place}")
        if isinstance(of.type, Records):
            step = len(of.type.fields)
        elif isinstance(of.type, Array):
            step = of.type.step // WORD
        else:
            self._wrong(node, f"an item of {of.type}")
        shape = "i64" if step == 1 else f"[{step} x i64]"
        return self._new(f"getelementptr inbounds {shape}, ptr {of.part}, i64 {places[0]}")

    def _item(self, of: Value, at: Sequence[Value], node: ast.AST) -> Value:
        address = self._item_address(of, at, node)
        if isinstance(of.type, Records):
            return Value(Record(of.type.fields), (address,))
        if isinstance(of.type, Table) and len(at) == 1:
            return Value(Array(WORD), (address, of.parts[2]))
        return self._int(f"load i64, ptr {address}")

    def _value_subscript(self, node: ast.Subscript) -> Value:
        if isinstance(node.value, ast.Call) and isinstance(node.slice, ast.Constant):
            return self._tuple(node.value)[int(str(node.slice.value))]
        return self._item(self._value(node.value), self._tuple(node.slice), node)

    def _value_tuple(self, node: ast.Tuple) -> Value:
        return _several(self._tuple(node), None)

    def _value_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return Value(BOOL, (self._new(f"xor i1 {self._truth(value)}, true"),))
        if not isinstance(node.op, ast.USub):
            self._wrong(node, type(node.op).__name__)
        return self._int(f"sub i64 0, {self._number(value)}")

    def _value_binop(self, node: ast.BinOp) -> Value:
        return self._operation(node.op, self._value(node.left), self._value(node.right), node)

    def _operation(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        a, b = self._number(left), self._number(right)
        if type(op) in _ARITHMETIC:
            return self._int(f"{_ARITHMETIC[type(op)]} i64 {a}, {b}")
        if not isinstance(op, ast.FloorDiv):
            self._wrong(node, type(op).__name__)
        # Python rounds down, the machine towards 0.
        quotient, rest = self._new(f"sdiv i64 {a}, {b}"), self._new(f"srem i64 {a}, {b}")
        signs = self._new(f"xor i64 {rest}, {b}")
        below = self._new(f"and i1 {self._new(f'icmp ne i64 {rest}, 0')}, {self._new(f'icmp slt i64 {signs}, 0')}")
        return self._int(f"sub i64 {quotient}, {self._new(f'zext i1 {below} to i64')}")

    def _value_compare(self, node: ast.Compare) -> Value:
        if len(node.ops) > 1 or type(node.ops[0]) not in _COMPARED:
            self._wrong(node, "this comparison")
        a, b = (self._number(self._value(operand)) for operand in (node.left, node.comparators[0]))
        return Value(BOOL, (self._new(f"icmp {_COMPARED[type(node.ops[0])]} i64 {a}, {b}"),))

    def _value_boolop(self, node: ast.BoolOp) -> Value:
        """A truth value; in Python it is one of the operands, so it may only be asked whether it is true."""
        slot = self._slot("i1")
        (end,) = self._labels("known")
        for operand in node.values:
            known = self._truth(self._value(operand))
            self._line(f"store i1 {known}, ptr {slot}")
            (more,) = self._labels("more")
            labels = (more, end) if isinstance(node.op, ast.And) else (end, more)
            self._line(f"br i1 {known}, label %{labels[0]}, label %{labels[1]}")
            self.ended = True
            self._start(more)
        self._start(end)
        return Value(BOOL, (self._new(f"load i1, ptr {slot}"),))

    def _slot(self, part: str) -> str:
        self.count += 1
        self.slots.append(f"  %slot{self.count} = alloca {part}")
        return f"%slot{self.count}"

    def _value_ifexp(self, node: ast.IfExp) -> Value:
        slot = self._slot("i64")
        yes, no, end = self._labels("then", "else", "end")
        self._branch(node.test, yes, no)
        for label, chosen in ((yes, node.body), (no, node.orelse)):
            self._start(label)
            self._line(f"store i64 {self._number(self._value(chosen))}, ptr {slot}")
            self._goto(end)
        self._start(end)
        return self._int(f"load i64, ptr {slot}")

    def _value_call(self, node: ast.Call) -> Value:
        if not isinstance(node.func, ast.Name) or node.keywords:
            self._wrong(node, "this call")
        name, values = node.func.id, [self._value(argument) for argument in node.args]
        called = self._global(name)
        if isinstance(called, Compiled):
            return self._call(called, values)
        if isinstance(called, type):
            return _several(values, called)
        if called is lowest_bit:
            return self._int(f"call i64 @llvm.cttz.i64(i64 {self._number(values[0])}, i1 true)")
        if name == "len":
            return Value(INT, (values[0].parts[1],))
        if name == "bool":
            return Value(BOOL, (self._truth(values[0]),))
        if name not in ("int", "min", "max"):
            self._wrong(node, f"'{name}'")
        best = self._number(values[0])
        for value in values[1:]:
            best = self._new(f"call i64 @llvm.s{name}.i64(i64 {best}, i64 {self._number(value)})")
        return Value(INT, (best,))

    def _call(self, called: Compiled, values: Sequence[Value]) -> Value:
        name, returned = self.module.function(called.function, tuple(value.type for value in values))
        call = f"call {llvm_of(returned)} @{name}({', '.join(map(str, values))})"
        if not returned.parts:
            self._line(call)
            return Value(returned, ())
        result = self._new(call)
        if len(returned.parts) == 1:
            return Value(returned, (result,))
        places = range(len(returned.parts))
        return Value(returned, tuple(self._new(f"extractvalue {llvm_of(returned)} {result}, {k}") for k in places))
