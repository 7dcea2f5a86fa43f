"""Runs torch's own ``schedule_overlap_bucketing`` on a program, with our durations and memory.

    peer = Peer(program, model)
    made = peer.run("bucket")           # Made(program, seconds, failed)

What the harness changes in the peer, so that it neither gains nor loses by running without a GPU:

* its durations, through ``custom_runtime_estimation``, are those of the cost model, for every node, in
  ms; where it asks for a collective of 0 bytes it gets the latency. For ``estimate_roofline_runtime_ms``,
  which imports triton, the same durations are given (it only logs them);
* its graph is relabelled to the CPU, because it merges by tracing on the device; the result is labelled
  back by the names of nodes, so that both sides are priced as on the device;
* its memory tracker does not count CPU tensors and takes storages from the fake tensors; it gets the
  buffers, sizes and never freed inputs of commcc's memory model, so that both have the same budget;
* its option ``overlap_scheduling_autofix_cycles`` is on, without which it fails on some graphs;
* its two log writers, which estimate everything once more, do nothing;
* it is told that the GPU is an H100 (the cap of its pre-bucketing follows from that);
* in its result a merged gather ``all_gather_into_tensor_out(copy_(narrow(empty), cat))`` is written as
  ``all_gather_into_tensor(cat)``, with a cast where the copy casts: what inductor makes of it (one copy)
  and what commcc makes.

All else is as torch ships it: limits, order of steps, ``max_in_flight_gb=5``, its own budget rule (1 GiB
or 5 % above the baseline, whichever is more).
"""

from __future__ import annotations

import contextlib
import gc
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Options of ``schedule_overlap_bucketing``: merging after scheduling; merging of FSDP's collectives before it.
MODES = {
    "overlap": {"collective_bucketing": False, "pre_bucketing_fsdp_collectives": False},
    "bucket": {"collective_bucketing": True, "pre_bucketing_fsdp_collectives": False},
    "pre": {"collective_bucketing": False, "pre_bucketing_fsdp_collectives": True},
    "pre+bucket": {"collective_bucketing": True, "pre_bucketing_fsdp_collectives": True},
}


@dataclass(frozen=True)
class Made:
    """A result of the peer as a program; CPU seconds of the peer alone. failed: its error, if it raised one."""

    program: Any
    seconds: float
    failed: str | None = None


@dataclass(frozen=True)
class Given:
    """What the peer is told about one graph, by node name."""

    ms: dict[str, float]
    latency_ms: dict[str, float]
    buffers: dict[str, tuple[int, ...]]
    buffer_bytes: tuple[int, ...]

    @staticmethod
    def of(program: Any, model: Any) -> Given:
        from commcc.graph.index import build_index

        index = build_index(program)
        costs = model.price(index)
        return Given(
            {name: ns / 1e6 for name, ns in zip(index.names, costs.ns, strict=True)},
            {index.names[node]: ns / 1e6 for node, ns in costs.latency_ns.items()},
            dict(zip(index.names, index.estimates.buffers, strict=True)),
            tuple(index.estimates.buffer_bytes),
        )

    def estimate(self, node: Any, size: int | None) -> float:
        """What ``custom_runtime_estimation`` asks: ms of a node, or of the collective with no bytes."""
        if size is None:
            return self.ms.get(node.name, 0.0)
        assert size == 0, "the peer asks only for the latency"
        return self.latency_ms[node.name]


@dataclass(frozen=True)
class _Storage:
    """Stands for ``torch.UntypedStorage`` in the peer's memory tracker: one buffer of commcc's index."""

    number: int
    bytes: int = field(compare=False)

    @property
    def _cdata(self) -> int:
        return self.number

    def nbytes(self) -> int:
        return self.bytes


class Peer:
    """One program under one cost model. ``on_cpu``: the same program, loaded with its devices relabelled."""

    def __init__(self, program: Any, on_cpu: Any, model: Any) -> None:
        self._program, self._on_cpu, self._model = program, on_cpu, model
        self._given = Given.of(program, model)
        self._on_host = on_host(program.graph)
        self._mixed = len(set(self._on_host.values())) > 1

    def run(self, mode: str) -> Made:
        """The pass with the options of a mode; its process groups must be registered."""
        from torch._inductor.fx_passes.fsdp import pre_bucket_fsdp_collectives
        from torch._inductor.fx_passes.overlap_scheduling import schedule_overlap_bucketing
        from torch._inductor.pattern_matcher import stable_topological_sort

        module = self._on_cpu.graph_module()
        for node in module.graph.nodes:
            node.meta.pop("recompute", None)  # torch wants an enum there, files hold its name
        options = MODES[mode]
        seconds, given = 0.0, self._given
        try:
            if options["pre_bucketing_fsdp_collectives"]:
                with patched(given), timed() as clock:
                    pre_bucket_fsdp_collectives(module)
                seconds = clock[0]
                stable_topological_sort(module.graph)  # as the scheduler does first
                given = Given.of(self._back(module), self._model)
            with patched(given), timed() as clock:
                module = schedule_overlap_bucketing(
                    module,
                    collective_bucketing=options["collective_bucketing"],
                    pre_bucketing_fsdp_collectives=False,  # done above: its graph has to be priced in between
                    custom_runtime_estimation=given.estimate,
                    compute_estimator="analytical",
                )
            seconds += clock[0]
        except Exception as error:  # the peer's failures are results here
            return Made(None, seconds, f"{type(error).__name__}: {error}".splitlines()[0][:200])
        return Made(self._back(module), seconds)

    def _back(self, module: Any) -> Any:
        """The graph as a program on the device, gathers in commcc's form."""
        import torch

        from commcc.capture.devices import relabel
        from commcc.capture.importing import from_graph_module

        made = from_graph_module(module, self._program.groups, self._program.header)
        plain_gathers(made.graph)
        if self._mixed:  # else all is on one device, whatever its name, and prices are the same
            relabel(made.graph, torch.device("cuda", 0), self._on_host)
        return made


def on_host(graph: Any) -> dict[str, bool]:
    """For the name of each node with tensors whether all of them are on the CPU."""
    import torch
    from torch.utils._pytree import tree_leaves

    found = {}
    for node in graph.nodes:
        leaves = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
        if leaves:
            found[node.name] = all(leaf.device.type == "cpu" for leaf in leaves)
    return found


def plain_gathers(graph: Any) -> None:
    """Write every ``all_gather_into_tensor_out`` into a new buffer as ``all_gather_into_tensor``, in place."""
    import torch

    library = torch.ops._c10d_functional
    for gather in graph.find_nodes(op="call_function", target=library.all_gather_into_tensor_out.default):
        copied, size, group = gather.args
        out = gather.kwargs["out"]
        assert copied.target is torch.ops.aten.copy_.default, copied.format_node()
        narrow, cat = copied.args
        cast = cat.meta["val"].dtype != out.meta["val"].dtype
        gather.target = library.all_gather_into_tensor.default
        gather.args, gather.kwargs = (copied if cast else cat, size, group), {}
        if cast:
            dtype = out.meta["val"].dtype
            copied.target = torch.ops.aten._to_copy.default
            copied.args, copied.kwargs = (cat,), {"dtype": dtype}
            copied.meta["val"] = cat.meta["val"].to(dtype)
        for node in (narrow, out) if cast else (copied, narrow, out):
            graph.erase_node(node)


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """CPU seconds of the block, in a list; the machine may be shared."""
    gc.collect()
    found: list[float] = []
    start = time.process_time()
    yield found
    found.append(time.process_time() - start)


@contextlib.contextmanager
def patched(given: Given) -> Iterator[None]:
    """The changes to the peer that the module's docstring lists."""
    import torch
    from torch._inductor import comm_analysis, config
    from torch._inductor.fx_passes import memory_estimator, node_runtime_estimation, overlap_scheduling
    from torch.utils._ordered_set import OrderedSet

    device = torch.device("cuda", 0)

    def storages(node: Any) -> Any:
        keys = (_Storage(b, given.buffer_bytes[b]) for b in given.buffers.get(node.name, ()))
        return OrderedSet(memory_estimator.StorageKey(key, device) for key in keys)

    class Tracker(memory_estimator.MemoryTracker):  # type: ignore[misc]
        def __init__(self, graph: Any) -> None:
            super().__init__(graph, is_releasable=lambda node: node.op not in ("placeholder", "get_attr"))

    def nothing(*_arguments: Any, **_options: Any) -> None:
        return None

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (overlap_scheduling, "estimate_roofline_runtime_ms", lambda node: given.ms.get(node.name, 0.0)),
            (overlap_scheduling, "MemoryTracker", Tracker),
            (memory_estimator.GraphAliasTracker, "_get_output_storages", staticmethod(storages)),
            (node_runtime_estimation, "_log_compute_estimations", nothing),
            (node_runtime_estimation, "_log_collective_benchmarks", nothing),
            (comm_analysis, "get_gpu_type", lambda: comm_analysis.NVIDIA_GPU_TYPE.HOPPER),
        ):
            stack.enter_context(patch.object(owner, name, value))
        # Off by default, and then some graphs fail with "detected cyclic extra dep(s)".
        option = "aten_distributed_optimizations.overlap_scheduling_autofix_cycles"
        stack.enter_context(config.patch(option, True))
        yield
