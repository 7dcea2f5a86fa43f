"""The way from a difference to what can be seen from outside."""

from __future__ import annotations

from commcc.verify import verify
from commcc.verify.verdict import Ways, next_steps
from tests.verify_graphs import Graph, aten


def layers(constant, length=1, shown=True):
    g = Graph()
    x, buffer = g.input("x", 4), g.input("buffer", 4)
    y = g(aten.mul.Tensor, x, constant, name="scaled")
    for i in range(length):
        y = g(aten.sin.default, y, name=f"layer{i}")
    if not shown:
        g(aten.copy_.default, buffer, y, name="kept")
    return g.program(g(aten.cos.default, x), *([y] if shown else []))


def test_a_finding_says_how_it_shows():
    verdict = verify(layers(2), layers(3))
    [finding] = verdict.findings
    assert finding.node == "scaled"
    assert finding.way == ("scaled", "layer0", "output 1")
    assert finding.to_json()["way"] == ["scaled", "layer0", "output 1"]


def test_a_long_way_is_shortened():
    [finding] = verify(layers(2, 20), layers(3, 20)).findings
    assert finding.way == (
        *("scaled", "layer0", "layer1", "layer2"),
        "14 more",
        *("layer17", "layer18", "layer19", "output 1"),
    )


def test_a_write_to_an_input_is_an_end():
    findings = verify(layers(2, shown=False), layers(3, shown=False)).findings
    assert ("scaled", "layer0", "kept", "effect of kept") in [finding.way for finding in findings]


def test_what_is_gone_is_looked_up_in_the_graph_that_has_it():
    before, after = layers(2).graph, Graph().program().graph
    assert Ways(after, before).from_node("layer0") == ("layer0", "output 1")
    assert Ways(after, before).from_node("nothing") == ()
    assert Ways(after, before).from_node("") == ()


def test_dead_code_has_no_way():
    g = Graph()
    x = g.input("x", 4)
    g(aten.sin.default, x, name="dead")
    program = g.program(g(aten.cos.default, x, name="alive"))
    assert next_steps(program.graph) == {"alive": "output 0", "x": "alive"}
