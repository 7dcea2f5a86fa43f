"""What flex_attention is handed: operands, and graphs that change scores and mask them.

arguments_of(node)["query"]
sample_graphs(node, root)       # of scores, of the mask: with the argument that is the number of the sample
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import fx

from commcc.graph.ops.names import op_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_OPERANDS = ("query", "key", "value")
_LAST = ("block_mask", "scale", "kernel_options", "score_others", "mask_others")
#: Arguments of flex_attention and of its gradient, in order.
FLEX: dict[str, tuple[str, ...]] = {
    "higher_order.flex_attention": (*_OPERANDS, "score_mod", *_LAST),
    "higher_order.flex_attention_backward": (
        *(*_OPERANDS, "out", "logsumexp", "grad_out", "grad_logsumexp"),
        *("score_mod", "joint", *_LAST),
    ),
}


class SampleGraph(NamedTuple):
    """number: the argument that is the number of the sample. tables: what the op reads, by the argument it is."""

    graph: fx.Graph
    number: fx.Node
    tables: dict[fx.Node, Any]


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Arguments by name."""
    return dict(zip(FLEX[op_name(node.target)], node.args, strict=False))


def sample_graphs(node: fx.Node, module: Callable[[str], Any]) -> list[SampleGraph] | None:
    """The graphs that an op is handed; None where one of them is not there. module: what a name in the program is."""
    a, graphs = arguments_of(node), []
    *_, mask = a["block_mask"]
    # Scores come before the number of the sample.
    given = [(a["score_mod"], 1, "score_others"), (a.get("joint"), 1, "score_others"), (mask, 0, "mask_others")]
    for used, at, others in given:
        if used is None:
            continue
        named = isinstance(used, fx.Node) and used.op == "get_attr"
        graph = getattr(module(str(used.target)) if named else None, "graph", None)
        places = list(graph.find_nodes(op="placeholder")) if isinstance(graph, fx.Graph) else []
        if graph is None or len(places) < at + len(a[others]) + 1:
            return None
        tables = places[len(places) - len(a[others]) :]  # behind scores and places
        graphs.append(SampleGraph(graph, places[at], dict(zip(tables, a[others], strict=True))))
    return graphs


def looks_elsewhere(given: SampleGraph, own: Collection[fx.Node]) -> bool:
    """Whether a graph does anything with the number of its sample but to pick its row of a table of ``own``, or reads
    these tables otherwise.
    """
    for reader in {user for place in (given.number, *own) for user in place.users}:
        table, where = (*reader.args, None, None)[:2]
        indices: list[Any] = list(where) if isinstance(where, (list, tuple)) else []
        picks = op_name(reader.target) == "aten.index" and indices
        if not picks or table not in own or indices[0] is not given.number:
            return True
        if any(index is given.number or index in own for index in indices[1:]):
            return True
    return False


def numbering(nodes: Iterable[fx.Node], module: Callable[[str], Any]) -> frozenset[fx.Node]:
    """Ops with a graph that looks at the number of its sample for more than what the op is handed."""
    pairs = [(node, sample_graphs(node, module)) for node in nodes if op_name(node.target) in FLEX]
    return frozenset(node for node, graphs in pairs if graphs and any(looks_elsewhere(g, g.tables) for g in graphs))
