"""How a joint graph is cut into forward and backward: the same way in a capture and in a training job.

    forward, backward = partition(joint, inputs, num_fwd_outputs=1)      # for aot_autograd(partition_fn=partition)
    with in_inductor(): ...                                              # the same in Inductor

It is PyTorch's partitioner, with what its releases up to 2.14 do wrong with checkpointed layers mended: attention
without dropout drew a random state for its second run, by which graphs of a CPU and of a GPU differ; and behind such
states the meshes of DTensor parameters were taken for tensors, which fails in the first step. Of equal meshes one is
saved for the backward: how often PyTorch saves it depends on what the process did before. Limits: uses private PyTorch
APIs.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from commcc.capture.importing import equal_meshes
from commcc.graph.ops import draws

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import fx

_TENSOR, _OBJECT, _NUMBER = range(3)


def partition(joint: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward. options: as AOTAutograd and Inductor give them."""
    from torch._functorch import partitioners

    for node, same in list(equal_meshes(joint.graph)):
        node.replace_all_uses_with(same)
    cut: Any = partitioners
    usual = cut.has_recomputable_rng_ops
    with patch.object(partitioners, "has_recomputable_rng_ops", lambda graph: usual(graph) and _draws(graph)):
        forward, backward = cut.min_cut_rematerialization_partition(joint, inputs, **options)
    _numbers_last(forward, backward, options["num_fwd_outputs"])
    return forward, backward


@contextmanager
def in_inductor() -> Iterator[None]:
    """Inside, Inductor uses :func:`partition` too, unless the job has set a partitioner of its own."""
    from torch._inductor import compile_fx

    with patch.object(compile_fx, "min_cut_rematerialization_partition", partition):
        yield


def _draws(gm: fx.GraphModule) -> bool:
    """Whether an op draws random numbers; attention without dropout is only marked so."""
    return any(isinstance(node.target, torch._ops.OpOverload) and draws(node) for node in gm.graph.nodes)


def _numbers_last(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> None:
    """What is saved for the backward in AOTAutograd's order: tensors, then objects, then sizes."""
    end = forward.graph.output_node()
    given: Any = end.args[0]
    saved = given[outputs:]
    order = sorted(range(len(saved)), key=lambda place: _kind(saved[place]))
    if order == list(range(len(saved))):
        return
    end.args = ((*given[:outputs], *(saved[place] for place in order)),)
    described = end.meta.get("desc")
    if described is not None:
        end.meta["desc"] = [*described[:outputs], *(described[outputs + place] for place in order)]
    inputs = backward.graph.find_nodes(op="placeholder")
    tangent = next(node for node in inputs if node.name.startswith("tangents"))
    for node in inputs:
        if _kind(node) == _OBJECT and node < tangent:
            tangent.prepend(node)
    forward.recompile()
    backward.recompile()


def _kind(node: Any) -> int:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else node
    if isinstance(value, torch.Tensor):
        return _TENSOR
    return _NUMBER if isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)) else _OBJECT
