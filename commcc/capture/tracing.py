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
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import CheckpointPolicy

from commcc.base.terms import Kind
from commcc.graph.ops import aliasing, collective_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, fx, nn

#: Region number of gathers that are recomputed; must be larger than any that checkpointing hands out.
_REGION = 100_000
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
        from commcc.capture.training_step import trace_step

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
        if context is not None:
            stack.enter_context(torch._guards.tracing(context))
        joint = aot_export_joint_with_descriptors(
            stack, captured, inputs, decompositions=_decompositions() if options.decompose else None
        )
        if options.joint:
            return {"joint": joint.graph_module}
        aot_compile_joint_with_descriptors(
            joint,
            partition_fn=_regathering_partition if options.regather else _partition,
            fw_compiler=keep("forward"),
            bw_compiler=keep("backward"),
        )
    return graphs


def _decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._inductor.decomposition import select_decomp_table

    return dict(select_decomp_table())


def _partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    _unify_meshes(joint.graph)
    return min_cut_rematerialization_partition(joint, inputs, **options)


def _regathering_partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    for node in parameter_gathers(joint.graph):
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta["ac_graph_id"] = _REGION
    return _partition(joint, inputs, **options)


def _unify_meshes(graph: fx.Graph) -> None:
    """Use the first of equal mesh inputs wherever one is used.

    Every DTensor brings its mesh as an input. Which of them a gradient's mesh is taken for depends, in
    PyTorch, on object identities, and so on what the process did before.
    """
    first: list[tuple[DeviceMesh, fx.Node]] = []
    for node in graph.find_nodes(op="placeholder"):
        mesh = getattr(node.meta.get("val"), "real_obj", None)
        if not isinstance(mesh, DeviceMesh):
            continue
        same = next((other for known, other in first if known == mesh), None)
        if same is None:
            first.append((mesh, node))
        else:
            node.replace_all_uses_with(same)


def parameter_gathers(graph: fx.Graph) -> list[fx.Node]:
    """Forward gathers of graph inputs, with the casts before, and the waits and views behind them, in graph order.

    The views count, since the partitioner would otherwise keep one of them, and with it all the memory.
    """
    derived: set[fx.Node] = set()
    chosen: set[fx.Node] = set()
    for node in graph.nodes:
        sources = node.all_input_nodes
        if node.op == "placeholder":
            derived.add(node)
        if not _in_forward(node) or len(sources) != 1 or sources[0] not in derived:
            continue
        derived.add(node)
        fact = collective_of(node.target)
        if fact is not None and fact.kind is Kind.ALL_GATHER:
            chosen.update(_back_to_input(node))
        elif sources[0] in chosen and aliasing(node.target).views:
            chosen.add(node)
    return [node for node in graph.nodes if node in chosen]


def _in_forward(node: fx.Node) -> bool:
    return node.op == "call_function" and node.meta.get("partitioner_tag") != "is_backward"


def _back_to_input(node: fx.Node) -> list[fx.Node]:
    chain = []
    while node.op != "placeholder":
        chain.append(node)
        node = node.all_input_nodes[0]
    return chain
