"""Time of the verifier on a large graph: printed, and linear by what it makes, not by the clock."""

from __future__ import annotations

import operator
import random
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from commcc import verify as verifier
from commcc.graph.program import ProcessGroup, Program
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization.fx import parse_text
from commcc.serialization.propagate import propagate
from commcc.verify import verify
from commcc.verify.same import identical
from tests.corruptions import copied
from tests.step_graphs import sample
from tests.verify_graphs import Graph, aten, c10d
from tests.verify_mutants import KINDS

RANKS, ROWS, SIDE = 8, 64, 512
WEIGHTS = 7
BF16 = torch.bfloat16


class Layers:
    """A llama-like forward graph, with values made once for each shape, so that building is quick."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()
        self.fakes: dict[Any, torch.Tensor] = {}

    def fake(self, shape: tuple[int, ...], dtype: torch.dtype = BF16, stride: Any = None) -> torch.Tensor:
        key = (shape, dtype, stride)
        if key not in self.fakes:
            with self.mode:
                made = torch.empty(shape, dtype=dtype)
                self.fakes[key] = made if stride is None else torch.empty_strided(shape, stride, dtype=dtype)
        return self.fakes[key]

    def call(self, target: Any, args: tuple[Any, ...], val: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = val
        return node

    def gathered(self, shards: list[fx.Node]) -> list[fx.Node]:
        """One launch for all shards, or a plain gather when there is one."""
        count, numel = len(shards), ROWS * SIDE
        if count == 1:
            sent = self.call(aten._to_copy.default, (shards[0],), self.fake((ROWS, SIDE)), dtype=BF16)
            full = self.fake((SIDE, SIDE))
            launch = self.call(c10d.all_gather_into_tensor.default, (sent, RANKS, "0"), full)
            return [self.call(c10d.wait_tensor.default, (launch,), full)]
        flat = [self.call(aten.reshape.default, (p, [-1]), self.fake((numel,), torch.float32)) for p in shards]
        whole = self.call(aten.cat.default, (flat,), self.fake((numel * count,), torch.float32))
        sent = self.call(aten._to_copy.default, (whole,), self.fake((numel * count,)), dtype=BF16)
        received = self.fake((numel * count * RANKS,))
        launch = self.call(c10d.all_gather_into_tensor.default, (sent, RANKS, "0"), received)
        waited = self.call(c10d.wait_tensor.default, (launch,), received)
        rows = self.call(aten.view.default, (waited, [RANKS, numel * count]), self.fake((RANKS, numel * count)))
        part = self.fake((RANKS, numel), BF16, (numel * count, 1))
        split = self.call(aten.split_with_sizes.default, (rows, [numel] * count, 1), (part,) * count)
        parts = [self.call(operator.getitem, (split, i), part) for i in range(count)]
        return [self.call(aten.reshape.default, (p, [SIDE, SIDE]), self.fake((SIDE, SIDE))) for p in parts]

    def program(self, layers: int, bucket: int) -> Program:
        shards = [self.graph.placeholder(f"p{i}") for i in range(layers * WEIGHTS)]
        for shard in shards:
            shard.meta["val"] = self.fake((ROWS, SIDE), torch.float32)
        x = self.graph.placeholder("x")
        x.meta["val"] = square = self.fake((SIDE, SIDE))
        outputs = []
        for start in range(0, len(shards), bucket):
            for weight in self.gathered(shards[start : start + bucket]):
                turned = self.call(aten.permute.default, (weight, [1, 0]), self.fake((SIDE, SIDE), BF16, (1, SIDE)))
                product = self.call(aten.mm.default, (x, turned), square)
                tall = self.call(aten.view.default, (product, [1, SIDE, SIDE]), self.fake((1, SIDE, SIDE)))
                act = self.call(aten.mul.Tensor, (tall, tall), tall.meta["val"])
                x = self.call(aten.view.default, (act, [SIDE, SIDE]), square)
                outputs.append(product)
        self.graph.output((*outputs, x))
        return Program(self.graph, torch.nn.Module())


def measured(layers: int, bucket: int) -> tuple[int, int]:
    """Nodes compared, and terms made; the time is printed."""
    before, after = Layers().program(layers, 1), Layers().program(layers, bucket)
    started = time.process_time()
    verdict = verify(before, after)
    seconds = time.process_time() - started
    assert verdict.status == "proved"
    nodes = verdict.checked["nodes_before"] + verdict.checked["nodes_after"]
    print(f"{nodes} nodes, buckets of {bucket}: {seconds:.2f} s, {verdict.checked['terms']} terms")
    return nodes, verdict.checked["terms"]


def test_terms_grow_with_the_graph():
    small, large = measured(16, 14), measured(128, 14)
    assert large[1] / small[1] < 1.1 * large[0] / small[0]


@pytest.mark.full
def test_one_bucket_of_everything():
    nodes, terms = measured(128, 128 * WEIGHTS)
    assert terms < 3 * nodes


def reduced(ranks: int, merged: bool) -> Program:
    """Twelve parameters gathered into a buffer in place and twelve gradients scattered, merged or one by one."""
    g = Graph()
    shards = [g.input(f"p{i}", 2, 3) for i in range(12)]
    gradients = [g.input(f"g{i}", 2 * ranks, 3) for i in range(12)]
    if not merged:
        full = [g.gather(x, "0", ranks) for x in shards]
        return g.program(*[g(aten.sin.default, x) for x in full], *[g.scatter(x, "avg", "0", ranks) for x in gradients])
    buffer = g(aten.empty.memory_format, [12 * 6 * ranks], device="cpu")
    row = g(aten.slice.Tensor, buffer, 0, 12 * 6, 2 * 12 * 6)
    g(aten.copy_.default, row, g(aten.cat.default, [g.flat(x) for x in shards]))
    waited = g.wait(g(c10d.all_gather_into_tensor_out.default, row, ranks, "0", out=buffer))
    parts = g.parts(g(aten.view.default, waited, [ranks, 12 * 6]), [6] * 12, 1)
    full = [g.shaped(part, (2 * ranks, 3)) for part in parts]
    return g.program(*[g(aten.sin.default, x) for x in full], *g.merged_scatter(gradients, "avg", "0", ranks))


def test_the_number_of_ranks_does_not_matter():
    made = {}
    for ranks in (8, 64, 2048):
        before, after = reduced(ranks, merged=False), reduced(ranks, merged=True)
        started = time.process_time()
        verdict = verify(before, after)
        print(f"{ranks} ranks: {time.process_time() - started:.3f} s, {verdict.checked['terms']} terms")
        assert verdict.status == "proved"
        made[ranks] = verdict.checked["terms"]
    assert len(set(made.values())) == 1


@pytest.mark.parametrize(("passes", "number"), [("tag", 1), ("dedup{memory_budget=none}", 2), ("ep-chunk", 2)])
def test_no_graph_is_walked_twice(monkeypatch, passes, number):
    """BEFORE once, also where AFTER is looked at as it stands; AFTER not where it is BEFORE, or folds to it."""
    before = sample("tiny_deepseek_fsdp4_ep2")
    after = run(before, parse_pipeline(passes)).program
    traced, trace = [], verifier.trace_program
    monkeypatch.setattr(verifier, "trace_program", lambda *a, **k: traced.append(a[1]) or trace(*a, **k))
    assert verify(before, after).status == "proved"
    assert len(traced) == number
    assert sum(each.graph is before.graph for each in traced) == 1


def test_a_copy_is_identical_and_what_was_damaged_is_not():
    before = sample("tiny_moe_fsdp4_ep2_bw")
    again = replace(before, graph=copied(before.graph))
    assert identical(before, again)
    tried = set()
    for kind, damage in KINDS.items():
        for seed in (1, 2, 3):
            graph = copied(before.graph)
            if damage(graph, random.Random(f"{kind} {seed}")):
                tried.add(kind)
                assert not identical(before, replace(before, graph=graph)), kind
    assert len(tried) >= 15


READ = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[2000, 4][4, 1]cpu", y: "f32[2000, 4][4, 1]cpu"):
        a: "f32[1000, 8][8, 1]cpu" = torch.ops.aten.view.default(x, [1000, 8])
        b: "f32[1000, 8][8, 1]cpu" = torch.ops.aten.mul.Tensor(a, 0.5)
        c = torch.ops.aten.split.Tensor(b, 500)
        d: "f32[500, 8][8, 1]cpu" = c[0]
        e: "f32[500, 8][8, 1]cpu" = torch.ops.aten._to_copy.default(d, dtype = torch.float32, device = 'cpu')
        f: "f32[500, 4][8, 1]cpu" = torch.ops.aten.slice.Tensor(e, 1, 0, 4)
        g: "f32[500, 4][8, 1]cpu" = torch.ops.aten.sin.default(f)
        return (g, x, y)
"""


def read(text: str) -> Program:
    return propagate(parse_text(text, "f"))


def test_a_text_that_is_read_twice_is_walked_once(monkeypatch):
    traced, trace = [], verifier.trace_program
    monkeypatch.setattr(verifier, "trace_program", lambda *a, **k: traced.append(a[1]) or trace(*a, **k))
    verdict = verify(read(READ), read(READ))
    assert (verdict.status, len(traced)) == ("proved", 1)
    for way in ("identical", "reordered"):
        monkeypatch.setattr(verifier, way, lambda *_: False)
    assert verify(read(READ), read(READ)) == verdict
    assert len(traced) == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mul.Tensor(a, 0.5)", "mul.Tensor(a, 0.25)"),
        ("mul.Tensor(a, 0.5)", "mul.Tensor(a, a)"),
        ("mul.Tensor(a, 0.5)", "div.Tensor(a, 0.5)"),
        ("view.default(x,", "view.default(y,"),
        ("(x, [1000, 8])", "(x, [-1, 8])"),
        ("slice.Tensor(e, 1, 0, 4)", "slice.Tensor(e, 1, 1, 5)"),
        ("c[0]", "c[1]"),
        ("dtype = torch.float32", "dtype = torch.float64"),
        ("device = 'cpu'", "device = 'cpu:0'"),
        ("device = 'cpu'", "device = device(type='cpu')"),
        ("dtype = torch.float32, device = 'cpu'", "device = 'cpu', dtype = torch.float32"),
        ('g: "f32[500, 4][8, 1]cpu"', 'g: "f32[500, 4][4, 1]cpu"'),
        ('g: "f32[500, 4][8, 1]cpu"', 'g: "f64[500, 4][8, 1]cpu"'),
        ('g: "f32[500, 4][8, 1]cpu"', 'g: "f32[500, 4][8, 1]cuda:0"'),
        ('g: "f32[500, 4][8, 1]cpu"', 'g: "f32[4, 500][8, 1]cpu"'),
        ('d: "f32[500, 8][8, 1]cpu"', 'd: "f32[500, 8][1, 500]cpu"'),
        ("(g, x, y)", "(g, y, x)"),
        ("(g, x, y)", "(g, x)"),
        ("(g, x, y)", "[g, x, y]"),
    ],
)
def test_a_text_that_was_changed_is_not_identical(old, new):
    assert READ.count(old) == 1
    assert identical(read(READ), read(READ))
    assert not identical(read(READ), read(READ.replace(old, new)))


def test_only_what_is_known_of_two_programs_is_the_same():
    first, second = read(READ), read(READ)
    assert not identical(first, replace(second, groups={"0": ProcessGroup("0", 2)}))
    for text in (READ.replace("2000", "u0"), READ.replace("aten.sin.default", "unheard.of.default")):
        assert not identical(read(text), read(text))
        program = read(text)
        assert identical(program, replace(program, graph=copied(program.graph)))
    constant = READ.replace("mul.Tensor(a, 0.5)", "mul.Tensor(a, held)").replace(
        "        b:", "        held = self.held\n        b:"
    )
    assert not identical(read(constant), read(constant))  # who knows what is held
    last = next(node for node in reversed(second.graph.nodes) if "val" in node.meta)
    offset = last.meta["val"].as_strided((500, 4), (8, 1), 4)
    last.meta["val"] = offset
    assert not identical(first, second)
    last.meta["val"] = None
    third = read(READ)
    del next(node for node in reversed(third.graph.nodes) if "val" in node.meta).meta["val"]
    assert not identical(first, second)
    assert not identical(second, third)
    assert not identical(third, second)


def test_numbers_that_are_equal_and_not_the_same_are_told_apart():
    """-0.0 is equal to 0.0, and True to 1."""
    for old, new in ((0.0, -0.0), (1, True), (1, 1.0)):
        graphs = []
        for number in (old, new):
            graph = fx.Graph()
            x = graph.placeholder("x")
            graph.output((graph.call_function(aten.mul.Tensor, (x, number)),))
            graphs.append(Program(graph, torch.nn.Module()))
        assert not identical(*(replace(each, root=graphs[0].root) for each in graphs))
        assert identical(graphs[0], replace(graphs[0], graph=copied(graphs[0].graph)))
