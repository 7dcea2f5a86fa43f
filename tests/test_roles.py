"""Roles of collectives on the way through buckets, and what a merged launch's record may say about them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.program import META_KEY, NodeRecord
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.random_graphs import GraphBuilder, getitem
from tests.virtual_ranks import VirtualRanks, random_inputs, same

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
NAMES = sorted(path.name.split(".")[0] for path in SAMPLES.glob("tiny_*.fx.txt*"))
#: Production graphs in which one reduction leads to another; made by ``make samples``, not kept in git.
LARGE = [name for name in ("llama3_8b_fsdp8_tp8_bw", "llama3_8b_hsdp_bw") if (SAMPLES / f"{name}.fx.txt.gz").exists()]
SETTINGS = (
    "bucket",
    "bucket{groups=all}",
    "bucket{groups=all,bucket_cap_mb=none,max_topo_span=none}",
    "tag,bucket{groups=all}",
    "tag,bucket",
    "bucket{strategy=module,include_all_reduce=true}",
    "bucket{strategy=auto}",
)


def sample(name):
    return load(next(SAMPLES.glob(f"{name}.fx.txt*")))


def identified(program):
    """Collectives by the name of their launch."""
    index = build_index(program)
    return {index.names[c.launch]: c for c in identify(index).collectives}


def tally(program):
    """Launches before merging and bytes sent, by group, kind and role."""
    launches: Counter[tuple[str, ...]] = Counter()
    sent: Counter[tuple[str, ...]] = Counter()
    for c in identified(program).values():
        launches[c.group, c.kind, c.role] += c.stands_for
        sent[c.group, c.kind, c.role] += c.input_bytes
    return launches, sent


def outputs_of(collectives):
    """How many outputs the evidence of reductions counts."""
    found = [c.evidence.split() for c in collectives if c.derived == "terminal"]
    return sum(int(words[1]) if words[2].startswith("outputs") else 1 for words in found)


@pytest.mark.parametrize("passes", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_roles_stay_when_collectives_are_merged(name, passes):
    before = sample(name)
    after = run(before, parse_pipeline(passes), model=load_model("h100")).program
    assert tally(after) == tally(before)
    old, new = identified(before), identified(after)
    assert outputs_of(new.values()) == outputs_of(old.values())
    # A launch that stayed as it was leads to the output that it led to.
    assert {n: new[n].anchor for n in old if n in new} == {n: c.anchor for n, c in old.items() if n in new}


@pytest.mark.parametrize("name", LARGE)
def test_roles_stay_in_graphs_of_production_size(name):
    before = sample(name)
    after = run(before, parse_pipeline("bucket{groups=all}")).program
    assert tally(after) == tally(before)
    assert outputs_of(identified(after).values()) == outputs_of(identified(before).values())


def test_buckets_of_all_reduces_count_for_fsdp_on_each_side_of_the_scatters():
    shard_first = run(sample("tiny_llama_fsdp2_tp2_bw"), parse_pipeline("bucket{groups=all}")).program
    replicate_first = run(sample("tiny_llama_hsdp_bw"), parse_pipeline("bucket{groups=all}")).program
    for program, ahead in ((shard_first, ""), (replicate_first, " ahead of")):
        merged = [c for c in identified(program).values() if c.kind == "all_reduce" and c.stands_for > 1]
        assert merged
        assert {str(c.role) for c in merged} == {"fsdp"}
        assert all(ahead in c.evidence and c.evidence.startswith("reduces ") for c in merged)


# Buckets in graphs that commcc did not make


def joined(*, rows=False, swapped=False, used=False, order="cat"):
    """Two reduce-scatters whose results are all-reduced in one launch.

    swapped: the outputs are returned the other way round. used: the second part also feeds compute.
    rows: two-dimensional results, joined side by side and flattened, so that the split takes them apart wrongly.
    """
    b = GraphBuilder()
    x = b.placeholder("x", (4, 4))
    grads = [b.call(aten.mm.default, x, x), b.call(aten.mm.default, b.call(aten.relu.default, x), x)]
    shards = [b.scatter(g, 2, "shard") for g in grads]
    parts = shards if rows else [b.call(aten.reshape.default, s, [-1]) for s in shards]
    whole = b.call(aten.stack.default, parts, 1) if order == "stack" else b.call(aten.cat.default, parts, int(rows))
    if rows or order == "stack":
        whole = b.call(aten.reshape.default, whole, [-1])
    reduced = b.reduce(whole, "replicas")
    split = b.call(aten.split_with_sizes.default, reduced, [8, 8])
    made = [b.call(aten.reshape.default, getitem(b, split, i), [2, 4]) for i in range(2)]
    extra = [b.call(aten.mm.default, made[1], x)] if used else []
    outputs = [None, *(reversed(made) if swapped else made), *extra]
    return b.program(outputs, {"shard": 2, "replicas": 2})


def told(program):
    return [(str(c.kind), str(c.role), c.evidence) for c in identified(program).values()]


@pytest.mark.parametrize("swapped", [False, True])
def test_each_part_is_followed_to_its_own_output(swapped):
    first, second = (2, 1) if swapped else (1, 2)
    assert told(joined(swapped=swapped)) == [
        ("reduce_scatter", "fsdp", f"reduces output {first} ahead of another reduction"),
        ("reduce_scatter", "fsdp", f"reduces output {second} ahead of another reduction"),
        ("all_reduce", "fsdp", "reduces 2 outputs in one launch, output 1 first"),
    ]


@pytest.mark.parametrize(("overwritten", "role"), [(True, "ddp"), (False, "tp")])
def test_a_gradient_is_copied_over_what_was_there(overwritten, role):
    """As compiled autograd has DDP's reductions: what a copy writes over says nothing, what it copies does."""
    b = GraphBuilder()
    x = b.placeholder("x", (4, 4))
    gradient = b.call(aten.mm.default, x, x)
    there = b.call(aten.mm.default, b.call(aten.relu.default, x), x)
    reduced = b.reduce(gradient, "replicas")
    copied = b.call(aten.copy.default, *((there, reduced) if overwritten else (reduced, there)))
    assert told(b.program([None, copied], {"replicas": 2}))[0][1] == role


@pytest.mark.parametrize(("kept", "role"), [(True, "ddp"), (False, "tp")])
def test_a_gradient_is_written_over_one_that_came_in(kept, role):
    """As compiled autograd accumulates them: nothing returns the sum. Memory of the graph's own is no gradient's."""
    b = GraphBuilder()
    x, before = b.placeholder("x", (4, 4)), b.placeholder("before", (4, 4))
    total = b.call(aten.add.Tensor, before, b.call(aten.mm.default, x, x))
    place = before if kept else b.call(aten.relu.default, x)
    b.call(aten.copy_.default, place, b.call(aten.copy.default, total, b.reduce(total, "replicas")))
    assert told(b.program([None], {"replicas": 2}))[0][1] == role


def test_a_part_that_compute_uses_says_nothing_about_the_other():
    kinds = told(joined(used=True))
    assert kinds[0] == ("reduce_scatter", "fsdp", "reduces output 1 ahead of another reduction")
    assert kinds[1][1:] == ("tp", "activation between compute")
    assert kinds[2][1:] == ("tp", "activation between compute")


@pytest.mark.parametrize("form", [{"rows": True}, {"order": "stack"}])
def test_parts_that_cannot_be_told_apart_are_followed_together(form):
    evidence = "leads, joined with others, only to outputs, output 1 first ahead of another reduction"
    assert [each[1:] for each in told(joined(**form))[:2]] == [("fsdp", evidence)] * 2
    assert told(joined(**form, used=True))[0][1] == "tp"


def test_flat_parts_in_front_of_a_reduce_scatter_cannot_be_told_apart():
    """A rank gets the first half of the first part and of nothing else; only rows for each rank keep parts apart."""
    b = GraphBuilder()
    x = b.placeholder("x", (4, 4))
    parts = [b.call(aten.reshape.default, b.reduce(b.call(aten.mm.default, x, x), "replicas"), [-1]) for _ in range(2)]
    scattered = b.scatter(b.call(aten.cat.default, parts), 2, "shard")
    split = b.call(aten.split_with_sizes.default, scattered, [8, 8])
    program = b.program([getitem(b, split, i) for i in range(2)], {"shard": 2, "replicas": 2})
    assert {c.evidence for c in identified(program).values() if c.kind == "all_reduce"} == {
        "leads, joined with others, only to outputs, output 0 first ahead of another reduction"
    }


def test_joined_values_that_are_not_reduced_are_no_gradients():
    b = GraphBuilder()
    x = b.placeholder("x", (4, 4))
    shards = [b.scatter(b.call(aten.mm.default, x, x), 2, "shard") for _ in range(2)]
    program = b.program([b.call(aten.cat.default, shards)], {"shard": 2})
    assert [c[1] for c in told(program)] == ["tp", "tp"]


# Records of merged launches


def recorded(kind, role, *, before=False, after=False, norm=True):
    """A merged launch whose ends tell nothing: its result meets another value on the way out."""
    b = GraphBuilder()
    x, y = b.placeholder("x", (4, 4)), b.placeholder("y", (4, 4))
    sent = b.call(aten.mm.default, x, y) if before else b.call(aten.mul.Tensor, x, y)
    made = {"all_gather": lambda: b.gather(sent, 2, "0"), "reduce_scatter": lambda: b.scatter(sent, 2, "0")}
    result = made.get(kind, lambda: b.reduce(sent, "0"))()
    launch = next(n for n in b.graph.nodes if kind in str(n.target))
    launch.meta[META_KEY] = NodeRecord(role, "two", ("a", "b"))
    result = b.call(aten.mul.Tensor, result, b.call(aten.sum.default, x)) if norm else result
    out = b.call(aten.mm.default, result, y) if after else result
    return identified(b.program([out], {"0": 2}))[launch.name]


@pytest.mark.parametrize(
    ("kind", "role"),
    [("all_gather", "fsdp"), ("reduce_scatter", "fsdp"), ("all_reduce", "fsdp"), ("all_reduce", "ddp")],
)
def test_a_record_counts_where_the_graph_tells_nothing(kind, role):
    found = recorded(kind, role, before=kind != "all_gather")
    assert (found.role, found.evidence) == (role, f"recorded as {role} when 2 collectives were merged")


@pytest.mark.parametrize(
    ("kind", "role", "where"),
    [
        ("all_gather", "fsdp", {"before": True}),
        ("reduce_scatter", "fsdp", {"before": True, "after": True}),
        ("all_reduce", "ddp", {"before": True, "after": True}),
        ("all_gather", "ddp", {}),
        ("reduce_scatter", "ddp", {"before": True}),
        ("all_reduce", "ep", {"before": True}),
        ("all_reduce", "nonsense", {"before": True}),
    ],
)
def test_a_record_that_the_graph_contradicts_is_not_believed(kind, role, where):
    assert not recorded(kind, role, **where).evidence.startswith("recorded")
    assert recorded(kind, role, **where).role not in ("fsdp", "ddp")


def test_what_the_ends_tell_goes_before_a_record():
    found = recorded("all_reduce", "fsdp", before=True, norm=False)
    assert (found.role, found.evidence) == ("ddp", "reduces output 0")


@pytest.mark.parametrize(("tags", "kept"), [(("fsdp", "fsdp"), "fsdp"), (("fsdp", "ddp"), None), ((None, None), None)])
def test_a_merged_launch_records_tags_that_agree(tags, kept):
    b = GraphBuilder()
    x = b.placeholder("x", (4, 4))
    made = [b.reduce(b.call(aten.mm.default, x, x), "0") for _ in tags]
    for wait, tag in zip(made, tags, strict=True):
        wait.args[0].meta[META_KEY] = NodeRecord(tag, "told")
    after = run(b.program(made, {"0": 2}), parse_pipeline("bucket{groups=all}")).program
    records = [n.meta[META_KEY] for n in after.graph.nodes if META_KEY in n.meta]
    assert [(r.role, len(r.merged_from)) for r in records] == [(kept, 2)]


def prepared(*, described=True, between=None, scale_shape=()):
    """Two weights that are scaled before they are gathered; the scales are no parameters."""
    b = GraphBuilder()
    x, outputs = b.placeholder("x", (4, 4)), []
    for number in range(2):
        weight, scale = b.placeholder(f"w{number}", (2, 4)), b.placeholder(f"s{number}", scale_shape)
        if described:
            weight.meta["desc"], scale.meta["desc"] = f"ParamAOTInput(target='w{number}')", "PlainAOTInput(idx=9)"
        scaled = b.call(aten.mul.Tensor, weight, between(b, scale) if between else scale)
        outputs.append(b.call(aten.mm.default, x, b.gather(b.call(aten.clamp.default, scaled, -4, 4), 2, "0")))
    return b.program(outputs, {"0": 2})


@pytest.mark.parametrize("passes", ["bucket", "bucket{strategy=overlap}", "bucket{form=coalesced}"])
def test_scaled_parameters_are_gathered_in_one_bucket(passes):
    program = prepared()
    found = list(identified(program).values())
    assert [(c.role, c.derived, c.evidence) for c in found] == [
        ("fsdp", "param", "gathers w0 with 1 other input"),
        ("fsdp", "param", "gathers w1 with 1 other input"),
    ]
    done = run(program, parse_pipeline(passes), model=load_model("h100"))
    assert done.verified == "proved"
    assert [(c.role, c.stands_for) for c in identified(done.program).values()] == [("fsdp", 2)]
    inputs = random_inputs(program.graph, 2)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(done.program.graph, inputs).run())


def summed(b, scale):
    """A scale that all ranks agree on."""
    return b.reduce(scale, "0", "max")


@pytest.mark.parametrize("case", [{"described": False}, {"between": summed, "scale_shape": (4,)}])
@pytest.mark.parametrize("strategy", ["greedy", "overlap", "auto"])
def test_gathers_that_are_no_candidates_say_why(case, strategy):
    done = run(prepared(**case), parse_pipeline(f"bucket{{groups=all,strategy={strategy}}}"), model=load_model("h100"))
    reason = "is made of several values, of which not all are known to be parameters"
    report = done.steps[0].plan.report.to_json()
    assert report["left_out"] == {f"all_gather: {reason}": 2}
    if strategy == "auto":
        assert report["remarks"] == ["no collective can be merged"]


def scaled(b, weight, *, reduction="max", dim=()):
    """A weight in shards, scaled by its largest element on all ranks, as for float8."""
    largest = b.reduce(b.call(aten.amax.default, b.call(aten.abs.default, weight), list(dim)), "0", reduction)
    inverse = b.call(aten.reciprocal.default, b.call(aten.clamp.default, largest, 1e-3))
    return b.call(aten.clamp.default, b.call(aten.mul.Tensor, weight, inverse), -1, 1)


def float8(*, described, **how):
    b = GraphBuilder()
    x, outputs = b.placeholder("x", (4, 4)), []
    for number in range(3):
        weight = b.placeholder(f"w{number}", (2, 4))
        if described:
            weight.meta["desc"] = f"ParamAOTInput(target='w{number}')"
        outputs.append(b.call(aten.mm.default, x, b.gather(scaled(b, weight, **how), 2, "0")))
    return b.program(outputs, {"0": 2})


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize(
    "passes", ["bucket", "bucket{strategy=overlap}", "bucket{form=coalesced}", "tag,bucket,reorder"]
)
def test_scales_are_reduced_in_one_bucket_and_what_they_scale_is_gathered_in_another(described, passes):
    program = float8(described=described)
    found = list(identified(program).values())
    assert [(c.kind, c.role, c.derived) for c in found] == 3 * [
        ("all_reduce", "fsdp", "scale"),
        ("all_gather", "fsdp", "param"),
    ]
    assert [c.evidence for c in found[:2]] == ["reduces a scale of w0", "gathers w0 through 8 ops"]
    done = run(program, parse_pipeline(passes), model=load_model("h100"))
    assert done.verified == "proved"
    merged = [(c.kind, c.role, c.stands_for) for c in identified(done.program).values()]
    assert sorted(merged) == [("all_gather", "fsdp", 3), ("all_reduce", "fsdp", 3)]
    inputs = random_inputs(program.graph, 2)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(done.program.graph, inputs).run())


@pytest.mark.parametrize("how", [{"reduction": "sum"}, {"dim": (0,)}])
def test_activations_of_one_input_are_no_parameters(how):
    """Where the graph does not say what its parameters are, and no largest element says it."""
    assert {(c.role, c.derived) for c in identified(float8(described=False, **how)).values()} == {("tp", None)}


@pytest.mark.parametrize(
    ("reduction", "written", "role", "derived"),
    [("avg", True, "fsdp", "terminal"), ("sum", True, "fsdp", "terminal"), ("sum", False, "tp", None)],
)
def test_gradients_that_are_clipped_and_update_parameters(reduction, written, role, derived):
    """A sum that is written over no input may be of activations."""
    b = GraphBuilder()
    x, weights = b.placeholder("x", (4, 4)), [b.placeholder(f"w{n}", (2, 4)) for n in range(3)]
    gradients = [b.scatter(b.call(aten.mm.default, x, x), 2, "0", reduction) for _ in weights]
    squares = [b.call(aten.sum.default, b.call(aten.mul.Tensor, g, g)) for g in gradients]
    norm = b.reduce(b.call(aten.sum.default, b.call(aten.stack.default, squares)), "0", "sum")
    factor = b.call(aten.clamp.default, b.call(aten.reciprocal.default, b.call(aten.sqrt.default, norm)), 0, 1)
    add = aten.add_.Tensor if written else aten.add.Tensor
    made = [
        b.call(add, weight, b.call(aten.mul.Tensor, gradient, factor))
        for weight, gradient in zip(weights, gradients, strict=True)
    ]
    program = b.program([norm] if written else [norm, *made], {"0": 2})
    found = [(c.role, c.derived) for c in identified(program).values() if c.kind == "reduce_scatter"]
    assert found == [(role, derived)] * 3
    done = run(program, parse_pipeline("bucket{groups=all}"))
    assert done.verified == "proved"
    left = [c.stands_for for c in identified(done.program).values() if c.kind == "reduce_scatter"]
    assert left == ([3] if derived else [1, 1, 1])


@pytest.mark.parametrize("moment", [False, True])
def test_parameters_that_are_updated_in_shards_and_gathered(moment):
    """One step of an optimizer in shards: gradients are scattered, shards updated, and whole parameters gathered."""
    b = GraphBuilder()
    x, weights = b.placeholder("x", (4, 4)), [b.placeholder(f"w{n}", (4, 4)) for n in range(3)]
    moments = [b.placeholder(f"m{n}", (2, 4)) for n in range(3)]
    shards = [b.placeholder(f"s{n}", (2, 4)) for n in range(3)]
    for weight, average, shard in zip(weights, moments, shards, strict=True):
        gradient = b.scatter(b.call(aten.mm.default, x, weight), 2, "0", "sum")
        step = b.call(aten.add_.Tensor, average, gradient) if moment else b.call(aten.mul.Tensor, gradient, 0.1)
        updated = b.call(aten.sub.Tensor, shard, step)
        b.call(aten.copy_.default, weight, b.gather(updated, 2, "0"))
    program = b.program([x], {"0": 2})
    found = Counter((c.kind, c.role, c.derived, c.at_end) for c in identified(program).values())
    updates = moment  # without a moment nothing of the size of a shard is written
    assert found["all_gather", "fsdp", "updated", False] == 3
    assert found["reduce_scatter", "fsdp" if updates else "tp", "terminal" if updates else None, True] == 3
    done = run(program, parse_pipeline("bucket{groups=all},reorder"), model=load_model("h100"))
    assert done.verified == "proved"
    merged = Counter((c.kind, c.role, c.stands_for) for c in identified(done.program).values())
    assert merged["all_gather", "fsdp", 3] == 1
    inputs = random_inputs(program.graph, 2)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(done.program.graph, inputs).run())


def test_what_is_computed_with_again_is_no_updated_parameter():
    b = GraphBuilder()
    x, w, shard = b.placeholder("x", (4, 4)), b.placeholder("w", (4, 4)), b.placeholder("s", (2, 4))
    gathered = b.gather(b.call(aten.add.Tensor, shard, b.scatter(b.call(aten.mm.default, x, w), 2, "0")), 2, "0")
    b.call(aten.copy_.default, w, gathered)
    program = b.program([b.call(aten.mm.default, x, gathered)], {"0": 2})
    assert {(c.role, c.derived) for c in identified(program).values()} == {("tp", None)}


def test_a_mean_of_what_is_multiplied_again_is_no_gradient():
    b = GraphBuilder()
    x = b.placeholder("x", (4, 4))
    mean = b.scatter(b.call(aten.mm.default, x, x), 2, "0", "avg")
    program = b.program([b.call(aten.mm.default, mean, x)], {"0": 2})
    assert [(c.role, c.derived) for c in identified(program).values()] == [("tp", None)]


def test_reductions_that_are_no_candidates_say_why():
    b = GraphBuilder()
    x, m = b.placeholder("x", (4, 4)), b.placeholder("m", (2, 4))
    reduced = [b.scatter(b.call(aten.mm.default, x, x), 2, "0") for _ in range(2)]
    done = run(b.program([b.call(aten.mul.Tensor, r, m) for r in reduced], {"0": 2}), parse_pipeline("bucket"))
    reason = "its result is put together with other values, and not only with gradients"
    assert done.steps[0].plan.report.to_json()["left_out"] == {f"reduce_scatter: {reason}": 2}


def updated(b, value, change, *, functional):
    """A graph input's new value, written in place, or still to be copied over it."""
    if not functional:
        return b.call(aten.add_.Tensor, value, change)
    return b.call(aten.add.Tensor, b.call(aten.mul.Tensor, value, 0.5), change)


def copied_back(b, inputs, values, outputs, *, functional):
    for given, value in zip(inputs, values, strict=True) if functional else ():
        b.call(aten.copy_.default, given, value)
    return b.program(outputs, {"0": 2})


def orthogonal_step(*, functional):
    """One step of an optimizer that multiplies matrices: gradients are summed, moments and parameters updated."""
    b, made, squares = GraphBuilder(), [], []
    x, inputs = b.placeholder("x", (4, 4)), [b.placeholder(f"w{n}", (4, 4)) for n in range(6)]
    weights, moments = inputs[::2], inputs[1::2]
    loss = b.call(aten.sum.default, b.call(aten.mm.default, x, weights[0]))
    reduced = [b.reduce(b.call(aten.mm.default, x, weight), "0", "sum") for weight in weights]
    for weight, moment, gradient in zip(weights, moments, reduced, strict=True):
        squares.append(b.call(aten.sum.default, b.call(aten.mul.Tensor, gradient, gradient)))
        average = updated(b, moment, gradient, functional=functional)
        step = b.call(aten.add.Tensor, gradient, average)
        step = b.call(aten.mm.default, step, b.call(aten.mm.default, b.call(aten.t.default, step), step))
        made += [updated(b, weight, step, functional=functional), average]
    norm = b.call(aten.sum.default, b.call(aten.stack.default, squares))
    return copied_back(b, inputs, made, [loss, norm], functional=functional)


def two_steps(*, functional):
    """Gradients in shards that update parameters, which are gathered and computed with again."""
    b = GraphBuilder()
    x, inputs = b.placeholder("x", (4, 4)), [b.placeholder(f"w{n}", (2, 4)) for n in range(3)]
    shards = inputs
    for _ in range(2):
        whole, loss = [b.gather(b.call(aten.mul.Tensor, shard, 1.0), 2, "0") for shard in shards], x
        for weight in whole:
            loss = b.call(aten.mm.default, loss, weight)
        scattered = [b.scatter(b.call(aten.mm.default, loss, weight), 2, "0", "sum") for weight in whole]
        shards = [updated(b, *pair, functional=functional) for pair in zip(shards, scattered, strict=True)]
    return copied_back(b, inputs, shards, [loss], functional=functional)


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize(("made", "role", "left"), [(orthogonal_step, "ddp", 1), (two_steps, "fsdp", 4)])
def test_gradients_that_update_what_is_computed_with(made, role, left, functional):
    program = made(functional=functional)
    found = list(identified(program).values())
    assert {c.role for c in found} == {role}
    later = [f"gathers new values of w{n} through 1 op" for n in range(3)] if made is two_steps else []
    assert [c.evidence for c in found if c.derived == "updated"] == later
    done = run(program, parse_pipeline("bucket{groups=all},reorder"), model=load_model("h100"))
    assert done.verified == "proved"
    merged = identified(done.program).values()
    assert (len(merged), {c.role for c in merged}) == (left, {role})
    inputs = random_inputs(program.graph, 2)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(done.program.graph, inputs).run())


@pytest.mark.parametrize("case", ["statistics", "cache", "through compute", "other input"])
def test_activations_that_update_inputs_are_no_gradients(case):
    b = GraphBuilder()
    x, kept, weight = (b.placeholder(name, (4, 4)) for name in ("x", "kept", "weight"))
    mean = b.reduce(b.call(aten.mm.default, x, x), "0", "avg")
    if case == "statistics":  # they are kept, and what the loss is made of is normed by them
        b.call(aten.add_.Tensor, kept, mean)
        outputs = [b.call(aten.mm.default, b.call(aten.sub.Tensor, x, mean), x)]
    elif case == "cache":
        outputs = [b.call(aten.mm.default, b.call(aten.copy_.default, kept, mean), x)]
    elif case == "through compute":
        b.call(aten.add_.Tensor, weight, b.call(aten.mm.default, mean, x))
        outputs = [x]
    else:  # what is written over an input is not made of its old value
        new = b.call(aten.add.Tensor, weight, mean)
        outputs = [b.call(aten.mm.default, new, x)]
        b.call(aten.copy_.default, kept, new)
    program = b.program(outputs, {"0": 2})
    assert [(c.role, c.derived) for c in identified(program).values()] == [("tp", None)]


def quantised(*, scales="01"):
    """Weights in shards as integers and scales of rows, which are gathered over the groups that are named, in turn."""
    b = GraphBuilder()
    x, outputs = b.placeholder("x", (4, 4)), []
    for number in range(3):
        weight = b.placeholder(f"w{number}", (2, 4))
        scale = b.call(aten.amax.default, b.call(aten.abs.default, weight), [-1], True)
        whole = b.call(aten._to_copy.default, b.call(aten.div.Tensor, weight, scale), dtype=torch.int8)
        for group in scales:
            scale = b.gather(scale, 2, group)
        for group in "01":
            whole = b.gather(whole, 2, group)
        product = b.call(aten.mm.default, b.call(aten._to_copy.default, whole, dtype=torch.float64), x)
        outputs.append(b.call(aten.mul.Tensor, product, scale) if scales == "01" else product)
    return b.program(outputs, {"0": 2, "1": 2})


def test_quantised_parameters_are_gathered_as_their_scales_are():
    program = quantised()
    found = identified(program).values()
    assert [(c.role, c.derived, c.dtype) for c in found] == 3 * [
        *2 * [("fsdp", "param", "float64")],
        *2 * [("fsdp", "param", "int8")],
    ]
    done = run(program, parse_pipeline("bucket{groups=all},reorder"), model=load_model("h100"))
    assert done.verified == "proved"
    assert sorted(c.stands_for for c in identified(done.program).values()) == 4 * [3]


@pytest.mark.parametrize("scales", ["", "1"])
def test_integers_of_one_input_whose_scales_are_not_gathered_are_no_parameters(scales):
    roles = [(c.role, c.group) for c in identified(quantised(scales=scales)).values() if c.dtype == "int8"]
    assert roles == 3 * [("other", "0"), ("fsdp" if scales else "other", "1")]
