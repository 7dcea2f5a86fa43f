"""The lower bound from one collective and the compute beside it: by hand, against the best order, and kernels."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.timing.simulate import beside as module
from commcc.timing.simulate import lower_bound
from commcc.timing.simulate.beside import beside
from commcc.timing.simulate.bound import _Ends
from tests.brute_force import optimum
from tests.effort import examples
from tests.index_maker import IndexMaker, Shape, layered_maker, random_costs, random_maker

RELAXED = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 1 << 30)
PART = "compute beside one collective"


def gradients(reduction=15, last=30, layers=3, group="dp"):
    """A chain; each link has a gradient of its own with a reduction, and the last link one more."""
    make = IndexMaker()
    x = make.input()
    for _ in range(layers):
        x = make.op(20, x)
        make.wait(make.launch(reduction, group, make.op(10, x)))
    make.wait(make.launch(last, "dp", x))
    return make


def parameters():
    """Mirrored: a gather that all of a chain needs, and others for what each link needs besides."""
    make = IndexMaker()
    x = make.wait(make.launch(30, "dp", make.input()))
    for _ in range(3):
        x = make.op(20, x, make.op(10, make.wait(make.launch(15, "dp", make.input()))))
    return make


def both(make, costs=None):
    """The bound by what is before a collective and by what is behind one, whatever other bounds say."""
    ends = _Ends.of(make.index(), costs or make.costs())
    return [
        beside(ends.events, ends.before, ends.after, 0),
        beside(ends.mirrored, ends.after, ends.before, 0),
    ]


def copies_of_shards(layers=((20, 10, 5, 15),) * 3, last=(6, 30), group="copies"):
    """As :func:`gradients`, but what is reduced is reduced once more, on another stream. layers: ns of the link, of its
    gradient and of both reductions. last: of both reductions of the last gradient.
    """
    make = IndexMaker()
    x = make.input()
    for link, own, scatter, reduction in layers:
        x = make.op(link, x)
        make.wait(make.launch(reduction, group, make.wait(make.launch(scatter, "dp", make.op(own, x)))))
    make.wait(make.launch(last[1], group, make.wait(make.launch(last[0], "dp", x))))
    return make


def gathered_twice():
    """Mirrored: what is gathered was gathered on another stream before."""
    make = IndexMaker()

    def gathered(first, second):
        return make.wait(make.launch(second, "dp", make.wait(make.launch(first, "copies", make.input()))))

    x = gathered(30, 6)
    for _ in range(3):
        x = make.op(20, x, make.op(10, gathered(15, 5)))
    return make


@pytest.mark.parametrize(("make", "side"), [(gradients, 0), (parameters, 1)])
def test_what_leads_to_longer_collectives_hides_none(make, side):
    bound = lower_bound(make().index(), make().costs())
    assert (bound.ns, bound.name) == (90 + 30, PART)
    assert both(make())[side] == bound.ns <= optimum(make().index(), make().costs())
    assert max(ns for name, ns in bound.parts.items() if name != PART) == 110


def test_what_leads_to_shorter_ones_hides_the_difference():
    """Of 30 ns of gradients with 18 ns of reductions, 12 ns hide a part of the last one."""
    make = gradients(reduction=6)
    assert both(make)[0] == 90 + 30 - 3 * (10 - 6) == optimum(make.index(), make.costs())


@pytest.mark.parametrize(("make", "side"), [(copies_of_shards, 0), (gathered_twice, 1)])
def test_what_is_reduced_once_more_comes_behind_what_the_last_one_becomes(make, side):
    """The first reductions would hide the first of the last gradient, the second ones hide nothing."""
    assert both(make())[side] == 90 + 6 + 30 <= optimum(make().index(), make().costs())
    assert both(copies_of_shards(((20, 10, 5, 7),) * 3))[0] == 90 + 6 + 30 - 3 * (10 - 7)


def test_what_is_reduced_once_more_together_with_the_last_one_takes_no_more_time():
    make = IndexMaker()
    x = make.op(20, make.input())
    own = make.wait(make.launch(2, "dp", make.op(10, x)))
    make.wait(make.launch(30, "copies", make.wait(make.launch(6, "dp", x)), own))
    assert both(make)[0] == 30 + 2 + 30 == optimum(make.index(), make.costs())


def test_the_least_that_follows_on_the_second_stream_counts():
    make = copies_of_shards()
    make.op(5, max(make.wait_of))
    assert both(make)[0] == 95 + 36 - 5 + 0


def test_only_what_comes_through_the_same_stream_is_behind_it():
    """Here gradients are reduced among copies alone, and may be so while shards are reduced."""
    make = IndexMaker()
    x = make.input()
    for _ in range(3):
        x = make.op(20, x)
        make.wait(make.launch(15, "copies", make.op(10, x)))
    make.wait(make.launch(30, "copies", make.wait(make.launch(20, "dp", x))))
    assert both(make)[0] == 90 + 30 < 90 + 20 + 30


def test_with_many_streams_one_is_looked_at_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "_STREAMS", 1)
    assert both(copies_of_shards())[0] == 90 + 30


def test_no_order_of_copies_of_shards_is_faster():
    longer = 0
    for seed in range(150):
        draw = random.Random(seed).randint
        layers = [(draw(1, 20), draw(0, 12), draw(1, 12), draw(1, 20)) for _ in range(2)]
        make = copies_of_shards(layers, (draw(1, 20), draw(1, 30)), "dp" if seed % 5 == 0 else "copies")
        bound, best = max(both(make)), optimum(make.index(), make.costs())
        assert bound <= best
        longer += bound > max(ns for name, ns in lower_bound(make.index(), make.costs()).parts.items() if name != PART)
    assert longer > 10


def test_what_leads_to_none_hides_all_of_it():
    make = gradients()
    make.op(7, make.input())
    assert both(make)[0] == 97 + 30 - 7


def test_what_leads_to_another_stream_hides_all_of_it():
    """All three gradients would hide the last collective; two of them hide nothing of the last one on their stream."""
    assert both(gradients(last=50, group="tp"))[0] == 90 + 50 - 3 * 10
    assert both(gradients(last=30, group="tp"))[0] == 90 + 15


@pytest.mark.parametrize("longer", [0, 1])
def test_what_leads_to_several_needs_the_longest(longer):
    make = IndexMaker()
    own = make.op(10, make.input())
    for place in range(2):
        make.wait(make.launch(9 if place == longer else 2, "dp", own))
    make.wait(make.launch(30, "dp", make.op(60, make.input())))
    assert both(make)[0] == 70 + 30 - (10 - 9)


def test_each_that_is_tried_is_looked_at_alone():
    """First the third gradient's, which ends later at the earliest; then the last one, which gives more."""
    assert both(gradients(reduction=6, last=12))[0] == 90 + 12 - 3 * 4 > 90 + 6 - 2 * 4


def test_the_least_that_follows_counts():
    """Of the last collective and of those that may come behind it."""
    make = gradients(last=50, group="tp")
    make.op(5, max(make.wait_of))
    assert both(make)[0] == 95 + 50 - 35 + 5  # what comes behind those of another stream does not
    make = gradients()
    last = max(make.wait_of)
    make.op(5, last)
    assert both(make)[0] == 95 + 30 - 5
    for wait in sorted(make.wait_of)[:-1]:
        make.op(8, wait)
    assert both(make)[0] == 95 + 24 + 30 - 29 + 5


def test_launches_count_with_what_they_take_of_the_compute_stream():
    make = gradients()
    assert both(make, make.costs(launch_ns=1))[0] == 90 + 4 + 30
    make = gradients(reduction=6)
    assert both(make, make.costs(launch_ns=1))[0] == 90 + 4 + 30 - 3 * (10 + 1 - 6)


def test_what_a_collective_keeps_its_stream_busy_for_counts():
    """Of merged ones that is less than they take."""
    make = gradients()
    index, costs = make.index(), make.costs()
    ends = _Ends.of(index, costs, dict.fromkeys(index.launches, 12))
    assert beside(ends.events, ends.before, ends.after, 0) == 90 + 12
    ends = _Ends.of(index, costs, dict.fromkeys(index.launches, 5))  # the gradients hide less of the third of them
    assert beside(ends.events, ends.before, ends.after, 0) == 90 + 5 - 2 * (10 - 5)


def test_no_part_where_it_says_no_more():
    make = gradients(reduction=1, last=2)
    assert PART not in lower_bound(make.index(), make.costs()).parts
    ends = _Ends.of(make.index(), make.costs())
    assert beside(ends.events, ends.before, ends.after, 1 << 40) == 1 << 40


@RELAXED
@given(SEEDS, st.booleans())
def test_no_order_of_a_small_graph_is_faster(seed, layers):
    """Whichever transfers are tried."""
    make = layered_maker(seed) if layers else random_maker(seed, Shape(nodes=9, unwaited=0.2, order_edges=0.2))
    costs = make.costs(seed % 3) if layers else replace(random_costs(seed, make), slowdown_permille=1000)
    assert max(both(make, costs)) <= optimum(make.index(), costs)


def test_more_small_graphs_have_the_bound_of_their_best_order(monkeypatch):
    met = {}
    for name in ("with", "without"):
        met[name] = 0
        for seed in range(300):
            make = layered_maker(seed)
            met[name] += lower_bound(make.index(), make.costs()).ns == optimum(make.index(), make.costs())
        monkeypatch.setattr(_Ends, "beside", lambda _ends, least: least)
    assert met["with"] > met["without"] + 3


@pytest.mark.parametrize("seed", range(6))
def test_kernels_give_the_same(seed, monkeypatch):
    make = random_maker(seed, Shape(nodes=300, groups=("a", "b"), depth=12, synchronous=0.1))
    plain = both(make, costs := random_costs(seed, make))
    monkeypatch.setattr(module, "_MANY", 0)
    assert both(make, costs) == plain
    assert max(plain) > 0


def test_of_many_transfers_those_that_end_last_are_tried():
    make = gradients(layers=40)
    ends = _Ends.of(make.index(), make.costs())
    tried = module._tried(ends.events, ends.before, ends.after, 0)
    assert len(tried) == module._TRIED and tried[0] == ends.events.transfers[max(make.made)]
    assert module._tried(ends.events, ends.before, ends.after, 29) == tried[:1]


def test_what_begins_early_is_not_tried_first_however_much_follows():
    make = IndexMaker()
    x = make.input()
    for _ in range(8):
        x = make.op(20, x, make.wait(make.launch(1, "dp", make.input())))
    last = make.launch(30, "dp", x)
    make.wait(last)
    ends = _Ends.of(make.index(), make.costs())
    assert module._tried(ends.events, ends.before, ends.after, 0)[0] == ends.events.transfers[last]
    assert both(make)[0] == 160 + 30


def test_small_graphs_compile_nothing(monkeypatch):
    for name in ("_lead", "_gained"):
        monkeypatch.setattr(module, name, SimpleNamespace(python=getattr(module, name).python))
    assert both(gradients())[0] == 120
