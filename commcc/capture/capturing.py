"""Capture the graphs of one training step, for any parallel layout, on the CPU.

::

    def build(world):
        model = Llama(LLAMA3_8B)
        return Step(model, inputs=(tokens, labels), place=lambda path: Placing(shard=("dp_shard",)))

    programs = capture(build, Layout((("dp_shard", 64),)))
    programs["forward"], programs["backward"]        # commcc Programs whose devices read cuda:0

Two captures give equal programs: names of groups, symbols and nodes count from zero, and paths in
stack traces do not depend on where packages are installed. Limits: see :mod:`commcc.capture.tracing`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from commcc.capture.devices import relabel
from commcc.capture.importing import from_graph_module
from commcc.capture.sharding import Placing, Sharding, shard_parameters
from commcc.capture.tracing import TraceOptions, trace
from commcc.capture.unsharding import Precision
from commcc.capture.world import Layout, World, fake_world
from commcc.graph.index.hints import SizeHints
from commcc.graph.index.modules import module_path
from commcc.graph.program import all_graphs
from commcc.serialization.sections import with_used_groups
from commcc.serialization.shapes import symbols_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

    from commcc.base.terms import Json
    from commcc.graph.program import Program

_FRAME = re.compile(r'^(\s*)File "(?P<path>[^"]+)"')
_MARKS = re.compile(r"^[\s~^]*$")


@dataclass(frozen=True)
class Step:
    """One training step: a module whose forward returns the loss, its inputs, and where parameters live."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    place: Callable[[str], Placing] = lambda _path: Placing()


@dataclass(frozen=True)
class CaptureOptions:
    """How to capture.

    plain: shards are ordinary tensors instead of DTensors, see :mod:`commcc.capture.sharding`.
    annotate: write module paths into ``custom["module_fqn"]`` too, as torchtitan's graph trainer does.
    device: what all devices in the result read.
    """

    trace: TraceOptions = field(default_factory=TraceOptions)
    precision: Precision = field(default_factory=Precision)
    plain: bool = False
    annotate: bool = False
    device: str = "cuda:0"


def capture(
    build: Callable[[World], Step], layout: Layout, options: CaptureOptions | None = None
) -> dict[str, Program]:  # fmt: skip
    """Programs by name, ``forward`` and ``backward`` or ``joint``, as rank 0 of ``layout`` sees them.

    ``build`` runs under a fake tensor mode: the model's weights take no memory. Raises OptionError
    when the process has a process group already, or a parameter does not divide over the layout.
    """
    options = options or CaptureOptions()
    with fake_world(layout) as world:
        with FakeTensorMode(shape_env=ShapeEnv()):
            step = build(world)
            shard_parameters(step.module, world, Sharding(step.place, options.precision, options.plain))
        graphs = trace(step.module, step.inputs, options.trace)
        groups, header = world.groups(), {"mesh": world.header()}
    sequence = (node.meta.get("seq_nr") for graph in graphs.values() for node in graph.graph.nodes)
    # Sequence numbers count on through the process; negative ones are none.
    first = min((number for number in sequence if isinstance(number, int) and number >= 0), default=0)
    programs: dict[str, Program] = {}
    for name, graph_module in graphs.items():
        used = with_used_groups(graph_module.graph, graph_module, {})
        # A group that no collective of the graph names would be lost when the graph is read from a file.
        own_groups = {group: groups[group] for group in groups if group in used}
        program = from_graph_module(graph_module, own_groups, header)
        make_portable(program, options.device, first)
        for node in program.graph.nodes if options.annotate else ():
            path = module_path(node.meta)
            if path is not None:
                node.meta["custom"] = {**node.meta.get("custom", {}), "module_fqn": path}
        programs[name] = program
    shares = even_shares(programs.values())
    for name, program in programs.items():
        values = (node.meta.get("val") for node in program.graph.nodes)
        symbols = {str(value.node.expr) for value in values if isinstance(value, torch.SymInt)}
        kept: dict[str, Json] = {symbol: shares[symbol] for symbol in shares if symbol in symbols}
        if kept:
            programs[name] = replace(program, header={**program.header, "symbols": kept})
    return programs


def even_shares(programs: Iterable[Program]) -> dict[str, Json]:
    """``[lower, upper, hint]`` of the sizes of token exchanges: an even share of what a rank sends.

    A backward graph alone does not tell how many tokens there are, so the forward's numbers go into
    the header of both.
    """
    shares: dict[str, Json] = {}
    for program in programs:
        nodes = list(program.graph.nodes)
        hints = SizeHints({}, {})
        # Tokens are exchanged in sizes that only a run can tell.
        hints.assume_balanced(nodes)
        for value in (node.meta.get("val") for node in nodes):
            hints.value(value)
            if isinstance(value, torch.SymInt) and str(value.node.expr) in hints.used:
                name, env = str(value.node.expr), value.node.shape_env
                info = replace(symbols_in(env, [value.node.expr])[name], hint=hints.used[name].value)
                shares.setdefault(name, info.to_json())
    return shares


def make_portable(program: Program, device: str, first: int) -> None:
    """Put graphs on ``device``, and take out what depends on the process and the machine: paths, and counters that
    never restart. first: of all counters.
    """
    graphs = all_graphs(program.graph, program.root)
    for graph in graphs:
        relabel(graph, torch.device(device))
    for node in (node for graph in graphs for node in graph.nodes):
        number = node.meta.get("seq_nr")
        if isinstance(number, int) and number >= 0:
            # That of a sub-graph may be traced before all else.
            node.meta["seq_nr"] = max(number - first, 0)
        text = node.meta.get("stack_trace")
        if isinstance(text, str):
            node.meta["stack_trace"] = portable_trace(text)


def portable_trace(text: str) -> str:
    """A stack trace with paths from the package on and without the markers that newer Pythons print."""
    # Python 3.11 and newer point at parts of a line.
    lines = [line for line in text.splitlines() if not _MARKS.match(line)]
    return "\n".join(_FRAME.sub(lambda m: f'{m[1]}File "{_short(m["path"])}"', line) for line in lines)


def _short(path: str) -> str:
    normal = path.replace("\\", "/")
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in normal:
            return normal.rsplit(marker, 1)[1]
    # commcc runs from a checkout, other packages from where they are installed.
    if "/commcc/" in normal:
        return "commcc/" + normal.rsplit("/commcc/", 1)[1]
    return normal.rsplit("/", 1)[-1]
