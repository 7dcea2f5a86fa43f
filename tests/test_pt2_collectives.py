"""An exported model with collectives: bucketed, written, loaded by PyTorch, and run."""

from __future__ import annotations

import copy
import zipfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import HashStore

from commcc.cli.main import run


class Sharded(nn.Module):
    """Two gathered parameters, a buffer that is written, a constant, a keyword argument, a dynamic size."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Parameter(torch.randn(8, 8, generator=generator))
        self.second = nn.Parameter(torch.randn(8, 4, generator=generator))
        self.register_buffer("steps", torch.zeros(()))
        self.offset = torch.full((4,), 3.0)

    def forward(self, x, *, scale=1.0):
        self.steps.add_(1)
        first = functional.all_gather_tensor(self.first.to(torch.bfloat16).float(), 0, dist.group.WORLD)
        hidden = x @ first
        second = functional.all_gather_tensor(self.second, 0, dist.group.WORLD)
        return {"z": hidden @ second * scale + self.offset, "rows": x.shape[0] * 2, "steps": self.steps.clone()}


@pytest.fixture
def exported(tmp_path):
    """The model as a ``.pt2`` file, in a world of one real rank."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    try:
        dynamic = {"x": {0: torch.export.Dim("rows", min=2, max=64)}, "scale": None}
        made = torch.export.export(Sharded(), (torch.ones(3, 8),), {"scale": 2.0}, dynamic_shapes=dynamic)
        torch.export.save(made, tmp_path / "model.pt2")
        yield tmp_path / "model.pt2"
    finally:
        dist.destroy_process_group()


def payload(path):
    with zipfile.ZipFile(path) as archive:
        inside = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    return {name: data for name, data in inside.items() if name.startswith(("data/weights", "data/constants"))}


def test_the_bucketed_model_computes_the_same(exported, capsys):
    target = exported.with_name("bucketed.pt2")
    assert run(["bucket", str(exported), "-o", str(target)]) == 0
    assert "2 launches into 1 bucket" in capsys.readouterr().out
    assert payload(exported) == payload(target)
    before = torch.export.load(exported).module()
    loaded = torch.export.load(target)
    after = copy.deepcopy(loaded).module()
    targets = [str(n.target) for n in loaded.graph.nodes]
    assert targets.count("_c10d_functional.all_gather_into_tensor.default") == 1
    x = torch.arange(40.0).view(5, 8)
    for _ in range(2):
        one, other = before(x, scale=2.0), after(x, scale=2.0)
        assert torch.equal(one["z"], other["z"])
        assert one["rows"] == other["rows"] == 10
        assert torch.equal(one["steps"], other["steps"])
    assert torch.equal(dict(after.named_buffers())["steps"], torch.tensor(2.0))


def test_a_text_says_what_it_cannot_hold(exported, capsys):
    assert run(["convert", str(exported), "-o", str(exported.with_name("model.fx.txt"))]) == 0
    out = capsys.readouterr().out
    assert "weights and constants (4 entries, 404 bytes) stay in model.pt2" in " ".join(out.split())
    assert "parameter" in out
