"""Graphs from models, on the CPU, with no accelerator and no cluster.

::

    commcc.capture("train.py:build", mesh="dp=8,tp=8", output="graphs/")      # as the command does

    programs = capture(build, Layout((("dp_shard", 64),)))                    # the same of sample models, in process
    save(programs["forward"], Path("llama_fw.fx.txt"))

See :mod:`commcc.capture.request` for the first, :mod:`commcc.capture.capturing` for ``build`` of the second, and
:mod:`commcc.capture.importing` for graphs that are in memory already. What is needed is imported when it is used:
importing this package imports no torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc.capture.capturing import CaptureOptions, Step, capture
    from commcc.capture.importing import from_exported_program, from_graph_module
    from commcc.capture.sharding import Placing
    from commcc.capture.shards import shard
    from commcc.capture.tracing import TraceOptions
    from commcc.capture.unsharding import Precision
    from commcc.capture.world import Layout, World, fake_world

_HOMES = {
    "CaptureOptions": "capturing",
    "Step": "capturing",
    "capture": "capturing",
    "from_exported_program": "importing",
    "from_graph_module": "importing",
    "shard": "shards",
    "Placing": "sharding",
    "TraceOptions": "tracing",
    "Precision": "unsharding",
    "Layout": "world",
    "World": "world",
    "fake_world": "world",
}

__all__ = [
    "CaptureOptions",
    "Layout",
    "Placing",
    "Precision",
    "Step",
    "TraceOptions",
    "World",
    "capture",
    "fake_world",
    "from_exported_program",
    "from_graph_module",
    "shard",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'commcc.capture' has no attribute '{name}'")
    return getattr(importlib.import_module(f"commcc.capture.{_HOMES[name]}"), name)


class _Callable(ModuleType):
    """The package, which is ``commcc.capture(...)`` too."""

    def __call__(self, target: str, *, mesh: str, output: str, **options: Any) -> list[str]:
        """Capture the graphs of a model; the files that were written. options: of
        :class:`commcc.capture.request.Request`. Raises :class:`commcc.base.errors.CommccError`.
        """
        from commcc.capture.request import Request, capture, read_mesh

        answer = capture(Request(target, read_mesh(mesh), output, **options))
        return [file["file"] for file in answer["files"]]


sys.modules[__name__].__class__ = _Callable
