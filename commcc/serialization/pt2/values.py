"""The values of a ``.pt2`` graph: tensors and symbolic scalars as the schema describes them, and back.

Usage::

    symbols = ExpressionReader(ctx)
    symbols.integer({"as_expr": {"expr_str": "Mul(Integer(8), Symbol('u0', integer=True))", "hint": None}})   # SymInt
    values = ValueReader(symbols, graph)             # one graph of the schema
    values.of("mm")                                  # FakeTensor, SymInt, ...
    write_tensor(fake)                               # {"dtype": 7, "sizes": [{"as_int": 4}, ...], ...}
    write_scalar(symint)                             # {"as_expr": {"expr_str": ..., "hint": None}}

Limits: dense tensors; symbolic sizes as in :mod:`commcc.serialization.symbols`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.export.graph_signature import CustomObjArgument

from commcc.base.errors import InputError, OutputError
from commcc.serialization.pt2.schema import DTYPE_NUMBERS, DTYPES, NEW_DTYPES, check_name, device_of, lookup, union
from commcc.serialization.shapes import requires_grad_of
from commcc.serialization.symbols import NONSENSE, SREPR_SYMBOL, expression_text, parse_srepr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.serialization.shapes import ShapeContext

#: The value of everything when a graph is read for its nodes only.
UNKNOWN = object()
_STRIDED = 7
_MAX_DIMS = 64
_INT64 = 1 << 63
_TABLES = ("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values", "custom_obj_values")


class ExpressionReader:
    """Reads symbolic sizes into one shape context, each text once."""

    def __init__(self, ctx: ShapeContext) -> None:
        self.ctx = ctx
        self._known: dict[str, sympy.Basic] = {}
        self._examples: dict[sympy.Basic, Any] = {}

    def integer(self, data: Any) -> int | torch.SymInt:
        """A SymInt of the schema: ``{"as_int": 4}`` or ``{"as_expr": ...}``."""
        ((kind, value),) = data.items()
        if kind == "as_int":
            # Python reads integers of any length, PyTorch fails on them later.
            if type(value) is not int or not -_INT64 <= value < _INT64:
                raise InputError(f"{str(value)[:40]!r} is not a 64-bit integer")
            return value
        text, expr = self._expression(kind, value)
        self._check_example(expr, text, value.get("hint"))
        try:
            if not isinstance(expr, sympy.Expr) or expr.is_integer is False:
                raise InputError(f"{text[:60]!r} is not an integer")
            return self.ctx.integer(expr)
        except NONSENSE:
            raise InputError(f"the symbolic size {text[:60]!r} has no value") from None

    def _check_example(self, expr: sympy.Basic, text: str, hint: Any) -> None:
        """One size has one example value wherever it stands, in whatever words; PyTorch goes by the first."""
        if hint is None:
            return
        kind, example = union(hint)
        if kind != "as_int" or self._examples.setdefault(expr, example) != example:
            raise InputError(f"the example {str(example)[:40]} is not the one that {text[:60]!r} has elsewhere")

    def scalar(self, data: Any, plain: type) -> Any:
        """A SymFloat or SymBool of the schema; ``plain`` is ``float`` or ``bool``."""
        ((kind, value),) = data.items()
        if kind == f"as_{plain.__name__}":
            if plain is float:
                return number(value)
            if type(value) is not bool:
                raise InputError(f"{str(value)[:40]!r} is not true or false")
            return value
        text, expr = self._expression(kind, value)
        try:
            return self.ctx.parse_symbolic(expression_text(expr))
        except NONSENSE:
            raise InputError(f"the symbolic value {text[:60]!r} has no value") from None

    def declare_hint(self, value: Any) -> None:
        """Take the example value of a plain symbol from an ``as_expr``, before anything is made of it."""
        match = SREPR_SYMBOL.fullmatch(value["expr_str"])
        hint = value.get("hint")
        if match is not None and isinstance(hint, dict) and type(hint.get("as_int")) is int:
            known = self.ctx.symbols.get(match[1])
            lower, upper = (known.lower, known.upper) if known is not None else (None, None)
            self.ctx.declare(match[1], lower=lower, upper=upper, hint=hint["as_int"])

    def _expression(self, kind: str, value: Any) -> tuple[str, sympy.Basic]:
        """An ``as_expr``: its text, and the expression built as written where sympy can hold it so."""
        text = value["expr_str"] if kind == "as_expr" else None
        if not isinstance(text, str):
            raise InputError(f"{kind[:40]!r} is not a symbolic size")
        expr = self._known.get(text)
        if expr is None:
            expr = self._known[text] = parse_srepr(text, self.ctx.symbol)
        return text, expr


class ValueReader:
    """Values of one graph, by name; each is made when it is first asked for.

    Without ``symbols`` nothing is made: every value is the same opaque object.
    """

    def __init__(self, symbols: ExpressionReader | None, graph: dict[str, Any]) -> None:
        self._symbols = symbols
        self._tables = {name: graph.get(name) or {} for name in _TABLES}
        if not all(isinstance(table, dict) for table in self._tables.values()):
            raise InputError("a table of values is not an object")
        if symbols is not None:
            for expression in _symbolic_sizes(self._tables):
                symbols.declare_hint(expression)

    def of(self, name: str) -> Any:
        """The value called ``name``; :class:`InputError` if the graph does not describe it."""
        symbols = self._symbols
        if symbols is None:
            return UNKNOWN
        tensor = self._tables["tensor_values"].get(name)
        if tensor is not None:
            return _read_tensor(tensor, symbols)
        if (number := self._tables["sym_int_values"].get(name)) is not None:
            return symbols.integer(number)
        if (number := self._tables["sym_float_values"].get(name)) is not None:
            return symbols.scalar(number, float)
        if (number := self._tables["sym_bool_values"].get(name)) is not None:
            return symbols.scalar(number, bool)
        if (custom := self._tables["custom_obj_values"].get(name)) is not None:
            return CustomObjArgument(name=check_name(custom["name"]), class_fqn=str(custom["class_fqn"]))
        raise InputError(f"nothing says what {name[:60]!r} is")

    def given(self, name: str) -> Any:
        """The value of an input: of symbolic ones, also where it is known, which would be a constant otherwise."""
        value = self.of(name)
        if self._symbols is None or type(value) is not int:
            return value
        return self._symbols.ctx.parse_symbolic(str(value))


def _read_tensor(meta: dict[str, Any], symbols: ExpressionReader) -> Any:
    integer = symbols.integer
    sizes, strides, dtype = meta["sizes"], meta["strides"], lookup(DTYPES, meta["dtype"], "dtype")
    if len(sizes) > _MAX_DIMS or meta["layout"] != _STRIDED:
        raise InputError(f"a tensor with {len(sizes)} dimensions and layout {meta['layout']} is not supported")
    if meta["requires_grad"] is True and not (dtype.is_floating_point or dtype.is_complex):
        raise InputError(f"a tensor of {dtype} is said to require a gradient")
    return symbols.ctx.tensor(
        [integer(size) for size in sizes],
        [integer(stride) for stride in strides],
        dtype,
        _device(meta["device"]["type"], meta["device"].get("index")),
        requires_grad=meta["requires_grad"] is True,
        storage_offset=integer(meta["storage_offset"]),
    )


@lru_cache(maxsize=256)
def _device(kind: str, index: int | None) -> torch.device:
    return device_of({"type": kind, "index": index})


def _symbolic_sizes(tables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for meta in tables["tensor_values"].values():
        for size in (*meta["sizes"], *meta["strides"], meta["storage_offset"]):
            if "as_expr" in size:
                yield size["as_expr"]
    for value in tables["sym_int_values"].values():
        if "as_expr" in value:
            yield value["as_expr"]


def write_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """What the schema says about a tensor; :class:`OutputError` for a dtype it has no number for."""
    number = DTYPE_NUMBERS.get(tensor.dtype)
    if number is None or tensor.layout is not torch.strided:
        raise OutputError(f"a .pt2 file cannot hold a tensor of {tensor.dtype}, {tensor.layout}")
    return {
        "dtype": number,
        "sizes": [{"as_int": n} if type(n) is int else write_scalar(n) for n in tensor.shape],
        "requires_grad": requires_grad_of(tensor),
        "device": {"type": tensor.device.type, "index": tensor.device.index},
        "strides": [{"as_int": n} if type(n) is int else write_scalar(n) for n in tensor.stride()],
        "storage_offset": write_scalar(tensor.storage_offset()),
        "layout": _STRIDED,
    }


def needs_new_schema(tensor: dict[str, Any]) -> bool:
    """Whether only the newest minor version of the schema can say what :func:`write_tensor` said."""
    return tensor["dtype"] in NEW_DTYPES


def number(value: Any) -> float:
    """A float of the schema, where infinities and NaN are strings."""
    if isinstance(value, str):
        # float() reads more words than these.
        if value not in ("Infinity", "-Infinity", "NaN"):
            raise InputError(f"{value[:40]!r} is not a number")
        return float(value)
    if type(value) not in (int, float):
        raise InputError(f"{str(value)[:40]!r} is not a number")
    return float(value)


def write_number(value: float) -> float | str:
    """The opposite of :func:`number`."""
    # JSON has no NaN and no infinity.
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


@lru_cache(maxsize=20_000)
def _srepr(expr: sympy.Basic) -> str:
    return str(sympy.srepr(expr))


def write_scalar(value: Any) -> dict[str, Any]:
    """An int, float, bool or symbolic scalar as the schema spells it."""
    if type(value) is bool:
        return {"as_bool": value}
    if type(value) is int:
        return {"as_int": value}
    if type(value) is float:
        return {"as_float": write_number(value)}
    node = value.node
    # A symbol that was replaced by a number since.
    if node.expr.is_number:
        return write_scalar(node.pytype(node.expr))
    # The hint is the example value of a symbol; sizes known only at run time have none.
    hint = node.hint if node.has_hint() and type(node.hint) in (int, float, bool) else None
    return {"as_expr": {"expr_str": _srepr(node.expr), "hint": None if hint is None else write_scalar(hint)}}
