"""Train steps that torchtitan has dumped: cut, or scheduled as torchtitan has cut them, without an edit by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import fx

from commcc.apply import apply_plan
from commcc.base.errors import InputError
from commcc.base.reasons import Reason
from commcc.base.terms import Kind, Role
from commcc.ep.regions import regions_of
from commcc.graph.annotations import annotations_of, backward_nodes
from commcc.graph.collectives import identify
from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.graph.ops import WAIT, op_name
from commcc.passes.base import PlanContext
from commcc.passes.ep_concretize import EpConcretize
from commcc.passes.options import parse_pipeline
from commcc.plan import NewGroup, Plan, Regroup
from commcc.run.pipeline import run
from commcc.run.sized import verify_sized
from commcc.serialization import load, save
from commcc.serialization.op_files import read_ops
from commcc.verify import regroup, verify
from commcc.verify.chunks import folded
from commcc.verify.regroup import _dtypes
from commcc.verify.verdict import Report
from tests.chunk_graphs import plan_of
from tests.corruptions import copied

DATA = Path(__file__).parent / "data" / "torchtitan"
SCATTER = "torchtitan.deterministic_scatter_add"


@lru_cache(maxsize=4)
def step(name, *, described=True):
    return load(DATA / f"{name}.fx.txt.gz", descriptions=read_ops(DATA / "ops.yaml") if described else None)


def test_the_step_is_cut():
    program = step("deepseek_v3_step")
    plan = plan_of(program, chunks=2)
    regions = plan.report.regions
    assert [(r.module, r.direction, r.body, r.added) for r in regions] == [
        ("layers.1.moe", "forward", 88, 0),
        ("layers.2.moe", "forward", 88, 0),
        ("layers.2.moe", "backward", 129, 7),
        ("layers.1.moe", "backward", 124, 7),
    ]
    after = apply_plan(program, build_index(program), plan)
    launches = [each for each in build_index(after).launches.values() if each.kind is Kind.ALL_TO_ALL]
    assert len(launches) == 20
    scatters = [
        node for node in after.graph.nodes if op_name(node.target) == "aten.scatter_add" and len(node.args) == 3
    ]
    assert len(scatters) == 6


def test_a_custom_op_is_named():
    message = rf"'deterministic_scatter_add' .* is a custom op, and there is no rule for {SCATTER}; say in .*--ops"
    with pytest.raises(InputError, match=message):
        plan_of(step("deepseek_v3_step", described=False), chunks=2)


def test_a_custom_op_is_written_under_its_own_name(tmp_path):
    save(step("deepseek_v3_step"), tmp_path / "out.fx.txt")
    assert (tmp_path / "out.fx.txt").read_text().count(f"torch.ops.{SCATTER}.default(") == 3


def test_what_torchtitan_has_cut_is_read_as_cut():
    """Keys in comments, which PyTorch prints without quotes."""
    program = step("deepseek_v3_chunked", described=False)
    index = build_index(program)
    regions = regions_of(index, annotations_of(program, index))
    assert [(r.root, r.backward, [len(body) for body in r.bodies]) for r in regions] == [
        ("layers.1.moe", False, [88, 88]),
        ("layers.2.moe", False, [88, 88]),
        ("layers.2.moe", True, [130, 130]),
        ("layers.1.moe", True, [125, 125]),
    ]
    assert all(r.labels == (("combine", "dispatch") if r.backward else ("dispatch", "combine")) for r in regions)
    assert all(r.narrow and len(copies) == 2 for r in regions if not r.backward for copies in r.count_copies)


def fixed(program, number=256):
    """The graph for so many tokens."""
    index = build_index(program)
    plan = EpConcretize(symbols=f"u0={number}").plan(PlanContext(program, index, identify(index)))
    return apply_plan(program, index, plan)


def test_what_torchtitan_has_cut_is_the_step_that_it_has_cut():
    """Cut from another trace, whose names are others: clones are told by what they read, and buckets are opened."""
    verdict = verify(step("deepseek_v3_step"), fixed(step("deepseek_v3_chunked")))
    # Merged gathers number their dtypes as the PyTorch does that made the graph; another one may number them otherwise,
    # or have another op.
    import torch._inductor.fx_passes.bucketing  # registers it

    op = torch.ops.bucketing._pre_bucket_all_gather.default
    same = _dtypes()[0] is torch.bfloat16 and op._schema.arguments[2].name == "dtype"
    assert verdict.status == ("proved" if same else "unproved"), (verdict.findings, verdict.unproved)


@pytest.mark.full
def test_numbers_of_dtypes_of_another_pytorch_are_not_decided_nor_is_what_rests_on_them(monkeypatch):
    """Numbers that the host reads are of values that were not decided: not other ones."""
    monkeypatch.setattr(regroup, "_dtypes", lambda: (torch.complex32, *_dtypes()[:-1]))
    verdict = verify(step("deepseek_v3_step"), fixed(step("deepseek_v3_chunked")))
    assert verdict.status == "unproved", verdict.findings
    assert any(gap.rule == "effect" for gap in verdict.unproved)


@pytest.mark.full
def test_a_graph_for_any_number_of_tokens_is_compared_for_that_of_before():
    before, after = step("deepseek_v3_step"), step("deepseek_v3_chunked")
    verdict, compared = verify_sized(before, after)
    assert verdict.status == "proved", (verdict.findings, verdict.unproved)
    assert "compared for u0 = 256, which BEFORE was made for" in verdict.notes[0].text
    assert compared is not after and verify_sized(before, before)[1] is before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("_softmax", -1, 0),  # over the tokens, not the experts
        ("scatter_", True, 2),  # marks that are no ones
        ("scatter_", -1, 0),
        ("index_2", "getitem_15", "floor_divide"),
        ("cumsum_1", "_unsafe_view_4", "view_47"),  # segments of ranks, where those of experts are needed
        ("repeat_interleave", "_unsafe_view_4", "view_47"),
        ("index_4", "_unsafe_view_5", "sub_1"),
        ("sub_2", "index_5", "index_4"),
        ("add_6", "arange_1", "index_5"),
        ("view_50", [2, 4], [4, 2]),
        ("index_6", "sub_2", "index_select"),
        ("index_put_", "sub_2", "index_select"),
        ("deterministic_scatter_add", "zeros_like_1", "_to_copy_48"),  # equal: added to other rows of the same tokens
        ("mul_23", "_to_copy_58", "wait_tensor_22"),  # rows in the order in which they came
        ("all_to_all_single_2", "_local_scalar_dense", "_local_scalar_dense_2"),
        ("gather_3", 0, 1),
    ],
)
@pytest.mark.sampled(1)
def test_a_step_that_mixes_tokens_is_not_proved(name, old, new):
    """The module of both graphs is changed alike, so that its clones are faithful."""
    before = step("deepseek_v3_step")
    after = cut_step()
    before, after = (replace(each, graph=copied(each.graph)) for each in (before, after))
    for program, suffix in ((before, ""), (after, "_chunk0"), (after, "_chunk1")):
        nodes = {node.name: node for node in program.graph.nodes}
        node, swap = nodes[name + suffix], {}
        if isinstance(old, str):
            swap = {nodes.get(old + suffix): nodes.get(new + suffix)}
            if new == "_to_copy_48" and suffix:
                swap = {nodes[old + suffix]: nodes["mm_11" + suffix].args[0]}
            node.args = fx.node.map_arg(node.args, lambda n, swap=swap: swap.get(n, n))
        else:
            node.args = tuple(new if arg == old and (arg is True) == (old is True) else arg for arg in node.args)
    report = Report()
    whole = folded(before, after, report)
    proved = whole is not None and not any("layers.1.moe" in gap.text for gap in report.unproved)
    assert proved == (name == "deterministic_scatter_add"), (report.findings, report.unproved, report.notes)


@lru_cache(maxsize=1)
def cut_step():
    program = step("deepseek_v3_step")
    return apply_plan(program, build_index(program), plan_of(program, chunks=2))


def test_the_step_is_proved_chunk_by_chunk():
    verdict = verify(step("deepseek_v3_step"), cut_step())
    assert verdict.status == "proved", verdict.unproved


def test_a_clone_that_fits_no_node_of_another_trace():
    after = fixed(step("deepseek_v3_chunked"))
    node = next(node for node in after.graph.nodes if node.name == "mul_93_chunk1")
    node.args = (node.args[0], 2.0)
    verdict = verify(step("deepseek_v3_step"), after)
    assert verdict.status == "unproved" and "AFTER was cut from another trace" in verdict.unproved[0].text


def test_every_exchange_has_a_size():
    """Rows by symbols that no split names: both sides of an exchange are spread evenly."""
    program = step("deepseek_v3_chunked", described=False)
    index = build_index(program, {"u0": 256})
    sent = [
        index.tensors[node].bytes
        for each in index.launches.values()
        if each.kind is Kind.ALL_TO_ALL
        for node in each.inputs
        if index.tensors[node].dtype == "bfloat16"
    ]
    assert sent == [384 * 256 * 2] * 16


@pytest.mark.full
def test_annotations_of_others_are_kept(tmp_path):
    save(step("deepseek_v3_chunked", described=False), tmp_path / "out.fx.txt")
    again = load(tmp_path / "out.fx.txt")
    index = build_index(again)
    assert len(regions_of(index, annotations_of(again, index))) == 4


@pytest.mark.parametrize("name", ["deepseek_v3_step", "deepseek_v3_chunked"])
def test_a_backward_pass_that_no_node_is_marked_for(name):
    """What the gradient of the loss makes, and what is computed again for it, stands behind it."""
    program = load(DATA / f"{name}.fx.txt.gz")
    index = build_index(program)
    told = backward_nodes(program, index)
    for node in program.graph.nodes:
        node.meta.pop("autograd_backward", None)
    found = backward_nodes(program, build_index(program))
    # The gradient itself, which is marked as forward; sizes, which the loss does not need.
    assert {index.names[node].rpartition("_")[0] for node in found ^ told} <= {"ones", "sym_size_int_3"}


def test_a_step_of_which_nothing_is_backward():
    program = load(DATA / "deepseek_v3_step.fx.txt.gz", descriptions=read_ops(DATA / "ops.yaml"))
    for node in program.graph.nodes:
        node.meta.pop("autograd_backward", None)
        if node.op == "output":
            node.args = ((None, *node.args[0][1:]),)
    report = plan_of(program, chunks=2).report
    assert {region.direction for region in report.regions} == {"forward"}
    assert "it is cut as forward" in report.remarks[0] and "autograd_backward" in report.remarks[0]


def test_a_wait_for_what_was_waited_for_goes():
    program = step("deepseek_v3_step", described=False)
    doubled = [n for n in program.graph.nodes if op_name(n.target) == WAIT and op_name(n.args[0].target) == WAIT]
    result = run(program, parse_pipeline("cleanup"), model=None)
    assert len(doubled) == 2 and result.steps[0].report["waits_removed"] == 2 and result.verified == "proved"


def test_a_step_without_annotations_shares_its_groups_out():
    """Counts are told by what the host reads soon; the size of a group by the number of split sizes."""
    program = load(DATA / "deepseek_v3_step.fx.txt.gz", descriptions=read_ops(DATA / "ops.yaml"))
    for node in program.graph.nodes:
        node.meta.pop("custom", None)
    exchanges = [each for each in identify(build_index(program)).collectives if each.kind is Kind.ALL_TO_ALL]
    assert Counter(each.role for each in exchanges) == {Role.EP: 8, Role.EP_COUNT: 2}
    reason = Reason.of("shared_group", wanted="", group="", others="")
    edits = (NewGroup("extra", exchanges[0].group, "ep", reason), Regroup(exchanges[0].launch, "extra"))
    plan = Plan("groups", build_index(program).fingerprint, edits=edits)
    assert verify(program, apply_plan(program, build_index(program), plan)).status == "proved"


def test_attention_over_rows_that_hold_samples():
    with pytest.raises(InputError, match=r"has samples and sequence folded into 256 rows.*choose modules"):
        plan_of(step("deepseek_v3_step"), modules="layers.*", chunks=2)


@pytest.mark.full
def test_memory_stays_within_the_peak_of_the_step():
    """Buckets, and launches ahead of their time, that would raise it are given up, and the report says so."""
    result = run(step("deepseek_v3_step"), parse_pipeline("ep-chunk,bucket{strategy=module,memory_budget=own}"))
    free = run(step("deepseek_v3_step"), parse_pipeline("ep-chunk,bucket{strategy=module,memory_budget=none}"))
    seen = (result.steps[0].after, result.last, free.last)
    own, kept, more = (live_bytes(each.index).peak_bytes for each in seen)
    assert kept <= own < more
    (remark,) = [text for text in result.steps[1].report["remarks"] if text.startswith("for a peak of")]
    assert "stay where they are" in remark
    assert result.steps[1].report["buckets"] > 0


def test_a_backward_pass_without_module_paths_is_cut_as_well():
    """The same exchanges in chunks of the same sizes, though experts are as wide as there are tokens."""
    program = load(DATA / "deepseek_v3_step.fx.txt.gz", descriptions=read_ops(DATA / "ops.yaml"))
    for node in program.graph.nodes:
        if node.meta.get("autograd_backward"):
            node.meta.pop("custom", None)
    told, plain = plan_of(step("deepseek_v3_step"), chunks=2), plan_of(program, chunks=2)
    seen = [[(r.module, r.direction, r.sizes, r.exchanges) for r in plan.report.regions] for plan in (told, plain)]
    assert seen[0] == seen[1]
