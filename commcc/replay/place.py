"""Where a rank runs: its clock, its memory, its random numbers.

::

    place = make_place("cuda", local_rank=1)
    start = place.stamp()
    ...
    end = place.stamp()
    place.synchronize()
    place.elapsed_ns(start, end)

On a CUDA device the clock is that of the device: stamps are events on the stream that the rank computes on, so what
lies between two of them is what the device did, and asking for it makes nobody wait before ``synchronize``.

Limits: peak memory is that of the process on the CPU (Linux only), and of PyTorch's allocator on a CUDA device; what
NCCL and other libraries take there is not in it.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from commcc.base.errors import InputError
from commcc.replay.values import quiet_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

CPU, CUDA = "cpu", "cuda"


class DeviceError(InputError):
    """A device that is not there, or is too small."""


def free_memory() -> int | None:
    """Memory of this machine that can be had without swapping; None where the system does not say."""
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable:")


def require_memory(who: str, needed: int, free: int | None, hint: str, error: type[InputError] = InputError) -> None:
    """Refuse what does not fit. who: ``2 ranks need``. free: bytes, None where that is not known."""
    if free is not None and needed > free:
        raise error(f"{who} about {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free", hint=hint)


def _kilobytes(file: Path, field: str) -> int | None:
    """A figure that the kernel gives in kB, in bytes; None where there is no such file or line."""
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    rows = (line.split() for line in lines if line.startswith(field))
    return next((int(words[1]) * 1024 for words in rows), None)


class Place(Protocol):
    """One rank's device."""

    @property
    def name(self) -> str:
        """``cpu`` or ``cuda``."""

    @property
    def backend(self) -> str:
        """What the graph's process groups are made with."""

    def running(self, seed: int) -> AbstractContextManager[None]:
        """How everything is set up while a program runs, random numbers too; as it was afterwards."""

    def stamp(self) -> Any:
        """Now, in the order of the rank's work."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Between two stamps; both must have been reached."""

    def reached(self, stamp: Any) -> bool:
        """Whether the work before a stamp is done; any thread may ask."""

    def synchronize(self) -> None:
        """Wait until the rank's work is done."""

    def free_bytes(self) -> int | None:
        """Memory of the device itself that is free; None where the ranks share that of their machine."""

    def forget_peak(self) -> bool:
        """Let the peak of memory count from now on; False where it is not counted."""

    def peak_bytes(self) -> int | None:
        """The most memory in use since :meth:`forget_peak`."""


class CpuPlace:
    """A process on CPU cores."""

    name, backend = CPU, "gloo"

    @contextmanager
    def running(self, seed: int) -> Iterator[None]:
        with quiet_cpu(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield

    def stamp(self) -> int:
        return time.perf_counter_ns()

    def elapsed_ns(self, start: int, end: int) -> int:
        return end - start

    def reached(self, stamp: int) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> None:
        return None

    def forget_peak(self) -> bool:
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return False
        return True

    def peak_bytes(self) -> int | None:
        return _kilobytes(Path("/proc/self/status"), "VmHWM:")


class CudaPlace:
    """A process on one CUDA device, which becomes its current one."""

    name, backend = CUDA, "cpu:gloo,cuda:nccl"

    def __init__(self, number: int) -> None:
        self._device = torch.device(CUDA, number)
        torch.cuda.set_device(self._device)

    @contextmanager
    def running(self, seed: int) -> Iterator[None]:
        with torch.no_grad(), torch.random.fork_rng(devices=[self._device], device_type=CUDA):
            torch.manual_seed(seed)
            yield

    def stamp(self) -> Any:
        # mypy: it has no annotations.
        make: Any = torch.cuda.Event
        event = make(enable_timing=True)
        event.record()
        return event

    def elapsed_ns(self, start: Any, end: Any) -> int:
        # PyTorch gives milliseconds with a resolution of about half a microsecond.
        return round(1e6 * float(start.elapsed_time(end)))

    def reached(self, stamp: Any) -> bool:
        return bool(stamp.query())

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def free_bytes(self) -> int:
        # What PyTorch's allocator holds and does not use can be had as well.
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free + torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device))

    def forget_peak(self) -> bool:
        torch.cuda.reset_peak_memory_stats(self._device)
        return True

    def peak_bytes(self) -> int | None:
        return int(torch.cuda.max_memory_allocated(self._device))


def make_place(device: str, local_rank: int = 0) -> Place:
    """The place of one rank on this machine."""
    return CudaPlace(local_rank) if device == CUDA else CpuPlace()
