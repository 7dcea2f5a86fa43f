"""diff: merges, splits, moves, additions and renames, on graphs small enough to check by hand."""

from __future__ import annotations

import json
import operator
import random
from bisect import bisect_left
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

import commcc.graph.ops  # noqa: F401  registers the functional collectives
from commcc.base.sequences import longest_increasing, longest_increasing_length
from commcc.diff import GraphDiff, diff
from commcc.graph.program import META_KEY, NodeRecord, ProcessGroup, Program
from commcc.passes.options import parse_pipeline
from commcc.report import differing
from commcc.report.console import make_console
from commcc.report.differing import brief, difference
from commcc.run.pipeline import run
from commcc.serialization import load
from tests.counting import at_most

aten = torch.ops.aten
SAMPLES = Path(__file__).parents[1] / "sample_graphs"


class Build:
    """Builds a graph node by node; names are given, as in a file."""

    def __init__(self) -> None:
        import torch.distributed._functional_collectives  # noqa: F401

        self.graph = fx.Graph()
        self.node: dict[str, fx.Node] = {}

    def input(self, name: str) -> fx.Node:
        self.node[name] = self.graph.placeholder(name)
        return self.node[name]

    def op(self, name: str, target, *args, merged=(), **kwargs) -> fx.Node:
        made = self.graph.create_node("call_function", target, args, kwargs, name=name)
        assert made.name == name
        if merged:
            made.meta[META_KEY] = NodeRecord(merged_from=tuple(merged))
        self.node[name] = made
        return made

    def gather(self, name: str, of: fx.Node, group: str = "0", merged=()) -> fx.Node:
        return self.op(name, torch.ops._c10d_functional.all_gather_into_tensor.default, of, 2, group, merged=merged)

    def wait(self, name: str, of: fx.Node) -> fx.Node:
        return self.op(name, torch.ops._c10d_functional.wait_tensor.default, of)

    def done(self, *results: fx.Node) -> Program:
        self.graph.output(results)
        return Program(self.graph, torch.nn.Module(), {"0": ProcessGroup("0", 2), "1": ProcessGroup("1", 2)})


def gathers(count: int) -> Program:
    """``count`` parameters, each gathered just before it is multiplied."""
    b = Build()
    x = b.input("x")
    params = [b.input(f"p{i}") for i in range(count)]
    for i, p in enumerate(params):
        w = b.wait(f"w{i}", b.gather(f"ag{i}", p))
        x = b.op(f"mm{i}", aten.mm.default, x, w)
    return b.done(x)


def merged(count: int, *, record: bool) -> Program:
    """The same with all gathers merged into one."""
    b = Build()
    x = b.input("x")
    params = [b.input(f"p{i}") for i in range(count)]
    flat = b.op("cat", aten.cat.default, params)
    launch = b.gather("ag_new", flat, merged=[f"ag{i}" for i in range(count)] if record else ())
    parts = b.op("split", aten.split.Tensor, b.wait("w_new", launch), 4)
    for i in range(count):
        part = b.op(f"get{i}", operator.getitem, parts, i)
        x = b.op(f"mm{i}", aten.mm.default, x, part)
    return b.done(x)


def summary(d: GraphDiff) -> dict[str, int]:
    lists = ("merged", "split", "replaced", "moved", "renamed", "changed", "rewired", "retyped", "groups")
    return {name: len(getattr(d, name)) for name in lists if getattr(d, name)}


def ops(groups) -> dict[str, tuple[str, ...]]:
    return {group.op: group.nodes for group in groups}


def test_identical():
    d = diff(gathers(3), gathers(3))
    assert d.identical
    assert summary(d) == {}
    assert brief(d.to_json()) == "identical"


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        ('"f32[64][1]cuda:0"', '"bf16[64][1]cuda:0"', "retyped"),
        ('"f32[64][1]cuda:0"', '"f32[32][1]cuda:0"', "retyped"),
        ('"f32[64][1]cuda:0"', '"f32[64][1]cpu"', "retyped"),
        ('"f32[64][1]cuda:0"', '"f32[64][2]cuda:0"', "retyped"),
        ('"ranks": [0, 1]', '"ranks": [0, 2]', "groups"),
        ('"size": 2, "ranks": [0, 1]', '"size": 4', "groups"),
        ("return (w,)", "return [w]", "changed"),
    ],
)
def test_what_is_said_of_results_and_groups(was, now, kind, tmp_path, capsys):
    """The nodes are the same, and yet the program is another one."""
    text = (
        '# commcc: {"fx_text": 1}\n# commcc: {"groups": {"0": {"size": 2, "ranks": [0, 1]}}}\n'
        "class G(torch.nn.Module):\n"
        '    def forward(self, x: "f32[64][1]cuda:0"):\n'
        "        a: \"f32[64][1]cuda:0\" = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0')\n"
        '        w: "f32[64][1]cuda:0" = torch.ops._c10d_functional.wait_tensor.default(a)\n'
        "        return (w,)\n"
    )
    for name, content in (("a.fx.txt", text), ("b.fx.txt", text.replace(was, now, 1))):
        (tmp_path / name).write_text(content)
    if kind == "groups" and "size" in was:  # a table of sizes alone
        (tmp_path / "a.fx.txt").write_text(text.replace(', "ranks": [0, 1]', ""))
    d = diff(load(tmp_path / "a.fx.txt"), load(tmp_path / "b.fx.txt"))
    assert summary(d) == {kind: 1} and not d.identical
    said = d.to_json()
    assert brief(said) == f"1 {'regrouped' if kind == 'groups' else kind}"
    heading = {"retyped": "other results: 1 node", "groups": "other ranks: 1 group", "changed": "other constants"}[kind]
    assert heading in shown(difference("a", "b", d), None, capsys)


@pytest.mark.parametrize("record", [True, False])
def test_merge(record):
    d = diff(gathers(3), merged(3, record=record))
    (merge,) = d.merged
    assert (merge.into, merge.members) == ("ag_new", ("ag0", "ag1", "ag2"))
    assert merge.evidence == ("record" if record else "structure")
    assert (merge.kind, merge.group, merge.span) == ("all_gather", "0", 6)
    assert merge.launch_moved == (-2, 0)  # ag2 passed mm0 and mm1 on the way up
    assert merge.wait_moved == (-2, 0)
    assert ops(d.added)["operator.getitem"] == ("get0", "get1", "get2")
    assert ops(d.removed)["_c10d_functional.all_gather_into_tensor"] == ("ag0", "ag1", "ag2")
    assert d.rewired == ("mm0", "mm1", "mm2")
    assert not d.moved and not d.split and not d.changed


def test_merge_of_merged_names_what_the_first_graph_has():
    before = merged(2, record=True)
    b = Build()
    b.input("x")
    for name in ("p0", "p1"):
        b.input(name)
    launch = b.gather("ag_twice", b.node["p0"], merged=("ag0", "ag1"))
    d = diff(before, b.done(b.wait("w", launch)))
    assert [m.members for m in d.merged] == [("ag_new",)]


def test_split_is_a_merge_read_backwards():
    d = diff(merged(3, record=False), gathers(3))
    (split,) = d.split
    assert (split.source, split.parts) == ("ag_new", ("ag0", "ag1", "ag2"))
    assert not d.merged


def test_replaced():
    def one(name: str, group: str) -> Program:
        b = Build()
        x, p = b.input("x"), b.input("p")
        return b.done(b.op("mm", aten.mm.default, x, b.wait("w", b.gather(name, p, group))))

    d = diff(one("ag", "0"), one("ag_other", "1"))
    assert [(r.before, r.after) for r in d.replaced] == [("ag", "ag_other")]
    d = diff(one("ag", "0"), one("ag", "1"))
    assert [(c.name, c.before, c.after) for c in d.changed] == [("ag", "%, 2, 0", "%, 2, 1")]
    d = diff(one("ag", "0"), one("renamed", "0"))
    assert [(r.before, r.after) for r in d.renamed] == [("ag", "renamed"), ("w", "w")]
    assert summary(d) == {"renamed": 2}


def chain(names: list[str]) -> Program:
    """Independent ops in the given order."""
    b = Build()
    x = b.input("x")
    results = {name: b.op(name, aten.add.Tensor, x, i) for i, name in enumerate(sorted(names))}
    for name in names:
        last = list(b.graph.nodes)[-1]
        if results[name] is not last:
            last.append(results[name])
    return b.done(*(results[name] for name in sorted(names)))


@pytest.mark.parametrize(
    ("after", "moved"),
    [
        ("bcdae", {"a": 3}),
        ("eabcd", {"e": -4}),
        ("abdce", {"c": 1}),
        ("bacde", {"a": 1}),
    ],
)
def test_moves(after, moved):
    d = diff(chain(list("abcde")), chain(list(after)))
    assert summary(d) == {"moved": len(moved)}
    found = {m.name: m.passed for m in d.moved}
    assert found == moved or {abs(p) for p in found.values()} == {abs(p) for p in moved.values()}


def test_longest_increasing_by_hand():
    values = [3, 0, 1, 4, 2, 5]
    assert {values[at] for at in longest_increasing(values)} in ({0, 1, 4, 5}, {0, 1, 2, 5})
    assert longest_increasing([]) == []
    assert longest_increasing([2, 1, 0]) == [2]


@given(st.permutations(list(range(12))))
def test_longest_increasing(values):
    chain_found = longest_increasing(values)
    picked = [values[i] for i in chain_found]
    assert picked == sorted(set(picked))
    assert chain_found == sorted(chain_found)
    tails: list[int] = []  # patience sorting gives the length
    for value in values:
        place = bisect_left(tails, value)
        tails[place : place + 1] = [value]
    assert len(picked) == len(tails) == longest_increasing_length(values)


@given(st.permutations(list("abcdefg")))
def test_every_node_that_moved_is_listed_once(order):
    d = diff(chain(list("abcdefg")), chain(order))
    kept = [name for name in order if name not in {m.name for m in d.moved}]
    assert kept == sorted(kept)
    for move in d.moved:
        stayed_before = sum(name < move.name for name in kept)
        stayed_after = sum(order.index(name) < order.index(move.name) for name in kept)
        assert move.passed == stayed_after - stayed_before


def test_added_and_removed():
    d = diff(chain(list("abc")), chain(list("abcd")))
    assert ops(d.added) == {"aten.add": ("d",)}
    assert d.removed == ()
    assert diff(chain(list("abcd")), chain(list("abc"))).added == ()


def test_everything_renamed_is_no_difference_but_names():
    b = Build()
    x = b.input("other_x")
    b.done(b.op("other_relu", aten.relu.default, b.op("other_add", aten.add.Tensor, x, 1)))
    c = Build()
    x = c.input("x")
    c.done(c.op("relu", aten.relu.default, c.op("add", aten.add.Tensor, x, 1)))
    before, after = (Program(each.graph, torch.nn.Module()) for each in (c, b))
    d = diff(before, after)
    assert [(r.before, r.after) for r in d.renamed] == [("x", "other_x"), ("add", "other_add"), ("relu", "other_relu")]
    assert summary(d) == {"renamed": 3}


def test_a_wait_of_the_same_name_on_another_launch_is_not_the_same_wait():
    def one(swap: bool) -> Program:
        b = Build()
        p, q = b.input("p"), b.input("q")
        first, second = b.gather("ag0", p), b.gather("ag1", q)
        w0, w1 = b.wait("w0", second if swap else first), b.wait("w1", first if swap else second)
        return b.done(w0, w1)

    d = diff(one(False), one(True))
    assert {(r.before, r.after) for r in d.renamed} == {("w0", "w1"), ("w1", "w0")}


def test_a_merged_launch_may_keep_a_member_s_name():
    b = Build()
    x, p0, p1 = b.input("x"), b.input("p0"), b.input("p1")
    launch = b.gather("ag0", b.op("cat", aten.cat.default, [p0, p1]), merged=("ag0", "ag1"))
    d = diff(gathers(2), b.done(b.op("mm0", aten.mm.default, x, b.wait("w0", launch))))
    assert [(m.into, m.members) for m in d.merged] == [("ag0", ("ag0", "ag1"))]
    assert "ag0" in ops(d.added)["_c10d_functional.all_gather_into_tensor"]


def test_the_same_name_on_another_op_is_another_node():
    def one(target) -> Program:
        b = Build()
        return b.done(b.op("n", target, b.input("x"), 1))

    d = diff(one(aten.add.Tensor), one(aten.mul.Tensor))
    assert (ops(d.added), ops(d.removed)) == ({"aten.mul": ("n",)}, {"aten.add": ("n",)})


def test_renamed_inputs_are_told_apart_by_their_place():
    def one(first: str, second: str) -> Program:
        b = Build()
        p, q = b.input(first), b.input(second)
        return b.done(b.op("s", aten.sub.Tensor, p, q))

    d = diff(one("a", "b"), one("c", "d"))
    assert [(r.before, r.after) for r in d.renamed] == [("a", "c"), ("b", "d")]
    assert summary(d) == {"renamed": 2}


def test_an_input_at_another_place_is_not_a_renamed_one():
    def one(*names: str) -> Program:
        b = Build()
        return b.done(*(b.input(name) for name in names))

    d = diff(one("a", "b"), one("b", "c"))
    assert (ops(d.added), ops(d.removed)) == ({"placeholder": ("c",)}, {"placeholder": ("a",)})


def two_buckets(*, merged_form: bool) -> Program:
    """Two gathers that meet in one op; merged, each belongs to a launch of its own with two more."""
    b = Build()
    p = [b.input(f"p{i}") for i in range(4)]
    if not merged_form:
        w = [b.wait(f"w{i}", b.gather(f"ag{i}", each)) for i, each in enumerate(p)]
    else:
        w = []
        for half in range(2):
            flat = b.op(f"cat{half}", aten.cat.default, p[2 * half : 2 * half + 2])
            parts = b.op(f"split{half}", aten.split.Tensor, b.wait(f"m{half}", b.gather(f"bucket{half}", flat)), 4)
            w += [b.op(f"g{half}{i}", operator.getitem, parts, i) for i in range(2)]
    return b.done(b.op("a", aten.add.Tensor, w[0], w[2]), b.op("b", aten.add.Tensor, w[3], w[1]))


def test_each_member_is_traced_through_its_own_operand():
    d = diff(two_buckets(merged_form=False), two_buckets(merged_form=True))
    assert [(m.into, m.members) for m in d.merged] == [("bucket0", ("ag0", "ag1")), ("bucket1", ("ag2", "ag3"))]


def test_lineage_does_not_run_through_nodes_that_were_there_before():
    def one(shortcut: bool) -> Program:
        b = Build()
        x, p = b.input("x"), b.input("p")
        w = b.wait("w1", b.gather("ag1" if not shortcut else "other", p, "0" if not shortcut else "1"))
        kept = b.op("kept", aten.relu.default, w)
        y = kept if shortcut else b.wait("w2", b.gather("ag2", x))
        return b.done(kept, b.op("mm", aten.mm.default, x, y))

    d = diff(one(False), one(True))
    assert not d.merged  # ag2's place was taken by 'kept', not by the launch behind it
    assert [(r.before, r.after) for r in d.replaced] == [("ag1", "other")]


def hsdp(*, merged_form: bool) -> Program:
    """Two gradients reduced over group 0, then over group 1; merged, each step is one collective."""
    b = Build()
    ar, rs = torch.ops._c10d_functional.all_reduce.default, torch.ops._c10d_functional.reduce_scatter_tensor.default
    g = [b.op(f"g{i}", aten.mm.default, b.input(f"x{i}"), b.node[f"x{i}"]) for i in range(2)]
    if not merged_form:
        w = [b.wait(f"rw{i}", b.op(f"rs{i}", rs, each, "sum", 2, "0")) for i, each in enumerate(g)]
        w = [b.wait(f"aw{i}", b.op(f"ar{i}", ar, each, "sum", "1")) for i, each in enumerate(w)]
        return b.done(*w)
    scattered = b.wait("rw", b.op("rs", rs, b.op("cat", aten.cat.default, g), "sum", 2, "0"))
    parts = b.op("split", aten.split.Tensor, scattered, 4)
    again = b.op("cat_1", aten.cat.default, [b.op(f"p{i}", operator.getitem, parts, i) for i in range(2)])
    parts = b.op("split_1", aten.split.Tensor, b.wait("aw", b.op("ar", ar, again, "sum", "1")), 4)
    return b.done(*(b.op(f"q{i}", operator.getitem, parts, i) for i in range(2)))


def test_a_chain_of_merged_collectives_is_told_apart_both_ways():
    d = diff(hsdp(merged_form=False), hsdp(merged_form=True))
    assert [(m.into, m.members) for m in d.merged] == [("rs", ("rs0", "rs1")), ("ar", ("ar0", "ar1"))]
    d = diff(hsdp(merged_form=True), hsdp(merged_form=False))
    assert [(s.source, s.parts) for s in d.split] == [("rs", ("rs0", "rs1")), ("ar", ("ar0", "ar1"))]


def test_launch_and_wait_of_a_merge_move_separately():
    b = Build()
    x = b.input("x")
    p = [b.input(f"p{i}") for i in range(2)]
    y = b.op("y", aten.relu.default, x)
    launch = b.gather("new", b.op("cat", aten.cat.default, p), merged=("ag0", "ag1"))
    z = b.op("z", aten.relu.default, y)
    after = b.done(z, b.wait("w", launch))
    b = Build()
    x = b.input("x")
    p = [b.input(f"p{i}") for i in range(2)]
    launches = [b.gather(f"ag{i}", each) for i, each in enumerate(p)]
    y = b.op("y", aten.relu.default, x)
    waits = [b.wait(f"w{i}", each) for i, each in enumerate(launches)]
    before = b.done(b.op("z", aten.relu.default, y), *waits)
    (merge,) = diff(before, after).merged
    assert (merge.launch_moved, merge.wait_moved) == ((1, 1), (1, 1))


def test_ops_are_ordered_by_how_many():
    b = Build()
    x = b.input("x")
    results = [b.op("one", aten.add.Tensor, x, 1), *(b.op(f"r{i}", aten.relu.default, x) for i in range(3))]
    after = b.done(x, *results)
    b = Build()
    d = diff(b.done(b.input("x")), after)
    assert [group.op for group in d.added] == ["aten.relu", "aten.add"]


def test_metrics_side_by_side():
    d = diff(gathers(3), merged(3, record=True))
    assert d.before.collectives["all_gather"] == 3
    assert d.after.collectives["all_gather"] == 1
    assert d.to_json()["before"]["nodes"] == 14


def test_json_is_plain_and_complete():
    document = difference("a", "b", diff(gathers(3), merged(3, record=True)))
    assert json.loads(json.dumps(document)) == document
    assert set(document) == {
        *("schema", "command", "inputs", "identical", "before", "after", "merged", "split", "replaced"),
        *("moved", "added", "removed", "renamed", "changed", "rewired", "cost_model", "hints"),
        *("retyped", "groups"),
    }
    assert document["cost_model"] is None and "step_ms" not in document["before"]
    assert document["merged"][0]["members"] == ["ag0", "ag1", "ag2"]


def shown(document, top, capsys) -> str:
    import sys

    console = make_console(sys.stdout)
    for renderable in differing.view(document, top):
        console.print(renderable)
    return capsys.readouterr().out


def test_view_is_short_and_all_is_complete(capsys):
    document = difference("a", "b", diff(gathers(40), merged(40, record=True)))
    short = shown(document, 3, capsys)
    assert len(short.splitlines()) < 40
    assert "merged: 40 collectives into 1" in short
    assert "ag0 ... ag39" in short
    full = shown(document, None, capsys)
    assert all(f"ag{i}" in full for i in range(40))


@pytest.mark.full
def test_ten_thousand_nodes():
    names = [f"n{i:05d}" for i in range(10_000)]
    order = list(names)
    rng = random.Random(0)
    for _ in range(500):
        order.insert(rng.randrange(len(order)), order.pop(rng.randrange(len(order))))
    before, after = chain_fast(names, names), chain_fast(names, order)
    with at_most(15_000_000):
        d = diff(before, after)
    assert 300 < len(d.moved) <= 500


def chain_fast(names: list[str], order: list[str]) -> Program:
    b = Build()
    x = b.input("x")
    constants = {name: i for i, name in enumerate(names)}
    for name in order:
        b.op(name, aten.add.Tensor, x, constants[name])
    return b.done(*(b.node[name] for name in names))


@pytest.mark.parametrize("name", ["tiny_llama_fsdp2_tp2_bw", "tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_bw"])
@pytest.mark.sampled(1)
def test_lineage_without_records_is_the_recorded_one(name):
    before = load(SAMPLES / f"{name}.fx.txt.gz")
    after = run(before, parse_pipeline("bucket{groups=all}")).program
    recorded = {(m.into, m.members) for m in diff(before, after).merged}
    for node in after.graph.nodes:
        node.meta.pop(META_KEY, None)
    found = diff(before, after).merged
    assert {m.evidence for m in found} == {"structure"}
    assert {(m.into, m.members) for m in found} == recorded
    back = diff(after, before)
    assert {(s.source, tuple(sorted(s.parts))) for s in back.split} == {(n, tuple(sorted(m))) for n, m in recorded}
