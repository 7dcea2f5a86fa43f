"""A communication compiler for PyTorch training graphs.

    torch.compile(model, backend=commcc.backend(preset="auto", cost="h100"))    # see commcc.live

What is needed is imported when it is used: importing commcc imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc.live import backend, graph_pass, inductor_pass

__version__ = "0.1.0"
__all__ = ["__version__", "backend", "graph_pass", "inductor_pass"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'commcc' has no attribute '{name}'")
    from commcc import live

    return getattr(live, name)
