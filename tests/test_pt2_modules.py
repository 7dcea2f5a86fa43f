"""What ``torch.export.unflatten`` makes of files whose nodes a pass moved between modules."""

from __future__ import annotations

import dataclasses
import random
import zipfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import fx, nn
from torch.distributed import HashStore

from commcc.cli.main import run
from commcc.serialization.pt2.modules import settle
from commcc.serialization.pt2.program import read_pt2, write_pt2


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, k=None):
        y = self.a(x).relu()
        y = y if k is None else y + k
        return y, self.b(y) * x.shape[0]


class Block(nn.Module):
    """One module called twice, and values that go from one to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.j = Inner(), Inner()

    def forward(self, x):
        p, q = self.i(x)
        r, t = self.j(q, k=p)
        p2, q2 = self.i(r)
        return p2 + t, q2


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.o = nn.ModuleList([Block(), Block()]), nn.Linear(4, 4)

    def forward(self, x):
        for block in self.l:
            x, y = block(x)
            x = x + y
        return self.o(x), y


def shuffled(graph, chance):
    """The same graph in another order that computes the same; no node of it writes anything."""
    nodes = list(graph.nodes)
    left = [node for node in nodes if node.op not in ("placeholder", "output")]
    order = [node for node in nodes if node.op == "placeholder"]
    stay, done = chance.random(), set(order)
    while left:
        ready = [node for node in left if done.issuperset(node.all_input_nodes)]
        node = ready[0] if chance.random() < stay else chance.choice(ready)
        left.remove(node)
        done.add(node)
        order.append(node)
    made, out = {}, fx.Graph()
    for node in (*order, nodes[-1]):
        made[node] = out.node_copy(node, made.__getitem__)
        made[node].name = node.name
    return out


KEPT = [(), ("l.0.i",), ("l.0.i", "l.0.j", "l.0"), ("l.0", "l.1", "l.0.i", "l.1.i", "l.1.j", "l.1.i.a", "o")]


@pytest.mark.parametrize("kept", KEPT)
def test_nodes_in_any_order_are_unflattened_into_a_model_that_computes_the_same(kept, tmp_path):
    inputs = (torch.ones(3, 4),)
    sizes = {"x": {0: torch.export.Dim("rows", min=2, max=9)}}
    exported = torch.export.export(
        Outer(), inputs, strict=False, preserve_module_call_signature=kept, dynamic_shapes=sizes
    )
    torch.export.save(exported, tmp_path / "a.pt2")
    program = read_pt2(tmp_path / "a.pt2")
    # As it was exported there is nothing to be said, and nothing is changed.
    assert write_pt2(program, tmp_path / "same.pt2") == ()
    again = torch.export.load(tmp_path / "same.pt2")
    assert [str(entry) for entry in again.module_call_graph] == [str(entry) for entry in exported.module_call_graph]
    expected = exported.module()(*inputs)
    for seed in range(6):
        moved = dataclasses.replace(program, graph=shuffled(program.graph, random.Random(seed)))
        write_pt2(moved, tmp_path / "b.pt2")
        computed = torch.export.unflatten(torch.export.load(tmp_path / "b.pt2"))(*inputs)
        assert all(torch.equal(*pair) for pair in zip(computed, expected, strict=True)), seed
        found = read_pt2(tmp_path / "b.pt2")
        assert not found.notes
        assert [node.meta.get("nn_module_stack") for node in found.graph.nodes] == [
            node.meta.get("nn_module_stack") for node in moved.graph.nodes
        ]


class Gathering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        w = functional.all_gather_tensor(self.w, 0, dist.group.WORLD)
        v = functional.all_gather_tensor(self.v, 0, dist.group.WORLD)
        return (x @ w).relu() @ v


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Gathering(), Gathering()])

    def forward(self, x):
        return self.layers[0](self.layers[1](self.layers[0](x)))


@pytest.mark.parametrize("passes", ["bucket", "dedup"])
@pytest.mark.parametrize("kept", [(), ("layers.0", "layers.1")])
def test_a_bucket_over_several_modules_is_unflattened(passes, kept, tmp_path, capsys):
    inputs = (torch.ones(3, 8),)
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    try:
        exported = torch.export.export(Stacked(), inputs, strict=False, preserve_module_call_signature=kept)
        torch.export.save(exported, tmp_path / "a.pt2")
        assert run(["run", str(tmp_path / "a.pt2"), "--passes", passes, "-o", str(tmp_path / "b.pt2")]) == 0
        after = torch.export.load(tmp_path / "b.pt2")
        assert torch.equal(torch.export.unflatten(after)(*inputs), exported.module()(*inputs))
    finally:
        dist.destroy_process_group()
    said = " ".join(capsys.readouterr().err.split())
    moved = "nodes stand outside of their modules, and are unflattened into those around them"
    assert (moved in said) is (passes == "bucket")
    lost = "'layers.0', 'layers.1'" if passes == "bucket" else "'layers.0'"
    convention = f"modules {lost} no longer take and give only what their calling convention says"
    assert (convention in said) is bool(kept)
    with_convention = {entry.fqn for entry in after.module_call_graph if entry.signature is not None}
    # Both calls of a module lose it together.
    assert with_convention == ({"", "layers.1"} if kept and passes == "dedup" else {""})


def stack(*paths):
    return ";".join(f"key_{path},{path},Type" for path in ("", *paths))


def settled(*texts):
    nodes = [{"metadata": {"nn_module_stack": text} if text else {}} for text in texts]
    return settle(nodes), [node["metadata"].get("nn_module_stack") for node in nodes]


def test_the_longest_piece_of_a_call_stays_the_module():
    a, b = stack("a"), stack("b")
    assert settled(a, b, a, a, b) == (2, [stack(), b, a, a, stack()])
    assert settled(stack("a", "a.x"), stack("a", "a.y"), stack("a", "a.x")) == (
        1,
        [stack("a", "a.x"), stack("a", "a.y"), a],
    )
    # New nodes that say no module are in none; without any module there is nothing to be taken apart.
    assert settled(a, None, a) == (2, [a, stack(), stack()])
    assert settled(None, None) == (0, [None, None])


def test_nodes_of_no_module_do_not_part_the_one_around_them():
    name = "_empty_nn_module_stack_from_metadata_hook"
    anywhere = ",".join([name] * 3)
    assert settled(stack("a"), anywhere, stack("a")) == (0, [stack("a"), anywhere, stack("a")])


def test_the_file_is_the_same_each_time(tmp_path):
    exported = torch.export.export(Outer(), (torch.ones(3, 4),), strict=False)
    torch.export.save(exported, tmp_path / "a.pt2")
    program = read_pt2(tmp_path / "a.pt2")
    moved = dataclasses.replace(program, graph=shuffled(program.graph, random.Random(3)))
    write_pt2(moved, tmp_path / "b.pt2")
    write_pt2(read_pt2(tmp_path / "b.pt2"), tmp_path / "c.pt2")
    first, second = (zipfile.ZipFile(tmp_path / name) for name in ("b.pt2", "c.pt2"))
    with first, second:
        assert {name: first.read(name) for name in first.namelist()} == {
            name: second.read(name) for name in second.namelist()
        }
