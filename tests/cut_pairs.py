"""A forward and its backward as AOTAutograd's own partitioners cut them: plainly, or between a launch and its wait."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import (
    _extract_fwd_bwd_modules,
    default_partition,
    min_cut_rematerialization_partition,
)
from torch.utils.checkpoint import CheckpointPolicy

from commcc.capture import Layout, fake_world

WIDTH, ROWS, RANKS = 32, 16, 4
LAUNCHES = torch.ops._c10d_functional
GATHER, SCATTER = LAUNCHES.all_gather_into_tensor.default, LAUNCHES.reduce_scatter_tensor.default


def gathered(x, group):
    return LAUNCHES.wait_tensor(GATHER(x.contiguous(), RANKS, group))


def scattered(x, how, group):
    return LAUNCHES.wait_tensor(SCATTER(x.contiguous(), how, RANKS, group))


class Gather(torch.autograd.Function):
    """All shards of a parameter or of rows; gradients are reduced back to shards."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, "sum", ctx.group), None


class Scatter(torch.autograd.Function):
    """The sum of all ranks' rows, a shard on each."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return scattered(x, "sum", group)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.group), None


class Fetch(torch.autograd.Function):
    """The product with a weight whose other shards only the backward needs."""

    @staticmethod
    def forward(ctx, x, w, shard, group):
        ctx.save_for_backward(x, w, shard)
        ctx.group = group
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w, shard = ctx.saved_tensors
        whole = gathered(shard, ctx.group)
        return grad @ w.t(), x.t() @ grad + whole.sum(), None, None


class Net(nn.Module):
    def __init__(self, group, layers=2):
        super().__init__()
        self.group = group
        self.w = nn.ParameterList(nn.Parameter(torch.ones(WIDTH // RANKS, WIDTH)) for _ in range(layers))
        self.own = nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.shard = nn.Parameter(torch.ones(WIDTH // RANKS, WIDTH))

    def forward(self, x):
        for w in self.w:
            rows = Gather.apply(x, self.group).relu()
            x = x + Scatter.apply(rows @ Gather.apply(w, self.group), self.group).sin()
        return Fetch.apply(x, self.own, self.shard, self.group).square().sum()


def _kept(launch):
    """A partition that saves what ``launch`` launched, and waits for it again in the backward."""

    def partition(joint, inputs, **more):
        for wait in joint.graph.nodes:
            source = wait.args[0] if wait.target is LAUNCHES.wait_tensor.default else None
            if source is not None and source.target is launch:
                source.meta["recompute"] = CheckpointPolicy.MUST_SAVE
                wait.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                source.meta["ac_graph_id"] = wait.meta["ac_graph_id"] = 1
        return min_cut_rematerialization_partition(joint, inputs, **more)

    return partition


def _fetched(joint, inputs, *, num_fwd_outputs, static_lifetime_input_indices=None, **more):
    """A partition of our own: the forward launches what only the backward needs, and nobody waits for it there."""
    nodes = list(joint.graph.nodes)
    primals = [node for node in nodes if node.op == "placeholder" and "primals" in node.name]
    forward = set(primals)
    outputs = nodes[-1].args[0][:num_fwd_outputs]
    stack = [node for node in outputs if isinstance(node, torch.fx.Node)]
    while stack:
        node = stack.pop()
        if node not in forward:
            forward.add(node)
            stack += node.all_input_nodes
    ahead = [node for node in nodes if node.target is GATHER and set(node.all_input_nodes) <= forward - set(outputs)]
    ahead = [node for node in ahead if node not in forward]
    assert ahead
    inner = [node for node in nodes if node in forward and (node.op == "placeholder" or node not in outputs)]
    later = {node: [user for user in node.users if user not in forward and user.op != "output"] for node in inner}
    saved = [node for node in inner if not set(later[node]) <= set(ahead)]
    forward_module, backward_module = _extract_fwd_bwd_modules(
        joint, [*saved, *ahead], [], num_fwd_outputs=num_fwd_outputs
    )
    # PyTorch takes waits for impure and leaves them in both graphs.
    for node in list(forward_module.graph.nodes):
        if node.target is LAUNCHES.wait_tensor.default and not node.users:
            forward_module.graph.erase_node(node)
    forward_module.recompile()
    return forward_module, backward_module


PARTITIONS = {
    "plain": min_cut_rematerialization_partition,
    "views": default_partition,
    "scattered": _kept(SCATTER),
    "gathered": _kept(GATHER),
    "fetched": _fetched,
}


@cache
def pair(how: str) -> tuple[str, str]:
    """Texts of the forward and the backward, as PyTorch prints them."""
    texts: dict[str, str] = {}

    def keep(name):
        def compiler(module, _inputs):
            texts[name] = module.print_readable(
                print_output=False, include_stride=True, include_device=True, expanded_def=True
            )
            return module

        return compiler

    with fake_world(Layout((("dp", RANKS),))) as world:
        torch._dynamo.reset()
        net = Net(world.group_name("dp"))
        backend = aot_autograd(fw_compiler=keep("fw"), bw_compiler=keep("bw"), partition_fn=PARTITIONS[how])
        x = torch.ones(ROWS, WIDTH, requires_grad=True)
        torch.compile(net, backend=backend, fullgraph=True)(x).backward()
        torch._dynamo.reset()
    return texts["fw"], texts["bw"]
