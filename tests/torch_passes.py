"""PyTorch's own passes over collectives, run without a GPU on a copy of a program: other people's results to judge.

::

    with groups_of(program):
        after = run_pass(program, "pre-bucketing")

Graphs must be on the CPU (``step_graphs.on_cpu``), where those passes trace what they insert. Durations, which
decide only how much is merged and moved, are made up. Limits: older PyTorch lacks some passes and modes.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from commcc.capture.importing import from_graph_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from commcc.graph.program import Program

MANY = 1000.0


def _gathers(mode: str) -> Callable[[Any], Any]:
    def run(module: Any) -> Any:
        from torch._inductor.fx_passes.bucketing import bucket_all_gather

        bucket_all_gather(module, lambda _: MANY, mode)

    return run


def _scatters(mode: str) -> Callable[[Any], Any]:
    def run(module: Any) -> Any:
        from torch._inductor.fx_passes.bucketing import bucket_reduce_scatter

        bucket_reduce_scatter(module, lambda _: MANY, mode)

    return run


def _reductions(module: Any) -> Any:
    from torch._inductor.fx_passes.bucketing import bucket_all_reduce

    bucket_all_reduce(module, lambda _: MANY)


def _pre_bucketing(module: Any) -> Any:
    from torch._inductor.fx_passes.fsdp import pre_bucket_fsdp_collectives

    pre_bucket_fsdp_collectives(module, bucket_cap_mb=200.0)


def _scheduled(**options: Any) -> Callable[[Any], Any]:
    def run(module: Any) -> Any:
        from torch._inductor.fx_passes.overlap_scheduling import schedule_overlap_bucketing

        def estimate(_node: Any, size: int | None) -> float:
            return 0.01 if size is None else 0.001

        return schedule_overlap_bucketing(
            module, custom_runtime_estimation=estimate, compute_estimator="analytical", **options
        )

    return run


def _manual(*, depend: bool) -> Callable[[Any], Any]:
    def run(module: Any) -> Any:
        from torch._inductor.fx_passes.overlap_manual_scheduling import manual_overlap_bucketing

        names = {name for node in module.graph.nodes for name, _ in modules_of(node)}
        layers = {found.group() for found in (re.match(r"layers\.\d+", name) for name in names) if found}
        plan = ["tok_embeddings", *sorted(layers), ["norm", "output"]]
        return manual_overlap_bucketing(module, plan, insert_overlap_deps=depend, module_stack_fn=modules_of)

    return run


#: By name: changes a module in place, or returns a new one.
PASSES: dict[str, Callable[[Any], Any]] = {
    "gathers, copied into place": _gathers("default"),
    "gathers, one op lays out": _gathers("custom_ops"),
    "gathers of several dtypes": _gathers("custom_ops_multidtype"),
    "scatters": _scatters("default"),
    "scatters, one op lays out": _scatters("custom_ops"),
    "scatters, coalesced": _scatters("coalesced"),
    "reductions": _reductions,
    "pre-bucketing": _pre_bucketing,
    "scheduled": _scheduled(collective_bucketing=False),
    "scheduled, bucketed": _scheduled(collective_bucketing=True),
    "scheduled, edges": _scheduled(collective_bucketing=True, insert_overlap_deps=True),
    "manual": _manual(depend=False),
    "manual, edges": _manual(depend=True),
}


def modules_of(node: Any) -> list[tuple[str, type]]:
    """Module paths of a node, outermost first."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return [(path.replace("L['self'].", ""), torch.nn.Module) for path, _ in stack.values()]


@contextlib.contextmanager
def groups_of(program: Program) -> Iterator[None]:
    """Fake process groups under the names that a graph uses."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    native = torch._C._distributed_c10d
    world = max([2, *(group.size or 1 for group in program.groups.values())])
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        for name, group in sorted(program.groups.items()):
            made = dist.new_group(list(range(group.size or world)))
            with contextlib.suppress(RuntimeError, ValueError):
                native._unregister_process_group(name)
            native._register_process_group(name, made)
        yield
    finally:
        dist.destroy_process_group()


def run_pass(program: Program, name: str) -> Program:
    """What a pass makes of a program that is on the CPU; its process groups must be there."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    module = program.graph_module()
    with _without_a_device():
        module = PASSES[name](module) or module
    stable_topological_sort(module.graph)
    return from_graph_module(module, program.groups, program.header)


@contextlib.contextmanager
def _without_a_device() -> Iterator[None]:
    """What the passes ask the device and the compiler for is made up, and nothing is logged."""
    from torch._inductor import comm_analysis, config
    from torch._inductor.fx_passes import node_runtime_estimation, overlap_scheduling

    def nothing(*_arguments: Any, **_options: Any) -> None:
        return None

    made_up = (
        (overlap_scheduling, "estimate_roofline_runtime_ms", lambda _: 0.01),
        (node_runtime_estimation, "_log_compute_estimations", nothing),
        (node_runtime_estimation, "_log_collective_benchmarks", nothing),
        (comm_analysis, "get_gpu_type", lambda: comm_analysis.NVIDIA_GPU_TYPE.HOPPER),
        (comm_analysis, "estimate_nccl_collective_runtime_from_fx_node", lambda *_, **__: 0.02),
    )
    with contextlib.ExitStack() as stack:
        for owner, name, value in made_up:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, value))
        option = "aten_distributed_optimizations.overlap_scheduling_autofix_cycles"
        with contextlib.suppress(AttributeError):
            stack.enter_context(config.patch(option, True))
        yield
