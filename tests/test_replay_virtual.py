"""Virtual ranks: every collective by hand, poison until the wait, and agreement with the tests' own interpreter."""

from __future__ import annotations

import operator
import weakref

import pytest
import torch

from commcc.base.errors import InputError
from commcc.graph.collectives import identify
from commcc.graph.ops import OpaqueOp, is_wait
from commcc.passes.options import parse_pipeline
from commcc.replay.inputs import InputMaker
from commcc.replay.layout import Layout, make_layout
from commcc.replay.prepare import prepare
from commcc.replay.values import bits_equal, poison
from commcc.replay.virtual import StepError, VirtualRun
from commcc.run.pipeline import run as rewrite
from commcc.serialization.targets import resolve
from commcc.timing.cost import load_model
from tests.mesh_groups import parts_by_name
from tests.step_graphs import on_cpu, sample
from tests.verify_graphs import Graph
from tests.virtual_ranks import VirtualRanks

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
#: Four ranks: group '0' holds all, '1' the two pairs (0, 2) and (1, 3).
FOUR = Layout(4, {"0": ((0, 1, 2, 3),), "1": ((0, 2), (1, 3))})
X = [torch.arange(8.0).view(4, 2) + 10 * rank for rank in range(4)]


def ranks_of(program, inputs, layout=FOUR, **options):
    """Outputs of every rank, and the run."""
    run = VirtualRun(prepare(program), layout, **options)
    return [results.outputs for results in run(inputs)], run


def one(build, values=X, dtype=torch.float32, **options):
    """The first output of every rank of a graph over one input ``x``."""
    g = Graph()
    shape = tuple(values[0].shape)
    outputs = build(g, g.input("x", *shape, dtype=dtype))
    program = g.program(*(outputs if isinstance(outputs, tuple) else (outputs,)))
    found, run = ranks_of(program, [{"x": value.clone().to(dtype)} for value in values], **options)
    return [each[0] for each in found], run


def equal(found, expected):
    assert [value.tolist() for value in found] == [value.tolist() for value in expected]


def test_gather():
    found, _ = one(lambda g, x: g.gather(x))
    equal(found, [torch.cat(X)] * 4)
    found, _ = one(lambda g, x: g.gather(x, "1", 2))
    equal(found, [torch.cat([X[0], X[2]]), torch.cat([X[1], X[3]])] * 2)


@pytest.mark.parametrize(
    ("operation", "whole"),
    [
        ("sum", lambda ts: ts[0] + ts[1] + ts[2] + ts[3]),
        ("avg", lambda ts: (ts[0] + ts[1] + ts[2] + ts[3]) / 4),
        ("max", lambda ts: ts[3]),
        ("min", lambda ts: ts[0]),
        ("product", lambda ts: ts[0] * ts[1] * ts[2] * ts[3]),
    ],
)
def test_reductions(operation, whole):
    expected = whole(X)
    found, _ = one(lambda g, x: g.reduce(x, operation))
    equal(found, [expected] * 4)
    found, _ = one(lambda g, x: g.scatter(x, operation))
    equal(found, list(expected.chunk(4)))


def test_scatter_within_pairs():
    found, _ = one(lambda g, x: g.scatter(x, "sum", "1", 2))
    equal(found, [(X[0] + X[2])[:2], (X[1] + X[3])[:2], (X[0] + X[2])[2:], (X[1] + X[3])[2:]])


def test_broadcast_names_a_rank_of_the_group():
    found, _ = one(lambda g, x: g.wait(g(c10d.broadcast.default, x, 1, "1")))
    equal(found, [X[2], X[3], X[2], X[3]])


def test_in_place_forms_write_their_input():
    def build(g, x):
        copied = g(aten.clone.default, x)
        g.wait(g(c10d.all_reduce_.default, copied, "sum", "0"))
        return copied

    found, run = one(build)
    equal(found, [X[0] + X[1] + X[2] + X[3]] * 4)
    assert run.early == []


def test_out_forms_write_their_buffer():
    def build(g, x):
        whole, part = g(aten.new_empty.default, x, [16, 2]), g(aten.new_empty.default, x, [1, 2])
        gathered = g(c10d.all_gather_into_tensor_out.default, x, 4, "0", out=whole)
        scattered = g(c10d.reduce_scatter_tensor_out.default, x, "sum", 4, "0", out=part)
        g.wait(gathered), g.wait(scattered)
        return (g(aten.cat.default, [whole, part]),)

    found, _ = one(build)
    total = sum(X)
    equal(found, [torch.cat([*X, total[rank : rank + 1]]) for rank in range(4)])


def test_coalesced_forms_hand_back_a_list():
    def build(g, x):
        y = g(aten.mul.Tensor, x, 2)
        launch = g(c10d.all_gather_into_tensor_coalesced.default, [x, y], 4, "0")
        parts = [g.wait(g(operator.getitem, launch, i)) for i in (0, 1)]
        reduced = g(c10d.reduce_scatter_tensor_coalesced.default, [x, y], "avg", 4, "0")
        return g(aten.cat.default, [*parts, g.wait(g(operator.getitem, reduced, 1))])

    found, run = one(build)
    mean = sum(X) / 4
    equal(found, [torch.cat([*X, *(2 * x for x in X), 2 * mean[rank : rank + 1]]) for rank in range(4)])
    assert run.unwaited == ["reduce_scatter_tensor_coalesced_default"]  # its other half


def exchange(g, x, sent, received, group="0"):
    return g.wait(g(c10d.all_to_all_single.default, x, received, sent, group))


def test_even_exchange():
    found, _ = one(lambda g, x: exchange(g, x, [1] * 4, [1] * 4))
    equal(found, [torch.stack([X[other][rank] for other in range(4)]) for rank in range(4)])
    found, _ = one(lambda g, x: exchange(g, x, [], [], "1"))
    equal(found[:1], [torch.cat([X[0][:2], X[2][:2]])])


def test_sizes_that_differ_by_rank():
    """Rank r sends r rows to the first of its pair, the rest to the other; sizes come from data."""
    sent = {0: [0, 4], 1: [1, 3], 2: [2, 2], 3: [3, 1]}
    got = {0: [0, 2], 2: [4, 2], 1: [1, 3], 3: [3, 1]}
    g = Graph()
    x, sizes = g.input("x", 4, 2), g.input("sizes", 4, dtype=torch.int64)
    numbers = [
        g(aten._local_scalar_dense.default, g(aten.select.int, sizes, 0, i), val=1, name=f"n{i}") for i in range(4)
    ]
    launch = g(c10d.all_to_all_single.default, x, numbers[2:], numbers[:2], "1", val=x.meta["val"])
    program = g.program(g(c10d.wait_tensor.default, launch, val=x.meta["val"]))
    inputs = [{"x": X[r], "sizes": torch.tensor([*sent[r], *got[r]])} for r in range(4)]
    found, _ = ranks_of(program, inputs)
    equal(
        [each[0] for each in found],
        [X[2][:2], torch.cat([X[1][:1], X[3][:3]]), torch.cat([X[0], X[2][2:]]), torch.cat([X[1][1:], X[3][3:]])],
    )
    inputs[2]["sizes"][2] = 1  # rank 2 expects one row less than rank 0 sends it
    with pytest.raises(StepError, match=r"ranks \[0, 2\]: number 0 of the group sends 4 rows to number 1"):
        ranks_of(program, inputs)


def test_another_dimension_sharded():
    g = Graph()
    x = g.input("x", 2, 4)
    program = g.program(g(torch.ops._dtensor.shard_dim_alltoall.default, x, 0, 1, "0", val=torch.empty(8, 1)))
    whole = torch.arange(32.0).view(8, 4)
    found, _ = ranks_of(program, [{"x": part} for part in whole.chunk(4)])
    equal([each[0] for each in found], [whole[:, r : r + 1] for r in range(4)])


def test_a_value_is_not_there_before_its_wait():
    def build(g, x):
        launch = g(c10d.all_gather_into_tensor.default, x, 4, "0")
        early = g(aten.neg.default, launch)
        return early, g(aten.neg.default, g.wait(launch))

    found, run = one(build)
    assert all(value.isnan().all() for value in found)
    assert run.early == ["'neg_default' uses what 'all_gather_into_tensor_default' brings before a wait"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_are_poisoned_too(dtype):
    real = torch.tensor([0, 1, 2, torch.iinfo(dtype).max if dtype != torch.bool else 1]).to(dtype)
    buffer = real.clone()
    poison(buffer, real)
    assert (buffer != real).all()


def test_a_wait_for_a_view_is_a_wait_and_a_second_one_does_nothing():
    def build(g, x):
        launch = g(c10d.all_gather_into_tensor.default, x, 4, "0")
        view = g(aten.view.default, launch, [2, 8, 2])
        g.wait(g.wait(view))
        return g(aten.neg.default, launch)

    found, run = one(build)
    equal(found, [-torch.cat(X)] * 4)
    assert run.early == []
    assert run.unwaited == []


def test_who_asks_for_a_size_reads_nothing():
    def build(g, x):
        launch = g(c10d.all_gather_into_tensor.default, x, 4, "0")
        rows = g(aten.sym_size.int, launch, 0, val=16)
        return g(aten.view.default, g.wait(launch), [rows, 2])

    found, run = one(build)
    equal(found, [torch.cat(X).view(16, 2)] * 4)
    assert run.early == []


def test_a_reshape_that_copies_reads():
    def build(g, x):
        launch = g(c10d.all_gather_into_tensor.default, x, 4, "0")
        turned = g(aten.t.default, launch)
        return g(aten.reshape.default, turned, [32]), g.wait(launch)

    found, run = one(build)
    assert found[0].isnan().all()
    assert run.early == ["'reshape_default' uses what 'all_gather_into_tensor_default' brings before a wait"]


def test_what_is_sent_must_stay_until_the_wait():
    def build(g, x, change):
        sent = g(aten.clone.default, x)
        launch = g(c10d.all_gather_into_tensor.default, sent, 4, "0")
        g(aten.mul_.Tensor, sent, change)
        return g.wait(launch)

    found, run = one(lambda g, x: build(g, x, 3))
    equal(found, [3 * torch.cat(X)] * 4)
    assert run.early == [
        "what 'all_gather_into_tensor_default' sends is written before 'wait_tensor_default' waits for it"
    ]
    found, run = one(lambda g, x: build(g, x, 1))
    assert run.early == []


def test_a_copy_to_the_host_that_does_not_block():
    def build(blocking_next):
        g = Graph()
        with g.mode:
            x = g.value("x", torch.empty(3, dtype=torch.int64, device="cuda"))
        copy = g(aten._to_copy.default, x, device=torch.device("cpu"), non_blocking=True)
        if blocking_next:
            g(aten._to_copy.default, x, device=torch.device("cpu"))
        return g.program(g(aten.add.Tensor, copy, 0))

    inputs = [{"x": torch.tensor([1, 2, 3])}]
    alone = Layout(1, {})
    found, run = ranks_of(build(True), inputs, alone)
    assert found[0][0].tolist() == [1, 2, 3]
    assert run.early == []
    found, run = ranks_of(build(False), inputs, alone)
    assert found[0][0].tolist() != [1, 2, 3]
    assert run.early == ["'add_tensor' uses the copy '_to_copy_default' before the host has waited for it"]
    found, _ = ranks_of(build(False), inputs, alone, blocking=frozenset({"_to_copy_default"}))
    assert found[0][0].tolist() == [1, 2, 3]


def test_every_rank_has_random_numbers_of_its_own():
    before = torch.get_rng_state()
    found, _ = one(lambda g, x: g(aten.rand_like.default, x), seed=3)
    again, _ = one(lambda g, x: g(aten.rand_like.default, x), seed=3)
    other, _ = one(lambda g, x: g(aten.rand_like.default, x), seed=4)
    equal(found, again)
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0], other[0])
    assert torch.equal(torch.get_rng_state(), before)
    twice, _ = one(lambda g, x: g(aten.sub.Tensor, g(aten.rand_like.default, x), g(aten.rand_like.default, x)))
    assert all(value.abs().max() > 0.01 for value in twice)


def test_values_go_with_their_last_use():
    g = Graph()
    first = g(aten.neg.default, g.input("x", 2), name="first")
    second = g(aten.neg.default, first, name="second")
    third = g(aten.neg.default, second, name="third")
    alive, seen = {}, {}

    def watch(step, results):
        alive[step.name] = weakref.ref(results[0])
        seen[step.name] = alive["first"]() is not None

    ranks_of(g.program(third), [{"x": torch.ones(2)}], Layout(1, {}), watch=watch)
    assert seen == {"first": True, "second": True, "third": False}


def test_held_ops_run_like_the_others():
    """What ``reorder{control_deps=yes}`` writes."""
    program = sample("tiny_llama_fsdp4_fw")
    held = rewrite(program, parse_pipeline("reorder{control_deps=yes}"), model=load_model()).program
    assert any(str(node.target) == "control_deps" for node in held.graph.nodes)
    both = [results_of(each) for each in (program, held)]
    assert all(bits_equal(*pair) for rank in range(4) for pair in zip(*(run[rank] for run in both), strict=True))


def test_ops_that_cannot_run_are_named_all_at_once():
    g = Graph()
    x = g.input("x", 2, 2)
    program = g.program(
        g(aten.cudnn_is_acceptable.default, x, val=True),
        g(torch.ops._c10d_functional_autograd.all_gather_into_tensor.default, x, 1, "0", val=x.meta["val"]),
    )
    with pytest.raises(InputError, match="cannot be run on the CPU") as caught:
        prepare(program)
    assert "communicates in a way that is not known" in str(caught.value)


def test_ops_and_kernels_that_are_handed_to_others_and_not_there_are_named():
    g = Graph()
    x = g.input("x", 2, 2)
    wrapped = resolve("torch.ops.higher_order.auto_functionalized_v2")
    lost = g(wrapped, OpaqueOp("lost.scale_.default"), _x_base_index=0, _all_bases=[x], val=x.meta["val"])
    with pytest.raises(InputError, match=r"lost.scale_ is not registered with this PyTorch"):
        prepare(g.program(lost))
    g = Graph()
    x = g.input("x", 2, 2)
    kernel = resolve("torch.ops.higher_order.triton_kernel_wrapper_functional")
    ran = g(kernel, kernel_idx=90, constant_args_idx=90, kwargs={"x": x}, tensors_to_clone=["x"], val=x.meta["val"])
    with pytest.raises(InputError, match="calls a Triton kernel, which is not in the graph"):
        prepare(g.program(ran))


def test_a_group_that_is_an_object_is_refused():
    g = Graph()
    x, group = g.input("x", 2), g.value("group", None)
    launch = g(c10d.all_reduce.default, x, "sum", group, val=x.meta["val"])
    with pytest.raises(InputError, match="is given its process group as an object"):
        prepare(g.program(g(c10d.wait_tensor.default, launch, val=x.meta["val"])))


def made_inputs(program, *, wide=False):
    prepared = prepare(program, wide=wide)
    layout = make_layout([(program, prepared.index)])
    maker = InputMaker(prepared, identify(prepared.index), layout, 5)
    return prepared, layout, [maker.of_rank(rank) for rank in range(layout.world)]


def results_of(program):
    prepared, layout, inputs = made_inputs(program)
    results = VirtualRun(prepared, layout, blocking=frozenset(prepared.index.names))(inputs)
    return [[value for value in each.outputs if isinstance(value, torch.Tensor)] for each in results]


#: In float64, since the two add up in different ways.
ORACLE = (
    *("tiny_llama_fsdp4_fw", "tiny_llama_fsdp4_bw", "tiny_llama_fsdp2_tp2_fw", "tiny_llama_fsdp2_tp2_bw"),
    *("tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_moe_fsdp4_ep2_bw"),
    *("tiny_deepseek_fsdp4_ep2", "tiny_llama_joint"),
)


@pytest.mark.parametrize("name", ORACLE)
@pytest.mark.sampled(4)
def test_the_tests_own_interpreter_agrees(name):
    program = sample(name)
    prepared, layout, inputs = made_inputs(program, wide=True)
    assert layout.world == 4
    order = [node.name for node in prepared.inputs]
    plain = on_cpu(program, torch.float64)
    _simplify(plain.graph)
    given = [[_own(each[n]) for n in order] for each in inputs]
    expected = VirtualRanks(plain.graph, given, plain.root, parts_by_name(program)).run()
    found = VirtualRun(prepared, layout, blocking=frozenset(prepared.index.names))(inputs)
    for rank in range(4):
        values = [value for value in expected[rank][: len(found[rank].outputs)] if isinstance(value, torch.Tensor)]
        ours = [value for value in found[rank].outputs if isinstance(value, torch.Tensor)]
        torch.testing.assert_close(ours, values, rtol=1e-9, atol=1e-12)
        assert len(ours) > 10


def _own(value):
    return value if isinstance(value, torch.Tensor) else _Plain(value)


class _Plain:
    """A size or None among inputs: the tests' interpreter clones all that it is given."""

    def __init__(self, value):
        self.value = value

    def clone(self):
        return self.value


def _simplify(graph):
    """Copies that block, and no wait for what a wait gave back: all that the tests' interpreter understands."""
    for node in list(graph.nodes):
        if node.kwargs.get("non_blocking"):
            node.kwargs = {**node.kwargs, "non_blocking": False}
        if node.op == "call_function" and is_wait(node.target) and is_wait(node.args[0].target):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def halves(read):
    """Both halves of a tensor are summed in place; ``read`` of (x, halves) before the wait."""
    g = Graph()
    own = g(aten.clone.default, g.input("x", 4, 2))
    parts = g(aten.split_with_sizes.default, own, [2, 2])
    parts = [g(operator.getitem, parts, i) for i in (0, 1)]
    launches = [g(c10d.all_reduce_.default, parts[0], "sum", "0", name="first")]
    early = g(aten.neg.default, parts[read], name="early")
    launches.append(g(c10d.all_reduce_.default, parts[1], "sum", "0", name="second"))
    waits = [g(c10d.wait_tensor.default, launch) for launch in launches]
    found, run = ranks_of(g.program(early, *waits), [{"x": value.clone()} for value in X])
    return [outputs[1:] for outputs in found], run


def test_parts_of_one_storage_are_in_flight_side_by_side():
    found, run = halves(read=1)
    total = sum(X)
    for outputs in found:
        equal(outputs, [total[:2], total[2:]])
    assert run.early == [] and run.unwaited == []


def test_what_is_in_flight_is_told_from_what_lies_beside_it():
    _, run = halves(read=0)
    assert run.early == ["'early' uses what 'first' brings before a wait"]
