"""The symbols and fake tensors of one Program; see :mod:`commcc.serialization.shapes`, which offers all of this.

Limits: relies on how ``FakeTensor`` keeps its state (an instance dictionary), as PyTorch 2.11 to 2.13 do.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import sym_node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from commcc.base.errors import InputError
from commcc.serialization.fx.symbols import SYMBOL_NAME, expression_text, has_powers, parse_expression, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

REQUIRES_GRAD = "commcc_requires_grad"
# torch leaves these constructors unannotated.
# PyTorch 2.11 takes None for "look for a hint"; newer ones can be told that there is none.
_NO_HINT = getattr(sym_node, "_NO_HINT", None)
_SYMBOLIC: dict[type, Any] = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}


@dataclass(frozen=True)
class SymbolInfo:
    """What a file says about one symbol; None where it says nothing."""

    lower: int | None = None
    upper: int | None = None
    hint: int | None = None


class ShapeContext:
    """The symbols and fake tensors of one Program.

    fake_mode, shape_env: shared by every value made here.
    symbols: what was declared, by name, in order of first use.
    """

    def __init__(self) -> None:
        self.shape_env = ShapeEnv()
        self.fake_mode = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=True)
        self.symbols: dict[str, SymbolInfo] = {}
        self._by_name: dict[str, sympy.Symbol] = {}
        self._by_text: dict[str, Any] = {}
        self._templates: dict[torch.device, dict[str, Any]] = {}

    def declare(
        self, name: str, *, lower: int | None = None, upper: int | None = None, hint: int | None = None
    ) -> sympy.Symbol:
        """The symbol called ``name`` (``u3`` unbacked, ``s77`` backed, ``zf1``/``zuf1`` floats), made on first use.

        A bound of None is infinite. What is declared later replaces what was declared before.
        """
        if not SYMBOL_NAME.fullmatch(name):
            raise InputError(f"{name[:60]!r} is not the name of a symbolic size (u0, s77, zf1, ...)")
        symbol = self._by_name.get(name)
        if symbol is None:
            symbol = self._by_name[name] = default_symbol(name)
            self._reserve(name)
        self.symbols[name] = SymbolInfo(lower, upper, hint)
        is_float = name.startswith("z")
        infinity = sympy.oo if is_float else int_oo
        low, high = -infinity if lower is None else lower, infinity if upper is None else upper
        if lower is not None and upper is not None and lower > upper:
            raise InputError(f"the range of {name} is empty: {lower} to {upper}")
        self.shape_env.var_to_range[symbol] = ValueRanges(low, high)
        if hint is not None and not name.startswith(("u", "zuf")):
            self.shape_env.backed_var_to_val[symbol] = sympy.Integer(hint)
        return symbol

    def symbol(self, name: str) -> sympy.Symbol:
        """The symbol called ``name``, declared without a range if it is new."""
        found = self._by_name.get(name)
        return found if found is not None else self.declare(name)

    def _reserve(self, name: str) -> None:
        """Symbols that propagation makes later must not get a name that the file uses."""
        number = int(name.lstrip("suzf"))
        if name.startswith("u"):
            self.shape_env.unbacked_symint_counter = max(self.shape_env.unbacked_symint_counter, number + 1)
        elif name.startswith("zuf"):
            self.shape_env.unbacked_symfloat_counter = max(self.shape_env.unbacked_symfloat_counter, number + 1)

    def integer(self, expr: sympy.Expr | int) -> int | torch.SymInt:
        """``expr`` as an int if it is a number, else as a SymInt of this context."""
        if isinstance(expr, (int, sympy.Integer)):
            return int(expr)
        value: torch.SymInt | None = self._by_text.get(key := expression_text(expr))
        if value is None or value.node.expr != expr:
            value = self._by_text[key] = _SYMBOLIC[int](self._node(expr, int))
        return value

    def scalar(
        self, expr: sympy.Basic, kind: type
    ) -> int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool:
        """``expr`` as a plain number (or truth value) if it is one, else as a symbolic one of ``kind``."""
        if isinstance(expr, sympy.logic.boolalg.BooleanAtom) or (kind is bool and expr.is_number):
            return bool(expr)
        if expr.is_number:
            number: int | float = kind(expr)
            return number
        made: torch.SymInt | torch.SymFloat | torch.SymBool = _SYMBOLIC[kind](self._node(expr, kind))
        return made

    def parse_integer(self, text: str) -> int | torch.SymInt:
        """A size, stride or split as printed: ``512``, ``8*u0 + 3``, ``(u0//8)``, ``Max(1, u0)``."""
        if text.isdecimal() and len(text) < 20:
            return int(text)
        value = self._by_text.get(text)
        if value is None:
            expr = parse_expression(text, self.symbol)
            if type_of(expr) is not int:
                raise InputError(f"{text[:60]!r} is not an integer")
            value = self._by_text[text] = self.integer(expr)
        return value

    def parse_symbolic(self, text: str) -> torch.SymInt | torch.SymFloat | torch.SymBool:
        """A symbolic scalar as printed inside ``Sym(...)``; its type follows from the expression."""
        value: torch.SymInt | torch.SymFloat | torch.SymBool | None = self._by_text.get(key := f"Sym({text})")
        if value is None:
            expr = parse_expression(text, self.symbol)
            kind = type_of(expr)
            value = self._by_text[key] = _SYMBOLIC[kind](self._node(expr, kind))
        return value

    def _node(self, expr: Any, kind: type) -> SymNode:
        values = self.shape_env.backed_var_to_val
        known = {symbol: values[symbol] for symbol in expr.free_symbols if symbol in values}
        hint = _NO_HINT
        if len(known) == len(expr.free_symbols) and not has_powers(expr):
            with contextlib.suppress(TypeError, ValueError, ArithmeticError):
                hint = kind(expr.xreplace(known))
        try:
            return SymNode(expr, self.shape_env, kind, hint)
        except (TypeError, ValueError, ArithmeticError, AssertionError) as error:
            raise InputError(f"{str(expr)[:60]!r} has no value: {str(error)[:80]}") from None

    def tensor(
        self,
        shape: Sequence[int | torch.SymInt],
        stride: Sequence[int | torch.SymInt],
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        requires_grad: bool = False,
        storage_offset: int | torch.SymInt = 0,
    ) -> FakeTensor:
        """A fake tensor; nonsense (negative or overflowing sizes) raises :class:`InputError`."""
        device = _device(device) if isinstance(device, str) else device
        if len(shape) != len(stride):
            raise InputError(f"{len(shape)} sizes but {len(stride)} strides")
        # PyTorch 2.11 makes such a tensor without a word.
        if isinstance(storage_offset, int) and storage_offset < 0:
            raise InputError(f"no tensor can have this shape: storage offset {storage_offset}")
        try:
            elem = _meta(shape, stride, dtype, storage_offset)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"no tensor can have this shape: {str(error)[:120]}") from None
        return self.wrap(elem, device, requires_grad=requires_grad)

    def wrap(self, elem: torch.Tensor, device: torch.device, *, requires_grad: bool = False) -> FakeTensor:
        """``elem``, a meta tensor, as a fake tensor that says it is on ``device``."""
        template = self._templates.get(device)
        if template is None:
            template = self._templates[device] = self._template(device)
        # What FakeTensor.__new__ does, less its start of a CUDA context and its "cuda" -> "cuda:0".
        made: FakeTensor = torch.Tensor._make_subclass(
            FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        made.__dict__.update(template)
        if requires_grad:
            setattr(made, REQUIRES_GRAD, True)
        return made

    def _template(self, device: torch.device) -> dict[str, Any]:
        pattern = vars(FakeTensor(self.fake_mode, torch.empty(0, device="meta"), torch.device("cpu")))
        key = "_fake_device" if "_fake_device" in pattern else "fake_device"
        return {**pattern, key: device}


@lru_cache(maxsize=4096)
def default_symbol(name: str) -> sympy.Symbol:
    """The sympy symbol that every context uses for a name."""
    if name.startswith("z"):
        return sympy.Symbol(name, real=True)
    return sympy.Symbol(name, integer=True, positive=True) if name.startswith("s") else sympy.Symbol(name, integer=True)


@lru_cache(maxsize=1024)
def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError:
        raise InputError(f"unknown device {text[:40]!r}") from None


def _meta(shape: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype, offset: Any) -> torch.Tensor:
    if any(type(number) is not int for number in (*shape, *stride, offset)):
        # empty_strided would evaluate guards on every size, 40 times as slow.
        return torch.empty(0, dtype=dtype, device="meta").as_strided(shape, stride, offset)
    if offset == 0:
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.empty(offset + max(span, 0), dtype=dtype, device="meta").as_strided(shape, stride, offset)


def symbols_in(shape_env: ShapeEnv, names: Iterable[sympy.Symbol]) -> Mapping[str, SymbolInfo]:
    """What a ShapeEnv knows about symbols, by name in natural order."""
    out = {symbol.name: _info(shape_env, symbol) for symbol in names}
    return dict(sorted(out.items(), key=lambda item: (item[0].rstrip("0123456789"), len(item[0]), item[0])))


def _info(shape_env: ShapeEnv, symbol: sympy.Symbol) -> SymbolInfo:
    known = shape_env.var_to_range.get(symbol)
    hint = shape_env.backed_var_to_val.get(symbol)
    return SymbolInfo(
        int(known.lower) if known is not None and known.lower.is_Integer else None,
        int(known.upper) if known is not None and known.upper.is_Integer else None,
        int(hint) if hint is not None and hint.is_Integer else None,
    )
