"""Properties of bucketing on random graphs: legal, idempotent, the same numbers, and verified."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from commcc.apply import apply_plan
from commcc.base.errors import InternalError
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.passes.base import PlanContext
from commcc.passes.bucket import Bucket
from commcc.verify import verify
from tests.corruptions import CORRUPTIONS
from tests.effort import examples
from tests.random_graphs import random_program, shuffled
from tests.virtual_ranks import VirtualRanks, random_inputs, same

RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))

OPTIONS = st.builds(
    Bucket,
    bucket_cap_mb=st.sampled_from([None, 0.0005, 0.001, 0.002, (0.0005, 0.002)]),
    max_topo_span=st.sampled_from([None, 10, 30, 1500]),
    max_consecutive=st.sampled_from([None, None, 2, 4]),
    groups=st.sampled_from(["all", "all", "primary", "0"]),
    multi_dtype=st.booleans(),
    param_order=st.booleans(),
    form=st.sampled_from(["copy", "coalesced"]),
)


def bucketed(program, options):
    index = build_index(program)
    plan = options.plan(PlanContext(program, index, identify(index)))
    return apply_plan(program, index, plan), plan, index


@RELAXED
@given(st.integers(0, 10_000), st.integers(2, 9), st.sampled_from([2, 4, 8]), OPTIONS)
def test_bucketing_keeps_the_program(seed, layers, world, options):
    program = random_program(seed, layers, world)
    if "0" not in build_index(program).groups:
        options = replace(options, groups="all")
    after, plan, index = bucketed(program, options)
    after.graph.lint()
    inputs = random_inputs(program.graph, world, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(after.graph, inputs).run())
    verdict = verify(program, after)
    assert verdict.status == "proved", verdict.findings or verdict.unproved
    for bucket in plan.rewrite.buckets:
        members = [identify(index).by_launch[m] for m in bucket.members]
        assert len({(c.kind, c.group, c.reduction) for c in members}) == 1
        cap = options.bucket_cap_mb if isinstance(options.bucket_cap_mb, float) else None
        if cap is not None:
            assert sum(max(c.input_bytes, c.output_bytes) for c in members) <= cap * (1 << 20)
        if options.max_topo_span is not None:
            assert max(bucket.members) - min(bucket.members) <= options.max_topo_span


@RELAXED
@given(st.integers(0, 10_000), OPTIONS)
@example(7235, Bucket(bucket_cap_mb=0.001, groups="all"))  # a queue that only buckets of the first run are in
def test_running_twice_changes_nothing(seed, options):
    """Under caps of bytes: the others count positions, and the first run's merges move launches."""
    program = random_program(seed, 6, 2)
    options = replace(options, max_topo_span=None, max_consecutive=None)
    if "0" not in build_index(program).groups:
        options = replace(options, groups="all")
    once, _, _ = bucketed(program, options)
    _, again, _ = bucketed(once, options)
    assert not again.rewrite.buckets


@RELAXED
@given(st.integers(0, 10_000))
def test_same_input_same_plan(seed):
    first = bucketed(random_program(seed, 6, 2), Bucket(groups="all"))
    second = bucketed(random_program(seed, 6, 2), Bucket(groups="all"))
    assert first[1] == second[1]
    assert [str(n) for n in first[0].graph.nodes] == [str(n) for n in second[0].graph.nodes]


@RELAXED
@given(st.integers(0, 10_000), st.integers(0, 100))
def test_any_order_that_the_index_allows_is_the_same_program(seed, order):
    program = random_program(2 * seed, 5, 2)
    other = shuffled(program, random.Random(order))
    inputs = random_inputs(program.graph, 2, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(other.graph, inputs).run())
    assert verify(program, other).status == "proved"


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
@pytest.mark.sampled(1)
def test_deliberate_corruptions_are_rejected(name):
    hits = 0
    for seed in range(30):
        program = random_program(seed, 6, 2)
        after = bucketed(program, Bucket(groups="all"))[0]
        rotten = CORRUPTIONS[name](after.graph)
        if rotten is None:
            continue
        hits += 1
        verdict = verify(program, replace(after, graph=rotten))
        assert verdict.status == "different", f"{name} on seed {seed} was accepted"
        assert verdict.findings
    assert hits >= 3, f"{name} never applied"


def test_a_stale_plan_is_refused():
    program = random_program(0, 6, 2)
    index = build_index(program)
    plan = Bucket(groups="all").plan(PlanContext(program, index, identify(index)))
    other = random_program(2, 6, 2)
    with pytest.raises(InternalError, match="another graph"):
        apply_plan(other, build_index(other), plan)
