"""Ranks whose launches were damaged: every damage is found, with the right first difference."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from commcc.lint.ranks import DifferenceKind, Status, agree
from commcc.lint.ranks.show import ranks_text, text
from commcc.serialization import load
from tests.agreement_damage import DAMAGES, Place
from tests.agreement_ranks import copied, programs

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
GRAPHS = (
    *("tiny_llama_fsdp2_bw", "tiny_llama_hsdp_bw", "tiny_llama_fsdp2_tp2_fw", "tiny_llama_fsdp2_tp2_bw"),
    *("tiny_llama_fsdp4_fw", "tiny_llama_ddp_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_moe_fsdp4_ep2_bw"),
)
KINDS = {"swapped_alike": DifferenceKind.MIXED, "other_splits": DifferenceKind.SPLITS}


@lru_cache
def ranks_of(name: str):
    return programs(load(SAMPLES / f"{name}.fx.txt.gz"))


def damaged(name: str, damage: str, seed: int):
    """All ranks, the last one damaged; where, or None."""
    ranks = dict(ranks_of(name))
    last = max(ranks)
    ranks[last], graph = copied(ranks[last])
    place = DAMAGES[damage](graph, random.Random(seed))
    return ranks, last, place


def place_found(found, ranks, last) -> Place:
    """Group and place of the first difference, the group under the name that the damaged rank has for it."""
    label = found.first.group.removeprefix("the group of ").split(" (")[0]
    name = next(n for n, group in ranks[last].groups.items() if ranks_text(group.ranks) == label)
    return Place(name, found.first.at)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.sampled(1)
def test_damage_is_found_where_it_is(damage):
    tried = 0
    for name in GRAPHS:
        for seed in range(2):
            ranks, last, place = damaged(name, damage, seed)
            if place is None:
                continue
            tried += 1
            found = agree(ranks)
            assert found.status is Status.DISAGREE, (name, seed)
            assert found.first.kind is KINDS.get(damage, DifferenceKind.SEQUENCE), (name, seed, text(found))
            assert place_found(found, ranks, last) == place, (name, seed, text(found))
            assert last in found.first.ranks
    assert tried


@pytest.mark.full
def test_there_are_many():
    counts = Counter(
        damage
        for damage in DAMAGES
        for name in GRAPHS
        for seed in range(2)
        if damaged(name, damage, seed)[2] is not None
    )
    assert sum(counts.values()) >= 80, counts
    assert min(counts.values()) >= 2, counts


@pytest.mark.parametrize("name", GRAPHS)
def test_undamaged_ranks_do_not_disagree(name):
    ranks = ranks_of(name)
    last = max(ranks)
    found = agree({**ranks, last: copied(ranks[last])[0]})
    assert found.status is not Status.DISAGREE, text(found)
