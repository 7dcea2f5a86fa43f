"""Hooks of Inductor that change its graph, behind what the job itself has there.

hook_options("post_grad_custom_pre_pass", keep_whole)      # settings for torch._inductor.config.patch
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import commcc
from commcc.base.errors import bug
from commcc.graph.restoring import Original

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx


log = logging.getLogger("commcc.live")


def changed(change: Callable[[fx.Graph], object], graph: fx.Graph) -> None:
    """Call ``change``; a bug in it leaves the graph as it was, and whatever compiles it goes on."""
    owner: Any = graph.owning_module
    original = Original(owner)
    try:
        change(graph)
    except Exception as error:
        original.restore()
        log.warning("%s is left out: %s", change.__name__, bug(error, "the graph stays as it is"))


def hook_options(name: str, change: Callable[[fx.Graph], object]) -> Mapping[str, Any]:
    """Settings with which ``change`` is called on Inductor's graph, after what the job calls there."""
    import torch._inductor.config as inductor_config
    from torch._inductor import custom_graph_pass

    job, own = getattr(inductor_config, name), _hook(change)
    passes = [*job] if isinstance(job, (list, tuple)) else [] if job is None else [job]
    # Those of commcc may be there already: a backward is compiled when it first runs.
    if any(own in (each, getattr(each, "own", None)) for each in passes):
        return {name: job}
    if not passes:
        return {name: own}
    # PyTorch 2.11 takes one pass only.
    return {name: [*passes, own] if hasattr(custom_graph_pass, "get_custom_graph_passes") else _both(job, own)}


@cache
def _hook(change: Callable[[fx.Graph], object]) -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Hook(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            changed(change, graph)

        def uuid(self) -> str:  # part of the key of compiled code
            return f"{change.__name__}, commcc {commcc.__version__}"

    return Hook()


def _both(job: Any, own: Any) -> Any:
    """One pass that is the job's and then commcc's own; no compiled code is cached where the job's has no name."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Both(CustomGraphPass):
        def __init__(self) -> None:
            self.own = own

        def __call__(self, graph: fx.Graph) -> None:
            job(graph)
            own(graph)

        def uuid(self) -> Any:
            name = job.uuid() if isinstance(job, CustomGraphPass) else None
            return None if name is None else (name, own.uuid())

    return Both()
