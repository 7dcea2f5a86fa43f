"""Kineto traces made by hand, event by event as kineto's output_json.cpp writes them."""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

BF16, F32 = "c10::BFloat16", "float"


class TraceFile:
    """Events of one process; times in microseconds, as in the file."""

    def __init__(self, rank: int | None = None, *, groups: tuple[int, ...] = ()) -> None:
        self.events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "ts": 0, "pid": 100, "tid": 0, "args": {"name": "python"}},
        ]
        self.head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [], "record_shapes": 1}
        self.head["baseTimeNanoseconds"] = 1790857026000000000
        if rank is not None:
            config = [{"pg_name": str(i), "pg_size": size} for i, size in enumerate(groups)]
            self.head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": config}
        self._next = 1

    def op(self, name: str, ts: float, dur: float, *tensors: tuple[str, list[int]], **more: Any) -> int:
        """A cpu_op; the result is its External id. more: tid, concrete, shapes=False, scalars=0."""
        external, self._next = self._next, self._next + 1
        args: dict[str, Any] = {"External id": external, "Record function id": 0, "Ev Idx": external}
        if more.get("shapes", True):
            scalars = more.get("scalars", 0)
            args["Concrete Inputs"] = more.get("concrete", [""] * len(tensors))
            args["Input type"] = [kind for kind, _ in tensors] + ["Scalar"] * scalars
            args["Input Dims"] = [shape for _, shape in tensors] + [[]] * scalars
        event = {"ph": "X", "cat": more.get("cat", "cpu_op"), "name": name, "pid": 100, "tid": more.get("tid", 100)}
        self.events.append({**event, "ts": ts, "dur": dur, "args": args})
        return external

    def launch(self, correlation: int, ts: float, external: int | None = None, tid: int = 100) -> None:
        args = {"cbid": 211, "correlation": correlation} | ({} if external is None else {"External id": external})
        event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": tid}
        self.events.append({**event, "ts": ts, "dur": 4.5, "args": args})

    def kernel(self, ts: float, dur: float, external: int | None, correlation: int | None = None, **more: Any) -> None:
        args: dict[str, Any] = {"queued": 0, "device": 0, "context": 1, "stream": 7, **more.get("args", {})}
        args |= {} if external is None else {"External id": external}
        args |= {} if correlation is None else {"correlation": correlation}
        event = {"ph": "X", "cat": more.get("cat", "kernel"), "name": more.get("name", "nvjet_hsh_128x256"), "pid": 0}
        self.events.append({**event, "tid": 7, "ts": ts, "dur": dur, "args": args})

    def collective(self, ts: float, dur: float, name: str, nelems: tuple[int, int], **more: Any) -> None:
        """A record_param_comms op and its NCCL kernel. more: size, dtype, group, on_kernel=False, kernels=1."""
        size = more.get("size", 2)
        described = {
            "Collective name": name,
            "In msg nelems": nelems[0],
            "Out msg nelems": nelems[1],
            "Group size": size,
            "dtype": more.get("dtype", "BFloat16"),
            "Process Group Name": more.get("group", "0"),
            "Process Group Ranks": str(list(range(size))),
        }
        external = self.op("record_param_comms", ts - 50, 20)
        self.events[-1]["args"] |= described
        kernel = {"name": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}
        count = more.get("kernels", 1)
        for i in range(count):
            args = described if more.get("on_kernel", True) else {}
            self.kernel(ts + i * dur / count, dur / count, external, args=args, **kernel)

    def write(self, path: Path) -> Path:
        text = json.dumps({**self.head, "traceEvents": self.events, "traceName": path.name}, indent=1)
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())
        return path


def gpu_trace(scale: float = 1.0, rank: int | None = None) -> TraceFile:
    """Three linear layers, each a kernel and a fill on the device, 502, 542 and 522 us times ``scale``."""
    trace = TraceFile(rank)
    x, w, b = (BF16, [8, 16]), (BF16, [32, 16]), (BF16, [32])
    for start, us in ((0, 500), (1000, 540), (2000, 520)):
        trace.op("aten::linear", start, 60, x, w, b)
        trace.op("aten::t", start + 2, 5, w)
        addmm = trace.op("aten::addmm", start + 10, 40, b, x, (BF16, [16, 32]), scalars=2)
        trace.launch(900 + start, start + 20, addmm)
        trace.kernel(start + 100, us * scale, addmm, 900 + start)
        trace.kernel(start + 90, 2 * scale, addmm, 901 + start, cat="gpu_memset", name="Memset (Device)")
    return trace


def record_rank(rank: int, folder: str) -> None:
    """One of two gloo ranks that records itself; for torch.multiprocessing.spawn."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    ops, name = torch.ops._c10d_functional, dist.group.WORLD.group_name  # type: ignore[attr-defined]
    x = torch.randn(64, 32)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        for _ in range(3):
            torch.mm(x, x.t())
            ops.wait_tensor(ops.all_reduce(x, "sum", name))
            ops.wait_tensor(ops.all_gather_into_tensor(x, 2, name))
    recorder.export_chrome_trace(f"{folder}/rank{rank}.pt.trace.json")
    store.set(f"recorded{rank}", "")
    store.wait(["recorded0", "recorded1"])
    # Now and then gloo's threads abort a process that ends in the usual way.
    os._exit(0)
