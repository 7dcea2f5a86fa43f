"""Strategy overlap: what it weighs before it merges, and how it keeps what holds in a simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.apply import apply_plan
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.bucket import Bucket
from commcc.passes.options import parse_pipeline
from commcc.passes.strategies import overlap
from commcc.passes.strategies.results import bucket_of
from commcc.plan import Merging
from commcc.planning.bucket_model import BucketModel, Form, Member, key_of
from commcc.planning.eligibility import eligible, select_groups
from commcc.planning.headroom import Headroom
from commcc.planning.merge_cost import MergeCost, Relief
from commcc.run.pipeline import run
from commcc.schedule.merged import merge
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator, Span, Timeline
from tests.effort import examples
from tests.random_graphs import random_program

RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
MODELS = ("h100,fused=no", "a100,fused=no,slowdown=1.4,share_link=all", "cpu,fused=no,launch_us=1")


@cache
def sample(name):
    return load(next(SAMPLES.glob(f"{name}.fx.txt*")))


def candidates(index):
    ident = identify(index)
    return eligible(index, ident, select_groups(ident, "all"))[0]


def neighbours(index):
    """Pairs of candidates of one key that follow each other."""
    by_key = {}
    for each in candidates(index):
        by_key.setdefault(key_of(each, False), []).append(each)
    return [pair for own in by_key.values() for pair in pairwise(own)]


def one_bucket(index, members, *, coalesced=False):
    """One bucket and nothing else."""
    return Merging((bucket_of(index, members, "", param_order=False, form=Form(coalesced)),))


def compute_ns(index, costs):
    return Simulator(index, costs).run().compute_ns


# Copies


@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_bw", "tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_fw"])
@pytest.mark.parametrize("multi_dtype", [False, True])
def test_copies_are_those_of_the_merged_graph(name, multi_dtype):
    """Neighbours of one key, two to five at a time: the compute stream takes just as much longer."""
    index, model = build_index(sample(name)), load_model("h100,fused=no")
    costs = model.price(index)
    cost, before = MergeCost(index, model, costs), compute_ns(index, costs)
    by_key = {}
    for each in candidates(index):
        by_key.setdefault(key_of(each, multi_dtype), []).append(each)
    checked = 0
    for own in by_key.values():
        for count in range(2, min(6, len(own) + 1)):
            merged, new_costs = merge(index, model, one_bucket(index, own[:count]))
            assert cost.copies(cost.bucket(own[:count])) == compute_ns(merged, new_costs) - before
            launch = next(n for n, name in enumerate(merged.names) if name.endswith("_bucket_0"))
            assert cost.transfer(own[:count]) == new_costs.ns[launch]
            checked += 1
    assert checked > 3


def test_latency_is_what_one_transfer_is_shorter():
    index, model = build_index(sample("tiny_llama_fsdp4_bw")), load_model("h100")
    costs = model.price(index)
    cost, members = MergeCost(index, model, costs), candidates(index)[:3]
    assert cost.latency(members) == sum(costs.ns[c.launch] for c in members) - cost.transfer(members) > 0
    assert cost.latency(members[:1]) == cost.launches(members[:1]) == 0
    assert cost.launches(members) == 2 * costs.launch_ns


# Relief


@dataclass(frozen=True)
class Launched:
    launch: int


def timeline(spans, exposed):
    """spans: lane, start and end by launch."""
    made = {launch: Span(lane, start, start, end) for launch, (lane, start, end) in spans.items()}
    return Timeline((), (), (), made, exposed, {}, 0, 0, 0, 0, ())


def test_relief_is_what_is_exposed_behind_without_a_pause():
    """1, 2 and 3 follow each other in one lane, 4 after a pause, 5 in another lane."""
    spans = {1: ("a", 0, 10), 2: ("a", 10, 30), 3: ("a", 30, 40), 4: ("a", 41, 50), 5: ("b", 5, 45)}
    relief = Relief(timeline(spans, {1: 2, 3: 5, 4: 7, 5: 11}))

    def most(*launches):
        return sum(relief.take([Launched(n) for n in launches], 10**9, {}).values())

    assert [most(n) for n in (1, 2, 3, 4, 5)] == [7, 5, 5, 7, 11]
    assert (most(2, 3), most(2, 4), most(1, 4, 5)) == (5, 12, 25)


def test_relief_is_given_out_once():
    relief = Relief(timeline({1: ("a", 0, 10), 2: ("a", 10, 30), 3: ("a", 30, 40)}, {3: 5}))
    first = relief.take([Launched(1)], 3, {})
    relief.settle(first, {})
    assert sum(first.values()) == 3
    assert sum(relief.take([Launched(2)], 9, {}).values()) == 2
    assert sum(relief.take([Launched(1)], 9, first).values()) == 5, "a bucket has what it took before"
    relief.settle({}, first)
    assert sum(relief.take([Launched(2)], 9, {}).values()) == 5


# Headroom


def merging(index, headroom, *launches, coalesced=False):
    """What changes in memory when these are in one bucket."""
    members = [Member.of(index, launch) for launch in launches]
    together = BucketModel.of(members, Form(coalesced))
    return headroom.changes([BucketModel.of([member]) for member in members], together)


def test_headroom_knows_the_peak():
    """With a budget of the peak, nothing fits that adds bytes there; without one, everything does."""
    index = build_index(sample("tiny_llama_fsdp4_bw"))
    peak = live_bytes(index).peak_bytes
    pairs = [(a.launch, b.launch) for a, b in neighbours(index)]
    tight, wide, none = (Headroom(index, budget) for budget in (peak, 10 * peak, None))
    fitting = [tight.fits(merging(index, tight, *pair)) for pair in pairs]
    assert True in fitting
    assert False in fitting
    assert all(room.fits(merging(index, room, *pair)) for room in (wide, none) for pair in pairs)


def test_headroom_that_is_taken_is_gone():
    """The same bucket does not fit for ever, however much memory there was."""
    index = build_index(sample("tiny_llama_fsdp4_fw"))
    a, b = candidates(index)[:2]
    room = Headroom(index, live_bytes(index).peak_bytes + 10 * (a.output_bytes + b.output_bytes))
    changes = merging(index, room, a.launch, b.launch)
    fitted = 0
    while room.fits(changes) and fitted < 1000:
        room.take(changes)
        fitted += 1
    assert 0 < fitted < 1000


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_bw", "tiny_llama_fsdp4_fw", "tiny_llama_hsdp_bw"])
@pytest.mark.parametrize("coalesced", [False, True])
def test_headroom_against_the_merged_graph(name, coalesced):
    """For neighbours: what it says of a budget is what the memory of the merged graph says, nearly always."""
    index, model = build_index(sample(name)), load_model("h100")
    peak = live_bytes(index).peak_bytes
    room, right = Headroom(index, peak), []
    for a, b in neighbours(index):
        merged, _ = merge(index, model, one_bucket(index, [a, b], coalesced=coalesced))
        fits = room.fits(merging(index, room, a.launch, b.launch, coalesced=coalesced))
        right.append(fits == (live_bytes(merged).peak_bytes <= peak))
    assert sum(right) >= 0.9 * len(right) > 0


# The whole


def bucketed(program, options, model):
    index = build_index(program)
    plan = options.plan(PlanContext(program, index, identify(index), model))
    return index, plan, build_index(apply_plan(program, index, plan)) if plan.rewrite.buckets else index


@RELAXED
@given(st.integers(0, 10**4), st.booleans(), st.sampled_from(MODELS))
def test_the_step_is_never_longer(seed, multi_dtype, text):
    model = load_model(text)
    program = run(random_program(seed, 6), parse_pipeline("reorder{memory_budget=none}"), model=model).program
    index, plan, after = bucketed(program, Bucket(strategy="overlap", multi_dtype=multi_dtype), model)
    before, now = (Simulator(each, model.price(each)).run().step_ns for each in (index, after))
    assert now <= before
    assert plan.report.to_json()["step_ms"] == {"before": before / 1e6, "merged": now / 1e6}


@pytest.mark.full
def test_a_large_graph_gets_buckets_that_pay():
    """Where all is hidden already, few merges are worth their copies; those that are not are told so."""
    model = load_model("h100")
    program = run(sample("llama3_8b_fsdp64_fw"), parse_pipeline("reorder"), model=model).program
    index = build_index(program)
    plan = Bucket(strategy="overlap").plan(PlanContext(program, index, identify(index), model))
    report = plan.report.to_json()
    assert report["step_ms"]["merged"] <= report["step_ms"]["before"]
    assert report["refused"]["copies"] > 100
    assert report["copies_ms"] <= report["latency_ms"] + len(index.launches) * 0.01
    reasons = {str(entry.reason) for entry in plan.left_out}
    assert "copies would take longer than merging saves" in reasons


def test_slow_copies_are_not_made():
    """On a device that copies slowly nothing is merged, and the reason is said."""
    program = sample("tiny_llama_fsdp2_tp2_bw")
    model = load_model("h100")
    slow = replace(model, device=replace(model.device, memory=replace(model.device.memory, gb_per_s=1e-4)))
    slow = replace(slow, sources=tuple(replace(s, device=slow.device) for s in model.sources))
    found = {}
    for name, each in (("fast", model), ("slow", slow)):
        found[name] = Bucket(strategy="overlap", memory_budget=None).plan(PlanContext.of(program, each))
    assert found["fast"].rewrite.buckets
    assert not found["slow"].rewrite.buckets
    assert found["slow"].report.to_json()["refused"]["copies"] > 0
    assert found["slow"].report.to_json()["copies_ms"] == 0


def test_a_list_of_caps_counts_buckets_of_a_key():
    model = load_model("h100")
    program = run(sample("tiny_llama_fsdp4_bw"), parse_pipeline("reorder{effort=1}"), model=model).program
    context = PlanContext.of(program, model)
    size = {c.launch: max(c.input_bytes, c.output_bytes) for c in context.ident.collectives}

    def plan(caps):
        options = Bucket(strategy="overlap", bucket_cap_mb=caps, memory_budget=None)
        return options.plan(context)

    assert plan((1e-9, 200.0)).rewrite.buckets != plan(200.0).rewrite.buckets
    assert not plan((1e-9,)).rewrite.buckets
    wide = plan((0.02, 1e-9))
    assert all(sum(size[m] for m in b.members) <= 0.02 * 2**20 for b in wide.rewrite.buckets)


# Trials


class Fake(overlap.Trial):
    """Trials of numbers: ``bad`` sets must not be kept together; named are those that are at fault alone."""

    def __init__(self, bad, named):
        self.bad, self.named, self.refused, self._left, self.judged = bad, named, [], overlap.TRIALS, []

    def _judge(self, buckets):
        self._left -= 1
        numbers = [b.members[0].launch for b in buckets]
        self.judged.append(numbers)
        broken = [each for each in self.bad if each <= set(numbers)]
        if not broken:
            return overlap._Verdict(None)
        fault = {at for at, n in enumerate(numbers) if frozenset({n}) in broken and n in self.named}
        return overlap._Verdict("broken", frozenset(fault))


@dataclass
class Numbered:
    members: list[Launched]

    @property
    def first(self):
        return self.members[0].launch


SETS = st.lists(st.frozensets(st.integers(0, 30), min_size=1, max_size=3), max_size=8)


@RELAXED
@given(st.integers(0, 30), SETS, st.frozensets(st.integers(0, 30)))
def test_what_is_kept_holds_and_the_rest_has_a_reason(count, bad, named):
    buckets = [Numbered([Launched(n)]) for n in range(count)]
    fake = Fake(bad, named)
    kept = fake.keep(buckets)
    numbers = [b.members[0].launch for b in kept]
    assert numbers == sorted(numbers)
    assert not any(each <= set(numbers) for each in bad)
    assert sorted(numbers + [b.members[0].launch for b, _ in fake.refused]) == list(range(count))
    assert len(fake.judged) <= overlap.TRIALS
    single = {n for each in bad if len(each) == 1 for n in each}
    if not any("not tried" in str(reason) for _, reason in fake.refused):
        together = {n for each in bad if len(each) > 1 for n in each}
        assert set(range(count)) - single - together <= set(numbers), "what nothing speaks against is kept"


def test_all_good_ones_take_one_trial():
    fake = Fake([], frozenset())
    assert len(fake.keep([Numbered([Launched(n)]) for n in range(30)])) == 30
    assert len(fake.judged) == 1


def test_those_at_fault_are_tried_once_more():
    """3 is at fault together with 7 only: it is kept, as long as 7 is not."""

    class Second(Fake):
        def _judge(self, buckets):
            self._left -= 1
            numbers = [b.members[0].launch for b in buckets]
            fault = {numbers.index(n) for n in (3, 7) if {3, 7} <= set(numbers)}
            self.judged.append(numbers)
            return overlap._Verdict("broken" if fault else None, frozenset(fault))

    second = Second([], frozenset())
    kept = [b.members[0].launch for b in second.keep([Numbered([Launched(n)]) for n in range(10)])]
    assert len(kept) == 9
    assert len(second.refused) == 1
