"""Waits apart from what they wait for: launches that are read by their own name, waits on both sides of a barrier."""

from __future__ import annotations

import pytest

from commcc.base.errors import InternalError
from commcc.graph.index import build_index
from commcc.graph.ops import OpaqueOp
from commcc.passes.options import parse_pipeline
from commcc.planning.merge_order import cycles
from commcc.replay.numeric import Settings, verify_numeric
from commcc.run.forms import from_preset
from commcc.run.pipeline import run
from commcc.timing.cost.model import load_model
from tests.random_graphs import GraphBuilder, aten, c10d, getitem
from tests.test_index import before


def passed(program, text):
    return run(program, parse_pipeline(text), model=load_model("h100"))


@pytest.mark.parametrize("through", ["launch", "view", "part"])
def test_who_reads_a_launch_itself_comes_after_its_wait(through):
    b = GraphBuilder()
    x, y = b.placeholder("x", (4, 4)), b.placeholder("y", (4, 4))
    if through == "part":
        many = b.call(c10d.all_gather_into_tensor_coalesced.default, [y, x], 2, "0")
        other, launch = (getitem(b, many, i) for i in range(2))
        b.call(c10d.wait_tensor.default, other)
    else:
        launch = b.call(c10d.all_gather_into_tensor.default, x, 2, "0")
    view = b.call(aten.view.default, launch, [-1]) if through == "view" else launch
    computed = b.call(aten.mm.default, b.call(aten.sin.default, y), y)
    wait = b.call(c10d.wait_tensor.default, launch)
    read = b.call(aten.abs.default, view)
    program = b.program([read, computed], {"0": 2})
    assert before(build_index(program), wait.name, read.name)
    passed(program, "reorder")  # raises where the result is another program


def fenced(b, value):
    """Communication of which nothing is known: nothing passes it."""
    node = b.graph.call_function(OpaqueOp("c10d.send_.default"), (value,))
    node.meta["val"] = None
    return node


@pytest.mark.parametrize("form", ["copy", "coalesced"])
def test_launches_whose_waits_are_on_both_sides_of_a_barrier_do_not_merge(form):
    b = GraphBuilder()
    shards = [b.placeholder(f"primals_{i}", (4, 4)) for i in range(4)]
    launches = [b.call(c10d.all_gather_into_tensor.default, shard, 2, "0") for shard in shards]
    early = [b.call(c10d.wait_tensor.default, launch) for launch in launches[:2]]
    barrier = fenced(b, b.placeholder("x", (4, 4)))
    late = [b.call(c10d.wait_tensor.default, launch) for launch in launches[2:]]
    program = b.program([*early, *late], {"0": 2})
    assert build_index(program).barriers == (build_index(program).position[barrier.name],)
    report = passed(program, f"bucket{{groups=all,form={form}}}").steps[0].report
    assert (report["buckets"], report["members"]) == (2, 4)
    assert report["closed"]["dependence"] == 1


def test_a_launch_that_is_a_bucket_may_have_waits_on_both_sides_of_a_barrier():
    b = GraphBuilder()
    shards = [b.placeholder(f"primals_{i}", (4, 4)) for i in range(2)]
    many = b.call(c10d.all_gather_into_tensor_coalesced.default, shards, 2, "0")
    first = b.call(c10d.wait_tensor.default, getitem(b, many, 0))
    fenced(b, first)
    second = b.call(c10d.wait_tensor.default, getitem(b, many, 1))
    index = build_index(b.program([first, second], {"0": 2}))
    assert not cycles(index, [[index.position[many.name]]], ())


KINDS = ("gather", "scatter", "reduce")


def waited_for_again(kind, how):
    """Two collectives of one kind, each waited for a second time: through its wait, a view of that, or itself."""
    b = GraphBuilder()
    shards = [b.placeholder(f"primals_{i}", (4, 4)) for i in range(2)]
    outputs = []
    for shard in shards:
        sent = shard if kind == "gather" else b.call(aten.neg.default, shard)
        ways = {
            "gather": lambda sent: b.gather(sent, 2, "0"),
            "scatter": lambda sent: b.scatter(sent, 2, "0"),
            "reduce": lambda sent: b.reduce(sent, "0"),
        }
        wait = ways[kind](sent)
        again = {"wait": wait, "launch": wait.args[0]}.get(how) or b.call(aten.view.default, wait, [-1])
        outputs += [b.call(c10d.wait_tensor.default, again), wait]
    return b.program(outputs, {"0": 2})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["wait", "view"])
@pytest.mark.parametrize("text", ["bucket{groups=all}", "bucket{groups=all,form=coalesced}", "bucket{strategy=auto}"])
def test_what_is_waited_for_twice_is_merged(kind, how, text):
    program = waited_for_again(kind, how)
    result = passed(program, f"{text},reorder")
    assert result.verified == "proved"
    assert result.steps[0].report["members"] == 2
    verdict = verify_numeric(program, result.program, Settings())
    assert verdict.status == "equal", verdict


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["copy", "coalesced"])
def test_two_waits_for_one_launch_keep_it_out_of_a_bucket(kind, form):
    report = passed(waited_for_again(kind, "launch"), f"bucket{{groups=all,form={form}}}").steps[0].report
    assert report["buckets"] == 0
    assert [text.rpartition(": ")[2] for text in report["left_out"]] == ["has 2 waits"]


@pytest.mark.parametrize("preset", ["pre-overlap", "autoparallel", "simple-fsdp"])
def test_presets_take_what_is_waited_for_twice(preset):
    result = run(waited_for_again("scatter", "wait"), from_preset(preset), model=load_model("h100"))
    assert result.verified == "proved"


def test_a_result_that_is_no_graph_is_not_the_users_mistake(monkeypatch):
    monkeypatch.setattr("commcc.apply.merge.waits_again", lambda _node: False)
    monkeypatch.setattr("commcc.graph.index.build.waits_for_nothing", lambda _node: False)
    with pytest.raises(InternalError, match=r"^bucket\{groups=all\}: the result is no graph .* please report this"):
        passed(waited_for_again("scatter", "wait"), "bucket{groups=all}")
