"""Graphs that are rewritten inside a training job: in place, with their metadata, and agreed upon."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tomllib
import torch
import torch.distributed as dist

import commcc
from commcc.base.errors import CommccError, OptionError
from commcc.capture.importing import from_graph_module
from commcc.graph.ops import collective_of
from commcc.live import agreement, graph_pass
from commcc.live import rewriting as live
from commcc.live.agreement import AgreementError, compare, digest_of
from commcc.live.backends import backend, by_name, inductor_pass
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.verify import verify
from tests.torch_passes import groups_of

ROOT = Path(__file__).parents[1]
NAME = "tiny_llama_fsdp2_bw"
PIPELINE = "bucket{groups=all},reorder"
WORKER = Path(__file__).parent / "live_worker.py"


def sample(name=NAME):
    return load(next((ROOT / "sample_graphs").glob(f"{name}.fx.txt*")))


def lines(graph):
    return [f"{n.op} {n.name} {n.target} {n.args} {n.kwargs}" for n in graph.nodes]


@pytest.mark.parametrize("pipeline", [PIPELINE, "reorder{control_deps=true}"])
def test_a_module_is_edited_in_place(pipeline):
    before = sample()
    gm = before.graph_module()
    own = {node.name: node for node in gm.graph.nodes}
    for node in gm.graph.nodes:
        node.meta["tracer"] = marker = object()
        assert node.meta["tracer"] is marker
    kept = {name: node.meta for name, node in own.items()}
    the_pass = graph_pass(pipeline=pipeline, cost="h100")
    assert the_pass(gm, ()) is gm
    expected = run(before, parse_pipeline(pipeline), model=load_model("h100"))
    assert lines(gm.graph) == lines(expected.program.graph)
    assert verify(before, from_graph_module(gm, before.groups)).status == "proved"
    new = [node for node in gm.graph.nodes if node.name not in own or own[node.name] is not node]
    same = [node for node in gm.graph.nodes if node not in new]
    assert new and all(node.meta is kept[node.name] and "tracer" in node.meta for node in same)
    assert all("tracer" not in node.meta for node in new)
    launches = [n for n in new if n.op == "call_function" and collective_of(n.target) is not None]
    assert all(n.meta["val"].shape and "stack_trace" in n.meta for n in launches)


def test_what_is_not_proved_is_not_used(monkeypatch, caplog):
    gm = sample().graph_module()
    text = lines(gm.graph)

    class Unproved:
        verified, verdicts, changed = "unproved", (), True

    monkeypatch.setattr("commcc.live.rewriting.run", lambda *_args, **_named: Unproved)
    with caplog.at_level(logging.INFO, logger="commcc.live"):
        graph_pass(pipeline=PIPELINE)(gm)
    assert lines(gm.graph) == text
    assert "left as it is: the result is not proved" in caplog.text and len(caplog.text.splitlines()) == 1
    with pytest.raises(CommccError, match="not proved"):
        graph_pass(pipeline=PIPELINE, on_refusal="raise")(gm)


def test_a_graph_that_cannot_be_rewritten_stays(monkeypatch, caplog):
    gm = sample().graph_module()

    def fails(*_args, **_named):
        raise CommccError("a reason")

    monkeypatch.setattr("commcc.live.rewriting.run", fails)
    with caplog.at_level(logging.INFO, logger="commcc.live"):
        made = graph_pass(pipeline=PIPELINE).rewrite(gm)
    assert made.result is None and "left as it is: a reason" in caplog.text
    with pytest.raises(CommccError, match="a reason"):
        graph_pass(pipeline=PIPELINE, on_refusal="raise")(gm)


def test_one_line_and_both_graphs_are_kept(tmp_path, caplog):
    the_pass = graph_pass(pipeline=PIPELINE, report_dir=tmp_path / "kept")
    with caplog.at_level(logging.INFO, logger="commcc.live"):
        the_pass(sample().graph_module())
    (line,) = caplog.text.splitlines()
    assert "graph 1: proved; " in line and " launches became 2 " in line
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "rank0.graph1.after.fx.txt",
        "rank0.graph1.before.fx.txt",
    ]
    after = load(tmp_path / "kept" / "rank0.graph1.after.fx.txt")
    assert lines(after.graph) == lines(the_pass.results[0].program.graph)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (graph_pass, {"pipeline": "bucket", "preset": "auto"}, "a pipeline and a preset"),
        (graph_pass, {"pipeline": "buckt"}, "bucket"),
        (graph_pass, {"preset": "atuo"}, "auto"),
        (graph_pass, {"pipeline": "groups,bucket"}, "process groups"),
        (graph_pass, {"preset": "ep-overlap"}, "process groups"),
        (graph_pass, {"on_refusal": "stop"}, "on_refusal"),
        (graph_pass, {"cost": "h1000"}, "h100"),
        (backend, {"inner": "tensorrt"}, "inductor and aot_eager"),
        (by_name, {"gm": None, "example_inputs": (), "mode": "max-autotune"}, "takes no mode"),
    ],
)
def test_wrong_options(make, options, words):
    with pytest.raises(OptionError, match=words):
        make(**options)


def test_what_changes_results_changes_the_id():
    made = [
        inductor_pass(pipeline="bucket,reorder"),
        inductor_pass(pipeline="reorder"),
        inductor_pass(pipeline="reorder", cost="a100"),
    ]
    assert len({each.uuid() for each in made}) == 3
    assert made[0].uuid() == inductor_pass(pipeline="bucket,reorder").uuid()


def test_inductor_pass_takes_the_graph_itself():
    gm = sample().graph_module()
    the_pass = inductor_pass(pipeline=PIPELINE)
    the_pass(gm.graph)
    assert the_pass.graph_pass.results[0].changed
    assert lines(gm.graph) == lines(the_pass.graph_pass.results[0].program.graph)


def renamed(program):
    """The same program as another rank has it: other names, and another device."""
    gm = program.graph_module()
    for i, node in enumerate(gm.graph.nodes):
        node.name = f"other{i}"
        if "group_name" in node.kwargs:
            node.update_kwarg("group_name", f"r{node.kwargs['group_name']}")
        elif node.op == "call_function" and collective_of(node.target) is not None:
            node.args = tuple(f"r{a}" if isinstance(a, str) and a in program.groups else a for a in node.args)
    return from_graph_module(gm)


def test_digests_are_of_what_all_ranks_share():
    program = sample()
    after = run(program, parse_pipeline("reorder"), model=load_model("h100")).program
    digest = digest_of(program, after, "s")
    assert digest_of(renamed(program), renamed(after), "s") == digest
    assert digest_of(program, program, "s").after != digest.after
    assert digest.against(digest_of(program, after, "other")) == "it runs with 'other', this one with 's'"
    assert "another order" in digest.against(digest_of(program, program, "s"))
    assert digest.against(digest_of(after, after, "s")) == "it has another graph"
    assert digest.against(digest) == ""


@pytest.fixture
def store(monkeypatch):
    """This process as rank 1 of a job, whose store the test fills for others."""
    made = dist.HashStore()
    monkeypatch.setattr(agreement.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(agreement.dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(agreement.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(agreement.dist.distributed_c10d, "_get_default_store", lambda: made)
    monkeypatch.setattr(agreement, "_NUMBERS", iter(range(9)))
    return made


def test_ranks_compare(store):
    program = sample()
    digest = digest_of(program, program, "s")
    store.set("commcc/agreement/0/0", digest.to_json())
    store.set("commcc/agreement/1/0", digest_of(program, program, "t").to_json())
    compare(digest, (1,), 0.05)  # is not counted
    compare(digest, (), 0.05)
    compare(digest, (0, 1), 5.0)
    assert store.get("commcc/agreement/0/1").decode() == digest.to_json()
    with pytest.raises(AgreementError, match="rank 0 has not made the same of graph 1: it runs with 't'"):
        compare(digest, (0, 1), 5.0)
    with pytest.raises(AgreementError, match=r"rank 0 has not come to graph 2 in 0\.05 s"):
        compare(digest, (0, 1), 0.05)


def test_a_compiled_graph_is_compared_once(store):
    program = sample()
    digest = digest_of(program, program, "s")
    store.set("commcc/agreement/0/0", digest.to_json())
    call = live.checked(live.Made(None, digest, (0, 1), 0.0), 5.0, lambda *args: args)
    assert call(1, 2) == (1, 2) and call(3) == (3,)
    assert not store.check(["commcc/agreement/1/1"])


def test_ranks_of_groups_are_known(monkeypatch):
    program = sample()
    with groups_of(program):
        made = graph_pass(pipeline="reorder").rewrite(program.graph_module())
    assert made.ranks == (0, 1)


def test_names():
    assert {"backend", "graph_pass", "inductor_pass"} <= set(commcc.__all__)
    assert commcc.graph_pass is graph_pass
    with pytest.raises(AttributeError):
        commcc.nothing  # noqa: B018
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["commcc"].partition(":")
    assert getattr(import_module(module), name) is by_name


JOBS = (
    *(("fsdp", "aot_eager", {"pipeline": PIPELINE}), ("tp", "aot_eager", {"preset": "auto"})),
    *(("checkpointed", "aot_eager", {"pipeline": PIPELINE}), ("broken", "aot_eager", {"pipeline": PIPELINE})),
    ("fsdp", "inductor", {"pipeline": PIPELINE}),  # compiling takes a CPU minute
)


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_training_computes_the_same_to_the_bit(inner, tmp_path):
    """Five steps: one with gradients of two batches, one of another shape, and an evaluation at the end."""
    jobs = [{"model": model, "inner": each, "options": options} for model, each, options in JOBS if each == inner]
    for rank in (ranks := train(jobs, tmp_path)):
        assert rank == ranks[0]
        for job, found in zip(jobs, rank, strict=True):
            assert found["equal"] and found["compared"] > 100, job
            assert found["graphs"] >= 4
            assert any(after < before for before, after in found["launches"]) or job["model"] == "tp"


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
def test_ranks_that_differ_refuse_before_the_first_step(tmp_path):
    other = {"options": {"pipeline": "bucket{groups=all,bucket_cap_mb=0.001},reorder"}}
    job = {"model": "fsdp", "inner": "aot_eager", "options": {"pipeline": PIPELINE}, "rank1": other}
    first, second = (rank[0]["error"] for rank in train([job], tmp_path))
    assert "rank 0: rank 1 has not made the same of graph 0: it runs with" in first
    assert "rank 1: rank 0 has not made the same of graph 0: it runs with" in second


def train(jobs, folder):
    todo = folder / "jobs.json"
    todo.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(WORKER)]
    known = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(
        [*command, str(todo), str(folder)],
        env={**os.environ, **known}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
