"""Explanations of small graphs, worked out by hand: queues, limits, prices, and what has its own advice."""

from __future__ import annotations

import re

import pytest
import torch

from commcc.base.terms import Kind, Role
from commcc.cli.explain import command
from commcc.explain import Context, Limits, explain, explain_worst
from commcc.passes.reorder import Reorder
from commcc.planning.headroom import budget_bytes
from commcc.timing.snapshot import take
from tests import split_graphs
from tests.explain_graphs import Graph, kinds, reason
from tests.random_graphs import GraphBuilder

GIB = 1 << 30


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
        "give the ep collectives of group dp a process group of their own, apart from fsdp: saves 30 ns (simulated); "
        "'commcc groups --roles ep' does that"
    )


def test_exposed_because_another_waits_behind_it():
    """The stall is charged to the one that runs: ``first`` holds up ``second``, whose wait stalls."""
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


def test_a_move_and_a_queue_of_its_own_together():
    """Waited for later, ``first`` still holds up ``second``, which stalls right after it."""
    g = Graph()
    x = g.input()
    first, second = g.send("first", 100, "dp", x), g.send("second", 1, "dp", x)
    ahead, behind = g.waited("wf", first), g.waited("ws", second)
    g.mm("free", 150, x)
    g.output(ahead, g.mm("use", 10, behind))
    queue = reason(g.explain("first"), "queue")
    assert queue.saves_ns == 100
    assert "Neither a move nor a queue of its own saves anything alone" in queue.text
    assert "with both, waited for 1 compute node later, below free, it would save 100 ns" in queue.text


def test_a_slow_down_that_eats_what_would_be_hidden():
    g = Graph()
    x = g.input()
    g.mm("free", 50, x)
    g.output(g.mm("use", 10, g.waited("w", g.send("ag", 40, "dp", x))))
    assert kinds(g.explain("ag")) == ["order"]
    slow = g.explain("ag", slowdown_permille=1_000_000)
    assert slow.advice is None
    several = reason(slow, "several")
    assert "Compute that overlaps with a collective takes 1000 times as long" in several.text


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


def explained_of_four(merged=None, needed=()):
    """The second of four small gathers, one after the other; merged: what each is said to be a bucket of; needed: which
    of them send what the use of the one before gives.
    """
    g = Graph()
    x = g.input()
    for k in range(4):
        launch = g.send(f"ag{k}", 40, "dp", x if k in needed else g.input(), size=10)
        g.latency[launch] = 30
        if merged:
            g.merged[launch] = merged
        x = g.mm(f"use{k}", 10, g.waited(f"w{k}", launch))
    g.output(x)
    return g.explain("ag1", latency=30)


def test_latency_and_neighbours_to_merge_with():
    found = explained_of_four()
    assert reason(found, "latency").saves_ns == 30
    (knob,) = [k for k in found.knobs if k.text.startswith("merge")]
    assert knob.text.startswith("merge it with the 3 next to it on group dp (40 B together): 70 ns instead of 160 ns")
    assert knob.command is None
    assert "it is not a gather of one parameter or a reduction of a gradient" in knob.text


@pytest.mark.parametrize(("needed", "others"), [((1,), 2), ((2,), 1), ((3,), 2), ((1, 2), None)])
def test_what_needs_another_is_not_told_to_be_merged_with_it(needed, others):
    found = explained_of_four(needed=needed)
    told = [k.text.partition(" on group")[0] for k in found.knobs if k.text.startswith("merge")]
    assert told == ([] if others is None else [f"merge it with the {others} next to it"])


def test_a_bucket_is_not_told_to_be_merged():
    found = explained_of_four(merged=("a", "b"))
    assert reason(found, "latency").saves_ns == 30
    assert not [knob for knob in found.knobs if knob.text.startswith("merge")]


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


def test_limits_are_those_of_reorder():
    """Unless others are given, an explanation moves launches as far as the pass would."""
    own, reorder = Limits(), Reorder()
    assert (own.max_compute_prefetch, own.max_in_flight_gb) == (reorder.max_compute_prefetch, reorder.max_in_flight_gb)
    for peak in (10**6, 10**12):
        assert own.budget(peak) == budget_bytes(reorder.memory_budget, peak)
        assert Limits(memory_budget=7).budget(peak) == 7
    defaults = {option.name: option.default for option in command.params}
    assert defaults["max_compute_prefetch"] == defaults["max_in_flight_gb"] == "none"
    assert reorder.max_compute_prefetch is reorder.max_in_flight_gb is None


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("columns", {"rows": 512, "width": 2048}),
        ("embedding", {"words": 4096, "width": 256}),
        ("gathered", {"rows": 8192, "inner": 64, "width": 64}),
        ("hybrid", {"words": 4096, "width": 256}),
    ],
)
def test_parts_that_make_the_step_shorter_are_advised(family, sizes):
    program = getattr(split_graphs, family)(**sizes)
    seen = take(program, split_graphs.MODEL, {})
    context = Context(seen.index, seen.ident, seen.prediction, split_graphs.MODEL, program=program)
    for launch in seen.index.launches:
        found = explain(context, seen.index.names[launch])
        (knob,) = [knob for knob in found.knobs if "each beside the compute of another" in knob.text]
        assert (knob.command, "'commcc split' does that" in knob.text) == ("split", True)
        after = split_graphs.split(program, parts=int(re.findall(r"in (\d) parts", knob.text)[0]))
        steps = [prediction.timeline.step_ns for prediction in (after.predictions[0], after.predictions[-1])]
        assert knob.saves_ns == steps[0] - steps[1] > 0


def test_a_collective_whose_parts_gain_nothing_is_not_to_be_split():
    g = GraphBuilder()
    x = g.placeholder("x", (8, 4))
    launch = g.call(torch.ops._c10d_functional.all_gather_into_tensor.default, x, 2, "0")
    program = g.program([g.call(torch.ops._c10d_functional.wait_tensor.default, launch)], {"0": 2})
    seen = take(program, split_graphs.MODEL, {})
    (found,) = explain_worst(Context(seen.index, seen.ident, seen.prediction, split_graphs.MODEL, program=program))
    assert not [knob for knob in found.knobs if knob.command == "split"]
