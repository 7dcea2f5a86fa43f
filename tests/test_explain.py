"""Explanations of small graphs, worked out by hand: facts, order, dependence, nothing independent, names."""

from __future__ import annotations

import json

import pytest

from commcc.base.errors import OptionError
from commcc.base.terms import Kind
from commcc.passes import registry
from tests.explain_graphs import Graph, kinds, reason

FOR_THAT = "'commcc reorder' schedules for that"


def ordered_late():
    """A gather that is launched and waited for right ahead of its use, behind a product that does not need it."""
    g = Graph()
    x = g.input()
    g.mm("early", 50, x)
    wait = g.waited("w", g.send("ag", 40, "dp", x))
    g.output(g.mm("use", 10, wait))
    return g


def test_the_order_alone():
    found = ordered_late().explain("ag")
    assert kinds(found) == ["order"]
    order = found.reasons[0]
    assert order.saves_ns == found.cost_ns == found.exposed_ns == 40
    assert "no compute node stands between its launch and its wait" in order.text
    assert "launched 1 compute node earlier, above early, it would save 40 ns" in order.text
    move = found.advice
    assert (move.earlier, move.above, move.later, move.below) == (1, "early", 0, None)
    assert (move.within, move.saves_ns, move.exposed_ns) == (1, 40, 0)
    assert [knob.text for knob in found.knobs] == [
        "launch it 1 compute node earlier, above early: saves 40 ns (simulated); 'commcc reorder' schedules for that"
    ]
    assert found.knobs[0].command == "reorder"
    assert found.summary == f"ag: 40 ns of 40 ns exposed (order); {found.knobs[0].text}"


def test_facts_of_the_same_graph():
    found = ordered_late().explain("ag")
    assert (found.timing.launch_position, found.timing.wait_position) == (2, 3)
    assert (found.timing.launched_ns, found.timing.start_ns, found.timing.end_ns) == (50, 50, 90)
    assert [(s.wait, s.waits_for, s.ns) for s in found.timing.stalls] == [("w", "ag", 40)]
    assert (found.possible.ns, found.possible.compute_nodes, found.possible.stays_ns) == (50, 1, 0)
    assert [(near.name, near.ns, near.away) for near in found.possible.before] == [("early", 50, 0)]
    assert found.possible.after == ()
    assert (found.launch_side.position, found.launch_side.limit, found.launch_side.path) == (1, None, ())
    assert (found.launch_side.compute_nodes, found.launch_side.ns) == (1, 50)
    assert (found.wait_side.position, found.wait_side.limit, found.wait_side.path) == (4, "use", ("w", "use"))
    assert found.overlap.nodes == 0
    assert [(s.what, s.start_ns, s.end_ns) for s in found.picture.compute] == [
        *(("compute", 37, 50), ("stall", 50, 90), ("compute", 90, 100)),
    ]
    assert [(s.what, s.start_ns, s.end_ns) for s in found.picture.stream] == [("this", 50, 90)]


def test_a_wait_is_explained_like_its_launch_and_twice_the_same():
    g = ordered_late()
    assert g.explain("w") == g.explain("ag") == g.worst()[0]
    assert json.dumps(g.explain("w").to_json()) == json.dumps(g.explain("ag").to_json())


def test_a_reduction_is_waited_for_later():
    g = Graph()
    x = g.input()
    grad = g.mm("grad", 10, x)
    wait = g.waited("w", g.send("rs", 40, "dp", grad, kind=Kind.REDUCE_SCATTER))
    g.mm("a", 30, x)
    g.mm("b", 30, x)
    g.mm("c", 30, x)
    g.output(wait)
    found = g.explain("rs")
    assert kinds(found) == ["order"]
    assert found.knobs[0].text == f"wait for it 2 compute nodes later, below b: saves 40 ns (simulated); {FOR_THAT}"
    assert (found.launch_side.limit, found.launch_side.path) == ("grad", ("grad", "rs"))
    assert (found.wait_side.limit, found.wait_side.compute_nodes, found.wait_side.ns) == ("output", 3, 90)


def test_hidden_is_said_with_what_hides_it():
    g = Graph()
    x = g.input()
    launch = g.send("ag", 40, "dp", x)
    g.mm("a", 30, x)
    g.small("b", 20, x)
    g.output(g.mm("use", 5, g.waited("w", launch)))
    found = g.explain("ag")
    assert (found.reasons, found.knobs, found.advice, found.exposed_ns) == ((), (), None, 0)
    assert (found.overlap.nodes, found.overlap.compute_nodes, found.overlap.ns, found.overlap.names) == (
        2,
        1,
        40,
        ("a", "b"),
    )
    assert found.summary == "ag: hidden, all of its 40 ns"
    assert g.worst() == []


def test_dependence_above_the_launch():
    """``free`` could overlap with it, but stands above ``feeds``, which the launch comes after."""
    g = Graph()
    x = g.input()
    g.mm("free", 60, x)
    feeds = g.mm("feeds", 50, x)
    cast = g.small("cast", 0, feeds)
    wait = g.waited("w", g.send("ag", 40, "dp", cast))
    g.output(g.mm("use", 10, g.view(wait)))
    found = g.explain("ag")
    assert kinds(found) == ["dependence", "dependence"]
    above = next(r for r in found.reasons if r.path[-1] == "ag")
    assert above.path == ("feeds", "cast", "ag")
    assert above.saves_ns == 40
    assert above.text.startswith("It can only be launched after feeds (aten.mul): feeds -> cast -> ag.")
    below = next(r for r in found.reasons if r.path[0] == "w")
    assert below.path == ("w", "n6", "use")
    moved = "overlap it with independent compute (free below its launch): saves 40 ns (simulated)"
    assert found.knobs[0].text == f"{moved}; {FOR_THAT}"
    assert [near.away for near in found.possible.before] == [1]


def test_the_shortest_path_is_shown():
    g = Graph()
    x = g.input()
    feeds = g.mm("feeds", 50, x)
    long = g.small("long", 0, g.small("way", 0, feeds))
    short = g.small("short", 0, feeds)
    g.output(g.waited("w", g.send("ag", 40, "dp", g.small("both", 0, long, short))))
    assert g.explain("ag").launch_side.path == ("feeds", "short", "both", "ag")


def test_a_gather_that_compute_does_not_feed_is_no_obstacle():
    """The gather of a parameter ahead of the launch moves up with it: the product above it is the limit."""
    g = Graph()
    x = g.input()
    feeds = g.mm("feeds", 50, x)
    weight = g.waited("w0", g.send("ag0", 1, "dp", x))
    launch = g.send("rs", 40, "dp", g.small("scaled", 0, feeds, weight))
    g.output(g.waited("w", launch))
    assert g.explain("rs").launch_side.limit == "feeds"
    chained = Graph()
    x = chained.input()
    first = chained.waited("w0", chained.send("rs", 20, "a", chained.mm("feeds", 50, x)))
    chained.output(chained.waited("w", chained.send("ar", 20, "b", first)))
    assert chained.explain("ar").launch_side.path == ("w0", "ar")
    assert chained.explain("rs").wait_side.path == ("w0", "ar")


def test_nothing_independent():
    g = Graph()
    x = g.input()
    wait = g.waited("w", g.send("ag", 40, "dp", g.mm("feeds", 50, x)))
    g.output(g.mm("use", 10, wait))
    found = g.explain("ag")
    nothing = reason(found, "nothing_independent")
    assert nothing == found.reasons[0]
    assert (nothing.saves_ns, nothing.path, nothing.simulated) == (40, ("feeds", "ag", "w", "use"), False)
    assert nothing.text.startswith("No work in the whole graph is independent of it")
    assert found.possible.stays_ns == 40
    assert [knob.text for knob in found.knobs] == [
        "none: the critical path goes through it, and takes 100 ns in every order"
    ]
    assert found.slack_ns == 0


def test_a_critical_path_shorter_than_the_step_is_no_reason():
    """The longest path takes 50 ns of a step of 130: the queue decides."""
    g = Graph()
    x = g.input()
    sends = [g.send(f"ag{i}", 40, "dp", x) for i in range(3)]
    g.output(*[g.mm(f"use{i}", 10, g.waited(f"w{i}", send)) for i, send in enumerate(sends)])
    found = g.explain("ag1")
    assert found.exposed_ns == 30
    assert [knob.text for knob in found.knobs] == [
        "none: others take its place in its queue; less to send on group dp would help"
    ]


def test_a_step_that_compute_behind_the_collective_fills():
    """The longest path, ag to long, takes 100 ns; the compute stream needs 110 after no order."""
    g = Graph()
    x = g.input()
    first, second = g.send("ag", 40, "dp", x), g.send("ar", 40, "tp", x)
    long = g.mm("long", 60, g.waited("w", first))
    g.output(long, g.mm("short", 10, g.waited("v", second)))
    assert [knob.text for knob in g.explain("ag").knobs] == [
        "none: less to send, or a faster link, is all that would help here"
    ]


def test_a_step_that_another_collective_makes_longer_than_its_bound():
    """The path of 90 ns through both is critical, but until the second one is overlapped the step takes 120."""
    g = Graph()
    x = g.input()
    first = g.mm("first", 10, g.waited("w", g.send("ag", 20, "dp", x)))
    g.mm("late", 20, g.waited("v", g.send("ar", 40, "tp", first)))
    g.output(g.mm("other", 30, first))
    assert [knob.text for knob in g.explain("ag").knobs] == [
        "none: no change to it alone helps but less to send, or a faster link"
    ]
    assert "other above its wait" in g.explain("ar").knobs[0].text


def test_too_little_is_independent():
    g = Graph()
    x = g.input()
    feeds = g.mm("feeds", 50, x)
    wait = g.waited("w", g.send("ag", 40, "dp", feeds))
    g.small("free", 15, x)
    g.output(g.mm("use", 10, wait))
    found = g.explain("ag")
    nothing = reason(found, "nothing_independent")
    assert nothing.saves_ns == found.possible.stays_ns == 25
    assert "only 15 ns of work (0 compute nodes) in the whole graph neither feeds it nor needs it" in nothing.text
    assert reason(found, "order").saves_ns == 15


@pytest.mark.parametrize("known", [False, True])
def test_passes_are_named_once_they_exist(known, monkeypatch):
    if not known:
        monkeypatch.delitem(registry._PASSES, "reorder")
    knob = ordered_late().explain("ag").knobs[0]
    assert knob.command == ("reorder" if known else None)
    assert ("'commcc reorder' schedules for that" in knob.text) is known


def test_worst_are_sorted_and_counted():
    g = Graph()
    x = g.input()
    for name, ns in (("a", 10), ("b", 30), ("c", 30), ("d", 20)):
        x = g.mm(f"use_{name}", 5, g.waited(f"w_{name}", g.send(name, ns, "dp", x)))
    assert [found.name for found in g.worst(3)] == ["b", "c", "d"]
    assert [found.name for found in g.worst()] == ["b", "c", "d", "a"]


def test_names_that_are_no_collective():
    g = ordered_late()
    with pytest.raises(OptionError, match=r"no node 'agg' in the graph \(did you mean 'ag'\?\); 'commcc inspect"):
        g.explain("agg")
    with pytest.raises(OptionError, match=r"'early' is no collective but aten\.mul; name a launch or its wait"):
        g.explain("early")
    with pytest.raises(OptionError, match="the graph has no collectives"):
        Graph().explain("ag")
