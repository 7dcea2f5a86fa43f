"""Values without data: what ``node.meta["val"]`` holds, made from text and printed as text.

Usage::

    ctx = ShapeContext()
    ctx.declare("u0", lower=0, upper=4096)
    t = parse_val("bf16[8*u0, 64][64, 1]cuda:0", ctx)     # FakeTensor
    format_val(t)                                         # 'bf16[8*u0, 64][64, 1]cuda:0'

One context belongs to one Program: its tensors share one ``FakeTensorMode`` and one ``ShapeEnv``, and
symbols keep the names that the file gave them.

Devices are kept as written (``cuda`` and ``cuda:3`` differ) and never touched, so that a graph captured
on 64 GPUs loads on a laptop and reading starts no CUDA context. ``requires_grad`` is only remembered
(:func:`requires_grad_of`): a fake CUDA tensor that autograd sees aborts the process on a CPU build.

Limits: dense tensors only. The storage of a tensor with symbolic sizes is left empty; its size is
never known from a text. Relies on how ``FakeTensor`` keeps its state (an instance dictionary), as PyTorch
2.11 to 2.13 do.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import sym_node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._dtype_abbrs import dtype_abbrs
from torch.utils._pytree import tree_map
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from commcc.base.errors import InputError, OutputError
from commcc.serialization.symbols import SYMBOL_NAME, expression_text, has_powers, parse_expression, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import fx

    from commcc.base.terms import Json

_REQUIRES_GRAD = "commcc_requires_grad"
# PyTorch 2.11 takes None for "look for a hint"; newer ones can be told that there is none.
_NO_HINT = getattr(sym_node, "_NO_HINT", None)
_SYMBOLIC: dict[type, Any] = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
_DTYPES = {abbreviation: dtype for dtype, abbreviation in dtype_abbrs.items()}
_TENSOR = re.compile(r"([a-z]\w*)\[([^][]*)\](?:\[([^][]*)\])?([a-z]\w*(?::\d+)?)?")
_CONSTANT = re.compile(r"(?:\d{1,19}(?:, \d{1,19})*)?")
_WRAPPED = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.DOTALL)
_NUMBERS = frozenset({int})
#: Of the bounds of a symbol; longer numbers would make every computation on them slow.
_MOST_BITS = 70


@dataclass(frozen=True)
class SymbolInfo:
    """What a file says about one symbol; None where it says nothing."""

    lower: int | None = None
    upper: int | None = None
    hint: int | None = None

    def to_json(self) -> list[Json]:
        """``[lower, upper, hint]``, as files have it."""
        return [self.lower, self.upper, self.hint]

    @staticmethod
    def from_json(name: str, data: Any) -> SymbolInfo:
        """What a file says about ``name``; anything but three integers or None raises :class:`InputError`."""
        bounds = data if isinstance(data, list) and len(data) == 3 else ["?"]
        if not all(bound is None or (type(bound) is int and bound.bit_length() < _MOST_BITS) for bound in bounds):
            raise InputError(f"symbol {name[:40]!r} is not [lower, upper, hint]")
        return SymbolInfo(*bounds)


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
        env = self.shape_env
        symbol = self._by_name.get(name)
        if symbol is None:
            symbol = self._by_name[name] = default_symbol(name)
            # Symbols that propagation makes later must not get a name that the file uses.
            following = int(name.lstrip("suzf")) + 1
            if name.startswith("u"):
                env.unbacked_symint_counter = max(env.unbacked_symint_counter, following)
            elif name.startswith("zuf"):
                env.unbacked_symfloat_counter = max(env.unbacked_symfloat_counter, following)
        self.symbols[name] = SymbolInfo(lower, upper, hint)
        # Sizes have infinities of their own in PyTorch.
        infinity = sympy.oo if name.startswith("z") else int_oo
        low, high = -infinity if lower is None else lower, infinity if upper is None else upper
        if lower is not None and upper is not None and lower > upper:
            raise InputError(f"the range of {name} is empty: {lower} to {upper}")
        env.var_to_range[symbol] = ValueRanges(low, high)
        # Unbacked symbols have no value at trace time; PyTorch would take a hint for one.
        if hint is not None and not name.startswith(("u", "zuf")):
            env.backed_var_to_val[symbol] = sympy.Integer(hint)
        return symbol

    def symbol(self, name: str) -> sympy.Symbol:
        """The symbol called ``name``, declared without a range if it is new."""
        symbol = self._by_name.get(name)
        return symbol if symbol is not None else self.declare(name)

    def integer(self, expr: sympy.Expr | int) -> int | torch.SymInt:
        """``expr`` as an int if it is a number, else as a SymInt of this context."""
        if isinstance(expr, (int, sympy.Integer)):
            return int(expr)
        value: torch.SymInt | None = self._by_text.get(key := expression_text(expr))
        # Two expressions can have one text (symbols of other assumptions).
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
        scalar: torch.SymInt | torch.SymFloat | torch.SymBool = _SYMBOLIC[kind](self._node(expr, kind))
        return scalar

    def parse_integer(self, text: str) -> int | torch.SymInt:
        """A size, stride or split as printed: ``512``, ``8*u0 + 3``, ``(u0//8)``, ``Max(1, u0)``."""
        # By far most sizes.
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
        # An example value only where every symbol has one, and where it is quick to compute.
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
            if not _NUMBERS.issuperset(map(type, (*shape, *stride, storage_offset))):
                # empty_strided would evaluate guards on every size, 40 times as slow.
                elem = torch.empty(0, dtype=dtype, device="meta").as_strided(shape, stride, storage_offset)
            elif storage_offset == 0:
                elem = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            else:
                reach = int(storage_offset) + max(span(shape, stride), 0)  # type: ignore[arg-type]
                elem = torch.empty(reach, dtype=dtype, device="meta").as_strided(shape, stride, storage_offset)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"no tensor can have this shape: {str(error)[:120]}") from None
        return self.wrap(elem, device, requires_grad=requires_grad)

    def wrap(self, elem: torch.Tensor, device: torch.device, *, requires_grad: bool = False) -> FakeTensor:
        """``elem``, a meta tensor, as a fake tensor that says it is on ``device``."""
        template = self._templates.get(device)
        if template is None:
            pattern = vars(FakeTensor(self.fake_mode, torch.empty(0, device="meta"), torch.device("cpu")))
            key = "_fake_device" if "_fake_device" in pattern else "fake_device"  # its name differs between versions
            template = self._templates[device] = {**pattern, key: device}
        # What FakeTensor.__new__ does, less its start of a CUDA context and its "cuda" -> "cuda:0".
        fake: FakeTensor = torch.Tensor._make_subclass(
            FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(fake)
        fake.__dict__.update(template)
        if requires_grad:
            remember_requires_grad(fake)
        return fake


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


def symbols_in(shape_env: ShapeEnv, names: Iterable[sympy.Symbol]) -> Mapping[str, SymbolInfo]:
    """What a ShapeEnv knows about symbols, by name in natural order."""
    out = {}
    for symbol in names:
        known = shape_env.var_to_range.get(symbol)
        hint = shape_env.backed_var_to_val.get(symbol)
        out[symbol.name] = SymbolInfo(
            int(known.lower) if known is not None and known.lower.is_Integer else None,
            int(known.upper) if known is not None and known.upper.is_Integer else None,
            int(hint) if hint is not None and hint.is_Integer else None,
        )
    return dict(sorted(out.items(), key=lambda item: (item[0].rstrip("0123456789"), len(item[0]), item[0])))


def symbols_of(value: Any) -> set[str]:
    """Names of the symbols in a value: a scalar, a tensor's sizes, strides and offset, or a nest of these."""
    names: set[str] = set()

    def look(leaf: Any) -> Any:
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            names.update(str(symbol) for symbol in leaf.node.expr.free_symbols)
        elif isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            for size in (*leaf.shape, *leaf.stride(), leaf.storage_offset()):
                if not isinstance(size, int):
                    look(size)
        return leaf

    tree_map(look, value)
    return names


def input_sizes(graph: fx.Graph) -> Iterator[tuple[str, torch.SymInt]]:
    """Sizes and strides of inputs, and inputs that are sizes, which are one symbol each; with its name: what a caller
    can fix.
    """
    for node in graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        sizes = (*val.shape, *val.stride()) if isinstance(val, torch.Tensor) else (val,)
        for size in sizes:
            expr = getattr(getattr(size, "node", None), "expr", None)
            if isinstance(expr, sympy.Symbol):
                yield expr.name, size


def bounds_of(size: torch.SymInt) -> tuple[int | None, int | None]:
    """The least and the largest number of a size that is one symbol; None where nothing bounds it."""
    symbol = size.node.expr
    info = symbols_in(size.node.shape_env, [symbol])[symbol.name]
    return info.lower, info.upper


def requires_grad_of(tensor: torch.Tensor) -> bool:
    """Whether the graph says that the tensor requires grad, however that is remembered."""
    return tensor.requires_grad or getattr(tensor, _REQUIRES_GRAD, False) is True


def remember_requires_grad(tensor: torch.Tensor) -> None:
    """Make :func:`requires_grad_of` say yes, without autograd taking notice."""
    setattr(tensor, _REQUIRES_GRAD, True)


def contiguous_stride(shape: Sequence[Any]) -> list[Any]:
    """Row-major strides; symbolic sizes multiply without evaluating guards."""
    stride: list[Any] = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        size = shape[i + 1]
        # Empty dimensions count as one, as in PyTorch.
        stride[i] = stride[i + 1] * (size if type(size) is not int else max(size, 1))
    return stride


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements of memory a tensor with elements reaches over."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


@dataclass(frozen=True)
class TensorText:
    """An annotation taken apart; ``stride`` and ``device`` are None where it does not say.

    wrapper: the tensor subclass around it (``DTensor``, ``Parameter``), None for plain tensors.
    """

    dtype: str
    shape: str
    stride: str | None
    device: str | None
    wrapper: str | None = None


@lru_cache(maxsize=20_000)
def split_annotation(text: str) -> TensorText | None:
    """The parts of a tensor annotation, None if the text is not one."""
    match = _TENSOR.fullmatch(text)
    if match is not None:
        return TensorText(match[1], match[2], match[3], match[4])
    wrapped = _WRAPPED.fullmatch(text)
    # DTensor(f32[4][1]cpu) and the like: what the wrapper shows.
    if wrapped is None or wrapped[1] == "Sym":
        return None
    inner = _TENSOR.match(wrapped[2])
    return TensorText(inner[1], inner[2], inner[3], inner[4], wrapped[1]) if inner is not None else None


def parse_val(text: str, ctx: ShapeContext, *, device: str = "cpu") -> Any:
    """The value that an annotation describes: a FakeTensor, or a symbolic scalar for ``Sym(...)``.

    Strides that the text leaves out are taken as contiguous, a device that it leaves out as ``device``.
    Anything that is not an annotation raises :class:`InputError`.
    """
    if text.startswith("Sym(") and text.endswith(")"):
        return ctx.parse_symbolic(text[4:-1])
    known = _constant_sizes(text)
    if known is not None:
        shape, stride, dtype, named_device = known
        return ctx.tensor(shape, stride, dtype, named_device or device)
    parts = split_annotation(text)
    if parts is None:
        raise InputError(f"cannot read the annotation {text[:80]!r}")
    sizes = [ctx.parse_integer(part) for part in _split(parts.shape)]
    strides = contiguous_stride(sizes) if parts.stride is None else [ctx.parse_integer(s) for s in _split(parts.stride)]
    return ctx.tensor(sizes, strides, _dtype(parts.dtype), parts.device or device)


# Most annotations of a graph are the same few, without symbols.
@lru_cache(maxsize=20_000)
def _constant_sizes(text: str) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype, str | None] | None:
    """Shape, stride, dtype and device of an annotation without symbols; None for all others."""
    parts = split_annotation(text)
    if parts is None or not _CONSTANT.fullmatch(parts.shape) or not _CONSTANT.fullmatch(parts.stride or ""):
        return None
    shape = tuple(map(int, _split(parts.shape)))
    stride = contiguous_stride(shape) if parts.stride is None else map(int, _split(parts.stride))
    return shape, tuple(stride), _dtype(parts.dtype), parts.device


def _dtype(abbreviation: str) -> torch.dtype:
    dtype = _DTYPES.get(abbreviation)
    if dtype is None:
        raise InputError(f"unknown dtype {abbreviation[:40]!r}")
    return dtype


def _split(text: str) -> list[str]:
    """Split at the commas outside parentheses."""
    if not text.strip():
        return []
    parts = text.split(",")
    # Splitting at all commas is right for nearly all texts, and fast.
    if "(" not in text:
        return [part.strip() for part in parts]
    out: list[str] = []
    depth = 0
    for part in parts:
        if depth:
            out[-1] += "," + part
        else:
            out.append(part)
        depth += part.count("(") - part.count(")")
    return [part.strip() for part in out]


def format_val(val: Any, size_text: Callable[[object], str] = str) -> str:
    """The annotation that torch prints with strides and devices; empty for what has none (tuples, None, ints).

    size_text: prints sizes and strides, numbers and symbolic ones.
    """
    if isinstance(val, torch.Tensor):
        if val.dtype not in dtype_abbrs:
            raise OutputError(f"dtype {val.dtype} has no short name")
        shape, stride = (", ".join([size_text(size) for size in sizes]) for sizes in (val.shape, val.stride()))
        return f"{dtype_abbrs[val.dtype]}[{shape}][{stride}]{val.device}"
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"Sym({size_text(val)})"
    return ""
