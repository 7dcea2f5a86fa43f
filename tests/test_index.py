"""The index: dependences besides data, storages, groups, module paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._ops import HigherOrderOperator

from commcc.base.errors import GraphError
from commcc.base.terms import Role
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.index.hints import SizeHints
from commcc.graph.index.modules import clean_path, module_path
from commcc.graph.index.tensors import TensorTable
from commcc.graph.index.traits import traits_of, traits_of_all
from commcc.graph.metrics import measure
from commcc.graph.ops import OpaqueOp
from commcc.graph.program import ProcessGroup
from commcc.serialization import load
from commcc.serialization.fx import parse_text
from commcc.timing.cost import load_model
from commcc.timing.predict import predict
from tests.random_graphs import GraphBuilder, aten, c10d, getitem, random_program


def before(index, first, second):
    """Whether ``first`` must precede ``second``, by names."""
    position = index.position
    stack, seen = [position[second]], set()
    while stack:
        node = stack.pop()
        if node == position[first]:
            return True
        fresh = set(index.preds(node)) - seen
        seen |= fresh
        stack.extend(fresh)
    return False


SAMPLES = Path(__file__).parents[1] / "sample_graphs"
CASTS = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4][1]cuda:0", y: "bf16[4][1]cuda:0"):
        a: "bf16[4][1]cuda:0" = torch.ops.prims.convert_element_type.default(x, torch.bfloat16)
        b: "f64[4][1]cuda:0" = torch.ops.prims.convert_element_type.default(x, torch.float64)
        c: "f64[4][1]cuda:0" = torch.ops.prims.convert_element_type.default(y, torch.float64)
        d: "f64[4][1]cuda:0" = torch.ops.prims.convert_element_type.default(y, torch.float64)
        e: "f64[4][1]cuda:0" = torch.ops.aten._to_copy.default(y, dtype = torch.float64)
        f: "f32[4][1]cpu" = torch.ops.aten._to_copy.default(x, device = device(type='cpu'))
        g: "bf16[4][1]cpu" = torch.ops.prims.convert_element_type.default(f, torch.bfloat16)
        h: "f32[4][1]cuda:0" = torch.ops.lost.op.default(x, '0')
        i: "f32[4][1]cuda:0" = torch.ops.aten._to_copy.lost(x, '0')
        j: "f32[4][1]cuda:0" = torch.ops.aten.mul_.Tensor(h, i)
        k: "f32[2][1]cuda:0" = torch.ops._c10d_functional.reduce_scatter_tensor.lost(x, 'sum', 2, '0')
        return (a, b, c, d, e, f, g, h, i, j, k)
"""


@pytest.mark.parametrize("name", ["casts", "tiny_moe_fsdp4_ep2_bw", "tiny_llama_hsdp_bw", "tiny_deepseek_ep2"])
def test_traits_of_all_nodes_are_those_of_each(name):
    """Of casts to several dtypes and from several, copies to the host, writes, and ops that are not known."""
    program = parse_text(CASTS, name) if name == "casts" else load(SAMPLES / f"{name}.fx.txt.gz")
    groups = {**program.groups, "0": ProcessGroup("0", 2)}
    nodes, table = list(program.graph.nodes), TensorTable(SizeHints({}, program.header))
    each = [traits_of(node, program.root, groups) for node in nodes]
    assert traits_of_all(nodes, program.root, groups, [table.of(node.meta.get("val")) for node in nodes]) == each
    assert len(set(each)) > (6 if name == "casts" else 2)
    handed = [traits.barrier for node, traits in zip(nodes, each, strict=True) if node.name in ("h", "k")]
    assert handed == ([True, True] if name == "casts" else [])


def test_write_after_reads_and_reads_after_write():
    b = GraphBuilder()
    buffer, x = b.placeholder("buffer", (4,)), b.placeholder("x", (4,))
    early = b.call(aten.add.Tensor, buffer, x)
    view = b.call(aten.view.default, buffer, [2, 2])
    write = b.call(aten.mul_.Scalar, view, 2)
    late = b.call(aten.sub.Tensor, buffer, x)
    index = build_index(b.program([early, late], {}))
    assert before(index, early.name, write.name)
    assert before(index, write.name, late.name)


def test_a_launch_reads_its_input_until_the_wait():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    launch = b.call(c10d.all_gather_into_tensor.default, x, 2, "0")
    wait = b.call(c10d.wait_tensor.default, launch)
    write = b.call(aten.zero_.default, x)
    index = build_index(b.program([wait], {"0": 2}))
    assert before(index, wait.name, write.name)


def test_an_out_launch_writes_until_the_wait():
    b = GraphBuilder()
    x, out = b.placeholder("x", (4,)), b.placeholder("out", (8,))
    launch = b.call(c10d.all_gather_into_tensor_out.default, x, 2, "0", out=out)
    wait = b.call(c10d.wait_tensor.default, launch)
    read = b.call(aten.neg.default, out)
    index = build_index(b.program([wait, read], {"0": 2}))
    assert before(index, wait.name, read.name)
    number = index.position[launch.name]
    assert index.launches[number].writes_to == (index.position["out"],)
    assert set(index.storages[index.position[wait.name]]) == set(index.storages[index.position["out"]])


def test_random_ops_and_effects_keep_their_order():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    first = b.call(aten.rand_like.default, x)
    second = b.call(aten.bernoulli.default, x)
    index = build_index(b.program([second, first], {}))
    assert before(index, first.name, second.name)
    assert not before(index, second.name, first.name)


@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.0}, {"dropout_p": 0.1}])
def test_attention_keeps_its_order_only_where_it_drops_at_random(dropout):
    b = GraphBuilder()
    x = b.placeholder("x", (1, 2, 4, 8))
    attend = aten._scaled_dot_product_flash_attention_for_cpu.default
    first, second = b.call(attend, x, x, x, **dropout), b.call(attend, x, x, x, **dropout)
    drawn = b.call(aten.rand_like.default, x)
    index = build_index(b.program([first, second, drawn], {}))
    drops = bool(dropout.get("dropout_p"))
    assert before(index, first.name, second.name) is before(index, second.name, drawn.name) is drops
    assert index.stays.isdisjoint({index.position[first.name]}) is not drops


def test_host_syncs_keep_their_order():
    b = GraphBuilder()
    x, y = b.placeholder("x", ()), b.placeholder("y", ())
    made = [b.graph.call_function(aten._local_scalar_dense.default, (source,)) for source in (x, y)]
    index = build_index(b.program([], {}))
    assert before(index, made[0].name, made[1].name)
    assert len(index.host_syncs) == 2


def test_copies_to_the_host_are_syncs():
    b = GraphBuilder()
    x = b.graph.placeholder("x")
    with b.mode:
        x.meta["val"] = torch.empty(4, device="meta").to("meta")
    from torch._subclasses.fake_tensor import FakeTensor

    from commcc.apply.fakes import fake_like

    x.meta["val"] = FakeTensor(b.mode, torch.empty(4, device="meta"), torch.device("cuda"))
    copy = b.graph.call_function(aten._to_copy.default, (x,), {"device": torch.device("cpu")})
    copy.meta["val"] = fake_like(FakeTensor(b.mode, torch.empty(4, device="meta"), torch.device("cpu")), (4,))
    index = build_index(b.program([copy], {}))
    assert index.host_syncs == {index.position[copy.name]}


COMMUNICATES = (
    *("symm_mem.mystery", "c10d.send_", "vllm.all_reduce", "deepep.dispatch", "hybridep.combine_bwd", "deep_ep.op"),
    *("mori_ep.op", "mine.dispatch", "mine.combine_tokens", "mine.halo_exchange", "flux.gemm_rs", "mynccl.op"),
)


@pytest.mark.parametrize("name", COMMUNICATES)
def test_unknown_communication_is_a_barrier(name):
    b, target = GraphBuilder(), OpaqueOp(f"{name}.default")
    x = b.placeholder("x", (4,))
    first = b.call(aten.neg.default, x)
    barrier = b.graph.call_function(target, (x,))
    barrier.meta["val"] = x.meta["val"]
    second = b.call(aten.abs.default, x)
    index = build_index(b.program([first, second], {}))
    assert before(index, first.name, barrier.name)
    assert before(index, barrier.name, second.name)
    assert any("unknown way" in text for text in index.warnings)


def test_barriers_that_are_alike_are_named_once():
    b = GraphBuilder()
    nodes = [b.placeholder("x", (4,))]
    for number in range(6):
        nodes.append(
            b.graph.call_function(OpaqueOp(f"deepep.{'combine' if number == 3 else 'dispatch'}.default"), (nodes[-1],))
        )
        nodes[-1].meta["val"] = nodes[0].meta["val"]
    first, last = (f"'{nodes[at].name}' (deepep.{name}) communicates" for at, name in ((1, "dispatch"), (4, "combine")))
    way = "in an unknown way: nothing moves across it, unless a file says how (--ops)"
    warnings = build_index(b.program([nodes[-1]], {})).warnings
    assert warnings == (f"{first} {way} (and 4 more like it)", f"{last} {way}")


@pytest.mark.parametrize(
    "name", ["mylib.norm", "sleep.norm", "step.norm", "mylib.tbe_input_combine", "mylib.gemm", "mylib.redispatched"]
)
def test_an_unknown_op_that_computes_is_no_barrier(name):
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    node = b.graph.call_function(OpaqueOp(f"{name}.default"), (x,))
    node.meta["val"] = x.meta["val"]
    index = build_index(b.program([node], {}))
    assert not index.barriers
    assert not index.warnings


def test_split_results_share_storage_and_fresh_results_do_not():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    split = b.call(aten.split.Tensor, x, 2)
    left, right = getitem(b, split, 0), getitem(b, split, 1)
    copy = b.call(aten.clone.default, left)
    index = build_index(b.program([left, right, copy], {}))
    storage = {name: index.storages[index.position[name]] for name in ("x", left.name, right.name, copy.name)}
    assert storage["x"] == storage[left.name] == storage[right.name]
    assert storage[copy.name] != storage["x"]


def test_coalesced_launch_has_a_wait_for_each_tensor():
    b = GraphBuilder()
    x, y = b.placeholder("x", (4,)), b.placeholder("y", (2,))
    launch = b.call(c10d.all_gather_into_tensor_coalesced.default, [x, y], 2, "0")
    waits = [b.call(c10d.wait_tensor.default, getitem(b, launch, i)) for i in (0, 1)]
    index = build_index(b.program(waits, {"0": 2}))
    facts = index.launches[index.position[launch.name]]
    assert facts.coalesced
    assert facts.waits == tuple(index.position[w.name] for w in waits)
    assert facts.inputs == (0, 1)


def test_tensors_of_one_launch_are_waited_for_in_any_order():
    """What reads the second before it is waited for stays where it is, and so does what reads both."""
    b = GraphBuilder()
    x, y = b.placeholder("x", (4,)), b.placeholder("y", (2,))
    launch = b.call(c10d.all_gather_into_tensor_coalesced.default, [x, y], 2, "0")
    first = b.call(c10d.wait_tensor.default, getitem(b, launch, 0))
    part = getitem(b, launch, 1)
    early = b.call(aten.neg.default, part)
    second = b.call(c10d.wait_tensor.default, part)
    again = b.call(aten.neg.default, part)
    both = b.call(aten.cat.default, launch)
    index = build_index(b.program([first, early, second, again, both], {"0": 2}))
    position, order = index.position, index.order_preds
    waits = {position[first.name], position[second.name]}
    assert order[position[part.name]] == order[position[early.name]] == ()
    assert order[position[again.name]] == (position[second.name],)
    assert set(order[position[both.name]]) == waits


def test_a_group_with_two_sizes_is_an_error():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    outputs = [b.gather(x, 2, "0"), b.gather(x, 4, "0")]
    with pytest.raises(GraphError, match="sizes 2 and 4"):
        build_index(b.program(outputs, {}))
    program = random_program(0, 6, 2)
    with pytest.raises(GraphError, match="sizes 2 and 8"):
        build_index(replace(program, groups={"0": ProcessGroup("0", 8)}))


def test_fingerprint_has_no_address_of_an_op_that_is_handed_over():
    path = Path(__file__).parent / "data" / "containers" / "dumps" / "effects.txt"
    program = load(path)
    before = build_index(program).fingerprint
    handed = 0
    for node in program.graph.nodes:
        for at, argument in enumerate(node.args):
            if isinstance(argument, HigherOrderOperator):
                twin = object.__new__(type(argument))
                twin.__dict__.update(vars(argument))
                node.args = (*node.args[:at], twin, *node.args[at + 1 :])
                handed += 1
    assert handed
    assert build_index(program).fingerprint == before


def test_fingerprint_follows_the_graph():
    same = {build_index(random_program(4, 5, 2)).fingerprint for _ in range(2)}
    assert len(same) == 1
    assert build_index(random_program(6, 5, 2)).fingerprint not in same


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("L['self'].__dict__['_modules']['blocks']._modules['0'].norm.weight", "blocks.0.norm.weight"),
        ("L['self'].layers.0.attention.wq.parametrizations.weight.0", "layers.0.attention.wq"),
        ("L['model'].layers[3].norm", "layers.3.norm"),
        ("L['self'].layers['0'].moe.forward.__closure__[0].cell_contents.__self__.experts", "layers.0.moe.experts"),
        ("L['fn'].__closure__[1].cell_contents.layers[2].moe", "layers.2.moe"),
        ("L['f'].a.forward.__closure__[0].cell_contents.__closure__[2].cell_contents.__self__", "a"),
        ("layers.1.moe", "layers.1.moe"),
        ("L['self']", ""),
    ],
)
def test_module_paths_are_cleaned(raw, clean):
    assert clean_path(raw) == clean


def test_module_path_sources_in_order():
    stack = {"a": ("L['s'].layers.0", "T"), "b": ("L['s'].layers.0.wq", "T")}
    assert module_path({"custom": {"module_fqn": "layers.9"}, "nn_module_stack": stack}) == "layers.9"
    assert module_path({"nn_module_stack": stack}) == "layers.0.wq"
    assert module_path({"fwd_nn_module_stack": stack}) == "layers.0.wq"
    assert module_path({}) is None


def test_a_wait_on_a_view_belongs_to_its_launch():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    launch = b.call(c10d.all_gather_into_tensor.default, x, 2, "0")
    wait = b.call(c10d.wait_tensor.default, b.call(aten.view.default, launch, [2, 4]))
    index = build_index(b.program([wait], {"0": 2}))
    assert index.launches[index.position[launch.name]].waits == (index.position[wait.name],)


def test_a_wait_without_a_launch_is_an_error():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    into = b.call(c10d.all_reduce_.default, b.call(aten.neg.default, x), "sum", "0")
    wait = b.call(c10d.wait_tensor.default, into.args[0])
    with pytest.raises(GraphError, match=f"launches no collective.*'{into.name}' writes to it"):
        build_index(b.program([wait], {"0": 2}))


def test_a_wait_for_the_buffer_of_a_launch_says_what_to_wait_for():
    b = GraphBuilder()
    x, buffer = b.placeholder("x", (4,)), b.call(aten.empty.memory_format, [8])
    into = b.call(c10d.all_gather_into_tensor_out.default, x, 2, "0", out=buffer)
    wait = b.call(c10d.wait_tensor.default, buffer)
    with pytest.raises(GraphError, match=f"'{into.name}' writes to it: wait for the result of that"):
        build_index(b.program([wait], {"0": 2}))


def test_a_second_wait_is_harmless():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    wait = b.call(c10d.wait_tensor.default, b.gather(x, 2, "0"))
    build_index(b.program([wait], {"0": 2}))


def test_what_sub_graphs_launch_is_said():
    """It moves nowhere, so the warning says what it is; its time is the node's, as if the sub-graph were the graph."""

    class Branch(torch.nn.Module):
        def forward(self, x):
            gathered = torch.ops._c10d_functional.all_gather_into_tensor(x, 2, "0")
            return torch.ops._c10d_functional.wait_tensor(gathered)

    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    program = b.program([x], {})
    program.root.branch = torch.fx.symbolic_trace(Branch())
    with program.graph.inserting_before(program.graph.output_node()):
        branch = program.graph.get_attr("branch")
        region = program.graph.call_function(torch.ops.higher_order.invoke_subgraph, (branch, "branch", x))
    index = build_index(program)
    (warning,) = index.warnings
    assert f"'{region.name}' (higher_order.invoke_subgraph) launches 1 all_gather in a sub-graph" in warning
    (inside,) = index.inside.values()
    alone, whole = (predict(each, load_model("h100")).timeline for each in (inside.graphs[0], index))
    assert whole.communication_ns == alone.communication_ns > 0
    assert whole.exposed_ns == alone.exposed_ns > 0
    assert whole.compute_ns == alone.compute_ns + alone.launch_ns
    assert measure(index, identify(index)).to_json()["in_sub_graphs"] == {"all_gather": 1}


@pytest.mark.parametrize(
    ("op", "arguments", "runs", "one", "at_least"),
    [
        ("cond", lambda b, x: (x, b, b, [x]), 1, True, False),
        ("while_loop", lambda b, x: (b, b, (x,), ()), 1, False, True),
        ("map_impl", lambda b, x: (b, [x], []), 4, False, False),
        ("scan", lambda b, x: (b, [x], [x], []), 4, False, False),
        ("invoke_subgraph", lambda b, x: (b, "b", x), 1, False, False),
    ],
)
def test_how_often_sub_graphs_run(op, arguments, runs, one, at_least):
    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.ops._c10d_functional.all_gather_into_tensor(x, 2, "0")

    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    program = b.program([x], {})
    program.root.branch = torch.fx.symbolic_trace(Branch())
    with program.graph.inserting_before(program.graph.output_node()):
        branch = program.graph.get_attr("branch")
        program.graph.call_function(getattr(torch.ops.higher_order, op), arguments(branch, x))
    (inside,) = build_index(program).inside.values()
    assert (inside.runs, inside.one, inside.at_least) == (runs, one, at_least)


@pytest.mark.parametrize(
    ("first", "second", "role"),
    [
        ("", "", Role.DDP),
        ("  # PlainAOTOutput(idx=0)", "  # PlainAOTOutput(idx=1)", Role.DDP),
        ("  # GradAOTOutput(grad_of=w)", "  # PlainAOTOutput(idx=1)", Role.DDP),
        ("  # PlainAOTOutput(idx=0)", "  # GradAOTOutput(grad_of=w)", Role.TP),
    ],
)
def test_outputs_are_told_apart_where_any_is_described_as_a_gradient(first, second, role):
    text = f"""class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4, 4][4, 1]cpu", w: "f32[4, 4][4, 1]cpu"):
        mm: "f32[4, 4][4, 1]cpu" = torch.ops.aten.mm.default(x, w)
        all_reduce: "f32[4, 4][4, 1]cpu" = torch.ops._c10d_functional.all_reduce.default(mm, 'sum', '0')
        wait: "f32[4, 4][4, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
        return (
            wait,{first}
            x,{second}
        )
"""
    (found,) = identify(build_index(parse_text(text, "f"))).collectives
    assert found.role is role


def test_a_node_before_its_input_is_an_error():
    b = GraphBuilder()
    x = b.placeholder("x", (4,))
    first, second = (b.gather(x, 2, "0") for _ in range(2))
    program = b.program([first, second], {})
    next(iter(program.graph.nodes)).prepend(next(node for node in program.graph.nodes if node._input_nodes))
    with pytest.raises(GraphError, match="used before its input"):
        build_index(program)


def test_flops_are_those_of_each_nodes_own_shapes():
    text = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[2, 3][3, 1]cpu", y: "f32[3, 5][5, 1]cpu", z: "f32[5, 7][7, 1]cpu"):
        a: "f32[2, 5][5, 1]cpu" = torch.ops.aten.mm.default(x, y)
        b: "f32[2, 7][7, 1]cpu" = torch.ops.aten.mm.default(a, z)
        c: "f32[2, 5][5, 1]cpu" = torch.ops.aten.mm.default(x, y)
        d: "f32[2, 5][5, 1]cpu" = torch.ops.aten.addmm.default(c, x, y)
        return (b, d)
"""
    index = build_index(parse_text(text, "f"))
    counts = {index.names[i]: count for i, count in index.estimates.flops.items()}
    assert counts == {"a": 2 * 2 * 3 * 5, "b": 2 * 2 * 5 * 7, "c": 2 * 2 * 3 * 5, "d": 2 * 2 * 3 * 5}


@pytest.mark.parametrize(
    ("sent", "expected", "told"), [([8, 0], [0, 8], True), ([4, 4], [4, 4], False), ([5, 3], [5, 3], True)]
)
def test_all_to_alls_of_one_rank_are_told(sent, expected, told):
    b = GraphBuilder()
    x = b.placeholder("x", (8, 4))
    launch = b.call(torch.ops._c10d_functional.all_to_all_single.default, x, expected, sent, "0")
    index = build_index(b.program([b.call(torch.ops._c10d_functional.wait_tensor.default, launch)], {"0": 2}))
    assert ("this is the graph of one rank" in str(index.warnings)) == told
