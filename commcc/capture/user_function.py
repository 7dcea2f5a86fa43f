"""The user's function: how it is named, called, and what it may return.

    function = find_function("train.py:build")
    subject = call_it(function, mesh, "train.py:build")      # Subject(call=model, args=(tokens,), kwargs={})

Errors of the user's code become one line with the last line of the user's own that was reached.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from commcc.base.errors import CommccError, InputError, closest
from commcc.base.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_RETURNS = "return the model, (model, inputs), (model, args, kwargs), or a step function in place of the model"
_DYNAMO_LINE = re.compile(r'File "([^"]+)", line (\d+)')
#: What Dynamo says of an op that does not take its operands.
_FAKE = re.compile(r": got (\w+)\([\"'](.*?)[\"']\)$", re.MULTILINE)
_CUDA = re.compile(r"cuda|nvidia|nccl|no accelerator", re.IGNORECASE)
_DATA = re.compile(r"DataDependent|data.dependent|unbacked|Could not (guard|extract)|\.item\(\)|GuardOnDataDep")
_CUDA_HINT = "there is no GPU here: take devices from mesh.device_type, and keep what needs CUDA out of the import"
_DATA_HINT = "it decides by a value that only a run has; keep such values in tensors"
_SCALARS_HINT = ", or set torch._dynamo.config.capture_scalar_outputs = True in the file"
_BUILT_HINT = "models are built without values of tensors here: take such numbers from Python"
#: What else PyTorch says without a hint, and what to do about it.
_HINTS = (
    (
        re.compile(r"DynamicOutputShape"),
        "the size of its result is a value that only a run has; set "
        "torch._dynamo.config.capture_dynamic_output_shape_ops = True in the file, and in the job",
    ),
    (
        re.compile(r"device mismatch|device.*\bmeta\b", re.IGNORECASE),
        "is a model on the meta device that a step function uses? build it without torch.device('meta'), it takes no "
        "memory here, or return the model itself",
    ),
    (
        re.compile(r"SyncBatchNorm expected input"),
        "what it sends is in no compiled graph: return the model with BatchNorm in its place",
    ),
    (
        re.compile(r"aten\._pin_memory"),
        "memory is pinned, which no GPU is here for; graphs are the same without: CPUOffloadPolicy(pin_memory=False), "
        "or no pin_memory() while they are captured",
    ),
    (
        re.compile(r"disjoint backward regions"),
        "PyTorch computes again, or gathers again, in one backward of a graph: shard with reshard_after_forward=False "
        "and without checkpoints, or let the function call backward() in place of torch.autograd.grad",
    ),
)
#: Messages between two ranks, which Dynamo leaves outside of graphs.
MESSAGES = ("isend", "irecv", "batch_isend_irecv", "send", "recv")


@dataclass(frozen=True)
class Subject:
    """What is captured: a call with example inputs."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def find_function(target: str) -> Callable[..., Any]:
    """The function that ``FILE.py:FUNCTION`` or ``module:FUNCTION`` names; its file is executed.

    Raises :class:`InputError`.
    """
    place, _, name = target.rpartition(":")
    with explained(f"importing {place}", [place]):
        module = _module(place)
    member: Any = module
    for part in name.split("."):
        if not hasattr(member, part):
            known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
            own = [key for key in known if vars(module)[key].__module__ == module.__name__]
            near = closest(name, known)
            hint = None if near else f"it has {listed(own, 8)}" if own else "it has none"
            raise InputError(f"has no function '{name}'{near}", where=place, hint=hint)
        member = getattr(member, part)
    if not callable(member):
        raise InputError(f"'{name}' is a {type(member).__name__}, no function", where=place)
    call: Callable[..., Any] = member
    return call


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    path = Path(place).resolve()
    sys.path[:0] = [str(path.parent), str(Path.cwd())]  # what it imports from its own folder
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError("is no Python file", where=place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def call_it(function: Callable[..., Any], mesh: Any, target: str, inputs: tuple[Any, ...]) -> Subject:
    """Call it with the mesh, and make a subject of what it returns. inputs: for where it returns no inputs."""
    try:
        inspect.signature(function).bind(mesh)
    except TypeError as error:
        raise InputError(f"it is called with the mesh alone: {error}", where=target) from None
    # What it has compiled, as for the mask of attention, would run kernels on tensors that have no values.
    eager = torch.compiler.set_stance("force_eager")
    with explained(f"calling {target}", [target], without_values=_BUILT_HINT), eager:
        value = function(mesh)
    return _subject(value, target, inputs)


def _subject(value: Any, target: str, inputs: tuple[Any, ...]) -> Subject:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    if not parts or not callable(parts[0]):
        kind = type(parts[0] if parts else value).__name__
        raise InputError(f"returned '{kind}' where a model should be", where=target, hint=_RETURNS)
    call, *rest = parts
    if len(rest) == 2 and isinstance(rest[0], (tuple, list)) and isinstance(rest[1], dict):
        return Subject(call, tuple(rest[0]), rest[1])
    if len(rest) == 1 and isinstance(rest[0], dict):
        return Subject(call, (), rest[0])
    if len(rest) == 1 and isinstance(rest[0], (tuple, list)):
        return Subject(call, tuple(rest[0]))
    subject = Subject(call, tuple(rest) or inputs)
    try:
        inspect.signature(call.forward if isinstance(call, nn.Module) else call).bind(*subject.args)
    except TypeError as error:
        hint = "return (model, inputs), or give --input for each, as in --input 'i64[1,8192]'"
        raise InputError(f"the model cannot be called: {error}", where=target, hint=hint) from None
    except ValueError:  # a callable that has no signature
        pass
    return subject


def messages_in(call: Callable[..., Any]) -> list[str]:
    """Messages to other ranks that the code of a step function, or of a model's forwards, names."""
    parts = call.modules() if isinstance(call, nn.Module) else ()
    codes = [getattr(part, "__code__", None) for part in (call, *(type(part).forward for part in parts))]
    names = {name for code in codes if code is not None for name in code.co_names}
    return [name for name in MESSAGES if name in names]


@contextmanager
def explained(doing: str, own: list[str], model: Any = None, without_values: str | None = None) -> Iterator[None]:
    """Errors inside are :class:`InputError` of one line: what, where in the user's code, and a hint.

    doing: in words. own: targets or files that are the user's. model: whose parameters may be why. without_values: the
    hint where a value decides that is not there; that for what Dynamo traces without it.
    """
    try:
        yield
    except CommccError as error:
        where = _line_of(error, own) if error.where is None else None
        if where is None:
            raise
        raise type(error)(error.what, where=where, hint=error.hint) from error
    except (Exception, SystemExit) as error:
        where = _line_of(error, own)
        text = _first_line(error)
        hint = None
        said = f"{type(error).__name__} {text}"
        known = next((words for pattern, words in _HINTS if pattern.search(said)), None)
        if known is not None:
            hint = known
        elif _DATA.search(f"{type(error).__name__} {error}"):
            hint = without_values or _traced_without_values()
        elif _CUDA.search(text):
            hint = _CUDA_HINT
        elif isinstance(model, nn.Module):
            hint = _uneven(model)
        what = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise InputError(f"{doing}: {what}", where=where, hint=hint) from error


def _traced_without_values() -> str:
    """What to do where a value decides that is not there."""
    config = getattr(sys.modules.get("torch._dynamo"), "config", None)
    return _DATA_HINT + ("" if getattr(config, "capture_scalar_outputs", True) else _SCALARS_HINT)


def _uneven(model: nn.Module) -> str | None:
    """The first parameter that a mesh does not divide: local sizes are then others than the model takes for granted."""
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor) or "parametrizations." in name:  # those of commcc.shard are filled up
            continue
        mesh = parameter.device_mesh
        for axis, placement in enumerate(parameter.placements):
            if isinstance(placement, Shard) and parameter.shape[placement.dim] % mesh.size(axis):
                size, over = parameter.shape[placement.dim], (mesh.mesh_dim_names or {axis: axis})[axis]
                return f"size {size} of parameter '{name}' does not divide by the {mesh.size(axis)} ranks of '{over}'"
    return None


def _first_line(error: BaseException) -> str:
    """What the error says first; of Dynamo's reports, what was raised inside."""
    inner = error
    while inner.__cause__ is not None and type(inner).__module__.startswith("torch._dynamo"):
        inner = inner.__cause__
    told = _FAKE.search(str(inner))
    if told is not None:
        first, _, _ = told[2].partition(r"\n")
        plain = first.replace("\\'", "'").replace('\\"', '"')  # what Dynamo quotes is quoted
        return f"{told[1]}: {plain}"[:300]
    # A backend that fails is named on a line of its own, before what it raised.
    lines = [text for line in str(inner).splitlines() if (text := line.strip()) and not text.endswith(" raised:")]
    return lines[0][:300] if lines else ""


def _line_of(error: BaseException, own: list[str]) -> str | None:
    """``FILE:LINE`` of the user's code: of the traceback, or of what Dynamo says in its message."""
    files = {Path(name.partition(".py:")[0].removesuffix(".py") + ".py").name for name in own if ".py" in name}
    told = [(path, int(line)) for path, line in _DYNAMO_LINE.findall(str(error))]
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    for places in (told, frames):
        mine = [place for place in places if Path(place[0]).name in files] or [
            place for place in places if _of_user(place[0])
        ]
        if mine:
            path, line = mine[-1]
            return f"{_shown(path)}:{line}"
    return None


def _of_user(path: str) -> bool:
    return not any(part in path for part in ("site-packages", "dist-packages", "/commcc/", "<", "/lib/python"))


def _shown(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
