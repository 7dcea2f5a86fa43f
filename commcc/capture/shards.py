"""Parameters that live in shards and are gathered where they are used, for ``torch.compile``: ``commcc.shard``.

::

    for block in model.layers:
        commcc.shard(block, mesh["dp"], param_dtype=torch.bfloat16)      # gathered again in the backward
    commcc.shard(model, mesh["dp"], reshard_after_forward=False)         # what is left: embedding, norm, output

Each parameter becomes a DTensor behind a parametrization that gathers it, so that gathers and reductions are part of
the compiled graphs, where ``fully_shard`` has them in hooks outside. Under tensor parallelism shard after
``parallelize_module``, as with ``fully_shard``.

Limits: dimension 0 is cut; what does not divide is kept with rows of zeros at its end. A parameter that is a DTensor
already is a DTensor of the data-parallel mesh afterwards, whose values are this rank's part of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn.utils import parametrize
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from commcc.base.errors import OptionError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class ShardRule:
    """How parameters are kept and gathered.

    mesh: of the data-parallel ranks, of one or two axes. placements: of a parameter on it. param_dtype: what is
    gathered and computed with; the parameter's own without. reduce_dtype: what gradients are reduced in; that of the
    gradient without. reshard: gathered again in the backward, else kept.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    reshard: bool = True
    shards: DeviceMesh | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Made here, since code that is compiled cannot cut meshes."""
        names = self.mesh.mesh_dim_names
        if names is not None and len(names) > 1 and self.dimension is not None:
            object.__setattr__(self, "shards", self.mesh[names[-1]])

    @property
    def dimension(self) -> int | None:
        """The one that is cut; None where all ranks have all of it."""
        return next((place.dim for place in self.placements if isinstance(place, Shard)), None)


@dataclass(frozen=True)
class Inner:
    """What the parameter was before it was sharded: a DTensor, of which each rank shards its own part."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]


class Gathered(nn.Module):
    """A parametrization: from the shard to the parameter that the module computes with.

    rows: of the parameter along the dimension that is cut, where shards have more together. inner: None for a
    parameter that was a plain tensor. once: a module around its places gathers for all of them, into ``shared``.
    """

    def __init__(self, rule: ShardRule, rows: int | None, inner: Inner | None) -> None:
        super().__init__()
        self.rule, self.rows, self.inner = rule, rows, inner
        self.once = False
        self.shared: Tensor | None = None

    def forward(self, shard: DTensor) -> Tensor:
        # Outside of compiled code a checkpointed layer runs again after the forward, and has to do the same again.
        if self.shared is not None and (torch.compiler.is_compiling() or not _hooks_save_tensors()):
            return self.shared
        return self.gathered(shard)

    def gathered(self, shard: DTensor) -> Tensor:
        """The parameter of a shard, gathered again in the backward where the rule says so."""
        if not self.rule.reshard:
            return self.whole(shard)
        again: Any = checkpoint
        gathered: Tensor = again(self.whole, shard, use_reentrant=False, context_fn=_ALL_AGAIN)
        return gathered

    def whole(self, shard: DTensor) -> Tensor:
        rule = self.rule
        if rule.shards is not None:
            # Copies average the gradient of the shard, not that of the whole parameter, which DTensor would all-reduce
            # before it is scattered; from here on there are only the ranks that have the other shards.
            same = shard.redistribute(placements=rule.placements, backward_dtype=rule.reduce_dtype or rule.param_dtype)
            placed = tuple(place if isinstance(place, Shard) else Partial("avg") for place in rule.placements)
            local = same.to_local(grad_placements=placed)
            shard = DTensor.from_local(local, rule.shards, rule.placements[-1:], run_check=False)
        axes = shard.device_mesh.ndim
        whole = shard.redistribute(
            placements=[Replicate()] * axes, forward_dtype=rule.param_dtype, backward_dtype=rule.reduce_dtype
        ).to_local(grad_placements=[Partial("avg")] * axes)
        if self.rows is not None and rule.dimension is not None:
            whole = whole.narrow(rule.dimension, 0, self.rows)
        if self.inner is None:
            return whole
        return DTensor.from_local(
            whole,
            self.inner.mesh,
            self.inner.placements,
            run_check=False,
            shape=self.inner.shape,
            stride=self.inner.stride,
        )


def _hooks_save_tensors() -> bool:
    autograd: Any = torch._C._autograd
    return autograd._top_saved_tensors_default_hooks(True) is not None


def _again(_ctx: Any, _op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE


_ALL_AGAIN = partial(create_selective_checkpoint_contexts, _again)


def shard(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    replicate: bool = False,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    reshard_after_forward: bool = True,
) -> nn.Module:
    """Shard the parameters of ``module`` that are not sharded yet, in place; returns ``module``.

    mesh: of the data-parallel ranks: one axis to shard over (FSDP), or two, of copies and of shards (HSDP).
    replicate: keep whole parameters, and all-reduce their gradients (DDP). param_dtype, reduce_dtype: what is gathered
    and computed with, and what gradients are reduced in. reshard_after_forward: gather again in the backward. Calls on
    blocks, and then on the model, choose for each block. Raises :class:`OptionError`.
    """
    if mesh.ndim > 2:
        raise OptionError(
            f"a mesh of {mesh.ndim} axes", hint="give one axis (FSDP), or two of copies and shards (HSDP)"
        )
    copies: tuple[Placement, ...] = (Replicate(),) * mesh.ndim
    placements = copies if replicate else (*copies[1:], Shard(0))
    rule = ShardRule(mesh, placements, param_dtype, reduce_dtype, reshard_after_forward and not replicate)
    sharded: dict[nn.Parameter, tuple[nn.Parameter, Gathered]] = {}
    for owner in list(module.modules()):
        if isinstance(owner, parametrize.ParametrizationList):
            continue
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if parameter not in sharded:  # tied parameters stay one
                sharded[parameter] = _sharded(parameter, rule)
            put(owner, name, *sharded[parameter])
    gather_once(module)
    return module


def gather_once(module: nn.Module) -> None:
    """Let each forward of ``module`` gather once what stands in several places of it, such as a tied weight.

    Autograd then adds the gradients up before they are reduced, as it does for ``fully_shard`` and
    DistributedDataParallel; behind a gather of its own every use would have a reduction of its own.
    It is a class with another forward, since hooks of the outermost module are compiled as a graph of their own.
    Limits: a module that is called several times, but stands in one place, gathers in each call.
    """
    paths: dict[Gathered, list[str]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, parametrize.ParametrizationList) and isinstance(part[0], Gathered) and not part[0].once:
            paths.setdefault(part[0], []).append(path)
    first = [places[0] for places in paths.values() if len(places) > 1]
    if not first:
        return
    known: Any = type(module)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Asked for by path: what loads or traces a model may have put other parameters there.
        places = [self.get_submodule(path) for path in first]
        for place in places:
            place[0].shared = place[0].gathered(place.original)
        # No try: Dynamo cannot go on behind a break inside of one. What an error leaves, the next forward gathers anew.
        result = known.forward(self, *args, **kwargs)
        for place in places:
            place[0].shared = None
        return result

    for path in first:
        gathered: Any = module.get_submodule(path)[0]  # type: ignore[index]
        gathered.once = True
    named = {"forward": forward, "__module__": known.__module__, "__qualname__": known.__qualname__}
    module.__class__ = type(known.__name__, (known,), named)


def put(owner: nn.Module, name: str, value: nn.Parameter, gathered: Gathered) -> None:
    """Let ``owner`` keep ``value``, and compute with what is gathered of it. Raises :class:`OptionError`."""
    if getattr(owner, "sparse", False):  # nn.Embedding and nn.EmbeddingBag
        what = f"{type(owner).__name__}(sparse=True): sparse gradients cannot be reduced in a graph"
        raise OptionError(what, hint="make it with sparse=False")
    setattr(owner, name, value)
    parametrize.register_parametrization(owner, name, gathered, unsafe=True)


def _sharded(parameter: nn.Parameter, rule: ShardRule) -> tuple[nn.Parameter, Gathered]:
    """This rank's shard, and what makes it whole."""
    value, inner, rows = parameter.detach(), None, None
    if isinstance(value, DTensor):
        inner = Inner(value.device_mesh, value.placements, value.shape, value.stride())
        value = value.to_local()
    if not all(isinstance(place, Replicate) for place in rule.placements):
        if value.ndim == 0:
            raise OptionError("a parameter without dimensions cannot be cut", hint="make it one of one element")
        axis = rule.mesh.ndim - 1
        ranks, at, size = rule.mesh.size(axis), rule.mesh.get_local_rank(axis), value.shape[0]
        share = math.ceil(size / ranks)
        # Equal shards on all ranks: the last ones get rows of zeros that nothing reads.
        rows = size if share * ranks != size else None
        part = value.narrow(0, min(at * share, size), max(0, min(share, size - at * share)))
        value = value.new_zeros(share, *value.shape[1:])
        value.narrow(0, 0, part.shape[0]).copy_(part)
    tensor = DTensor.from_local(value, rule.mesh, rule.placements, run_check=False)
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad), Gathered(rule, rows, inner)
