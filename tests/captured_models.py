"""What users give to ``commcc capture``: functions from a device mesh to a model. None needs more than one process."""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import commcc

WIDTH = 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Its forward returns the loss; 10 parameters, of which the last do not divide by 4."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x, labels):
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.out(x).float(), labels)


def batch(dtype=torch.float32):
    return torch.randn(4, WIDTH, dtype=dtype), torch.zeros(4, dtype=torch.int64)


def tp(mesh):
    model = Model()
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, batch()


def shard(mesh):
    model = Model()
    precision = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    for layer in model.layers:
        commcc.shard(layer, mesh["dp"], **precision)
    commcc.shard(model, mesh["dp"], reshard_after_forward=False, **precision)
    return model, *batch(torch.bfloat16)


def any_batch(mesh):
    """Its graphs are for any number of rows."""
    model, x, labels = shard(mesh)
    for each in (x, labels):
        torch._dynamo.mark_dynamic(each, 0)
    return model, x, labels


def fsdp2(mesh):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = tp(mesh)[0] if "tp" in mesh.mesh_dim_names else Model().to("cuda")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    return model, {"x": batch()[0], "labels": batch()[1]}


def fsdp2_by_position(mesh):
    model, named = fsdp2(mesh)
    return model, tuple(named.values())


def hsdp(mesh):
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = Model()
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    return model, batch()


def ddp(mesh):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(Model().cuda(), device_ids=[0], device_mesh=mesh), batch()


def told_more(mesh):
    """DDP in one part and fully_shard in the other, each told what graphs do not show."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    copied = DistributedDataParallel(Block(), device_mesh=mesh)
    copied.register_comm_hook(None, bf16_compress_hook)
    cut = fully_shard(Block(), mesh=mesh)
    cut.set_gradient_divide_factor(1.0)
    cut.set_requires_gradient_sync(requires_gradient_sync=False)
    # As tensors have that are gathered in float8.
    next(cut.parameters())._local_tensor.fsdp_pre_all_gather = lambda *_: ()
    return nn.Sequential(copied, cut), (torch.randn(4, WIDTH),)


def replicated(mesh):
    from torch.distributed._composable.replicate import replicate

    return replicate(Model(), device_mesh=mesh["dp"]), batch()


def over_one(mesh):
    return over([mesh] * 3)


def over_meshes(mesh):
    """Equal ones, each with groups of its own, built while the model is."""
    return over([mesh, *(init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.mesh_dim_names) for _ in range(2))])


def over(meshes):
    model, inputs = tp(meshes[0])
    for module, mesh in zip((*model.layers, model), meshes, strict=True):
        commcc.shard(module, mesh["dp"])
    return model, inputs


def mesh_of_its_own(mesh):
    """For the GPUs of the job, of the ranks that the given one has."""
    whole = init_device_mesh("cuda", (mesh.size(),), mesh_dim_names=("ranks",))
    return commcc.shard(Model(), DeviceMesh("cuda", [*range(whole.size())])), batch()


def mesh_of_a_tensor(mesh):
    return commcc.shard(Model(), DeviceMesh("cuda", torch.arange(mesh.size()))), batch()


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.then = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            x = self.first(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.then(x).float().sum()


def autocast(mesh):
    return commcc.shard(Autocast(), mesh["dp"]), batch()[:1]


class AutocastHere(nn.Module):
    """Of the device on which its input is; computed again in the backward if ``again``."""

    def __init__(self, again):
        super().__init__()
        self.first, self.then, self.again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), again

    def forward(self, x):
        return (checkpoint(self.cast, x, use_reentrant=False) if self.again else self.cast(x)).float().sum()

    def cast(self, x):
        with torch.autocast(x.device.type, enabled=False):
            x = self.first(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.then(x)


def autocast_here(mesh):
    return commcc.shard(AutocastHere(False), mesh["dp"]), batch()[:1]


def autocast_again(mesh):
    return commcc.shard(AutocastHere(True), mesh["dp"]), batch()[:1]


class Shared(nn.Module):
    """A weight of two layers, one of which stands in two places."""

    def __init__(self):
        super().__init__()
        self.first, self.then = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.then.weight, self.again = self.first.weight, self.then

    def forward(self, x):
        return self.again(self.then(self.first(x)).relu()).sum()


def shared(mesh):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(Shared(), mesh=mesh["dp"]), batch()[:1]


class Tied(nn.Module):
    """Two parameters, each of two modules, of which one is checkpointed."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(8, WIDTH), nn.Linear(WIDTH, 8, bias=False)
        self.first, self.then = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.out.weight, self.then.weight = self.table.weight, self.first.weight

    def forward(self, tokens, labels):
        x = self.first(self.table(tokens)).tanh()
        x = checkpoint(lambda x: self.then(x).tanh(), x, use_reentrant=False)
        return nn.functional.cross_entropy(self.out(x).float(), labels)


def _tied(wrap):
    tokens = torch.arange(4)
    return wrap(Tied()), (tokens, tokens)


def tied(mesh):
    return _tied(lambda model: commcc.shard(model, mesh["dp"]))


def tied_copies(mesh):
    return _tied(lambda model: commcc.shard(model, mesh["dp"], replicate=True))


def tied_fsdp2(mesh):
    from torch.distributed.fsdp import fully_shard

    return _tied(lambda model: fully_shard(model, mesh=mesh["dp"]))


def tied_ddp(mesh):
    from torch.nn.parallel import DistributedDataParallel

    return _tied(lambda model: DistributedDataParallel(model, process_group=mesh["dp"].get_group()))


def does_not_divide(mesh):
    model, inputs = shard(mesh)[0], batch()
    return model, (inputs[0].view(mesh.size(), -1), inputs[1])


def cut_unevenly(mesh):
    model = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 4))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), (torch.zeros(2, 4),)


def step(mesh):
    model, *inputs = shard(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x, labels):
        loss = model(x, labels)
        loss.backward()
        optimizer.step()
        return loss

    return train, tuple(inputs)


def step_that_reduces(mesh):
    """Gradients are reduced, and the optimizer runs, behind the backward."""
    model, group = Model(), mesh["dp"].get_group().group_name
    parameters = list(model.parameters())

    def train(x, labels):
        gradients = torch.autograd.grad(model(x, labels), parameters)
        gradients = [funcol.all_reduce(gradient, "avg", group) for gradient in gradients]
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)

    return train, batch()


class Counts(nn.Module):
    """A router that counts tokens; ``count`` says how."""

    def __init__(self, count):
        super().__init__()
        self.gate, self.count = nn.Linear(WIDTH, 8), count

    def forward(self, x):
        scores = self.gate(x)
        return scores.sum(), self.count(scores.topk(2, -1).indices.view(-1))


def histogram(mesh):
    count = Counts(lambda chosen: torch.histc(chosen, bins=8, min=0, max=8))
    return commcc.shard(count, mesh["dp"]), batch()[:1]


def bincount(mesh):
    return commcc.shard(Counts(lambda chosen: torch.bincount(chosen, minlength=8)), mesh["dp"]), batch()[:1]


def step_without_gradients(mesh):
    model, group = Model(), mesh["dp"].get_group().group_name

    def evaluate(x, labels):
        with torch.no_grad():
            return funcol.all_reduce(model(x, labels), "avg", group)

    return evaluate, batch()


def offloaded(mesh):
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    model = nn.Linear(WIDTH, WIDTH)
    fully_shard(model, mesh=mesh["dp"], offload_policy=CPUOffloadPolicy())
    return model, batch()[:1]


def step_of_meta(mesh):
    with torch.device("meta"):
        model = nn.Linear(WIDTH, WIDTH)
    commcc.shard(model, mesh["dp"])
    return lambda x: model(x).sum(), batch()[:1]


def stage(mesh):
    model, group = nn.Linear(WIDTH, WIDTH), mesh["dp"].get_group()

    def run(parts):
        for part in parts:
            torch.distributed.isend(model(part).detach(), 1, group=group).wait()

    return run, (list(batch()[0].split(2)),)


def plain(mesh):
    del mesh
    return Model(), batch()


def plain_in_pieces(mesh):
    del mesh
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def train(x):
        y = first(x)
        torch._dynamo.graph_break()
        return second(y).sum()

    return train, (torch.randn(4, WIDTH),)


def without_inputs(mesh):
    return shard(mesh)[0]


def no_model(mesh):
    return {"model": Model(), "mesh": mesh}


def needs_a_gpu(mesh):
    return Model(), torch.cuda.current_device(), mesh


def fails(mesh):
    return parallelize_module(Model(), mesh["nothing"], {})


def decides(mesh):
    model = shard(mesh)[0]

    class Deciding(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, labels):
            if x.sum().item() > 0:
                x = -x
            return self.model(x, labels)

    return Deciding(), batch()


def two(mesh, more):
    return mesh, more


class Attention(nn.Module):
    """Of PyTorch's own, with and without a mask."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 4, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(4, 4, dtype=q.dtype))
        return self.out(y.transpose(1, 2).reshape(2, 4, WIDTH)).float().pow(2).mean()


def attention(mesh):
    model = Attention()
    commcc.shard(model, mesh["dp"], param_dtype=torch.bfloat16)
    return model, (torch.randn(2, 4, WIDTH, dtype=torch.bfloat16),)


class FlexAttention(nn.Module):
    """PyTorch's compiler for attention, with a mask by blocks and a bias."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device=x.device)
        q, k, v = self.qkv(x).view(2, 128, 3, 1, 16).permute(2, 0, 3, 1, 4)
        y = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j), block_mask=mask)
        return y.float().pow(2).mean()


def any_attention(mesh):
    return commcc.shard(FlexAttention(), mesh["dp"]), (torch.randn(2, 128, WIDTH),)


def regions(mesh):
    """Three layers of tensor parallelism, compiled once: their collectives are in sub-graphs."""
    group = mesh["tp"].get_group().group_name

    @torch.compiler.nested_compile_region
    def layer(x, up, down):
        return x + funcol.all_reduce(torch.relu(x @ up) @ down, "sum", group)

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(6))

        def forward(self, x):
            for up, down in zip(self.weights[::2], self.weights[1::2], strict=True):
                x = layer(x, up, down)
            return x

    return Layers(), (torch.randn(4, WIDTH, requires_grad=True),)


class Checkpointed(nn.Module):
    """Its activations are computed again in the backward, those of attention among them."""

    def __init__(self, dropout):
        super().__init__()
        self.attention, self.dropout = Attention(), nn.Dropout(dropout)

    def forward(self, x):
        return checkpoint(lambda y: self.dropout(self.attention(y)), x, use_reentrant=False)


def checkpointed(mesh):
    return commcc.shard(Checkpointed(0.0), mesh["dp"]), (torch.randn(2, 4, WIDTH),)


def checkpointed_with_dropout(mesh):
    return commcc.shard(Checkpointed(0.5), mesh["dp"]), (torch.randn(2, 4, WIDTH),)


class Broken(nn.Module):
    """In its loop the graph breaks, after which parameters are gathered one by one, by code for any number of rows."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.out, self.end = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.LayerNorm(12)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return self.end(self.out(self.norm(x))).sum()


def broken(mesh):
    return commcc.shard(Broken(), mesh["dp"]), batch()[:1]


def sparse(mesh):
    return commcc.shard(nn.Embedding(12, WIDTH, sparse=True), mesh["dp"]), (torch.zeros(4, dtype=torch.int64),)


class Drawn(nn.Module):
    """It draws again until numbers fit, and takes rows of numbers one by one; a buffer begins with numbers."""

    def __init__(self):
        super().__init__()
        rates = [x.item() for x in torch.linspace(0, 0.5, 3)]
        parts = [part.tolist() for part in torch.linspace(0, 0.5, 3).split([1, 2])]
        assert [rate for part in parts for rate in part] == rates == [0.0, 0.25, 0.5]
        self.rate, self.out = rates[1], nn.Linear(WIDTH, WIDTH)
        nn.init.trunc_normal_(self.out.weight, std=0.02)
        self.register_buffer("places", torch.arange(WIDTH))
        self.places += 1

    def forward(self, x):
        return (self.out(x * self.places) * self.rate).sum()


def drawn(mesh):
    return commcc.shard(Drawn(), mesh["dp"]), (torch.randn(4, WIDTH),)


class Synchronised(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.norm, self.out = nn.SyncBatchNorm(WIDTH, process_group=mesh["dp"].get_group()), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(self.norm(x))


def synchronised(mesh):
    return commcc.shard(Synchronised(mesh), mesh["dp"], replicate=True), (torch.randn(4, WIDTH),)


def built_by_value(mesh):
    return nn.Linear(WIDTH, int(torch.randint(4, 5, ()).item()))


class Recurrent(nn.Module):
    """Dynamo does not trace it."""

    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(self.cells(x)[0]).sum()


def recurrent(mesh):
    return commcc.shard(Recurrent(), mesh["dp"]), (torch.randn(2, 4, WIDTH),)
