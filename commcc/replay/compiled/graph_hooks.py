"""Hooks of Inductor that change its graph, each taken only where the job does not use it.

hook_options("post_grad_custom_pre_pass", keep_whole)      # settings for torch._inductor.config.patch
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import commcc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx


def hook_options(name: str, change: Callable[[fx.Graph], object]) -> Mapping[str, Any]:
    """Settings with which ``change`` is called on Inductor's graph; none where the job uses the hook."""
    import torch._inductor.config as inductor_config

    hook = _hook(change)
    # Those of commcc may be there for a moment only: a backward is compiled when it first runs.
    return {name: hook} if getattr(inductor_config, name) in (None, hook) else {}


@cache
def _hook(change: Callable[[fx.Graph], object]) -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Hook(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            change(graph)

        def uuid(self) -> str:  # part of the key of compiled code
            return f"{change.__name__}, commcc {commcc.__version__}"

    return Hook()
