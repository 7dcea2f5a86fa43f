"""Keys, sizes, strides and symbols of the verifier, one by one."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch
from torch import fx

from commcc.graph.ops import OpaqueOp
from commcc.verify import verify
from commcc.verify.arguments import bind
from commcc.verify.reshaping import view_strides
from commcc.verify.sizes import (
    Meta,
    Symbols,
    Undecidable,
    apply_function,
    from_expression,
    is_contiguous,
    mismatch,
    variable,
)
from commcc.verify.terms import Opaque, Tensor, Terms, key_of, path_of
from commcc.verify.verdict import LIMIT, Report
from tests.verify_graphs import Graph, aten, differs, proved, texts


def distinct_arguments():
    meta = Meta((4,), (1,), torch.float32, "cpu")
    return [
        *(None, True, False, 1, 0, 1.0, 0.0, -0.0, float("nan"), 1j, "1", "", ..., variable(1), variable(2)),
        *(torch.float32, torch.float16, torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)),
        *(torch.strided, torch.sparse_coo, torch.contiguous_format, torch.channels_last),
        *((), (1,), (1, 2), (2, 1), ((1,), 2), {"a": 1}, {"a": 2}, {"b": 1}, slice(1), slice(1, 2), slice(None, 1, 1)),
        *(aten.mm.default, aten.sum.default, aten.sum.dim_IntList, OpaqueOp("a.b.c"), Opaque(1), Opaque(2)),
        *(Tensor(1, meta, 0), Tensor(2, meta, 0), Tensor(1, meta._replace(shape=(2, 2)), 0)),
        Tensor(1, meta._replace(dtype=torch.int32), 0),
    ]


def test_different_arguments_have_different_keys():
    table = Terms()
    keys = [key_of(table, value) for value in distinct_arguments()]
    for (i, a), (j, b) in itertools.combinations(enumerate(keys), 2):
        assert a != b or hash(a) != hash(b), (i, j, a, b)
    assert keys == [key_of(table, value) for value in distinct_arguments()]
    assert len({table.intern(("op", key)) for key in keys}) == len(keys)
    assert not table.undecided


def test_lists_and_tuples_are_the_same_and_foreign_objects_only_themselves():
    table = Terms()
    assert key_of(table, [1, (2,)]) == key_of(table, (1, [2]))
    first, second = object(), object()
    assert key_of(table, first) == key_of(table, first) != key_of(table, second)
    assert len(table.undecided) == 2


def test_bound_arguments():
    graph = fx.Graph()
    x = graph.placeholder("x")
    sums = [
        graph.call_function(aten.sum.dim_IntList, (x, [0])),
        graph.call_function(aten.sum.dim_IntList, (x,), {"dim": [0], "keepdim": False}),
        graph.call_function(aten.sum.dim_IntList, (), {"dtype": None, "self": x, "dim": [0]}),
    ]
    assert bind(sums[0]) == bind(sums[1]) == bind(sums[2])
    assert list(bind(sums[0])) == ["self", "dim", "keepdim", "dtype"]
    drop = graph.call_function(aten.native_dropout.default, (x, 1, True))
    assert repr(bind(drop)["p"]) == "1.0"
    odd = graph.call_function(aten.sin.default, (x, x), {"b": 1, "a": 2})
    assert list(bind(odd)) == ["0", "1", "a", "b"]
    assert path_of(aten.sum.dim_IntList) == "aten.sum.dim_IntList"
    assert path_of(OpaqueOp("a.b.c")) == "a.b.c"
    assert path_of(operator.getitem) == "operator.getitem"


def test_the_first_shape_of_a_source_stands():
    table = Terms()
    x = table.source(("input", "x"), 4, torch.float32)
    assert table.source(("input", "x"), 9, torch.int8) == x
    assert table.numel(x) == 4
    assert table.dtype[x] == torch.float32
    with pytest.raises(Undecidable):
        table.numel(table.source(("input", "y"), None, None))


# Sizes


@pytest.mark.parametrize(
    ("name", "operands", "value"),
    [
        ("mod", (7, 2), 1),
        ("floordiv", (-7, 2), -4),
        ("neg", (3,), -3),
        ("sub", (3, 5), -2),
        ("max", (4,), 4),
        ("min", (4, 2), 2),
    ],
)
def test_functions_of_numbers(name, operands, value):
    assert apply_function(name, operands, Terms().function) == value


def test_division_by_zero_is_a_term():
    table = Terms()
    assert apply_function("floordiv", (1, 0), table.function) == variable(table.function("floordiv", (1, 0)))
    assert apply_function("max", (variable(3),), table.function) == variable(3)


def test_expressions():
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod

    table = Terms()
    a, b = sympy.Symbol("a", integer=True), sympy.Symbol("b", integer=True)
    sizes = {"a": variable(1), "b": variable(2)}

    def size(expression):
        return from_expression(expression, sizes.__getitem__, table.function)

    assert size(8 * (a + 2) - a * b) == 8 * variable(1) + 16 - variable(1) * variable(2)
    assert size(a**3) == variable(1) * variable(1) * variable(1)
    assert size(FloorDiv(a, 2)) == size(FloorDiv(a, 2)) != size(FloorDiv(b, 2))
    assert size(Mod(a, 2)) != size(FloorDiv(a, 2))
    assert size(sympy.Max(a, b)) == size(sympy.Max(b, a))
    deep = a
    for _ in range(100):
        deep = FloorDiv(deep + 1, 2, evaluate=False)
    for bad in (a**100, a**b, sympy.Rational(1, 2), deep, None, sympy.Float(0.5)):
        with pytest.raises(Undecidable):
            size(bad)


def test_too_many_terms_are_undecidable():
    size = sum((variable(i) for i in range(1, 40)), start=0)
    with pytest.raises(Undecidable):
        for _ in range(6):
            size = size * size


# Strides and vals


def test_strides_of_symbolic_shapes():
    n = variable(1)
    assert view_strides((n, 4), (4, 1), (4 * n,)) == (1,)
    assert is_contiguous((n, 4), (4, 1))
    assert not is_contiguous((n, 4), (8, 1))
    assert view_strides((n, 4), (8, 1), (n, 2, 2)) == (8, 2, 1)
    with pytest.raises(Undecidable):
        view_strides((n, 4), (8, 1), (4 * n,))


def test_vals_that_disagree():
    n = variable(1)
    meta = Meta((n, 4), (4, 1), torch.float32, "cpu")
    assert mismatch(meta, meta._replace(shape=(variable(2), 4))) == ""
    assert mismatch(meta, meta._replace(shape=None, strides=None, dtype=None, device=None)) == ""
    assert "shape" in mismatch(meta, meta._replace(shape=(n + 1, 4)))
    assert "shape" in mismatch(meta, meta._replace(shape=(3, 4)))
    assert "shape" in mismatch(meta, meta._replace(shape=(n, 4, 1)))
    assert "strides" in mismatch(meta, meta._replace(strides=(8, 1)))
    assert "int8" in mismatch(meta, meta._replace(dtype=torch.int8))
    assert "cuda" in mismatch(meta, meta._replace(device="cuda:0"))
    one = Meta((1, 4), (4, 1), torch.float32, "cpu")
    assert mismatch(one, one._replace(strides=(99, 1))) == ""
    none = Meta((0, 4), (4, 1), torch.float32, "cpu")
    assert mismatch(none, none._replace(strides=(1, 7))) == ""


def test_symbols_stand_for_what_defines_them():
    g = Graph()
    first, second = (g.mode.shape_env.create_unbacked_symint() for _ in range(2))
    table = Terms()
    symbols = Symbols(table, {})
    symbols.define(first, variable(7))
    symbols.define(first, variable(8))
    symbols.define(3, variable(9))
    assert symbols.size(first * 2) == variable(7) * 2
    assert symbols.size(second) == variable(table.intern(("symbol", str(second))))
    assert symbols.size(5) == 5


def test_sizes_of_computed_tensors_are_sizes_of_their_parts():
    def make(how):
        g = Graph()
        item = g(aten._local_scalar_dense.default, g.input("c", 1, dtype=torch.int64))
        torch._check(item.meta["val"] >= 0)
        x = g(aten.ones.default, [item, 2], device="cpu")
        both = g(aten.cat.default, [x, x])
        size = g(aten.sym_size.int, both, 0) if how == "asked" else g(operator.mul, item, 2)
        return g.program(both, size)

    proved(make("asked"), make("computed"))


# Constants and deep sub-graphs


def test_swapped_constants():
    def make(first, second):
        g = Graph()
        x = g.input("x", 2)
        values = {"a": torch.zeros(2), "b": torch.ones(2)}
        made = {name: g.attribute(name, values[name]) for name in "ab"}
        return g.program(g(aten.sub.Tensor, g(aten.mul.Tensor, x, made[first]), made[second]))

    proved(make("a", "b"), make("a", "b"))
    differs(make("a", "b"), make("b", "a"), "value", "'a'", "'b'")


def nested(depth):
    g = Graph()
    x = g.input("x", 2)
    if depth:
        g.root.sub = nested(depth - 1)
        with g.mode:
            val = (torch.empty(2),)
        sub = g.graph.get_attr("sub")
        g.graph.output((g(torch.ops.higher_order.invoke_subgraph, sub, "name", x, val=val),))
    else:
        g.graph.output((g(aten.sin.default, x),))
    return fx.GraphModule(g.root, g.graph)


def test_subgraphs_that_are_too_deep_are_a_gap():
    from commcc.graph.program import Program

    first, second = (nested(20) for _ in range(2))
    shallow = [nested(3) for _ in range(2)]
    programs = [Program(m.graph, m) for m in (first, second, *shallow)]
    assert verify(programs[0], programs[1]).status == "unproved", texts(verify(programs[0], programs[1]))
    assert verify(programs[0], programs[0]).status == "proved"
    assert verify(programs[2], programs[3]).status == "proved"


# Verdicts


def test_a_report_is_sorted_bounded_and_without_repetition():
    report = Report()
    for i in range(LIMIT + 5):
        report.differs("value", f"n{i}", "two\nlines")
        report.differs("value", f"n{i}", "two lines")
    report.differs("order", "late", "comes first")
    report.gap("value", "x", "gap")
    report.note("dropped", "x", "note")
    verdict = report.verdict()
    assert verdict.status == "different"
    assert verdict.findings[0].rule == "order"
    assert len(verdict.findings) == LIMIT
    assert verdict.checked == {"findings": LIMIT + 6, "gaps": 1, "notes": 1}
    assert str(verdict.findings[1]) == "value: n0: two lines"
    assert set(verdict.to_json()) == {"status", "findings", "unproved", "notes", "checked"}
    assert Report().verdict().status == "proved"
