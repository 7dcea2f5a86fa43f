"""Graphs made ready to be timed beside each other: one layout, and the first one's inputs for all, by name.

    graphs = make_set(programs, BenchSettings(ranks=2))
    check(graphs, BenchSettings(ranks=2))       # raises for what would fail only once ranks run

Every rank makes the same set from the same files and settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.graph.collectives import identify
from commcc.graph.memory import live_bytes
from commcc.graph.ops.allowed import imported_ops
from commcc.replay.bench.ways import require_ways
from commcc.replay.emulate.preflight import check_emulated
from commcc.replay.inputs import InputMaker
from commcc.replay.layout import make_layout
from commcc.replay.numeric.pair import Settings, match_inputs
from commcc.replay.numeric.verification import MOST_BY_DEFAULT, free_bytes, require_processes
from commcc.replay.place import CUDA, DeviceError
from commcc.replay.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.program import Program
    from commcc.replay.layout import Layout
    from commcc.replay.prepare import Prepared

#: What a rank needs before it has any tensor: PyTorch (measured, 2.13 for CPUs: 0.33 GB).
_RANK_BYTES = 330_000_000
_SMALLER = "capture a smaller model, with fewer ranks or shorter inputs; its graph has the same structure"


@dataclass(frozen=True)
class BenchSettings(Settings):
    """How to time.

    device: ``cpu`` or ``cuda``. emulated: one process stands for all ranks. cost: the cost text that predicts, and
    that emulated communication takes its times from; empty for the usual one. repeat: repetitions that count, of each
    graph. warmup: those before. recorded: repetitions after those, recorded node by node. trace: the folder for their
    traces; empty for none. compiled: also through Inductor. captured: as recorded CUDA graphs. graphs: how many there
    are.
    """

    real: bool = True
    device: str = "cpu"
    emulated: bool = False
    cost: str = ""
    repeat: int = 20
    warmup: int = 3
    recorded: int = 0
    trace: str = ""
    compiled: bool = False
    captured: bool = False
    graphs: int = 1


@dataclass(frozen=True)
class GraphSet:
    """Prepared graphs, the ranks, and what makes their inputs."""

    prepared: tuple[Prepared, ...]
    layout: Layout
    maker: InputMaker


def graph_file(number: int) -> str:
    """Where a rank finds a graph; the first has number 1."""
    return f"graph{number}.fx.txt"


def trace_file(number: int, rank: int) -> str:
    """What a graph's trace is called; ``--cost profile=FOLDER`` finds it by the end of the name."""
    return f"graph{number}.rank{rank}.pt.trace.json.gz"


def make_set(programs: Sequence[Program], settings: BenchSettings) -> GraphSet:
    """Prepare all graphs; raises :class:`CommccError` for what cannot be run."""
    imported = imported_ops(settings.imports)
    prepared = tuple(
        prepare(program, hints=settings.hints, device=settings.device, imported=imported) for program in programs
    )
    first = prepared[0]
    for number, each in enumerate(prepared[1:], 2):
        match_inputs(first, each, ("graph 1", f"graph {number}"))
    layout = make_layout([(each.program, each.index) for each in prepared], settings.ranks, settings.groups)
    maker = InputMaker(first, identify(first.index), layout, settings.seed, settings.hints)
    return GraphSet(prepared, layout, maker)


def check(graphs: GraphSet, settings: BenchSettings, here: int | None = None) -> None:
    """Refuse, before any rank is started, what would fail on the ranks. here: how many of them are on this machine,
    None for all. Raises :class:`InputError`.
    """
    require_processes()
    require_ways(graphs, settings)
    if settings.emulated:
        check_emulated(graphs, settings)
        return
    world = graphs.layout.world
    if settings.ranks is None and world > MOST_BY_DEFAULT:
        raise InputError(
            f"the graph is for {world} ranks; at most {MOST_BY_DEFAULT} are started when nobody says how many",
            hint=f"--nproc {world} starts all of them on this machine; --device emulated starts one for all",
        )
    if settings.device == CUDA:
        check_devices(world if here is None else here)
    else:
        for number, each in enumerate(graphs.prepared, 1):
            _check_collectives(number, each)
        _check_memory(graphs, world if here is None else here)
    graphs.maker.check()


def check_devices(ranks: int) -> None:
    """Refuse more ranks than this machine has CUDA devices; asks nothing that would take memory on one."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < ranks:
        raise DeviceError(
            f"{ranks} {'rank needs a device' if ranks == 1 else 'ranks need a device each'}, "
            f"and this machine has {there or 'no'} CUDA {'device' if there == 1 else 'devices'}",
            hint="--device emulated lets one process stand for all ranks; --device cpu runs them on the CPU",
        )


def check_room(graphs: GraphSet, free: int | None) -> None:
    """Refuse, on a rank, what does not fit on its device. free: bytes that can be had, None where that is not known."""
    needed = largest_bytes(graphs)
    if free is not None and needed > free:
        raise DeviceError(
            f"its device needs about {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free",
            hint=_SMALLER,
        )


def largest_bytes(graphs: GraphSet) -> int:
    """What a rank keeps at once, at the most, of the graph that keeps most."""
    return max(live_bytes(each.index).peak_bytes for each in graphs.prepared)


def _check_collectives(number: int, prepared: Prepared) -> None:
    """What gloo refuses when it runs."""
    for each in identify(prepared.index).collectives:
        what = _not_on_gloo(each)
        if what is not None:
            raise InputError(
                f"graph {number}: node '{prepared.index.names[each.launch]}' sends {what}, which gloo cannot",
                hint="commcc verify --numeric runs it on virtual ranks, without times",
            )


def _not_on_gloo(each: Collective) -> str | None:
    """Measured with PyTorch 2.13: everything else that functional collectives can send, gloo can."""
    if each.dtype.startswith("float8"):
        return each.dtype
    if each.kind is Kind.ALL_TO_ALL and each.dtype.startswith("complex"):
        return f"{each.dtype} from all to all"
    if each.reduction == "avg" and each.dtype.startswith(("int", "uint")):
        return f"an average of {each.dtype}"
    scaled = each.reduction is not None and each.reduction.startswith("premul_sum")
    return f"a {each.reduction}" if scaled else None


def _check_memory(graphs: GraphSet, here: int) -> None:
    """Ranks on this machine: each has PyTorch and what the largest graph keeps."""
    free, needed = free_bytes(), here * (_RANK_BYTES + largest_bytes(graphs))
    if free is not None and needed > free:
        raise InputError(
            f"{here} ranks need about {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free",
            hint=_SMALLER,
        )
