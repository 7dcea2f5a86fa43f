"""Gathers that repeat each other: which become one, and what the verifier accepts of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from commcc.apply import apply_plan
from commcc.base.errors import InternalError, OptionError
from commcc.cli.main import run as command
from commcc.graph.collectives import identify
from commcc.graph.copying import copy_node
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.dedup import GIB, Dedup
from commcc.passes.reorder import Reorder
from commcc.plan import Dead, Duplicate, Plan, Removal
from commcc.schedule import Problem, search
from commcc.serialization import load, save
from commcc.timing.cost import load_model
from commcc.verify import verify
from tests.effort import examples
from tests.random_graphs import GraphBuilder, random_program
from tests.virtual_ranks import VirtualRanks, random_inputs, same

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
RELAXED = settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))


def regathered(program, rng, share=1.0, writes=0.0):
    """The program with some parameters gathered again in front of a user of the gather, and perhaps written before."""
    index = build_index(program)
    again = {}  # by number of the user in front of which it is gathered again
    for c in identify(index).collectives:
        users = [u for w in c.waits for u in index.users[w] if index.ops[u] != "output"]
        if c.derived == "param" and len(c.waits) == 1 and users and rng.random() < share:
            again.setdefault(rng.choice(users), []).append(c)
    nodes, graph, env = list(program.graph.nodes), fx.Graph(), {}
    for number, node in enumerate(nodes):
        for c in again.get(number, ()):
            if rng.random() < writes:
                parameter = nodes[c.anchor]
                wrote = graph.create_node(
                    "call_function", aten.add_.Tensor, (env[parameter], 1), {}, f"wrote_{number}_{c.launch}"
                )
                wrote.meta = dict(parameter.meta)
            local = dict(env)
            for old in (*sorted(c.chain), c.launch, c.waits[0]):
                local[nodes[old]] = fx_copy(graph, nodes[old], local)
            env[nodes[c.waits[0]]] = local[nodes[c.waits[0]]]
        env[node] = copy_node(graph, node, env)
    return replace(program, graph=graph)


def fx_copy(graph, node, env):
    """A copy under a name of its own."""
    made = copy_node(graph, node, env)
    made.name = f"again_{len(graph.nodes)}_{node.name}"
    return made


def deduplicated(program, options=None):
    index = build_index(program)
    plan = (options or Dedup()).plan(PlanContext(program, index, identify(index)))
    return apply_plan(program, index, plan), plan


def gathers(program):
    return build_index(program).ops.count("_c10d_functional.all_gather_into_tensor")


@RELAXED
@given(st.integers(0, 10_000), st.sampled_from([2, 4]), st.sampled_from([0.0, 0.0, 0.3]))
def test_the_same_numbers_and_the_same_program(seed, world, writes):
    program = regathered(random_program(seed, 5, world), random.Random(seed), 0.7, writes)
    after, plan = deduplicated(program)
    after.graph.lint()
    inputs = random_inputs(program.graph, world, seed)
    assert same(VirtualRanks(program.graph, inputs).run(), VirtualRanks(after.graph, inputs).run())
    verdict = verify(program, after)
    assert verdict.status == "proved", verdict.findings or verdict.unproved
    assert len(after.graph.nodes) == len(program.graph.nodes) - plan.report.nodes_removed
    assert not deduplicated(after)[1].changes


@RELAXED
@given(st.integers(0, 10_000))
def test_everything_added_goes_again(seed):
    """Without writes a gather that was doubled is one again, down to the last cast."""
    program = random_program(seed, 5, 2)
    double = regathered(program, random.Random(seed))
    after, plan = deduplicated(double)
    left = {double_name for entry in plan.left_out for double_name in (str(entry.reason),)}
    assert all("returned" in reason or "written" in reason for reason in left)
    if not left:
        assert gathers(after) <= gathers(program)
        assert len(after.graph.nodes) <= len(program.graph.nodes)
        assert verify(program, after).status == "proved"


# Forced merges that no pass would plan: the verifier has to see what is wrong with them.


class Forced:
    """A graph with two gathers, and the plan that lets the first serve the second."""

    def __init__(self):
        self.b = GraphBuilder()
        self.p, self.q = self.b.placeholder("p", (4, 8)), self.b.placeholder("q", (4, 8))
        self.x = self.b.placeholder("x", (8, 8))

    def gather(self, source, size=2, group="0"):
        launch = self.b.call(c10d.all_gather_into_tensor.default, source, size, group)
        return launch, self.b.call(c10d.wait_tensor.default, launch)

    def mm(self, *operands):
        return self.b.call(aten.mm.default, *operands)

    def verdict(self, first, second, outputs):
        program = self.b.program(list(outputs), {"0": 2, "1": 2, "2": 2})
        index = build_index(program)
        at = {node.name: i for i, node in enumerate(program.graph.nodes)}
        keep, drop = at[first[0].name], at[second[0].name]
        waits = sorted((at[first[1].name], at[second[1].name]))
        plan = Plan("dedup", index.fingerprint, Removal((Duplicate(keep, (drop,), waits[0], (waits[1],), ""),)))
        context = PlanContext(program, index, identify(index))
        return Dedup().plan(context), verify(program, apply_plan(program, index, plan))


def plain(f):
    one, two = f.gather(f.p), f.gather(f.p)
    return one, two, [f.mm(f.x, one[1]), f.mm(one[1], two[1])]


def other_parameter(f):
    one, two = f.gather(f.p), f.gather(f.q)
    return one, two, [f.mm(f.x, one[1]), f.mm(one[1], two[1])]


def other_group(f):
    one, two = f.gather(f.p), f.gather(f.p, group="1")
    return one, two, [f.mm(one[1], two[1])]


def other_cast(f):
    casts = [f.b.call(aten._to_copy.default, f.p, dtype=d) for d in (torch.float32, torch.bfloat16)]
    half = [f.b.call(aten._to_copy.default, c, dtype=torch.float64) for c in casts]
    one, two = f.gather(half[0]), f.gather(half[1])
    return one, two, [f.mm(one[1], two[1])]


def written_between(f):
    one = f.gather(f.p)
    first = f.mm(f.x, one[1])
    f.b.call(aten.add_.Tensor, f.p, 1)
    two = f.gather(f.p)
    return one, two, [f.mm(first, two[1])]


def written_through_a_view(f):
    view = f.b.call(aten.view.default, f.p, [32])
    one = f.gather(f.p)
    f.b.call(aten.copy_.default, view, f.b.call(aten.view.default, f.q, [32]))
    two = f.gather(f.p)
    return one, two, [f.mm(one[1], two[1])]


def result_written(f):
    one, two = f.gather(f.p), f.gather(f.p)
    f.b.call(aten.add_.Tensor, two[1], 1)
    return one, two, [f.mm(one[1], two[1])]


def first_result_written(f):
    one = f.gather(f.p)
    f.b.call(aten.mul_.Tensor, one[1], 2)
    two = f.gather(f.p)
    return one, two, [f.mm(one[1], two[1])]


def both_returned(f):
    one, two = f.gather(f.p), f.gather(f.p)
    return one, two, [one[1], f.b.call(aten.view.default, two[1], [64])]


WRONG = [
    other_parameter,
    other_group,
    other_cast,
    written_between,
    written_through_a_view,
    result_written,
    first_result_written,
    both_returned,
]


@pytest.mark.parametrize("make", WRONG)
def test_what_must_not_be_merged(make):
    f = Forced()
    plan, verdict = f.verdict(*make(f))
    assert not plan.rewrite.duplicates
    assert verdict.status == "different", make.__name__


def test_the_same_form_without_the_mistake():
    f = Forced()
    plan, verdict = f.verdict(*plain(f))
    assert plan.rewrite.duplicates
    assert verdict.status == "proved"
    assert any(note.rule == "dropped" for note in verdict.notes)


def constant(f, value):
    node = f.b.graph.get_attr("weight")
    node.meta["val"] = value
    return node


@pytest.mark.parametrize("written", [False, True])
def test_gathers_of_a_constant(written):
    """Every use fetches the constant again; a write through one of them is seen by all."""
    f = Forced()
    one = f.gather(constant(f, f.p.meta["val"]))
    first = f.mm(f.x, one[1])
    if written:
        f.b.call(aten.add_.Tensor, constant(f, f.p.meta["val"]), 1)
    two = f.gather(constant(f, f.p.meta["val"]))
    plan, verdict = f.verdict(one, two, [f.mm(first, two[1])])
    assert bool(plan.rewrite.duplicates) == (not written)
    assert verdict.status == ("different" if written else "proved")


@pytest.mark.parametrize(("waits", "reason"), [(0, "has 0 waits"), (2, "has 2 waits")])
def test_other_numbers_of_waits(waits, reason):
    f = Forced()
    one = f.gather(f.p)
    launch = f.b.call(c10d.all_gather_into_tensor.default, f.p, 2, "0")
    results = [f.b.call(c10d.wait_tensor.default, launch) for _ in range(waits)]
    program = f.b.program([f.mm(f.x, one[1]), *(f.mm(f.x, result) for result in results)], {"0": 2})
    _, plan = deduplicated(program)
    assert not plan.rewrite.duplicates
    assert [str(entry.reason) for entry in plan.left_out] == [reason]


def test_other_spellings_are_left_alone():
    """The same arguments by keyword: equal in truth, but not found. No harm is done."""
    f = Forced()
    one = f.gather(f.p)
    launch = f.b.call(c10d.all_gather_into_tensor.default, f.p, group_size=2, group_name="0")
    two = launch, f.b.call(c10d.wait_tensor.default, launch)
    plan, verdict = f.verdict(one, two, [f.mm(one[1], two[1])])
    assert not plan.rewrite.duplicates
    assert verdict.status == "proved"


def test_apply_refuses_plans_that_break_the_graph():
    f = Forced()
    one, two, outputs = plain(f)
    program = f.b.program(outputs, {"0": 2})
    index = build_index(program)
    keep, first, drop, second = (index.position[n.name] for n in (*one, *two))
    removals = [
        Removal(dead=(Dead((first,), ""),)),
        Removal(dead=(Dead((0,), ""),)),
        Removal(dead=(Dead((len(index) - 1,), ""),)),
        Removal((Duplicate(drop, (keep,), first, (second,), ""),)),
    ]
    for wrong in removals:
        with pytest.raises(InternalError):
            apply_plan(program, index, Plan("dedup", index.fingerprint, wrong))


def sends(f, x):
    return f.b.call(torch.ops._c10d_functional_autograd.all_to_all_single.default, x, [4, 4], [4, 4], "1")


@pytest.mark.parametrize("place", ["between the gathers", "between their waits", "behind both"])
def test_nothing_is_shared_across_an_op_that_communicates_in_an_unknown_way(place):
    f = Forced()
    first, second = f.gather(f.p), None
    if place == "between the gathers":
        sends(f, f.x)
        second = f.gather(f.p)
    elif place == "between their waits":
        launch = f.b.call(c10d.all_gather_into_tensor.default, f.p, 2, "0")
        sends(f, f.x)
        second = (launch, f.b.call(c10d.wait_tensor.default, launch))
    else:
        second = f.gather(f.p)
        sends(f, f.x)
    program = f.b.program([f.mm(first[1], second[1])], {"0": 2, "1": 2})
    after, plan = deduplicated(program, Dedup())
    assert bool(plan.rewrite.duplicates) == (place == "behind both")
    if place != "behind both":
        assert str(plan.left_out[0].reason) == "stands behind 'all_to_all_single_default', across which nothing moves"
    assert verify(program, after).status == "proved"


# Memory


def far_apart(megabytes):
    """Two gathers of a large parameter, with a peak elsewhere between them."""
    f = Forced()
    rows = megabytes * (1 << 20) // 8 // 1024
    p = f.b.placeholder("large", (rows // 2, 1024))
    first = f.gather(p)
    a = f.b.call(aten.sum.default, first[1])
    big = f.b.call(aten.expand.default, a, [rows, 1024])
    c = f.b.call(aten.clone.default, big)
    s = f.b.call(aten.sum.default, c)
    second = f.gather(p)
    return f.b.program([s, f.b.call(aten.sum.default, second[1])], {"0": 2})


@pytest.mark.parametrize(
    ("megabytes", "budget", "merged"),
    [(8, "auto", True), (2048, "auto", False), (2048, None, True), (2048, 1.0, False), (2048, 64.0, True)],
)
def test_a_result_is_held_within_the_budget(megabytes, budget, merged):
    program = far_apart(megabytes)
    after, plan = deduplicated(program, Dedup(memory_budget=budget))
    assert bool(plan.rewrite.duplicates) == merged
    if not merged:
        assert "would pass the memory budget by" in str(plan.left_out[0].reason)
    before, now = (live_bytes(build_index(each)).peak_bytes for each in (program, after))
    assert (now > before) == merged
    if budget == "auto":
        assert now <= before + max(GIB, before // 20)


def test_what_is_held_counts_once():
    """Three gathers with a peak between each two: one copy fits under the budget, two would not."""
    f = Forced()
    p = f.b.placeholder("large", (1024, 1024))
    results = []
    for _ in range(3):
        results.append(f.b.call(aten.sum.default, f.gather(p)[1]))
        big = f.b.call(aten.clone.default, f.b.call(aten.expand.default, results[-1], [4096, 1024]))
        results.append(f.b.call(aten.sum.default, big))
    program = f.b.program(results, {"0": 2})
    gathered = 2048 * 1024 * 8
    peak = live_bytes(build_index(program)).peak_bytes
    after, plan = deduplicated(program, Dedup(memory_budget=(peak + gathered + 64) / GIB))
    assert [len(d.drop) for d in plan.rewrite.duplicates] == [2]
    assert live_bytes(build_index(after)).peak_bytes <= peak + gathered + 64
    _, refused = deduplicated(program, Dedup(memory_budget=(peak + gathered - 64) / GIB))
    assert not refused.changes


def test_what_is_held_for_one_is_there_for_the_next():
    """Two parameters, each gathered again behind one peak: the budget has room for one of them."""
    f = Forced()
    shards = [f.b.placeholder(name, (1024, 1024)) for name in ("first", "second")]
    results = [f.b.call(aten.sum.default, f.gather(p)[1]) for p in shards]
    big = f.b.call(aten.clone.default, f.b.call(aten.expand.default, results[0], [8192, 1024]))
    results += [f.b.call(aten.sum.default, big)]
    results += [f.b.call(aten.sum.default, f.gather(p)[1]) for p in shards]
    program = f.b.program(results, {"0": 2})
    budget = live_bytes(build_index(program)).peak_bytes + 2048 * 1024 * 8 + 64
    after, plan = deduplicated(program, Dedup(memory_budget=budget / GIB))
    assert len(plan.rewrite.duplicates) == len(plan.left_out) == 1
    assert live_bytes(build_index(after)).peak_bytes <= budget


def test_a_cast_that_others_use_stays():
    f = Forced()
    casts = [f.b.call(aten._to_copy.default, f.p, dtype=torch.bfloat16) for _ in range(2)]
    one, two = f.gather(casts[0]), f.gather(casts[1])
    program = f.b.program([f.mm(one[1], two[1]), casts[1]], {"0": 2})
    after, plan = deduplicated(program)
    assert plan.report.nodes_removed == 2
    assert verify(program, after).status == "proved"


@RELAXED
@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
def test_the_peak_is_within_the_budget(seed, share):
    """Judged by the memory of the result, which the pass only estimates."""
    program = regathered(random_program(seed, 7, 2), random.Random(seed), share)
    before = live_bytes(build_index(program)).peak_bytes
    after, _ = deduplicated(program, Dedup(memory_budget=0.0))
    assert live_bytes(build_index(after)).peak_bytes <= before


# Real graphs


@pytest.mark.parametrize(
    "name",
    ["tiny_llama_fsdp2_fw", "tiny_llama_fsdp4_bw", "tiny_moe_fsdp4_ep2_bw", "tiny_llama_joint", "tiny_llama_hsdp_fw"],
)
@pytest.mark.sampled(2)
def test_samples(name, tmp_path):
    ending = "" if name.endswith("fsdp2_fw") else ".gz"
    program = load(SAMPLES / f"{name}.fx.txt{ending}")
    assert not deduplicated(program)[1].changes
    double = regathered(program, random.Random(name))
    assert gathers(double) > gathers(program)
    after, plan = deduplicated(double)
    assert verify(double, after).status == "proved"
    assert verify(program, after).status == "proved"
    assert gathers(after) <= gathers(program)
    assert not plan.left_out
    save(after, tmp_path / "g.pt2")
    assert verify(double, load(tmp_path / "g.pt2")).status == "proved"


def test_the_command(tmp_path, capsys):
    program = regathered(load(SAMPLES / "tiny_llama_fsdp4_fw.fx.txt.gz"), random.Random(0))
    source, target = tmp_path / "in.fx.txt", tmp_path / "out.fx.txt"
    save(program, source)
    assert command(["dedup", str(source), "-o", str(target), "--json", "--max-topo-span", "none"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verified"] == "proved"
    report = document["passes"][0]["report"]
    assert report["gathers_removed"] > 0
    removed = document["before"]["collectives"]["all_gather"] - document["after"]["collectives"]["all_gather"]
    assert removed == report["gathers_removed"]


# Only where the schedule is shorter


def chunks(count, rows, between=0, *, updated=False):
    """A loss in chunks: each gathers the same weight of 512 MiB anew and multiplies so many rows by it.

    between: rows of a product that stands in front of every chunk and needs no weight. updated: what is gathered is a
    view of the weight, which is written behind all chunks.
    """
    b = GraphBuilder()
    p = b.placeholder("weight", (4096, 8192), torch.bfloat16)
    x = b.placeholder("x", (max(rows, 1), 32768), torch.bfloat16)
    y = b.placeholder("y", (max(between, 1), 8192), torch.bfloat16)
    z = b.placeholder("z", (8192, 8192), torch.bfloat16)
    outputs = []
    for _ in range(count):
        if between:
            outputs.append(b.call(aten.mm.default, y, z))
        sent = b.call(aten.view.default, p, [4096, 8192]) if updated else p
        gathered = b.call(c10d.wait_tensor.default, b.call(c10d.all_gather_into_tensor.default, sent, 8, "0"))
        outputs.append(b.call(aten.mm.default, x, gathered))
    if updated:
        b.call(aten.mul_.Tensor, p, 0.5)
    return b.program(outputs, {"0": 8})


def shorter(program, **options):
    """The plan with ``when=shorter``, and scheduled steps without it and with it."""
    index, model = build_index(program), load_model("h100")
    context = PlanContext(program, index, identify(index), model)
    plan = Dedup(when="shorter", **options).plan(context)
    after = build_index(apply_plan(program, index, plan)) if plan.changes else index
    limits = Reorder().limits(context.budget(options.get("memory_budget", "auto")))
    steps = [
        search(Problem(each, model.price(each)), limits, Reorder().effort).step_ns / 1e6 for each in (index, after)
    ]
    return plan, steps


def test_what_waits_for_its_gathers_has_one():
    plan, (before, after) = shorter(chunks(6, 512))
    assert [len(duplicate.drop) for duplicate in plan.rewrite.duplicates] == [5]
    assert after < before * 0.5
    assert plan.report.scheduled_step_ms == {"before": before, "after": after}


def test_a_weight_that_is_written_behind_its_gathers():
    program = chunks(6, 512, updated=True)
    plan, (before, after) = shorter(program)
    assert [len(duplicate.drop) for duplicate in plan.rewrite.duplicates] == [5]
    assert after < before * 0.5
    assert verify(program, apply_plan(program, build_index(program), plan)).status == "proved"


def test_gathers_that_cost_nothing_stay():
    """All but the first are hidden by the products between, which take as long in any case."""
    plan, (before, after) = shorter(chunks(6, 512, 65536))
    assert not plan.changes and after == before
    assert [entry.reason.code for entry in plan.left_out] == ["pays_not"] * 5
    assert plan.report.scheduled_step_ms == {"before": before, "after": before}
    program = chunks(6, 512, 65536)
    index = build_index(program)
    assert Dedup().plan(PlanContext(program, index, identify(index))).changes


def test_what_is_shorter_is_within_the_budget():
    program = chunks(6, 512)
    own = live_bytes(build_index(program)).peak_bytes / GIB
    plan, _ = shorter(program, memory_budget=own - 0.1)
    assert plan.changes  # holding one takes no more than a gather took


def test_of_what_takes_memory_only_the_nearest_are_taken():
    """The large weight is gathered in front of and behind ten products with weights of their own, which are gathered
    ahead where memory is left: held meanwhile, it would take that memory. Each product needs the one before.
    """
    b, last = GraphBuilder(), None

    def weight(name, gathered, rows):
        shard = b.placeholder(name, (gathered // 8, 8192), torch.bfloat16)
        return shard, b.placeholder(f"x_{name}", (rows, gathered), torch.bfloat16)

    again, large = weight("again", 1 << 15, 64), weight("large", 1 << 17, 64)
    own = [weight(f"own_{number}", 1 << 16, 4096) for number in range(10)]
    for shard, x in [*[again] * 4, large, *own, large]:
        gathered = b.call(c10d.wait_tensor.default, b.call(c10d.all_gather_into_tensor.default, shard, 8, "0"))
        operand = x if last is None else b.call(aten.add.Tensor, x, b.call(aten.sum.default, last))
        last = b.call(aten.mm.default, operand, gathered)
    program = b.program([last], {"0": 8})
    budget = live_bytes(build_index(program)).peak_bytes / GIB + 1.75
    index = build_index(program)
    everything = Dedup(memory_budget=budget).plan(PlanContext(program, index, identify(index)))
    assert [len(each.drop) for each in everything.rewrite.duplicates] == [3, 1]
    plan, (before, after) = shorter(program, memory_budget=budget)
    assert [len(each.drop) for each in plan.rewrite.duplicates] == [3]
    assert after < before


def test_shorter_needs_a_cost_model(capsys, tmp_path):
    program = chunks(2, 8)
    index = build_index(program)
    with pytest.raises(OptionError, match="needs a cost model"):
        Dedup(when="shorter").plan(PlanContext(program, index, identify(index)))
    save(program, tmp_path / "g.fx.txt")
    assert (
        command(
            ["run", str(tmp_path / "g.fx.txt"), "--passes", "dedup{when=shorter}", "-o", str(tmp_path / "o.fx.txt")]
        )
        == 0
    )
    assert "scheduled step ms" in capsys.readouterr().out
