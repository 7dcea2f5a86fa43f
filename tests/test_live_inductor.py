"""Rewritten graphs through Inductor: what compiled code launches when, caches that ranks do not share, training."""

from __future__ import annotations

import json
import logging
from functools import partial

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.distributed as dist
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx

from commcc.capture.importing import from_graph_module
from commcc.capture.world import Layout, fake_world
from commcc.live import GraphPass, graph_pass
from commcc.live.agreement import AgreementError, compare_all, digest_of
from commcc.live.backends import _over_eager, _over_inductor, inductor_pass
from commcc.live.watching import Clock, watched
from commcc.passes.options import parse_pipeline
from commcc.replay.compiled.inductor import order_options
from commcc.run.pipeline import run
from commcc.run.planfile import plan_text
from commcc.timing.cost import load_model
from tests.test_live import PIPELINE, SPLIT, sample, train

C10D = torch.ops._c10d_functional


def overlapped(group, x, y):
    launched = C10D.all_reduce(x, "sum", group)
    product = y @ y
    return C10D.wait_tensor(launched) + product


def waited(group, x, y):
    total = C10D.wait_tensor(C10D.all_reduce(x, "sum", group))
    return total + y @ y


def dropped(_group, x, y):
    return x + y @ y


@pytest.mark.parametrize(
    ("code", "moved", "missing"),
    [(overlapped, 0, ()), (waited, 1, ()), (dropped, 0, ("all_reduce", "wait_tensor"))],
)
def test_compiled_code_is_held_against_the_graph(code, moved, missing, caplog):
    inputs = torch.ones(4, 4), torch.ones(4, 4)
    the_pass = graph_pass(pipeline="tag")
    with fake_world(Layout((("dp", 2),))) as world:
        group = world.meshes[""].get_group().group_name
        gm = make_fx(lambda x, y: overlapped(group, x, y))(*inputs)
        made, orders = the_pass.rewrite(gm), []
        call = watched(lambda x, y: code(group, x, y), from_graph_module(gm), orders.append)
        first, second = call(*inputs), call(*inputs)
    assert torch.equal(first, second) and len(orders) == 1
    assert (len(orders[0].moved), orders[0].missing) == (moved, missing)
    with caplog.at_level(logging.WARNING, logger="commcc.live"):
        the_pass.ordered(made, orders[0])
    assert ("graph 1: Inductor " in caplog.text) is (code is not overlapped)
    assert not moved or f"elsewhere among them and the 2 ops that it leaves whole: {orders[0].moved[0]}" in caplog.text


def test_the_share_of_compiling(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr("commcc.live.watching.time.perf_counter", lambda: next(now))
    clock = Clock()
    assert clock.share is None
    with clock.compiling():  # 0
        with clock.compiling(), clock.ours():  # 1 to 2
            pass
        assert clock.so_far == 3.0
    assert (clock.total, clock.own, clock.share) == (4.0, 1.0, 0.25)


def test_the_share_is_told_and_kept(tmp_path, caplog):
    the_pass = graph_pass(pipeline=PIPELINE, report_dir=tmp_path)
    with caplog.at_level(logging.INFO, logger="commcc.live"), the_pass.clock.compiling():
        the_pass(sample().graph_module())
    compiling = json.loads((tmp_path / "rank0.json").read_text())["compiling"]
    assert 0.5 < compiling["commcc_share"] <= 1 and compiling["commcc_seconds"] <= compiling["seconds"]
    assert " % of compiling so far)" in caplog.text


def test_settings_that_keep_the_order_are_named(caplog):
    inductor_pass(pipeline=PIPELINE)(sample().graph_module().graph)
    assert "compile with options=the_pass.settings, which set " in caplog.text
    assert "reorder_for_locality=False" in caplog.text
    for settings, told in ((order_options(), True), (inductor_pass(pipeline=PIPELINE).settings, False)):
        caplog.clear()
        with torch._inductor.config.patch(settings):
            inductor_pass(pipeline=PIPELINE)(sample().graph_module().graph)
        assert ("which keep fusions from moving launches" in caplog.text) is told


def test_a_graph_that_inductor_has_not_sorted():
    """As behind its fusion of DDP's reductions, unless that is off."""
    hook = inductor_pass(pipeline="bucket{groups=all}")
    gm = sample().graph_module()
    wait = next(node for node in gm.graph.nodes if "wait_tensor" in str(node.target) and node.users)
    next(iter(wait.users)).append(wait)
    hook(gm.graph)
    gm.graph.lint()
    (result,) = hook.graph_pass.results
    assert result.changed and result.verified == "proved"


def test_landmarks_are_in_settings_that_are_made_among_them():
    """Not where the job uses the hook."""
    hook = inductor_pass(pipeline=PIPELINE)
    assert "_pre_fusion_custom_pass" in hook.settings
    with inductor_config.patch(hook.settings):
        assert "_pre_fusion_custom_pass" in hook.settings
    with inductor_config.patch(_pre_fusion_custom_pass=lambda nodes: nodes):
        assert "_pre_fusion_custom_pass" not in hook.settings


def test_launches_stay_where_inductor_could_move_them_ahead():
    """PyTorch 2.15 does so by default, after it has fused what it can."""

    def code(group, w, x, y):
        scaled = torch.softmax(x @ x, 0)
        launched = C10D.all_gather_into_tensor(w, 2, group)
        return scaled, y @ y, C10D.wait_tensor(launched) + 1

    torch._dynamo.reset()
    settings = {**order_options(), "fx_graph_cache": False}
    with fake_world(Layout((("dp", 2),))) as world, inductor_config.patch(settings):
        group = world.meshes[""].get_group().group_name
        _, codes = run_and_get_code(torch.compile(partial(code, group)), *(torch.ones(64, 64) for _ in range(3)))
    called = codes[0].partition("def call(")[2]
    assert called.index("extern_kernels.mm") < called.index("softmax") < called.index("all_gather_into_tensor.default(")


def test_what_only_evaluates_needs_no_plan(tmp_path, caplog):
    """What trains and has none is still an error."""
    (tmp_path / "plan.yaml").write_text(plan_text(run(sample(), parse_pipeline("bucket{groups=all}"))))
    torch._dynamo.reset()
    with fake_world(Layout((("dp", 2),))) as world, caplog.at_level(logging.INFO, logger="commcc.live"):
        group = world.meshes[""].get_group().group_name
        backend = _over_eager(graph_pass(plan=tmp_path), None)
        code = torch.compile(
            lambda w, x: x @ C10D.wait_tensor(C10D.all_gather_into_tensor(w, 2, group)), backend=backend
        )
        with torch.no_grad():
            code(torch.ones(2, 4), torch.ones(4, 4))
        assert "graph 1: left as it is: it runs without gradients, and no plan was made for it; on_mis" in caplog.text
        with pytest.raises(BackendCompilerFailed, match="no plan was made for this graph"):
            code(torch.ones(2, 4), torch.ones(4, 4, requires_grad=True))


def test_with_new_groups_nothing_is_cached():
    assert inductor_pass(pipeline=PIPELINE).uuid() and inductor_pass(pipeline=SPLIT).uuid() is None


def test_what_only_some_ranks_have_made_is_not_compared(store):
    """The others found it compiled in a cache."""
    program = sample()
    after = run(program, parse_pipeline("reorder"), model=load_model("h100")).program
    mine, other = digest_of(program, after, "s"), digest_of(program, program, "s")
    for number, (settings, told) in enumerate((("s", []), ("s", [mine]), ("s", [other]), ("t", []))):
        store.set(f"commcc/agreement/all/{number}/0", json.dumps([settings, [each.to_json() for each in told]]))
    compare_all("s", [mine], 5.0)
    compare_all("s", [mine, mine], 5.0)
    with pytest.raises(AgreementError, match=r"rank 0 has not made the same: it made .* or another order"):
        compare_all("s", [mine], 5.0)
    with pytest.raises(AgreementError, match="rank 0 has not made the same: it runs with 't'"):
        compare_all("s", [], 5.0)
    with pytest.raises(AgreementError, match=r"rank 0 has not come to compare in 0\.05 s"):
        compare_all("s", [], 0.05)


def fused(group, x, y):
    """The first line and the last make one kernel, which needs the wait."""
    launched = C10D.all_reduce(y, "sum", group)
    early = x.sin()
    return early, y @ y, x.cos() + C10D.wait_tensor(launched)


@pytest.mark.full
@pytest.mark.parametrize("kept", [True, False])
def test_fusions_move_no_wait(kept, monkeypatch):
    orders = []
    monkeypatch.setattr(GraphPass, "ordered", lambda _pass, _made, order: orders.append(order))
    if not kept:
        monkeypatch.setattr("commcc.replay.compiled.inductor.landmark_options", dict)
    torch._dynamo.reset()
    with fake_world(Layout((("dp", 2),))) as world, inductor_config.patch(fx_graph_cache=False):
        group = world.meshes[""].get_group().group_name
        code = torch.compile(lambda x, y: fused(group, x, y), backend=_over_inductor(graph_pass(pipeline="tag"), None))
        code(torch.ones(4, 4), torch.ones(4, 4))
    assert [order.compared for order in orders] == [2]
    assert bool(orders[0].moved) is not kept


@pytest.mark.full
@pytest.mark.parametrize("kept", [True, False])
def test_nor_those_of_a_hook_with_its_settings(kept):
    hook = inductor_pass(pipeline="tag")
    settings = hook.settings if kept else {**order_options(), "post_grad_custom_post_pass": hook}
    torch._dynamo.reset()
    with fake_world(Layout((("dp", 2),))) as world, inductor_config.patch(fx_graph_cache=False):
        group = world.meshes[""].get_group().group_name
        code = torch.compile(lambda x, y: fused(group, x, y), options=settings)
        _, (text,) = run_and_get_code(code, torch.ones(4, 4), torch.ones(4, 4))
    assert hook.graph_pass.graphs == 1
    assert (text.index("extern_kernels.mm(") < text.index("wait_tensor.default(")) is kept


def gathers(group, x, y):
    p, q = (C10D.wait_tensor(C10D.all_gather_into_tensor(each, 2, group)) for each in (x, y))
    return p @ q


@pytest.mark.full
@pytest.mark.parametrize("fx_cache", [True, False])
def test_no_cached_code_stands_in_for_another_plan(fx_cache, tmp_path, monkeypatch):
    """AOTAutograd's cache is asked before any pass is called. It is not used while Inductor's is off."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    first, other = "bucket{groups=all}", "bucket{groups=all},reorder"
    plain, mine = "inductor", graph_pass(pipeline=first)
    found = []
    for hook, backend in (
        *((None, plain), (inductor_pass(pipeline=first), plain), (inductor_pass(pipeline=first), plain)),
        *((inductor_pass(pipeline=other), plain), (None, _over_inductor(mine, None)), (None, plain)),
    ):
        torch._dynamo.reset()
        counters.clear()
        caches = functorch_config.patch(enable_autograd_cache=True), inductor_config.patch(fx_graph_cache=fx_cache)
        with fake_world(Layout((("dp", 2),))) as world, caches[0], caches[1]:
            group = world.meshes[""].get_group().group_name
            with inductor_config.patch(post_grad_custom_post_pass=hook):
                code = torch.compile(lambda x, y, group=group: gathers(group, x, y), backend=backend)
                code(torch.ones(2, 4), torch.ones(2, 4))
        made = mine if backend is not plain else hook and hook.graph_pass
        found.append((counters["aot_autograd"]["autograd_cache_hit"], made and [each.changed for each in made.results]))
    again = (1, []) if fx_cache else (0, [True])
    assert found == [(0, None), (0, [True]), again, (0, [True]), (0, [True]), (int(fx_cache), None)]


ranks = pytest.mark.skipif(not dist.is_available(), reason="PyTorch without distributed")
CACHES = (("backend", {"pipeline": PIPELINE, "on_refusal": "raise"}), ("hook", {"pipeline": PIPELINE}))


@pytest.mark.full
@pytest.mark.ranks
@ranks
def test_caches_that_are_warm_on_one_rank_only(tmp_path):
    """Nobody hangs, and the results are the same."""
    jobs = [{"model": "fsdp", "caches": True, "inner": inner, "options": options} for inner, options in CACHES]
    warm, cold = train(jobs, tmp_path)
    assert all(found["equal"] for found in (*warm, *cold))
    assert all(found["hits"][0] > 0 for found in warm), warm
    assert [found["hits"][1] > 0 for found in warm] == [False, True]  # AOTAutograd's own cache, too
    assert all(found["hits"] == [0, 0] for found in cold), cold


#: Every graph is compiled twice, for seconds each: the first one also changes its shape and evaluates.
TRAININGS = (("fsdp", PIPELINE), ("fsdp_tp", "auto"), ("moe", f"tag,{PIPELINE}"))


@pytest.mark.full
@pytest.mark.ranks
@ranks
def test_twenty_steps_through_inductor(tmp_path):
    """Bit for bit, with gradients of two batches, some with a recompile and an evaluation."""
    jobs = [
        {
            "model": model,
            "inner": "inductor",
            "steps": 20,
            "varied": model == "fsdp",
            "options": {"preset" if passes == "auto" else "pipeline": passes, "on_refusal": "raise"},
        }
        for model, passes in TRAININGS
    ]
    for rank in (found := train(jobs, tmp_path)):
        assert rank == found[0]
        for job, each in zip(jobs, rank, strict=True):
            assert each["compared"] > 700
            if job["varied"]:
                assert each["foreseen"] and not each["groups"] and each["graphs"] >= 4, (job, each)
                assert any(after < before for before, after in each["launches"])
            assert each["equal"], job


@pytest.mark.full
@pytest.mark.ranks
@ranks
def test_adapters_through_inductor_and_convolutions_op_by_op(tmp_path):
    """Most parameters of the one are frozen; the other has statistics of batches in buffers."""
    options = {"pipeline": PIPELINE, "on_refusal": "raise"}
    jobs = [
        {"model": model, "inner": inner, "steps": 10, "varied": inner == "aot_eager", "options": options}
        for model, inner in (("lora", "inductor"), ("conv", "aot_eager"))
    ]
    for rank in (found := train(jobs, tmp_path)):
        assert [each["launches"] for each in rank] == [each["launches"] for each in found[0]]
        for job, each in zip(jobs, rank, strict=True):
            assert each["compared"] > 200 and each["graphs"] == (5 if job["varied"] else 2), (job, each)
            assert each["equal"] or (each["foreseen"] and each["apart"] < 1e-5), (job, each)


@pytest.mark.full
@pytest.mark.ranks
@ranks
def test_a_head_that_is_the_embedding(tmp_path):
    """Both compute with the one parameter, which is gathered once; its two gradients are added up and reduced once."""
    options = {"pipeline": PIPELINE, "on_refusal": "raise"}
    jobs = [
        {"model": "gpt", "inner": inner, "steps": 20, "varied": inner == "aot_eager", "options": options}
        for inner in ("aot_eager", "inductor")
    ]
    for rank in (found := train(jobs, tmp_path)):
        eager, fused = rank
        assert [each["launches"] for each in rank] == [each["launches"] for each in found[0]]
        assert eager["equal"] and not eager["foreseen"] and [39, 2] in eager["launches"]
        assert fused["equal"] or (fused["foreseen"] and fused["apart"] < 1e-5), fused
        assert all(each["compared"] > 2000 for each in rank)


@pytest.mark.full
@pytest.mark.ranks
@ranks
def test_checkpointed_layers_under_two_kinds_of_parallelism(tmp_path):
    """Shards over two ranks of what tensor parallelism divides, by DTensors and by collectives in the model."""
    jobs = [
        {
            "model": model,
            "inner": inner,
            "steps": 20,
            "varied": False,
            "options": {"pipeline": PIPELINE, "on_refusal": "raise"},
        }
        for model, inner in (("llama_checkpointed_fsdp_tp", "aot_eager"), ("checkpointed_fsdp_tp", "inductor"))
    ]
    for rank in (found := train(jobs, tmp_path, 4)):
        assert [each["launches"] for each in rank] == [each["launches"] for each in found[0]]
        for job, each in zip(jobs, rank, strict=True):
            assert each["compared"] > 1000 and any(after < before for before, after in each["launches"]), (job, each)
            rounded = job["inner"] == "inductor" and each["foreseen"] and each["apart"] < 1e-5
            assert each["equal"] or rounded, (job, each)
