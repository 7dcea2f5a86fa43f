"""Control edges: what reorder writes, that everything reads through it, and what the verifier does not accept."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from commcc.apply import apply_plan
from commcc.cli.main import run as command
from commcc.diff import diff
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.graph.ops import op_name
from commcc.passes.control_edges import control_edges
from commcc.passes.options import parse_pipeline
from commcc.plan import ControlEdge, Plan, Reordering
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from commcc.timing.cost.fusion import Chains
from commcc.timing.cost.traffic import Traffic
from commcc.timing.simulate import Simulator
from commcc.verify import verify
from tests.case_files import graph_lines
from tests.effort import examples
from tests.random_graphs import GraphBuilder, random_program, shuffled
from tests.virtual_ranks import VirtualRanks, random_inputs, same

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
DUMP = Path(__file__).parent / "data" / "containers" / "dumps" / "controldeps.txt"
RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))


def held(program, order=None, extra=()):
    """The program with the control edges of an order (its own by default)."""
    index = build_index(program)
    edges, _ = control_edges(index, order or range(len(index)))
    plan = Plan("reorder", index.fingerprint, order and Reordering(order), (*edges, *extra))
    return apply_plan(program, index, plan), plan


def small():
    """A gather and a reduce-scatter, each beside a matmul, and something to fuse."""
    b = GraphBuilder()
    p, x = b.placeholder("p", (4, 8)), b.placeholder("x", (8, 8))
    gather = b.call(c10d.all_gather_into_tensor.default, p, 2, "0")
    gather.name = "ag"
    first = b.call(aten.mm.default, x, x)
    first.name = "mm_1"
    second = b.call(aten.addmm.default, x, first, x, beta=2)
    second.name = "mm_2"
    full = b.call(c10d.wait_tensor.default, gather)
    full.name = "w"
    third = b.call(aten.mm.default, second, full)
    third.name = "mm_3"
    shard = b.call(c10d.reduce_scatter_tensor.default, third, "sum", 2, "0")
    shard.name = "rs"
    fourth = b.call(aten.mm.default, third, x)
    fourth.name = "mm_4"
    done = b.call(c10d.wait_tensor.default, shard)
    done.name = "v"
    return b.program([done, fourth], {"0": 2})


def test_the_form():
    after, plan = held(small())
    assert [f"{e.node} {e.after}: {e.reason}" for e in plan.of(ControlEdge)] == [
        "3 2: runs while 'ag' moves bytes",
        "5 4: 'mm_2' hides 'ag'",
        "8 7: runs while 'rs' moves bytes",
        "9 8: 'mm_4' hides 'rs'",
    ]
    lines = [line.split("  #")[0] for line in graph_lines(after.graph)]
    assert lines == [
        "p = input",
        "x = input",
        "ag = _c10d_functional.all_gather_into_tensor(p, 2, 0)",
        "subgraph_mm_1 = subgraph_mm_1()",
        "mm_1 = higher_order.control_deps((ag,), subgraph_mm_1, x)",
        "mm_2 = aten.addmm(x, mm_1, x, beta=2)",
        "subgraph_w = subgraph_w()",
        "w = higher_order.control_deps((mm_2,), subgraph_w, ag)",
        "mm_3 = aten.mm(mm_2, w)",
        "rs = _c10d_functional.reduce_scatter_tensor(mm_3, sum, 2, 0)",
        "subgraph_mm_4 = subgraph_mm_4()",
        "mm_4 = higher_order.control_deps((rs,), subgraph_mm_4, mm_3, x)",
        "subgraph_v = subgraph_v()",
        "v = higher_order.control_deps((mm_4,), subgraph_v, rs)",
        "return (v, mm_4)",
    ]
    assert [line.split("  #")[0] for line in graph_lines(after.root.subgraph_mm_1.graph)] == [
        "arg_0 = input",
        "mm_default = aten.mm(arg_0, arg_0)",
        "return mm_default",
    ]


def test_pytorch_makes_the_same():
    """The same edges by PyTorch's own pass: the same nodes, arguments and sub-graphs."""
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
    from torch.utils._ordered_set import OrderedSet

    program = small()
    after, plan = held(program)
    module = program.graph_module()
    nodes, names = {n.name: n for n in module.graph.nodes}, build_index(program).names
    wanted: dict[fx.Node, OrderedSet[fx.Node]] = {}
    for edge in plan.of(ControlEdge):
        wanted.setdefault(nodes[names[edge.node]], OrderedSet()).add(nodes[names[edge.after]])
    preserve_node_ordering(module.graph, wanted)
    assert graph_lines(module.graph) == graph_lines(after.graph)
    for name in ("subgraph_mm_1", "subgraph_w", "subgraph_mm_4", "subgraph_v"):
        theirs, ours = (graph_lines(getattr(root, name).graph) for root in (module, after.root))
        assert theirs == ours


def facts(index, names):
    """All that an index says of the named nodes, by name."""
    number = index.position
    named = [number[name] for name in names]

    def text(found):
        return [index.names[n] for n in found]

    return [
        (
            index.ops[n],
            text(index.data_preds[n]),
            sorted(text(index.users[n])),
            index.tensors[n],
            index.compute[n],
            index.modules[n],
            index.estimates.work[n],
            index.estimates.flops.get(n),
            n in index.stays,
            [(launch.kind, launch.group, text(launch.inputs), text(launch.waits))]
            if (launch := index.launches.get(n))
            else [],
        )
        for n in named
    ]


@RELAXED
@given(st.integers(0, 10_000), st.integers(0, 100), st.sampled_from([2, 4]))
def test_edges_are_read_through(seed, other, world):
    program = shuffled(random_program(seed, 6, world), random.Random(other))
    after, plan = held(program)
    after.graph.lint()
    verdict = verify(program, after)
    assert verdict.status == "proved", verdict.findings or verdict.unproved
    inputs = random_inputs(program.graph, world, seed)
    there = VirtualRanks(after.graph, inputs, after.root).run()
    assert same(VirtualRanks(program.graph, inputs).run(), there)
    old, new = build_index(program), build_index(after)
    assert facts(old, old.names) == facts(new, old.names)
    assert live_bytes(old).peak_bytes == live_bytes(new).peak_bytes
    assert sum(map(len, new.control.values())) == len(plan.of(ControlEdge))
    for edge in plan.of(ControlEdge):
        assert new.position[old.names[edge.after]] in new.preds(new.position[old.names[edge.node]])
    assert not held(after)[1].of(ControlEdge), "a second time there is nothing to add"


@RELAXED
@given(st.integers(0, 10_000), st.integers(0, 100))
def test_whoever_reorders_keeps_the_overlap(seed, other):
    """Every order that the index then allows keeps compute between launch and wait."""
    program = shuffled(random_program(seed, 6, 2), random.Random(seed))
    after, plan = held(program)
    mixed = shuffled(after, random.Random(other))
    place = {node.name: at for at, node in enumerate(mixed.graph.nodes)}
    names = build_index(program).names
    assert all(place[names[e.after]] < place[names[e.node]] for e in plan.of(ControlEdge))
    assert verify(program, mixed).status == "proved"


@pytest.mark.parametrize(
    "passes", ["tag,bucket{groups=all}", "dedup,cleanup{metadata=all}", "groups{roles=all_gather}"]
)
@pytest.mark.sampled(1)
def test_other_passes_on_held_graphs(passes):
    for seed in range(12):
        program = random_program(seed, 6, 2)
        after, _ = held(program)
        result = run(after, parse_pipeline(passes))
        assert result.verified == "proved"
        assert verify(program, result.program).status == "proved"
        inputs = random_inputs(program.graph, 2, seed)
        there = VirtualRanks(result.program.graph, inputs, result.program.root).run()
        assert same(VirtualRanks(program.graph, inputs).run(), there)


def test_held_launches_are_not_merged():
    index = build_index(held(small())[0])
    result = run(held(small())[0], parse_pipeline("bucket{groups=all}"))
    assert not result.changed
    reasons = {str(entry.reason) for entry in result.steps[0].plan.left_out}
    assert "is held in place by a control edge" in reasons
    assert {index.names[n] for n in index.held} == {"ag", "mm_1", "mm_2", "w", "rs", "mm_4", "v"}


# Costs


def test_prices_are_those_of_the_wrapped_ops():
    model = load_model("h100")
    for seed in range(20):
        program = random_program(seed, 8, 2)
        old, new = build_index(program), build_index(held(program)[0])
        was, now = model.price(old), model.price(new)
        assert [was.ns[old.position[n]] for n in old.names] == [now.ns[new.position[n]] for n in old.names]
        assert Simulator(old, was).run().step_ns == Simulator(new, now).run().step_ns


def test_an_edge_splits_a_chain_that_cannot_be_one_kernel():
    """y adds what is made before the launch to what is held behind it: they cannot run at once."""
    b = GraphBuilder()
    p, q = b.placeholder("p", (8, 8)), b.placeholder("q", (8, 8))
    x = b.call(aten.relu.default, b.call(aten.mm.default, p, p))
    launch = b.call(c10d.all_reduce.default, x, "sum", "0")
    side = b.call(aten.mm.default, q, q)
    done = b.call(c10d.wait_tensor.default, launch)
    y = b.call(aten.add.Tensor, x, side)
    program = b.program([b.call(aten.mm.default, y, y), done], {"0": 2})
    after, _ = held(program)
    chains = []
    for each in (program, after):
        index = build_index(each)
        of = Chains(index, Traffic(index)).of
        chains.append(of[index.position[x.name]] == of[index.position[y.name]])
    assert chains == [True, False]


# Files and real graphs


def test_a_dump_of_pytorch():
    program = load(DUMP)
    index = build_index(program)
    assert {index.names[n]: [index.names[a] for a in after] for n, after in index.control.items()} == {
        "wait_tensor": ["mm"],
        "split": ["sum_1"],
    }
    for node in index.control:
        assert index.position[f"subgraph_{index.names[node]}"] in index.preds(node), "fetched before it is run"
    assert index.wait_of == {index.position["wait_tensor"]: index.position["all_gather_into_tensor"]}
    assert identify(index).collectives[0].role == "fsdp"


@pytest.mark.parametrize("extension", ["fx.txt", "pt2"])
def test_files(tmp_path, extension):
    program = small()
    after, _ = held(program)
    save(after, tmp_path / f"g.{extension}")
    again = load(tmp_path / f"g.{extension}")
    assert build_index(again).fingerprint == build_index(after).fingerprint
    assert build_index(again).control == build_index(after).control
    assert verify(program, again).status == "proved"
    assert graph_lines(again.graph) == graph_lines(after.graph)


@pytest.mark.parametrize(
    "name", ["tiny_llama_fsdp4_bw", "tiny_moe_ep2_fw", "tiny_llama_fsdp2_tp2_bw", "tiny_llama_joint"]
)
@pytest.mark.sampled(1)
def test_samples(name, tmp_path):
    program = load(SAMPLES / f"{name}.fx.txt.gz")
    model = load_model("h100")
    plain, with_edges = (
        run(program, parse_pipeline(f"reorder{how}"), model=model) for how in ("", "{control_deps=true}")
    )
    assert with_edges.verified == "proved"
    report = with_edges.steps[0].report
    assert report["control_edges"] > 20
    assert "control_edges" not in plain.steps[0].report
    for was, now in zip(plain.predictions, with_edges.predictions, strict=True):
        assert was.timeline.step_ns == now.timeline.step_ns
        assert was.memory.peak_bytes == now.memory.peak_bytes
    kept = [n.name for n in with_edges.program.graph.nodes if n.op != "get_attr"]
    assert kept == [n.name for n in plain.program.graph.nodes if n.op != "get_attr"]
    save(with_edges.program, tmp_path / "g.fx.txt")
    assert verify(program, load(tmp_path / "g.fx.txt")).status == "proved"


def test_a_diff_reads_through_edges():
    program = small()
    found = diff(program, held(program)[0])
    assert [(group.op, len(group.nodes)) for group in found.added] == [("get_attr", 4)]
    assert not (found.removed or found.rewired or found.replaced or found.moved)
    assert [f"{c.name}: {c.before} -> {c.after}" for c in found.changed] == [
        "mm_1: %, % -> %, % behind ag",
        "w: % -> % behind mm_2",
        "mm_4: %, % -> %, % behind rs",
        "v: % -> % behind mm_4",
    ]


def test_the_command(tmp_path, capsys):
    target = tmp_path / "out.fx.txt"
    source = str(SAMPLES / "tiny_llama_fsdp4_bw.fx.txt.gz")
    assert command(["reorder", source, "-o", str(target), "--control-deps", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verified"] == "proved"
    assert document["passes"][0]["report"]["control_edges"] > 20
    wrapped = [n for n in load(target).graph.nodes if op_name(n.target) == "higher_order.control_deps"]
    assert wrapped
    assert command(["verify", source, str(target)]) == 0
