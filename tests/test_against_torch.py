"""What the harness of the benchmarks against torch's passes does to a graph, and takes back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commcc.graph.index import build_index
from commcc.serialization import load
from commcc.timing.cost import load_model

ROOT = Path(__file__).parents[1]
#: A shard on the host is uploaded and gathered; what is computed from it is downloaded, and updates it there.
OFFLOADED = """class GraphModule(torch.nn.Module):
    def forward(self, shard: "f32[8][1]cpu", x: "f32[16][1]cuda:0"):
        up: "f32[8][1]cuda:0" = torch.ops.aten._to_copy.default(shard, device = device(type='cuda', index=0), \
non_blocking = True)
        gather: "f32[16][1]cuda:0" = torch.ops._c10d_functional.all_gather_into_tensor.default(up, 2, '0')
        wait: "f32[16][1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(gather)
        grad: "f32[16][1]cuda:0" = torch.ops.aten.mul.Tensor(wait, x)
        scatter: "f32[8][1]cuda:0" = torch.ops._c10d_functional.reduce_scatter_tensor.default(grad, 'avg', 2, '0')
        done: "f32[8][1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(scatter)
        down: "f32[8][1]cpu" = torch.ops.aten._to_copy.default(done, device = device(type='cpu'), non_blocking = True)
        new: "f32[8][1]cpu" = torch.ops.aten.add.Tensor(shard, down)
        return (new,)
"""


@pytest.fixture(scope="module")
def harness():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import against_torch
        import torch_overlap
    finally:
        sys.path.pop(0)
    return against_torch, torch_overlap


def devices(program):
    return {node.name: str(node.meta["val"].device) for node in program.graph.nodes if node.op != "output"}


@pytest.mark.filterwarnings("ignore")
def test_what_comes_back_is_where_it_was(harness, tmp_path):
    """Uploads look like downloads once the graph is on the CPU, so that devices are told by names."""
    against_torch, torch_overlap = harness
    path = tmp_path / "graph.fx.txt"
    path.write_text(OFFLOADED)
    program, on_cpu, model = load(path), against_torch.load_on_cpu(path), load_model("h100")
    assert set(devices(on_cpu).values()) == {"cpu"}
    back = torch_overlap.Peer(program, on_cpu, model)._back(on_cpu.graph_module())
    assert devices(back) == devices(program)
    assert [devices(back)[name] for name in ("shard", "up", "grad", "down", "new")] == [
        *("cpu", "cuda:0", "cuda:0", "cpu", "cpu")
    ]
    before, after = build_index(program), build_index(back)
    assert model.price(after).ns == model.price(before).ns
    assert [node.kwargs.get("device") for node in back.graph.nodes] == [
        node.kwargs.get("device") for node in program.graph.nodes
    ]
