"""A communication compiler for PyTorch training graphs.

    program = commcc.load("bw.fx.txt.gz")                                       # see commcc.api
    result = commcc.run(program, preset="auto", cost="h100")
    torch.compile(model, backend=commcc.backend(preset="auto", cost="h100"))    # see commcc.live
    commcc.shard(model, mesh["dp"], param_dtype=torch.bfloat16)                 # see commcc.capture.shards
    commcc.capture("train.py:build", mesh="dp=8,tp=8", output="graphs/")        # see commcc.capture

What is needed is imported when it is used: importing commcc imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc import capture, diff, run, verify
    from commcc.api import inspect, load, save, simulate
    from commcc.capture.shards import shard
    from commcc.live import backend, graph_pass, inductor_pass

__version__ = "0.2.0"

_HOMES = {
    **dict.fromkeys(("inspect", "load", "save", "simulate"), "commcc.api"),
    **dict.fromkeys(("backend", "graph_pass", "inductor_pass"), "commcc.live"),
    "shard": "commcc.capture.shards",
}
#: Packages, which can be called as the functions of these names.
_PACKAGES = ("capture", "diff", "run", "verify")
__all__ = [
    "__version__",
    "backend",
    "capture",
    "diff",
    "graph_pass",
    "inductor_pass",
    "inspect",
    "load",
    "run",
    "save",
    "shard",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"commcc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'commcc' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
