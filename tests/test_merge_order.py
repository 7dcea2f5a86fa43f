"""MergeOrder against reachability by brute force, on random indexes and on programs."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.base.errors import OptionError
from commcc.base.sequences import closure, topological
from commcc.graph.index import build_index
from commcc.planning.greedy import Quotient
from commcc.planning.merge_order import MergeOrder
from tests.effort import examples
from tests.index_maker import IndexMaker, Shape, random_maker
from tests.random_graphs import random_program

RELAXED = settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
SHAPE = Shape(nodes=25, groups=("a", "b"), depth=6, order_edges=0.15, unwaited=0.1)


class BruteForce:
    """The merged graph as sets of members and every edge; answers by walking all of it."""

    def __init__(self, index, edges):
        self.edges = [(p, n) for n in range(len(index)) for p in index.preds(n)]
        self.edges += [(launch, wait) for wait, launch in index.wait_of.items()]
        self.edges += list(edges)
        self.part = {node: frozenset({node}) for node in range(len(index))}

    def after(self, node):
        """Parts that have to come after the part of ``node``."""
        found, stack = set(), [self.part[node]]
        while stack:
            members = stack.pop()
            for first, then in self.edges:
                part = self.part[then]
                if first in members and part not in found:
                    found.add(part)
                    stack.append(part)
        return found

    def may_merge(self, a, b):
        if self.part[a] == self.part[b]:
            return False
        return self.part[b] not in self.after(a) and self.part[a] not in self.after(b)

    def merge(self, a, b):
        whole = self.part[a] | self.part[b]
        self.part.update((node, whole) for node in whole)


def indexed(seed):
    return random_maker(seed, SHAPE).index() if seed % 3 else build_index(random_program(seed, 3))


def forward_edges(index, rng, count):
    """Edges along the order of the graph, which never contradict it."""
    pairs = (sorted(rng.sample(range(len(index)), 2)) for _ in range(count))
    return [tuple(pair) for pair in pairs]


def check_order(order, brute, count):
    """Positions of parts go up along every edge, and nothing stands where something else does."""
    at = {node: order._at[order._find(node)] for node in range(count)}
    for first, then in brute.edges:
        assert at[first] < at[then] or brute.part[first] == brute.part[then]
    places = {brute.part[node]: at[node] for node in range(count)}
    assert len(set(places.values())) == len(places)
    for node in range(count):
        assert order._node_at[at[node]] == order._find(node)


@RELAXED
@given(st.integers(0, 10**6), st.integers(0, 6))
def test_merges_against_brute_force(seed, further):
    """After every merge each pair that is asked about gets the right answer, and the order stays topological."""
    rng = random.Random(seed)
    index = indexed(seed)
    edges = forward_edges(index, rng, further)
    order, brute = MergeOrder(index, edges), BruteForce(index, edges)
    check_order(order, brute, len(index))
    merged = 0
    for _ in range(60):
        a, b = rng.randrange(len(index)), rng.randrange(len(index))
        wanted = brute.may_merge(a, b)
        assert order.may_merge(a, b) == order.may_merge(b, a) == wanted, (a, b)
        if wanted:
            order.merge(a, b)
            brute.merge(a, b)
            merged += 1
            check_order(order, brute, len(index))
    assert merged, "no pair of 60 could be merged"


@RELAXED
@given(st.integers(0, 10**6))
def test_sets_merged_from_the_beginning_against_brute_force(seed):
    rng = random.Random(seed)
    index = indexed(seed)
    order, brute = MergeOrder(index, ()), BruteForce(index, ())
    sets = {}
    for _ in range(60):
        a, b = rng.randrange(len(index)), rng.randrange(len(index))
        if brute.may_merge(a, b):
            sets[a] = sets[b] = sets.get(a, [a]) + sets.get(b, [b])
            for node in sets[a]:
                sets[node] = sets[a]
            brute.merge(a, b)
    # Waits of their own would be a second set.
    merged = [[SimpleNamespace(launch=n, waits=()) for n in nodes] for nodes in {tuple(each) for each in sets.values()}]
    order = MergeOrder(index, (), merged=merged)
    check_order(order, brute, len(index))
    for _ in range(30):
        a, b = rng.randrange(len(index)), rng.randrange(len(index))
        assert order.may_merge(a, b) == brute.may_merge(a, b)


@RELAXED
@given(st.integers(0, 10**6))
def test_keeping_an_order_against_brute_force(seed):
    """Edges are added between merges; just those are refused that would make a cycle."""
    rng = random.Random(seed)
    index = indexed(seed)
    order, brute = MergeOrder(index, ()), BruteForce(index, ())
    refused = 0
    for _ in range(60):
        a, b = rng.randrange(len(index)), rng.randrange(len(index))
        if rng.random() < 0.3 and brute.may_merge(a, b):
            order.merge(a, b)
            brute.merge(a, b)
        else:
            wanted = brute.part[a] != brute.part[b] and brute.part[a] not in brute.after(b)
            assert order.keep(a, b) == wanted, (a, b)
            brute.edges += [(a, b)] if wanted else []
            refused += not wanted
        check_order(order, brute, len(index))
    assert refused, "no order of 60 pairs was refused"


@RELAXED
@given(st.integers(0, 10**6))
def test_asking_changes_nothing(seed):
    index = indexed(seed)
    order = MergeOrder(index, ())
    before = list(order._at)
    rng = random.Random(seed)
    for _ in range(50):
        order.may_merge(rng.randrange(len(index)), rng.randrange(len(index)))
    assert order._at == before


def test_without_further_edges_the_order_is_the_graphs_own():
    index = build_index(random_program(4))
    assert MergeOrder(index, ())._at == list(range(len(index)))


def chain():
    """Two collectives and two products that could hide them: a, b, x, y, wait a, wait b."""
    make = IndexMaker()
    source = make.input()
    a, b = make.launch(5, "g", source), make.launch(5, "g", source)
    x = make.op(5, source)
    y = make.op(5, x)
    make.wait(a)
    make.wait(b)
    return make.index(), a, b, x, y


def test_constraints_forbid_a_merge():
    """x before y: what hides the first, launched after x, cannot be launched before it."""
    index, a, b, x, y = chain()
    assert MergeOrder(index, ()).may_merge(a, b)
    assert MergeOrder(index, [(a, x), (b, x)]).may_merge(a, b)
    assert not MergeOrder(index, [(a, x), (x, b)]).may_merge(a, b)
    assert not MergeOrder(index, [(a, x), (y, b)]).may_merge(b, a), "through the graph's own edge"


@dataclass(frozen=True)
class Pair:
    """The nodes of a collective."""

    launch: int
    waits: tuple[int, ...]


def test_both_ends_of_collectives():
    """Neither launches that wait for each other nor waits that do; merging one pair tells on the next."""
    make = IndexMaker()
    source = make.input()
    a, b = make.launch(5, "g", source), make.launch(5, "g", source)
    wait_a = make.wait(a)
    c = make.launch(5, "g", wait_a)
    wait_b, wait_c = make.wait(b), make.wait(c)
    d = make.launch(5, "g", source)
    wait_d = make.wait(d, after=(wait_b,))
    index = make.index()
    one, two, three, four = Pair(a, (wait_a,)), Pair(b, (wait_b,)), Pair(c, (wait_c,)), Pair(d, (wait_d,))
    order = MergeOrder(index, ())
    assert order.may_merge_both(one, two)
    assert not order.may_merge_both(one, three), "launch c needs wait a"
    assert not order.may_merge_both(two, four), "the launches could be merged, the waits are ordered"
    assert order.may_merge(b, d)
    order.merge_all((two, three))
    assert not order.may_merge_both(one, two), "through c now"
    assert order.may_merge(a, d)
    assert not order.may_merge_both(one, four), "wait d comes after what is b and c"


def test_the_quotient_of_the_walk_counts_the_order_of_a_queue_too():
    """b1 and b2 may merge by their data. But a1 waits for b1, and b2 for a2, which stands behind a1 in its queue."""
    make = IndexMaker()
    source = make.input()
    b1 = make.launch(5, "b", source)
    a1 = make.launch(5, "a", make.wait(b1))
    a2 = make.launch(5, "a", source)
    b2 = make.launch(5, "b", make.wait(a2))
    index = make.index()
    assert MergeOrder(index, ()).may_merge(b1, b2)
    quotient, keys = Quotient(2), {a1: 0, a2: 0, b1: 1, b2: 1}
    for node in range(b2):
        label = quotient.add_up_to(index, node)
        if node in keys:
            quotient.open_bucket(keys[node])
            quotient.join(keys[node], label)
    assert quotient.would_wait_for_itself(quotient.add_up_to(index, b2), keys[b2])


@RELAXED
@given(st.integers(0, 10**6))
def test_numbers_of_meetings_tell_which_launches_a_node_descends_from(seed):
    index = indexed(seed)
    own, before = index.meetings
    launch_of = {own[launch]: launch for launch in index.launches}
    assert len(launch_of) == len(index.launches)
    assert 0 not in launch_of
    assert all(max(earlier, default=-1) < number for number, earlier in enumerate(before))
    preds = [index.preds(node) for node in range(len(index))]
    for node in range(len(index)):
        told = {launch_of[number] for number in closure(before, [own[node]]) if number in launch_of}
        assert told == {n for n in closure(preds, [node]) if n in index.launches}


@RELAXED
@given(st.integers(1, 20), st.randoms(use_true_random=False), st.sampled_from((0.02, 0.1, 0.3)), st.booleans())
def test_of_items_that_may_come_next_the_first_by_rank_does(count, rng, share, cyclic):
    place = rng.sample(range(count), count)
    needs = [
        [b for b in range(count) if (cyclic or place[b] < place[a]) and rng.random() < share] for a in range(count)
    ]
    by_rank = rng.sample(range(count), count)
    plain: list[int] = []
    while free := [a for a in by_rank if a not in plain and all(b in plain for b in needs[a])]:
        plain.append(free[0])
    assert topological(by_rank, needs) == plain
    assert cyclic or len(plain) == count


def test_a_node_is_not_merged_with_itself():
    index, a, b, *_ = chain()
    order = MergeOrder(index, ())
    assert not order.may_merge(a, a)
    order.merge(a, b)
    assert not order.may_merge(a, b)


@pytest.mark.parametrize(
    ("edges", "text"),
    [
        ([("y", "x")], "'n3' before 'n4' before 'n3'"),
        ([("x", "x")], "'n3' before 'n3'"),
        ([("wait", "x"), ("x", "a")], "'n1' before 'n5' before 'n3' before 'n1'"),
        ([("wait", "a"), ("y", "x")], "'n1' before 'n5' before 'n1'; 'n3' before 'n4' before 'n3'"),
        ([("y", "x"), ("x", "x")], "'n3' before 'n4' before 'n3'; 'n3' before 'n3'"),
        ([("wait", "x"), ("x", "a"), ("y", "a")], "'n1' before 'n5' before 'n3' before 'n1'; before 'n4' before 'n1'"),
    ],
)
def test_contradictory_edges_are_all_named(edges, text):
    index, a, _, x, y = chain()
    nodes = {"a": a, "x": x, "y": y, "wait": 5}
    with pytest.raises(OptionError) as caught:
        MergeOrder(index, [(nodes[first], nodes[then]) for first, then in edges], "h.yaml")
    found = str(caught.value)
    assert found.startswith("h.yaml: what is to hide what contradicts the graph: ")
    for part in text.split("; "):
        assert part in found, found


@RELAXED
@given(st.integers(0, 10**6))
def test_edges_against_the_order_are_refused_just_where_they_make_a_cycle(seed):
    rng = random.Random(seed)
    index = indexed(seed)
    edges = [tuple(rng.sample(range(len(index)), 2)) for _ in range(rng.randrange(1, 6))]
    brute = BruteForce(index, edges)
    cyclic = [n for n in range(len(index)) if brute.part[n] in brute.after(n)]
    if not cyclic:
        check_order(MergeOrder(index, edges), brute, len(index))
        return
    with pytest.raises(OptionError) as caught:
        MergeOrder(index, edges)
    named = set(re.findall(r"'(.*?)'", str(caught.value))) - {"bucket"}
    assert named <= {index.names[n] for n in cyclic}, "only nodes on a cycle"


@RELAXED
@given(st.integers(0, 10**6))
def test_every_edge_on_a_cycle_is_named(seed):
    """Cycles that share nodes too: each named cycle is one, and each edge that is on any is on a named one."""
    rng = random.Random(seed)
    index = indexed(seed)
    edges = [tuple(rng.sample(range(len(index)), 2)) for _ in range(rng.randrange(1, 6))]
    brute = BruteForce(index, edges)
    cyclic = {(a, b) for a, b in edges if brute.part[a] in brute.after(b)}
    if not cyclic:
        return
    with pytest.raises(OptionError) as caught:
        MergeOrder(index, edges)
    parts = str(caught.value).split("graph: ")[1].split("; ")
    cycles = [[index.position[name] for name in re.findall(r"'(.*?)'", part)] for part in parts]
    known = {*brute.edges}
    named = {pair for cycle, part in zip(cycles, parts, strict=True) if "..." not in part for pair in pairwise(cycle)}
    assert named <= known
    assert all(cycle[0] == cycle[-1] for cycle in cycles)
    if not any("..." in part for part in parts):
        assert cyclic <= named


def test_long_cycles_and_many_are_cut_short():
    make = IndexMaker()
    node = source = make.input()
    for _ in range(20):
        node = make.op(1, node)
    pairs = [(make.op(1, source), make.op(1, source)) for _ in range(24)]
    edges = [(node, source), *pairs, *(pair[::-1] for pair in pairs)]
    with pytest.raises(OptionError) as caught:
        MergeOrder(make.index(), edges)
    assert "'n0' before 'n1' before 'n2' before 'n3' before ... before" in str(caught.value)
    assert " before ... before 'n19' before 'n20' before 'n0'; " in str(caught.value)
    assert str(caught.value).endswith("; and 10 more before each other")
