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
from commcc.serialization import list_graphs, load, save
from commcc.timing.cost import load_model
from commcc.timing.snapshot import take
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
    # The halves of the step have its peak, the other graph its own, as `commcc inspect` says it.
    assert [each["peak_of"] for each in document["graphs"]] == ["graph", "step", "step"]
    assert all(each["memory_budget_bytes"] >= each["after"]["peak_bytes"] for each in document["graphs"])
    alone = [take(load(each["input"]), load_model("h100")).to_json() for each in document["graphs"]]
    same = [
        here["peak_bytes"] == each["before"]["peak_bytes"] for here, each in zip(alone, document["graphs"], strict=True)
    ]
    assert same == [True, False, True]
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
        (["-o", "graphs/tiny_llama_fsdp2_fw.fx.txt/out"], "_fw.fx.txt' is not a folder; choose another with -o"),
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


def test_the_table_says_what_peaks_are_of_and_the_budget(graphs, tmp_path, capsys):
    assert run(["run", str(graphs), "--passes", "reorder{memory_budget=1}", "-o", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "peak memory" in lines[0] and "budget" in lines[0]
    rows = [line for line in lines if line.startswith("tiny_llama")]
    assert len(rows) == 2 and all("KiB in the step" in row and "1.0 GiB" in row for row in rows)


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


LOG = ROOT / "tests" / "data" / "containers" / "torch_logs_rank0.txt.gz"


def test_all_graphs_of_a_log(tmp_path, capsys):
    log, out, plan = tmp_path / "run.log", tmp_path / "out", tmp_path / "plan"
    log.write_bytes(gzip.decompress(LOG.read_bytes()))
    names = [entry.name for entry in list_graphs(log) if entry.loadable]
    command = ["run", str(log), "--passes", "cleanup,bucket{groups=all}"]
    assert run([*command, "-o", str(tmp_path / "out.fx.txt")]) == 2
    assert "choose one as FILE::NAME, commcc inspect lists them; commcc run takes all with -o FOLDER" in (
        capsys.readouterr().err
    )
    assert run([*command, "-o", str(out), "--plan-out", str(plan), "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    shown = [each["input"] for each in document["graphs"]]
    assert 1 < len(shown) < len(names) and f"{len(names) - len(shown)} of {len(names)} graphs left out: " in said.err
    assert {spec.partition("::")[2] for spec in shown} < set(names)
    assert sorted(each["output"] for each in document["graphs"]) == sorted(map(str, out.iterdir()))
    assert len(list(plan.iterdir())) == len(shown)
    for each in document["graphs"]:
        assert load(each["output"]).provenance


def test_a_folder_of_debug_texts(graphs, tmp_path, capsys):
    """As TORCH_COMPILE_DEBUG writes it: a folder for each graph, which holds it in several texts."""
    debug, out = tmp_path / "debug", tmp_path / "out"
    for name in NAMES:
        folder = debug / "run_1" / "torchinductor" / name
        folder.mkdir(parents=True)
        text = load(next(graphs.glob(f"{name}.*"))).graph_module()
        for title, full in (("readable", False), ("runnable", True)):
            shown = text.print_readable(print_output=False, include_stride=full, include_device=full)
            (folder / f"fx_graph_{title}.py").write_text(shown)
        (folder / "output_code.py").write_text("import torch\n")
    assert run(["run", str(debug), "--passes", "bucket{groups=all}", "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    # The text that says most is taken.
    assert [each["graph"] for each in document["graphs"]] == [f"{name}/fx_graph_runnable.py" for name in sorted(NAMES)]
    assert len(document["steps"]) == 1 and document["verified"] == "proved"
    assert sorted(path.name for path in out.iterdir()) == [
        f"{name}.fx_graph_runnable.py.fx.txt" for name in sorted(NAMES)
    ]
    # What the list shows can be typed, and a folder of texts says what to type.
    inside = f"{debug}::run_1/torchinductor/{NAMES[0]}/fx_graph_runnable.py"
    assert run(["inspect", inside]) == 0
    capsys.readouterr()
    assert run(["run", str(debug), "--passes", "bucket"]) == 2
    assert (
        "the folder itself is no graph; commcc inspect lists those in texts and folders below it; choose one, or all"
        in (capsys.readouterr().err)
    )


def test_a_graph_that_is_refused_is_named(graphs, tmp_path, capsys):
    (graphs / f"{NAMES[0]}.fx.txt.gz").unlink()
    said = "ep-chunk: there is no exchange of tokens in this graph that could overlap: no all-to-all, and no annotation"
    assert run(["run", str(graphs), "--preset", "ep-overlap", "-o", str(tmp_path / "out")]) == 2
    assert f"{graphs / NAMES[1]}.fx.txt: {said}" in capsys.readouterr().err
    assert run(["ep-overlap", f"{graphs / NAMES[1]}.fx.txt"]) == 2
    assert f"commcc: error: {said} of expert parallelism; --preset auto overlaps all other" in capsys.readouterr().err
