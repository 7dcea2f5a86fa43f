"""Graphs made ready to be timed next to each other: one layout, and the first one's inputs for all, by name.

::

    graphs = make_set(programs, BenchSettings(ranks=2))
    check(graphs, BenchSettings(ranks=2))       # raises for what would fail only once ranks run

    variants(2, compiled=True)                  # graph 1, graph 2, graph 1 compiled, graph 2 compiled
    variants(2, compiled=True)[2].against       # 0: what Inductor makes of graph 1, against graph 1 op by op
    variants(2, compiled=True)[3].against       # 2: both through Inductor

Every rank makes the same set from the same files and settings. Results of compiled code are rounded differently, since
Inductor keeps intermediate results of what it fuses in more digits, so they are compared within the rounding of the
least precise numbers in the graph.

Limits: whether a CUDA device has headroom is asked by the process that runs on it, since asking takes memory there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from commcc.base.errors import InputError
from commcc.base.terms import Kind
from commcc.graph.collectives import identify
from commcc.graph.memory import live_bytes
from commcc.graph.ops.allowed import imported_ops
from commcc.replay.compiled.cuda_graphs import require_capturable
from commcc.replay.compiled.inductor import require_compiler
from commcc.replay.emulate.fills import REDUCTIONS
from commcc.replay.inputs import InputMaker
from commcc.replay.layout import make_layout
from commcc.replay.numeric.causes import coarsest
from commcc.replay.numeric.pair import Settings, match_inputs
from commcc.replay.numeric.verification import MOST_BY_DEFAULT, require_processes
from commcc.replay.place import CUDA, DeviceError, free_memory, require_memory
from commcc.replay.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.graph.collectives import Collective
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.replay.layout import Layout
    from commcc.replay.prepare import Prepared

#: What a rank needs before it has any tensor: PyTorch (measured, 2.13 for CPUs: 0.33 GB).
_RANK_BYTES = 330_000_000
_SMALLER = "capture a smaller model, with fewer ranks or shorter inputs; its graph has the same structure"
#: Rounding adds up along a whole step, not at one sum only. A compiled training step in bfloat16 was seen to differ by
#: 0.044 of a value's largest number, and by 0.019 when Inductor rounds in between as eager ops do.
_ALONG = 5


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

    @property
    def largest_bytes(self) -> int:
        """What a rank keeps at once, at the most, of the graph that keeps most."""
        return max(live_bytes(prepared.index).peak_bytes for prepared in self.prepared)


@dataclass(frozen=True)
class Variant:
    """One graph as a bench runs it: op by op, or through Inductor.

    graph: its number, from 0. captured: as a recorded CUDA graph. against: the number of the variant that it is
    compared with, None for the first.
    """

    graph: int
    compiled: bool = False
    captured: bool = False
    against: int | None = None

    @property
    def called(self) -> str:
        """What messages call it."""
        return f"graph {self.graph + 1}{', compiled' if self.compiled else ''}"

    def named(self, name: str) -> str:
        """What the report calls a graph of this name."""
        return f"{name}, compiled" if self.compiled else name


def variants(graphs: int, *, compiled: bool = False, captured: bool = False) -> tuple[Variant, ...]:
    """All that is run, in the order of its turns."""
    plain = [Variant(n, False, captured, 0 if n else None) for n in range(graphs)]
    through = [Variant(n, True, captured, graphs if n else 0) for n in range(graphs)]
    return (*plain, *(through if compiled else ()))


def variants_of(settings: BenchSettings) -> tuple[Variant, ...]:
    """All that a bench with these settings runs."""
    return variants(settings.graphs, compiled=settings.compiled, captured=settings.captured)


def within_rounding(settings: BenchSettings, indices: Iterable[GraphIndex]) -> BenchSettings:
    """Settings to compare compiled results with: a tolerance, unless one was asked for."""
    if settings.tolerance is not None:
        return settings
    dtypes = (tensor.dtype for index in indices for tensor in index.tensors if tensor is not None)
    return replace(settings, tolerance=_ALONG * (coarsest(dtypes) or 0.0))


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
    for number, graph in enumerate(prepared[1:], 2):
        match_inputs(first, graph, ("graph 1", f"graph {number}"))
    layout = make_layout([(graph.program, graph.index) for graph in prepared], settings.ranks, settings.groups)
    if settings.groups:
        prepared = tuple(replace(graph, index=layout.placed(graph.index, settings.groups)) for graph in prepared)
        first = prepared[0]
    maker = InputMaker(first, identify(first.index), layout, settings.seed, settings.hints)
    return GraphSet(prepared, layout, maker)


# What is refused before any rank is started


def check(graphs: GraphSet, settings: BenchSettings, here: int | None = None) -> None:
    """Refuse what would fail on the ranks. here: how many of them are on this machine, None for all.

    Raises :class:`InputError`.
    """
    require_processes()
    check_variants(graphs, settings)
    world = graphs.layout.world
    if settings.emulated:
        check_emulated(graphs, settings)
        return
    if settings.ranks is None and world > MOST_BY_DEFAULT:
        raise InputError(
            f"the graph is for {world} ranks; at most {MOST_BY_DEFAULT} are started when nobody says how many",
            hint=f"--nproc {world} starts all of them on this machine; --device emulated starts one for all",
        )
    here = world if here is None else here
    if settings.device == CUDA:
        check_devices(here)
    else:
        _check_gloo(graphs)
        require_memory(f"{here} ranks need", here * (_RANK_BYTES + graphs.largest_bytes), free_memory(), _SMALLER)
    graphs.maker.check()


def check_variants(graphs: GraphSet, settings: BenchSettings) -> None:
    """Raise :class:`InputError` for a variant that is not possible here."""
    if settings.compiled:
        require_compiler(settings.device)
    if settings.captured and settings.emulated:
        raise InputError(
            "--cuda-graphs needs real communication, not --device emulated", hint="leave one of the two away"
        )
    if settings.captured:
        for number, prepared in enumerate(graphs.prepared, 1):
            require_capturable(prepared, f"graph {number}")


def check_emulated(graphs: GraphSet, settings: BenchSettings) -> None:
    """Refuse what one process that stands for all ranks cannot run. Raises :class:`InputError`."""
    if settings.device == CUDA and not torch.cuda.is_available():
        raise DeviceError("this machine has no CUDA device", hint="--device emulated-cpu runs on the CPU")
    for number, prepared in enumerate(graphs.prepared, 1):
        for collective in identify(prepared.index).collectives:
            if collective.reduction is None:
                continue
            unknown = collective.reduction.lower() not in REDUCTIONS
            if unknown or collective.dtype.startswith("float8"):
                what = f"'{collective.reduction}'" if unknown else f"'{collective.reduction}' of {collective.dtype}"
                node = prepared.index.names[collective.launch]
                raise InputError(f"graph {number}: node '{node}' reduces with {what}, which is not emulated")
    if settings.device != CUDA:
        smaller = "capture a smaller model, or shorter inputs; its graph has the same structure"
        require_memory("one rank needs", graphs.largest_bytes, free_memory(), smaller)
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


def check_device_memory(graphs: GraphSet, free: int | None) -> None:
    """Refuse, on a rank, what does not fit on its device. free: bytes that can be had, None where that is not known."""
    require_memory("its device needs", graphs.largest_bytes, free, _SMALLER, DeviceError)


def _check_gloo(graphs: GraphSet) -> None:
    """Refuse what gloo would refuse once it runs."""
    for number, prepared in enumerate(graphs.prepared, 1):
        for collective in identify(prepared.index).collectives:
            what = _not_on_gloo(collective)
            if what is not None:
                raise InputError(
                    f"graph {number}: node '{prepared.index.names[collective.launch]}' sends {what}, which gloo cannot",
                    hint="commcc verify --numeric runs it on virtual ranks, without times",
                )


def _not_on_gloo(collective: Collective) -> str | None:
    """Measured with PyTorch 2.13: everything else that functional collectives can send, gloo can."""
    if collective.dtype.startswith("float8"):
        return collective.dtype
    if collective.kind is Kind.ALL_TO_ALL and collective.dtype.startswith("complex"):
        return f"{collective.dtype} from all to all"
    if collective.reduction == "avg" and collective.dtype.startswith(("int", "uint")):
        return f"an average of {collective.dtype}"
    scaled = collective.reduction is not None and collective.reduction.startswith("premul_sum")
    return f"a {collective.reduction}" if scaled else None
