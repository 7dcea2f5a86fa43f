"""Pass split: what is cut, that it is proved and gives the same numbers, and what stays whole."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commcc.base.errors import InputError, OptionError
from commcc.capture import from_graph_module
from commcc.cli.main import run as command
from commcc.graph.structure import structure_of
from commcc.live import graph_pass
from commcc.passes.options import parse_pipeline
from commcc.passes.split import Split
from commcc.replay.numeric import Settings, verify_numeric
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text, read_plans
from commcc.serialization import load, save
from commcc.splitting.slices import Slices
from commcc.verify import verify
from commcc.verify.clones import Rows
from tests import split_graphs
from tests.chunk_graphs import error
from tests.corruptions import copied
from tests.effort import examples
from tests.random_graphs import GraphBuilder
from tests.split_graphs import MODEL, aten, split
from tests.test_live import elsewhere
from tests.verify_mutants import KINDS

MASKS = {"numbers": (4,), "narrow": (4, 1), "wide": (4, 8)}
SAMPLES = Path(__file__).parents[1] / "sample_graphs"

FAMILIES = {
    "columns": split_graphs.columns,
    "all_reduce": lambda: split_graphs.columns("all_reduce"),
    "gathered": split_graphs.gathered,
    "embedding": split_graphs.embedding,
    "hybrid": split_graphs.hybrid,
    "logits": split_graphs.logits,
}


def names(program):
    return [node.name for node in program.graph.nodes]


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_proved_and_give_the_same(family, parts):
    program = FAMILIES[family]()
    result = split(program, parts=parts)
    (step,) = result.steps
    assert step.plan.report.split == 1
    assert result.verified == "proved"
    launches = [result.last.index.launches[n] for n in sorted(result.last.index.launches)]
    assert len(launches) == parts * sum("wait" in name for name in names(program))
    assert error(program, result.program) < 1e-6  # the reduction is in float32
    before, after = step.plan.report.step_ms
    assert after < before == pytest.approx(result.predictions[0].timeline.step_ns / 1e6)


def test_a_part_is_launched_before_the_next_is_computed():
    after = names(split(split_graphs.columns(), parts=2).program)
    order = ["mm_default_chunk0", "reduce_scatter_tensor_default_chunk0", "mm_default_chunk1"]
    assert [name for name in after if name in order] == order


@pytest.mark.parametrize("read", ["", "before", "between", "behind"])
def test_what_is_scattered_and_then_all_reduced_is_cut_for_both(read):
    """As gradients of HSDP: one part is all-reduced while another one is scattered."""
    program = split_graphs.hybrid(read=read)
    result = split(program, parts=2)
    assert result.verified == "proved"
    assert error(program, result.program) < 1e-6
    after = names(result.program)
    together = "all_reduce_default_chunk1" in after
    # What reads the shard while it is still in parts keeps the all-reduce whole.
    assert together is (read != "before")
    if together:
        kinds = ["reduce_scatter_tensor_default_chunk1", "all_reduce_default_chunk0", "wait_tensor_default_1_chunk0"]
        assert [name for name in after if name in kinds] == kinds
        assert result.steps[0].plan.report.collectives[0].kind == "reduce_scatter"


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("family", ["tied", "tied_copies"])
def test_parts_of_one_may_read_what_another_one_gives(family, parts):
    program = getattr(split_graphs, family)()
    result = split(program, parts=parts)
    (step,) = result.steps
    assert step.plan.report.split == 2
    assert result.verified == "proved"
    assert error(program, result.program) < 1e-6
    assert len(result.last.index.launches) == parts * sum("wait" in name for name in names(program))


def test_what_is_used_elsewhere_stays_whole():
    result = split(split_graphs.shared(), parts=4)
    after = names(result.program)
    assert "mm_default" in after
    assert "relu_default_chunk0" in after
    assert "mm_default_chunk0" not in after
    assert result.verified == "proved"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (split_graphs.alone(), "nothing in front of it or behind it works slice by slice"),
        (split_graphs.flat(), "nothing in front of it or behind it works slice by slice"),
        (split_graphs.written(), "nothing in front of it or behind it works slice by slice"),
        (split_graphs.summed(), "its parts would take as long as it does"),
    ],
    ids=["alone", "flat", "written", "summed"],
)
def test_what_gains_nothing_stays_whole_and_says_why(program, said):
    (step,) = split(program).steps
    assert not step.changed
    (left,) = step.plan.left_out
    assert str(left.reason) == said


def test_small_hidden_and_cut_ones_stay_whole():
    program = split_graphs.columns()
    (step,) = split(program, min_mb=1).steps
    assert [each.reason.code for each in step.plan.left_out] == ["split_small"]
    assert step.plan.left_out[0].reason.general == "is smaller than min_mb"
    assert split(program, min_exposed_us=1000).steps[0].plan.report.exposed == 0
    again = split(split(program, parts=2).program)
    assert {each.reason.code for each in again.steps[0].plan.left_out} == {"in_chunk"}
    assert not again.changed


def test_it_is_taken_ahead_of_an_order_only_where_that_becomes_shorter():
    """Judged by the order that follows, and not by that of the graph."""
    program = load(str(SAMPLES / "tiny_llama_fsdp2_tp2_fw.fx.txt.gz"))
    steps = {}
    small = "min_mb=0,min_exposed_us=0"
    for text in ("reorder", f"split{{order=reorder,{small}}},reorder", f"split{{{small}}},reorder"):
        result = run(program, parse_pipeline(text), model=MODEL)
        assert result.verified == "proved"
        steps[text] = result.predictions[1].timeline.step_ns
    plain, parts, chosen = steps.values()
    assert parts < plain
    assert chosen == parts
    assert result.steps[0].plan.report.step_ms == (plain / 1e6, parts / 1e6)


def test_where_no_order_follows_it_is_judged_by_the_graphs_own():
    program = load(str(SAMPLES / "tiny_llama_fsdp2_tp2_fw.fx.txt.gz"))
    small = "min_mb=0,min_exposed_us=0"
    steps = {text: parse_pipeline(text) for text in (f"split{{{small}}}", f"split{{order=own,{small}}}")}
    reports = [run(program, passes, model=MODEL).steps[0].plan.report for passes in steps.values()]
    assert reports[0].step_ms == reports[1].step_ms
    ordered = run(program, parse_pipeline(f"split{{{small}}},reorder"), model=MODEL).steps[0].plan.report
    assert ordered.step_ms != reports[0].step_ms


def test_gains_of_less_than_a_thousandth_are_none(monkeypatch):
    monkeypatch.setattr("commcc.passes.split.LEAST", 1)
    (step,) = split(split_graphs.columns()).steps
    assert [each.reason.code for each in step.plan.left_out] == ["split_longer"]


def test_it_takes_a_cost_model():
    with pytest.raises(OptionError, match="split needs a cost model"):
        run(split_graphs.columns(), [Split()])


def test_a_budget_that_parts_would_pass_leaves_the_graph_as_it_is():
    """What is copied to put a result together again is more than the graph had."""
    program = split_graphs.returned()
    (free,) = split(program).steps
    assert free.plan.report.peak_bytes[1] > free.plan.report.peak_bytes[0]
    (step,) = split(program, memory_budget="own").steps
    assert not step.changed
    assert {each.reason.code for each in step.plan.left_out} == {"split_memory"}


def test_a_plan_is_stored_and_applied_again(tmp_path):
    program = split_graphs.gathered()
    result = split(program, parts=2)
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(result))
    again = run(program, read_plans(path), model=MODEL)
    assert again.last.index.fingerprint == result.last.index.fingerprint
    assert plan_text(again) == path.read_text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blocks: 2", "blocks: 3"),
        ("sizes: [2, 2]", "sizes: [1, 2]"),
        ("extent: 4", "extent: 2"),
        ("- {node: x, dim: 0}", "- {node: x, dim: 1}"),
        ("- {node: x, dim: 0}", "- {node: w, dim: 0}"),
        ("in_turn: true", "in_turn: 7"),
        ("how: rows", "how: sum"),
        ("dim: 0, proof", "dim: 1, proof"),
        ("wait_tensor_default, mm_default", "mm_default"),
    ],
)
def test_changed_plans_are_refused(old, new, tmp_path):
    program = split_graphs.gathered()
    text = plan_text(split(program, parts=2))
    path = tmp_path / "plan.yaml"
    assert old in text, text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=r"plan\.yaml"):
        run(program, read_plans(path), model=MODEL)


def test_blocks_of_another_size_are_not_proved(tmp_path):
    program = split_graphs.gathered()
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(split(program, parts=2)).replace("blocks: 2", "blocks: 4"))
    result = run(program, read_plans(path), model=MODEL)
    assert result.verified == "unproved"
    assert error(program, result.program) > 0.1


def test_clones_of_a_node_together_are_the_same_program_too(tmp_path):
    """Without turns: each part waits for all products."""
    program = split_graphs.columns()
    text = plan_text(split(program, parts=2))
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace(", in_turn: true", "").replace("\n    in_turn: true", ""))
    result = run(program, read_plans(path), model=MODEL)
    assert result.verified == "proved"
    assert error(program, result.program) < 1e-6
    first = names(result.program)
    assert first.index("mm_default_chunk1") < first.index("reduce_scatter_tensor_default_chunk0")


def node_of(graph, name):
    return next(node for node in graph.nodes if node.name == name)


def other_argument(name, at, value):
    def change(graph):
        node = node_of(graph, name)
        found = value(graph) if callable(value) else value
        node.args = (*node.args[:at], found, *node.args[at + 1 :])

    return change


def exchanged(graph):
    node = next(node for node in graph.nodes if node.op == "call_function" and "aten.cat" in str(node.target))
    node.args = (node.args[0][::-1], *node.args[1:])


def other_op(name, target):
    def change(graph):
        node_of(graph, name).target = target

    return change


LAUNCH = "reduce_scatter_tensor_default"


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("columns", exchanged),
        ("gathered", exchanged),
        ("embedding", exchanged),
        ("columns", other_argument("w_chunk_split1", 1, 0)),
        ("columns", other_argument("w_chunk_split", 1, [2, 6])),
        ("columns", other_argument(f"{LAUNCH}_chunk1", 3, "1")),
        ("columns", other_argument(f"{LAUNCH}_chunk1", 1, "max")),
        ("columns", other_argument(f"{LAUNCH}_chunk1", 0, lambda g: node_of(g, "convert_element_type_default_chunk0"))),
        ("columns", other_argument("wait_tensor_default_chunk0", 0, lambda g: node_of(g, f"{LAUNCH}_chunk1"))),
        ("columns", other_argument("relu_default_chunk1", 0, lambda g: node_of(g, f"{LAUNCH}_chunk1"))),
        ("gathered", other_argument("x_chunk_split1", 1, 0)),
        ("gathered", other_argument("mul_tensor_chunk0_blocks", 1, [4, 1, 8])),
        ("gathered", other_argument("mul_tensor_chunk0_blocks", 0, lambda g: node_of(g, "mul_tensor_chunk1"))),
        ("gathered", other_argument("mul_tensor_chunk_materialized_blocks", 1, 0)),
        ("gathered", other_argument("mul_tensor_chunk_materialized", 1, [8, 8, 1])),
        ("gathered", other_argument("mul_tensor_chunk0", 0, lambda g: node_of(g, "silu_default_chunk1"))),
        ("embedding", other_argument("embedding_dense_backward_default_chunk1", 2, 24)),
        ("embedding", other_argument("mul_tensor_chunk1", 1, 0.25)),
        ("gathered", other_op("silu_default_chunk0", aten.sigmoid.default)),
        ("gathered", other_op("silu_default_chunk1", aten.sigmoid.default)),
        ("gathered", other_op("mul_tensor_chunk1", aten.div.Tensor)),
    ],
)
def test_what_is_wrong_is_not_proved(family, change):
    program = FAMILIES[family]()
    after = split(program, parts=2).program
    assert verify(program, after).status == "proved"
    graph = after.graph_module().graph
    change(graph)
    assert verify(program, replace(after, graph=graph)).status != "proved"


@pytest.mark.parametrize("family", [*FAMILIES, "shared", "returned"])
@pytest.mark.sampled(2)
def test_damage_of_any_kind_is_not_proved_unless_it_changes_nothing(family):
    program = FAMILIES.get(family, getattr(split_graphs, family, None))()
    after = split(program, parts=2).program
    tried = 0
    for kind, damage in KINDS.items():
        for seed in range(examples(3)):
            graph = copied(after.graph)
            if damage(graph, random.Random(seed)):
                tried += 1
                broken = replace(after, graph=graph)
                assert verify(program, broken).status != "proved" or error(program, broken) == 0, (kind, seed)
    assert tried > 20


def test_what_no_part_can_be_computed_of_stays_whole():
    """A damaged file: the number of ranks is a tuple."""
    program = split_graphs.columns()
    launch = next(node for node in program.graph.nodes if "reduce_scatter" in node.name)
    launch.args = (*launch.args[:2], (2,), *launch.args[3:])
    assert not split(program).steps[0].changed


def test_what_mixes_slices_is_not_cut():
    """Rows that ranks divide among them, and columns of a table to which a mask that is read whole lets some."""
    b = GraphBuilder()
    x, table = b.placeholder("x", (4, 8)), b.placeholder("table", (6, 8))
    numbers, narrow, wide = (b.placeholder(name, shape, torch.bool) for name, shape in MASKS.items())
    numbers.meta["val"] = numbers.meta["val"].long()
    launch = b.scatter(x, 2, "0").args[0]
    puts = [
        b.call(aten._unsafe_masked_index_put_accumulate.default, table, mask, [numbers], x) for mask in (narrow, wide)
    ]
    columns = {x: Rows(("tokens", 8), 1), table: Rows(("tokens", 8), 1)}
    assert Slices().kind(launch, {x: Rows(("tokens", 8), 1)}) == Rows(("tokens", 8), 1)
    assert Slices().kind(launch, {x: Rows(("tokens", 4), 0)}) is None
    assert [Slices().kind(put, columns) for put in puts] == [Rows(("tokens", 8), 1), None]


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize(
    "sample",
    [
        "tiny_llama_fsdp2_tp2_fw",
        pytest.param("tiny_llama_fsdp2_tp2_bw", marks=pytest.mark.full),
        pytest.param("tiny_llama_hsdp_bw", marks=pytest.mark.full),
        pytest.param("tiny_llama_ddp_bw", marks=pytest.mark.full),
        pytest.param("tiny_llama_joint", marks=pytest.mark.full),
        pytest.param("tiny_moe_ep2_fw", marks=pytest.mark.full),
        pytest.param("tiny_deepseek_fsdp4_ep2", marks=pytest.mark.full),
    ],
)
def test_samples_are_proved_and_give_the_same_numbers(sample, parts):
    """Also where BEFORE says something of its own that AFTER says too, as tiny_moe_ep2_fw does of a copy."""
    program = load(str(SAMPLES / f"{sample}.fx.txt.gz"))
    result = split(program, parts=parts)
    assert result.steps[0].plan.report.split > 1
    assert result.verified == "proved"
    assert verify_numeric(program, result.program, Settings()).status == "equal"


def test_a_stored_plan_is_applied_in_a_job(tmp_path):
    """Where nodes and groups have other names."""
    program = load(str(SAMPLES / "tiny_llama_fsdp2_tp2_fw.fx.txt.gz"))
    stored = split(program, parts=2)
    (tmp_path / "plan.yaml").write_text(plan_text(stored))
    here = elsewhere(program)
    gm = here.graph_module()
    result = graph_pass(plan=tmp_path, on_refusal="raise").rewrite(gm).result
    assert result.verified == "proved"
    assert structure_of(from_graph_module(gm)).fingerprint == structure_of(stored.program).fingerprint


@pytest.mark.full
@pytest.mark.parametrize("family", ["columns", "gathered", "logits"])
def test_parts_give_the_same_on_two_processes(family):
    program = FAMILIES[family]()
    after = split(program, parts=2).program
    assert verify_numeric(program, after, Settings(ranks=2, real=True)).status == "equal"


@pytest.mark.full
def test_parts_are_timed_on_two_processes(tmp_path, capsys):
    """The graph of a step under FSDP, whole and in parts."""
    before, after = SAMPLES / "tiny_llama_fsdp2_bw.fx.txt.gz", tmp_path / "parts.fx.txt"
    save(split(load(str(before)), parts=2).program, after)
    arguments = ["--nproc", "2", "--device", "cpu", "--repeat", "2", "--warmup", "1", "--json"]
    assert command(["bench", str(before), str(after), *arguments]) == 0
    assert len(json.loads(capsys.readouterr().out)["graphs"]) == 2
