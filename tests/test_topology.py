"""Where groups sit, and which share a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commcc.graph.index.graph import GroupEntry
from commcc.timing.cost.topology import Placement, placement, streams


@pytest.mark.parametrize(
    ("size", "ranks", "expected"),
    [
        (8, tuple(range(8)), Placement(1, 8, 8)),
        (8, tuple(range(0, 64, 8)), Placement(8, 1, 1)),
        (16, tuple(range(16)), Placement(2, 8, 8)),
        (4, (6, 7, 8, 9), Placement(2, 2, 2)),
        (10, tuple(range(10)), Placement(2, 8, 2)),
        (3, (0, 9, 17), Placement(3, 1, 1)),
        (1, (5,), Placement(1, 1, 1)),
    ],
)
def test_known_ranks(size: int, ranks: tuple[int, ...], expected: Placement):
    assert placement(size, ranks, 8) == expected
    assert placement(size, tuple(reversed(ranks)), 8) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, Placement(1, 1, 1, True)),
        (7, Placement(1, 7, 7, True)),
        (8, Placement(1, 8, 8, True)),
        (9, Placement(2, 8, 1, True)),
        (64, Placement(8, 8, 8, True)),
    ],
)
def test_unknown_ranks_fill_node_after_node(size: int, expected: Placement):
    assert placement(size, None, 8) == expected


@pytest.mark.parametrize("ranks", [(0, 1), (0, 1, 2, 2), (0, 1, 2, 3, 4)])
def test_ranks_that_do_not_fit_the_size_count_as_unknown(ranks: tuple[int, ...]):
    assert placement(4, ranks, 2) == Placement(2, 2, 2, assumed=True)


@given(st.integers(1, 300), st.integers(1, 16))
def test_assumed_and_listed_blocks_agree(size: int, per_node: int):
    assumed, listed = placement(size, None, per_node), placement(size, tuple(range(size)), per_node)
    assert (assumed.nodes, assumed.per_node, assumed.least_per_node) == (
        listed.nodes,
        listed.per_node,
        listed.least_per_node,
    )
    assert assumed.crosses == (size > per_node) == listed.crosses


@given(st.sets(st.integers(0, 500), min_size=1, max_size=60), st.integers(1, 16))
def test_every_rank_is_somewhere(ranks: set[int], per_node: int):
    place = placement(len(ranks), tuple(ranks), per_node)
    assert place.nodes * place.least_per_node <= len(ranks) <= place.nodes * place.per_node
    assert place.least_per_node <= place.per_node <= per_node
    assert not place.assumed


GROUPS = {
    "0": GroupEntry("0", 64, None, "dp_shard"),
    "1": GroupEntry("1", 8, tuple(range(0, 64, 8)), "efsdp"),
    "9": GroupEntry("9", 8, tuple(range(8)), "tp"),
    "10": GroupEntry("10", 8, None, ""),
    "11": GroupEntry("11", None, None, ""),
    "12": GroupEntry("12", None, (0, 1), ""),
}


def test_streams():
    assert streams(GROUPS, 8, "none") == {name: name for name in GROUPS}
    assert set(streams(GROUPS, 8, "all").values()) == {"link"}
    assert streams(GROUPS, 8, "topology") == {
        "0": "network",
        "1": "network",
        "9": "node links",
        "10": "node links",
        "11": "network",
        "12": "node links",
    }
    assert streams(GROUPS, 4, "topology")["9"] == "network"
    assert streams({}, 8, "topology") == {}
