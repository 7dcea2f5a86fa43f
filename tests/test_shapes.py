"""Annotations to values and back, and what hostile ones do."""

import contextlib
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import InputError
from commcc.serialization.shapes import (
    ShapeContext,
    SymbolInfo,
    contiguous_stride,
    format_val,
    parse_val,
    requires_grad_of,
    split_annotation,
    symbols_in,
)
from commcc.serialization.symbols import parse_expression, stable_text, type_of
from tests.counting import at_most
from tests.effort import examples

EXACT = [
    "f32[][]cpu",
    "bf16[8*u0, 64][64, 1]cuda:0",
    "i64[u1 + u2, (u1//8)][1, 1]cuda",
    "f8e4m3fn[4, 8][8, 1]cuda:3",
    "b8[0, 3][3, 1]meta",
    "c64[2][1]cpu",
    "Sym(u0)",
    "Sym(s77)",
    "Sym(zuf0)",
    "Sym(512)",
    "Sym(True)",
    "Sym(-u0)",
    "Sym(u0**2)",
    "Sym(2*(u0 + 1))",
    "Sym(8*s77 - 3*u0 + 1)",
    "Sym(((u0 + 7)//8))",
    "Sym(-((u0//8)))",
    "Sym(u0 <= 5)",
    "Sym(Eq(u0, 1))",
    "Sym(~(Eq(u0, 1)))",
    "Sym(Max(1, u0))",
    "Sym(Mod(u0, 8))",
    "Sym(ModularIndexing(u0, 1, 8))",
    "Sym(IntTrueDiv(u0, 3))",
    "Sym(1.0*ToFloat(u0))",
]


@pytest.mark.parametrize("text", EXACT)
def test_annotations_come_back_as_written(text):
    assert format_val(parse_val(text, ShapeContext())) == text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Sym(u0)", int),
        ("Sym(u0 < 3)", bool),
        ("Sym(zf1)", float),
        ("Sym(IntTrueDiv(u0, 2))", float),
        ("Sym(u0/2)", int),
    ],
)
def test_symbolic_scalars_have_a_type(text, kind):
    assert parse_val(text, ShapeContext()).node.pytype is kind


def test_missing_parts_are_filled_in():
    ctx = ShapeContext()
    val = parse_val("f32[4, u0, 8]", ctx, device="cuda:1")
    assert format_val(val) == "f32[4, u0, 8][8*u0, 8, 1]cuda:1"
    assert contiguous_stride([2, 0, 3]) == [3, 3, 1]
    assert parse_val("DTensor(f32[4, 4], S(0))", ctx).shape == (4, 4)
    assert split_annotation("Parameter(f32[4][1]cpu)").wrapper == "Parameter"


def test_tensors_of_a_context_share_a_mode_and_do_nothing_else():
    ctx = ShapeContext()
    a = ctx.tensor((2, 3), (3, 1), torch.float32, "cuda", storage_offset=4, requires_grad=True)
    b = parse_val("f32[u0, 3][3, 1]cuda:7", ctx)
    assert a.fake_mode is b.fake_mode is ctx.fake_mode
    assert (a.storage_offset(), str(a.device), str(b.device)) == (4, "cuda", "cuda:7")
    assert requires_grad_of(a)
    assert not a.requires_grad
    assert not requires_grad_of(b)
    assert not torch.cuda.is_initialized()
    assert not ctx.shape_env.guards
    assert not ctx.shape_env.deferred_runtime_asserts


def test_tensors_do_not_share_storage():
    ctx = ShapeContext()
    a, b = (parse_val("f32[4][1]cpu", ctx) for _ in range(2))
    assert a.untyped_storage()._cdata != b.untyped_storage()._cdata


def test_propagation_works_on_the_tensors():
    ctx = ShapeContext()
    ctx.declare("s5", hint=16)
    x = parse_val("bf16[8*s5, 64][64, 1]cuda:0", ctx)
    with torch.no_grad(), ctx.fake_mode:
        out = torch.ops.aten.mm.default(x, torch.ops.aten.t.default(x))
    assert format_val(out) == "bf16[8*s5, 8*s5][8*s5, 1]cuda:0"
    assert x.shape[0].node.hint == 128


def test_symbols_keep_names_ranges_and_hints():
    ctx = ShapeContext()
    ctx.declare("u3", lower=0, upper=4096)
    ctx.declare("s77", lower=2, hint=16)
    val = parse_val("f32[u3, s77][s77, 1]cpu", ctx)
    free = {s for size in (*val.shape, *val.stride()) if not isinstance(size, int) for s in size.node.expr.free_symbols}
    assert symbols_in(ctx.shape_env, free) == {"s77": SymbolInfo(2, None, 16), "u3": SymbolInfo(0, 4096, None)}
    assert ctx.symbols == {"u3": SymbolInfo(0, 4096, None), "s77": SymbolInfo(2, None, 16)}
    assert str(ctx.shape_env.create_unbacked_symint()) == "u4"


def test_integer_takes_expressions_and_numbers():
    ctx = ShapeContext()
    expr = 8 * ctx.declare("u0") + 3
    assert ctx.integer(7) == 7
    assert ctx.integer(expr) is ctx.integer(expr)
    assert str(ctx.integer(expr)) == "8*u0 + 3"


HOSTILE = [
    "Sym(9**64**64)",
    "Sym((2**500)**500)",
    "Sym(2**(2**(2**(2**9))))",
    "Sym(u0**99999999999)",
    "Sym(__import__('os').system('true'))",
    "Sym(u0.__class__)",
    "Sym([u0])",
    "Sym(lambda: 1)",
    "Sym(f'{u0}')",
    "Sym(evil)",
    "Sym(Evil(u0))",
    "Sym(exec('1'))",
    "Sym(Max(u0, key=1))",
    "Sym(FloorDiv(1))",
    "Sym(1/0)",
    "Sym(u0 < 1 < 2)",
    "Sym(" + "(" * 5000 + ")" * 5000 + ")",
    "Sym(" + "-" * 100_000 + "u0)",
    "Sym(" + "+".join(["u0"] * 100_000) + ")",
    "Sym(" + "1" * 100_000 + ")",
    "Sym()",
    "Sym(u0",
    "f32[-1][1]cpu",
    "f32[4][1, 1]cpu",
    "f32[u0 < 3][1]cpu",
    "f32[0.5][1]cpu",
    "f32[99999999999999999999][1]cpu",
    "f32[9999999999, 999999999999][1, 1]cpu",
    "f99[4][1]cpu",
    "f32[4][1]quark:0",
    "f32[4][1]cuda:0; import os",
    "f32[4]]",
    "Tensor",
    "",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:30])
def test_hostile_annotations_are_refused_at_once(text):
    with pytest.raises(InputError), at_most(100_000):
        parse_val(text, ShapeContext())


def test_bad_symbols_are_refused():
    ctx = ShapeContext()
    with pytest.raises(InputError):
        ctx.declare("os")
    with pytest.raises(InputError):
        ctx.declare("u0", lower=3, upper=2)


def test_a_power_with_a_hint_is_not_computed():
    ctx = ShapeContext()
    ctx.declare("s0", hint=2**40)
    assert format_val(parse_val("Sym(2**s0)", ctx)) == "Sym(2**s0)"


def test_unwritable_expressions_are_an_error():
    import sympy

    symbol = sympy.Symbol("u0", integer=True)
    with pytest.raises(InputError):
        stable_text(sympy.gamma(symbol), ShapeContext().symbol)


@pytest.mark.full
def test_no_autograd_reaches_cuda_tensors():
    """A fake CUDA tensor that autograd sees aborts the process on CPU builds; ours must not."""
    code = (
        "import torch; from commcc.serialization.shapes import *; ctx = ShapeContext()\n"
        "t = ctx.tensor((2, 3), (3, 1), torch.float32, 'cuda:0', requires_grad=True)\n"
        "with ctx.fake_mode: torch.ops.aten.relu.default(t)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0


LEAVES = st.one_of(st.integers(0, 64).map(str), st.sampled_from(["u0", "u1", "s0", "s77"]))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["Max", "Min", "Mod", "PythonMod"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
@settings(max_examples=examples(150), deadline=None)
def test_printed_expressions_have_a_stable_text(text):
    """What is printed once reads back to an expression that prints the same."""
    ctx = ShapeContext()
    try:
        expr = parse_expression(text, ctx.symbol)
    except InputError:
        return  # a division by zero, for instance
    stable = stable_text(expr, ctx.symbol)
    assert str(parse_expression(stable, ctx.symbol)) == stable
    assert type_of(expr) in (int, float)


@given(st.text(alphabet="u0s7[](),+-*/ .<>=&|~^fbzSymMax:cuda_'\"\\", max_size=60))
@settings(max_examples=examples(400), deadline=None)
def test_any_text_is_read_or_refused(text):
    for form in (text, f"Sym({text})", f"f32[{text}][1]cpu"):
        with contextlib.suppress(InputError):
            parse_val(form, ShapeContext())
