"""Libraries of ops that are registered for a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@contextmanager
def op_library(
    name: str,
    schemas: Sequence[str],
    runs: Mapping[str, Callable[..., Any]],
    shapes: Mapping[str, Callable[..., Any]] | None = None,
    random: Sequence[str] = (),
) -> Iterator[Any]:
    """``torch.ops.NAME`` while it is there. runs: kernels for the CPU, by op; shapes: shape functions. random: ops that
    are tagged to draw.
    """
    lib = torch.library.Library(name, "FRAGMENT")
    for schema in schemas:
        drawn = schema.partition("(")[0] in random
        lib.define(schema, tags=[torch.Tag.nondeterministic_seeded] if drawn else [])
    for op, run in runs.items():
        lib.impl(op, run, "CPU")
    for op, shape in (shapes or {}).items():
        torch.library.register_fake(f"{name}::{op}", shape, lib=lib)
    yield getattr(torch.ops, name)
    lib._destroy()
