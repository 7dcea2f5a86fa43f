"""A small graph for as many ranks as one likes, and what passes make of it: something to run without a file.

    before, after = demo_pair(ranks=2)

One training step of a chain of linear layers whose weights are sharded over all ranks: every layer's weight is
gathered forward and again backward, and its gradient reduce-scattered.

Limits: it shows that an installation works, and nothing about a model.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from commcc.serialization.fx import parse_text
from commcc.serialization.propagate import propagate

if TYPE_CHECKING:
    from commcc.graph.program import Program

#: What is made of the graph.
PASSES = "bucket,reorder"
_LAYERS, _WIDTH, _TOKENS = 6, 128, 64
_C10D = "torch.ops._c10d_functional"


def demo_pair(ranks: int) -> tuple[Program, Program]:
    """The graph before and after :data:`PASSES`, for this many ranks."""
    from commcc.passes.options import parse_pipeline
    from commcc.run.pipeline import run
    from commcc.timing.cost import load_model

    before = propagate(parse_text(demo_text(ranks), "the small graph of commcc bench"))
    return before, run(before, parse_pipeline(PASSES), model=load_model("h100")).program


def demo_text(ranks: int) -> str:
    """The graph as FX text. Each rank has the same number of rows of every weight, so the width is a multiple."""
    rows = -(-_WIDTH // ranks)
    width = rows * ranks
    group = {"0": {"size": ranks, "ranks": list(range(ranks)), "description": "dp_shard"}}
    inputs = [f'primals_{i}: "f32[{rows}, {width}][{width}, 1]cpu"' for i in range(1, _LAYERS + 1)]
    inputs += [f'{name}: "f32[{_TOKENS}, {width}][{width}, 1]cpu"' for name in ("x_0", "tangents_1")]
    lines = [
        '# commcc: {"fx_text": 1}',
        f"# commcc: {json.dumps({'groups': group})}",
        "class GraphModule(torch.nn.Module):",
        f"    def forward(self, {', '.join(inputs)}):",
        *(line for layer in range(1, _LAYERS + 1) for line in _forward(layer, ranks)),
        *(line for layer in range(_LAYERS, 0, -1) for line in _backward(layer, ranks)),
        f"        return (x_{_LAYERS}, {', '.join(f'shard_{i}' for i in range(1, _LAYERS + 1))},)",
    ]
    return "\n".join(lines) + "\n"


def _forward(layer: int, ranks: int) -> list[str]:
    return [
        *_gather(f"full_{layer}", layer, ranks),
        f"        mm_{layer} = torch.ops.aten.mm.default(x_{layer - 1}, full_{layer})",
        f"        x_{layer} = torch.ops.aten.relu.default(mm_{layer})",
    ]


def _backward(layer: int, ranks: int) -> list[str]:
    """The gradient of the weight, to be reduced, and that of what the layer was given."""
    above = "tangents_1" if layer == _LAYERS else f"down_{layer + 1}"
    lines = [
        f"        slope_{layer} = torch.ops.aten.threshold_backward.default({above}, x_{layer}, 0)",
        f"        turned_{layer} = torch.ops.aten.permute.default(x_{layer - 1}, [1, 0])",
        f"        gradient_{layer} = torch.ops.aten.mm.default(turned_{layer}, slope_{layer})",
        f"        reduce_{layer} = {_C10D}.reduce_scatter_tensor.default(gradient_{layer}, 'sum', {ranks}, '0')",
        f"        shard_{layer} = {_C10D}.wait_tensor.default(reduce_{layer})",
    ]
    if layer == 1:  # nothing is below
        return lines
    return [
        *lines,
        *_gather(f"again_{layer}", layer, ranks),
        f"        across_{layer} = torch.ops.aten.permute.default(again_{layer}, [1, 0])",
        f"        down_{layer} = torch.ops.aten.mm.default(slope_{layer}, across_{layer})",
    ]


def _gather(name: str, layer: int, ranks: int) -> list[str]:
    return [
        f"        gather_{name} = {_C10D}.all_gather_into_tensor.default(primals_{layer}, {ranks}, '0')",
        f"        {name} = {_C10D}.wait_tensor.default(gather_{name})",
    ]
