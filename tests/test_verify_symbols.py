"""The verifier on symbolic sizes: decided where structure decides, else said to be undecided."""

from __future__ import annotations

import operator

import torch

from commcc.serialization import load, save
from commcc.verify import verify
from tests.verify_graphs import WORLD, Graph, aten, c10d, differs, proved, texts


def backed(g, hint=5):
    """A size with a symbol of its own, as a placeholder has it."""
    from torch._dynamo.source import ConstantSource

    env = g.mode.shape_env
    known = getattr(env, "backed_var_to_val", None)
    name = f"s{len(env.var_to_val if known is None else known)}"
    return env.create_symintnode(env.create_symbol(hint, ConstantSource(name)), hint=hint)


def symbolic_gathers(merged, group="0"):
    """Two gathers whose shards have a symbolic number of rows."""
    g = Graph()
    n, m = backed(g, 5), backed(g, 7)
    a, b = g.input("a", n, 3), g.input("b", m, 3)
    if not merged:
        full = [g.gather(a, group), g.gather(b, group)]
    else:
        na, nb = (g(aten.sym_size.int, x, 0) for x in (a, b))
        la, lb = (g(operator.mul, size, 3) for size in (na, nb))
        flat = g(aten.cat.default, [g.flat(a), g.flat(b)])
        rows = g(aten.view.default, g.gather(flat, group), [WORLD, g(operator.add, la, lb)])
        parts = g.parts(rows, [la, lb], 1)
        tall = [g(operator.mul, size, WORLD) for size in (na, nb)]
        full = [g(aten.reshape.default, p, [rows, 3]) for p, rows in zip(parts, tall, strict=True)]
    return g.program(*[g(aten.mul.Tensor, w, i + 2) for i, w in enumerate(full)])


def test_a_merge_with_symbolic_sizes():
    proved(symbolic_gathers(False), symbolic_gathers(False))
    verdict = verify(symbolic_gathers(False), symbolic_gathers(True))
    assert verdict.status == "proved", texts(verdict)
    differs(symbolic_gathers(False), symbolic_gathers(True, "1"), "collective")


def unbacked(how):
    """Tokens exchanged by sizes that are read from the device."""
    g = Graph()
    counts = g.input("counts", 2, dtype=torch.int64)
    x = g.input("x", 16, 4)
    sizes = []
    for i in (1, 0) if how == "reordered items" else (0, 1):
        item = g(aten._local_scalar_dense.default, g(aten.select.int, counts, 0, i), name=f"item_{i}")
        g(
            aten._check_is_size.default
            if hasattr(aten, "_check_is_size")
            else aten.sym_constrain_range_for_size.default,
            item,
            val=(),
        )
        torch._check(item.meta["val"] >= 0)
        sizes.append(item)
    if how == "reordered items":
        sizes.reverse()
    if how == "swapped sizes":
        sizes.reverse()
    sent = g(c10d.all_to_all_single.default, x, sizes, [8, 8], "0")
    got = g.wait(sent)
    total = g(operator.add, *sizes)
    if how == "other sum":
        total = g(operator.add, total, 0)
    return g.program(g(aten.mul.Tensor, g(aten.view.default, got, [total, 4]), 2), total)


def test_unbacked_sizes():
    proved(unbacked(""), unbacked(""))
    proved(unbacked(""), unbacked("other sum"))
    differs(unbacked(""), unbacked("swapped sizes"), "value")
    proved(unbacked(""), unbacked("reordered items"))


def test_symbols_go_by_what_defines_them_not_by_name():
    def make(extra):
        g = Graph()
        for _ in range(extra):
            g.mode.shape_env.create_unbacked_symint()
        c = g.input("c", 1, dtype=torch.int64)
        item = g(aten._local_scalar_dense.default, c)
        torch._check(item.meta["val"] >= 0)
        return g.program(g(aten.ones.default, [item], device="cpu"), item)

    first, second = make(0), make(3)
    names = [str(p.graph.output_node().args[0][1].meta["val"]) for p in (first, second)]
    assert names[0] != names[1]
    proved(first, second)


def test_arithmetic_is_compared_by_value():
    def make(how):
        g = Graph()
        x = g.input("x", backed(g), 4)
        n = g(aten.sym_size.int, x, 0)
        if how == "left":
            size = g(operator.mul, g(operator.add, n, 2), 4)
        elif how == "right":
            size = g(operator.add, g(operator.mul, 4, n), 8)
        else:
            size = g(operator.add, g(operator.mul, 4, n), 7)
        return g.program(g(aten.ones.default, [size], device="cpu"), size)

    proved(make("left"), make("right"))
    differs(make("left"), make("wrong"), "value")


def test_a_slice_of_unknown_extent_is_not_guessed():
    """The first 3 rows of a tensor with n rows: nobody knows whether n is at least 3."""

    def make(how):
        g = Graph()
        x = g.input("x", backed(g), 4)
        y = g(aten.sin.default, x)
        if how == "whole":
            return g.program(g(aten.cos.default, y))
        return g.program(g(aten.cos.default, g(aten.slice.Tensor, y, 0, 0, 1000)))

    proved(make("part"), make("part"))
    assert verify(make("whole"), make("part")).status in ("unproved", "different")


def test_what_is_not_decided_is_a_gap():
    def make(how):
        g = Graph()
        n = backed(g, 6)
        a, b = g.input("a", n, 2), g.input("b", n, 2)
        both = g(aten.cat.default, [g.flat(a), g.flat(b)])
        half = g(operator.mul, g(aten.sym_size.int, a, 0), 2)
        if how == "join":
            part = g.flat(a)
        else:
            # Holds the same elements, but only if a product that is not a size says so.
            odd = g(operator.floordiv, g(operator.mul, half, 3), 3)
            part = g(aten.slice.Tensor, both, 0, 0, g(operator.sub, odd, 0))
        return g.program(g(aten.sin.default, part))

    verdict = verify(make("join"), make("slice"))
    assert verdict.status == "unproved", texts(verdict)
    assert "not decided" in texts(verdict)


def test_an_operand_that_was_not_decided_is_a_gap():
    def make(which):
        g = Graph()
        y = g(aten.sin.default, g.input("x", backed(g), 4))
        part = g(aten.slice.Tensor, y, 0, 0, 1000)
        return g.program(g(aten.mul.Tensor, part, 3), g(aten.mul.Tensor, {"y": y, "part": part}[which], 2, name="use"))

    verdict = verify(make("y"), make("part"))
    assert verdict.status == "unproved", texts(verdict)
    assert verdict.unproved[0].node == "use"


def test_inputs_that_are_sizes():
    def make(value):
        g = Graph()
        val = backed(g, 9) if value is None else value
        n = g.value("n", val)
        return g.program(g(aten.ones.default, [n], device="cpu"))

    proved(make(None), make(None))
    differs(make(None), make(9), "input")


def test_a_symbol_written_in_place_of_its_node(tmp_path):
    """As some dumps have it; reading the file makes another symbol object of it."""

    def make(which):
        g = Graph()
        counts, buffer = g.input("counts", 2, dtype=torch.int64), g.input("buffer", 8)
        items = [
            g(aten._local_scalar_dense.default, g(aten.select.int, counts, 0, i), name=f"item_{i}") for i in (0, 1)
        ]
        g(aten.add_.Tensor, buffer, items[which].meta["val"], val=buffer.meta["val"])
        return g.program(*items)

    save(make(0), tmp_path / "graph.fx.txt")
    again = load(tmp_path / "graph.fx.txt")
    proved(make(0), again)
    assert verify(make(1), again).status == "different"


def test_checks_of_sizes_and_reads_that_are_gone_are_remarks():
    """A dead .item() and an assertion about its number, which later passes remove; each is named."""

    def make(*kept):
        g = Graph()
        counts = g.input("counts", 2, dtype=torch.int64)
        item = g(aten._local_scalar_dense.default, g(aten.select.int, counts, 0, 0), name="item")
        if "dead" in kept:
            g(aten._local_scalar_dense.default, g(aten.select.int, counts, 0, 1), name="dead")
        if "check" in kept:
            check = g.graph.call_function(operator.ge, (item, 0))
            g.graph.create_node("call_function", aten._assert_scalar.default, (check, "positive"), {}, "check")
        return g.program(g(aten.new_zeros.default, counts, [item]))

    verdict = verify(make("dead", "check"), make())
    assert verdict.status == "proved"
    assert [(note.node, note.text) for note in verdict.notes] == [
        ("dead", "is not read by the host in AFTER"),
        ("check", "is not checked in AFTER"),
    ]
    assert verify(make(), make("check")).status == "different"
