"""What is there on this machine, and what of commcc works with it.

    checks = all_checks()         # [..., Check("hooks", "commcc.inductor_pass", True, "CustomGraphPass, ..."), ...]

Nothing is compiled, and no process group is made. Without PyTorch the rest is said all the same.
Limits: that a hook is there does not say that it is called.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import commcc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

#: Private or new parts of PyTorch that commcc builds on, by what needs them.
_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "commcc.backend over aot_eager",
        ("torch._dynamo.backends.common:aot_autograd", "torch._functorch.partitioners:has_recomputable_rng_ops"),
    ),
    (
        "commcc.backend over Inductor",
        (
            "torch._inductor.compile_fx:compile_fx_inner",
            "torch._inductor.compile_fx:min_cut_rematerialization_partition",
            "torch._functorch.config:enable_autograd_cache",
        ),
    ),
    (
        "commcc.inductor_pass",
        (
            "torch._inductor.custom_graph_pass:CustomGraphPass",
            "torch._inductor.config:post_grad_custom_post_pass",
            "torch._inductor.config:post_grad_custom_pre_pass",
        ),
    ),
    (
        "commcc capture",
        (
            "torch.testing._internal.distributed.fake_pg:FakeStore",
            "torch._functorch.config:force_non_lazy_backward_lowering",
            "torch._inductor.config:joint_custom_pre_pass",
        ),
    ),
    (
        "commcc capture of fully_shard",
        ("torch.distributed.fsdp:fully_shard", "torch.distributed._composable_state:_get_module_state"),
    ),
    ("ranks agree", ("torch.distributed.distributed_c10d:_get_default_store",)),
)


_NEEDED = "needs PyTorch"


@dataclass(frozen=True)
class Check:
    """One line. good: None for what is only told."""

    about: str
    name: str
    good: bool | None
    text: str


def all_checks() -> list[Check]:
    """Versions, then devices, then hooks, then what works."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return [*_versions(None), Check("devices", "CPU", None, _cores()), *_hooks(None), *_works(None)]
    return [*_versions(torch), *_devices(torch), *_hooks(torch), *_works(torch)]


def _versions(torch: ModuleType | None) -> Iterator[Check]:
    yield Check("versions", "commcc", None, commcc.__version__)
    yield Check("versions", "Python", None, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    if torch is None:
        yield Check("versions", "PyTorch", False, "not installed; pip install 'torch>=2.11'")
    else:
        built = f"built with CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        new = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 11)
        old = "" if new else "; 2.11 or later is needed"
        yield Check("versions", "PyTorch", new, f"{torch.__version__}, {built}{old}")
    installed = {package.metadata["Name"].lower(): package.version for package in importlib.metadata.distributions()}
    for name in ("numpy", "llvmlite", "triton"):
        yield Check("versions", name, None, installed.get(name, "not installed"))


def _cores() -> str:
    return f"{os.cpu_count()} cores"


def _devices(torch: ModuleType) -> Iterator[Check]:
    dist = importlib.import_module("torch.distributed")
    yield Check("devices", "CPU", None, f"{_cores()}, {torch.get_num_threads()} used by PyTorch")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
    yield Check("devices", "GPU", None, f"{count} x {', '.join(names)}" if count else "none")
    there = [
        name
        for name, available in (
            ("gloo", dist.is_gloo_available()),
            ("nccl", dist.is_nccl_available()),
            ("mpi", dist.is_mpi_available()),
        )
        if available
    ]
    yield Check("devices", "process groups", bool(there), ", ".join(there) or "none")


def _hooks(torch: ModuleType | None) -> Iterator[Check]:
    for name, parts in _PARTS:
        if torch is None:
            yield Check("hooks", name, False, _NEEDED)
            continue
        lost = list(_missing(parts))
        text = f"this PyTorch has no {', '.join(lost)}" if lost else ", ".join(part.partition(":")[2] for part in parts)
        yield Check("hooks", name, not lost, text)
    names = [point.name for point in importlib.metadata.entry_points(group="torch_dynamo_backends")]
    registered = "commcc" in names
    text = "registered" if registered else "not registered here; backend=commcc.backend() works without"
    yield Check("hooks", 'backend="commcc"', True if registered else None, text)


def _missing(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        module, _, name = part.partition(":")
        try:
            there = hasattr(importlib.import_module(module), name)
        except ImportError:
            there = False
        if not there:
            yield f"{module}.{name}"


def _works(torch: ModuleType | None) -> Iterator[Check]:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "clang++", "cl"))), None)
    yield Check(
        "works here",
        "Inductor on the CPU",
        compiler is not None,
        compiler or "no C++ compiler; install one, or use inner='aot_eager'",
    )
    if torch is None:
        yield Check("works here", "commcc bench on ranks", False, _NEEDED)
        return
    dist, gpu = importlib.import_module("torch.distributed"), torch.cuda.is_available()
    yield Check(
        "works here",
        "Inductor on a GPU",
        gpu or None,
        "triton" if gpu else "no GPU: graphs are captured, tuned and simulated without",
    )
    ranks = "nccl" if gpu and dist.is_nccl_available() else "gloo" if dist.is_gloo_available() else ""
    yield Check("works here", "commcc bench on ranks", bool(ranks), ranks or "no process groups in this PyTorch")
    debugger = sys.gettrace() is not None
    if debugger:
        yield Check("works here", "torch.compile", False, "a debugger traces this process: Dynamo does nothing")
