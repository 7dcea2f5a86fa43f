"""Circles of launches: what blocks for certain, and what where launches run in order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.lint.ranks import DifferenceKind, Status, agree_on
from commcc.lint.ranks.groups import resolve
from commcc.lint.ranks.order import circle, colour
from commcc.lint.ranks.sequences import Sequences
from commcc.lint.ranks.show import text
from tests.agreement_ranks import instance, stands_still, traces
from tests.effort import examples

BOTH = {"a": (0, 1), "b": (0, 1)}


def kind_of(ranks):
    found = agree_on(ranks)
    return found.first.kind if found.first else None


def test_one_order_agrees():
    assert agree_on(traces({0: "a b ~a ~b", 1: "a ~a b ~b"}, BOTH)).status is Status.AGREE


def test_opposite_launches_are_a_hazard():
    found = agree_on(traces({0: "a b ~a ~b", 1: "b a ~a ~b"}, BOTH))
    assert found.status is Status.DISAGREE
    assert found.first.kind is DifferenceKind.HAZARD
    assert found.first.ranks == (0, 1)
    told = text(found)
    assert "rank 0 launches 'a_0' (all_reduce on group 'a') before it launches 'b_0'" in told
    assert "rank 1 launches 'b_0' (all_reduce on group 'b') before it launches 'a_0'" in told
    assert [around.rank for around in found.first.around] == [0, 1]
    assert all(any(marked for marked, _ in around.lines) for around in found.first.around)


def test_waiting_in_a_circle_is_a_deadlock():
    found = agree_on(traces({0: "a ~a b ~b", 1: "b ~b a ~a"}, BOTH))
    assert found.first.kind is DifferenceKind.DEADLOCK
    assert "rank 0 waits for 'a_0'" in text(found)


def test_groups_that_share_one_rank_do_not_matter():
    groups = {"a": (0, 1), "b": (1, 2)}
    ranks = traces({0: "a ~a", 1: "b a ~a ~b", 2: "b ~b"}, groups)
    assert agree_on(ranks).status is Status.AGREE


def test_three_groups_in_a_ring():
    """No two of them share two ranks, and yet nobody can go on."""
    groups = {"a": (0, 2), "b": (0, 1), "c": (1, 2)}
    found = agree_on(traces({0: "a ~a b ~b", 1: "b ~b c ~c", 2: "c ~c a ~a"}, groups))
    assert found.first.kind is DifferenceKind.DEADLOCK
    assert found.first.ranks == (0, 1, 2)
    assert kind_of(traces({0: "a b ~a ~b", 1: "b c ~b ~c", 2: "c a ~a ~c"}, groups)) is DifferenceKind.HAZARD


def test_a_ring_of_ranks_that_look_alike():
    """Every rank first waits for its neighbour on the left: one colour of ranks and one of groups."""
    size = 6
    ranks = {}
    for rank in range(size):
        left, right = ((rank - 1) % size, rank), (rank, (rank + 1) % size)
        ranks |= traces({rank: "l ~l r ~r"}, {"l": left, "r": right})
    ranks = {rank: with_sorted_groups(trace) for rank, trace in ranks.items()}
    found = agree_on(ranks)
    assert found.first.kind is DifferenceKind.DEADLOCK
    assert found.first.ranks == tuple(range(size))


def with_sorted_groups(trace):
    groups = {name: replace(group, ranks=tuple(sorted(group.ranks))) for name, group in trace.groups.items()}
    return replace(trace, groups=groups)


def test_opposite_orders_far_apart_name_only_the_two_launches():
    between = "x ~x " * 20
    groups = {**BOTH, "x": (0, 1)}
    found = agree_on(traces({0: f"a {between} b ~a ~b", 1: f"b {between} a ~a ~b"}, groups))
    assert found.first.kind is DifferenceKind.HAZARD
    assert "'x_" not in found.first.what
    assert [len(around.lines) for around in found.first.around] == [9, 9]


def test_sequences_are_looked_at_first():
    found = agree_on(traces({0: "a b ~a ~b", 1: "b ~b"}, BOTH))
    assert found.first.kind is DifferenceKind.SEQUENCE


@st.composite
def worlds(draw):
    """Up to 4 ranks, groups among them, and a legal program for each rank with the same launches on every group."""
    size = draw(st.integers(2, 4))
    members = st.sets(st.integers(0, size - 1), min_size=2, max_size=size).map(lambda ranks: tuple(sorted(ranks)))
    groups = dict(zip("abcd", draw(st.lists(members, min_size=1, max_size=4)), strict=False))
    counts = {name: draw(st.integers(1, 2)) for name in groups}
    steps = {}
    for rank in range(size):
        own = [name for name, ranks in groups.items() if rank in ranks for _ in range(counts[name])]
        order = draw(st.permutations(own))
        words = []
        open_waits = []
        for name in order:
            words.append(name)
            open_waits.append(f"~{name}")
            while open_waits and draw(st.booleans()):
                words.append(open_waits.pop(0))
        steps[rank] = " ".join(words + open_waits)
    return traces(steps, groups)


@settings(max_examples=examples(250), deadline=None)
@given(worlds())
def test_against_running_it(ranks):
    """A deadlock is found exactly where running stands still, a hazard exactly where it does so in order."""
    certain, in_order = (stands_still(ranks, in_order=flag) for flag in (False, True))
    expected = DifferenceKind.DEADLOCK if certain else DifferenceKind.HAZARD if in_order else None
    assert kind_of(ranks) is expected
    assert is_circle(ranks, certain=True) is certain
    assert is_circle(ranks, certain=False) is in_order


def is_circle(ranks, *, certain):
    """Whether there is a circle, in which every rank does make the second launch after the first, or its wait."""
    known = resolve(ranks)
    hops = circle(colour(ranks, known, Sequences(ranks)), ranks, certain=certain)
    for hop, following in zip(hops, [*hops[1:], *hops[:1]], strict=True):
        steps = ranks[hop.rank].steps
        assert steps.index(~hop.first if certain else hop.first) < steps.index(hop.second)
        assert instance(ranks[hop.rank], hop.second) == instance(ranks[following.rank], following.first)
    return bool(hops)


@settings(max_examples=examples(60), deadline=None)
@given(worlds(), st.integers(2, 3))
def test_copies_of_a_world_are_one_colour(ranks, copies):
    """The same ranks several times over, side by side: the same answer, on ranks of one of the copies."""
    size = len(ranks)
    many = {}
    for copy in range(copies):
        for rank, trace in ranks.items():
            moved = {
                name: replace(group, ranks=tuple(r + copy * size for r in group.ranks))
                for name, group in trace.groups.items()
            }
            many[rank + copy * size] = replace(trace, groups=moved)
    assert kind_of(many) is kind_of(ranks)
    found = agree_on(many).first
    assert found is None or len({rank // size for rank in found.ranks}) == 1


def as_dumped(ranks):
    """Every rank numbers its own groups, so that a name says nothing to other ranks."""
    made = {}
    for rank, trace in ranks.items():
        names = {name: str(place) for place, name in enumerate(sorted(trace.groups))}
        launches = tuple(replace(launch, group=names[launch.group]) for launch in trace.launches)
        groups = {names[name]: group for name, group in trace.groups.items()}
        made[rank] = replace(trace, launches=launches, groups=groups)
    return made


@settings(max_examples=examples(250), deadline=None)
@given(worlds())
def test_names_of_groups_do_not_matter(ranks):
    told = [group.ranks for trace in ranks.values() for group in trace.groups.values()]
    twins = {name: group.ranks for trace in ranks.values() for name, group in trace.groups.items()}
    if len(set(told)) == len(twins):  # groups of the same ranks could only be paired by name
        assert kind_of(as_dumped(ranks)) is kind_of(ranks)
