"""Graphs through Inductor: the same numbers, calls that are known by their nodes, an order that is the graph's."""

from __future__ import annotations

import dataclasses
import json
import operator
from contextlib import nullcontext

import pytest
import torch

from commcc.base.errors import InputError
from commcc.cli.main import run
from commcc.graph.program import ProcessGroup
from commcc.replay.bench import worker as bench_worker
from commcc.replay.bench.graph_set import (
    BenchSettings,
    Variant,
    check_variants,
    make_set,
    variants,
    variants_of,
    within_rounding,
)
from commcc.replay.calls import CallSettings, Homes
from commcc.replay.compiled import inductor, landmarks
from commcc.replay.compiled.calls import Call, Listener, OrderKept, Recorder, match
from commcc.replay.compiled.inductor import (
    CACHE_VARIABLE,
    Compiled,
    CompiledRun,
    CompileError,
    Direct,
    require_compiler,
)
from commcc.replay.emulate.transport import Transport
from commcc.replay.numeric.pair import own_inputs
from commcc.replay.place import CpuPlace
from commcc.replay.rank_run import RankRun
from commcc.replay.ranks.worker import Alone, stand_in_groups
from commcc.report import benching
from commcc.serialization import save
from commcc.timing.cost import load_model
from tests.test_bench import on_ranks, printed
from tests.test_emulate import Recorded
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
TWO = {"0": ProcessGroup("0", 2, (0, 1))}


def layer(after: bool = False):
    """A gathered weight, a product, and its reduced gradient; ``after``: with a second product ahead of the wait."""
    g = Graph()
    x, w, v = g.input("x", 4, 4), g.input("w", 2, 4), g.input("v", 4, 4)
    launch = g(c10d.all_gather_into_tensor.default, w, 2, "0", name="launch_w")
    other = g(aten.mm.default, x, v, name="other") if after else None
    full = g(c10d.wait_tensor.default, launch, name="full_w")
    if other is None:
        other = g(aten.mm.default, x, v, name="other")
    y = g(aten.relu.default, g(aten.mul.Tensor, g(aten.mm.default, x, full, name="product"), other))
    total = g(c10d.wait_tensor.default, g(c10d.all_reduce.default, y, "sum", "0", name="launch_y"), name="total")
    part = g(c10d.reduce_scatter_tensor.default, total, "avg", 2, "0", name="launch_part")
    return g.program(g(c10d.wait_tensor.default, part, name="part"), y, groups=TWO)


def prepared_of(program):
    return make_set([program], BenchSettings(ranks=2)).prepared[0]


LAUNCH_W = Call(c10d.all_gather_into_tensor.default, group="0")
LAUNCH_Y = Call(c10d.all_reduce_.default, group="0")
LAUNCH_PART = Call(c10d.reduce_scatter_tensor.default, group="0")
MM = Call(aten.mm.out)


def wait(number):
    return Call(c10d.wait_tensor.default, waits_for=number)


# Calls and steps


def named(order):
    return [step and step.name for step in order.steps]


def test_calls_stand_for_nodes():
    """Inductor reduces in place, adds within a product, and what it fuses makes no call."""
    added = Call(aten.addmm.out)
    order = match(prepared_of(layer()), [LAUNCH_W, wait(0), MM, added, LAUNCH_Y, wait(4), LAUNCH_PART, wait(6)])
    assert named(order) == ["launch_w", "full_w", "launch_y", "total", "launch_part", "part"]
    assert order.kept == OrderKept(6, 2)
    assert order.kept.text == "Inductor keeps the order"
    assert [op is each.op for op, each in zip(order.ops, (LAUNCH_W, wait(0), LAUNCH_Y), strict=False)] == [True] * 3


def test_what_stands_elsewhere_is_found():
    """A wait behind a product, a product ahead of a launch, launches in another order, a wait that is left out."""
    prepared = prepared_of(layer())
    late = match(prepared, [LAUNCH_W, MM, wait(0), MM, LAUNCH_Y, wait(4), LAUNCH_PART, wait(6)]).kept
    assert late == OrderKept(6, 2, ("full_w",))
    assert late.text.endswith(
        "puts 1 of 6 launches and waits elsewhere among them and the 2 ops that it leaves whole: full_w"
    )
    early = match(prepared, [MM, LAUNCH_W, wait(1), MM, LAUNCH_Y, wait(4), LAUNCH_PART, wait(6)]).kept
    assert early.moved == ("launch_w", "full_w")
    order = match(prepared, [LAUNCH_W, wait(0), MM, MM, LAUNCH_PART, LAUNCH_Y, wait(5), wait(4)])
    assert named(order)[2:] == ["launch_part", "launch_y", "total", "part"]
    assert order.kept.moved == ("launch_part",)
    gone = match(prepared, [LAUNCH_W, MM, MM, LAUNCH_Y, wait(3), LAUNCH_PART, wait(5)]).kept
    assert (gone.moved, gone.missing, gone.compared) == ((), ("full_w",), 5)
    assert gone.text == "Inductor leaves out full_w"
    assert OrderKept.of(json.loads(json.dumps(gone.to_json()))) == gone


def test_ops_that_are_not_left_whole_are_no_landmarks():
    prepared = prepared_of(layer())
    fused = match(prepared, [LAUNCH_W, MM, wait(0), LAUNCH_Y, wait(3), LAUNCH_PART, wait(5)]).kept
    assert fused == OrderKept(6, 0)
    more = Call(c10d.broadcast.default, group="0")
    extra = match(prepared, [LAUNCH_W, wait(0), MM, MM, more, LAUNCH_Y, wait(5), LAUNCH_PART, wait(7)])
    assert named(extra)[2] is None
    assert extra.kept == OrderKept(6, 2)


def test_members_of_a_coalesced_launch_are_waited_for_one_by_one():
    g = Graph()
    x = g.input("x", 4)
    both = g(c10d.all_reduce_coalesced.default, [x, x], "sum", "0")
    parts = [g.wait(g(operator.getitem, both, i)) for i in (0, 1)]
    prepared = prepared_of(g.program(*parts, groups=TWO))
    order = match(prepared, [Call(c10d.all_reduce_coalesced_.default, group="0"), wait(0), wait(0)])
    assert named(order) == [step.name for step in prepared.steps if step.waits or step.fact is not None]
    assert order.kept == OrderKept(3, 0)


def test_a_recorder_knows_a_wait_by_the_storage():
    told = []
    results = [torch.zeros(4), torch.zeros(4)]

    def carry(op, *args, **kwargs):
        return args[0] if op is c10d.wait_tensor.default else results.pop()

    with Recorder(carry, lambda *words: told.append(words)) as seen:
        first = c10d.all_gather_into_tensor.default(torch.zeros(2), 2, "0")
        second = c10d.reduce_scatter_tensor.default(torch.zeros(8), "sum", 2, group_name="7")
        c10d.wait_tensor.default(second.view(2, 2))
        torch.mm(torch.zeros(2, 2), torch.zeros(2, 2))
        c10d.wait_tensor.default(first)
    calls = [each for each in seen.calls if each.communicates]
    numbers = [seen.calls.index(each) for each in calls]
    assert [(each.group, each.waits_for) for each in calls] == [
        ("0", None), ("7", None), (None, numbers[1]), (None, numbers[0])
    ]  # fmt: skip
    assert aten.mm.default in [each.op for each in seen.calls]
    assert [doing for doing, _ in told] == ["launches", "launches", "waits for", "waits for"]


def test_launches_into_parts_of_one_storage_are_told_apart():
    """Inductor reduces slices of a bucket where they are; a view that is none of them is waited for with the newest."""
    bucket = torch.zeros(12)
    one, two, rest = bucket[:4], bucket[4:8], bucket[8:]
    with Recorder(lambda _op, tensor, *_: tensor, lambda *_: None) as seen:
        for part in (one, two):
            c10d.all_reduce_.default(part, "sum", "0")
        for part in (one.view(2, 2), two, one, rest, rest[:0]):
            c10d.wait_tensor.default(part)
    launches = [number for number, call in enumerate(seen.calls) if call.group is not None]
    waits = [call.waits_for for call in seen.calls if call.group is None and call.communicates]
    assert waits == [launches[which] for which in (0, 1, 0, 1, 1)]
    assert [call.again for call in seen.calls if call.waits_for is not None] == [False, False, True, True, True]


def test_a_wait_of_a_wait_waits_for_its_launch():
    g = Graph()
    x = g.input("x", 4)
    launch = g(c10d.all_reduce.default, x, "sum", "0")
    first = g.wait(launch)
    again = g.wait(g(aten.view.default, first, [2, 2]))
    prepared = prepared_of(g.program(again, groups=TWO))
    order = match(prepared, [LAUNCH_Y, wait(0), dataclasses.replace(wait(0), again=True)])
    assert named(order) == [launch.name, first.name, again.name]
    assert order.kept == OrderKept(3, 0)
    assert match(prepared, [LAUNCH_Y, wait(0)]).kept == OrderKept(2, 0), "PyTorch 2.15 leaves it out"


def test_calls_are_listened_to_and_all_is_as_it_was():
    prepared = prepared_of(layer())
    order = match(prepared, [LAUNCH_W, wait(0), MM, MM, LAUNCH_Y, wait(4), LAUNCH_PART, wait(6)])
    heard = []

    def wrap(step):
        return dataclasses.replace(step, call=lambda *args: heard.append((step.name, step.call, args)))

    before = c10d.wait_tensor.default
    listener = Listener(order, wrap)
    for _ in range(2):
        with listener:
            c10d.all_gather_into_tensor.default("w", 2, "0")
            c10d.wait_tensor.default("w")
            c10d.all_reduce_.default("y", "sum", "0")
    with pytest.raises(ZeroDivisionError), listener:
        raise ZeroDivisionError
    assert c10d.wait_tensor.default is before
    assert (
        heard[:3]
        == heard[3:]
        == [
            ("launch_w", LAUNCH_W.op, ("w", 2, "0")),
            ("full_w", before, ("w",)),
            ("launch_y", LAUNCH_Y.op, ("y", "sum", "0")),
        ]
    )


# Through Inductor, in this process


@pytest.fixture
def silent():
    """Process groups that send nothing, for what looks them up."""
    yield stand_in_groups
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What is compiled goes away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("inductor")))
        yield


class Noted:
    """A watch that keeps what it is told."""

    program = None

    def __init__(self):
        self.told = []

    def progress(self, doing, node):
        self.told.append((doing, node))

    def stage(self, text):
        pass


@pytest.mark.full
def test_the_same_numbers_and_calls_by_node(cache, silent):
    """Communication on streams: no process group is needed."""
    graphs = make_set([layer(after=True)], BenchSettings(ranks=2, emulated=True))
    made, watch = graphs.maker.of_rank(0), Noted()
    silent(graphs.layout)
    transport = Transport(graphs.prepared[0], graphs.layout, load_model("laptop-cpu"), Recorded())
    context = bench_worker.RankContext(0, CpuPlace(), Alone(), watch, 0)
    eager = bench_worker.make_bench(Variant(0), transport.prepared, context, transport)
    bench = bench_worker.make_bench(Variant(0, compiled=True), transport.prepared, context, transport)
    assert type(eager) is bench_worker.Bench
    expected = eager.run(own_inputs(eager.prepared, made)).outputs
    for first in (True, False):
        watch.told.clear()
        found = bench.run(bench.ready(own_inputs(bench.prepared, made))).outputs
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        assert [node for _, node in watch.told][:2] != ["launch_w", "full_w"] if first else True
    waits = ["full_w", "total", "part", "end_of_communication"]
    assert [node for doing, node in watch.told if doing == "waits for"] == waits
    assert [node for doing, node in watch.told if doing == "launches"] == ["launch_w", "launch_y", "launch_part"]
    bench.sample(made, keep=True)
    data = bench.to_json()
    assert sorted(bench.waits[0]) == sorted(waits)
    assert data["exposed_ns"] == [sum(bench.waits[0].values())]
    assert data["order"] == {"compared": 6, "whole": 2, "moved": [], "missing": []}
    assert eager.to_json()["order"] is None


@pytest.mark.full
@pytest.mark.parametrize("kept", [True, False])
def test_fusions_move_no_wait(kept, cache, silent, monkeypatch):
    """The sine and the cosine of one input would make one kernel, which needs the wait."""
    if not kept:
        monkeypatch.setattr(inductor, "landmark_options", dict)
    g = Graph()
    x, y = g.input("x", 4, 4), g.input("y", 4, 4)
    launch = g(c10d.all_reduce.default, y, "sum", "0")
    sine, product = g(aten.sin.default, x), g(aten.mm.default, y, y)
    last = g(aten.add.Tensor, g(aten.cos.default, x), g.wait(launch))
    graphs = make_set([g.program(sine, product, last, groups=TWO)], BenchSettings(ranks=2, emulated=True))
    silent(graphs.layout)
    transport = Transport(graphs.prepared[0], graphs.layout, load_model("laptop-cpu"), Recorded())
    context = bench_worker.RankContext(0, CpuPlace(), Alone(), Noted(), 0)
    bench = bench_worker.make_bench(Variant(0, compiled=True), transport.prepared, context, transport)
    bench.run(bench.ready(own_inputs(bench.prepared, graphs.maker.of_rank(0))))
    order = bench.to_json()["order"]
    assert order["compared"] == 2 and bool(order["moved"]) is not kept


class Seen(Exception):
    """Ends compiling where a test has seen enough."""


def test_members_of_a_bucket_are_one_node_on_a_gpu(cache, silent, monkeypatch):
    """Inductor puts inputs side by side with one kernel for all there, which its scheduler has as one node."""
    from torch._inductor import ir
    from torch._inductor.graph import GraphLowering

    monkeypatch.setattr(ir, "is_gpu", lambda kind: True)
    monkeypatch.setattr(GraphLowering, "has_feature", lambda self, device, feature: True)
    before, after, groups = {}, {}, []

    def by_name(nodes):
        return {part.get_name(): set(part.ancestors) for node in nodes for part in node.get_nodes()}

    def watched(nodes):
        before.update(by_name(nodes))
        groups.extend(node for node in nodes if len(node.get_nodes()) > 1)
        after.update(by_name(landmarks.in_a_chain(nodes)))
        raise Seen

    monkeypatch.setattr(inductor, "landmark_options", lambda: {"_pre_fusion_custom_pass": watched})
    g = Graph()
    a, b, x = g.input("a", 4), g.input("b", 4), g.input("x", 4, 4)
    launch = g(c10d.all_reduce.default, g(aten.cat.default, [a, b]), "sum", "0")
    wait = g(c10d.wait_tensor.default, launch)
    program = g.program(g(aten.mm.default, x, x), wait, groups=TWO)
    silent(make_set([program], BenchSettings(ranks=2, emulated=True)).layout)
    with pytest.raises(CompileError, match="Seen"):
        Compiled(prepared_of(program), {"a": torch.ones(4), "b": torch.ones(4), "x": torch.ones(4, 4)})
    (group,) = groups
    assert len(group.get_nodes()) == 2 and not group.ancestors
    assert all(before[name] <= after[name] and name not in after[name] for name in before)
    launched = next(name for name, ops in after.items() if ops >= set(group.get_operation_names()))
    assert [name for name in after if after[name] - before[name] >= {launched}], "the product waits for the launch"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_bucket_of_inputs_on_a_device(tmp_path):
    g = Graph()
    a, b, x = (g.input(name, 64, 64) for name in "abx")
    launch = g(c10d.all_reduce.default, g(aten.cat.default, [a, b]), "sum", "0")
    wait = g(c10d.wait_tensor.default, launch)
    save(g.program(g(aten.mm.default, x, x), wait, groups=TWO), tmp_path / "bucket.fx.txt")
    command = ["bench", str(tmp_path / "bucket.fx.txt"), "--device", "emulated-cuda", "--compile", "--repeat", "6"]
    assert run(command) == 0


@pytest.mark.full
def test_inputs_that_are_written_or_no_tensors_constants_and_random_numbers(cache):
    g = Graph()
    x, scale, nothing = g.input("x", 8), g.value("scale", 0.5), g.value("nothing", None)
    table = g.attribute("table", torch.arange(8.0))
    noise = g(aten.rand_like.default, x)
    scaled = g(aten.mul.Tensor, g(aten.add.Tensor, x, table), scale, val=x.meta["val"])
    written = g(aten.add_.Tensor, x, 1)
    result = g(aten.add.Tensor, scaled, noise)
    prepared = prepared_of(g.program(result, nothing, [written, (scale,)]))
    eager = RankRun(prepared, 0, 3, lambda *_: None)
    compiled = CompiledRun(eager, lambda step: step, nullcontext, Direct())
    given = {"x": torch.linspace(-1, 1, 8), "scale": 0.5, "nothing": None}
    for _ in range(2):
        one, other = eager(own_inputs(prepared, given)), compiled(own_inputs(prepared, given))
        assert other.outputs[1] is None and other.outputs[3] == 0.5
        for new, old in ((other.outputs[0], one.outputs[0]), (other.written["x"], one.written["x"])):
            torch.testing.assert_close(new, old)
        assert torch.equal(other.written["x"], given["x"] + 1)
        assert torch.equal(other.outputs[2], given["x"] + 1)


def test_sub_graphs_are_compiled_for_the_device_of_the_run():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(aten.full.default, ([8], 0.0), {"device": torch.device("cuda:0")})
    graph.output(graph.call_function(aten.add.Tensor, (x, made)))
    made.meta["val"] = torch.empty(8, device="meta")
    whole = torch.fx.Graph()
    whole.output(whole.get_attr("inner"))
    module = torch.nn.Module()
    module.inner = torch.fx.GraphModule(torch.nn.Module(), graph)
    placed = inductor._placed(torch.fx.GraphModule(module, whole), CallSettings(Homes("cpu", accelerated=True)))
    (here,) = placed.inner.graph.find_nodes(op="call_function", target=aten.full.default)
    assert here.kwargs == {"device": torch.device("cpu")} and "val" not in here.meta
    assert made.kwargs == {"device": torch.device("cuda:0")} and "val" in made.meta
    assert torch.equal(placed.inner(torch.ones(8)), torch.ones(8))


def test_what_inductor_does_not_take_is_one_line(cache):
    g = Graph()
    x = g.input("x", 8)
    bad = g(aten.mm.default, x, x, val=x.meta["val"], name="turned")
    with pytest.raises(CompileError, match="Inductor cannot compile it: node 'turned': ") as caught:
        Compiled(prepared_of(g.program(bad)), {"x": torch.zeros(8)})
    assert caught.value.exit_code == 1
    assert "\n" not in caught.value.render()


def test_no_compiler(monkeypatch):
    none = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with none, pytest.raises(InputError, match=r"--compile needs a C\+\+ compiler on the CPU.* none is found.*CXX"):
        require_compiler("cpu")
    require_compiler("cpu")
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(InputError, match="--compile needs triton"):
        require_compiler("cuda")
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    require_compiler("cuda")


def test_only_options_of_this_release_are_given(monkeypatch):
    prepared = prepared_of(layer())
    options = inductor._options(prepared)
    assert options["reorder_for_peak_memory"] is False and options["compile_threads"] == 1
    monkeypatch.setitem(inductor._ORDER, "made_up", 1)
    assert inductor._options(prepared) == options


# Ways, and what the report makes of them


def test_every_graph_in_every_way():
    assert [(way.called, way.against) for way in variants(3)] == [("graph 1", None), ("graph 2", 0), ("graph 3", 0)]
    assert [(way.called, way.against) for way in variants_of(BenchSettings(graphs=2, compiled=True))] == [
        ("graph 1", None),
        ("graph 2", 0),
        ("graph 1, compiled", 0),
        ("graph 2, compiled", 2),
    ]
    assert all(way.captured for way in variants(2, compiled=True, captured=True))


def test_compiled_results_are_compared_within_rounding():
    index = prepared_of(layer()).index
    assert within_rounding(BenchSettings(), [index]).tolerance == pytest.approx(5e-5)
    assert within_rounding(BenchSettings(tolerance=0.5), [index]).tolerance == 0.5
    assert within_rounding(BenchSettings(), []).tolerance == 0.0


def test_a_compiler_is_asked_for_only_where_it_is_needed(monkeypatch):
    asked = []
    monkeypatch.setattr("commcc.replay.bench.graph_set.require_compiler", asked.append)
    graphs = make_set([layer()], BenchSettings(ranks=2))
    check_variants(graphs, BenchSettings(ranks=2))
    assert not asked
    check_variants(graphs, BenchSettings(ranks=2, compiled=True))
    assert asked == ["cpu"]


# On ranks


@on_ranks
@pytest.mark.full
def test_two_graphs_on_two_ranks(capsys, tmp_path):
    files = [tmp_path / "before.fx.txt", tmp_path / "after.fx.txt"]
    for after, file in zip((False, True), files, strict=True):
        save(layer(after), file)
    options = ["--compile", "--repeat", "6", "--warmup", "1", "--timeout", "280", "--json"]
    code = run(["bench", *map(str, files), *options])
    out, err = capsys.readouterr()
    assert code == 0, err
    found = json.loads(out)
    names = [*map(str, files), *(f"{file}, compiled" for file in files)]
    assert [graph["name"] for graph in found["graphs"]] == names
    assert [(each["graph"], each["against"]) for each in found["comparisons"]] == [(2, 1), (3, 1), (4, 3)]
    assert {each["results"]["status"] for each in found["comparisons"]} <= {"equal", "within tolerance"}
    for graph in found["graphs"]:
        assert len(graph["samples_ms"]) == 6
        assert 0 < graph["exposed_ms"]["median"] < graph["wall_ms"]["median"]
    kept = {"compared": 6, "whole": 2, "moved": [], "missing": []}
    assert [graph["order"] for graph in found["graphs"]] == [None, None, kept, kept]
    found["graphs"][2]["exposed_ms"] = None  # as of a recorded graph
    shown = printed(capsys, found)
    assert f"4  {names[3]}" in shown
    assert next(line for line in shown.splitlines() if line.startswith("3 ")).split()[-6:-4] == ["-", "-"]
    assert "graph 4 against graph 3" in shown
    assert "compiled: by Inductor" in shown
    assert benching.brief(found).count(";") == 2
