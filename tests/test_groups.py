"""Groups of their own: what moves, what the verifier accepts of it, what files keep, what the simulator makes of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.apply import apply_plan
from commcc.base.errors import InputError, InternalError
from commcc.base.terms import Kind
from commcc.cli.main import run as command
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.program import ProcessGroup
from commcc.passes.base import PlanContext
from commcc.passes.groups import Groups
from commcc.passes.options import parse_pipeline
from commcc.plan import ControlEdge, NewGroup, Plan, Regroup
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.serialization.fx import parse_text
from commcc.timing.cost import load_model
from commcc.timing.predict import predict
from commcc.verify import verify
from tests.corruptions import copied
from tests.effort import examples
from tests.random_graphs import GraphBuilder, shuffled

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))


def mixture(seed=0, layers=4, size=8):
    """Token exchanges, gathers of parameters and reduce-scatters, at random on two groups."""
    rng, b = random.Random(seed), GraphBuilder()
    x = b.placeholder("x", (8, size))
    shards = [b.placeholder(f"p{i}", (4, size)) for i in range(layers)]
    outputs = []
    for shard in shards:
        if rng.random() < 0.8 or not seed:
            sent = b.call(c10d.all_to_all_single.default, x, [4, 4], [4, 4], rng.choice(["0", "0", "1"]))
            sent.meta["custom"] = {"EP_token_exchange": "dispatch"}
            x = b.call(c10d.wait_tensor.default, sent)
        weight = b.gather(shard, 2, rng.choice(["0", "0", "1"]))
        x = b.call(aten.mm.default, x, weight)
        if rng.random() < 0.8 or not seed:
            outputs.append(b.scatter(x, 2, rng.choice(["0", "1"])))
    table = {name: ProcessGroup(name, 2, (0, 1), f"mesh {name}") for name in ("0", "1")}
    program = replace(b.program([*outputs, x], {}), groups=table)
    return shuffled(program, rng) if seed % 2 else program


def split(program, roles=("ep", "all_gather")):
    index = build_index(program)
    plan = Groups(roles=roles).plan(PlanContext(program, index, identify(index)))
    return apply_plan(program, index, plan), plan


def by_group(program):
    index = build_index(program)
    found: dict[str, set[str]] = {}
    for c in identify(index).collectives:
        found.setdefault(c.group, set()).add(f"{c.role} {c.kind}")
    return found


@RELAXED
@given(st.integers(0, 10_000), st.sampled_from([("ep",), ("all_gather",), ("ep", "all_gather"), ("all_gather", "ep")]))
def test_roles_come_apart_and_the_program_stays(seed, roles):
    program = mixture(seed)
    after, plan = split(program, roles)
    after.graph.lint()
    verdict = verify(program, after)
    assert verdict.status == "proved", verdict.findings or verdict.unproved
    assert [n.name for n in after.graph.nodes] == [n.name for n in program.graph.nodes]
    names = {"ep": "ep all_to_all", "all_gather": "fsdp all_gather"}
    for what in by_group(after).values():
        assert len(what) == 1 or not what & {names[role] for role in roles}
    for group in plan.of(NewGroup):
        made, origin = after.groups[group.name], program.groups[group.origin]
        assert made == replace(origin, name=group.name, origin=group.origin, high_priority=True)
        assert len(by_group(program)[group.origin]) > 1
    before = {c.launch: (c.group, c.kind, c.role) for c in identify(build_index(program)).collectives}
    origins = {group.name: group.origin for group in plan.of(NewGroup)}
    for c in identify(build_index(after)).collectives:
        assert (origins.get(c.group, c.group), c.kind, c.role) == before[c.launch]
    assert not split(after, roles)[1].changes


def test_a_group_that_was_split_off_before_is_used_again():
    program = mixture()
    once, plan = split(program, ("ep",))
    launch, name = plan.of(Regroup)[0].launch, plan.of(Regroup)[0].group
    group = next(g for g in plan.of(NewGroup) if g.name == name)
    back = renamed(once, lambda n: n.name == build_index(program).names[launch], group.origin)
    again, second = split(back, ("ep",))
    assert not second.of(NewGroup)
    assert second.of(Regroup) == (Regroup(launch, group.name),)
    assert dict(again.groups) == dict(once.groups)


# What the verifier must not accept


def with_table(program, name, **changes):
    return replace(program, groups={**program.groups, name: replace(program.groups[name], **changes)})


def renamed(program, which, group):
    """The launches that ``which`` accepts on another group."""
    graph = copied(program.graph)
    for node in graph.nodes:
        if node.op == "call_function" and which(node):
            node.args = (*node.args[:-1], group)
    return replace(program, graph=graph)


def is_kind(name):
    return lambda node: name in str(node.target)


def without(program, name):
    return replace(program, groups={k: v for k, v in program.groups.items() if k != name})


def with_dead_launch(program, group):
    """A launch on a group that is not in the table; its result is waited for and not used."""
    graph = copied(program.graph)
    x, output = next(iter(graph.nodes)), list(graph.nodes)[-1]
    with graph.inserting_before(output):
        launch = graph.call_function(c10d.all_reduce.default, (x, "sum", group))
        wait = graph.call_function(c10d.wait_tensor.default, (launch,))
    launch.meta["val"] = wait.meta["val"] = x.meta["val"]
    return replace(program, graph=graph)


def unknown(before, after):
    return replace(before, groups={**before.groups, "0": replace(before.groups["0"], ranks=None)}), after


MUTATIONS = {
    "fewer ranks": lambda b, a: (b, with_table(a, "ep_extra", ranks=(0,), size=1)),
    "other ranks": lambda b, a: (b, with_table(a, "ep_extra", ranks=(0, 2))),
    "ranks in another order": lambda b, a: (b, with_table(a, "ep_extra", ranks=(1, 0))),
    "another size": lambda b, a: (b, with_table(a, "ep_extra", size=4)),
    "ranks no longer known": lambda b, a: (b, with_table(a, "ep_extra", ranks=None)),
    "ranks that nobody knew": unknown,
    "size no longer known": lambda b, a: (b, with_table(a, "ep_extra", size=None)),
    "no origin": lambda b, a: (b, with_table(a, "ep_extra", origin=None)),
    "another origin": lambda b, a: (b, with_table(a, "ep_extra", origin="9")),
    "an origin that is nowhere": lambda b, a: (b, with_table(a, "ep_extra", origin="lost")),
    "its own origin": lambda b, a: (b, with_table(a, "ep_extra", origin="ep_extra")),
    "no entry": lambda b, a: (b, without(a, "ep_extra")),
    "an old group gets an origin": lambda b, a: (b, with_table(a, "9", origin="0")),
    "the origin itself changes": lambda b, a: (b, with_table(a, "0", ranks=(2, 3))),
    "one exchange of another group": lambda b, a: (b, renamed(a, lambda n: n.name == "a9", "ep_extra")),
    "another kind joins": lambda b, a: (b, renamed(a, is_kind("reduce_scatter"), "ep_extra")),
    "gathers join": lambda b, a: (b, renamed(a, is_kind("all_gather"), "ep_extra")),
    "an old group of the same ranks": lambda b, a: (b, renamed(a, is_kind("all_to_all"), "twin")),
    "a name that BEFORE uses": lambda b, a: (with_dead_launch(b, "ep_extra"), a),
}


def pair():
    b = GraphBuilder()
    x, p = b.placeholder("x", (8, 8)), b.placeholder("p", (4, 8))
    sent = b.call(c10d.all_to_all_single.default, x, [4, 4], [4, 4], "0")
    other = b.call(c10d.all_to_all_single.default, x, [4, 4], [4, 4], "9")
    other.name = "a9"
    for node in (sent, other):
        node.meta["custom"] = {"EP_token_exchange": "dispatch"}
    w, v = b.call(c10d.wait_tensor.default, sent), b.call(c10d.wait_tensor.default, other)
    y = b.call(aten.mm.default, b.call(aten.add.Tensor, w, v), b.gather(p, 2, "0"))
    shard = b.scatter(y, 2, "0")
    alone = b.scatter(b.call(aten.relu.default, y), 2, "9")
    ranks = {"0": (0, 1), "9": (0, 2), "twin": (0, 1)}
    table = {name: ProcessGroup(name, 2, found) for name, found in ranks.items()}
    before = replace(b.program([shard, alone], {}), groups=table)
    index = build_index(before)
    launch = index.position[sent.name]
    edits = (NewGroup("ep_extra", "0", "ep", ""), Regroup(launch, "ep_extra"))
    return before, apply_plan(before, index, Plan("groups", index.fingerprint, edits=edits))


def test_the_undamaged_pair_is_proved():
    assert verify(*pair()).status == "proved"


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_groups_are_rejected(name):
    verdict = verify(*MUTATIONS[name](*pair()))
    assert verdict.status == "different", name
    assert verdict.findings


def test_ranks_that_neither_table_knows():
    before, after = pair()
    loose = [replace(g, ranks=None) for g in after.groups.values()]
    after = replace(after, groups={g.name: g for g in loose})
    before = replace(before, groups={n: replace(g, ranks=None) for n, g in before.groups.items()})
    assert verify(before, after).status == "proved"
    sizeless = replace(before, groups={n: replace(g, size=None) for n, g in before.groups.items()})
    assert verify(sizeless, after).status == "proved"  # the gathers on group 0 say its size


def test_a_program_without_a_table():
    program = replace(mixture(), groups={})
    after, plan = split(program)
    assert plan.changes
    assert verify(program, after).status == "proved"
    lost = replace(after, groups={n: replace(g, origin="7" if g.origin else None) for n, g in after.groups.items()})
    assert verify(program, lost).status == "different"


def test_going_back_is_another_program():
    """Groups that both programs have are not the same group, whatever their ranks: their queues differ."""
    before, after = pair()
    assert verify(after, before).status == "different"


def test_apply_refuses_what_no_pass_would_plan():
    before, _ = pair()
    index = build_index(before)
    launch = next(iter(index.launches))
    for plan in (
        Plan("groups", index.fingerprint, edits=(NewGroup("twin", "0", "ep", ""),)),
        Plan("groups", index.fingerprint, edits=(NewGroup("new", "lost", "ep", ""),)),
        Plan("groups", index.fingerprint, edits=(Regroup(launch, "lost"),)),
        Plan("groups", index.fingerprint, edits=(Regroup(0, "twin"),)),
    ):
        with pytest.raises(InternalError):
            apply_plan(before, index, plan)


# Files, the simulator, the command line


@pytest.mark.parametrize("extension", ["fx.txt", "fx.txt.gz", "pt2"])
def test_files_keep_the_table(tmp_path, extension):
    program = load(SAMPLES / "tiny_moe_ep2_fw.fx.txt.gz")
    after, _ = split(program)
    save(after, tmp_path / f"g.{extension}")
    again = load(tmp_path / f"g.{extension}")
    assert again.groups["ep_extra"] == ProcessGroup("ep_extra", 2, (0, 1), "ep", "0", True)
    assert dict(again.groups) == dict(after.groups)
    assert verify(program, again).status == "proved"


@pytest.mark.parametrize("entry", [{"origin": 3}, {"origin": ["0"]}, {"high_priority": 1}, {"high_priority": "yes"}])
def test_broken_entries_are_refused(entry):
    head = [{"fx_text": 1}, {"groups": {"0": {"size": 2, **entry}}}]
    text = "\n".join(f"# commcc: {json.dumps(part)}" for part in head)
    with pytest.raises(InputError):
        parse_text(f"{text}\nclass M(torch.nn.Module):\n    def forward(self):\n        return ()\n", "x")


def overlapped():
    """A gather launched ahead of an exchange on the same group; both are waited for after some compute."""
    b = GraphBuilder()
    x, p = b.placeholder("x", (4096, 4096)), b.placeholder("p", (4096, 4096))
    gather = b.call(c10d.all_gather_into_tensor.default, p, 2, "0")
    sent = b.call(c10d.all_to_all_single.default, x, [2048, 2048], [2048, 2048], "0")
    sent.meta["custom"] = {"EP_token_exchange": "dispatch"}
    w = b.call(c10d.wait_tensor.default, sent)
    y = b.call(aten.mm.default, w, w)
    v = b.call(c10d.wait_tensor.default, gather)
    return replace(b.program([b.call(aten.mm.default, v, y)], {"0": 2}))


def test_a_group_of_its_own_is_a_stream_of_its_own():
    program = overlapped()
    after, _ = split(program, ("ep",))
    spans = {}
    for how in ("none", "topology"):
        for name, each in (("before", program), ("after", after)):
            prediction = predict(build_index(each), load_model(f"h100,share_link={how}"))
            index = build_index(each)
            at = {index.launches[i].kind: span for i, span in prediction.timeline.spans.items()}
            spans[how, name] = at[Kind.ALL_GATHER], at[Kind.ALL_TO_ALL], prediction.timeline.step_ns
    for key in (("none", "before"), ("topology", "before"), ("topology", "after")):
        gather, exchange, _ = spans[key]
        assert exchange.start >= gather.end, "one queue: the exchange stands behind the gather"
    gather, exchange, step = spans["none", "after"]
    assert gather.start <= exchange.start < gather.end
    assert step < spans["none", "before"][2]
    assert spans["topology", "after"][2] == spans["topology", "before"][2]


def test_a_launch_inside_a_wrapper_stays():
    program = overlapped()
    index = build_index(program)
    gather, exchange = index.launches
    edge = ControlEdge(exchange, gather, "")
    held = apply_plan(program, index, Plan("reorder", index.fingerprint, edits=(edge,)))
    _, plan = split(held, ("ep",))
    assert [str(entry.reason) for entry in plan.left_out] == ["is held in place by a control edge"]
    assert not plan.changes
    moved, _ = split(held, ("all_gather",))
    assert verify(program, moved).status == "proved"
    assert by_group(moved) == {"0": {"ep all_to_all"}, "all_gather_extra": {"fsdp all_gather"}}


def test_prices_do_not_depend_on_the_name():
    for model in ("h100", "a100,share_link=all"):
        program = load(SAMPLES / "tiny_moe_ep2_bw.fx.txt.gz")
        after, plan = split(program)
        assert plan.changes
        assert load_model(model).price(build_index(program)).ns == load_model(model).price(build_index(after)).ns


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("tiny_moe_ep2_fw", {"ep_extra": 3}),
        ("tiny_moe_ep2_bw", {"ep_extra": 2, "all_gather_extra": 21}),
        ("tiny_moe_fsdp4_ep2_bw", {"all_gather_extra_0": 21, "all_gather_extra_1": 3}),
        ("tiny_moe_fsdp4_ep2_fw", {}),
        ("tiny_llama_ddp_bw", {}),
        ("llama3_8b_fsdp64_bw", {"all_gather_extra": 290}),
    ],
)
@pytest.mark.sampled(4)
def test_samples(name, groups):
    result = run(load(SAMPLES / f"{name}.fx.txt.gz"), parse_pipeline("groups{roles=ep:all_gather}"))
    assert result.verified == "proved"
    assert result.changed == bool(groups)
    assert {g["name"]: g["launches"] for g in result.steps[0].report["groups"]} == groups


def test_the_command(tmp_path, capsys):
    source, target = SAMPLES / "tiny_moe_ep2_fw.fx.txt.gz", tmp_path / "out.fx.txt"
    assert command(["groups", str(source), "-o", str(target), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verified"] == "proved"
    assert document["passes"][0]["report"]["moved"] == 3
    target.unlink()
    assert command(["groups", str(source), "-o", str(target)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ep_extra a copy of 0 for 3 launches: 1 ep_count all_to_all, 2 ep all_to_all shared group '0'" in shown
    assert command(["inspect", str(target), "--json"]) == 0
    groups = {g["name"]: g for g in json.loads(capsys.readouterr().out)["groups"]}
    assert (groups["ep_extra"]["origin"], groups["ep_extra"]["high_priority"]) == ("0", True)
    assert command(["inspect", str(target)]) == 0
    assert "split off 0, high priority" in capsys.readouterr().out
    assert command(["verify", str(source), str(target)]) == 0
    capsys.readouterr()
    assert command(["groups", str(source), "-o", str(target), "--roles", "tp"]) == 2
    assert "no role 'tp'" in capsys.readouterr().err
