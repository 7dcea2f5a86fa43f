"""Pairs of small graphs that a verifier must tell apart, or must not: each a function that makes BEFORE and AFTER.

::

    PAIRS["body_writes_only"]     # ('different', function)
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from tests.verify_graphs import WORLD, Graph, aten, c10d

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.graph.program import Program

cond, invoke = torch.ops.higher_order.cond, torch.ops.higher_order.invoke_subgraph
PAIRS: dict[str, tuple[str, Callable[[], tuple[Program, Program]]]] = {}


def case(status: str) -> Any:
    """Registers a pair under its function's name, with the verdict that it must get."""

    def register(function: Any) -> Any:
        PAIRS[function.__name__] = (status, function)
        return function

    return register


def body_const(value, write=None, name="c"):
    g = Graph()
    x = g.input("x", 4)
    setattr(g.root, name, value)
    c = g.attribute(name, value)
    if write is not None:
        g(aten.copy_.default, c, g(aten.mul.Tensor, x, write))
    y = g(aten.add.Tensor, x, c)
    g.graph.output((y,))
    return fx.GraphModule(g.root, g.graph)


def call_cond(*bodies, op=cond, twice=False):
    g = Graph()
    p = g.input("p", dtype=torch.bool)
    x = g.input("x", 4)
    gs = []
    for i, b in enumerate(bodies):
        setattr(g.root, f"b{i}", b)
        gs.append(g.graph.get_attr(f"b{i}"))
    with g.mode:
        val = (torch.empty(4),)
    m = g(cond, p, gs[0], gs[-1], [x], val=val)
    outs = [g(operator.getitem, m, 0)]
    return g.program(*outs)


@case("different")
def const_in_body():
    return call_cond(body_const(torch.ones(4)), body_const(torch.ones(4))), call_cond(
        body_const(torch.ones(4)), body_const(torch.zeros(4))
    )


@case("different")
def swapped_branches_with_constants():
    a, b = body_const(torch.ones(4)), body_const(torch.zeros(4))
    return call_cond(a, b), call_cond(body_const(torch.zeros(4)), body_const(torch.ones(4)))


@case("different")
def body_writes_other_into_buffer():
    return call_cond(body_const(torch.zeros(4), 2)), call_cond(body_const(torch.zeros(4), 3))


@case("different")
def body_writes_only():  # write after read: result same, buffer differs
    def b(k):
        g = Graph()
        x = g.input("x", 4)
        g.root.c = torch.zeros(4)
        c = g.attribute("c", g.root.c)
        y = g(aten.add.Tensor, x, c)
        g(aten.copy_.default, c, g(aten.mul.Tensor, x, k))
        g.graph.output((y,))
        return fx.GraphModule(g.root, g.graph)

    return call_cond(b(2)), call_cond(b(3))


@case("proved")
def const_in_body_same():
    return call_cond(body_const(torch.ones(4))), call_cond(body_const(torch.ones(4)))


@case("different")
def invoke_other_body():
    def mk(which):
        g = Graph()
        x = g.input("x", 4)

        def b(k):
            h = Graph()
            y = h.input("x", 4)
            h.graph.output((h(aten.mul.Tensor, y, k),))
            return fx.GraphModule(h.root, h.graph)

        g.root.b0 = b(2)
        g.root.b1 = b(3)
        a = g.graph.get_attr(f"b{which}")
        with g.mode:
            val = (torch.empty(4),)
        m = g(invoke, a, "id", x, val=val)
        return g.program(g(operator.getitem, m, 0))

    return mk(0), mk(1)


@case("different")
def invoke_nested_constant():
    def mk(v):
        g = Graph()
        x = g.input("x", 4)
        g.root.b = body_const(v)
        a = g.graph.get_attr("b")
        with g.mode:
            val = (torch.empty(4),)
        m = g(invoke, a, "id", x, val=val)
        return g.program(g(operator.getitem, m, 0))

    return mk(torch.ones(4)), mk(torch.full((4,), 2.0))


@case("different")
def outer_const_same_name_as_body():
    def mk(v):
        g = Graph()
        x = g.input("x", 4)
        g.root.b = body_const(v)
        g.root.c = torch.ones(4)
        c = g.attribute("c", g.root.c)
        a = g.graph.get_attr("b")
        with g.mode:
            val = (torch.empty(4),)
        m = g(invoke, a, "id", x, val=val)
        return g.program(g(operator.getitem, m, 0), g(aten.mul.Tensor, c, c))

    return mk(torch.ones(4)), mk(torch.full((4,), 2.0))


def const_prog(t, use=aten.add.Tensor):
    g = Graph()
    x = g.input("x", *t.shape)
    g.root.c = t
    c = g.attribute("c", t)
    return g.program(g(use, x, c))


@case("different")
def neg_zero():
    return const_prog(torch.tensor(0.0)), const_prog(torch.tensor(-0.0))


@case("different")
def neg_zero_1():
    return const_prog(torch.tensor([0.0])), const_prog(torch.tensor([-0.0]))


@case("proved")
def nan_same():
    return const_prog(torch.tensor([math.nan, 1.0])), const_prog(torch.tensor([math.nan, 1.0]))


@case("proved")
def nan_same0():
    return const_prog(torch.tensor(math.nan)), const_prog(torch.tensor(math.nan))


@case("proved")
def noncontig():
    return const_prog(torch.arange(6.0).reshape(2, 3).t()), const_prog(torch.arange(6.0).reshape(2, 3).t())


@case("different")
def noncontig_diff():
    return const_prog(torch.arange(6.0).reshape(2, 3).t()), const_prog((torch.arange(6.0) + 1).reshape(2, 3).t())


@case("different")
def const_strides_differ():
    # as_strided sees strides
    def mk(t):
        g = Graph()
        g.root.c = t
        node = g.graph.get_attr("c")
        with g.mode:
            node.meta["val"] = torch.empty_strided(t.shape, t.stride())
        return g.program(g(aten.as_strided.default, node, [3], [1]))

    t = torch.arange(6.0).reshape(2, 3)
    return mk(t), mk(t.t().contiguous().t())


@case("different")
def empty_vs():
    return const_prog(torch.zeros(4)), const_prog(torch.zeros(4) + 1)


@case("different")
def const_fp64():
    return const_prog(torch.tensor([1.0], dtype=torch.float64)), const_prog(
        torch.tensor([1.0000001], dtype=torch.float64)
    )


@case("different")
def two_flights_swapped_waits():
    def mk(early):
        g = Graph()
        buf = g.input("buf", 8, 2)
        x = g.input("x", 1, 2)
        y = g.input("y", 1, 2)
        a = g(aten.slice.Tensor, buf, 0, 0, 4)
        b = g(aten.slice.Tensor, buf, 0, 4, 8)
        l1 = g(c10d.all_gather_into_tensor_out.default, x, WORLD, "0", out=a)
        l2 = g(c10d.all_gather_into_tensor_out.default, y, WORLD, "0", out=b)
        if early == "":
            w1 = g.wait(l1)
            w2 = g.wait(l2)
            s = g(aten.sin.default, w1)
        elif early == "read":
            w2 = g.wait(l2)
            s = g(aten.sin.default, a)
            w1 = g.wait(l1)
        elif early == "one":
            w2 = g.wait(l2)
            w1 = g.wait(l2)
            s = g(aten.sin.default, w1)
        return g.program(s, g(aten.cos.default, w2))

    return mk(""), mk("read")


@case("different")
def two_flights_one_wait():
    def mk(early):
        g = Graph()
        buf = g.input("buf", 8, 2)
        x = g.input("x", 1, 2)
        y = g.input("y", 1, 2)
        a = g(aten.slice.Tensor, buf, 0, 0, 4)
        b = g(aten.slice.Tensor, buf, 0, 4, 8)
        l1 = g(c10d.all_gather_into_tensor_out.default, x, WORLD, "0", out=a)
        l2 = g(c10d.all_gather_into_tensor_out.default, y, WORLD, "0", out=b)
        g.wait(l1)
        if not early:
            g.wait(l2)
        return g.program(g(aten.sin.default, buf))

    return mk(False), mk(True)


@case("different")
def two_flights_first_wait_missing():
    def mk(early):
        g = Graph()
        buf = g.input("buf", 8, 2)
        x = g.input("x", 1, 2)
        y = g.input("y", 1, 2)
        a = g(aten.slice.Tensor, buf, 0, 0, 4)
        b = g(aten.slice.Tensor, buf, 0, 4, 8)
        l1 = g(c10d.all_gather_into_tensor_out.default, x, WORLD, "0", out=a)
        l2 = g(c10d.all_gather_into_tensor_out.default, y, WORLD, "0", out=b)
        if not early:
            g.wait(l1)
        g.wait(l2)
        return g.program(g(aten.sin.default, buf))

    return mk(False), mk(True)


@case("different")
def events_excused():
    # BEFORE reads x early in one place, AFTER in another place (same launch, same op)
    def mk(which):
        g = Graph()
        x = g.input("x", 4, 2)
        g.input("q", 4, 2)
        launch = g(c10d.all_reduce.default, x, "sum", "0")
        if which == 0:
            e = g(aten.sin.default, launch)
            w = g.wait(launch)
            f = g(aten.sin.default, w)
            return g.program(g(aten.mul.Tensor, e, 2), f)
        e = g(aten.sin.default, launch)
        f = g(aten.sin.default, launch)
        w = g.wait(launch)
        return g.program(g(aten.mul.Tensor, e, 2), f)

    return mk(0), mk(1)


@case("different")
def events_excused2():
    def mk(which):
        g = Graph()
        x = g.input("x", 4, 2)
        q = g.input("q", 4, 2)
        launch = g(c10d.all_reduce.default, x, "sum", "0")
        if which == 0:
            e = g(aten.add.Tensor, launch, q)
            w = g.wait(launch)
            f = g(aten.add.Tensor, w, 1)
        else:
            f = g(aten.add.Tensor, launch, 1)
            w = g.wait(launch)
            e = g(aten.add.Tensor, w, q)
        return g.program(e, f)

    return mk(0), mk(1)


@case("different")
def stale_val_after_clone():
    def mk(clone):
        g = Graph()
        x = g.input("x", 4, 6)
        t = g(aten.permute.default, x, [1, 0])
        with g.mode:
            val = torch.empty_strided((6, 4), (1, 6))
        if clone:
            t = g(aten.clone.default, t, memory_format=torch.contiguous_format)
        s = g(aten.sin.default, t, val=val)
        return g.program(g(aten.as_strided.default, s, [3], [1]))

    return mk(False), mk(True)


@case("different")
def stale_out_strides():
    def mk(clone):
        g = Graph()
        x = g.input("x", 4, 6)
        t = g(aten.permute.default, x, [1, 0])
        with g.mode:
            val = torch.empty_strided((6, 4), (1, 6))
        if clone:
            t = g(aten.clone.default, t, memory_format=torch.contiguous_format)
        s = g(aten.sin.default, t, val=val)
        return g.program(s)

    return mk(False), mk(True)


@case("different")
def stale_val_view():
    def mk(clone):
        g = Graph()
        x = g.input("x", 4, 6)
        with g.mode:
            val = torch.empty((4, 6))
        if clone:
            t = g(aten.clone.default, g(aten.permute.default, x, [1, 0]), memory_format=torch.contiguous_format)
            x = g(aten.permute.default, t, [1, 0])
        s = g(aten.sin.default, x, val=val)
        v = g(aten.view.default, s, [24])
        return g.program(v)

    return mk(False), mk(True)


@case("unproved")
def far_slice_symbolic():

    def mk(end):
        g = Graph()

        n = g.mode.shape_env.create_unbacked_symint()
        x = g.value("x", None)
        with g.mode:
            x.meta["val"] = torch.empty(n, 2)
        val = x.meta["val"]
        s = g.graph.call_function(aten.slice.Tensor, (x, 0, 0, end))
        s.meta["val"] = val
        return g.program(s)

    return mk(2**63 - 1), mk(2**31)


def u(g, name="n"):
    n = g.mode.shape_env.create_unbacked_symint()
    return g.value(name, n)


@case("unproved")
def div_by_zero_symbol():
    def mk(k):
        g = Graph()
        a = u(g, "a")
        b = u(g, "b")
        ab = g.graph.call_function(operator.mul, (a, b))
        ab.meta["val"] = a.meta["val"] * b.meta["val"]
        q = g.graph.call_function(operator.floordiv, (ab, b))
        q.meta["val"] = a.meta["val"]
        return g.program(q if k else a)

    return mk(0), mk(1)


@case("different")
def cast_bool_e8m0():
    def mk(k):
        g = Graph()
        x = g.input("x", 4, dtype=torch.bool)
        y = x
        if k:
            y = g(aten._to_copy.default, x, dtype=torch.float8_e8m0fnu)
        return g.program(g(aten._to_copy.default, y, dtype=torch.float32))

    return mk(0), mk(1)


@case("different")
def reduced_before_widening():
    """A copy without a dtype keeps the dtype: what it gives is reduced in float32, not in bfloat16."""

    def mk(k):
        g = Graph()
        x = g.input("x", 8, dtype=torch.bfloat16)
        x = g.reduce(x) if k else x
        y = g(aten._to_copy.default, g(aten._to_copy.default, x, dtype=torch.float32))
        return g.program(y if k else g.reduce(y))

    return mk(0), mk(1)


@case("proved")
def alpha_float():
    def mk(k):
        g = Graph()
        x = g.input("x", 4)
        y = g.input("y", 4)
        return g.program(g(aten.add.Tensor, x, y, alpha=1.0) if k else g(aten.add.Tensor, x, y))

    return mk(0), mk(1)


@case("different")
def alpha_float_on_integers():  # PyTorch refuses it
    def mk(k):
        g = Graph()
        x = g.input("x", 4, dtype=torch.int64)
        y = g.input("y", 4, dtype=torch.int64)
        same = g(aten.add.Tensor, x, y)
        return g.program(g(aten.add.Tensor, x, y, alpha=1.0, val=same.meta["val"]) if k else same)

    return mk(0), mk(1)


@case("proved")
def joined_dtypes_without_a_common_one():
    def mk(k):
        g = Graph()
        x = g.input("x", 4)
        small = g(aten._to_copy.default, x, dtype=torch.float8_e5m2)
        return g.program(g(aten.cat.default, [small, x], val=g(aten.cat.default, [x, x]).meta["val"]), *[x] * k)

    return mk(1), mk(1)


@case("different")  # PyTorch refuses it
def SUM_upper():
    def mk(k):
        g = Graph()
        x = g.input("x", 4)
        return g.program(g.reduce(x, "SUM" if k else "sum"))

    return mk(0), mk(1)


@case("proved")
def doubled_wait():
    def mk(k):
        g = Graph()
        x = g.input("x", 4)
        w = g.reduce(x)
        if k:
            w = g.wait(w)
        return g.program(g(aten.sin.default, w))

    return mk(0), mk(1)


@case("proved")
def dead_alias_before_inplace():
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4))
        if not k:
            g(aten.alias.default, x)
        launch = g(c10d.all_reduce_.default, x, "sum", "0")
        w = g.wait(launch)
        return g.program(g(aten.sin.default, w))

    return mk(0), mk(1)


@case("proved")
def dead_view_before_inplace2():
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4))
        if not k:
            a = g(aten.view.default, x, [2, 2])
            g(aten.cos.default, a)
        launch = g(c10d.all_reduce_.default, x, "sum", "0")
        w = g.wait(launch)
        return g.program(g(aten.sin.default, w))

    return mk(0), mk(1)


@case("proved")
def group_of_one():
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4, 2))
        y = g(aten.cos.default, g.input("y", 4, 2))
        if k:
            a, b = g.merged_gather([x, y], size=1)
        else:
            a, b = g.gather(x, size=1), g.gather(y, size=1)
        return g.program(a, b)

    return mk(0), mk(1)


@case("proved")
def rs_group_one():
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4, 2))
        y = g(aten.cos.default, g.input("y", 4, 2))
        if k:
            a, b = g.merged_scatter([x, y], size=1)
        else:
            a, b = g.scatter(x, size=1), g.scatter(y, size=1)
        return g.program(a, b)

    return mk(0), mk(1)


def syms(k, f):
    g = Graph()
    g.input("x", 4)
    n = u(g, "n")

    def op(o, *a):
        node = g.graph.call_function(o, a)
        node.meta["val"] = o(*[q.meta["val"] if isinstance(q, fx.Node) else q for q in a])
        return node

    return g.program(f(op, n))


@case("proved")
def s4mod4():
    return syms(0, lambda op, n: op(operator.mod, op(operator.add, n, 4), 4)), syms(
        1, lambda op, n: op(operator.mod, n, 4)
    )


@case("proved")
def s4mod4_sub():
    return syms(0, lambda op, n: op(operator.sub, 4, op(operator.mod, op(operator.add, n, 4), 4))), syms(
        1, lambda op, n: op(operator.sub, 4, op(operator.mod, n, 4))
    )


@case("unproved")
def s4mod_undecided():
    return syms(0, lambda op, n: op(operator.mod, op(operator.mul, n, n), 2)), syms(
        1, lambda op, n: op(operator.mod, n, 2)
    )


@case("proved")
def dead_op_moved_across_write():
    def mk(k):
        g = Graph()
        x = g.input("x", 4)
        if not k:
            g(aten.cos.default, x)
        g(aten.add_.Tensor, x, 1)
        if k:
            g(aten.cos.default, x)
        return g.program(g(aten.sin.default, x))

    return mk(0), mk(1)


@case("proved")
def rs_padding():
    # uneven param: grad (6,3) padded to 8 rows by zeros then rs over 4
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 6, 3))
        y = g(aten.cos.default, g.input("y", 8, 3))
        z = g(aten.zeros.default, [2, 3]) if False else g(aten.full.default, [2, 3], 0.0)
        c = g(aten.cat.default, [x, z])
        if k:
            a, b = g.merged_scatter([c, y], copy=False)
        else:
            a, b = g.scatter(c), g.scatter(y)
        return g.program(a, b)

    return mk(0), mk(1)


@case("proved")
def rs_fewer_pieces():
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 4, 3))
        z = g(aten.cos.default, g.input("z", 4, 3))
        y = g(aten.cos.default, g.input("y", 8, 3))
        c = g(aten.cat.default, [x, z])
        if k:
            a, b = g.merged_scatter([c, y], copy=False)
        else:
            a, b = g.scatter(c), g.scatter(y)
        return g.program(a, b)

    return mk(0), mk(1)


@case("proved")
def rs_fewer_pieces_dim1():
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 8, 3))
        z = g(aten.cos.default, g.input("z", 8, 1))
        y = g(aten.cos.default, g.input("y", 8, 3))
        c = g(aten.cat.default, [x, z], 1)
        if k:
            a, b = g.merged_scatter([c, y], copy=False)
        else:
            a, b = g.scatter(c), g.scatter(y)
        return g.program(a, b)

    return mk(0), mk(1)


@case("proved")
def rs_chunks_transposed():
    # cat of chunks along dim 1: the usual shard on dim 1
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 6, 8))
        y = g(aten.cos.default, g.input("y", 8, 3))
        sp = g(aten.split.Tensor, x, 2, 1)
        c = g(aten.cat.default, [g(operator.getitem, sp, i) for i in range(4)])
        if k:
            a, b = g.merged_scatter([c, y], copy=False)
        else:
            a, b = g.scatter(c), g.scatter(y)
        return g.program(a, b)

    return mk(0), mk(1)


@case("proved")
def rs_chunks_dim1_padded():
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 6, 6))
        y = g(aten.cos.default, g.input("y", 8, 3))
        p = g(aten.constant_pad_nd.default, x, [0, 2])
        sp = g(aten.split.Tensor, p, 2, 1)
        c = g(aten.cat.default, [g(operator.getitem, sp, i) for i in range(4)])
        if k:
            a, b = g.merged_scatter([c, y], copy=False)
        else:
            a, b = g.scatter(c), g.scatter(y)
        return g.program(a, b)

    return mk(0), mk(1)


@case("proved")
def rs_uneven_chunks():
    # 3 pieces in 4 rows
    def mk(k):
        g = Graph()
        xs = [g(aten.sin.default, g.input(f"x{i}", n, 3)) for i, n in enumerate((3, 3, 2))]
        y = g(aten.cos.default, g.input("y", 8, 3))
        c = g(aten.cat.default, xs)
        if k:
            a, b = g.merged_scatter([c, y], copy=False)
        else:
            a, b = g.scatter(c), g.scatter(y)
        return g.program(a, b)

    return mk(0), mk(1)


@case("proved")
def rs_permuted():
    def mk(k):
        g = Graph()
        x = g(aten.sin.default, g.input("x", 6, 8))
        y = g(aten.cos.default, g.input("y", 8, 3))
        c = g(aten.clone.default, g(aten.permute.default, x, [1, 0]), memory_format=torch.contiguous_format)
        if k:
            a, b = g.merged_scatter([c, y], copy=False)
        else:
            a, b = g.scatter(c), g.scatter(y)
        return g.program(a, b)

    return mk(0), mk(1)
