"""What Inductor writes for a GPU, on a machine that has none: kernels are generated and not compiled.

    code = gpu_code(program.graph_module())      # of a graph with Inductor's decompositions, whose devices are cuda
    marks_of(code)                               # ["mm", "all_gather_into_tensor", "wait_tensor", ...], in order

PyTorch is told that there is a device of the H100's kind; triton has to be installed. Limits: what asks the device by
another way than those below fails.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from commcc.replay.compiled.inductor import kept_options

if TYPE_CHECKING:
    from torch import fx

_H100 = SimpleNamespace(
    name="H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 << 30,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 << 20,
    gcnArchName="",
    is_integrated=0,
)
_MARK = re.compile(r"_c10d_functional\.(\w+)\.default\(|extern_kernels\.(\w+)\(")


class Written(Exception):
    """Ends compiling when the code is there."""


def _patches() -> list[tuple[Any, str, Any]]:
    import torch._dynamo.device_interface as interfaces
    import torch._subclasses.fake_tensor as fake_tensor
    import torch.utils._triton as triton
    from torch._inductor import codecache, compile_fx, graph, scheduler, utils

    cuda = interfaces.CudaInterface
    plain: list[tuple[Any, dict[str, Any]]] = [
        (torch.cuda, {"is_available": True, "device_count": 1, "current_device": 0, "_lazy_init": None}),
        (torch.cuda, {"get_device_properties": _H100, "get_device_capability": (9, 0), "device": nullcontext()}),
        (cuda, {"is_available": True, "get_compute_capability": 90, "get_raw_stream": 0, "is_triton_capable": True}),
        (cuda, {"raise_if_triton_unavailable": None, "synchronize": None, "is_bf16_supported": True}),
        *((each, {"get_device_properties": _H100, "current_device": 0}) for each in (cuda, cuda.Worker)),
        (torch.cuda, {"get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None}),
        (fake_tensor, {"init_gpu_context": None}),
        (triton, {"triton_hash_with_backend": "", "triton_backend": SimpleNamespace(hash=str)}),
        (codecache.CacheBase, {"get_system": {"hash": ""}}),
    ]
    users = (triton, utils, graph, scheduler, codecache, compile_fx)
    plain += [(user, {"has_triton": True, "has_triton_package": True}) for user in users]
    given = [(where, name, value) for where, values in plain for name, value in values.items() if hasattr(where, name)]
    return [(where, name, _always(value, isinstance(where, type))) for where, name, value in given]


def _always(value: Any, in_class: bool) -> Any:
    """A function that returns this whatever it is asked."""

    def answer(*_: Any, **__: Any) -> Any:
        return value

    return staticmethod(answer) if in_class else answer


def _inverse(tensor: torch.Tensor) -> torch.Tensor:
    return torch.bitwise_not(tensor)


def gpu_code(gm: fx.GraphModule) -> str:
    """The code of a graph, whose launches, waits and products stay where they are."""
    import torch._inductor.config as config
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.graph import GraphLowering

    inputs = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    found: list[str] = []

    def write(lowering: Any) -> None:
        code = lowering.codegen()[0]
        found.append(getattr(code, "value", code))
        raise Written

    with ExitStack() as stack:
        for where, name, value in _patches():
            stack.enter_context(mock.patch.object(where, name, value))
        # The operator asks for a guard of the device; the op does not.
        stack.enter_context(mock.patch.object(torch.Tensor, "__invert__", _inverse))
        stack.enter_context(mock.patch.object(GraphLowering, "compile_to_module", write))
        options = kept_options({"fx_graph_cache": False, "compile_threads": 1, "fallback_random": True})
        stack.enter_context(config.patch(options))
        stack.enter_context(tracing(TracingContext(inputs[0].fake_mode)))
        try:
            compile_fx_inner(gm, inputs)
        except Exception:
            if not found:
                raise
    return found[0]


def marks_of(code: str) -> list[str]:
    """Launches, waits and products, in the order of the calls, each as the op that it is without an addition."""
    calls = [one or other for one, other in _MARK.findall(code[code.index("def call(") :])]
    return [call.removesuffix("_out").rstrip("_").replace("addmm", "mm").replace("baddbmm", "bmm") for call in calls]
