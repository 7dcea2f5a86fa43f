"""Graphs as ``torch.compile`` hands them to a backend: what a live run sees, without running anything.

::

    with fake_world(layout) as world, FakeTensorMode() as mode:
        model, tokens = build(world.mesh(...))
    sink = Sink()
    compile_and_run(model, (tokens,), {}, Way("aot", mode), sink)
    sink.graphs                    # [Graph(0, "joint", program), Graph(0, "forward", program), ...]

Level ``aot`` is what AOTAutograd makes for ``commcc.backend(inner="aot_eager")``, ``aot-inductor`` what Inductor gets
for ``inner="inductor"``, with its decompositions and partitioner, and ``post-grad`` the graph at the end of Inductor's
passes after it. Compiled code is not run: calls return fake tensors of the right shapes. Limits: post-grad passes look
at the device of tensors, and are given CPU tensors here; uses private PyTorch APIs.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.amp.autocast_mode import _enter_autocast
from torch.utils._pytree import tree_map

from commcc.capture.importing import from_graph_module
from commcc.capture.partitioning import in_inductor, partition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx
    from torch._subclasses.fake_tensor import FakeTensorMode

    from commcc.graph.program import Program

AOT, AOT_INDUCTOR, POST_GRAD = LEVELS = ("aot", "aot-inductor", "post-grad")
FORWARD, BACKWARD, INFERENCE, JOINT = "forward", "backward", "inference", "joint"
_INPUT = re.compile(r"PlainAOTInput\(idx=(\d+)\)")
_STEP = re.compile(r"_(?:modules|parameters)\['([^']+)'\]")
_PARAMETRIZED = re.compile(r"parametrizations\.([^.]+)\.original\d*$")
#: What a size that only a run can tell is taken for where code between graphs goes on with it.
_ANY_SIZE = 8


@dataclass(frozen=True)
class Graph:
    """One of those that were captured. number: of the piece of the model that Dynamo compiled, from 0."""

    number: int
    kind: str
    program: Program


@dataclass(frozen=True)
class Piece:
    """A part of the model that Dynamo compiled as one. parameters: paths of its inputs that are some, by number."""

    number: int
    parameters: Mapping[int, str]

    def named(self, text: Any) -> Any:
        """A descriptor in which AOTAutograd's numbers of inputs are parameters again."""

        def parameter(match: re.Match[str]) -> str:
            path = self.parameters.get(int(match[1]))
            return match[0] if path is None else f"ParamAOTInput(target='{path}')"

        return _INPUT.sub(parameter, text) if isinstance(text, str) else text


def _inputs(gm: fx.GraphModule) -> list[fx.Node]:
    return gm.graph.find_nodes(op="placeholder")


def _parameters(gm: fx.GraphModule) -> dict[int, str]:
    """Of the inputs of Dynamo's graph, as the model calls them."""
    result: dict[int, str] = {}
    for number, node in enumerate(_inputs(gm)):
        source = getattr(node.meta.get("grapharg"), "source", None)
        name = getattr(source, "name", "")
        text = str(name() if callable(name) else name)
        if "_parameters[" in text:
            path = ".".join(_STEP.findall(text))
            # Behind a parametrization stands the parameter that it is one of.
            result[number] = _PARAMETRIZED.sub(r"\1", path)
    return result


@dataclass
class Sink:
    """Where graphs go. kinds: those to be kept. autocasts: where the model switches autocast on or off."""

    kinds: frozenset[str] = frozenset((FORWARD, BACKWARD, INFERENCE, JOINT))
    graphs: list[Graph] = field(default_factory=list)
    pieces: int = 0
    autocasts: list[fx.Node] = field(default_factory=list)

    def keep(self, piece: Piece, kind: str, gm: fx.GraphModule) -> None:
        # AOTAutograd describes inputs of whole graphs only: other joint ones are regions within them.
        if kind not in self.kinds or (kind == JOINT and not any("desc" in node.meta for node in _inputs(gm))):
            return
        program = from_graph_module(gm)
        for node in program.graph.nodes:
            if "desc" in node.meta:
                node.meta["desc"] = tree_map(piece.named, node.meta["desc"])
        self.graphs.append(Graph(piece.number, kind, program))

    def next_piece(self, gm: fx.GraphModule) -> Piece:
        self.pieces += 1
        for part in gm.modules():  # what is computed again is a part of its own
            if isinstance(part, torch.fx.GraphModule):
                self.autocasts += part.graph.find_nodes(op="call_function", target=_enter_autocast)
        return Piece(self.pieces - 1, _parameters(gm))


@dataclass(frozen=True)
class Way:
    """How to compile. mode: that all tensors of the model belong to."""

    level: str
    mode: FakeTensorMode


def compile_and_run(
    call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], way: Way, sink: Sink
) -> Any:
    """What ``call`` returns, a module or a function; its graphs, forward and backward, go into ``sink``."""
    import torch._dynamo.config as dynamo_config
    import torch._functorch.config as functorch_config
    from torch._dynamo.external_utils import wrap_inline

    backend = _aot(way, sink) if way.level == AOT else _inductor(way, sink)
    with ExitStack() as stack:
        if hasattr(dynamo_config, "run_gc_after_compile"):  # the process ends soon, and all that it has is in use
            stack.enter_context(dynamo_config.patch(run_gc_after_compile=False))
        # A backward that is compiled with its forward need not be run.
        stack.enter_context(functorch_config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False))
        stack.enter_context(way.mode)
        if getattr(call, "_forward_pre_hooks", None):
            call = wrap_inline(call)  # hooks of the outermost module would be a graph of their own
        compiled: Any = torch.compile(call, backend=backend)
        return compiled(*args, **kwargs)


def _aot(way: Way, sink: Sink) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        piece = sink.next_piece(gm)

        def keep(kind: str) -> Callable[..., Any]:
            def compiler(traced: fx.GraphModule, _inputs: Sequence[Any]) -> Any:
                sink.keep(piece, kind, traced)
                return make_boxed_func(_unrun(traced, way.mode))

            return compiler

        def cut(joint: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            sink.keep(piece, JOINT, joint)
            return partition(joint, inputs, **options)

        compile_it: Any = aot_autograd
        aot_backend = compile_it(
            fw_compiler=keep(FORWARD),
            bw_compiler=keep(BACKWARD),
            inference_compiler=keep(INFERENCE),
            partition_fn=cut,
            keep_inference_input_mutations=True,
        )
        return aot_backend(gm, example_inputs)

    return backend


def _inductor(way: Way, sink: Sink) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        import torch._inductor.config as inductor_config
        from torch._inductor.compile_fx import compile_fx

        piece = sink.next_piece(gm)

        def inner(traced: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
            kind = BACKWARD if options.get("is_backward") else INFERENCE if options.get("is_inference") else FORWARD
            unrun = make_boxed_func(_unrun(traced, way.mode))
            if way.level == POST_GRAD:
                _after_post_grad(traced, inputs, options, lambda module: sink.keep(piece, kind, module))
            else:
                sink.keep(piece, kind, traced)
            return unrun

        def joint(graph: fx.Graph) -> None:
            owner: Any = graph.owning_module
            sink.keep(piece, JOINT, owner)

        # Whoever uses the hook behind Inductor's passes has Inductor's own partitioner.
        own = nullcontext() if way.level == POST_GRAD else in_inductor()
        with own, inductor_config.patch(joint_custom_pre_pass=joint):
            return compile_fx(gm, example_inputs, inner_compile=inner)

    return backend


class _ReachedError(Exception):
    """Inductor has come to the end of its passes."""


def _after_post_grad(
    traced: fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any], keep: Callable[[fx.GraphModule], None]
) -> None:
    """Let Inductor go as far as its last custom pass."""
    import torch._inductor.config as inductor_config
    from torch._inductor.compile_fx import compile_fx_inner

    reached: list[fx.Graph] = []

    def stop(graph: fx.Graph) -> None:
        owner: Any = graph.owning_module
        if owner is not traced:
            return  # Inductor goes through sub-graphs first
        keep(owner)
        reached.append(graph)
        raise _ReachedError

    patches = {"post_grad_custom_post_pass": stop, "fx_graph_cache": False, "fx_graph_remote_cache": False}
    with inductor_config.patch(patches):
        try:
            compile_fx_inner(traced, inputs, **options)
        except Exception:
            if not reached:
                raise


def _unrun(gm: fx.GraphModule, mode: FakeTensorMode) -> Callable[..., Any]:
    """Returns what the graph would, without a value in it."""
    (returned,) = gm.graph.output_node().args
    inputs = [node.meta.get("val") for node in _inputs(gm)]

    def call(*args: Any) -> Any:
        known = _sizes(inputs, args)

        def value(leaf: Any) -> Any:
            of = leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf
            if isinstance(of, torch.Tensor):
                sizes, strides = ([_number(n, known) for n in numbers] for numbers in (of.shape, of.stride()))
                return torch.empty_strided(sizes, strides, dtype=of.dtype, device=of.device)
            return _number(of, known) if isinstance(of, torch.SymInt) else of

        with mode, torch.no_grad():
            return tree_map(value, returned, is_leaf=lambda leaf: isinstance(leaf, torch.fx.Node))

    return call


def _sizes(inputs: Sequence[Any], given: Sequence[Any]) -> dict[Any, Any]:
    """What the symbols in the sizes of inputs are in this call, as far as these say it."""
    known: dict[Any, Any] = {}
    for value, here in zip(inputs, given, strict=False):
        pairs = [(value, here)]
        if isinstance(value, torch.Tensor):
            pairs = [*zip(value.shape, here.shape, strict=True), *zip(value.stride(), here.stride(), strict=True)]
        for size, number in pairs:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and type(number) is int:
                known[size.node.expr] = sympy.Integer(number)
    return known


def _number(size: Any, known: Mapping[Any, Any]) -> int:
    if isinstance(size, int):
        return size
    number = size.node.expr.xreplace(known)
    return int(number) if number.is_Integer else _ANY_SIZE
