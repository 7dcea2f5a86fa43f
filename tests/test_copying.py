"""A copy of a whole graph is what ``create_node`` would make of it, node by node."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from commcc.graph import copying
from commcc.graph.copying import copied, copy_node
from commcc.serialization import load

aten = torch.ops.aten
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
NAMES = ("tiny_llama_fsdp2_fw.fx.txt", "tiny_moe_ep2_bw.fx.txt.gz", "tiny_llama_fsdp2_fw.pt2")


def _one_by_one(nodes: list[fx.Node]) -> fx.Graph:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        env[node] = copy_node(graph, node, env)
    return graph


def _all_kinds() -> fx.Graph:
    """A graph with nodes of all kinds, and names that FX would change."""
    graph = fx.Graph()
    x = graph.placeholder("x", type_expr=int)
    y = graph.placeholder("y_7", default_value=3)
    held = graph.get_attr("weight")
    called = graph.call_module("part", (x,))
    method = graph.create_node("call_method", "view", (called, -1), name="view_3")
    largest = graph.call_function(aten.amax.default, (method,), {"dim": [0], "keepdim": True})
    largest.name = "max"
    both = graph.call_function(aten.cat.default, ([largest, y, held], 0), name="max_1")
    twice = graph.call_function(aten.add.Tensor, (both, both), {"alpha": 2})
    twice.meta["val"] = object()
    graph.output(((twice, None), {"y": y, "range": slice(0, x)}))
    return graph


def _state(graph: fx.Graph) -> dict[str, Any]:
    """All of a graph, with names for nodes."""
    names = graph._graph_namespace
    return {
        "nodes": [
            (n.name, n.op, n.target, str(n.args), str(n.kwargs), n.type, dict(n.meta), list(map(str, n.users)))
            for n in graph.nodes
        ],
        "inputs": [list(map(str, n.all_input_nodes)) for n in graph.nodes],
        "back": [n.name for n in reversed(graph.nodes)],
        "sorted": [n.name for n in sorted(graph.nodes)],
        "count": len(graph.nodes),
        "table": {key: list(map(str, row)) for key, row in graph._find_nodes_lookup_table.table.items() if row},
        # A node that is made under a name that FX would change is known by the other one there.
        "named": list(map(str, names._obj_to_name)),
        "used": names._used_names - {"max"},
        "counts": names._base_count,
    }


@pytest.mark.parametrize("name", ["all kinds", *NAMES])
def test_a_copy_is_what_create_node_makes(name: str) -> None:
    nodes = list((load(SAMPLES / name).graph if name in NAMES else _all_kinds()).nodes)
    ours, usual = copied(nodes), _one_by_one(nodes)
    assert _state(ours) == _state(usual)
    assert vars(ours).keys() == vars(usual).keys()


def test_this_release_is_known() -> None:
    """Nodes of this release need not be made one by one."""
    assert copying._known()


def test_a_release_that_keeps_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_KNOWN", (*copying._KNOWN, "_more"))
    copying._known.cache_clear()
    graph = copied(_all_kinds().nodes)
    copying._known.cache_clear()
    assert not isinstance(graph._graph_namespace, copying._Names)
    assert [node.name for node in graph.nodes] == [node.name for node in _all_kinds().nodes]


def test_a_copy_can_be_changed() -> None:
    """New names are free ones, what is erased is gone from all tables, and the copy of a copy is one."""
    nodes = list(_all_kinds().nodes)
    ours, usual = copied(nodes), _one_by_one(nodes)
    for graph in (ours, usual):
        at = {node.name: node for node in graph.nodes}
        with graph.inserting_before(at["max_1"]):
            for name in ("max", "view_3", "view", "x", "y_7", "new"):
                graph.call_function(aten.neg.default, (at["max"],), name=name)
        at["view_3"].name = "view_40"
        graph.erase_node(next(node for node in graph.nodes if node.name.startswith("new")))
        graph.lint()
    assert _state(ours) == _state(usual)
    assert _state(copied(ours.nodes)) == _state(_one_by_one(list(ours.nodes)))
    assert _state(copy.deepcopy(copied(_plain().nodes))) == _state(copy.deepcopy(_plain()))


def _plain() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(aten.neg.default, (x,)))
    return graph


def test_operands_have_to_be_copied_before() -> None:
    nodes = list(_plain().nodes)
    with pytest.raises(KeyError):
        copied(nodes[::-1])
