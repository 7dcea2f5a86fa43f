"""Every rule of the gate: what makes it speak, what does not, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commcc.lint.registry import BY_ID, RULES
from commcc.lint.types import Severity, Subject
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load, save
from commcc.timing.snapshot import take
from tests.lint_graphs import SMALL, findings, graph, healthy, subject

SAMPLE = "sample_graphs/tiny_llama_fsdp2_fw.fx.txt"
QUIET = [rule.id for rule in RULES if not rule.needs and not rule.across and rule.id != "baseline-regression"]


@pytest.mark.parametrize("rule", [each for each in QUIET if each != "small-collective"])
def test_nothing_is_found_in_a_healthy_graph(rule):
    assert findings(rule, healthy()) == []


def only(rule: str, text, **options):
    (found,) = findings(rule, text, **options)
    return found


def nodes(finding) -> list[str]:
    return [spot.node for spot in finding.spots]


def test_a_result_read_before_its_wait():
    text = graph("a", "ag = gather(a)", "h = half(ag)", "m = mm(h, a)", "w = wait_wide(ag)", returns="m, w")
    found = only("use-before-wait", text)
    assert found.text == "'m' reads the result of 'ag' before it is waited for"
    assert nodes(found) == ["m", "ag"]


def test_a_result_in_place_is_there_behind_its_wait():
    """``wait_tensor(x)`` after ``all_reduce_(x)``: what is read later is named as before."""
    reduce = 'r: "f32[8, 8][8, 1]cpu" = torch.ops._c10d_functional.all_reduce_.default(m, "sum", "0")'
    wait = 'w: "f32[8, 8][8, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(r)'
    add = 'x: "f32[8, 8][8, 1]cpu" = torch.ops.aten.add.Tensor(r, a)'
    lines = ('m: "f32[8, 8][8, 1]cpu" = torch.ops.aten.neg.default(a)', reduce)
    assert findings("use-before-wait", graph("a", *lines, wait, add, returns="x")) == []
    assert nodes(only("use-before-wait", graph("a", *lines, add, wait, returns="x"))) == ["x", "r"]


def test_what_reads_a_launch_by_its_own_name_may_stand_behind_the_wait():
    """No pass moves it ahead of that."""
    reduce = 'r: "f32[8, 8][8, 1]cpu" = torch.ops._c10d_functional.all_reduce.default(a, "sum", "0")'
    wait = 'w: "f32[8, 8][8, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default(r)'
    add = 'x: "f32[8, 8][8, 1]cpu" = torch.ops.aten.add.Tensor(r, a)'
    assert findings("use-before-wait", graph("a", reduce, wait, add, returns="x")) == []
    assert nodes(only("use-before-wait", graph("a", reduce, add, wait, returns="x"))) == ["x", "r"]


@pytest.mark.parametrize(
    "read",
    ["v = view(rs)", 's: "Sym(8)" = torch.ops.aten.sym_size.int(rs, 0)'],
    ids=["a view that is waited for", "a size"],
)
def test_views_and_sizes_of_a_result_are_no_reads(read):
    text = graph("a b", "g = wide(a, b)", "rs = scatter(g)", read, "w = wait(rs)", returns="w")
    assert findings("use-before-wait", text) == []


def test_a_view_of_a_result_that_is_written_is_a_read():
    text = graph(
        "a b", "g = wide(a, b)", "rs = scatter(g)", "v = view(rs)", "x = add_(v, a)", "w = wait(rs)", returns="w"
    )
    assert nodes(only("use-before-wait", text)) == ["x", "rs"]


def test_a_write_to_what_is_being_sent():
    lines = ("g = mul(a, b)", "r = reduce(g)", "x = add_(g, b)", "w = wait(r)")
    found = only("write-in-flight", graph("a b", *lines, returns="w"))
    assert nodes(found) == ["x", "r"] and "'x' writes to memory that 'r'" in found.text
    later = (lines[0], lines[1], lines[3], lines[2])
    assert findings("write-in-flight", graph("a b", *later, returns="w")) == []


def test_never_waited():
    found = only("never-waited", graph("a", "r = reduce(a)", "m = mm(a, a)", returns="m"))
    assert nodes(found) == ["r"] and "live to the end" in found.text
    assert "is returned" in only("never-waited", graph("a", "r = reduce(a)", returns="r")).text


def test_unknown_communication():
    text = graph("a", 'b: "f32[8, 8][8, 1]cuda:0" = torch.ops.c10d.allreduce_.default(a, 0)', returns="b")
    found = only("unknown-communication", text)
    assert nodes(found) == ["b"] and "unknown way" in found.text


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("c10d.allreduce_.default(a, 0)", "use the functional"),
        ("_c10d_functional.isend.default(a, 1, 0, '0')", "--ignore"),
    ],
)
def test_the_remedy_for_unknown_communication_names_no_library_that_the_op_is_of(call, words):
    text = graph("a", f'b: "f32[8, 8][8, 1]cuda:0" = torch.ops.{call}', returns="b")
    assert words in only("unknown-communication", text).remedy


@pytest.mark.parametrize("op", ["streams.synchronize_event", "mempool.begin"])
def test_what_only_orders_is_no_communication(op):
    text = graph("a", f"s = torch.ops.{op}.default(0, 1)", "m = mm(a, a)", returns="m")
    assert findings("unknown-communication", text) == []


RECEIVED = 'b: "f32[8, 8][8, 1]cuda:0" = torch.ops._c10d_functional.irecv.default(a, 0, 0, "0")'
BEGUN = 'b: "f32[8, 8][8, 1]cuda:0" = torch.ops.mine.begin.default(a)'


@pytest.mark.parametrize(
    ("begun", "node", "words"), [(RECEIVED, "b", "unknown way"), (BEGUN, "w", "what is not known")]
)
def test_a_wait_for_what_is_unknown_is_named_where_nothing_else_is(begun, node, words):
    found = only("unknown-communication", graph("a", begun, "w = wait(b)", returns="w"))
    assert nodes(found) == [node] and words in found.text


SYNC = 'n: "Sym(u0)" = torch.ops.aten._local_scalar_dense.default(c)'


def test_host_syncs_while_something_is_in_flight():
    lines = ['c: "i64[][]cuda:0" = torch.ops.aten.argmax.default(a)', "r = reduce(a)", "r2 = reduce(b)", "w = wait(r)"]
    text = graph("a b", lines[0], lines[1], lines[2], SYNC, lines[3], "w2 = wait(r2)", returns="w, w2, n")
    found = only("host-sync-in-flight", text)
    assert nodes(found) == ["n", "r", "r2"] and found.measured == 2
    before = graph("a b", lines[0], SYNC, lines[1], lines[3], returns="w, n")
    assert findings("host-sync-in-flight", before) == []


def test_sizes_that_nothing_tells():
    text = graph(
        "a",
        'c: "i64[][]cuda:0" = torch.ops.aten.argmax.default(a)',
        SYNC,
        'e: "f32[u0, 8][8, 1]cuda:0" = torch.ops.aten.new_empty.default(a, [n, 8])',
        "r: \"f32[u0, 8][8, 1]cuda:0\" = torch.ops._c10d_functional.all_reduce.default(e, 'sum', '0')",
        'w: "f32[u0, 8][8, 1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(r)',
        returns="w",
    )
    found = only("unknown-size", text)
    assert nodes(found) == ["r"] and found.text.startswith("1 collective has a size")
    assert findings("unknown-size", subject(text, hints={"u0": 4})) == []


def test_waits_directly_after_launches():
    lines = (
        "g = gather(a)",
        "h = gather(b)",
        "wg = wait_wide(g)",
        "hg = half(wg)",
        "m = mm(hg, hg)",
        "wh = wait_wide(h)",
    )
    text = graph("a b", *lines, returns="m, wh")
    found = only("wait-after-launch", text)
    assert nodes(found) == ["g", "wg"] and found.measured == 0
    assert "all_gather for fsdp" in found.text and "exposed" in found.text
    assert "exposed" not in only("wait-after-launch", subject(text, cost=None)).text
    assert len(findings("wait-after-launch", text, least=2)) == 2
    assert findings("wait-after-launch", text, above=1 << 20) == []


def test_waits_and_launches_of_others_are_no_work():
    lines = ("g = gather(a)", "h = gather(b)", "wh = wait_wide(h)", "wg = wait_wide(g)", "s = wide(wg, wh)")
    found = findings("wait-after-launch", graph("a b", *lines, returns="s"))
    assert [nodes(each) for each in found] == [["g", "wg"], ["h", "wh"]]


def test_the_first_wait_counts():
    lines = ("g = gather(a)", "w = wait_wide(g)", "m = mm(a, a)", "v = wait_wide(g)", "s = wide(w, v)")
    found = only("wait-after-launch", graph("a", *lines, returns="m, s"))
    assert nodes(found) == ["g", "w"]


def test_small_collectives_that_could_share_a_launch():
    found = only("small-collective", healthy())
    assert found.text == "3 all_gather launches on group 0 (float32) are smaller than 1.0 MiB, 1.5 KiB together"
    assert nodes(found) == ["ag1", "ag2", "ag3"]
    assert len(findings("small-collective", healthy(), least=3)) == 1
    assert findings("small-collective", healthy(), least=4) == []
    assert findings("small-collective", healthy(), below=512) == []
    assert len(findings("small-collective", healthy(), below=513)) == 1


def test_duplicated_gathers():
    lines = (
        "g = gather(a)",
        "w = wait_wide(g)",
        "h = half(w)",
        "g2 = gather(a)",
        "w2 = wait_wide(g2)",
        "h2 = half(w2)",
    )
    text = graph("a b", *lines, "m = mm(h, h2)", returns="m")
    found = only("duplicated-gather", text)
    assert found.text == "'a' is gathered 2 times on group 0, 512 B each time: first by 'g'"
    assert nodes(found) == ["g2", "g"]
    assert findings("duplicated-gather", text, max_span=2) == []
    assert findings("duplicated-gather", graph("a b", *lines[:3], "m = mm(h, h)", returns="m")) == []


def test_gathers_repeated_to_save_memory_are_meant():
    """Keeping the first result over the large tensor between would raise the peak."""
    big = 'x: "f32[4096, 8][8, 1]cuda:0" = torch.ops.aten.expand.default(h, [4096, 8])'
    copy = 'y: "f32[4096, 8][8, 1]cuda:0" = torch.ops.aten.clone.default(x)'
    total = 's: "f32[8][1]cuda:0" = torch.ops.aten.sum.dim_IntList(y, [0])'
    again = ("g2 = gather(a)", "w2 = wait_wide(g2)", "h2 = half(w2)", "m = mm(h2, h2)")
    first = (
        "g = gather(a)",
        "w = wait_wide(g)",
        'h: "f32[1, 8][8, 1]cuda:0" = torch.ops.aten.slice.Tensor(w, 0, 0, 1)',
    )
    text = graph("a", *first, big, copy, total, *again, returns="m, s")
    assert findings("duplicated-gather", text, room=0) == []
    assert len(findings("duplicated-gather", text, room=1 << 20)) == 1
    assert len(findings("duplicated-gather", text)) == 1  # there is a GiB of room


def test_counts_by_kind_and_role():
    assert findings("collective-count", healthy(), max={"total": 4, "all_gather": 3, "fsdp": 4}) == []
    found = only("collective-count", healthy(), max={"all_gather/fsdp": 2, "reduce_scatter": 1})
    assert found.text == "3 all_gather launches for fsdp, more than 2"
    assert (found.measured, found.limit, found.unit) == (3, 2, "count")
    assert findings("collective-count", healthy(), max={"all_gather/tp": 0, "all_reduce/fsdp": 0, "tp": 0}) == []
    assert only("collective-count", healthy(), max={"tp": 0, "fsdp": 0}).text == "4 launches for fsdp, more than 0"


def test_bytes_by_kind():
    found = only("collective-bytes", healthy(), max={"reduce_scatter": 255, "total": 1024})
    assert found.text == "256 B by reduce_scatter launches, more than 255 B"


def test_runs_of_compute():
    found = only("max-consecutive-compute", healthy(), max={"reduce_scatter": 2, "all_to_all": 0})
    assert found.text == "3 compute nodes in a row without a reduce_scatter launch, more than 2: from 'm0' to 'm2'"
    assert nodes(found) == ["m0", "m2"]
    assert findings("max-consecutive-compute", healthy(), max={"reduce_scatter": 3}) == []


def test_the_longest_run_is_that_of_the_metrics():
    under_test = subject(healthy())
    for kind, longest in under_test.metrics.max_consecutive_compute.items():
        if under_test.metrics.collectives[kind]:
            assert only("max-consecutive-compute", under_test, max={kind: longest - 1}).measured == longest


@pytest.fixture(scope="module")
def sample() -> Subject:
    program = load(SAMPLE)
    return Subject(SAMPLE, program, take(program))


def test_what_the_module_plan_does_not_cover(sample):
    found = findings("module-plan", sample, modules=("layers.*", "norm"))
    assert [spot.module for each in found for spot in each.spots] == ["tok_embeddings", "output"]
    assert "serves module 'output', which the module plan does not cover" in found[1].text
    assert findings("module-plan", sample, modules=("layers.*", "norm+output+tok_embeddings")) == []


def test_a_module_plan_for_another_model(sample):
    found = only("module-plan", sample, modules=("layerz.*",))
    assert "no module 'layerz.*' in the graph" in found.text


def test_spots_know_module_line_and_source(sample):
    spot = findings("module-plan", sample, modules=("layers.*", "norm"))[1].spots[0]
    text = Path(SAMPLE).read_text().splitlines()[spot.line - 1]
    assert text.strip().startswith(f"{spot.node}:") and spot.module == "output"
    assert spot.source == "commcc/capture/models/llama.py:195"


def test_spans_of_buckets_come_from_the_file_through_either_format(tmp_path):
    program = load("sample_graphs/tiny_llama_fsdp4_bw.fx.txt.gz")
    made = run(program, parse_pipeline("bucket{bucket_cap_mb=0.01,param_order=true}"))
    buckets = made.steps[0].plan.rewrite.buckets
    assert any(list(each.members) != sorted(each.members) for each in buckets)
    planned = sorted(max(each.members) - min(each.members) for each in buckets)
    for name in ("b.fx.txt", "b.pt2"):
        save(made.program, tmp_path / name)
        read = load(tmp_path / name)
        under_test = Subject("b", read, take(read))
        found = findings("topological-span", under_test, max=0)
        assert sorted(each.measured for each in found) == planned
        assert all(each.spots[0].node in under_test.index.position for each in found)
        assert findings("topological-span", under_test, max=planned[-1]) == []


def test_buckets_of_files_that_say_no_span_are_named(sample):
    made = run(sample.program, parse_pipeline("bucket")).program
    bare = replace(made, provenance=tuple({"pass": entry["pass"]} for entry in made.provenance))
    found = only("topological-span", Subject("b", bare, take(bare)), max=0)
    assert found.severity is Severity.INFO and "does not say how far apart" in found.text


def test_simulated_limits_hold_at_the_limit_and_not_below():
    lines = ("g = gather(a)", "w = wait_wide(g)", "h = half(w)", "m = mm(b, b)", "n = mm(m, h)")
    under_test = subject(graph("a b", *lines, returns="n"))
    timeline, memory = under_test.prediction.timeline, under_test.memory
    for rule, option, value in (
        ("step-time", "max", timeline.step_ns),
        ("exposed-communication", "max", timeline.exposed_ns),
        ("exposed-communication", "max_share", timeline.exposed_ns / timeline.communication_ns),
        ("exposed-communication", "max_of_step", timeline.exposed_ns / timeline.step_ns),
        ("exposed-communication", "max_each", max(timeline.exposed.values())),
        ("bound-gap", "max", timeline.step_ns / under_test.prediction.bound.ns - 1),
        ("peak-memory", "max", memory.peak_bytes),
        ("in-flight-bytes", "max", timeline.in_flight_bytes),
    ):
        assert value > 0, (rule, option)
        assert findings(rule, under_test, **{option: value}) == [], (rule, option)
        below = value * 0.999 if isinstance(value, float) else value - 1
        found = findings(rule, under_test, **{option: below})[0]
        assert found.measured == value and found.limit == below, (rule, option)
        assert found.spots, rule


def test_peak_memory_needs_no_cost_model():
    found = only("peak-memory", subject(healthy(), cost=None), max=1)
    assert found.spots[0].node and "inputs among them" in found.text
    assert not BY_ID["peak-memory"].costed


def test_every_rule_is_described():
    for rule in RULES:
        assert rule.about.endswith(".") and not rule.summary.endswith("."), rule.id
        assert rule.id == rule.id.lower() and " " not in rule.id
        names = set(rule.options.__dataclass_fields__)
        assert set(rule.needs) <= names, rule.id
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.severity is not Severity.OFF for rule in RULES)


@pytest.mark.parametrize("rule", ["use-before-wait", "never-waited"])
def test_an_op_with_a_graph_of_its_own_may_wait_inside(rule):
    program = load("tests/data/containers/dumps/controldeps.repro.txt")
    under_test = Subject("g", program, take(program))
    assert any(op == "higher_order.control_deps" for op in under_test.index.ops)
    assert findings(rule, under_test) == []


IN_PLACE = f"r: {SMALL} = torch.ops._c10d_functional.all_reduce_.default(a, 'sum', '{{}}')"


@pytest.mark.parametrize(("group", "count"), [("0", 0), ("1", 1)])
def test_a_collective_that_writes_what_one_of_another_group_sends(group, count):
    """Those of one group run one behind the other."""
    lines = ("g = gather(a)", IN_PLACE.format(group), "w = wait_wide(g)", "v = wait(r)", "h = half(w)", "m = mm(h, v)")
    text = graph("a b", *lines, returns="m")
    assert len(findings("write-in-flight", text)) == count


@pytest.mark.parametrize(("order", "count"), [("mv", 1), ("vm", 0)])
def test_what_is_reduced_in_place_read_under_its_own_name(order, count):
    lines = {"m": "m = mm(a, b)", "v": "v = wait(r)"}
    text = graph("a b", IN_PLACE.format("1"), *(lines[each] for each in order), returns="m, v")
    assert len(findings("use-before-wait", text)) == count
