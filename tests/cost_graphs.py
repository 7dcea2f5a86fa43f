"""Small graphs for the tests of compute costs: nodes named after their ops, costs by node name."""

from __future__ import annotations

import torch

from commcc.graph.index import build_index
from commcc.timing.cost.operations import operations
from tests.random_graphs import GraphBuilder

N = 8
#: Bytes of an 8 x 8 tensor of float64, which is what most tensors here are.
T = N * N * 8


class Graph(GraphBuilder):
    def call(self, target, *args, **kwargs):
        """As in dumped graphs the node is called after the op alone."""
        node = super().call(target, *args, **kwargs)
        node._rename(target.__name__.split(".")[0])
        return node

    def input(self, *shape: int, dtype: torch.dtype = torch.float64):
        return self.placeholder(f"p{len(self.graph.nodes)}", shape or (N, N), dtype)

    def index(self, *outputs):
        self.built = build_index(self.program(list(outputs), {"0": 2}))
        return self.built

    def costs(self, *outputs, fused: bool = True) -> dict[str, tuple[int, int, int]]:
        """Bytes read, bytes written and kernels, by node name."""
        index = self.index(*outputs)
        found = operations(index, fused=fused)
        return {index.names[i]: (o.read_bytes, o.written_bytes, o.kernels) for i, o in found.items()}
