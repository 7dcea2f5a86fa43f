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
from typing import TYPE_CHECKING, Any

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
from commcc.serialization.shapes import symbols_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, fx, nn

    from commcc.base.terms import Json
    from commcc.graph.program import Program


def _unsharded(_path: str) -> Placing:
    return Placing()


@dataclass(frozen=True)
class Step:
    """One training step: a module whose forward returns the loss, its inputs, and where parameters live."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    place: Callable[[str], Placing] = _unsharded


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
    first = min((_first_sequence(graph) for graph in graphs.values()), default=0)
    programs: dict[str, Program] = {}
    for name, graph_module in graphs.items():
        program = from_graph_module(graph_module, _used(graph_module, groups), header)
        relabel(program.graph, torch.device(options.device))
        _forget_process(program.graph, first)
        if options.annotate:
            _annotate_modules(program.graph)
        programs[name] = program
    symbols = _even_shares(programs.values())
    return {name: _with_symbols(program, symbols) for name, program in programs.items()}


def _even_shares(programs: Iterable[Program]) -> dict[str, Json]:
    """``[lower, upper, hint]`` of the sizes of token exchanges: an even share of what a rank sends.

    A backward graph alone does not tell how many tokens there are, so the forward's numbers go into
    the header of both.
    """
    found: dict[str, Json] = {}
    for program in programs:
        nodes = list(program.graph.nodes)
        hints = SizeHints({}, {})
        hints.assume_balanced(nodes)
        for value in (node.meta.get("val") for node in nodes):
            hints.value(value)
            if isinstance(value, torch.SymInt) and str(value.node.expr) in hints.used:
                name, env = str(value.node.expr), value.node.shape_env
                info = symbols_in(env, [value.node.expr])[name]
                found.setdefault(name, [info.lower, info.upper, hints.used[name].value])
    return found


def _with_symbols(program: Program, symbols: dict[str, Json]) -> Program:
    """The program with those entries in its header whose symbols it uses."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    used = {str(value.node.expr) for value in values if isinstance(value, torch.SymInt)}
    kept: dict[str, Json] = {name: entry for name, entry in symbols.items() if name in used}
    return replace(program, header={**program.header, "symbols": kept}) if kept else program


def _annotate_modules(graph: fx.Graph) -> None:
    for node in graph.nodes:
        path = module_path(node.meta)
        if path is not None:
            node.meta["custom"] = {**node.meta.get("custom", {}), "module_fqn": path}


def _used(graph_module: fx.GraphModule, groups: dict[str, Any]) -> dict[str, Any]:
    from commcc.serialization.sections import with_used_groups

    names = with_used_groups(graph_module.graph, {})
    return {name: group for name, group in groups.items() if name in names}


def _first_sequence(graph_module: fx.GraphModule) -> int:
    numbers = [node.meta["seq_nr"] for node in graph_module.graph.nodes if isinstance(node.meta.get("seq_nr"), int)]
    return min((number for number in numbers if number >= 0), default=0)


def _forget_process(graph: fx.Graph, first: int) -> None:
    """Take out what depends on the process and the machine: counters that never restart, and paths."""
    for node in graph.nodes:
        number = node.meta.get("seq_nr")
        if isinstance(number, int) and number >= 0:
            node.meta["seq_nr"] = number - first
        trace_text = node.meta.get("stack_trace")
        if isinstance(trace_text, str):
            node.meta["stack_trace"] = portable_trace(trace_text)


_FRAME = re.compile(r'^(\s*)File "(?P<path>[^"]+)"')
_MARKS = re.compile(r"^[\s~^]*$")


def portable_trace(text: str) -> str:
    """A stack trace with paths from the package on and without the markers that newer Pythons print."""
    lines = [line for line in text.splitlines() if not _MARKS.match(line)]
    return "\n".join(_FRAME.sub(lambda m: f'{m[1]}File "{_short(m["path"])}"', line) for line in lines)


def _short(path: str) -> str:
    normal = path.replace("\\", "/")
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in normal:
            return normal.rsplit(marker, 1)[1]
    if "/commcc/" in normal:
        return "commcc/" + normal.rsplit("/commcc/", 1)[1]
    return normal.rsplit("/", 1)[-1]
