"""A whole training step as one graph: forward, loss and gradients, with what was computed twice written out.

Traced without Dynamo, as trainers do that keep the step as one graph and hand it to passes::

    loss, gradients... = step(parameters..., buffers..., inputs...)

Every node made by autograd has ``meta["autograd_backward"]``. ``meta["custom"]`` holds the module path
(``module_fqn``) and what the model annotates, and a backward node has what its forward node has (the first
with the same ``seq_nr``). Inputs and outputs have descriptors. Every symbolic size is asked for once, of what has
arrived::

    n = sym_size(all_to_all_single_1, 0)      ->      n = sym_size(wait_tensor_3, 0)     once for all its uses

Limits: inputs must be fake tensors on the CPU; buffers that the model writes to are inputs that the graph writes to;
each launch has one wait; uses private PyTorch APIs.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate, preserve_node_meta
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.stateless import _reparametrize_module

from commcc.capture.recompute import materialise, tag
from commcc.graph.ops import is_wait, op_name
from commcc.graph.ops.sizes import ASKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, fx, nn

#: Annotation of what is traced while autograd runs; does not stay.
_BACKWARD = "autograd_backward"


def trace_step(module: nn.Module, inputs: tuple[Tensor, ...], recompute: bool = True) -> fx.GraphModule:
    """The graph of ``module(*inputs)``, which returns the loss, and of its gradient for every parameter.

    recompute: with selective activation checkpointing, see :mod:`commcc.capture.recompute`.
    """
    from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks

    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    names = [*parameters, *buffers]
    held = [*parameters.values(), *buffers.values()]

    def step(*values: Tensor) -> list[Tensor]:
        state, rest = values[: len(names)], values[len(names) :]
        whole = [_like(value, own) for value, own in zip(state, held, strict=True)]
        with _reparametrize_module(module, dict(zip(names, whole, strict=True))), _annotated_modules(module):
            loss = module(*rest)
        result = loss.detach()
        setup_stacktrace_preservation_hooks([loss.grad_fn])
        with annotate({_BACKWARD: True}):
            return [result, *torch.autograd.grad(loss, state[: len(parameters)])]

    with ExitStack() as stack:
        stack.enter_context(inputs[0].fake_mode)  # type: ignore[attr-defined]
        stack.enter_context(preserve_node_meta())
        values = [_local(parameter).detach().requires_grad_() for parameter in parameters.values()]
        values += map(_local, buffers.values())
        graph_module = make_fx(step, record_stack_traces=True)(*values, *inputs)
    _describe(graph_module.graph, list(parameters), list(buffers))
    _mark_backward(graph_module.graph)
    _settle_sizes(graph_module.graph)
    if recompute:
        tag(graph_module.graph)
        materialise(graph_module.graph)
    return graph_module


def _local(value: Tensor) -> Tensor:
    """What this rank has of it: the graph's inputs are plain tensors."""
    local: Tensor = value.to_local() if isinstance(value, DTensor) else value
    return local


def _like(local: Tensor, own: Tensor) -> Tensor:
    """The tensor that the module expects in place of ``own``."""
    if not isinstance(own, DTensor):
        return local
    mesh, placements = own.device_mesh, own.placements
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=own.shape, stride=own.stride())


@contextmanager
def _annotated_modules(module: nn.Module) -> Iterator[None]:
    """Write the path of the innermost module onto every node that is traced inside of it."""

    def under(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with annotate({"module_fqn": path}):
                return forward(*args, **kwargs)

        return called

    wrapped: list[nn.Module] = []
    for path, part in module.named_modules():
        # What makes a whole parameter belongs to the module that uses it.
        if path and not isinstance(part, ParametrizationList) and ".parametrizations." not in path:
            part.forward = under(path, part.forward)
            wrapped.append(part)
    try:
        yield
    finally:
        # The class has the forward that was hidden.
        for part in wrapped:
            del part.forward


def _describe(graph: fx.Graph, parameters: list[str], buffers: list[str]) -> None:
    """Descriptors of inputs and outputs, worded as AOTAutograd words them."""
    own = [f"ParamAOTInput(target='{name}')" for name in parameters]
    held = [f"BufferAOTInput(target='{name}')" for name in buffers]
    placeholders = graph.find_nodes(op="placeholder")
    plain = [f"PlainAOTInput(idx={i})" for i in range(len(placeholders) - len(own) - len(held))]
    for node, text in zip(placeholders, [*own, *held, *plain], strict=True):
        node.meta["desc"] = text
    for node in (*placeholders, graph.output_node()):
        node.meta.pop("seq_nr", None)  # of whatever the process did before
    graph.output_node().meta["desc"] = ["PlainAOTOutput(idx=0)", *(f"GradAOTOutput(grad_of={text})" for text in own)]


def _mark_backward(graph: fx.Graph) -> None:
    """Mark what autograd made, and give it the annotations of the first forward node with its sequence number."""
    first: dict[int, fx.Node] = {}
    for node in graph.nodes:
        # PyTorch sets meta["autograd_backward"] itself, but its older versions do not.
        custom = dict(node.meta.pop("custom", {}))
        if custom.pop(_BACKWARD, False):
            node.meta["autograd_backward"] = True
        if custom:
            node.meta["custom"] = custom
        number = node.meta.get("seq_nr")
        if number is None or node.meta.get("is_gradient_acc"):
            continue
        if not node.meta.get("autograd_backward"):
            first.setdefault(number, node)
        elif number in first and first[number].meta.get("custom"):
            node.meta["custom"] = {**node.meta.get("custom", {}), **copy.deepcopy(first[number].meta["custom"])}


def _settle_sizes(graph: fx.Graph) -> None:
    """Ask for each symbolic size once, and of a tensor that has arrived.

    The tracer takes a size from the first tensor that has it, which may still be in flight, and asks again
    for equal sizes of other tensors, which would keep these alive.
    """
    first: dict[Any, fx.Node] = {}
    arrived: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if is_wait(node.target):
            arrived.setdefault(node.all_input_nodes[0], node)
        value = node.meta.get("val")
        if not isinstance(value, torch.SymInt):
            continue
        known = first.setdefault(value.node.expr, node)
        # A size that comes out of arithmetic is asked of no tensor.
        if op_name(node.target) not in ASKING:
            continue
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
        else:
            (source,) = node.all_input_nodes
            node.replace_input_with(source, arrived.get(source, source))
