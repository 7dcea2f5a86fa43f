"""Give a graph that was traced on the CPU the devices that it has in training.

Tracing needs no accelerator when everything is a fake CPU tensor; what the graph is for runs on one::

    add: "f32[8]cpu" = ...(x, device=device('cpu'))   ->   add: "f32[8]cuda:0" = ...(x, device=device('cuda', 0))

Values that the program copies to the host (an asynchronous copy with an explicit ``device=cpu``, or a copy
that is annotated as part of a token-count exchange), and what is computed from them alone, stay on the
host. Limits: a host value made any other way is taken for a device value, unless the caller knows which are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_any, tree_map

from commcc.graph.ops import op_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_CPU = torch.device("cpu")
#: Annotation of the way of token counts to the host.
_COUNTS = "EP_token_count_sync"


def relabel(graph: fx.Graph, device: torch.device, on_host: Mapping[str, bool] | None = None) -> None:
    """Replace ``cpu`` by ``device`` in all values and arguments of ``graph``, in place.

    on_host: for names of nodes, whether they are known to stay on the host; others are guessed.
    """
    known = on_host or {}

    def moved(leaf: Any) -> Any:
        return device if isinstance(leaf, torch.device) and leaf.type == "cpu" else leaf

    host: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        tensors = [
            source
            for source in node.all_input_nodes
            if tree_any(lambda leaf: isinstance(leaf, torch.Tensor), source.meta.get("val"))
        ]
        # What is computed from host values alone is computed there.
        guess = _copies_to_host(node) or bool(tensors and all(source in host for source in tensors))
        if known.get(node.name, guess):
            host.add(node)
            continue
        node.args = map_aggregate(node.args, moved)
        node.kwargs = map_aggregate(node.kwargs, moved)
    move = _mover(device)
    for node in graph.nodes:
        if node not in host and "val" in node.meta:
            value = node.meta["val"]
            node.meta["val"] = move(value) if isinstance(value, torch.Tensor) else tree_map(move, value)


def _copies_to_host(node: fx.Node) -> bool:
    if op_name(node.target) != "aten._to_copy" or node.kwargs.get("device") != _CPU:
        return False
    return node.kwargs.get("non_blocking") is True or _COUNTS in node.meta.get("custom", {})


def _mover(device: torch.device) -> Callable[[Any], Any]:
    alike: dict[Any, torch.Tensor] = {}

    def moved(leaf: Any) -> Any:
        # Numbers and symbols are on no device.
        if not isinstance(leaf, FakeTensor) or leaf.device.type != "cpu":
            return leaf
        sizes, offset = (*leaf.size(), *leaf.stride()), leaf.storage_offset()
        whole = isinstance(offset, int) and offset == 0
        # A graph has few kinds of tensors: one stands for all that are alike.
        key = (sizes, leaf.dtype, id(leaf.fake_mode)) if whole and all(type(n) is int for n in sizes) else None
        if key in alike:
            return alike[key]
        with leaf.fake_mode, torch.no_grad():
            if whole:
                tensor = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=device)
                if key is not None:
                    alike[key] = tensor
                return tensor
            # The storage must reach as far as the view did.
            base = torch.empty(leaf.untyped_storage().nbytes() // leaf.element_size(), dtype=leaf.dtype, device=device)
            return base.as_strided(leaf.size(), leaf.stride(), offset)

    return moved
