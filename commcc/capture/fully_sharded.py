"""Models of ``fully_shard`` (FSDP2), ``replicate`` and DistributedDataParallel, with their collectives in the graph.

::

    with on_this_machine():
        model = build(mesh)                # of fully_shard, or of DistributedDataParallel
    model, notes = as_shards(model)        # the same parallelism as commcc.shard writes it

These communicate in hooks, outside of what is compiled. Mesh, placements, precision and what is gathered again in the
backward are read off their state. Limits: parameters that are resharded to a smaller mesh are gathered from the whole
one in the backward; uses private PyTorch APIs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._pytree import tree_map

from commcc.base.errors import OptionError
from commcc.capture.laptop import RecordedDDP
from commcc.capture.shards import Gathered, Inner, ShardRule, gather_once, put, shard

_HOOKS = (
    "fully_shard and DistributedDataParallel communicate outside of compiled graphs: a plan from these graphs is for "
    "the same model under commcc.shard"
)

#: What a module of ``fully_shard`` was told and graphs do not show: its method, the field of a group, the value untold.
_TOLD = (
    ("set_gradient_divide_factor", "gradient_divide_factor", None),
    ("set_requires_gradient_sync", "reduce_grads", True),
    ("set_all_reduce_hook", "_all_reduce_hook", None),
    ("set_unshard_in_backward", "unshard_in_backward", True),
)


def as_shards(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """The model with gathers and reductions in its forward; notes on what cannot be written exactly."""
    notes: list[str] = []
    copies = False
    for part in list(model.modules()):
        given = _unhooked(part)
        if given is not None:
            copies = True
            shard(part, _ddp_mesh(given), replicate=True, **_ddp_precision(given))
        elif isinstance(part, RecordedDDP):
            copies = True
            shard(part.module, _ddp_mesh(part.given), replicate=True, **_ddp_precision(part.given))
            if part.hooked:
                notes.append("register_comm_hook is left out: gradients are averaged as they are")
        elif type(part).__name__ == "FullyShardedDataParallel":
            raise OptionError(
                "the model is wrapped in FullyShardedDataParallel, which gathers outside of graphs",
                hint="use fully_shard or commcc.shard",
            )
    states = [(part, state) for part in model.modules() if (state := _state(part)) is not None]
    inside = {child for part, _ in states for child in part.modules() if child is not part}
    done: set[int] = set()
    for part, state in states:
        if id(state) not in done:  # one state may be that of several modules
            done.add(id(state))
            notes += _convert(state, root=part not in inside)
    gather_once(model)
    if done or copies:
        notes.append(_HOOKS)
    return model, notes


def _unhooked(part: nn.Module) -> dict[str, Any] | None:
    """What ``replicate``, which is DDP in hooks, was given for this module, whose hooks are taken away; else None."""
    from torch.distributed._composable.replicate import replicate

    known: Any = replicate
    state = known.state(part)
    if state is None:
        return None
    for hooks in (part._forward_pre_hooks, part._forward_hooks):
        for number in [number for number, hook in hooks.items() if getattr(hook, "__self__", None) is state]:
            del hooks[number]
    part.__class__ = type(part).__mro__[2]
    return dict(state._init_kwargs)


def _state(part: nn.Module) -> Any:
    from torch.distributed._composable_state import _get_module_state

    state = _get_module_state(part)
    return state if hasattr(state, "_pre_forward_hook_handle") else None


def _convert(state: Any, *, root: bool) -> list[str]:
    """Take the hooks away, and let each parameter be gathered where it is used."""
    notes: list[str] = []
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    for handle in (state._pre_forward_hook_handle, state._post_forward_hook_handle):
        handle.remove()
    for part in state._modules:
        _plain_class(part)
        _cast(part, state._mp_policy)
    # PyTorch decides it when the root first runs.
    keeps = root and getattr(state, "_auto_reshard_after_forward", False)
    for group in groups:
        told = [method for method, name, untold in _TOLD if getattr(group, name, untold) != untold]
        if told:
            notes.append(f"{', '.join(told)}: left out; gradients are averaged over all ranks, once for each parameter")
        after = group.post_forward_mesh_info
        for kept in group.fsdp_params:
            notes += _put_parameter(kept, state._mp_policy, reshard=after is not None and not keeps)
        whole = after is None or after.mesh.size() == group.mesh_info.mesh.size()
        if not whole and not keeps:
            notes.append(
                "reshard_after_forward is a number: the backward is written to gather from all ranks of the mesh"
            )
    return notes


def _put_parameter(kept: Any, policy: Any, *, reshard: bool) -> list[str]:
    info = kept.mesh_info
    cut = getattr(info, "shard_mesh_dim", None)
    dimension = kept.fsdp_placement.dim
    placements = tuple(Shard(dimension) if axis == cut else Replicate() for axis in range(info.mesh.ndim))
    rule = ShardRule(info.mesh, placements, policy.param_dtype, policy.reduce_dtype, reshard and cut is not None)
    local = kept._sharded_param_data.view(kept.padded_sharded_param_size).detach()
    value = DTensor.from_local(local, info.mesh, placements, run_check=False)
    parameter = nn.Parameter(value, requires_grad=kept.sharded_param.requires_grad)
    rows = None
    if cut is not None and value.shape[dimension] != kept._orig_size[dimension]:
        rows = kept._orig_size[dimension]
    inner = None
    if kept.is_dtensor:
        spec = getattr(kept, "_unsharded_dtensor_spec", None) or kept._tp_spec
        inner = Inner(spec.mesh, spec.placements, spec.shape, spec.stride)
    gathered = Gathered(rule, rows, inner)
    where = kept._module_info
    # A module that stands in two places is among them twice.
    owners = zip([where.module, *where.shared_modules], [where.param_name, *where.shared_param_names], strict=True)
    for owner, name in dict.fromkeys(owners):
        put(owner, name, parameter, gathered)
    notes = ["CPU offload is left out: its copies are in no graph"] if kept.offload_to_cpu else []
    if hasattr(kept._sharded_local_tensor, "fsdp_pre_all_gather"):  # as of weights that are gathered in float8
        notes.append("parameters with an fsdp_pre_all_gather of their own are gathered as they are, in another dtype")
    return notes


def _plain_class(part: nn.Module) -> None:
    """The module with the class that it had before ``fully_shard``."""
    kind: Any = type(part)
    part.__class__ = kind.__mro__[getattr(kind, "_orig_cls_mro_index", 2)]
    for managed in part.modules():
        for name in ("_is_fsdp_managed_module", "_fsdp_use_orig_params"):
            managed.__dict__.pop(name, None)


def _cast(part: nn.Module, policy: Any) -> None:
    """What the hooks did besides gathering: inputs and outputs in the policy's precision."""

    def to(dtype: torch.dtype, value: Any) -> Any:
        def cast(leaf: Any) -> Any:
            return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

        return tree_map(cast, value)

    if policy.cast_forward_inputs and policy.param_dtype is not None:

        def before(_module: nn.Module, args: Any, kwargs: Any) -> Any:
            return to(policy.param_dtype, args), to(policy.param_dtype, kwargs)

        part.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
    if policy.output_dtype is not None:
        part.register_forward_hook(lambda _module, _args, output: to(policy.output_dtype, output))


def _ddp_mesh(given: dict[str, Any]) -> DeviceMesh:
    mesh: DeviceMesh | None = given.get("device_mesh")
    if mesh is not None:
        return mesh
    group = given.get("process_group")
    if group is None:
        group = torch.distributed.distributed_c10d._get_default_group()
    return DeviceMesh.from_group(group, "cpu")


def _ddp_precision(given: dict[str, Any]) -> dict[str, Any]:
    policy = given.get("mixed_precision")
    return {} if policy is None else {"param_dtype": policy.param_dtype, "reduce_dtype": policy.reduce_dtype}
