"""A communication compiler for PyTorch training graphs.

    torch.compile(model, backend=commcc.backend(preset="auto", cost="h100"))    # see commcc.live
    commcc.shard(model, mesh["dp"], param_dtype=torch.bfloat16)                 # see commcc.capture.shards
    commcc.capture("train.py:build", mesh="dp=8,tp=8", output="graphs/")        # see commcc.capture

What is needed is imported when it is used: importing commcc imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc import capture
    from commcc.capture.shards import shard
    from commcc.live import backend, graph_pass, inductor_pass

__version__ = "0.1.0"
__all__ = ["__version__", "backend", "capture", "graph_pass", "inductor_pass", "shard"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'commcc' has no attribute '{name}'")
    if name == "capture":
        return importlib.import_module("commcc.capture")
    return getattr(importlib.import_module("commcc.capture.shards" if name == "shard" else "commcc.live"), name)
