"""What fails in commcc while a graph of a job is read, rewritten or written back leaves graph and job as they are."""

from __future__ import annotations

import logging
from pkgutil import resolve_name

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from commcc.base.errors import CommccError, InputError, InternalError, OutputError
from commcc.capture.importing import from_graph_module
from commcc.capture.world import Layout, fake_world
from commcc.graph.restoring import Original
from commcc.live import graph_pass
from commcc.live.agreement import UNREAD, Digest
from commcc.live.backends import backend
from commcc.live.watching import watched
from commcc.live.write_back import write_back
from commcc.replay.compiled.graph_hooks import changed
from commcc.verify import Finding, Verdict
from tests.test_live import PIPELINE, lines, sample

KEPT = "bug in commcc, please report; the graph stays as it is, and on_refusal='raise' shows the traceback"


def fails(*_args, **_named):
    raise TypeError("of no use")


class State:
    """All that a caller can see of a module."""

    def __init__(self, gm):
        self.graph, self.nodes, self.lines, self.code = gm.graph, list(gm.graph.nodes), lines(gm.graph), gm.code
        self.metas = [node.meta for node in self.nodes]
        self.entries = [dict(meta) for meta in self.metas]
        self.users = [list(node.users) for node in self.nodes]
        self.attributes = {name: set(vars(module)) for name, module in gm.named_modules()}
        self.tensors = dict(gm.named_buffers())

    def same(self, gm):
        now = State(gm)
        assert now.graph is self.graph and now.lines == self.lines and now.code == self.code
        assert all(mine is theirs for mine, theirs in zip(now.nodes, self.nodes, strict=True))
        assert all(mine is theirs for mine, theirs in zip(now.metas, self.metas, strict=True))
        for mine, theirs in zip(now.entries, self.entries, strict=True):
            assert mine.keys() == theirs.keys() and all(mine[key] is theirs[key] for key in mine)
        assert now.users == self.users and now.attributes == self.attributes and now.tensors == self.tensors
        assert len(gm.graph.nodes) == len(self.nodes) == sum(1 for _ in gm.graph.nodes)
        for node in gm.graph.nodes:
            assert not node._erased and node in gm.graph._find_nodes_lookup_table
        gm.graph.lint()
        gm.recompile()
        assert gm.code == self.code
        gm.graph.eliminate_dead_code()  # walks backwards


#: What may fail, from the first to the last thing that is done: a place, and how often it works before.
PLACES = (
    ("commcc.live.rewriting.take_apart", 0),
    ("commcc.live.rewriting.from_graph_module", 0),
    ("commcc.capture.importing.plain_metadata", 40),
    ("commcc.live.rewriting.structure_of", 0),
    ("commcc.live.rewriting.require_sizes", 0),
    ("commcc.live.rewriting.new_groups", 0),
    ("commcc.live.rewriting.digest_of", 0),
    ("commcc.live.rewriting.digest_of", 1),
    ("commcc.live.rewriting.stand_in", 0),
    ("commcc.live.write_back._of_origin", 3),
    ("commcc.live.write_back._mark", 100),
    ("torch.fx.Graph.erase_node", 2),
    ("torch.fx.Graph.lint", 0),
    ("torch.fx.GraphModule.recompile", 0),
    ("torch.fx.graph_module._forward_from_src", 0),
)


@pytest.mark.parametrize(("place", "works"), PLACES)
@pytest.mark.parametrize("refusal", ["keep", "raise"])
def test_what_fails_leaves_the_module_as_it_was(place, works, refusal, monkeypatch, caplog):
    gm = sample().graph_module()
    state = State(gm)
    calls = []
    owner, _, name = place.rpartition(".")
    with monkeypatch.context() as patch:
        whole = getattr(resolve_name(owner), name)

        def sometimes(*args, **named):
            about = args[0] if args and isinstance(args[0], (fx.Graph, fx.GraphModule)) else None
            ours = not name.startswith(("erase", "lint", "recompile")) or about in (gm, gm.graph)
            calls.extend([0] if ours else [])
            return fails() if ours and len(calls) > works else whole(*args, **named)

        patch.setattr(place, sometimes)
        the_pass = graph_pass(pipeline=PIPELINE, on_refusal=refusal)
        if refusal == "raise":
            with pytest.raises(InternalError, match="please report; on_refusal='keep' leaves") as raised:
                the_pass(gm)
            assert isinstance(raised.value.__cause__, TypeError)
        else:
            with caplog.at_level(logging.WARNING, logger="commcc.live"):
                made = the_pass.rewrite(gm)
            assert made.result is None and made.text == f"left as it is: {KEPT} (TypeError: of no use)"
            assert f"graph 1: {KEPT}" in caplog.text and made.groups == ()
    assert len(calls) > works and the_pass.results == []
    state.same(gm)
    assert graph_pass(pipeline=PIPELINE).rewrite(gm).result.changed  # and nothing has been spoilt for later


def test_what_is_interrupted_leaves_the_module_as_it_was(monkeypatch):
    gm = sample().graph_module()
    state = State(gm)

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("commcc.live.write_back._of_origin", stopped)
    with pytest.raises(KeyboardInterrupt):
        graph_pass(pipeline=PIPELINE)(gm)
    state.same(gm)


def test_attributes_and_nodes_are_put_back():
    """Also those that were erased, renamed and given other metadata."""

    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("known", torch.ones(2))

        def forward(self, x):
            return x + self.known

    gm = fx.symbolic_trace(torch.nn.Sequential(Inner(), torch.nn.ReLU()))
    state, original = State(gm), Original(gm)
    nodes = list(gm.graph.nodes)
    nodes[-2].replace_all_uses_with(nodes[0])
    gm.graph.erase_node(nodes[-2])
    nodes[0].name, nodes[0].meta["custom"] = "other", 3
    with gm.graph.inserting_after(nodes[0]):
        gm.graph.call_function(torch.relu, (nodes[0],))
    gm.add_module("new", torch.nn.Module())
    getattr(gm, "0").register_buffer("more", torch.ones(3))
    gm.recompile()
    original.restore()
    state.same(gm)
    assert torch.equal(gm(torch.ones(2)), 2 * torch.ones(2))


@pytest.mark.parametrize("refusal", ["keep", "raise"])
def test_a_graph_that_is_not_sorted_stays(refusal):
    gm = sample().graph_module()
    first = next(node for node in gm.graph.nodes if node.op == "call_function")
    first.append(first.args[0])
    text = lines(gm.graph)
    the_pass = graph_pass(pipeline=PIPELINE, on_refusal=refusal)
    if refusal == "raise":
        with pytest.raises(InputError, match="before it is defined"):
            the_pass(gm)
    else:
        assert "before it is defined" in the_pass.rewrite(gm).text
    assert lines(gm.graph) == text


def test_why_a_result_is_not_proved(monkeypatch):
    verdict = Verdict("unproved", unproved=(Finding("tokens", "mm", "nobody knows"),))

    class Unproved:
        verified, verdicts, changed = "unproved", (verdict,), True

    monkeypatch.setattr("commcc.live.rewriting.run", lambda *_args, **_named: Unproved)
    made = graph_pass(pipeline=PIPELINE).rewrite(sample().graph_module())
    assert made.text == "left as it is: the result is not proved (nobody knows)"
    with pytest.raises(CommccError, match=r"not proved \(nobody knows\)"):
        graph_pass(pipeline=PIPELINE, on_refusal="raise")(sample().graph_module())


def test_ranks_of_which_one_could_not_read_its_graph(monkeypatch):
    """They are told apart; where none could, all run what they were given."""
    gm, other = sample().graph_module(), graph_pass(pipeline=PIPELINE)
    read = other.rewrite(sample().graph_module()).digest
    monkeypatch.setattr("commcc.live.rewriting.from_graph_module", fails)
    unread = graph_pass(pipeline=PIPELINE).rewrite(gm).digest
    assert unread == Digest(other.settings, UNREAD, UNREAD, 0) and unread.against(unread) == ""
    assert unread.against(read) == "this one could not read the graph"
    assert read.against(unread) == "it could not read the graph"


def test_ranks_of_a_graph_that_could_not_be_read(monkeypatch):
    monkeypatch.setattr("commcc.live.rewriting.from_graph_module", fails)
    with fake_world(Layout((("dp", 2), ("tp", 2)))) as world:
        name = world.group_name("dp")
        gm = make_fx(lambda x: torch.ops._c10d_functional.all_reduce(x, "sum", name))(torch.ones(2))
        assert graph_pass(pipeline=PIPELINE).rewrite(gm).ranks == (0, 2)


def test_reports_that_fail_end_no_job(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("commcc.live.reports.save", fails)

    def full(*_):
        raise OutputError("no space is left")

    monkeypatch.setattr("commcc.live.reports.replace_text", full)
    gm = sample().graph_module()
    with caplog.at_level(logging.WARNING, logger="commcc.live"):
        assert graph_pass(pipeline=PIPELINE, report_dir=tmp_path)(gm) is gm
    assert "graph 1: its report is not there: bug in commcc, please report" in caplog.text
    assert "graph 1: the summary of the reports is not written: no space is left" in caplog.text
    with pytest.raises(TypeError):
        graph_pass(pipeline=PIPELINE, report_dir=tmp_path, on_refusal="raise")(sample().graph_module())


def test_code_that_is_watched_runs_whatever_is_told(caplog):
    with caplog.at_level(logging.WARNING, logger="commcc.live"):
        assert watched(lambda x: x + 1, sample(), fails)(1) == 2
    assert "the order of compiled code is not compared: bug in commcc, please report" in caplog.text


def test_what_another_pass_has_left_is_not_taken():
    """A sub-graph or constant is the program's, whatever the module has under its name."""
    gm = fx.GraphModule(torch.nn.Module(), fx.Graph())
    gm.stale = torch.ones(2)
    x = gm.graph.placeholder("x")
    gm.graph.output((x,))
    gm.recompile()
    before = from_graph_module(gm)
    after = from_graph_module(gm)
    after.root.stale = torch.full((2,), 7.0)
    (x, out) = after.graph.nodes
    with after.graph.inserting_before(out):
        constant = after.graph.create_node("get_attr", "stale", name="stale")
        total = after.graph.call_function(torch.ops.aten.add.Tensor, (x, constant))
    out.args = ((total,),)
    write_back(gm, before, after)
    assert torch.equal(gm(torch.ones(2))[0], torch.full((2,), 8.0))


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


@pytest.mark.parametrize("sizes", ["known", "s77=4", "s77=4:s27=4"])
def test_sizes_that_were_fixed_are_guarded(sizes, alone, caplog):
    """A graph of another size is compiled again, or stays as it is; it never runs with a number of another batch."""
    c10d = torch.ops._c10d_functional

    def step(x):
        total = c10d.wait_tensor(c10d.all_reduce(x * 2, "sum", alone))
        return (total.view(x.shape[0] * 8) + 1).sum(), torch.ones(x.shape[0])

    torch._dynamo.reset()
    compiled = torch.compile(
        step, backend=backend(pipeline=f"ep-concretize{{symbols={sizes}}}", inner="aot_eager"), dynamic=True
    )
    with caplog.at_level(logging.INFO, logger="commcc.live"):
        for rows in (4, 6, 4, 9):
            x = torch.randn(rows, 8)
            assert all(torch.equal(a, b) for a, b in zip(compiled(x), step(x), strict=True))
    if sizes == "known":
        assert all(f"for inputs with s77 = {rows} only" in caplog.text for rows in (4, 6, 9))


def test_regions_that_are_compiled_once(alone, caplog):
    """Their collectives are merged across calls, and nothing is said to round differently for that."""

    @torch.compiler.nested_compile_region
    def layer(x, w):
        full = c10d.wait_tensor(c10d.all_gather_into_tensor(w, 1, alone))
        return torch.relu(x @ full)

    def step(x, *weights):
        for w in weights:
            x = layer(x, w)
        return x

    c10d = torch.ops._c10d_functional
    torch._dynamo.reset()
    pipeline = "inline,bucket{groups=all},reorder"
    compiled = torch.compile(step, backend=backend(pipeline=pipeline, inner="aot_eager", on_refusal="raise"))
    inputs = [torch.randn(8, 8) for _ in range(4)]
    with caplog.at_level(logging.INFO, logger="commcc.live"), torch.no_grad():
        result = compiled(*inputs)
    assert torch.equal(result, step(*inputs))
    assert "proved; 3 launches became 1" in caplog.text
    assert "round" not in caplog.text


def test_guards_are_made_for_nothing_else(alone):
    c10d = torch.ops._c10d_functional

    def step(x):
        totals = [c10d.all_reduce(part, "sum", alone) for part in (x * 2, x * 3)]
        return sum(c10d.wait_tensor(total) * total.shape[0] for total in totals)

    torch._dynamo.reset()
    the_backend = backend(pipeline="bucket{groups=all},reorder,cleanup,dedup", inner="aot_eager", on_refusal="raise")
    made = []

    def counted(gm, inputs):
        made.append(gm)
        return the_backend(gm, inputs)

    compiled = torch.compile(step, backend=counted, dynamic=True)
    for rows in (4, 6, 9):
        x = torch.randn(rows, 8)
        assert torch.allclose(compiled(x), step(x))
    assert len(made) == 1


def test_a_backward_for_some_sizes_is_not_compiled_by_itself(monkeypatch):
    """Where guards are made no more."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    gm = make_fx(lambda x: (x * 2).view(x.shape[0] * 2), tracing_mode="symbolic")(torch.ones(4, 2))
    env = next(node for node in gm.graph.nodes if node.op == "placeholder").meta["val"].fake_mode.shape_env
    assert isinstance(env, ShapeEnv)
    env.freeze()
    made = graph_pass(pipeline="ep-concretize{symbols=known}").rewrite(gm)
    assert made.result is None and "nothing sees to it that this graph runs with that size only" in made.text


def test_a_hook_of_inductor_that_fails_is_left_out(monkeypatch, caplog):
    gm = sample().graph_module()
    state = State(gm)

    def broken(graph):
        graph.erase_node(next(iter(reversed(graph.nodes))))
        fails()

    with caplog.at_level(logging.WARNING, logger="commcc.live"):
        changed(broken, gm.graph)
    state.same(gm)
    assert "broken is left out: bug in commcc, please report; the graph stays as it is" in caplog.text
