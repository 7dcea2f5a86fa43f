"""Arguments for any op, made from its schema: small tensors, numbers and words that its argument names suggest.

    for seed in SEEDS["aten.gelu.default"]:
        args, kwargs = sample(torch.ops.aten.gelu.default, seed)

A seed gives the same arguments again. Most seeds give arguments that the op refuses; ``data/op_samples.json`` has some
that it takes, found by ``python -m tests.op_samples``, which runs each op in a process of its own: with arguments that
do not fit together some end the process.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).parent / "data" / "op_samples.json"
SHAPES = ((4, 3), (4,), (3, 4), (4, 4), (2, 3, 4), (1, 2, 6, 6), (2, 2, 4, 4), (), (1,), (3,), (6,), (2, 3), (3, 2))
DTYPES = (*[torch.float32] * 8, torch.int64, torch.int64, torch.bool, torch.complex64, torch.float64, torch.bfloat16)
INDICES = frozenset(
    {
        *("index", "indices", "idx", "target", "ind", "offsets", "lengths", "batch_sizes", "offs", "crow_indices"),
        *("col_indices", "labels", "targets", "seed", "offset"),
    }
)
SIZES = frozenset({"size", "shape", "sizes", "output_size", "input_sizes", "self_sizes"})
DIMENSIONS = frozenset({"dim", "dims", "dimensions", "axes", "axis"})
WORDS: dict[str, tuple[str | None, ...]] = {
    "reduce": ("sum", "amax", "mean", "prod"),
    "mode": ("constant", "reflect", "reduced"),
    "approximate": ("none", "tanh"),
    "rounding_mode": ("floor", "trunc", None),
    "interpolation": ("linear",),
    "UPLO": ("L",),
    "side": ("left", "right"),
    "padding": ("same", "valid"),
    "equation": ("ij,jk->ik", "ij->ji", "ij->ij"),
    "indexing": ("ij", "xy"),
    "ord": ("fro",),
    "p": ("fro",),
    "padding_side": ("right",),
    "pad_mode": ("reflect",),
}


class _Maker:
    """Values for the arguments of one call."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        #: Tensors of one call mostly agree.
        self.shape = self.rng.choice(SHAPES)
        self.dtype = self.rng.choice((None, torch.float32, torch.float32, torch.float32, torch.int64, torch.complex64))

    def argument(self, argument: Any) -> Any:
        rng, real = self.rng, str(argument.real_type)
        enumerated = next((kind for kind in ("ScalarType", "MemoryFormat", "Layout") if kind in real), None)
        if argument.has_default_value() and rng.random() < (0.85 if enumerated else 0.55):
            return argument.default_value
        if enumerated == "ScalarType":
            return rng.choice((torch.float32, torch.float32, torch.float64, torch.int64))
        if enumerated == "MemoryFormat":
            return rng.choice((torch.contiguous_format, torch.preserve_format))
        if enumerated == "Layout":
            return torch.strided
        return self._value(argument.name, str(argument.type).replace("SymInt", "int"))

    def _value(self, name: str, kind: str) -> Any:
        rng = self.rng
        if kind.startswith("Optional["):
            return None if rng.random() < 0.6 else self._value(name, kind[len("Optional[") : -1])
        if kind.startswith("List["):
            return self._list(name, kind[len("List[") : -1])
        if kind == "Tensor":
            own_shape, own_dtype = rng.random() > 0.75, rng.random() > 0.8
            return self._tensor(name, None if own_shape else self.shape, None if own_dtype else self.dtype)
        choices: dict[str, tuple[Any, ...]] = {
            "int": (0, 0, 1, -1) if name in DIMENSIONS else (0, 1, 1, 2, 2, 3, 4),
            "float": (0.0, 0.5, 1.0, 0.1, 2.0),
            "bool": (False, True),
            "number": (0, 1, 2, 0.5, 1.0),
            "str": WORDS.get(name, ("sum",)),
            "Device": (torch.device("cpu"),),
        }
        return rng.choice(choices.get(kind, (None,)))

    def _list(self, name: str, kind: str) -> Any:
        rng = self.rng
        if kind == "Tensor":
            return [self._tensor(name, self.shape, self.dtype) for _ in range(rng.choice((1, 2, 2, 3)))]
        if kind == "Optional[Tensor]":
            return [torch.randint(0, 3, (2,), generator=self.torch) for _ in range(rng.choice((1, 1, 2)))]
        if kind == "int" and name in SIZES:
            return list(self.shape) if rng.random() < 0.6 else rng.choice(([4, 3], [12], [3, 4], [4], [2, 2], [6, 6]))
        if kind == "int" and name in DIMENSIONS:
            return rng.choice(([0], [1], [0, 1], [1, 0], [-1], []))
        if kind == "int" and "stride" in name:
            return rng.choice(([1], [3, 1], [1, 1], [4, 1], [2, 2]))
        lists: dict[str, tuple[Any, ...]] = {
            "int": ([1, 1], [0, 0], [1], [2], [2, 2], [1, 2], [0, 1], [0], [0, 0, 0, 0]),
            "bool": ([True] * 3, [True] * 2, [True, True, False]),
            "float": ([1.0, 1.0], [0.5], [2.0, 2.0]),
            "number": ([1, 1], [0.5, 2.0], [1]),
        }
        return rng.choice(lists.get(kind, ([],)))

    def _tensor(self, name: str, shape: tuple[int, ...] | None, dtype: torch.dtype | None) -> torch.Tensor:
        rng = self.rng
        shape = rng.choice(SHAPES) if shape is None else shape
        if name in INDICES and rng.random() < 0.85:
            return torch.randint(0, 3, shape, generator=self.torch)
        if ("mask" in name or "cond" in name) and rng.random() < 0.7:
            dtype = torch.bool
        dtype = rng.choice(DTYPES) if dtype is None else dtype
        if dtype is torch.bool:
            return torch.rand(shape, generator=self.torch) > 0.5
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.randint(0, 4, shape, generator=self.torch, dtype=dtype)
        return (torch.rand(shape, generator=self.torch) + 0.2).to(dtype)


def sample(op: Any, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that the op may or may not take."""
    maker = _Maker(seed)
    values = [(argument, maker.argument(argument)) for argument in op._schema.arguments]
    args = tuple(value for argument, value in values if not argument.kwarg_only)
    return args, {argument.name: value for argument, value in values if argument.kwarg_only}


def find(name: str) -> Any:
    """The op called ``library.op.overload``; AttributeError without it."""
    library, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, library), op), overload)


def seeds(known: bool = True) -> dict[str, list[int]]:
    """By op, seeds of arguments that it takes."""
    found: dict[str, list[int]] = json.loads(FILE.read_text()) if known and FILE.exists() else {}
    return found


# Finding them


def all_ops() -> list[str]:
    """Every op of aten and prims that a graph may run."""
    from commcc.graph.ops.allowed import refusal

    found = set()
    for schema in torch._C._jit_get_all_schemas():
        library, _, op = schema.name.partition("::")
        path = f"{library}.{op}.{schema.overload_name or 'default'}"
        if library in ("aten", "prims") and op.isidentifier() and refusal(find(path)) is None:
            found.add(path)
    return sorted(found)


def search(name: str, *, wanted: int = 3, tries: int = 1000, seconds: float = 0.7) -> list[int]:
    """Seeds of arguments that an op takes."""
    from tests.op_runs import CannotRun, observe

    op, found, start = find(name), [], time.process_time()
    for seed in range(tries):
        if len(found) == wanted or time.process_time() - start > seconds:
            break
        try:
            observe(op, *sample(op, seed))
        except CannotRun:
            continue
        found.append(seed)
    return found


def searched(name: str) -> list[int] | None:
    """The same in a process of its own; None if that was ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(60)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        os.write(writer, json.dumps(search(name)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text and not status else None


def main() -> None:
    for module in ("torch._prims", "torch._inductor.inductor_prims"):
        importlib.import_module(module)  # they register ops
    torch.set_num_threads(1)
    found: dict[str, list[int]] = {}
    ended = []
    for number, name in enumerate(sys.argv[1:] or all_ops()):
        if number % 100 == 0:
            print(number, len(found), flush=True)
        good = searched(name)
        if good is None:
            ended.append(name)
        elif good:
            found[name] = good
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(good)}" for name, good in sorted(found.items()))
    FILE.write_text(f"{{\n{lines}\n}}\n")
    print(f"{len(found)} ops; ended the process: {' '.join(ended)}")


if __name__ == "__main__":
    main()
