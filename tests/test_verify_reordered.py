"""AFTER has the nodes of BEFORE in another order: what is proved without a walk of its own, and what is not."""

from __future__ import annotations

import operator
import random
from dataclasses import replace

import pytest
import torch

from commcc import verify as verifier
from commcc.graph.program import ProcessGroup
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from commcc.verify import verify
from commcc.verify.reordered import reordered
from tests.attack_edits import edited
from tests.attack_graphs import random_program
from tests.corruptions import copied
from tests.step_graphs import sample
from tests.verify_graphs import Graph, aten, c10d, proved

FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default


def turned(program, *names):
    """The same program, the named nodes in the order of their names where the last of them is."""
    graph = copied(program.graph)
    nodes = {node.name: node for node in graph.nodes}
    last = [node for node in graph.nodes if node.name in names][-1]
    for node in map(nodes.__getitem__, names):
        last.append(node)
        last = node
    return replace(program, graph=graph)


def made(*calls, shape=(4, 4), groups=None):
    """Inputs x and y, and calls of ops, each with the names of its operands; what nobody takes is returned."""
    g = Graph()
    nodes = {name: g.input(name, *shape) for name in ("x", "y")}
    for name, target, *args in calls:
        keywords = args.pop() if isinstance(args[-1], dict) else {}
        nodes[name] = g(target, *(nodes.get(arg, arg) for arg in args), name=name, **keywords)
    return g.program(*(node for node in nodes.values() if not node.users), groups=groups)


FREE = {
    "ops": [("a", aten.sin.default, "x"), ("b", aten.cos.default, "y")],
    "views and copies": [("a", aten.t.default, "x"), ("b", aten.clone.default, "y")],
    "launches": [
        ("a", c10d.all_reduce.default, "x", "sum", "0"),
        ("b", c10d.all_reduce.default, "y", "sum", "1"),
        ("c", c10d.wait_tensor.default, "a"),
        ("d", c10d.wait_tensor.default, "b"),
    ],
    "attention without dropout": [("a", FLASH, "x", "x", "x", 0.0), ("b", FLASH, "y", "y", "y", 0.0)],
    "a copy that blocks": [
        ("a", torch.ops.prims.device_put.default, "x", torch.device("cpu"), False),
        ("b", aten._to_copy.default, "y", {"non_blocking": False}),
    ],
    "a check": [("a", aten._assert_async.default, "y"), ("b", aten.cos.default, "x")],
}
BOUND = {
    "random numbers": [("a", aten.rand_like.default, "x"), ("b", aten.rand_like.default, "y")],
    "attention with dropout": [("a", FLASH, "x", "x", "x", 0.5), ("b", FLASH, "y", "y", "y", 0.5)],
    "a write and a read": [("a", aten.add_.Tensor, "x", 1), ("b", aten.sin.default, "x")],
    "a copy that does not block": [
        ("a", aten._to_copy.default, "x", {"non_blocking": True}),
        ("b", aten._to_copy.default, "y", {"non_blocking": False}),
    ],
    "a copy that does not block, by place": [
        ("a", torch.ops.prims.device_put.default, "x", torch.device("cpu"), True),
        ("b", aten.cos.default, "y"),
    ],
    "an open overload": [
        ("a", torch.ops.prims.device_put, "x", torch.device("cpu"), True),
        ("b", aten.cos.default, "y"),
    ],
    "an effect": [("a", aten._print.default, "here"), ("b", aten.cos.default, "y")],
    "a launch into a buffer": [
        ("a", c10d.all_reduce_.default, "x", "sum", "0"),
        ("b", aten.cos.default, "y"),
        ("c", c10d.wait_tensor.default, "a"),
    ],
    "a wait for an input": [("a", c10d.wait_tensor.default, "x"), ("b", aten.cos.default, "x")],
}


@pytest.mark.parametrize("case", FREE)
def test_an_order_that_changes_nothing(case):
    results = FREE[case]
    if "attention" in case:
        before = made(*results, shape=(1, 2, 4, 8))
    else:
        before = made(*results, shape=(1,) if case == "a check" else (4, 4))
    after = turned(before, "b", "a")
    assert [node.name for node in after.graph.nodes] != [node.name for node in before.graph.nodes]
    assert reordered(before, after)
    assert reordered(after, before)
    proved(before, after)


@pytest.mark.parametrize("case", BOUND)
def test_where_the_order_may_count(case):
    before = made(*BOUND[case], shape=(1, 2, 4, 8) if "attention" in case else (4, 4))
    assert not reordered(before, turned(before, "b", "a"))


def test_random_numbers_in_their_order():
    """What stands around them may move."""
    calls = [*BOUND["random numbers"], ("c", aten.cos.default, "x")]
    before = made(*calls)
    assert reordered(before, turned(before, "c", "a", "b"))
    assert not reordered(before, turned(before, "c", "b", "a"))


def test_what_is_in_flight_is_read_behind_its_wait_alone():
    """A view of what a launch fills shows it before the wait as well as behind it."""

    def program(viewed):
        g = Graph()
        x = g.input("x", 4, 4)
        launch = g(c10d.all_reduce.default, x, "sum", "0", name="a")
        g.wait(launch)
        source = launch if viewed else x
        return g.program(g(aten.t.default, source, name="b"), g(aten.cos.default, x, name="c"))

    for viewed in (False, True):
        before = program(viewed)
        assert reordered(before, turned(before, "c", "b")) is not viewed


def test_parts_of_a_coalesced_launch():
    def program(read):
        g = Graph()
        x, y = g.input("x", 4, 4), g.input("y", 4, 4)
        call = g(c10d.all_reduce_coalesced.default, [x, y], "sum", "0")
        first, second = (g(operator.getitem, call, i, name=f"part_{i}") for i in range(2))
        other = g(aten.cos.default, x, name="c")
        shown = [g(aten.sin.default, first)] if read else []
        return g.program(*shown, g.wait(first), g.wait(second), other)

    for read in (False, True):
        before = program(read)
        assert reordered(before, turned(before, "c", "part_1", "part_0")) is not read


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.ops.symm_mem.one_shot_all_reduce.default, ("sum", "0")),
        (torch.ops._dtensor.shard_dim_alltoall.default, (0, 1, "0")),
        (torch.ops.higher_order.invoke_subgraph, ("region", "body")),
    ],
)
def test_what_ranks_meet_in_and_sub_graphs_stay(target, args):
    g = Graph()
    x = g.input("x", 4, 4)
    with g.mode:
        val = torch.empty(4, 4)
    launch = g(target, x, *args, name="a", val=val)
    before = g.program(g(aten.cos.default, x, name="b"), g.wait(launch))
    assert not reordered(before, turned(before, "b", "a"))


def test_nodes_that_are_not_the_same():
    dead = [(name, aten.sin.default, "x") for name in "ef"]
    before = made(*dead, *FREE["launches"], groups={"0": ProcessGroup("0", 4), "1": ProcessGroup("1", 4)})
    before.graph.find_nodes(op="output")[0].args = ((*before.graph.nodes,)[-3:-1],)
    assert reordered(before, turned(before, "b", "a"))

    def changed(change):
        after = turned(before, "b", "a")
        nodes = {node.name: node for node in after.graph.nodes}
        change(nodes)
        return after

    def dtype(nodes):
        with torch._subclasses.FakeTensorMode():
            nodes["d"].meta["val"] = torch.empty(4, 4, dtype=torch.bfloat16)

    changes = {
        "operand": lambda nodes: setattr(nodes["a"], "args", (nodes["y"], "sum", "0")),
        "number": lambda nodes: setattr(nodes["a"], "args", (nodes["x"], "max", "0")),
        "target": lambda nodes: setattr(nodes["a"], "target", c10d.broadcast.default),
        "name": lambda nodes: setattr(nodes["c"], "name", "e"),
        "val": dtype,
        "no val": lambda nodes: nodes["d"].meta.clear(),
        "outputs": lambda nodes: setattr(nodes["output"], "args", (nodes["output"].args[0][::-1],)),
        "one less": lambda nodes: nodes["e"].graph.erase_node(nodes["e"]),
        "one twice": lambda nodes: setattr(nodes["f"], "name", "e"),
        "one more": lambda nodes: nodes["d"].graph.create_node("call_function", aten.sin.default, (nodes["x"],)),
    }
    for name, change in changes.items():
        assert not reordered(before, changed(change)), name
    assert not reordered(before, replace(turned(before, "b", "a"), groups={"0": ProcessGroup("0", 4)}))
    assert not reordered(before, turned(before, "y", "x"))


def test_constants_of_another_module_are_looked_into():
    g = Graph()
    x, held_there = g.input("x", 4), g.attribute("c", torch.arange(4.0))
    before = g.program(g(aten.add.Tensor, x, held_there, name="a"), g(aten.cos.default, x, name="b"))
    after = turned(before, "b", "a")
    assert reordered(before, after)
    other = torch.nn.Module()
    other.c = torch.ones(4)
    after = replace(after, root=other)
    assert not reordered(before, after)
    assert verify(before, after).status != "proved"


@pytest.mark.parametrize(
    ("name", "walked"), [("tiny_llama_fsdp4_bw", 1), ("tiny_llama_fsdp2_tp2_fw", 1), ("tiny_deepseek_fsdp4_ep2", 2)]
)
def test_what_reorder_moves_needs_no_walk_of_its_own(monkeypatch, name, walked):
    """But for the step that writes parameters."""
    before = sample(name)
    after = run(before, parse_pipeline("reorder"), model=load_model("h100")).program
    assert [node.name for node in after.graph.nodes] != [node.name for node in before.graph.nodes]
    walks, walk = [], verifier.trace_program
    monkeypatch.setattr(verifier, "trace_program", lambda *a, **k: walks.append(a[1]) or walk(*a, **k))
    verdict = proved(before, after)
    assert len(walks) == walked
    monkeypatch.setattr(verifier, "reordered", lambda *_: False)
    assert verify(before, after) == verdict


def test_a_walk_of_random_graphs_says_the_same(monkeypatch):
    """Small graphs with launches, views, writes and random numbers, of which nodes were moved."""
    shortcuts = []
    monkeypatch.setattr(verifier, "reordered", lambda *a: shortcuts.append(reordered(*a)) or shortcuts[-1])
    compared = 0
    for seed in range(160):
        rng = random.Random(f"reordered {seed}")
        try:
            before = random_program(rng)
        except (RuntimeError, ValueError):  # PyTorch does not take every random graph
            continue
        after = edited(before, "move", rng)
        shortcuts.clear()
        verdict = None if after is None else verify(before, after)
        if not any(shortcuts):
            continue
        compared += 1
        with monkeypatch.context() as without:
            without.setattr(verifier, "reordered", lambda *_: False)
            assert verify(before, after) == verdict, seed
    assert compared > 10
