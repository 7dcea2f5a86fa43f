"""``commcc run FOLDER``: every graph of a folder, a forward and its backward as one step."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from dataclasses import replace

import pytest
import torch

from commcc.capture.devices import relabel
from commcc.capture.importing import from_graph_module
from commcc.cli.main import run
from commcc.graph.structure import structure_of
from commcc.live import graph_pass
from commcc.run.step import pairs
from commcc.serialization import load, save
from tests.test_live import ROOT, elsewhere, sample
from tests.torch_passes import groups_of

NAMES = ("tiny_llama_fsdp2_bw", "tiny_llama_fsdp2_fw")


@pytest.fixture
def graphs(tmp_path):
    folder = tmp_path / "graphs"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(next((ROOT / "sample_graphs").glob(f"{name}.fx.txt*")), folder)
    return folder


def test_a_folder_of_graphs(graphs, tmp_path, capsys):
    source = next((ROOT / "sample_graphs").glob("tiny_llama_ddp_bw.fx.txt*"))
    shutil.copy(source, graphs)
    (graphs / "notes.md").write_text("no graph")
    tuned, plan = tmp_path / "tuned", tmp_path / "plan"
    command = ["run", str(graphs), "--passes", "bucket{groups=all},reorder", "--cost", "h100"]
    assert run([*command, "-o", f"{tuned}/", "--plan-out", f"{plan}/", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    names = ["tiny_llama_ddp_bw", *NAMES]
    assert [each["graph"].partition(".")[0] for each in document["graphs"]] == names
    assert [(each["forward"][:18], each["backward"][:18]) for each in document["steps"]] == [
        ("tiny_llama_fsdp2_f", "tiny_llama_fsdp2_b")
    ]
    assert document["verified"] == "proved" and document["plan_out"] == str(plan)
    assert sorted(path.name for path in plan.iterdir()) == [f"{name}.yaml" for name in sorted(names)]
    step = document["steps"][0]
    assert step["after"]["step_ms"] < step["before"]["step_ms"]
    for each in document["graphs"]:
        written = load(each["output"])
        here = elsewhere(load(each["input"]))
        gm = here.graph_module()
        with groups_of(here):
            graph_pass(plan=plan, on_refusal="raise")(gm)
        assert structure_of(from_graph_module(gm, here.groups)).fingerprint == structure_of(written).fingerprint


def test_the_folders_say_what_trains(graphs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["run", "graphs/", "--passes", "bucket", "--plan-out", "plan/"]) == 0
    said = capsys.readouterr().out
    assert "commcc.backend(plan='plan'))" in said and "written to graphs.run" in said and "the step of" in said


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("aot", "torch.compile(model, backend=commcc.backend(plan='plan', inner='aot_eager'))"),
        ("post-grad", "post_grad_custom_post_pass = commcc.inductor_pass(plan='plan')"),
    ],
)
def test_what_trains_sees_the_graphs_that_were_captured(level, words, graphs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in graphs.iterdir():
        program = load(file)
        save(replace(program, header={**program.header, "level": level}, source=None), file)
    assert run(["run", "graphs/", "--passes", "bucket", "--plan-out", "plan/"]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["-o", "out.pt2"], "-o of a folder of graphs is a folder"),
        (["--plan-out", "p.yaml"], "--plan-out of a folder of graphs is a folder"),
        (["-o", "not/there"], "does not exist"),
        (["-o", "locked/out"], "locked/out: cannot be written; choose another with -o"),
        (["--plan-out", "locked/plan"], "locked/plan: cannot be written; choose another with --plan-out"),
        (["-o", "graphs"], "would overwrite the input"),
        (["--dump-after-each", "d"], "are of one graph"),
        (["graphs"], "BACKWARD"),
    ],
)
def test_what_a_folder_cannot_be_asked(more, words, graphs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked").mkdir()
    access = os.access  # root may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "locked" and access(path, mode))
    before = sorted(tmp_path.rglob("*"))
    assert run(["run", "graphs", *more, "--passes", "bucket"]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_pairs():
    forward, backward = sample(NAMES[1]), sample(NAMES[0])
    assert pairs({"b": backward, "f": forward}) == [("f", "b")]
    # Two forwards that fit equally well.
    assert pairs({"b": backward, "f": forward, "g": forward}) == []
    assert pairs({"f_b": backward, "f_f": forward, "g": forward}) == [("f_f", "f_b")]
    assert pairs({"f": forward}) == []


def test_a_plan_does_not_ask_for_the_device(graphs, tmp_path):
    """A plan of a graph that was captured for a GPU fits the same graph on the CPU, and proves it."""
    assert run(["run", str(graphs), "--passes", "bucket,reorder", "--plan-out", str(tmp_path / "plan"), "-q"]) == 0
    here = sample(NAMES[0])
    on_gpu = structure_of(here).fingerprint
    for node in here.graph.nodes:  # what was captured on the CPU
        node.meta["val"] = torch.utils._pytree.tree_map(_on_cpu, node.meta.get("val"))
        node.args = torch.fx.node.map_aggregate(node.args, _on_cpu)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _on_cpu)
    assert structure_of(here).fingerprint == on_gpu
    made = graph_pass(plan=tmp_path / "plan", on_refusal="raise").rewrite(here.graph_module())
    assert made.result.changed and made.result.verified == "proved"
    relabel(here.graph, torch.device("cuda:3"))
    assert structure_of(here).fingerprint == on_gpu


def test_symbolic_sizes_may_have_other_names(tmp_path):
    text = gzip.decompress((ROOT / "sample_graphs" / "tiny_moe_ep2_fw.fx.txt.gz").read_bytes()).decode()
    own = structure_of(sample("tiny_moe_ep2_fw"))
    assert re.search(r"\bu0\b", text) and re.search(r"\bu1\b", text)
    for name, pattern, new, same in (("renamed", r"\bu(\d+)\b", r"u9\1", True), ("joined", r"\bu1\b", "u0", False)):
        file = tmp_path / f"{name}.fx.txt"
        file.write_text(re.sub(pattern, new, text))
        assert (structure_of(load(file)).fingerprint == own.fingerprint) is same


def _on_cpu(value):
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Tensor):
        with value.fake_mode:
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")
    return value
