"""From a module to its joint, forward and backward graphs, the way PyTorch compiles a training step.

Dynamo captures the module, AOTAutograd traces forward and backward into one joint graph with
descriptors, and the min-cut partitioner cuts it in two::

    graphs = trace(module, inputs, TraceOptions(regather=True))
    graphs["forward"], graphs["backward"]          # fx.GraphModule with fake values in meta["val"]

With ``regather`` the gathers of parameters are recomputed in the backward instead of being kept
(FSDP's reshard after forward). Limits: inputs must be fake tensors on the CPU; uses private PyTorch APIs.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from commcc.capture.importing import equal_meshes
from commcc.capture.recompute import GATHER_REGION, parameter_gathers
from commcc.capture.training_step import trace_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, fx, nn

#: Nothing that Dynamo learnt from an earlier capture may change this one.
_DYNAMO: dict[str, Any] = {"capture_scalar_outputs": True, "automatic_dynamic_shapes": False, "specialize_float": True}


@dataclass(frozen=True)
class TraceOptions:
    """What to trace.

    joint: return the joint graph alone, not cut.
    regather: gather parameters again in the backward.
    decompose: apply inductor's decompositions, as ``torch.compile`` does by default; without them
        the graph is what ``aot_eager``-style trainers see.
    step: forward, loss and gradients as one graph without tangents, traced without Dynamo and without
        decompositions, see :mod:`commcc.capture.training_step`; there ``regather`` adds selective
        recomputation of layers.
    """

    joint: bool = False
    regather: bool = True
    decompose: bool = True
    step: bool = False


def trace(module: nn.Module, inputs: tuple[Tensor, ...], options: TraceOptions) -> dict[str, fx.GraphModule]:
    """Graphs by name: ``step``, ``joint``, or ``forward`` and ``backward``; call outside of the inputs' fake mode."""
    if options.step:
        return {"step": trace_step(module, inputs, recompute=options.regather)}
    from torch._dynamo.functional_export import dynamo_graph_capture_for_export
    from torch._functorch.aot_autograd import (
        aot_compile_joint_with_descriptors,
        aot_export_joint_with_descriptors,
        boxed_nop_preserve_node_meta,
    )

    graphs: dict[str, fx.GraphModule] = {}

    def keep(name: str) -> Callable[..., Any]:
        def compiler(graph_module: fx.GraphModule, inputs: Any) -> Any:
            graphs[name] = graph_module
            return boxed_nop_preserve_node_meta(graph_module, inputs)

        return compiler

    with ExitStack() as stack:
        stack.enter_context(torch._dynamo.config.patch(_DYNAMO))
        stack.enter_context(torch.fx.traceback.preserve_node_meta())
        captured = dynamo_graph_capture_for_export(module)(*inputs)
        context = captured.meta.get("tracing_context")
        # Symbols and guards of Dynamo belong to the same compilation.
        if context is not None:
            stack.enter_context(torch._guards.tracing(context))
        decompositions = None
        if options.decompose:
            from torch._inductor.decomposition import select_decomp_table

            decompositions = dict(select_decomp_table())
        joint = aot_export_joint_with_descriptors(stack, captured, inputs, decompositions=decompositions)
        if options.joint:
            return {"joint": joint.graph_module}
        aot_compile_joint_with_descriptors(
            joint,
            partition_fn=_regathering_partition if options.regather else _partition,
            fw_compiler=keep("forward"),
            bw_compiler=keep("backward"),
        )
    return graphs


def _partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    for node, same in equal_meshes(joint.graph):
        node.replace_all_uses_with(same)
    return min_cut_rematerialization_partition(joint, inputs, **options)


def _regathering_partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    for node in parameter_gathers(joint.graph):
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta["ac_graph_id"] = GATHER_REGION
    return _partition(joint, inputs, **options)
