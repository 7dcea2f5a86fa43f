"""The verifier on inputs, outputs, storage, and on graphs that lie about themselves."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from commcc.graph.ops import OpaqueOp
from commcc.graph.program import ProcessGroup
from commcc.serialization.fx import parse_text
from commcc.verify import verify
from tests.verify_graphs import (
    WORLD,
    Graph,
    aten,
    c10d,
    compute,
    differs,
    gathers,
    gradients,
    proved,
    rules,
    texts,
    undecided,
)


def boundary(change=""):
    g = Graph()
    names = {"renamed": ("x", "z"), "reordered": ("y", "x")}.get(change, ("x", "y"))
    made = {n: g.input(n, *((5,) if change == "shape" and n == "y" else (4,))) for n in names}
    if change == "dtype":
        g = Graph()
        made = {"x": g.input("x", 4), "y": g.input("y", 4, dtype=torch.float64)}
    if change == "extra":
        g.input("extra", 4)
    x, y = made["x"], made.get("y", made.get("z"))
    a, b = g(aten.sin.default, x), g(aten.sin.default, y)
    outputs = {
        "": (a, b, None, 3),
        "fewer": (a, b, None),
        "none": (a, None, None, 3),
        "constant": (a, b, None, 4),
        "nested": (a, (b, None), 3),
        "repeated": (a, a, None, 3),
    }
    return g.program(*outputs.get(change, outputs[""]))


@pytest.mark.parametrize(
    ("change", "rule", "word"),
    [
        ("renamed", "input", "z: input 1 is called 'y' in BEFORE"),
        ("reordered", "input", "is input 0"),
        ("shape", "input", "y: its val says shape [5], it is [4]"),
        ("dtype", "input", "float64"),
        ("extra", "input", "3 inputs, BEFORE has 2"),
        ("fewer", "output", "3 outputs, BEFORE has 4"),
        ("none", "output", "output 1 is None, in BEFORE 'sin_default_1'"),
        ("constant", "output", "output 3 is 4, in BEFORE 3"),
        ("nested", "output", "nested differently"),
        ("repeated", "output", "output 1"),
        ("repeated", "alias", "shares storage with output 0"),
    ],
)
def test_changed_boundary(change, rule, word):
    differs(boundary(), boundary(change), rule, word)


def test_a_renamed_input_does_not_hide_that_the_rest_is_the_same():
    assert rules(verify(boundary(), boundary("renamed"))) == {"input"}


def test_nested_outputs_are_the_same_as_themselves():
    proved(boundary("nested"), boundary("nested"))


def test_names_of_outputs_in_dicts():
    def make(name):
        g = Graph()
        x = g.input("x", 4)
        return g.program({"a": g(aten.sin.default, x), name: g(aten.cos.default, x)})

    proved(make("b"), make("b"))
    differs(make("b"), make("c"), "output", "nested differently")


def test_strides_of_outputs_count():
    def make(plain):
        g = Graph()
        y = g(aten.t.default, g.input("x", 3, 4))
        return g.program(g(aten.clone.default, y, memory_format=torch.contiguous_format if plain else None))

    differs(make(False), make(True), "output", "strides")


def test_storage_of_merged_outputs():
    """Parts that do not overlap behave like tensors of their own; a remark says what is shared."""
    apart, shared = gradients(), gradients(lambda g, xs: g.merged_scatter(xs, copy=False))
    for before, after, words in ((apart, shared, "are parts of one storage"), (shared, apart, "are in BEFORE parts")):
        verdict = verify(before, after)
        assert verdict.status == "proved", texts(verdict)
        [remark] = [each for each in verdict.notes if each.rule == "alias"]
        assert words in remark.text
        assert "outputs 0, 1, 2 are" in remark.text


def test_outputs_that_overlap_are_not_outputs_with_storage_of_their_own():
    def make(how):
        g = Graph()
        both = g(aten.mul.Tensor, g.input("x", 8), 2)
        parts = [g(aten.slice.Tensor, both, 0, start, start + 4) for start in (0, 2, 4)]
        if how == "apart":
            parts = [g(aten.clone.default, part) for part in parts]
        return g.program(*parts)

    proved(make("shared"), make("shared"))
    differs(make("apart"), make("shared"), "alias", "output 1 shares storage with output 0")
    differs(make("shared"), make("apart"), "alias", "output 1 has storage of its own")


def test_an_output_that_becomes_a_view_of_an_input():
    def make(how):
        g = Graph()
        x = g.input("x", 4, 3)
        view = g(aten.slice.Tensor, x, 0, 1, 3)
        if how == "copy":
            view = g(aten.clone.default, view)
        return g.program(view)

    proved(make("view"), make("view"))
    differs(make("copy"), make("view"), "alias", "is a view of input 'x'")
    differs(make("view"), make("copy"), "alias", "has storage of its own")


def test_an_output_that_is_another_part_of_an_input():
    def make(start):
        g = Graph()
        x = g(aten.cat.default, [g.input("a", 4)] * 2)
        return g.program(x, g(aten.slice.Tensor, x, 0, start, start + 4))

    def of_input(start):
        g = Graph()
        return g.program(g(aten.slice.Tensor, g.input("a", 8), 0, start, start + 4))

    proved(make(0), make(4))
    assert verify(of_input(0), of_input(4)).status == "different"


def test_process_groups_keep_their_ranks():
    def make(size):
        g = Graph()
        return g.program(g.gather(g.input("x", 4)), groups={"0": ProcessGroup("0", size)})

    proved(make(4), make(4))
    differs(make(4), make(8), "collective", "process group '0' has size 8, in BEFORE 4")


@pytest.mark.parametrize(("shape", "dtype"), [((4, 4), torch.float32), ((16, 3), torch.bfloat16), ((3, 16), None)])
def test_vals_that_do_not_fit(shape, dtype):
    before, after = gathers(), gathers(lambda g, xs: g.merged_gather(xs))
    node = next(n for n in reversed(after.graph.nodes) if n.target is aten.reshape.default)
    with next(iter(after.graph.nodes)).meta["val"].fake_mode:
        node.meta["val"] = torch.empty(shape, dtype=dtype)
    differs(before, after, "value", "its val says")


def test_a_view_that_strides_do_not_allow():
    def make(op):
        g = Graph()
        x = g(aten.t.default, g.input("x", 3, 4))
        with g.mode:
            val = torch.empty(12)
        return g.program(g(aten.sin.default, g(op, x, [12], val=val)))

    differs(make(aten.reshape.default), make(aten.view.default), "value", "strides of its operand do not allow")


def test_ops_that_read_other_strides():
    """A remark for PyTorch's own, whose values do not depend on strides; other ops may read memory as it lies."""

    def make(copy, op=aten.sin.default):
        g = Graph()
        full = g(aten.reshape.default, g.gather(g.input("x", 1, 6)), [WORLD, 6])
        half = g.parts(full, [3, 3], 1)[0]
        if copy:
            half = g(aten.clone.default, half, memory_format=torch.contiguous_format)
        with g.mode:
            val = torch.empty(WORLD, 3)
        return g.program(g(op, half, val=val))

    verdict = verify(make(True), make(False))
    assert verdict.status == "proved"
    assert any("reads tensors with other strides" in note.text for note in verdict.notes)
    own = OpaqueOp("mylib.read_rows.default")
    assert verify(make(True, own), make(True, own)).status == "proved"
    assert verify(make(True, own), make(False, own)).status == "unproved"


def test_graphs_without_vals_are_compared_all_the_same():
    before, after, other = compute(), compute(), compute("constant")
    for program in (before, after, other):
        for node in program.graph.nodes:
            node.meta.clear()
    assert verify(before, after).status == "proved"
    assert verify(before, other).status == "different"


def test_merging_without_vals_is_not_decided():
    before, after = gathers(), gathers(lambda g, xs: g.merged_gather(xs))
    for program in (before, after):
        for node in program.graph.nodes:
            node.meta.clear()
    assert verify(before, after).status != "proved"


def test_a_graph_without_output_and_a_graph_out_of_order():
    before, after = compute(), compute()
    after.graph.erase_node(list(after.graph.nodes)[-1])
    differs(before, after, "order", "returns nothing")
    assert rules(verify(after, before)) == {"order"}
    last = compute()
    nodes = list(last.graph.nodes)
    nodes[0].prepend(nodes[3])
    differs(before, last, "order")


def test_outputs_in_one_storage_that_overlap_only_in_after():
    """Each half is gathered into its own part of a buffer, or one into the other's: equal values, another memory."""

    def make(start):
        g = Graph()
        x, whole = g.input("x", 4), g(aten.empty.memory_format, [16], device="cpu")
        made = []
        for begin in (0, start):
            part = g(aten.slice.Tensor, whole, 0, begin, begin + 8)
            made.append(g.wait(g(c10d.all_gather_into_tensor_out.default, x, 2, "0", out=part)))
        return g.program(*made)

    proved(make(8), make(8))
    proved(make(0), make(0))
    differs(make(8), make(0), "alias", "does not share the same elements with output 0")
    differs(make(0), make(8), "alias", "does not share the same elements with output 0")


def test_a_broadcast_lies_as_its_input():
    def make(turned):
        g = Graph()
        x = g(aten.mul.Tensor, g.input("x", 4, 6), 2)
        if turned:
            turned_x = g(aten.clone.default, g(aten.permute.default, x, [1, 0]), memory_format=torch.contiguous_format)
            x = g(aten.permute.default, turned_x, [1, 0])
        sent = g(c10d.broadcast.default, x, 1, "0")
        if turned:  # as if nobody had updated it
            sent.meta["val"] = sent.meta["val"].contiguous()
        waited = g(c10d.wait_tensor.default, sent)
        return g.program(waited)

    assert verify(make(False), make(True)).status == "different"
    proved(make(False), make(False))


def strided_broadcast(use):
    """What is made of a transposed matrix that rank 0 sends: PyTorch gives it in order, and says that it is not."""
    g = Graph()
    turned = g(aten.permute.default, g.input("x", 6, 4), [1, 0])
    return g.program(*use(g, g.wait(g(c10d.broadcast.default, turned, 0, "0"))))


@pytest.mark.parametrize(
    "use",
    [
        lambda g, w: (g(aten.mm.default, w, g.input("y", 6, 2)),),
        lambda g, w: (g(aten.sum.default, g(aten.mul.Tensor, w, 2)),),
        lambda g, w: (g(aten.mm.default, g(aten.slice.Tensor, g(aten.relu.default, w), 0, 0, 2), g.input("y", 6, 2)),),
        lambda g, w: (g(aten.clone.default, w, memory_format=torch.contiguous_format),),
        lambda g, w: (g(aten.copy_.default, g.input("y", 4, 6), g(aten.mul.Tensor, w, 2)),),
    ],
)
def test_how_a_strided_broadcast_lies_does_not_matter_to_what_reads_elements(use):
    proved(strided_broadcast(use), strided_broadcast(use))


@pytest.mark.parametrize(
    "use",
    [
        lambda g, w: (w,),
        lambda g, w: (g(aten.mul.Tensor, w, 2),),
        lambda g, w: (g(aten.sum.default, g(aten.as_strided.default, w, [3], [1])),),
        lambda g, w: (g(aten.sum.default, g(aten.reshape.default, g(aten.permute.default, w, [1, 0]), [24])),),
        lambda g, w: (g(aten.sum.default, g(aten.view.default, g(aten.permute.default, w, [1, 0]), [24])),),
        lambda g, w: (g(aten.mul.Tensor, g(aten.t.default, g(aten.mul_.Tensor, w, 2)), 2),),
        lambda g, w: (g.wait(g(c10d.all_reduce.default, g(aten.add.Tensor, w, 1), "sum", "0")),),
        lambda g, w: (g(aten.sum.default, g(aten.contiguous.default, g(aten.t.default, w))),),
    ],
)
def test_where_it_may_matter_how_a_strided_broadcast_lies_it_is_left_open(use):
    before = strided_broadcast(use)
    assert verify(before, before).status == "unproved"


def test_a_launch_that_brings_no_element_is_a_launch():
    """On another group the ranks would wait for each other in vain."""

    def make(group):
        g = Graph()
        made = g.gather(g.input("x", 0, 2), group, 2)
        return g.program(made, groups={name: ProcessGroup(name, 2) for name in ("0", "1")})

    proved(make("0"), make("0"))
    assert verify(make("0"), make("1")).status != "proved"


def test_launches_that_bring_no_element_come_in_any_order():
    """They are launches like others: dead ones may go, equal ones be one, and new ones are communication."""

    def make(*sent, shown):
        g = Graph()
        inputs = [g.input("x", 0, 2), g.input("y", 0, 3)]
        made = {each: g.gather(inputs[int(each[0])]) for each in sent}
        return g.program(*(made[each] for each in shown))

    before = make("0", "1", shown=("0", "1"))
    proved(before, make("1", "0", shown=("0", "1")))
    proved(make("0", "1", shown="0"), make("0", shown="0"))
    proved(make("0", "0b", shown=("0", "0b")), make("0", "0b", shown=("0", "0b")))
    proved(make("0", "0b", shown=("0",)), make("0", shown=("0",)))
    undecided(make("0", shown="0"), make("0", "0b", shown="0"))
    undecided(make("0", shown="0"), make("0", "1", shown="0"))
    differs(before, make("0", shown=("0", "0")), "output")


def relaid(g, x):
    """The same elements, laid out in another way."""
    turned = g(aten.clone.default, g(aten.permute.default, x, [1, 0]), memory_format=torch.contiguous_format)
    return g(aten.permute.default, turned, [1, 0])


DRAWS = {
    "rand_like": lambda g, x: g(aten.rand_like.default, x),
    "dropout": lambda g, x: g(operator.getitem, g(aten.native_dropout.default, x, 0.5, True), 0),
    "in place": lambda g, x: g(aten.uniform_.default, g(aten.clone.default, x)),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("inner", [False, True])
def test_random_numbers_are_drawn_in_the_order_of_memory(draw, inner):
    def program(change):
        g = Graph()
        x = g.input("x", 4, 3)
        drawn = DRAWS[draw](g, change(g, x))
        y = g(aten.clone.default, drawn, memory_format=torch.contiguous_format)
        if not inner:
            return g.program(y)
        outer = Graph()
        x = outer.input("x", 4, 3)
        g.graph.output((y,))
        outer.root.body = fx.GraphModule(g.root, g.graph)
        invoke = torch.ops.higher_order.invoke_subgraph
        called = outer(invoke, outer.graph.get_attr("body"), "body", x, val=(x.meta["val"],))
        return outer.program(outer(operator.getitem, called, 0))

    proved(program(relaid), program(relaid))
    undecided(program(lambda _, x: x), program(relaid))


def test_a_dimension_of_one_element_has_any_stride():
    def program(change):
        g = Graph()
        x = g.input("x", 4, 1)
        return g.program(g(aten.sin.default, g(aten.rand_like.default, change(g, x))))

    proved(program(lambda _, x: x), program(relaid))


@pytest.mark.parametrize(
    ("said", "wrong"),
    [("f32[4, 4][4, 1]cuda:0", "device"), ("f32[4, 4][1, 4]cpu", "strides"), ("f64[4, 4][4, 1]cpu", "float64")],
)
def test_what_is_said_of_one_tensor_is_not_taken_for_what_is_said_of_another(said, wrong):
    text = """class GraphModule(torch.nn.Module):
    def forward(
        self,
        x: "f32[4, 4][4, 1]cuda:0",
        y: "f32[4, 4][4, 1]cpu",
        z: "f32[4, 4][1, 4]cpu",
        u: "f64[4, 4][4, 1]cpu",
    ):
        a: "f32[4, 4][4, 1]cpu" = torch.ops.aten.sin.default(y)
        return (a, x, z, u)
"""
    before = parse_text(text, "before")
    after = parse_text(text.replace('a: "f32[4, 4][4, 1]cpu"', f'a: "{said}"'), "after")
    verdict = verify(before, after)
    assert verdict.status == "different"
    assert wrong in verdict.findings[0].text
