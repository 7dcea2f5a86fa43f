"""Training steps with expert parallelism, made to run: on the CPU, in any precision, on virtual ranks.

::

    program = on_cpu(load(sample("tiny_deepseek_fsdp4_ep2")), torch.float64)
    results = run_ranks(program, seed=1)      # outputs, then inputs as they are afterwards, of every rank

Limits: for graphs whose attention is matmul and softmax (the ``tiny_*`` samples).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_map

from commcc.graph.copying import copy_node
from commcc.serialization import load
from tests.mesh_groups import parts_by_name
from tests.replay_inputs import make_input
from tests.virtual_ranks import VirtualRanks

if TYPE_CHECKING:
    from commcc.graph.program import Program

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
_WIDE = {torch.float64: torch.complex128}


def sample(name: str) -> Program:
    return load(SAMPLES / f"{name}.fx.txt.gz")


def on_cpu(program: Program, dtype: torch.dtype | None = None) -> Program:
    """A copy with CPU devices; with ``dtype``, everything in floating point has that type."""
    graph, env = fx.Graph(), {}

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return _retyped(leaf, dtype) if isinstance(leaf, torch.dtype) else leaf

    def value(leaf: Any) -> Any:
        return _value(leaf, dtype) if isinstance(leaf, FakeTensor) else leaf

    for node in program.graph.nodes:
        copy = env[node] = copy_node(graph, node, env)
        copy.args, copy.kwargs = map_aggregate(copy.args, moved), map_aggregate(copy.kwargs, moved)
        if "val" in copy.meta:
            copy.meta["val"] = tree_map(value, copy.meta["val"])
    return replace(program, graph=graph)


def _retyped(old: torch.dtype, new: torch.dtype | None) -> torch.dtype:
    if new is not None and old.is_complex:
        return _WIDE.get(new, torch.complex64)
    return new if new is not None and old.is_floating_point else old


def _value(leaf: FakeTensor, dtype: torch.dtype | None) -> Any:
    with leaf.fake_mode, torch.no_grad():
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=_retyped(leaf.dtype, dtype), device="cpu")


def described(program: Program) -> list[str]:
    """What each input is: ``ParamAOTInput(target=...)``, ``BufferAOTInput(...)`` or ``PlainAOTInput(...)``."""
    return [str(node.meta["desc"]) for node in program.graph.find_nodes(op="placeholder")]


def rank_inputs(program: Program, seed: int) -> list[list[torch.Tensor]]:
    """Inputs of every rank: own shards and tokens, equal buffers; counters start at zero."""
    nodes = program.graph.find_nodes(op="placeholder")
    whole = []
    for rank in range(world_size(program)):
        values = []
        for position, (node, text) in enumerate(zip(nodes, described(program), strict=True)):
            own = 0 if text.startswith("Buffer") else rank + 1
            made = make_input(node, torch.Generator().manual_seed(seed * 10_007 + position * 101 + own))
            if "expert_bias" in text:
                made = (made - 1) * 0.1  # small beside the differences between scores
            values.append(torch.zeros_like(made) if "tokens_per_expert" in text else made)
        whole.append(values)
    return whole


def world_size(program: Program) -> int:
    size = 1
    for extent in program.header["mesh"]["shape"]:
        size *= extent
    return size


def run_ranks(program: Program, seed: int = 0, inputs: list[list[torch.Tensor]] | None = None) -> list[list[Any]]:
    """Outputs of every rank (loss, then gradients), then its inputs as they are afterwards."""
    given = rank_inputs(program, seed) if inputs is None else inputs
    return VirtualRanks(program.graph, given, program.root, parts_by_name(program)).run()
