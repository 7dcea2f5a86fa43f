"""Strategy overlap on random and sample graphs: the same bits, proved, and what was hidden still is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.apply import apply_plan
from commcc.base.errors import InputError, OptionError
from commcc.base.terms import MIB
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.bucket import Bucket
from commcc.passes.options import parse_pipeline, to_text
from commcc.planning.headroom import budget_bytes
from commcc.planning.hiding import hidden_by_order, read_hiding
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator
from commcc.verify import verify
from tests.effort import examples
from tests.random_graphs import random_program
from tests.virtual_ranks import VirtualRanks, random_inputs, same

RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
MODELS = ("h100", "a100,slowdown=1.4,share_link=all", "cpu,launch_us=1")
UNLIMITED = "reorder{memory_budget=none,max_in_flight_gb=none,max_compute_prefetch=none}"
OPTIONS = st.builds(
    Bucket,
    strategy=st.just("overlap"),
    bucket_cap_mb=st.sampled_from((200.0, None, 0.001)),
    max_topo_span=st.sampled_from((None, 1500, 20)),
    memory_budget=st.sampled_from(("own", "auto", None)),
    exposed_first=st.booleans(),
    multi_dtype=st.booleans(),
    param_order=st.booleans(),
)


@cache
def sample(name):
    return load(next(SAMPLES.glob(f"{name}.fx.txt*")))


@cache
def scheduled(seed, layers=6):
    """A random program in an order that hides what it can, and the model that says so."""
    model = load_model(MODELS[seed % len(MODELS)])
    program = random_program(seed, layers)
    return run(program, parse_pipeline(UNLIMITED), model=model).program, model


def bucketed(program, options, model):
    index = build_index(program)
    plan = options.plan(PlanContext(program, index, identify(index), model))
    return apply_plan(program, index, plan), plan, index


def simulated(index, model):
    costs = model.price(index)
    return costs, Simulator(index, costs).run()


def moves(index):
    """What goes where a collective of the bucketed sorts goes: casts that it sends, and the way from a parameter."""
    kinds = [c for c in identify(index).collectives if c.derived]
    casts = {n for c in kinds for n in index.launches[c.launch].inputs if n in index.casts}
    return casts.union(n for c in kinds for n in c.chain)


def between(index, after, hiding):
    """Asserts that what hid a collective stands between its launch and its wait, merged or not."""
    place = after.position
    stands_for = {name: node for node, names in after.merged_from.items() for name in names}
    moving, checked = moves(index), 0
    for launch, nodes in hiding.by_launch.items():
        name = index.names[launch]
        at = stands_for.get(name, place.get(name))
        wait = min(after.launches[at].waits)
        for node in set(nodes) - moving:
            assert at < place[index.names[node]] < wait, (name, index.names[node])
            checked += 1
    return checked


@RELAXED
@given(st.integers(0, 10**4), OPTIONS)
def test_the_program_stays_the_same(seed, options):
    program, model = scheduled(seed)
    after, plan, _ = bucketed(program, options, model)
    after.graph.lint()
    inputs = random_inputs(program.graph, 2, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(after.graph, inputs).run())
    verdict = verify(program, after)
    assert verdict.status == "proved", verdict.findings or verdict.unproved
    assert plan.report.members == sum(len(b.members) for b in plan.rewrite.buckets)


@RELAXED
@given(st.integers(0, 10**4), OPTIONS)
def test_what_hid_a_collective_still_stands_beside_it(seed, options):
    program, model = scheduled(seed)
    after, plan, index = bucketed(program, options, model)
    if plan.rewrite.buckets:
        between(index, build_index(after), hidden_by_order(index, simulated(index, model)[1]))


@RELAXED
@given(st.integers(0, 10**4), OPTIONS)
def test_what_was_hidden_is_not_exposed(seed, options):
    """Merged ones no longer than their members were; the others not, or communication is exposed for less in all."""
    program, model = scheduled(seed)
    after, plan, index = bucketed(program, options, model)
    if plan.rewrite.buckets:
        stays_hidden(index, plan, build_index(after), model)


def queues(index, left_out=frozenset()):
    """Names of launches, and of what they are waited for by, of each group in order; some launches left out."""
    found = {}
    for launch, facts in index.launches.items():
        if facts.waits and index.names[launch] not in left_out:
            found.setdefault(facts.group, []).append((launch, min(facts.waits)))
    return {
        group: ([index.names[n] for n, _ in pairs], [index.names[w] for w in sorted(wait for _, wait in pairs)])
        for group, pairs in found.items()
    }


@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_bw", "tiny_moe_fsdp4_ep2_bw"])
def test_what_is_not_merged_keeps_its_place_in_the_queue(name):
    model = load_model()
    program = run(sample(name), parse_pipeline("reorder{effort=1}"), model=model).program
    after, plan, index = bucketed(program, Bucket(strategy="overlap", memory_budget=None), model)
    assert plan.rewrite.buckets
    merged = frozenset(index.names[m] for b in plan.rewrite.buckets for m in b.members)
    new = build_index(after)
    assert queues(new, frozenset(new.names[n] for n in new.merged_from)) == queues(index, merged)


def stays_hidden(index, plan, after, model):
    _, before = simulated(index, model)
    new_costs, now = simulated(after, model)
    merged = {m for b in plan.rewrite.buckets for m in b.members}
    for node, names in after.merged_from.items():
        members = [index.position[name] for name in names]
        was = sum(before.exposed.get(m, 0) for m in members)
        assert now.exposed.get(node, 0) <= was + new_costs.ns[node] // 100, after.names[node]
    if now.exposed_ns > before.exposed_ns:
        by_launch = hidden_by_order(index, before).by_launch
        for launch in by_launch:
            if launch not in merged and not moves(index).issuperset(by_launch[launch]):
                node = after.position[index.names[launch]]
                assert now.exposed.get(node, 0) <= new_costs.ns[node] // 100, after.names[node]


@RELAXED
@given(st.integers(0, 10**4), OPTIONS)
def test_limits(seed, options):
    """Bytes of a bucket, nodes between its first member and any other, and the peak of memory."""
    program, model = scheduled(seed)
    after, plan, index = bucketed(program, options, model)
    found = {c.launch: c for c in identify(index).collectives}
    for bucket in plan.rewrite.buckets:
        held = sum(max(found[m].input_bytes, found[m].output_bytes) for m in bucket.members)
        assert options.bucket_cap_mb is None or held <= options.bucket_cap_mb * MIB
        if options.max_topo_span is not None:
            far = [abs(a - b) for a in bucket.members for b in bucket.members]
            assert max(far) <= 2 * options.max_topo_span
    if options.memory_budget is not None:
        peak = live_bytes(index).peak_bytes
        assert live_bytes(build_index(after)).peak_bytes <= (budget_bytes(options.memory_budget, peak) or 0)


@RELAXED
@given(st.integers(0, 10**4), OPTIONS)
def test_same_input_same_plan(seed, options):
    program, model = scheduled(seed)
    first, second = (bucketed(program, options, model) for _ in range(2))
    assert first[1] == second[1]
    assert [str(n) for n in first[0].graph.nodes] == [str(n) for n in second[0].graph.nodes]


SAMPLED = (
    "tiny_llama_fsdp2_fw",
    "tiny_llama_fsdp4_bw",
    "tiny_llama_fsdp2_tp2_bw",
    "tiny_llama_hsdp_bw",
    "tiny_llama_joint",
    "tiny_moe_fsdp4_ep2_bw",
)


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.sampled(1)
def test_samples(name):
    model = load_model("h100")
    result = run(sample(name), parse_pipeline("reorder,bucket{strategy=overlap,memory_budget=none}"), model=model)
    step = result.steps[-1]
    assert result.verified == "proved"
    assert step.report["hidden"] > 0
    if step.changed:
        index, after = step.before.index, step.after.index
        stays_hidden(index, step.plan, after, model)
        checked = between(index, after, hidden_by_order(index, simulated(index, model)[1]))
        assert checked >= step.report["hidden"]
    again = run(result.program, parse_pipeline("bucket{strategy=overlap,memory_budget=none}"), model=model)
    assert {n for b in again.steps[0].plan.rewrite.buckets for n in b.members}.isdisjoint(after_buckets(again))


def after_buckets(result):
    """Launches that are buckets already."""
    return set(result.first.index.merged_from)


@pytest.mark.full
def test_merges_happen():
    """Not only refusals: over the samples hidden collectives are merged, and some merges are refused."""
    members = refused = 0
    for name in SAMPLED:
        result = run(sample(name), parse_pipeline("reorder,bucket{strategy=overlap}"), model=load_model("h100"))
        report = result.steps[-1].report
        members += report["members"]
        refused += sum(report["refused"].values())
    assert members > 20
    assert refused > 100


@pytest.mark.parametrize("first", [True, False])
def test_exposed_ones_first_or_last(first):
    program, model = sample("tiny_llama_fsdp4_bw"), load_model("h100")
    options = Bucket(strategy="overlap", exposed_first=first)
    after, plan, _ = bucketed(run(program, parse_pipeline("reorder"), model=model).program, options, model)
    assert verify(program, after).status == "proved"
    assert to_text(options) == f"bucket{{strategy=overlap{'' if first else ',exposed_first=false'}}}"
    assert plan.pass_text == to_text(options)


# Files that say what hides what

WRONG = {
    "all_gather_into_tensr: [mm]": ["no collective 'all_gather_into_tensr'", "did you mean 'all_gather_into_tensor'"],
    "all_gather_into_tensor: [mmm]\nnothing: [mm]": ["no node 'mmm' in the graph", "no collective 'nothing'"],
    "mm: [mm_1]": ["no collective 'mm' in the graph"],
    "all_gather_into_tensor: [{a: b}]": ["must be a text"],
    "all_gather_into_tensor: {mm: 1}": ["must be a text"],
    "1: 2": ["no collective '1'"],
}
BAD = {
    "[1, 2]": "must be a mapping",
    "just words": "must be a mapping",
    "": "must be a mapping",
    "a: [b": "not YAML|anchors|tags|keys|control",
    "a: !!python/object/apply:os.system [true]": "not YAML|anchors|tags|keys|control",
    "? [a, b]\n: c": "a key must be a word",
    "a: &x [*x]": "not YAML|anchors|tags|keys|control",
    "\x00": "not YAML|anchors|tags|keys|control",
}


def hiding_file(tmp_path, text):
    path = tmp_path / "hiding.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("text", WRONG)
def test_names_that_are_not_there(tmp_path, text):
    index = build_index(sample("tiny_llama_fsdp2_fw"))
    path = hiding_file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_hiding(index, path)
    assert str(caught.value).startswith(path)
    for words in WRONG[text]:
        assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize("text", BAD)
def test_files_that_say_something_else(tmp_path, text):
    path = hiding_file(tmp_path, text)
    with pytest.raises(InputError, match=BAD[text]) as caught:
        read_hiding(build_index(sample("tiny_llama_fsdp2_fw")), path)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize("what", ["missing.yaml", "."])
def test_files_that_cannot_be_read(tmp_path, what):
    with pytest.raises(InputError, match=r"cannot be read|no such file"):
        read_hiding(build_index(sample("tiny_llama_fsdp2_fw")), str(tmp_path / what))


def test_a_file_decides(tmp_path):
    """Two gathers that a file lets different products hide cannot share a launch once one needs the other's."""
    program, model = sample("tiny_llama_fsdp2_fw"), load_model("h100")
    index = build_index(program)
    launches = [c.launch for c in identify(index).collectives if c.derived == "param"]
    products = [n for n, counts in enumerate(index.compute) if counts]
    first = launches[0]
    late = next(p for p in products if p > first)
    wait = index.launches[first].waits[0]
    text = f"{index.names[first]}: [{index.names[late]}]\n"
    if late > wait and wait in ancestors(index, late):
        with pytest.raises(OptionError, match="contradicts the graph") as caught:
            bucketed(program, Bucket(strategy="overlap", hiding=hiding_file(tmp_path, text)), model)
        assert f"'{index.names[late]}'" in str(caught.value)
        assert f"'{index.names[wait]}'" in str(caught.value)


def ancestors(index, node):
    found, stack = set(), [node]
    while stack:
        for pred in index.preds(stack.pop()):
            if pred not in found:
                found.add(pred)
                stack.append(pred)
    return found


def test_a_file_keeps_what_it_says(tmp_path):
    program, model = sample("tiny_llama_fsdp4_bw"), load_model("h100")
    done = run(program, parse_pipeline("reorder"), model=model)
    index = done.last.index
    found = hidden_by_order(index, simulated(index, model)[1])
    lines = [f"{index.names[n]}: [{', '.join(index.names[h] for h in by)}]" for n, by in found.by_launch.items()]
    path = hiding_file(tmp_path, "\n".join(lines))
    assert read_hiding(index, path) == found
    given = bucketed(done.program, Bucket(strategy="overlap", hiding=path), model)[1]
    own = bucketed(done.program, Bucket(strategy="overlap"), model)[1]
    assert given.rewrite == own.rewrite


def test_without_a_cost_model():
    context = PlanContext.of(sample("tiny_llama_fsdp2_fw"))
    with pytest.raises(OptionError, match="strategy overlap needs a cost model"):
        Bucket(strategy="overlap").plan(context)
