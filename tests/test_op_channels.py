"""Ops that communicate through channels of their own, as a file says: collectives pass them, and they stay in order."""

from __future__ import annotations

import operator

import pytest

import commcc
from commcc.base.errors import InputError, OptionError
from commcc.capture.importing import from_graph_module
from commcc.graph.index import build_index
from commcc.graph.ops import OpaqueOp
from commcc.lint.ranks.trace import trace_of
from commcc.live import graph_pass
from commcc.passes.options import parse_pipeline
from commcc.replay.prepare import prepare
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text
from commcc.serialization import load, save
from commcc.serialization.op_files import check, described, read_ops, undescribed
from commcc.timing.cost import load_model
from commcc.verify import verify
from tests.op_libraries import op_library
from tests.verify_graphs import Graph, aten, c10d

ROWS = 2048
OPS = """
apart_ep.dispatch: {arguments: [x, ranks], communicates: true}
apart_ep.combine: {arguments: [x, handle], communicates: true}
"""


@pytest.fixture(scope="module")
def library():
    schemas = ("dispatch(Tensor x, int ranks) -> (Tensor, Tensor)", "combine(Tensor x, Tensor handle) -> Tensor")
    runs = {"dispatch": lambda x, ranks: (x.clone(), x.new_empty(ranks)), "combine": lambda x, handle: x.clone()}
    with op_library("apart_ep", schemas, runs, runs) as made:
        yield made


@pytest.fixture
def ops_file(tmp_path):
    (tmp_path / "ops.yaml").write_text(OPS)
    return tmp_path / "ops.yaml"


def layer(library):
    """Tokens go to experts and back; behind that a parameter is gathered and used."""
    b = Graph()
    x, expert, shard = b.input("x", ROWS, ROWS), b.input("expert", ROWS, ROWS), b.input("shard", ROWS // 4, ROWS)
    sent = b(library.dispatch.default, b(aten.mm.default, x, expert), 4, name="dispatch")
    rows, handle = b(operator.getitem, sent, 0), b(operator.getitem, sent, 1)
    back = b(library.combine.default, b(aten.mm.default, rows, expert), handle, name="combine")
    launch = b(c10d.all_gather_into_tensor.default, shard, 4, "0", name="gather")
    return b.program(b(aten.mm.default, back, b.wait(launch)))


def reordered(program):
    return run(program, parse_pipeline("reorder"), model=load_model("h100"))


def order(graph):
    names = [node.name for node in graph.nodes]
    return [name for name in names if name in ("dispatch", "combine", "gather")]


def test_collectives_pass_them(library, ops_file):
    plain = layer(library)
    assert order(reordered(plain).program.graph) == ["dispatch", "combine", "gather"]
    result = reordered(described(layer(library), read_ops(ops_file)))
    assert result.verified == "proved" and order(result.program.graph) == ["gather", "dispatch", "combine"]
    after = undescribed(result.program)
    assert {str(node.target) for node in after.graph.nodes} >= {"apart_ep.dispatch.default", "apart_ep.combine.default"}
    assert not any(isinstance(node.target, OpaqueOp) for node in after.graph.nodes)
    # Without the file nobody knows what the gather passed.
    assert verify(plain, after).status == "unproved"


def test_they_keep_their_order_and_stay(library, ops_file):
    def two(first, second):
        b = Graph()
        x, y = b.input("x", 8, 8), b.input("y", 8, 8)
        sent = {name: b(library.dispatch.default, value, 4, name=name) for name, value in ((first, x), (second, y))}
        b(library.combine.default, x, y, name="unused")
        return described(b.program(*(b(operator.getitem, sent[name], 0) for name in ("a", "b"))), read_ops(ops_file))

    def swapped():
        b = Graph()
        x, y = b.input("x", 8, 8), b.input("y", 8, 8)
        second = b(library.dispatch.default, y, 4, name="b")
        first = b(library.dispatch.default, x, 4, name="a")
        b(library.combine.default, x, y, name="unused")
        made = b.program(*(b(operator.getitem, sent, 0) for sent in (first, second)))
        return described(made, read_ops(ops_file))

    before = two("a", "b")
    index = build_index(before)
    assert index.barriers == () and index.position["a"] in index.all_preds[index.position["b"]]
    assert verify(before, two("a", "b")).status == "proved"
    assert verify(before, swapped()).status == "different"
    cleaned = run(before, parse_pipeline("cleanup"))
    assert "unused" in [node.name for node in cleaned.program.graph.nodes]


def test_other_ranks_and_replay_know_of_them(library, ops_file):
    program = described(layer(library), read_ops(ops_file))
    assert [(opaque.node, opaque.why) for opaque in trace_of(program).opaque] == [
        ("dispatch", "communicates through channels of its own"),
        ("combine", "communicates through channels of its own"),
    ]
    with pytest.raises(InputError, match=r"apart_ep.dispatch communicates through channels of its own"):
        prepare(program, imported=frozenset({"apart_ep::dispatch", "apart_ep::combine"}))
    assert check(program, read_ops(ops_file).values()) == ["apart_ep.dispatch", "apart_ep.combine"]


@pytest.mark.parametrize("extension", ["fx.txt", "pt2"])
def test_files_name_the_ops_as_they_were(library, ops_file, tmp_path, extension):
    program = described(layer(library), read_ops(ops_file))
    save(reordered(program).program, tmp_path / f"after.{extension}")
    again = load(tmp_path / f"after.{extension}")
    assert "apart_ep.dispatch.default" in {str(node.target) for node in again.graph.nodes}
    known = commcc.load(tmp_path / f"after.{extension}", ops=ops_file)
    assert verify(described(layer(library), read_ops(ops_file)), known).status == "proved"


def test_a_job_is_told(library, ops_file, tmp_path):
    gm = layer(library).graph_module()
    own = {node.name: node.target for node in gm.graph.nodes}
    the_pass = graph_pass(pipeline="reorder", ops=ops_file, on_refusal="raise")
    the_pass(gm)
    assert order(gm.graph) == ["gather", "dispatch", "combine"]
    assert {node.name: node.target for node in gm.graph.nodes} == own
    # Ranks with other files do not agree.
    (tmp_path / "other.yaml").write_text(OPS.replace("[x, handle]", "[x, handle], flops: '4'"))
    others = [graph_pass(pipeline="reorder", **ops).settings for ops in ({}, {"ops": tmp_path / "other.yaml"})]
    assert len({the_pass.settings, *others}) == 3
    with pytest.raises(OptionError, match="ops is a path, not 3"):
        graph_pass(ops=3)


def test_a_job_applies_a_plan_made_with_the_file(library, ops_file, tmp_path):
    def graph_of_a_job():
        return from_graph_module(layer(library).graph_module())

    made = reordered(described(graph_of_a_job(), read_ops(ops_file)))
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "forward.yaml").write_text(plan_text(made))
    gm = layer(library).graph_module()
    graph_pass(plan=tmp_path / "plan", ops=ops_file, on_refusal="raise")(gm)
    assert order(gm.graph) == ["gather", "dispatch", "combine"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "apart_ep.combine: {arguments: [x], shape: x}",
            "apart_ep.combine communicates by its name or its arguments: say 'communicates",
        ),
        ("mylib.all_reduce: {arguments: [x], writes: []}", "mylib.all_reduce communicates by its name"),
        ("mylib.put: {arguments: [x, group_name], writes: []}", "mylib.put communicates by its name or its arguments"),
        ("mylib.put: {arguments: [x], communicates: maybe}", "'communicates' must be true or false, not 'maybe'"),
        (
            "mylib.put: {arguments: [x], like: aten.neg(x), communicates: true}",
            "which says all else: leave out communicates",
        ),
    ],
)
def test_files_that_do_not_say_enough(tmp_path, text, message):
    (tmp_path / "wrong.yaml").write_text(text + "\n")
    with pytest.raises(InputError, match=message):
        read_ops(tmp_path / "wrong.yaml")


def test_an_op_that_only_sounds_like_it(tmp_path):
    (tmp_path / "ops.yaml").write_text("mylib.combine: {arguments: [x], communicates: false}\n")
    b = Graph()
    x = b.input("x", 8, 8)
    b(OpaqueOp("mylib.combine.default"), x, name="combine", val=x.meta["val"])
    program = described(b.program(x), read_ops(tmp_path / "ops.yaml"))
    assert not build_index(program).barriers
    cleaned = run(program, parse_pipeline("cleanup")).program
    assert "combine" not in [node.name for node in cleaned.graph.nodes]


@pytest.mark.parametrize("op", ["mylib.combine", "mylib.anything"])
def test_an_assertion_may_come_before_or_behind_them(tmp_path, op):
    (tmp_path / "ops.yaml").write_text("mylib.combine: {arguments: [x], communicates: true}\n")

    def made(*, first):
        b = Graph()
        x, y = b.input("x", 8, 8), b.input("y", 8, 8)
        asserted = b(aten.sum.default, x)
        if first:
            b(aten._assert_async.default, asserted)
        called = b(OpaqueOp(f"{op}.default"), y, val=y.meta["val"])
        if not first:
            b(aten._assert_async.default, asserted)
        return described(b.program(called), read_ops(tmp_path / "ops.yaml"))

    assert verify(made(first=True), made(first=False)).status == "proved"


@pytest.mark.parametrize("written", ["nobody knows", "known"])
def test_a_read_before_what_may_write(written):
    """A known write decides; one that is only assumed leaves it open, and a description would tell."""

    def made(early):
        b = Graph()
        x, y = b.input("x", 4), b.input("y", 4)
        first = b(aten.mul.Tensor, x, 2.0)
        read = b(aten.neg.default, first, name="read") if early else None
        does = OpaqueOp("strange.score.default") if written == "nobody knows" else aten.mul_.Tensor
        b(does, first, y, name="acts", val=first.meta["val"])
        return b.program(read or b(aten.neg.default, first, name="read"), first)

    verdict = verify(made(False), made(True))
    if written == "known":
        assert verdict.status == "different"
    else:
        assert verdict.status == "unproved"
        assert any(
            "whether strange.score.default writes to it, which --ops can say" in str(g) for g in verdict.unproved
        )
    assert verify(made(False), made(False)).status == verify(made(True), made(True)).status == "proved"
