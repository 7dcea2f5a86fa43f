"""Reductions of slices of one tensor, through Inductor: a wait for one waits for no other."""

from __future__ import annotations

import operator

import pytest
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from commcc.graph.program import ProcessGroup
from commcc.live.backends import inductor_pass
from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.compiled import inductor
from commcc.replay.compiled.calls import Recorder
from commcc.replay.compiled.graph_hooks import hook_options
from commcc.replay.compiled.inductor import CACHE_VARIABLE
from commcc.replay.compiled.own_storages import keep_apart, storage_options
from commcc.replay.values import storage
from tests.compiled_alone import compiled_alone
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
TWO = {"0": ProcessGroup("0", 2, (0, 1))}


def slices(between: bool = True, op=c10d.all_reduce.default):
    """Four slices of a product in flight together; between: products of each ahead of the wait for the next."""
    g = Graph()
    x, w = g.input("x", 8, 8), g.input("w", 8, 8)
    parts = g(aten.split_with_sizes.default, g(aten.mm.default, x, w), [2, 2, 2, 2])
    launches = [g(op, g(operator.getitem, parts, i), "sum", "0", name=f"launch{i}") for i in range(4)]
    results = []
    for launch in launches:
        results.append(g(c10d.wait_tensor.default, launch))
        if between:
            results[-1] = g(aten.mm.default, results[-1], w)
    if not between:
        results = [g(aten.mm.default, each, w) for each in results]
    return g.program(*results, groups=TWO)


def apart(program):
    return [node.name for node in keep_apart(program.graph)]


def test_all_but_one_are_copied_where_something_is_computed_between_their_waits():
    program = slices()
    assert apart(program) == ["launch1", "launch2", "launch3"]
    copies = program.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert [user.name for copy in copies for user in copy.users] == ["launch1", "launch2", "launch3"]
    for copy in copies:
        assert copy.meta["val"].shape == (2, 8)
        assert storage(copy.meta["val"]) != storage(copy.args[0].meta["val"])
    assert apart(program) == [], "once is enough"


def test_waits_side_by_side_need_no_copies():
    assert apart(slices(between=False)) == []


def test_what_the_program_reduces_in_place_stays():
    assert apart(slices(op=c10d.all_reduce_.default)) == []


def test_reductions_of_tensors_of_their_own_stay():
    g = Graph()
    x, w = g.input("x", 8, 8), g.input("w", 8, 8)
    launches = [g(c10d.all_reduce.default, g(aten.mm.default, x, w), "sum", "0") for _ in range(2)]
    results = [g(aten.mm.default, g(c10d.wait_tensor.default, launch), w) for launch in launches]
    assert apart(g.program(*results, groups=TWO)) == []


def test_one_after_the_other_need_no_copies():
    """The second is launched when the first is no longer in flight, or is waited for first."""
    g = Graph()
    x, w = g.input("x", 4, 8), g.input("w", 8, 8)
    parts = g(aten.split_with_sizes.default, g(aten.mm.default, x, w), [2, 2])
    results = []
    for i in range(2):
        launch = g(c10d.all_reduce.default, g(operator.getitem, parts, i), "sum", "0")
        results.append(g(aten.mm.default, g(c10d.wait_tensor.default, launch), w))
    assert apart(g.program(*results, groups=TWO)) == []


def test_what_nobody_waits_for_here_is_in_flight_to_the_end():
    g = Graph()
    x, w = g.input("x", 4, 8), g.input("w", 8, 8)
    parts = g(aten.split_with_sizes.default, g(aten.mm.default, x, w), [2, 2])
    one, two = (
        g(c10d.all_reduce.default, g(operator.getitem, parts, i), "sum", "0", name=f"launch{i}") for i in range(2)
    )
    product = g(aten.mm.default, g(c10d.wait_tensor.default, one), w)
    assert apart(g.program(product, two, groups=TWO)) == ["launch1"]


def test_the_hook_is_shared_with_the_job():
    import torch._inductor.config as config

    (name,) = storage_options()
    assert inductor._options(make_set([slices()], BenchSettings(ranks=2)).prepared[0])[name] is storage_options()[name]
    with config.patch(storage_options()):
        assert storage_options()[name] is getattr(config, name), "commcc's own"
    with config.patch({name: print}), config.patch(storage_options()):
        assert storage_options()[name] == getattr(config, name) != print, "both are there"


class JobPass(CustomGraphPass):
    """Doubles what is returned."""

    def __call__(self, graph):
        (output,) = graph.find_nodes(op="output")
        (result,) = output.args[0]
        with graph.inserting_before(output):
            twice = graph.call_function(aten.mul.Tensor, (result, 2))
        twice.meta["val"] = result.meta["val"]
        output.args = ((twice,),)

    def uuid(self):
        return "job"


@pytest.mark.full
@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("job", [JobPass(), JobPass().__call__], ids=["with a name", "without"])
def test_passes_of_the_job_run_first(job, newest, monkeypatch, tmp_path):
    import torch._inductor.config as config
    from torch._inductor import custom_graph_pass

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    torch._dynamo.reset()
    if not newest:
        monkeypatch.delattr(custom_graph_pass, "get_custom_graph_passes", raising=False)
    elif not hasattr(custom_graph_pass, "get_custom_graph_passes"):
        pytest.skip("this PyTorch takes one pass only")
    seen = []

    def watch(graph):
        seen.append([str(node.target) for node in graph.nodes if node.op == "call_function"])

    with config.patch({"post_grad_custom_post_pass": job, "force_disable_caches": True}):
        options = hook_options("post_grad_custom_post_pass", watch)
        with config.patch(options):
            assert hook_options("post_grad_custom_post_pass", watch) == options
            compiled = torch.compile(lambda x: x + 1, fullgraph=True)
            assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert seen == [["aten.add.Tensor", "aten.mul.Tensor"]]


def test_the_pass_for_inductors_own_hook_does_so_itself():
    graph = slices().graph_module().graph
    inductor_pass(pipeline="cleanup")(graph)
    assert len(graph.find_nodes(op="call_function", target=aten.clone.default)) == 3


@pytest.mark.full
@pytest.mark.parametrize("kept", [True, False])
def test_compiled_code_reduces_each_where_no_other_is_in_flight(kept, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    if not kept:
        monkeypatch.setattr(inductor, "storage_options", dict)
    inputs = {"x": torch.ones(8, 8), "w": torch.eye(8)}
    homes = []

    def carry(op, tensor, *_):
        if op is c10d.all_reduce_.default:
            homes.append(storage(tensor))
        return tensor

    with compiled_alone(slices(), inputs) as (_, compiled), Recorder(carry, lambda *_: None):
        results = compiled(inputs)
    assert len(homes) == 4 and len(set(homes)) == (4 if kept else 1)
    assert all(torch.equal(result, torch.ones(2, 8)) for result in results)
