"""What is refused before one process is started that stands for all ranks.

    check_emulated(graphs, settings)       # raises InputError

Limits: whether a CUDA device has room is asked by the process that runs on it, since asking takes memory there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from commcc.base.errors import InputError
from commcc.graph.collectives import identify
from commcc.graph.memory import live_bytes
from commcc.replay.emulate.fills import REDUCTIONS
from commcc.replay.numeric.verification import free_bytes
from commcc.replay.place import CUDA, DeviceError

if TYPE_CHECKING:
    from commcc.replay.bench.graph_set import BenchSettings, GraphSet
    from commcc.replay.prepare import Prepared

_SMALLER = "capture a smaller model, or shorter inputs; its graph has the same structure"


def check_emulated(graphs: GraphSet, settings: BenchSettings) -> None:
    """Refuse what would fail once it runs. Raises :class:`InputError`."""
    if settings.device == CUDA and not torch.cuda.is_available():
        raise DeviceError("this machine has no CUDA device", hint="--device emulated-cpu runs on the CPU")
    for number, each in enumerate(graphs.prepared, 1):
        _check_reductions(number, each)
    if settings.device != CUDA:
        _check_memory(graphs)
    graphs.maker.check()


def _check_reductions(number: int, prepared: Prepared) -> None:
    for each in identify(prepared.index).collectives:
        unknown = each.reduction is not None and each.reduction.lower() not in REDUCTIONS
        eighth = each.reduction is not None and each.dtype.startswith("float8")
        if unknown or eighth:
            what = f"'{each.reduction}'" if unknown else f"'{each.reduction}' of {each.dtype}"
            raise InputError(
                f"graph {number}: node '{prepared.index.names[each.launch]}' reduces with {what}, which is not emulated"
            )


def _check_memory(graphs: GraphSet) -> None:
    """Of this machine, for one rank."""
    free = free_bytes()
    needed = max(live_bytes(each.index).peak_bytes for each in graphs.prepared)
    if free is not None and needed > free:
        raise InputError(
            f"one rank needs about {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free",
            hint=_SMALLER,
        )
