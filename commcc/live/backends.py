"""Backends of ``torch.compile`` and a pass of Inductor that rewrite each graph before it is compiled.

    torch.compile(model, backend=backend(preset="auto", cost="h100"))                    # over Inductor
    torch.compile(model, backend=backend(pipeline="bucket", inner="aot_eager"))          # op by op, for debugging
    torch._inductor.config.post_grad_custom_post_pass = inductor_pass(pipeline="reorder")

Over Inductor, forward and backward are rewritten as AOTAutograd hands them over, with Inductor's decompositions.
Inductor is told not to move, merge or drop collectives itself, since that is what has been planned.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from commcc.base.errors import CommccError, OptionError
from commcc.base.text import listed
from commcc.capture.partitioning import in_inductor, partition
from commcc.live.agreement import launches_of, refuse
from commcc.live.rewriting import GraphPass, checked, graph_pass, log
from commcc.live.watching import watched
from commcc.replay.compiled.graph_hooks import changed
from commcc.replay.compiled.inductor import kept_options, order_options
from commcc.replay.compiled.landmarks import landmark_options
from commcc.replay.compiled.own_storages import keep_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

INNER = ("inductor", "aot_eager")


def backend(
    *, inner: str = "inductor", agree: bool = True, agree_timeout_s: float = 600.0, **options: Any
) -> Callable[..., Any]:
    """A backend for ``torch.compile(model, backend=...)``.

    inner: what compiles the rewritten graph, ``inductor`` or ``aot_eager``. agree: ranks compare what they have made
    before a graph first runs, and wait this long for each other. options: as of :func:`graph_pass`.
    Raises :class:`OptionError`.
    """
    if inner not in INNER:
        raise OptionError(f"no inner backend '{inner}'", hint=f"there are {' and '.join(INNER)}")
    if not isinstance(agree, bool):
        raise OptionError(f"agree is True or False, not {agree!r}")
    number = isinstance(agree_timeout_s, (int, float)) and not isinstance(agree_timeout_s, bool)
    if not number or not 0 < agree_timeout_s < 1e9:  # PyTorch counts nanoseconds in 64 bits
        raise OptionError(f"agree_timeout_s is a number of seconds above 0 and below 1e9, not {agree_timeout_s!r}")
    try:
        the_pass = graph_pass(**options)
    except CommccError as error:
        if agree:
            refuse(str(error))
        raise
    timeout_s = agree_timeout_s if agree else None
    compile_graph = _over_inductor(the_pass, timeout_s) if inner == "inductor" else _over_eager(the_pass, timeout_s)
    compile_graph.__name__ = "commcc"  # as Dynamo calls it where it fails
    return compile_graph


def _over_eager(the_pass: GraphPass, timeout_s: float | None) -> Callable[..., Any]:
    the_pass.agrees = timeout_s is not None
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any], *, trains: bool = True) -> Any:
        del example_inputs
        with the_pass.clock.compiling():
            outcome = the_pass.rewrite(gm, trains=trains)
            the_pass.tell(outcome)
        return make_boxed_func(checked(outcome, timeout_s, gm.forward))

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        compile_it: Any = aot_autograd  # as PyTorch's own aot_eager
        aot_backend = compile_it(
            fw_compiler=compiler,
            bw_compiler=compiler,
            inference_compiler=partial(compiler, trains=_trains_anyway()),
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )
        with the_pass.clock.compiling():
            return aot_backend(gm, example_inputs)

    return compile_graph


def _over_inductor(the_pass: GraphPass, timeout_s: float | None) -> Callable[..., Any]:
    the_pass.fused, the_pass.agrees = True, timeout_s is not None

    def compile_inner(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        import torch._inductor.config as inductor_config
        from torch._inductor.compile_fx import compile_fx_inner

        # A backward is compiled when it first runs, and nothing of what is set below is set by then.
        with the_pass.clock.compiling(), inductor_config.patch(kept_options()):
            trains = not options.get("is_inference", False) or _trains_anyway()
            outcome = the_pass.rewrite(gm, trains=trains)
            program = None if outcome.result is None else the_pass.program_of(gm)
            try:
                compiled: Any = compile_fx_inner(gm, example_inputs, **options)
            except Exception as error:  # PyTorch's, or of its compiler: others must not wait for this rank
                if the_pass.agrees:
                    refuse(f"Inductor failed: {type(error).__name__}: {error}", outcome.ranks)
                raise
            the_pass.tell(outcome)
        call = compiled.current_callable
        if program is not None and launches_of(program):
            call = watched(call, program, partial(the_pass.ordered, outcome))
        compiled.current_callable = checked(outcome, timeout_s, call)
        return compiled

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        import torch._functorch.config as functorch_config
        import torch._inductor.config as inductor_config
        from torch._inductor.compile_fx import compile_fx

        # What AOTAutograd has cached was compiled without this pass, or with another one.
        with (
            the_pass.clock.compiling(),
            functorch_config.patch(enable_autograd_cache=False),
            inductor_config.patch(order_options()),
            in_inductor(),
        ):
            return compile_fx(gm, example_inputs, inner_compile=compile_inner)

    return compile_graph


def _trains_anyway() -> bool:
    """Whether a graph without gradients is a backward, as compiled autograd makes one."""
    from torch._dynamo import compiled_autograd

    return bool(getattr(compiled_autograd, "in_compiled_autograd_region", False))


def inductor_pass(**options: Any) -> Any:
    """A pass for Inductor's hooks, as ``torch._inductor.config.post_grad_custom_post_pass``.

    ``torch.compile(model, options=inductor_pass(...).settings)`` sets the hook and all that keeps the order of the
    graph. options: as of :func:`graph_pass`. Its id, under which Inductor caches what it compiles, changes with
    version, pipeline and cost model; with new groups nothing is cached. Ranks are not compared by themselves, since
    nothing is called where a rank finds the compiled graph in its cache: call ``.graph_pass.agree()`` after the first
    step.
    """
    import torch._inductor.config as inductor_config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    the_pass = graph_pass(**options)
    the_pass.fused = True

    class InductorPass(CustomGraphPass):
        graph_pass = the_pass

        @property
        def settings(self) -> dict[str, Any]:
            return {**order_options(), **landmark_options(), "post_grad_custom_post_pass": self}

        def __call__(self, graph: fx.Graph) -> None:
            from torch._inductor.pattern_matcher import stable_topological_sort

            owner: Any = graph.owning_module
            # Inductor's fusion of DDP's reductions leaves nodes in any order, and sorts only behind this hook.
            stable_topological_sort(graph)
            the_pass(owner)
            changed(keep_apart, graph)
            known: Any = inductor_config.get_config_copy()
            moving = [f"{name}={value!r}" for name, value in order_options().items() if known[name] != value]
            loose = any(getattr(inductor_config, name) is not value for name, value in landmark_options().items())
            if (moving or loose) and the_pass.graphs == 1:
                said = "Inductor may move what was planned; compile with options=the_pass.settings, which %s"
                sets = f"set {listed(moving, None)}, and " if moving else ""
                log.warning(said, f"{sets}keep fusions from moving launches")

        def uuid(self) -> bytes | None:
            # A rank that finds compiled code in its cache does not learn which groups are to be made.
            return None if the_pass.makes_groups else the_pass.uuid()

    return InductorPass()


def by_name(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **more: Any
) -> Any:
    """``torch.compile(model, backend="commcc", options={"preset": "auto", "cost": "h100"})``; as :func:`backend`."""
    if more:
        raise OptionError(f"the backend takes no {', '.join(sorted(more))}", hint="give options={...} to torch.compile")
    return backend(**(options or {}))(gm, example_inputs)
