"""Explanations of small graphs, worked out by hand: one graph for each kind of reason."""

from __future__ import annotations

import json

import pytest

from commcc.errors import OptionError
from commcc.explain import Limits
from commcc.passes import registry
from commcc.terms import Kind, Role
from tests.explain_graphs import Graph

GIB = 1 << 30


def kinds(found):
    return [reason.kind for reason in found.reasons]


def reason(found, kind):
    (one,) = [each for each in found.reasons if each.kind == kind]
    return one


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
        "launch it 1 compute node earlier, above early: saves 40 ns (simulated)"
    ]
    assert found.knobs[0].command is None
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
    assert found.beside.nodes == 0
    assert [(s.what, s.start_ns, s.end_ns) for s in found.picture.compute] == [
        *(("compute", 37, 50), ("stall", 50, 90), ("compute", 90, 100)),
    ]
    assert [(s.what, s.start_ns, s.end_ns) for s in found.picture.lane] == [("this", 50, 90)]


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
    assert found.knobs[0].text == "wait for it 2 compute nodes later, below b: saves 40 ns (simulated)"
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
    assert (found.beside.nodes, found.beside.compute_nodes, found.beside.ns, found.beside.names) == (
        2,
        1,
        40,
        ("a", "b"),
    )
    assert found.summary == "ag: hidden, all of its 40 ns"
    assert g.worst() == []


def test_dependence_above_the_launch():
    """``free`` could run beside it, but stands above ``feeds``, which the launch comes after."""
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
    assert found.knobs[0].text == "move independent compute beside it (free below its launch): saves 40 ns (simulated)"
    assert [near.away for near in found.possible.before] == [1]


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


def queued():
    """``b`` waits in the queue behind ``a``, which is needed much later."""
    g = Graph()
    x = g.input()
    a = g.send("a", 30, "dp", x, role=Role.FSDP)
    b = g.send("b", 40, "dp", x, kind=Kind.ALL_TO_ALL, role=Role.EP)
    between = g.mm("between", 40, x)
    use = g.mm("use", 100, g.waited("wb", b), between)
    g.output(use, g.waited("wa", a))
    return g


def test_queued_behind_another_role():
    found = queued().explain("b")
    queue = reason(found, "queue")
    assert queue.saves_ns == 30
    assert "waits 30 ns in the queue of dp behind a." in queue.text
    assert (found.timing.queue_ns, found.timing.queue) == (30, (("a", 30),))
    knob = next(k for k in found.knobs if "process group" in k.text)
    assert knob.text == (
        "give the ep collectives of group dp a process group of their own, apart from fsdp: saves 30 ns (simulated)"
    )


def test_exposed_because_another_waits_behind_it():
    """The stall is charged to the one that runs: ``first`` holds up ``second``, whose wait stands still."""
    g = Graph()
    x = g.input()
    first = g.send("first", 30, "dp", x)
    second = g.send("second", 5, "dp", x)
    use = g.mm("use", 50, g.waited("ws", second))
    g.output(use, g.waited("wf", first))
    found = g.explain("first")
    assert found.exposed_ns == 30
    assert [(s.wait, s.waits_for, s.ns) for s in found.timing.stalls] == [("ws", "second", 30)]
    assert "holds up second there for 30 ns" in reason(found, "queue").text


def many_products():
    g = Graph()
    x = g.input()
    for k in range(6):
        g.mm(f"p{k}", 10, x)
    g.output(g.mm("use", 10, g.waited("w", g.send("ag", 40, "dp", x))))
    return g


def test_the_prefetch_window():
    assert kinds(many_products().explain("ag")) == ["order"]
    found = many_products().explain("ag", Limits(max_compute_prefetch=3))
    window = reason(found, "window")
    assert window.saves_ns == 10
    assert window.text.startswith("At most 3 compute nodes may stand between launch and wait")
    assert (found.advice.earlier, found.advice.above, found.advice.saves_ns) == (3, "p3", 30)
    assert "allow 4 compute nodes between launch and wait (max_compute_prefetch): saves 10 ns more (simulated)" in [
        knob.text for knob in found.knobs
    ]
    assert kinds(many_products().explain("ag", Limits(max_compute_prefetch=None))) == ["order"]


def test_bytes_in_flight():
    g = Graph()
    x = g.input()
    other = g.waited("wo", _flying(g, x))
    g.output(g.mm("use", 10, g.waited("w", g.send("ag", 40, "dp", x, size=GIB))), other)
    found = g.explain("ag", Limits(max_in_flight_gb=1.5))
    flying = reason(found, "in_flight")
    assert flying.saves_ns == 40
    assert (
        "At most 1.5 GiB may be in flight; launched 1 compute node earlier, above early, 2.0 GiB would be."
        in flying.text
    )
    assert found.advice is None
    assert g.explain("ag", Limits(max_in_flight_gb=None)).advice.saves_ns == 40


def _flying(g, x):
    launch = g.send("other", 1, "ep", x, size=GIB)
    g.mm("early", 50, x)
    return launch


def test_the_memory_budget():
    """Above ``big`` the result would live beside the peak."""
    g = Graph()
    x = g.input()
    big = g.mm("big", 50, x, size=100)
    g.small("small", 0, big)
    g.output(g.mm("use", 10, g.waited("w", g.send("ag", 40, "dp", x, size=50))))
    assert kinds(g.explain("ag")) == ["order"]
    found = g.explain("ag", Limits(memory_budget=120))
    memory = reason(found, "memory")
    assert memory.saves_ns == 40
    assert (
        "Peak memory may be at most 120 B (now 100 B); launched 1 compute node earlier, above big, it would be 150 B"
        in (memory.text)
    )
    assert [k.text for k in found.knobs] == ["allow a peak of 150 B (memory_budget): saves 40 ns (simulated)"]


def test_a_synchronous_op():
    g = Graph()
    x = g.input()
    held = g.send("sync", 40, "dp", x, synchronous=True)
    g.mm("free", 30, x)
    g.output(g.mm("use", 10, held))
    found = g.explain("sync")
    assert found.reasons[0].kind == "synchronous"
    assert found.reasons[0].saves_ns == 30
    assert "the first to need it is use" in found.reasons[0].text
    assert "asynchronous collective" in found.knobs[0].text


def test_latency_and_neighbours_to_merge_with():
    g = Graph()
    x = g.input()
    for k in range(4):
        launch = g.send(f"ag{k}", 40, "dp", x, size=10)
        g.latency[launch] = 30
        x = g.mm(f"use{k}", 10, g.waited(f"w{k}", launch))
    g.output(x)
    found = g.explain("ag1", latency=30)
    assert reason(found, "latency").saves_ns == 30
    (knob,) = [k for k in found.knobs if k.text.startswith("merge")]
    assert knob.text.startswith("merge it with the 3 next to it on group dp (40 B together): 70 ns instead of 160 ns")
    assert knob.command is None
    assert "it is not a gather of one parameter or a reduction of a gradient" in knob.text


def test_others_would_be_waited_for_instead():
    g = Graph()
    x = g.input()
    a, b = g.send("a", 40, "one", x), g.send("b", 40, "two", x)
    g.output(g.mm("use", 10, g.waited("wa", a), g.waited("wb", b)))
    found = g.explain("a")
    assert (found.exposed_ns, found.cost_ns) == (40, 0)
    assert "if it took no time at all, the step would be 0 ns shorter" in reason(found, "others").text.lower()


def test_the_end_of_the_step():
    g = Graph()
    x = g.input()
    g.send("ar", 40, "dp", g.mm("feeds", 50, x))
    found = g.explain("ar")
    assert reason(found, "end_of_step").text.startswith("For 40 ns it runs when the compute stream has finished")
    assert [(s.wait, s.ns) for s in found.timing.stalls] == [(None, 40)]
    assert found.wait_side.path == ()


def test_token_exchanges_and_tensor_parallel_pairs_get_their_own_advice():
    g = Graph()
    x = g.input()
    tokens = g.waited("w0", g.send("a2a", 40, "ep", g.mm("router", 5, x), kind=Kind.ALL_TO_ALL, role=Role.EP))
    tp = g.waited("w1", g.send("ag", 40, "tp", g.mm("experts", 50, tokens), role=Role.TP))
    back = g.mm("product", 30, tp)
    g.output(g.waited("w2", g.send("rs", 40, "tp", back, kind=Kind.REDUCE_SCATTER, role=Role.TP)))
    assert "split the tokens of this expert-parallel region into chunks" in g.explain("a2a").knobs[0].text
    assert "split the pair all-gather -> product into pieces" in g.explain("ag").knobs[0].text
    assert "at most 30 ns to hide" in g.explain("ag").knobs[0].text
    assert "split the pair product -> reduce-scatter" in g.explain("rs").knobs[0].text


@pytest.mark.parametrize("known", [False, True])
def test_passes_are_named_once_they_exist(known, monkeypatch):
    names = (*registry.names(), *(("reorder", "ep-chunk") if known else ()))
    monkeypatch.setattr(registry, "names", lambda: names)
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
