"""Sub-graphs and ops without a kernel: a run gives what PyTorch gives for the module that the graph comes from."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops import map as map_op
from torch._higher_order_ops import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

from commcc.capture import from_exported_program, from_graph_module
from commcc.graph.ops.functions import transform_functions
from commcc.replay.codegen import GeneratedCode
from commcc.replay.compiled.inductor import Compiled
from commcc.replay.kernels import converted
from commcc.replay.layout import Layout, make_layout
from commcc.replay.numeric import Settings, verify_numeric
from commcc.replay.prepare import prepare
from commcc.replay.values import leaves
from commcc.replay.virtual import StepError, VirtualRun
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
ONE = Layout(1, {})


class Function(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call
        self.layer = nn.Linear(4, 4)

    def forward(self, *args):
        return self.call(self, *args)


def autocast(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m.layer(x)
    return y.float() + m.layer(x)


def no_grad(m, x):
    with torch.no_grad():
        y = m.layer(x).relu()
    return m.layer(x) * y


def branches(m, x):
    return torch.cond(x.sum() > 0, lambda y: m.layer(y).relu(), lambda y: m.layer(y) - 1, (x,))


def nested(m, x):
    def inner(y):
        return torch.cond(y.sum() > 100, lambda z: z * 3, m.layer, (y,))

    return torch.cond(x.sum() > 0, inner, lambda y: y - 1, (x,))


FORMS = {
    "vmap": lambda m, x: torch.vmap(lambda y: m.layer(y).softmax(0))(x),
    "autocast": autocast,
    "no_grad": no_grad,
    "cond": branches,
    "nested cond": nested,
    "while_loop": lambda _, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x)),
    "map": lambda m, x: map_op(lambda y, w: y @ w, x, m.layer.weight),
    "scan": lambda _, x: scan(lambda c, y: (c + y, c * y), x[0], x),
}


def run_once(program, values):
    """Outputs of the program on these values of its last inputs, after its parameters."""
    prepared = prepare(program)
    inputs = {node.name: value for node, value in zip(prepared.inputs, values, strict=True)}
    (virtual,) = VirtualRun(prepared, ONE)([inputs])
    generated = leaves(GeneratedCode(prepared)(inputs))
    for one, other in zip(virtual.outputs, generated, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    return virtual.outputs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.sampled(6)
def test_a_sub_graph_gives_what_the_module_gives(form, sign):
    module = Function(FORMS[form])
    x = sign * torch.rand(3, 4)
    exported = torch.export.export(module, (x,), strict=False)
    program = from_exported_program(exported)
    parameters = [module.get_parameter(name) for name in exported.graph_signature.parameters]
    found = run_once(program, [*parameters, *exported.constants.values(), x][-len(prepare(program).inputs) :])
    with torch.no_grad():
        expected = leaves(module(x))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_flex_attention_is_its_reference():
    graphs = []
    backend = aot_autograd(fw_compiler=lambda graph, _: graphs.append(graph) or graph.forward)
    q, k, v = torch.randn(3, 1, 2, 16, 8).unbind()

    def causal(score, b, h, i, j):
        return torch.where(i >= j, score, -float("inf"))

    torch._dynamo.reset()
    torch.compile(lambda *x: flex_attention(*x, score_mod=causal), backend=backend)(q, k, v)
    program = from_graph_module(graphs[0])
    prepared = prepare(program)
    given = {node.name: value for node, value in zip(prepared.inputs, (q, k, v), strict=False)}
    rest = [node for node in prepared.inputs if node.name not in given]
    given.update((node.name, torch.zeros_like(node.meta["val"], device="cpu")) for node in rest)
    (ran,) = VirtualRun(prepared, ONE)([given])
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ran.outputs[0], expected)


def test_indices_in_a_sub_graph_are_within_their_table():
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 4)

        def forward(self, ids):
            with torch.no_grad():
                rows = self.table(ids + 1)
            return self.table(ids) * rows

    program = from_exported_program(torch.export.export(Lookup(), (torch.zeros(50, dtype=torch.long),), strict=False))
    assert any("wrap_with_set_grad_enabled" in str(node.target) for node in program.graph.nodes)
    assert verify_numeric(program, program, Settings()).status == "equal"


def test_float64_goes_through_sub_graphs():
    program = from_exported_program(torch.export.export(Function(autocast), (torch.rand(3, 4),), strict=False))
    assert verify_numeric(program, program, Settings(wide=True)).status == "equal"


def total(x):
    return c10d.wait_tensor(c10d.all_reduce(x, "sum", "0"))


def scattered(c, y):
    both = c10d.wait_tensor(c10d.all_gather_into_tensor(y, 2, "0"))
    return c + both[:4], c * both[4:]


COMMUNICATING = {
    "no_grad": lambda x: x * torch.no_grad()(total)(x),
    "cond": lambda x: torch.cond(total(x).sum() > 0, lambda y: total(y) * 2, lambda y: y - total(y), (x,)),
    "nested": lambda x: torch.cond(
        total(x).sum() > 0, lambda y: torch.cond(y.isnan().any(), lambda z: z + 1, total, (y,)), lambda y: y + 1, (x,)
    ),
    "while_loop": lambda x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, total(y) / 2), (torch.tensor(0), x))[1],
    "map": lambda x: map_op(lambda y: total(y) + y, x),
    "scan": lambda x: scan(scattered, x[0], x)[1],
}


class OnTwo(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        return self.form(x)


def communicating(form):
    """A program whose sub-graphs communicate, and what it computes for each of two ranks."""
    return from_exported_program(torch.export.export(OnTwo(COMMUNICATING[form]), (torch.rand(3, 4),), strict=False))


def by_hand(form, both):
    """The results of both ranks: the sums that collectives give, made by hand."""
    x = sum(both)
    whole = {
        "no_grad": lambda own: own * x,
        "cond": lambda _: x * 2,
        "nested": lambda _: x,
        "while_loop": lambda _: x / 2,
        "map": lambda own: x + own,
    }
    return [whole[form](own) for own in both]


@pytest.mark.parametrize("form", [name for name in COMMUNICATING if name != "scan"])
def test_ranks_meet_in_sub_graphs(form):
    prepared = prepare(communicating(form))
    both = [torch.rand(3, 4), torch.rand(3, 4)]
    name = prepared.inputs[-1].name
    rest = {node.name: torch.tensor(0) for node in prepared.inputs[:-1]}
    results = VirtualRun(prepared, make_layout([(prepared.program, prepared.index)], 2))(
        [{**rest, name: each} for each in both]
    )
    for rank, expected in zip(results, by_hand(form, both), strict=True):
        torch.testing.assert_close(rank.outputs[0], expected)


@pytest.mark.parametrize("form", COMMUNICATING)
def test_numeric_verification_of_sub_graphs_that_communicate(form):
    program = communicating(form)
    numeric = verify_numeric(program, program, Settings(ranks=2))
    assert (numeric.status, numeric.notes) == ("equal", ())


def changed(program, before, after):
    """The program with another op in its first sub-graph."""
    body = next(module for module in program.root.modules() if module is not program.root and hasattr(module, "graph"))
    (node,) = [node for node in body.graph.nodes if node.target is before]
    if after is None:
        node.replace_all_uses_with(node.args[0])
        body.graph.erase_node(node)
    else:
        node.target = after
    return program


def test_what_a_sub_graph_does_not_wait_for_is_poison():
    wrong = changed(communicating("map"), c10d.wait_tensor.default, None)
    numeric = verify_numeric(communicating("map"), wrong, Settings(ranks=2))
    assert numeric.status == "different"


def test_ranks_that_go_different_ways_do_not_hang():
    program = from_exported_program(
        torch.export.export(
            OnTwo(lambda x: torch.cond(x.sum() > 0, total, lambda y: y + 1, (x,))), (torch.rand(3, 4),), strict=False
        )
    )
    prepared = prepare(program)
    layout = make_layout([(prepared.program, prepared.index)], 2)
    inputs = [{prepared.inputs[-1].name: sign * torch.ones(3, 4)} for sign in (1, -1)]
    with pytest.raises(StepError, match="rank 0 waits for rank 1, which does not launch the same there"):
        VirtualRun(prepared, layout)(inputs)


def test_what_has_no_kernel_for_16_bits_runs_in_float32():
    g = Graph()
    x = g.input("x", 4, 4, dtype=torch.bfloat16)
    found = g(aten.cdist.default, x, x)
    program = g.program(found, g(aten.add.Tensor, found, 1))
    numeric = verify_numeric(program, program, Settings(ranks=1))
    assert numeric.status == "equal"
    assert any("run in float32 and rounded: aten.cdist" in note for note in numeric.notes)
    value = torch.randn(4, 4, dtype=torch.bfloat16)
    (ran,) = VirtualRun(prepare(program), ONE)([{"x": value}])
    assert ran.outputs[0].dtype == torch.bfloat16
    assert torch.equal(ran.outputs[0], torch.cdist(value.float(), value.float()).bfloat16())


def test_what_is_written_in_float32_is_copied_back():
    g = Graph()
    x = g.input("x", 4, dtype=torch.float8_e4m3fn)
    program = g.program(g(aten.add_.Tensor, x, 1))
    value = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(torch.float8_e4m3fn)
    (ran,) = VirtualRun(prepare(program), ONE)([{"x": value}])
    assert ran.outputs[0] is value
    assert value.float().tolist() == [2.0, 3.0, 4.0, 5.0]


def test_levels_that_a_graph_does_not_leave_end_with_the_run():
    g = Graph()
    enter = transform_functions()["torch._functorch.predispatch._vmap_increment_nesting"]
    program = g.program(g.input("x", 2), g(enter, 3, "error", val=1))
    VirtualRun(prepare(program), ONE)([{"x": torch.ones(2)}])
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    assert torch.rand(2).shape == (2,)


def test_the_state_of_random_numbers_is_one():
    g = Graph()
    state, x = g.input("state", 16, dtype=torch.uint8), g.input("x", 8)
    run = torch.ops.higher_order.run_with_rng_state
    program = g.program(g(run, state, aten.bernoulli.p, x, 0.5, val=x.meta["val"]))
    assert verify_numeric(program, program, Settings(ranks=1)).status == "equal"


def test_roots_of_products_are_tried_on_positive_numbers():
    g = Graph()
    program = g.program(g(aten.sqrt.default, g(aten.mm.default, g.input("left", 8, 8), g.input("right", 8, 8))))
    numeric = verify_numeric(program, program, Settings(ranks=1))
    assert numeric.status == "equal"
    assert "matrices of the inputs are positive" in numeric.notes[-1]


@pytest.mark.full
@pytest.mark.parametrize("form", ["cond", "no_grad"])
def test_sub_graphs_go_through_inductor(form):
    x = torch.rand(3, 4)
    exported = torch.export.export(Function(FORMS[form]), (x,), strict=False)
    prepared = prepare(from_exported_program(exported))
    given = [*exported.parameters(), x]
    inputs = {node.name: value.detach() for node, value in zip(prepared.inputs, given, strict=True)}
    with torch.no_grad():
        found = Compiled(prepared, inputs)(inputs)
        torch.testing.assert_close(found, leaves(GeneratedCode(prepared)(inputs)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(4, 6),
        torch.arange(24.0).view(4, 6).t(),
        torch.arange(48.0).view(4, 12)[:, ::2],
        torch.arange(6.0).expand(4, 6),
        torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        torch.tensor(2.5),
        torch.empty(0, 3),
    ],
    ids=["plain", "transposed", "strided", "expanded", "channels_last", "number", "empty"],
)
def test_a_cast_is_that_of_the_op_in_python(tensor, dtype):
    ours, theirs = converted(tensor, dtype), torch.ops.prims.convert_element_type.default(tensor, dtype)
    assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
    assert torch.equal(ours, theirs)
    assert ours.numel() == 0 or ours.data_ptr() != tensor.data_ptr()
