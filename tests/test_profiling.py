"""``commcc bench --trace`` and ``commcc profile``: what is measured comes back as a cost file that predicts it."""

from __future__ import annotations

import gzip
import json
import sys

import pytest
import torch

from commcc.base.errors import InputError
from commcc.cli.main import run
from commcc.replay.bench import profiling
from commcc.replay.bench.benchmark import Benchmark, GraphTimes, RankTimes
from commcc.replay.bench.demo import demo_pair
from commcc.replay.bench.forecast import model_text, with_settings
from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.bench.recording import NodeTimes
from commcc.report import benching
from commcc.report.console import make_console
from commcc.timing.cost import load_model
from commcc.timing.cost.operations import free_calls, operations
from commcc.timing.predict import predict
from tests.test_bench import on_ranks
from tests.verify_graphs import Graph

aten = torch.ops.aten


def as_predicted(model):
    """A bench of the small graph whose every node took what a model says, launches 40 us and views 3 us."""

    def measured(named, settings, runner=None):
        graphs = []
        for name, program in named:
            index = make_set([program], settings).prepared[0].index
            prediction = predict(index, load_model(model))
            timeline, names = prediction.timeline, index.names
            times = NodeTimes(
                {names[n]: float(prediction.costs.ns[n]) for n in operations(index, fused=False)}
                | {names[n]: 40_000.0 for n in index.launches}
                | {names[n]: 3_000.0 for n in free_calls(index)},
                {},
                {names[n]: float(timeline.spans[n].ns) for n in index.launches},
            )
            ranks = (RankTimes((timeline.step_ns,), (timeline.exposed_ns,), 1),) * 2
            graphs.append(GraphTimes(name, ranks, index, predict(index, load_model("laptop-cpu,fused=no")), times))
        return Benchmark(tuple(graphs), (), settings, ("a remark",), "laptop-cpu", 1.0)

    return measured


@pytest.fixture
def truth(monkeypatch):
    """What the machine really takes: another device's times."""
    text = "a100,fused=no,launch_us=40,free_us=3"
    monkeypatch.setattr(profiling, "bench", as_predicted(text))
    return load_model(text)


def test_a_profile_predicts_what_it_was_made_of(truth, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["profile", "--device", "cpu", "-o", "c.yaml"]) == 0
    out = capsys.readouterr().out
    text = "laptop-cpu,fused=no,profile=c.yaml,launch_us=40.0,free_us=3.0"
    assert f"  --cost {text}" in out
    assert "8 ops and 4 collectives on 2 ranks on cpu with gloo" in out
    model = load_model(text)
    for program in demo_pair(2):
        index = make_set([program], BenchSettings(ranks=2)).prepared[0].index
        real, ours = predict(index, truth).timeline, predict(index, model).timeline
        assert ours.step_ns == pytest.approx(real.step_ns, rel=0.01)
        assert ours.exposed_ns == pytest.approx(real.exposed_ns, rel=0.01)
        assert {n: s.ns for n, s in ours.spans.items()} == {n: s.ns for n, s in real.spans.items()}


def test_the_report_says_how_good_it_is(truth, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["profile", "--device", "cpu", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["output"], data["command"]) == ("costs.yaml", "profile")
    for graph in data["graphs"]:
        assert abs(graph["with_profile"]["step_ms"]["error"]) < 0.01
        assert abs(graph["without"]["step_ms"]["error"]) > 0.2
        assert 0.5 < graph["priced_share"] <= 1
    console = make_console(sys.stdout)
    for each in benching.view_profile(data):
        console.print(each)
    assert "- a remark" in capsys.readouterr().out
    assert run(["profile", "--device", "cpu", "-q"]) == 0
    assert capsys.readouterr().out == "costs.yaml\n"


def test_the_same_times_make_the_same_file(truth, tmp_path):
    for name in ("a.yaml", "b.yaml"):
        assert run(["profile", "--device", "cpu", "-q", "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.yaml").read_bytes() == (tmp_path / "b.yaml").read_bytes()
    assert (
        (tmp_path / "a.yaml")
        .read_text()
        .startswith('profile: 1\ndevice: "cpu"\nnote: "commcc profile on 2 ranks"\nops:\n')
    )


def test_nothing_to_measure_is_said(monkeypatch):
    monkeypatch.setattr(profiling, "bench", as_predicted("a100,fused=no"))
    g = Graph()
    empty = g.program(g(aten.view.default, g.input("x", 8), [2, 4]))
    with pytest.raises(InputError, match="no op and no collective that a profile can have a time of"):
        profiling.profile([("empty", empty)], BenchSettings(ranks=1, recorded=1))


@pytest.mark.parametrize("output", ["c.json", "."])
def test_where_nothing_can_be_written_nothing_is_run(output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["profile", "--device", "cpu", "-o", output]) == 2
    assert capsys.readouterr().err.startswith("commcc: ")


def test_cost_texts():
    assert model_text("", device="cpu") == "laptop-cpu,fused=no"
    assert model_text("h100,fused=yes", device="cpu") == "h100,fused=yes"
    assert model_text("h100", device="cuda", compiled=True) == "h100"
    assert model_text("", device="cuda") == "h100-sxm,fused=no"  # no device is here to be asked
    assert with_settings("a,x=1", {"x": "2", "y": "3"}) == "a,x=1,y=3"


@pytest.mark.parametrize(
    ("name", "device"),
    [("NVIDIA H200", "h200-sxm"), ("NVIDIA A100-SXM4-80GB", "a100-sxm"), ("AMD Instinct MI300X", "mi300x")],
)
def test_a_device_is_told_by_its_name(name, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert model_text("", device="cuda") == f"{device},fused=no"


@on_ranks
@pytest.mark.full
def test_traces_and_what_was_predicted(tmp_path, capsys):
    folder = tmp_path / "traces"
    assert run(["bench", "--device", "cpu", "--repeat", "3", "--trace", str(folder), "--timeout", "100", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    names = [f"graph{graph}.rank{rank}.pt.trace.json.gz" for graph in (1, 2) for rank in (0, 1)]
    assert sorted(file.name for file in folder.iterdir()) == names
    trace = json.loads(gzip.decompress((folder / names[3]).read_bytes()))
    assert trace["distributedInfo"]["rank"] == 1
    assert sum(each.get("name") == "commcc run" for each in trace["traceEvents"]) == 5
    for graph, count in zip(data["graphs"], (17, 2), strict=True):
        found = graph["forecast"]
        assert len(found["collectives"]) == count
        assert all(each["transfer_ms"]["measured"] > 0 for each in found["collectives"])
        assert sum(kind["count"] for kind in found["kinds"]) == count
        assert found["compute_ms"]["measured"] > 0 < found["launches_ms"]["measured"]
        assert found["step_ms"]["measured"] == graph["wall_ms"]["median"]
        assert 0 <= found["hidden_share"]["measured"] < 1
    console = make_console(sys.stdout)
    for each in benching.view(data, collectives=3):
        console.print(each)
    out = capsys.readouterr().out
    assert "graph 2: measured, and predicted with laptop-cpu (fused=False)" in out
    assert "the 3 of 17 collectives with the largest error" in out
    assert "every collective" in out
    # The folder is a profile that the cost model reads.
    assert load_model(f"laptop-cpu,profile={folder}").name.startswith("laptop-cpu + profile traces")
