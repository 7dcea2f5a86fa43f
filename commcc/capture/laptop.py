"""What a user's function meets while it builds a model here: no GPU, no other ranks, and tensors without values.

    with on_this_machine():
        model = build(mesh)             # model.to("cuda"), fully_shard, DistributedDataParallel(model) all work

Devices that are not here read ``cpu``. Limits: what asks ``torch.cuda`` about a device fails as without a GPU.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from commcc.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Rows of numbers of up to this length have their values while a model is built.
_MOST_VALUES = 4096
_ELSEWHERE = re.compile(r"(cuda|xpu|hpu|npu)(:\d+)?")
#: Of a mesh, what computes with the numbers of ranks.
_MESH_METHODS = ("_concatenate", "_flatten", "_unflatten", "from_group", "_get_all_submeshes")


class RecordedDDP(nn.Module):
    """What stands for DistributedDataParallel: it keeps what it was given, and sends nothing."""

    def __init__(self, module: nn.Module, *_: Any, **given: Any) -> None:
        super().__init__()
        self.module, self.given, self.hooked = module, given, False

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        del state, hook
        self.hooked = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        given, named = list(map(_all_here, args)), _all_here(dict(kwargs or {}))
        made = func(*given, **named)
        return _with_its_values(made, func, given, named) if func in (torch.linspace, torch.arange) else made


def _with_its_values(made: Any, func: Any, given: Any, named: Any) -> Any:
    """A row of numbers that models ask for one by one, as for how often each layer is dropped: they are kept."""
    numbers = not any(isinstance(value, torch.Tensor) for value in (*given, *named.values()))
    if isinstance(made, FakeTensor) and numbers and made.device.type == "cpu" and made.numel() <= _MOST_VALUES:
        with unset_fake_temporarily():
            made.constant = func(*given, **named).detach()
        made.fake_mode.fake_tensor_converter.add_constant_storage_mapping(made)
    return made


def _here(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type not in ("cpu", "meta"):
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and _ELSEWHERE.fullmatch(value) else value


def _all_here(value: Any) -> Any:
    """Of what ops are given; every op of the model passes here, so that it is no ``tree_map``."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(map(_all_here, value))
    return {key: _all_here(item) for key, item in value.items()} if kind is dict else _here(value)


@contextmanager
def on_this_machine() -> Iterator[None]:
    """Inside, functions that make and place models work without a GPU and without other ranks."""
    with ExitStack() as stack:
        for place in (torch.nn.parallel, torch.nn.parallel.distributed):
            stack.enter_context(patch.object(place, "DistributedDataParallel", RecordedDDP))
        stack.enter_context(patch.object(DeviceMesh, "__init__", _mesh_maker(DeviceMesh.__init__)))
        for name in _MESH_METHODS:
            if name in vars(DeviceMesh):
                stack.enter_context(patch.object(DeviceMesh, name, _with_values(vars(DeviceMesh)[name])))
        stack.enter_context(patch.object(nn.Module, "_apply", _applier()))
        stack.enter_context(patch.object(nn.Module, "cuda", lambda module, device=None: module))
        stack.enter_context(patch.object(nn.Module, "to", _to(nn.Module.to)))
        stack.enter_context(patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MOST_VALUES))
        # It draws again until nothing is far from the mean, which only values tell; no parameter has any here.
        stack.enter_context(patch.object(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_args, **_named: tensor))
        stack.enter_context(_OnCpu())
        yield


@contextmanager
def integers_counted() -> Iterator[None]:
    """Inside, ``torch.histc`` takes integers, as on a GPU: routers count tokens with it. That of a CPU refuses them."""
    histc: Any = torch.ops.aten.histc.default

    def counts(mode: Any, _func: Any, x: Any, bins: int = 100, *_args: Any, **_named: Any) -> Any:
        with mode:
            return x.new_empty((bins,))

    with patch.dict(fake_impls.op_implementations_dict, {histc: counts}):
        yield


def _with_values(method: Any) -> Any:
    """A method that makes tensors whose values it reads."""
    inner = method.__func__ if isinstance(method, (staticmethod, classmethod)) else method

    @wraps(inner)
    def called(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return inner(*args, **kwargs)

    return type(method)(called) if isinstance(method, (staticmethod, classmethod)) else called


def _mesh_maker(method: Callable[..., None]) -> Callable[..., None]:
    """As ``DeviceMesh.__init__``, for meshes that the function makes besides the one that it is given."""
    inner = _with_values(method)

    @wraps(method)
    def initialize(mesh: DeviceMesh, device_type: str, ranks: Any = None, **options: Any) -> None:
        if isinstance(ranks, FakeTensor):
            what = "DeviceMesh of a tensor, which has no values here"
            raise InputError(what, hint="give it the ranks as lists, or use init_device_mesh")
        if isinstance(options.get("_rank_map"), FakeTensor):  # init_device_mesh counts ranks
            with unset_fake_temporarily():
                options["_rank_map"] = torch.arange(options["_rank_map"].numel(), dtype=torch.int)
        inner(mesh, _here(device_type), ranks, **options)

    return initialize


def _to(method: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """As ``Module.to``, whose arguments are read by code that no mode sees."""

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        return method(module, *map(_here, args), **{key: _here(value) for key, value in kwargs.items()})

    return to


def _applier() -> Callable[..., nn.Module]:
    """As ``Module._apply``, which cannot change a fake parameter in place: it is replaced. Tied ones stay tied."""
    replaced: dict[tuple[int, int], tuple[Any, Any]] = {}

    def apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        for child in module.children() if recurse else ():
            child._apply(fn)  # type: ignore[no-untyped-call]
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            key = (id(fn), id(parameter))
            if key not in replaced:
                with torch.no_grad():
                    applied = fn(parameter)
                same = applied is parameter
                new = parameter if same else nn.Parameter(applied, requires_grad=parameter.requires_grad)
                replaced[key] = (parameter, new)  # kept, so that no other object gets its number
            module._parameters[name] = replaced[key][1]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    return apply
