"""Constants that are part of a larger storage, or share one, and detached tensors of exported programs."""

from __future__ import annotations

import pytest
import torch

from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.verify import verify
from tests.verify_graphs import Graph, aten


def reading(constant: torch.Tensor, *, around: bool):
    """A graph that reads a constant, or four elements from where its storage begins."""
    g = Graph()
    x, c = g.input("x", 4), g.attribute("c", constant)
    g.root.c = constant
    if around:
        c = g(aten.as_strided.default, c, [4], [1], 0, val=c.meta["val"])
    return g.program(g(aten.mul.Tensor, x, c))


def test_what_lies_around_a_constant_counts_where_it_is_read():
    first, other = torch.arange(8.0), torch.tensor([9.0, 9, 2, 3, 4, 5, 6, 7])
    assert verify(reading(first[2:6], around=False), reading(other[2:6], around=False)).status == "proved"
    assert verify(reading(first[2:6], around=True), reading(other[2:6], around=True)).status != "proved"
    assert verify(reading(first[2:6], around=True), reading(first.clone()[2:6], around=True)).status == "proved"


def test_a_text_holds_a_constant_without_what_lies_around_it(tmp_path):
    program = reading(torch.arange(8.0)[2:6], around=True)
    save(program, tmp_path / "saved.fx.txt")
    assert verify(program, load(tmp_path / "saved.fx.txt")).status != "proved"


def test_constants_that_share_memory_are_noted(tmp_path):
    g = Graph()
    whole = torch.arange(8.0)
    x, c, d = g.input("x", 4), g.attribute("c", whole[:4]), g.attribute("d", whole[2:6])
    program = g.program(g(aten.add.Tensor, g(aten.mul.Tensor, x, c), d))
    assert [note.text for note in save(program, tmp_path / "saved.fx.txt")] == [
        "constants c and d share memory, which a text does not say"
    ]


class Detached(torch.nn.Module):
    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x):
        return (x.detach() if self.kept else x) * x


@pytest.fixture
def exported(tmp_path):
    for kept in (True, False):
        torch.export.save(torch.export.export(Detached(kept), (torch.randn(4),)), tmp_path / f"{kept}.pt2")
    return {kept: load(tmp_path / f"{kept}.pt2") for kept in (True, False)}


def test_an_exported_program_without_a_detach_gives_other_gradients(exported):
    for kept in (True, False):
        assert verify(exported[kept], exported[kept]).status == "proved"
        assert verify(exported[kept], exported[not kept]).status == "unproved"


def test_cleanup_leaves_detached_tensors_of_exported_programs(exported):
    result = run(exported[True], parse_pipeline("cleanup{views=true}"))
    assert any(node.target is aten.detach.default for node in result.program.graph.nodes)


TEXT = """
class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4, 4][4, 1]cpu"):
        c: "f32[4, 4][4, 1]cpu" = self.c
        d: "f32[4, 4][4, 1]cpu" = self.d
        mm: "f32[4, 4][4, 1]cpu" = torch.ops.aten.mm.default(x, c)
        add: "f32[4, 4][4, 1]cpu" = torch.ops.aten.add.Tensor(mm, d)
        neg: "f32[4, 4][4, 1]cpu" = torch.ops.aten.neg.default(x)
        return (add, neg)
"""


@pytest.mark.parametrize(
    ("was", "now", "status", "taken"),
    [
        ("", "", "unproved", "proved"),
        ("(x, c)", "(c, x)", "unproved", "unproved"),
        ("(x, c)", "(x, d)", "unproved", "unproved"),  # they may hold the same
        ("neg.default", "abs.default", "different", "different"),
        ("self.c", "self.e", "unproved", "unproved"),  # what may be the same under another name
        ('c: "f32[4, 4][4, 1]', 'c: "f32[4, 4][1, 4]', "unproved", "unproved"),
    ],
)
def test_constants_whose_values_no_file_has(tmp_path, was, now, status, taken):
    for name, text in (("before", TEXT), ("after", TEXT.replace(was, now) if was else TEXT)):
        (tmp_path / f"{name}.fx.txt").write_text(text)
    before, after = load(tmp_path / "before.fx.txt"), load(tmp_path / "after.fx.txt")
    found = verify(before, after)
    assert found.status == status
    assert verify(before, after, same_constants=True).status == taken
    if status == "unproved" and taken == "proved":
        hint = "the value of this constant is in neither file; --same-constants takes it to be the same"
        assert [(gap.node, gap.text) for gap in found.unproved] == [("c", hint), ("d", hint)]
        # What a run makes of it keeps its constants, which need no proof.
        result = run(before, parse_pipeline("cleanup"))
        assert result.verified == "proved"


def test_a_constant_whose_value_one_file_has_is_not_taken_to_be_the_same(tmp_path):
    (tmp_path / "before.fx.txt").write_text(TEXT)
    before, after = load(tmp_path / "before.fx.txt"), load(tmp_path / "before.fx.txt")
    after.root.c = torch.zeros(4, 4)
    assert verify(before, after, same_constants=True).status == "unproved"


def test_a_detach_that_nobody_uses_may_go(tmp_path):
    class Unused(torch.nn.Module):
        def forward(self, x):
            x.detach()
            return x * x

    torch.export.save(torch.export.export(Unused(), (torch.randn(4),)), tmp_path / "unused.pt2")
    program = load(tmp_path / "unused.pt2")
    detach = [node for node in program.graph.nodes if node.name.startswith("detach")]
    if not detach:  # PyTorch has removed it
        pytest.skip("torch.export keeps no dead detach")
    assert run(program, parse_pipeline("cleanup")).verified == "proved"
