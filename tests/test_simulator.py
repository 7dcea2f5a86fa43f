"""The simulator: timelines worked out by hand, identities, and a slow simulator that must agree to the nanosecond."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.timing.simulate import Simulator, Span
from commcc.timing.simulate.simulator import in_flight_bytes
from tests.counting import at_most
from tests.effort import examples
from tests.index_maker import IndexMaker, Shape, random_costs, random_maker, random_order
from tests.slow_simulator import SlowSimulator

RELAXED = settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
SHAPE = Shape(nodes=24, groups=("a", "b", "c"), depth=6)


def run(make, order=None, **costs):
    return Simulator(make.index(), make.costs(**costs)).run(order)


def test_nothing_takes_no_time():
    timeline = run(IndexMaker())
    assert (timeline.step_ns, timeline.exposed_ns, timeline.communication_ns) == (0, 0, 0)
    assert timeline.hidden_share is None
    assert timeline.in_flight_bytes == 0


def test_a_gather_behind_compute_is_hidden():
    make = IndexMaker()
    launch = make.launch(20, "dp", make.input())
    make.op(50)
    wait = make.wait(launch)
    use = make.op(5, wait)
    timeline = run(make, launch_ns=3)
    assert timeline.spans == {launch: Span("dp", 3, 3, 23)}
    assert (timeline.start[launch], timeline.end[launch]) == (0, 3)
    assert (timeline.start[wait], timeline.end[wait]) == (53, 53)
    assert (timeline.start[use], timeline.end[use]) == (53, 58)
    assert (timeline.step_ns, timeline.compute_ns, timeline.launch_ns, timeline.exposed_ns) == (58, 55, 3, 0)
    assert timeline.stalls == timeline.exposed == {}
    assert timeline.hidden_share == timeline.hidden_share_of(launch) == 1


def test_a_wait_stalls_for_what_is_left():
    make = IndexMaker()
    launch = make.launch(20, "dp", make.input())
    make.op(8)
    wait = make.wait(launch)
    make.op(5, wait)
    timeline = run(make, launch_ns=3)
    assert timeline.end[wait] == 23
    assert timeline.stalls == {wait: 12}
    assert timeline.exposed == {launch: 12}
    assert timeline.step_ns == 28
    assert timeline.hidden_share == pytest.approx(0.4)


def test_one_lane_queues_and_charges_what_ran():
    """The wait for the second stands still while the first one runs: each pays for its own part."""
    make = IndexMaker()
    x = make.input()
    first, second = make.launch(20, "dp", x), make.launch(30, "dp", x)
    make.op(5)
    wait = make.wait(second)
    late = make.wait(first)
    timeline = run(make, launch_ns=1)
    assert timeline.spans == {first: Span("dp", 1, 1, 21), second: Span("dp", 2, 21, 51)}
    assert timeline.exposed == {first: 14, second: 30}
    assert timeline.stalls == {wait: 44}
    assert timeline.end[late] == timeline.step_ns == 51


def test_a_collective_that_takes_no_time_has_no_share():
    make = IndexMaker()
    x = make.input()
    first, second, third = (make.launch(ns, "dp", x) for ns in (0, 20, 10))
    make.op(5)
    for launch in (first, second, third):
        make.wait(launch)
    timeline = run(make)
    assert [timeline.hidden_share_of(launch) for launch in (first, second, third)] == [None, 0.25, 0.0]
    assert timeline.hidden_share == 1 - 25 / 30
    assert timeline.spans[second].ns == 20


def test_two_lanes_run_side_by_side():
    make = IndexMaker()
    x = make.input()
    first, second = make.launch(20, "dp", x), make.launch(30, "tp", x)
    a, b = make.wait(first), make.wait(second)
    timeline = run(make, launch_ns=1)
    assert timeline.spans == {first: Span("dp", 1, 1, 21), second: Span("tp", 2, 2, 32)}
    assert timeline.exposed == {first: 19, second: 11}
    assert timeline.stalls == {a: 19, b: 11}
    assert timeline.step_ns == 32


def test_groups_that_share_a_link_share_a_lane():
    make = IndexMaker()
    x = make.input()
    first, second = make.launch(20, "dp", x), make.launch(30, "tp", x)
    make.wait(second)
    timeline = run(make, launch_ns=1, streams={"dp": "link", "tp": "link", "other": "other"})
    assert timeline.spans == {first: Span("link", 1, 1, 21), second: Span("link", 2, 21, 51)}
    assert timeline.exposed == {first: 19, second: 30}


def test_a_synchronous_collective_holds_the_stream():
    make = IndexMaker()
    x = make.input()
    ahead = make.launch(10, "dp", x)
    held = make.launch(20, "dp", x, synchronous=True)
    make.op(5, held)
    timeline = run(make, launch_ns=1)
    assert timeline.spans == {ahead: Span("dp", 1, 1, 11), held: Span("dp", 2, 11, 31)}
    assert (timeline.start[held], timeline.end[held]) == (1, 31)
    assert timeline.exposed == {ahead: 9, held: 20}
    assert timeline.stalls == {held: 29}
    assert timeline.step_ns == 36


def test_what_nobody_waits_for_makes_a_tail():
    """First ends at 21; second ends later and pays for the tail, but only from its own start."""
    make = IndexMaker()
    x = make.input()
    first, second = make.launch(20, "dp", x), make.launch(30, "dp", x)
    make.op(5)
    timeline = run(make, launch_ns=1)
    assert timeline.step_ns == 51
    assert timeline.exposed == {first: 14, second: 30}
    assert timeline.stalls == {}


def test_the_tail_is_charged_to_what_ends_last():
    make = IndexMaker()
    x = make.input()
    first, second = make.launch(20, "dp", x), make.launch(30, "tp", x)
    timeline = run(make)
    assert timeline.exposed == {second: 30}
    assert timeline.step_ns == 30
    assert first in timeline.spans


def test_a_wait_long_after_the_end_is_free():
    make = IndexMaker()
    launch = make.launch(2, "dp", make.input())
    make.op(100)
    wait = make.wait(launch)
    timeline = run(make)
    assert (timeline.start[wait], timeline.end[wait], timeline.step_ns) == (100, 100, 100)
    assert not timeline.exposed


def test_a_wait_on_a_view_waits_for_the_launch():
    make = IndexMaker()
    launch = make.launch(20, "dp", make.input())
    wait = make.wait(make.view(launch))
    timeline = run(make)
    assert timeline.stalls == {wait: 20}
    assert timeline.step_ns == 20


def test_a_coalesced_launch_with_several_waits():
    """Each wait waits for the whole launch; bytes are in flight until the last of them."""
    make = IndexMaker()
    launch = make.launch(20, "dp", make.input(), size=7)
    first = make.wait(make.view(launch))
    make.op(4, first)
    second = make.wait(make.view(launch))
    timeline = run(make)
    assert timeline.stalls == {first: 20}
    assert timeline.end[second] == timeline.step_ns == 24
    assert timeline.in_flight == (0, 7, 7, 7, 7, 7, 0)
    assert timeline.in_flight_bytes == 7


def test_bytes_in_flight_are_the_larger_of_sent_and_got():
    make = IndexMaker()
    small, large = make.input(size=3), make.input(size=11)
    first = make.launch(5, "dp", small, size=9)
    second = make.launch(5, "dp", large, size=2)
    make.wait(first)
    make.launch(1, "dp", large, size=90, synchronous=True)
    timeline = run(make)
    assert timeline.in_flight == (0, 0, 9, 20, 11, 11)
    assert [in_flight_bytes(make.index(), n, make.index().launches[n]) for n in (first, second)] == [9, 11]


@pytest.mark.parametrize(
    ("ns", "permille", "added"),
    [
        (10, 1500, 5),  # wholly beside the collective of 20: 15 ns
        (13, 1500, 7),  # 19.5 ns, to the next nanosecond
        (14, 1500, 7),  # 20 ns beside it make 13; one is left
        (40, 1500, 7),  # 20 ns beside it make 13, and 27 follow
        (10, 1333, 4),  # 13.33 ns
        (10, 1000, 0),
        (10, 1001, 1),  # 10.01 ns
        (50, 2000, 10),
    ],
)
def test_compute_beside_a_collective_is_slower(ns, permille, added):
    make = IndexMaker()
    launch = make.launch(20, "dp", make.input())
    node = make.op(ns)
    make.wait(launch)
    timeline = run(make, slowdown_permille=permille)
    assert timeline.end[node] - timeline.start[node] == ns + added
    assert (timeline.slowed_ns, timeline.compute_ns) == (added, ns)
    assert timeline.step_ns == max(20, ns + added)


def test_launching_is_not_slowed_down():
    make = IndexMaker()
    x = make.input()
    make.launch(20, "dp", x)
    make.launch(20, "tp", x)
    timeline = run(make, slowdown_permille=2000, launch_ns=4)
    assert timeline.launch_ns == 8
    assert timeline.slowed_ns == 0
    assert timeline.step_ns == 28


def test_another_order_can_be_given():
    make = IndexMaker()
    x = make.input()
    work = make.op(50)
    launch = make.launch(20, "dp", x)
    wait = make.wait(launch)
    simulator = Simulator(make.index(), make.costs())
    assert simulator.run().step_ns == 70
    better = simulator.run([x, launch, work, wait])
    assert better.step_ns == 50
    assert better.order == (x, launch, work, wait)
    assert simulator.run().step_ns == 70, "a run leaves nothing behind"


def check_identities(timeline, index, costs):
    assert timeline.step_ns == timeline.compute_ns + timeline.launch_ns + timeline.slowed_ns + timeline.exposed_ns
    assert timeline.launch_ns == costs.launch_ns * len(index.launches)
    idle = set(index.launches) | set(index.wait_of)
    assert timeline.compute_ns == sum(ns for node, ns in enumerate(costs.ns) if node not in idle)
    assert timeline.communication_ns == sum(costs.ns[node] for node in index.launches)
    assert all(0 < ns <= timeline.spans[node].ns for node, ns in timeline.exposed.items())
    assert 0 <= sum(timeline.stalls.values()) <= timeline.exposed_ns
    assert timeline.exposed_ns - sum(timeline.stalls.values()) == timeline.step_ns - max(timeline.end, default=0)
    assert timeline.communication_ns == 0 or 0 <= timeline.hidden_share <= 1
    assert set(timeline.stalls) <= idle
    lanes = {}
    for node in timeline.order:
        assert timeline.start[node] <= timeline.end[node] <= timeline.step_ns
        if node in timeline.spans:
            lanes.setdefault(timeline.spans[node].stream, []).append(timeline.spans[node])
    for before, after in pairwise(timeline.order):
        assert timeline.end[before] == timeline.start[after]
    for spans in lanes.values():
        assert all(a.end <= b.start for a, b in pairwise(spans))
        assert all(s.queued_at <= s.start <= s.end <= timeline.step_ns for s in spans)


def check_against_slow(seed, shape, order_seed=None):
    make = random_maker(seed, shape)
    index, costs = make.index(), random_costs(seed, make)
    order = range(len(index)) if order_seed is None else random_order(index, random.Random(order_seed))
    fast, slow = Simulator(index, costs).run(order), SlowSimulator(index, costs, order).run()
    assert fast.step_ns == slow.step
    assert {n: [s.queued_at, s.start, s.end] for n, s in fast.spans.items()} == slow.spans
    assert fast.exposed == slow.exposed
    assert fast.stalls == slow.stalls
    assert dict(enumerate(fast.start)) == slow.begin
    assert dict(enumerate(fast.end)) == slow.end
    assert fast.in_flight == slow.in_flight(lambda n: in_flight_bytes(index, n, index.launches[n]), list(order))
    check_identities(fast, index, costs)


@RELAXED
@given(st.integers(0, 1 << 30))
def test_agrees_with_the_slow_simulator_in_graph_order(seed):
    check_against_slow(seed, SHAPE)


@RELAXED
@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_agrees_with_the_slow_simulator_in_any_order(seed, order_seed):
    check_against_slow(seed, SHAPE, order_seed)


@RELAXED
@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_agrees_where_most_nodes_communicate(seed, order_seed):
    check_against_slow(seed, replace(SHAPE, launches=0.8, unwaited=0.4, synchronous=0.2, nodes=30), order_seed)


@pytest.mark.full
def test_a_long_queue_waited_for_in_order_of_launch():
    """Finding a collective in its lane's queue takes no search; with one this would take minutes."""
    make = IndexMaker()
    x = make.input()
    launches = [make.launch(5, "dp", x) for _ in range(40_000)]
    for launch in launches:
        make.op(1, make.wait(launch))
    simulator = Simulator(make.index(), make.costs())
    with at_most(2_000_000):
        assert simulator.run().step_ns == 200_001
