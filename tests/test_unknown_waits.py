"""A wait for what no collective of the table began: until then all that the op was given may be read or written."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from commcc.base.errors import GraphError
from commcc.graph.index import build_index
from commcc.graph.ops import OpaqueOp
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from commcc.verify import verify
from tests.verify_graphs import Graph, aten, c10d, proved, texts

WAIT = c10d.wait_tensor.default


def receive(g: Graph, at: fx.Node) -> fx.Node:
    return g(c10d.irecv.default, at, 0, 0, "0")


def receive_in_batch(g: Graph, at: fx.Node) -> fx.Node:
    both = g(c10d.batch_p2p_ops.default, ["irecv"], [0], [0], [at], "0")
    return g(operator.getitem, both, 0)


def begin(g: Graph, at: fx.Node) -> fx.Node:
    """An op of a library that is not here."""
    return g(OpaqueOp("mine.begin.default"), at, val=at.meta["val"])


def begin_and_view(g: Graph, at: fx.Node) -> fx.Node:
    return g(aten.view.default, begin(g, at), [4])


#: Not in all versions of PyTorch.
SENDS = pytest.mark.skipif(not hasattr(c10d, "batch_p2p_ops"), reason="PyTorch without functional sends")
BEGUN = pytest.mark.parametrize(
    "how", [pytest.param(receive, marks=SENDS), pytest.param(receive_in_batch, marks=SENDS), begin, begin_and_view]
)


def job(order: str, how: Any) -> Any:
    """Two buffers: ``i`` and ``I`` begin to fill one, ``w`` and ``W`` wait, ``r`` and ``R`` read it, ``c`` computes.

    ``x`` reads the other buffer than ``r``.
    """
    g = Graph()
    x = g.input("x", 4)
    buffers = {name: g(aten.empty.memory_format, [4], name=f"buffer_{name}") for name in "ab"}
    begun: dict[str, fx.Node] = {}
    read: dict[str, fx.Node] = {}
    for step in order:
        mine = "ab"[step.isupper()]
        if step in "iI":
            begun[mine] = how(g, buffers[mine])
        elif step in "wW":
            g.wait(begun[mine])
        elif step == "c":
            read["c"] = g(aten.exp.default, x, name="computed")
        elif step == "x":
            read["a"] = g(aten.mul.Tensor, buffers["b"], 2, name="read_a")
        else:
            read[mine] = g(aten.mul.Tensor, buffers[mine], 2 if step == "r" else 3, name=f"read_{mine}")
    return g.program(*[read[name] for name in sorted(read)])


@BEGUN
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("iwr", "irw"),  # reads what may not be there
        ("iwr", "riw"),
        ("iwr", "ir"),  # never waits
        ("irw", "iwr"),
        ("iIwrWR", "iIWrwR"),  # waits for the other one
        ("iIwrWR", "iIWRwr"),
        ("iIwWrR", "iIwrRW"),
        ("iwrIWR", "IWRiwr"),  # sends and receives in another order
        ("iIwWr", "iIwWx"),
    ],
)
def test_what_is_read_on_the_other_side_is_not_proved(how, before, after):
    proved(job(before, how), job(before, how))
    verdict = verify(job(before, how), job(after, how))
    assert verdict.status != "proved", texts(verdict)


@BEGUN
def test_nothing_moves_across_the_wait(how):
    index = build_index(job("icwr", how))
    at = {name: i for i, name in enumerate(index.names)}
    ordered: set[tuple[int, int]] = set()
    for node in range(len(index)):
        for before in index.preds(node):
            ordered |= {(before, node)} | {(first, node) for first, second in ordered if second == before}
    wait = at["wait_tensor_default"]
    assert {(at["buffer_a"], wait), (at["computed"], wait), (wait, at["read_a"])} <= ordered
    assert wait in index.barriers


@BEGUN
def test_the_op_is_warned_of_and_its_wait_where_that_says_more(how):
    program = job("iwr", how)
    (text,) = build_index(program).warnings
    if how in (begin, begin_and_view):
        assert text.startswith("'wait_tensor_default' waits for 'mine_begin_default' (mine.begin), of which nothing")
    else:
        assert "communicates in an unknown way" in text


@BEGUN
def test_what_it_is_given_may_be_written(how):
    index = build_index(job("iwr", how))
    at = {name: i for i, name in enumerate(index.names)}
    assert at["buffer_a"] in index.writes[index.users[at["buffer_a"]][0]]
    assert index.writes[at["wait_tensor_default"]]


def regions(order):
    """``l`` launches a gather of an input, ``h`` waits in a sub-graph, ``r`` reads it, ``m`` writes the input."""
    g = Graph()
    x = g.input("x", 4)
    region = fx.Graph()
    region.output(
        (region.call_function(aten.neg.default, (region.call_function(WAIT, (region.placeholder("given"),)),)),)
    )
    for node in region.nodes:
        if node.op != "output":
            with g.mode:
                node.meta["val"] = torch.empty(16)
    g.root.region = fx.GraphModule(torch.nn.Module(), region)
    body = g.graph.get_attr("region")
    made: dict[str, fx.Node] = {}
    for step in order:
        if step == "l":
            launch = g(c10d.all_gather_into_tensor.default, x, 4, "0", name="launch")
        elif step == "h":
            with g.mode:
                result = (torch.empty(16),)
            region_of = g(torch.ops.higher_order.invoke_subgraph, body, "region", launch, val=result, name="region_of")
            made["h"] = g(operator.getitem, region_of, 0)
        elif step == "r":
            made["r"] = g(aten.mul.Tensor, launch, 2, name="read")
        else:
            made["m"] = g(aten.add_.Tensor, x, 1, name="written")
    return g.program(*[made[name] for name in sorted(made)])


@pytest.mark.parametrize(("before", "after"), [("lhr", "lrh"), ("lhm", "lmh"), ("lrh", "lhr"), ("lmh", "lhm")])
def test_a_sub_graph_may_wait_for_what_it_is_given(before, after):
    proved(regions(before), regions(before))
    # Taken apart, a region's wait is like any other: BEFORE may write what is still sent, AFTER waits for that first.
    early = (before, after) == ("lmh", "lhm")
    assert (verify(regions(before), regions(after)).status == "proved") == early
    index = build_index(regions("lhr"))
    at = {name: i for i, name in enumerate(index.names)}
    assert at["region_of"] in index.barriers and at["region_of"] in index.preds(at["read"])
    assert "waits or communicates in a sub-graph" in index.warnings[0]


def test_a_wait_for_what_was_computed_does_nothing():
    """As behind a gather along the second dimension, which PyTorch makes of a gather, parts and a concatenation."""
    g = Graph()
    parts = g.parts(g.gather(g.input("x", 4, 8)), [4] * 4, 0)
    program = g.program(g(aten.mm.default, g.wait(g(aten.cat.default, parts, 1)), g.input("w", 32, 8)))
    assert not build_index(program).warnings
    done = run(program, parse_pipeline("cleanup,reorder"), model=load_model("h100"))
    assert done.verified == "proved"
    assert [node.name for node in program.graph.nodes if node.name.startswith("wait")] == [
        "wait_tensor_default",
        "wait_tensor_default_1",
    ]
    assert sum(node.name.startswith("wait") for node in done.program.graph.nodes) == 1


@pytest.mark.parametrize("viewed", [False, True])
def test_a_wait_for_what_a_launch_writes_to_is_refused(viewed):
    g = Graph()
    made = g(aten.neg.default, g.input("x", 4))
    g(c10d.all_reduce_.default, g(aten.view.default, made, [2, 2]) if viewed else made, "sum", "0")
    with pytest.raises(GraphError, match="'wait_tensor_default' waits for 'neg_default', which launches no collective"):
        build_index(g.program(g.wait(made)))


def test_a_wait_for_what_was_computed_may_go():
    def made(waits):
        g = Graph()
        x = g(aten.neg.default, g.input("x", 4))
        return g.program(g(aten.exp.default, g.wait(x) if waits else x))

    proved(made(True), made(False))
