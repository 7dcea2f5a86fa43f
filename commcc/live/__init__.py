"""Rewrites graphs inside a training job: as a backend of ``torch.compile``, as a pass of Inductor, or as a callable.

::

    model = torch.compile(model, backend=commcc.backend(preset="auto", cost="h100"))
    torch._inductor.config.post_grad_custom_post_pass = commcc.inductor_pass(preset="auto", cost="h100")
    passes.append(commcc.graph_pass(pipeline="bucket,reorder"))          # (gm, example_inputs=None) -> gm

Each graph is rewritten and proved as by ``commcc run``. What is not proved is not used: the graph stays as it was,
and a line of the log says why. Before a graph runs for the first time the ranks that communicate in it compare what
they have made (:mod:`commcc.live.agreement`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc.live.backends import backend, inductor_pass
    from commcc.live.rewriting import GraphPass, graph_pass

__all__ = ["GraphPass", "backend", "graph_pass", "inductor_pass"]
#: `commcc doctor` looks at a machine that may have no PyTorch, which these need.
_HOMES = {
    **dict.fromkeys(("backend", "inductor_pass"), "commcc.live.backends"),
    **dict.fromkeys(("GraphPass", "graph_pass"), "commcc.live.rewriting"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'commcc.live' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
