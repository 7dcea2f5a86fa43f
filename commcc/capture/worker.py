"""The process that captures, ``main([REQUEST.json, ANSWER.json])``, started by :mod:`.request`.

It believes to be rank 0 of all ranks of the mesh, and every tensor in it is fake: sizes of production take no memory.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import re
import resource
import time
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map

from commcc.base.errors import CommccError, InputError
from commcc.capture.attention import attention_of
from commcc.capture.capturing import even_shares, make_portable
from commcc.capture.compiling import Graph, Sink, Way, compile_and_run
from commcc.capture.fully_sharded import as_shards
from commcc.capture.importing import from_graph_module
from commcc.capture.laptop import integers_counted, on_this_machine
from commcc.capture.recompute import materialise, tag_gathers
from commcc.capture.shards import Gathered
from commcc.capture.training_step import trace_step
from commcc.capture.user_function import Subject, call_it, explained, find_function, messages_in
from commcc.capture.world import Layout, World, fake_world, known_group
from commcc.graph.ops import collective_of, is_compute
from commcc.graph.program import all_calls
from commcc.graph.structure import with_equal_groups_joined
from commcc.serialization import save
from commcc.serialization.shapes import ShapeContext, parse_val

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import fx

    from commcc.base.terms import Json
    from commcc.graph.program import Program

STEP = "step"
_ORIGINAL = re.compile(r"parametrizations\.([^.]+)\.original\d*")
_SHORT = {"forward": "fw", "backward": "bw"}
_NOTHING = (
    "shard it in the function: commcc.shard(model, mesh), fully_shard(model, mesh=mesh) or parallelize_module(...)"
)
_BETWEEN = (
    "messages ({}) are in no graph, but between them; capture a stage with the collectives of its own ranks, if any"
)
#: Of a step function that Dynamo cuts where its backward begins.
_IN_PIECES = (
    "the step function is compiled in {} pieces, as in a job, and its time is that of all of their graphs; for one "
    "graph let it call torch.autograd.grad in place of backward(), under torch._dynamo.config.trace_autograd_ops = True"
)
#: Of models that Dynamo skips, such as those with layers of ``nn.GRU``.
_UNTRACED = (
    "no graph has a product: Dynamo has traced some of what the model calls, but not the model; "
    "TORCH_LOGS=graph_breaks says where it stops"
)


def main(arguments: Sequence[str]) -> int:
    """Answer a request; what is wrong with it is in the answer too."""
    request_file, answer_file = map(Path, arguments)
    request = json.loads(request_file.read_text())
    gc.set_threshold(1_000_000, 50, 50)  # graphs are many objects that stay
    # What PyTorch has to say about compiling is about no run of the user's.
    torch._logging.set_logs(all=logging.CRITICAL)  # type: ignore[attr-defined]
    try:
        answer = capture(request)
    except CommccError as error:
        if request["debug"]:
            traceback.print_exception(error)
        answer = {"error": {"what": error.what, "where": error.where, "hint": error.hint}}
    except Exception as error:  # not the user's: their errors have been explained
        traceback.print_exception(error)
        answer = {"bug": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    answer_file.write_text(json.dumps(answer))
    return 0


def capture(request: dict[str, Any]) -> dict[str, Json]:
    """The answer. request: as :class:`commcc.capture.request.Request` in JSON. Raises :class:`CommccError`."""
    began = time.perf_counter()
    layout = Layout(tuple((name, size) for name, size in request["mesh"]))
    target = request["target"]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    kernel = "cpu" if torch.device(request["device"]).type == "cpu" else request["attention"]
    counted = integers_counted() if kernel != "cpu" else nullcontext()
    with fake_world(layout) as world, attention_of(kernel), counted:
        with on_this_machine():
            function = find_function(target)
            with mode:
                subject = call_it(function, world.meshes[""], target, _inputs(request["inputs"]))
                subject, notes = _ready(subject, mode, target)
        built = time.perf_counter()
        with explained(f"tracing what {target} returned", [target], subject.call):
            graphs, pieces = _graphs(subject, mode, request)
        communicating = any(any(_collectives(graph.program)) for graph in graphs)
        kept = _finished(graphs, world, request["device"], request["level"]) if communicating else []
    traced = time.perf_counter()
    if not kept:
        what = "the graph has no collectives" if pieces <= 1 else f"none of {pieces} graphs has collectives"
        sent = messages_in(subject.call)
        raise InputError(what, where=target, hint=_BETWEEN.format(", ".join(sent)) if sent else _NOTHING)
    files = _write(kept, request)
    if pieces > 1 and not isinstance(subject.call, nn.Module) and any(graph.kind == "backward" for graph in graphs):
        notes.append(_IN_PIECES.format(pieces))
    if not any(is_compute(node.target) for graph in kept for node in all_calls(graph.program)):
        notes.append(_UNTRACED)
    return {
        "files": files,
        "pieces": pieces,
        "notes": list(dict.fromkeys(notes)),
        "seconds": {"build": built - began, "trace": traced - built, "write": time.perf_counter() - traced},
        "max_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "torch": torch.__version__,
    }


def _inputs(texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Zeros of the shapes and types that ``--input`` gives."""
    values = [parse_val(text, ShapeContext()) for text in texts]
    return tuple(torch.zeros(tuple(value.shape), dtype=value.dtype) for value in values)


def _ready(subject: Subject, mode: FakeTensorMode, target: str) -> tuple[Subject, list[str]]:
    """With collectives in the forward, and fake tensors only; what cannot be written exactly."""
    notes: list[str] = []

    def fake(leaf: Any) -> Any:
        real = isinstance(leaf, torch.Tensor) and not isinstance(leaf, (FakeTensor, nn.Parameter))
        return mode.from_tensor(leaf) if real and type(leaf) is torch.Tensor else leaf

    call = subject.call
    if isinstance(call, nn.Module):
        with explained(f"sharding what {target} returned", [target]):
            if any(tensor.is_meta for tensor in itertools.chain(call.parameters(), call.buffers())):
                call.to_empty(device="cpu")
            # What buffers were made with is not what they have in a step.
            for buffer in [each for each in call.buffers() if isinstance(each, FakeTensor)]:
                buffer.constant = None
            call, notes = as_shards(call)
        call.train()
    return Subject(call, tree_map(fake, subject.args), tree_map(fake, dict(subject.kwargs))), notes


def _graphs(subject: Subject, mode: FakeTensorMode, request: dict[str, Any]) -> tuple[list[Graph], int]:
    """And into how many pieces Dynamo has cut the model."""
    wanted = frozenset(request["graphs"])
    sink = Sink(wanted | {"inference"} if "forward" in wanted else wanted)
    if wanted - {STEP}:
        compile_and_run(subject.call, subject.args, subject.kwargs, Way(request["level"], mode), sink)
        _check_autocast(sink, request)
    if STEP in wanted:
        if not isinstance(subject.call, nn.Module) or subject.kwargs:
            what = "a whole step needs a model whose forward takes its inputs by position, and returns the loss"
            raise InputError(what, where=request["target"])
        # Sizes that only a run can tell are symbols in it; Dynamo has its own for the other graphs.
        mode.shape_env, mode.static_shapes = ShapeEnv(), False
        with _autocasts(partial(_check_casts, request, None)):
            sink.graphs.append(Graph(0, STEP, from_graph_module(_step(subject.call, subject.args))))
        sink.pieces = max(sink.pieces, 1)
    # Without a backward the joint graph is the same graph once more.
    alone = {graph.number for graph in sink.graphs if graph.kind == "inference"}
    return [graph for graph in sink.graphs if graph.kind != "joint" or graph.number not in alone], sink.pieces


def _check_autocast(sink: Sink, request: dict[str, Any]) -> None:
    """PyTorch switches autocast of a device off that is not here, with no more than a warning."""
    for node in sink.autocasts:
        device, enabled = str(node.args[0]), node.args[2]
        if enabled and device != "cpu":
            what = f"torch.autocast('{device}') is off where there is no such device: the graphs would lack its casts"
            raise InputError(what, where=request["target"], hint=_CASTS)
        if enabled:
            _check_casts(request, request["target"])


def _check_casts(request: dict[str, Any], where: str | None) -> None:
    """Tensors say that they are on the CPU, whose autocast casts other ops than that of an accelerator."""
    device = torch.device(request["device"]).type
    if device != "cpu":
        what = f"torch.autocast('cpu'), as of x.device.type here, casts other ops than that of '{device}' does"
        raise InputError(what, where=where, hint=f"{_CASTS}; --device cpu is for jobs on CPUs")


_CASTS = "let param_dtype of commcc.shard or mp_policy of fully_shard cast, or the model itself; or plan in the job"


@contextmanager
def _autocasts(entered: Callable[[], None]) -> Iterator[None]:
    """Inside, ``entered`` is called where code that no compiler reads switches autocast of the CPU on."""
    enter: Any = torch.autocast.__enter__

    def told(region: torch.autocast) -> Any:
        if region.device == "cpu" and region._enabled:
            entered()
        return enter(region)

    with patch.object(torch.autocast, "__enter__", told):
        yield


def _step(model: nn.Module, inputs: tuple[Any, ...]) -> fx.GraphModule:
    """Forward, loss and gradients in one graph, in which gathers are done again as the model's parameters say."""
    again: set[str] = set()
    for path, part in model.named_modules():
        if isinstance(part, Gathered) and part.rule.reshard:
            again.add(f"{path.rpartition('.')[0]}.original")
            part.rule = replace(part.rule, reshard=False)  # autograd would gather too, but keep the first ones as well
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is not available.*Disabling")  # autocast
        traced = trace_step(model, inputs, recompute=False)
    names = [name for name, _ in model.named_parameters()]
    inputs_of = zip(names, traced.graph.find_nodes(op="placeholder"), strict=False)
    tag_gathers(traced.graph, {node for name, node in inputs_of if name in again})
    materialise(traced.graph)
    for node in traced.graph.nodes:
        if "desc" in node.meta:
            node.meta["desc"] = tree_map(lambda text: _ORIGINAL.sub(r"\1", text), node.meta["desc"])
    return traced


def _finished(graphs: list[Graph], world: World, device: str, level: str) -> list[Graph]:
    """Those that communicate, and those that compute something large for them, with what a file says besides the graph:
    groups, mesh, level, devices of training."""
    header: dict[str, Json] = {"mesh": _mesh_header(world), "level": level}
    sequence = (node.meta.get("seq_nr") for graph in graphs for node in graph.program.graph.nodes)
    first = min((number for number in sequence if isinstance(number, int) and number >= 0), default=0)
    shares = even_shares(graph.program for graph in graphs)
    kept: list[Graph] = []
    for graph in graphs:
        program = graph.program
        if not any(_collectives(program)) and not any(is_compute(node.target) for node in all_calls(program)):
            continue
        groups = {name: known_group(group) for name, group in program.groups.items()}
        make_portable(program, device, first)
        symbols: dict[str, Json] = {name: shares[name] for name in shares if name in _symbols(program)}
        more: dict[str, Json] = {"symbols": symbols} if symbols else {}
        program = with_equal_groups_joined(replace(program, groups=groups, header={**header, **more}))
        kept.append(replace(graph, program=program))
    return kept


def _collectives(program: Program) -> Iterator[str]:
    """Kinds of what it launches, in sub-graphs too, which run as often as they are called."""
    facts = (collective_of(node.target) for node in all_calls(program))
    return (fact.kind.value for fact in facts if fact is not None)


def _symbols(program: Program) -> set[str]:
    values = (node.meta.get("val") for node in program.graph.nodes)
    return {str(value.node.expr) for value in values if isinstance(value, torch.SymInt)}


def _mesh_header(world: World) -> dict[str, Json]:
    """The layout, with axes that the function has flattened."""
    header, whole = world.header(), world.meshes[""]
    joined: dict[str, Json] = {}
    names: dict[str, Json] = dict(header["group_names"])  # type: ignore[arg-type]
    counts = range(2, whole.ndim + 1)
    several = [axes for count in counts for axes in itertools.combinations(world.layout.names, count)]
    for name, flat in getattr(whole, "_flatten_mapping", {}).items():
        ranks = sorted(flat.mesh.flatten().tolist())
        of = next((axes for axes in several if sorted(whole[axes].mesh.flatten().tolist()) == ranks), None)
        if of is not None:
            joined[name], names[name] = list(of), str(flat.get_group().group_name)
    return {**header, "joined": joined, "group_names": names}


def _write(graphs: list[Graph], request: dict[str, Any]) -> list[Json]:
    folder, stem = Path(request["output"]), request["target"].rpartition(":")[2].replace(".", "_")
    several = len({graph.number for graph in graphs}) > 1
    files: list[Json] = []
    for graph in graphs:
        number = f"_{graph.number}" if several else ""
        path = folder / f"{stem}{number}_{_SHORT.get(graph.kind, graph.kind)}{request['extension']}"
        lost = save(graph.program, path)
        kinds: dict[str, Json] = dict(Counter(_collectives(graph.program)))
        files.append(
            {
                "file": str(path),
                "graph": graph.kind,
                "piece": graph.number,
                "nodes": len(graph.program.graph.nodes),
                "collectives": kinds,
                "notes": [*dict.fromkeys(note.text for note in (*graph.program.notes, *lost))],
            }
        )
    return files
