"""Round trips of every sample: text to text, and through ``.pt2``; nothing changes on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from commcc.graph.program import META_KEY
from commcc.serialization import load, save
from commcc.verify import verify

FOLDER = Path(__file__).parent.parent / "sample_graphs"
KEPT = ("llama3_8b_fsdp64_fw.fx.txt.gz", "llama3_8b_fsdp64_bw.fx.txt.gz")
SAMPLES = sorted(
    path.name
    for path in FOLDER.iterdir()
    if path.name in KEPT or (path.name.startswith("tiny_") and ".tmp" not in path.name)
)
CASES = [pytest.param(name, marks=[pytest.mark.full] * (name in KEPT)) for name in SAMPLES]


def described(value):
    """A value as something that can be compared: tensors by all that a fake one knows."""
    if isinstance(value, torch.Tensor):
        place = value.device, value.storage_offset(), value.requires_grad
        return "tensor", value.dtype, str(tuple(value.shape)), str(tuple(value.stride())), *place
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [described(part) for part in value]
    if isinstance(value, dict):
        return {key: described(part) for key, part in value.items()}
    return (type(value).__name__, str(value)) if not isinstance(value, (torch.SymInt, int)) else str(value)


def facts(program):
    """Everything about every node, in order."""
    return [
        (node.name, node.op, str(node.target), str(described(node.args)), str(described(node.kwargs)), metadata(node))
        for node in program.graph.nodes
    ]


def metadata(node):
    return {key: value if key == META_KEY else described(value) for key, value in sorted(node.meta.items())}


def assert_same(first, second):
    for one, other in zip(facts(first), facts(second), strict=True):
        assert one == other
    assert dict(first.groups) == dict(second.groups)
    assert first.provenance == second.provenance


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_text_to_text(name, tmp_path):
    first = load(FOLDER / name)
    save(first, tmp_path / "a.fx.txt")
    second = load(tmp_path / "a.fx.txt")
    save(second, tmp_path / "b.fx.txt")
    assert (tmp_path / "a.fx.txt").read_bytes() == (tmp_path / "b.fx.txt").read_bytes()
    assert_same(first, second)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1)
def test_archive_to_text_to_archive(name, tmp_path):
    save(load(FOLDER / name), tmp_path / "a.pt2")
    first = load(tmp_path / "a.pt2")
    save(first, tmp_path / "b.fx.txt")
    second = load(tmp_path / "b.fx.txt")
    save(second, tmp_path / "c.pt2")
    third = load(tmp_path / "c.pt2")
    assert_same(load(FOLDER / name), first)
    assert_same(first, second)
    assert_same(first, third)


def test_all_kinds_of_samples_are_here():
    assert len(SAMPLES) >= 15
    assert {name.split(".", 1)[1] for name in SAMPLES} >= {"fx.txt.gz", "pt2"}


ON_A_GPU = """\
class GraphModule(torch.nn.Module):
    def forward(self, a: "f32[4][1]cuda:0"):
        number: "f32[][]cuda:0" = self.number
        add: "f32[4][1]cuda:0" = torch.ops.aten.add.Tensor(a, number)
        return (add,)
"""


def test_constants_stay_on_the_device_of_the_graph(tmp_path):
    """A file holds their values as a CPU has them."""
    (tmp_path / "a.fx.txt").write_text(ON_A_GPU)
    program = load(tmp_path / "a.fx.txt")
    program.root.number = torch.tensor(1.0)
    save(program, tmp_path / "a.pt2")
    again = load(tmp_path / "a.pt2")
    (number,) = again.graph.find_nodes(op="get_attr")
    assert str(number.meta["val"].device) == "cuda:0"
    assert verify(program, again).status == "proved"
    (kept,) = torch.export.load(tmp_path / "a.pt2").constants.values()
    assert kept == 1
