"""Parameters that live in shards and are gathered where they are used (FSDP as plain autograd).

Every parameter becomes a shard with a parametrization, so that tracing the module shows, for each use::

    primals_1 (f32 shard) -> cast to bf16 -> all_gather -> wait -> mm
    gradient (bf16) -> cast to f32 -> reduce_scatter -> wait -> output

A replicated axis gives an all-reduce of the gradient instead (DDP), a replicated and a sharded one
both (HSDP). Shards are DTensors, as in SimpleFSDP, or with ``plain`` ordinary tensors with the
collectives written out, so that a graph has no device-mesh inputs and its descriptors name parameters
directly. Limits: dimension 0 of every parameter must divide by the number of shards; a plain shard is
cut over one axis at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.utils import parametrize

from commcc.base.errors import OptionError
from commcc.capture.unsharding import Cast, PlainPlacing, PlainUnshard, Precision, Unshard

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from commcc.capture.world import World


@dataclass(frozen=True)
class Placing:
    """Where one parameter lives.

    shard: axes over which its dimension 0 is cut; gradients are averaged over them.
    replicate: axes that hold copies, whose gradients are averaged.
    sum: axes that hold copies and see different tokens of one batch, whose gradients are added.
    gradient_scale: factor on the local gradient before it is reduced.
    """

    shard: tuple[str, ...] = ()
    replicate: tuple[str, ...] = ()
    sum: tuple[str, ...] = ()
    gradient_scale: float = 1.0

    @property
    def axes(self) -> tuple[str, ...]:
        """All of them."""
        return self.shard + self.replicate + self.sum


@dataclass(frozen=True)
class Sharding:
    """How a module's parameters are sharded: ``place`` gives the placing of a parameter's path."""

    place: Callable[[str], Placing]
    precision: Precision
    plain: bool = False


def shard_parameters(module: nn.Module, world: World, sharding: Sharding) -> None:
    """Replace every parameter of ``module`` by its shard on this rank.

    Raises OptionError naming every parameter that does not divide.
    """
    wrong: list[str] = []
    for path, owner in list(module.named_modules()):
        for name, parameter in list(owner.named_parameters(recurse=False)):
            full = f"{path}.{name}" if path else name
            placing = sharding.place(full)
            shards = prod(world.layout.size(axis) for axis in placing.shard)
            if parameter.shape[0] % shards:
                wrong.append(f"{full} has {parameter.shape[0]} rows for {shards} shards")
                continue
            local = parameter.new_empty((parameter.shape[0] // shards, *parameter.shape[1:]))
            value, unshard = _sharded(local, placing, (world, sharding))
            setattr(owner, name, nn.Parameter(value))
            parametrize.register_parametrization(owner, name, unshard, unsafe=True)
    if wrong:
        raise OptionError(f"parameters do not divide over the layout: {', '.join(wrong)}")


def _sharded(local: Tensor, placing: Placing, where: tuple[World, Sharding]) -> tuple[Tensor, nn.Module]:
    world, sharding = where
    axes = [axis for axis in world.meshes if axis in placing.axes]
    # Nothing to gather: an expert of which this rank has all.
    if not axes:
        return local, Cast(placing.gradient_scale, sharding.precision)
    if sharding.plain:
        return local, PlainUnshard(_plain(placing, axes, world), sharding.precision)
    placements = [Shard(0) if axis in placing.shard else Replicate() for axis in axes]
    reductions = tuple(Partial(_reduction(axis, placing)) for axis in axes)
    tensor = DTensor.from_local(local, world.mesh(*axes), placements, run_check=False)
    return tensor, Unshard(reductions, placing.gradient_scale, sharding.precision)


def _reduction(axis: str, placing: Placing) -> str:
    return "sum" if axis in placing.sum else "avg"


def _plain(placing: Placing, axes: list[str], world: World) -> PlainPlacing:
    # One collective gathers over one group.
    if len(placing.shard) > 1:
        raise OptionError("a plain shard cannot be cut over several axes", hint="join them in the layout")
    shards = [(world.layout.size(axis), world.group_name(axis)) for axis in placing.shard]
    copies = [(_reduction(axis, placing), world.group_name(axis)) for axis in axes if axis not in placing.shard]
    return PlainPlacing(shards[0] if shards else None, tuple(copies), placing.gradient_scale)
