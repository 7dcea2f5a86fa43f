"""A prepared program through Inductor: the same outputs from what it compiles.

::

    require_compiler("cpu")                  # InputError where there is none
    code = Compiled(prepared, inputs)        # compiles for inputs like these; takes seconds to minutes
    outputs = code(inputs)                   # a flat list, as leaves(prepared.output)

    run = CompiledRun(RankRun(prepared, rank=0, seed=0, progress=told), times.step, nullcontext, Direct())
    results = run(inputs)                    # as a rank of a real process group; the first call compiles
    run.order.kept.moved                     # what Inductor has put elsewhere; () when the order is that of the graph

Inductor traces the steps again, decomposes and functionalizes them, and fuses what it can. It is told to keep the
order: what would move nodes for locality, for peak memory or for overlap is switched off, and so is bucketing, since
all that is what commcc has done. Random numbers are those of eager ops. What is told of progress and timed is as in
an eager run: launches and waits, by their nodes.

Limits: those of :mod:`commcc.replay.compiled.calls`; inputs that are no tensors are compiled in. Which graphs
Inductor can take shows when it compiles; the error names the node where PyTorch does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_aggregate

from commcc.base.errors import CommccError, InputError
from commcc.graph.copying import copied, with_modules
from commcc.replay.calls import Body, CallSettings
from commcc.replay.compiled.calls import Listener, Order, Recorder, match
from commcc.replay.compiled.landmarks import landmark_options
from commcc.replay.compiled.own_storages import storage_options
from commcc.replay.compiled.whole_products import product_options
from commcc.replay.place import CPU
from commcc.replay.rank_run import run, told
from commcc.replay.values import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from commcc.replay.prepare import Prepared, Step
    from commcc.replay.rank_run import RankRun
    from commcc.replay.values import RankResults

#: Where Inductor keeps what it has compiled.
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
#: What keeps the order of the graph. Not every release has all of it.
_ORDER: dict[str, Any] = {
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "reorder_for_compute_comm_overlap": False,
    "bucket_all_gathers_fx": "none",
    "bucket_reduce_scatters_fx": "none",
    "bucket_all_reduces_fx": "none",
    "dedup_reduce_scatters": False,
    "_micro_pipeline_tp": False,
    "_fuse_ddp_communication": False,
    "aten_distributed_optimizations.enable_overlap_scheduling": False,
    "aten_distributed_optimizations.enable_simple_overlap": False,
}
#: And what makes a run comparable to one op by op: the same random numbers, and calls that can be timed.
_EAGER: dict[str, Any] = {"triton.cudagraphs": False, "fallback_random": True}
_EXECUTING = re.compile(r"While executing %?(\w+)")
_TARGET = re.compile(r"^\s*target: (.+)$", re.MULTILINE)


class CompileError(CommccError):
    """A program that Inductor does not take."""

    exit_code = 1

    @staticmethod
    def of(error: Exception, known: set[str]) -> CompileError:
        """What Inductor raised, in one line. known: names of the program's nodes."""
        text = str(error)
        executing, target = _EXECUTING.search(text), _TARGET.search(text)
        where = f"node '{executing[1]}': " if executing is not None and executing[1] in known else ""
        op = f" (op {target[1].strip()})" if target is not None else ""
        reason = text.strip().split("\n")[0][:300] or type(error).__name__
        return CompileError(f"Inductor cannot compile it: {where}{type(error).__name__}: {reason}{op}")


class Compiled:
    """One program, compiled for inputs of the kind that it is made with. Raises :class:`CompileError`."""

    def __init__(self, prepared: Prepared, inputs: Mapping[str, Any]) -> None:
        self._prepared = prepared
        self._names = [n.name for n in prepared.inputs if isinstance(inputs[n.name], torch.Tensor)]
        self._constants = [n for n in prepared.constants if isinstance(prepared.constant(n), torch.Tensor)]
        module, self._outputs = self._module(inputs)
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        examples: list[Any] = [mode.from_tensor(value, static_shapes=True) for value in self._given(inputs)]
        try:
            self._call: Callable[..., Any] = torch._inductor.compile(module, examples, options=_options(prepared))
        except Exception as error:
            raise CompileError.of(error, {node.name for node in prepared.nodes}) from error

    def __call__(self, inputs: Mapping[str, Any]) -> list[Any]:
        """All outputs, in order; written inputs are written."""
        tensors = iter(self._call(*self._given(inputs)))
        return leaves([next(tensors) if isinstance(output, fx.Node) else output for output in self._outputs])

    def _given(self, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
        constants = [self._prepared.constant(node) for node in self._constants]
        return [*constants, *(inputs[name] for name in self._names)]

    def _module(self, inputs: Mapping[str, Any]) -> tuple[fx.GraphModule, list[Any]]:
        """The steps as a graph of their own, and what stands for each output: a node of it, or what is known."""
        prepared, graph, root = self._prepared, fx.Graph(), torch.nn.Module()
        values: dict[fx.Node, Any] = {node: prepared.constant(node) for node in prepared.constants}
        values.update((node, inputs[node.name]) for node in prepared.inputs)
        tensors = {*self._constants, *(node for node in prepared.inputs if node.name in set(self._names))}
        for node in (*prepared.constants, *prepared.inputs):
            if node in tensors:
                values[node] = graph.placeholder(node.name)
            elif isinstance(values[node], Body):
                root.add_module(node.name, _placed(values[node].module, prepared.settings))
                values[node] = graph.get_attr(node.name)

        def here(value: Any) -> Any:
            return map_aggregate(value, lambda leaf: values[leaf] if isinstance(leaf, fx.Node) else leaf)

        for step in prepared.steps:
            # Each graph has run op by op before, behind the checks that Inductor cannot see through.
            op = getattr(step.call, "__wrapped__", step.call)
            if isinstance(step.node.target, HigherOrderOperator):
                op = step.node.target
            values[step.node] = graph.create_node(
                "call_function", op, here(step.args), here(step.kwargs), name=step.name
            )
        outputs = leaves(here(prepared.output))
        graph.output(tuple(output for output in outputs if isinstance(output, fx.Node)))
        return fx.GraphModule(root, graph), outputs


def _placed(module: fx.GraphModule, settings: CallSettings) -> fx.GraphModule:
    """A sub-graph on the device of this run, in place of that of the file, without values, which Inductor finds."""
    parts = {name: part for name, part in module._modules.items() if isinstance(part, fx.GraphModule)}
    root = with_modules(module, {name: _placed(part, settings) for name, part in parts.items()})
    graph = copied(module.graph.nodes)
    for node in graph.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = settings.operands(node)
    for node in graph.nodes:  # operands are worked out from values
        for key in ("val", "example_value", "tensor_meta"):
            node.meta.pop(key, None)
    return fx.GraphModule(root, graph)


def require_compiler(device: str) -> None:
    """Raise :class:`InputError` where Inductor has no compiler for this device."""
    if device == CPU:
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except RuntimeError:
            raise InputError(
                "--compile needs a C++ compiler on the CPU, and none is found",
                hint="install g++ or clang++, or name one in the environment variable CXX",
            ) from None
        return
    from torch.utils._triton import has_triton

    if not has_triton():
        raise InputError(
            "--compile needs triton for a CUDA device, and it is not there or does not know the device",
            hint="pip install triton, or leave --compile away",
        )


def _options(prepared: Prepared) -> dict[str, Any]:
    """Inductor's settings, those that this release knows."""
    # On the CPU ranks share the cores, and there are few kernels to compile.
    threads = {"compile_threads": 1} if prepared.homes.device == CPU else {}
    return kept_options(_EAGER | threads)


def kept_options(more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Settings with which what Inductor makes of a graph launches, waits and multiplies where the graph does."""
    return {**order_options(more), **landmark_options(), **storage_options(), **product_options()}


def order_options(more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Settings with which Inductor keeps order and number of collectives, and ``more``; only those that it knows."""
    import torch._inductor.config as config

    known: Mapping[str, Any] = config.get_config_copy()
    return {key: value for key, value in {**_ORDER, **(more or {})}.items() if key in known}


class Network(Protocol):
    """What launches and waits go through."""

    def step(self, step: Step) -> Step:
        """A launch or a wait on this network."""

    def at_once(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """What a launch or a wait returns, where nothing is timed."""

    @property
    def end(self) -> Step | None:
        """What comes behind the last step, if there is anything."""


class Direct:
    """Process groups, to which the ops go by themselves."""

    end = None

    def step(self, step: Step) -> Step:
        return step

    def at_once(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)


@dataclass
class CompiledRun:
    """eager: the same program node by node. wrap: of every launch and wait, as its timing. turn: held while it
    compiles, so that ranks can take turns.
    """

    eager: RankRun
    wrap: Callable[[Step], Step]
    turn: Callable[[], AbstractContextManager[None]]
    network: Network
    order: Order | None = field(default=None, init=False)
    _compiled: Compiled | None = field(default=None, init=False)
    _listener: Listener | None = field(default=None, init=False)
    _end: Callable[[], object] | None = field(default=None, init=False)

    def __call__(self, inputs: dict[str, Any]) -> RankResults:
        """Run on these inputs, which are written where the program writes them. Raises :class:`CompileError`."""
        self.compile(inputs)
        return run(self, inputs)

    def running(self) -> AbstractContextManager[None]:
        """How everything is set up while the program runs."""
        return self.eager.running()

    def results(self, outputs: list[Any], inputs: dict[str, Any]) -> RankResults:
        """With the inputs that it writes."""
        return self.eager.results(outputs, inputs)

    def compile(self, inputs: dict[str, Any]) -> None:
        """Compile for inputs like these, unless it is done."""
        if self._compiled is None:
            with self.turn(), self.running():
                self._compiled = Compiled(self.eager.prepared, inputs)

    def outputs(self, inputs: dict[str, Any]) -> list[Any]:
        """What a compiled program returns; the first run is watched call by call."""
        assert self._compiled is not None, "compile comes first"
        if self._listener is not None:
            with self._listener:
                results = self._compiled(inputs)
            if self._end is not None:
                self._end()
            return results
        progress, network = self.eager.progress, self.network
        with Recorder(network.at_once, progress) as seen:
            results = self._compiled(inputs)
        self.order = match(self.eager.prepared, seen.calls)
        self._listener = Listener(self.order, lambda step: told(self.wrap(network.step(step)), progress))
        if network.end is not None:
            self._end = told(self.wrap(network.end), progress).call
        return results
