"""Timing on real ranks: what is refused before, what is measured, and what the report makes of it."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from commcc.base.errors import CommccError, InputError
from commcc.cli.main import run
from commcc.graph.program import ProcessGroup
from commcc.replay.bench import graph_set as bench_set
from commcc.replay.bench import worker as bench_worker
from commcc.replay.bench.benchmark import Benchmark, GraphTimes, RankTimes, _host_bound, bench
from commcc.replay.bench.demo import PASSES, demo_pair, demo_text
from commcc.replay.bench.graph_set import BenchSettings, check, make_set
from commcc.replay.bench.recording import StepTimes
from commcc.replay.numeric import Settings, verify_numeric
from commcc.replay.place import CpuPlace
from commcc.replay.ranks import launch
from commcc.replay.ranks.worker import Alone
from commcc.report import benching
from commcc.report.console import make_console
from commcc.serialization import save
from commcc.timing.cost import load_model
from commcc.timing.snapshot import take
from tests.test_replay_numeric import copied, sample
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
SAMPLES = Path(__file__).parents[1] / "sample_graphs"
BEFORE = SAMPLES / "tiny_llama_fsdp2_bw.fx.txt.gz"
# What the report needs of a prediction.
PREDICTED = SimpleNamespace(
    timeline=SimpleNamespace(step_ns=500_000, exposed_ns=200_000), memory=SimpleNamespace(peak_bytes=7)
)
TWO = {"0": ProcessGroup("0", 2, (0, 1))}


def on_ranks(test):
    """A test that starts processes."""
    able = torch.distributed.is_available()
    return pytest.mark.ranks(pytest.mark.skipif(not able, reason="PyTorch without distributed")(test))


def reduced(dtype=torch.float32, reduction="sum"):
    """One all-reduce over two ranks."""
    g = Graph()
    x = g.input("x", 8, dtype=dtype)
    return g.program(g.reduce(x, reduction), groups=TWO)


def counting():
    """A graph that adds to its input: run twice on the same input, it gives something else."""
    g = Graph()
    x = g.input("x", 4)
    return g.program(g(aten.add_.Tensor, x, 1), groups=TWO)


def preflight(*programs, **settings):
    chosen = BenchSettings(**settings)
    check(make_set(programs, chosen), chosen)


# Before any rank is started


def test_what_can_run_is_not_refused():
    preflight(reduced(), reduced(), ranks=2)
    preflight(reduced(torch.int64), reduced(torch.bfloat16, "avg"), ranks=2)


def test_refused_for_an_input_without_a_value():
    g = Graph()
    g.value("odd", (1, 2))
    with pytest.raises(InputError, match="no value for input 'odd' can be worked out: a tuple is neither a number"):
        preflight(g.program(g.reduce(g.input("x", 8), "sum"), groups=TWO), ranks=2)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: reduced(torch.float8_e4m3fn), "sends float8_e4m3fn, which gloo cannot"),
        (lambda: reduced(torch.int64, "avg"), "sends an average of int64, which gloo cannot"),
        (lambda: sample("tiny_moe_fsdp4_ep2_fw"), "for 4 ranks, not 2"),
    ],
)
def test_refused_with_the_node_or_the_number(program, words):
    with pytest.raises(CommccError, match=words) as caught:
        preflight(program(), ranks=2)
    assert caught.value.exit_code == 2


def test_refused_for_memory(monkeypatch):
    monkeypatch.setattr(bench_set, "free_memory", lambda: 600_000_000)
    with pytest.raises(InputError, match=r"2 ranks need about 0.6 GiB of memory, and 0.6 GiB are free"):
        preflight(reduced(), ranks=2)
    monkeypatch.setattr(bench_set, "free_memory", lambda: None)
    preflight(reduced(), ranks=2)


def test_many_ranks_are_started_only_when_asked_for(monkeypatch):
    monkeypatch.setattr(bench_set, "MOST_BY_DEFAULT", 1)
    with pytest.raises(InputError, match="the graph is for 2 ranks; at most 1 are started when nobody says"):
        preflight(reduced())
    preflight(reduced(), ranks=2)


def test_inputs_are_matched_by_name():
    g = Graph()
    other = g.program(g.reduce(g.input("y", 8), "sum"), groups=TWO)
    with pytest.raises(InputError, match="graph 3 has an input 'y' that graph 1 has not"):
        preflight(reduced(), reduced(), other)


def test_the_ranks_get_all_settings():
    settings = BenchSettings(2, seed=3, groups={"3": ((0,), (1,))}, hints={"u*": 9}, repeat=4, warmup=0, graphs=5)
    assert BenchSettings.from_text(settings.to_text()) == settings


# One rank, here


def test_inputs_are_as_they_were_before_every_run(monkeypatch):
    """Warm-ups do not count, and no run sees what another one wrote."""
    graphs = make_set([counting()], BenchSettings(ranks=1))
    made = graphs.maker.of_rank(0)
    kept = made["x"].clone()
    timed = bench_worker.Bench(graphs.prepared[0], context())
    seen = []
    inner = timed.program.outputs
    monkeypatch.setattr(type(timed.program), "outputs", lambda _self, inputs: seen.append(inner(inputs)[0]))
    for keep in (False, True, True):
        timed.sample(made, keep=keep)
    assert torch.equal(made["x"], kept)
    assert [torch.equal(value, kept + 1) for value in seen] == [True] * 3
    found = timed.to_json()
    assert (len(found["wall_ns"]), found["exposed_ns"]) == (2, [0, 0])


def test_graphs_take_turns_and_warm_ups_do_not_count():
    done = []

    class Counted:
        def __init__(self, name):
            self.name, self.context = name, context()

        def sample(self, made, *, keep):
            done.append((self.name, self.context.watch.program, keep))

    bench_worker._in_turns([Counted("A"), Counted("B")], {}, BenchSettings(repeat=2, warmup=1, graphs=2))
    turn = [("A", "graph 1"), ("B", "graph 2")]
    assert done == [(*each, keep) for keep in (False, True, True) for each in turn]


class Watch:
    program = None

    def progress(self, doing, node):
        pass

    def stage(self, text):
        pass


def context():
    return bench_worker.RankContext(0, CpuPlace(), Alone(), Watch(), 0)


def test_only_waits_are_exposed():
    waited = StepTimes(CpuPlace())
    steps = make_set([reduced()], BenchSettings()).prepared[0].steps
    changed = [step.name for step in steps if waited.step(step).call is not step.call]
    assert changed == [step.name for step in steps if step.waits]
    assert len(changed) == 1

    def fails():
        end = time.perf_counter_ns() + 1000
        while time.perf_counter_ns() < end:
            pass
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        waited.step(dataclasses.replace(next(step for step in steps if step.waits), call=fails)).call()
    assert waited.taken()[changed[0]] >= 1000
    waited.forget()
    assert not waited.taken()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="counts peaks on Linux only")
def test_peak_memory_is_counted_anew():
    big = bytearray(64 << 20)
    place = CpuPlace()
    held = place.peak_bytes()
    del big
    assert place.forget_peak()
    assert place.peak_bytes() < held - (32 << 20)


# The small graph


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_small_graph_is_the_same_before_and_after(ranks):
    before, after = demo_pair(ranks)
    found = verify_numeric(before, after, Settings())
    assert (found.status, found.ranks, found.compared) == ("equal", ranks, 7)
    launches = [sum("tensor.default" in str(n.target) for n in each.graph.nodes) for each in (before, after)]
    assert launches == [17 + 17, 2 + 2]  # with their waits


@pytest.mark.parametrize("ranks", [1, 5, 7, 127, 200])
def test_the_small_graph_is_as_wide_as_all_shards(ranks):
    text = demo_text(ranks)
    rows, width = map(int, re.search(r"primals_1: .f32\[(\d+), (\d+)\]", text).groups())
    assert rows * ranks == width
    assert 128 <= width < 128 + ranks
    assert text.count(f", {ranks}, '0')") == 17


def test_without_a_graph_the_small_one_is_run(capsys, monkeypatch):
    asked = []

    def measured(named, settings, runner):
        asked.append(([name for name, _ in named], settings))
        return benchmark([2_000_000] * 3)

    monkeypatch.setattr("commcc.replay.bench.benchmark.bench", measured)
    assert run(["bench", "-q"]) == 0
    more = [
        "--nproc",
        "3",
        "--repeat",
        "7",
        "--warmup",
        "1",
        "--seed",
        "5",
        "--timeout",
        "9",
        "--groups",
        "0=0-2",
        "--hint",
        "u*=4",
    ]
    assert run(["bench", "-q", *more]) == 0
    names = ["a small graph", f"after {PASSES}"]
    told = BenchSettings(3, seed=5, timeout=9, groups={"0": ((0, 1, 2),)}, hints={"u*": 4}, repeat=7, warmup=1)
    assert asked == [(names, BenchSettings(2)), (names, told)]
    assert capsys.readouterr().out == "2.000 ms\n" * 2


@pytest.mark.parametrize("late", [True, False])
def test_more_time_is_suggested_to_those_who_ran_out_of_it(monkeypatch, late):
    def ended(*_arguments, **_options):
        error = launch.RanksError("it ended", hint="something about virtual ranks")
        error.late = late
        raise error

    monkeypatch.setattr(launch, "run_ranks", ended)
    with pytest.raises(launch.RanksError) as caught:
        bench([("g", reduced())], BenchSettings(ranks=2))
    assert ("--timeout allows more seconds" in str(caught.value)) is late
    assert "virtual" not in str(caught.value)


# The report


def benchmark(*walls):
    graphs = tuple(
        GraphTimes(name, (RankTimes(tuple(wall), (1_000_000,) * len(wall), 2 << 20),) * 2, None, PREDICTED)
        for name, wall in zip("abc", walls, strict=False)
    )
    return Benchmark(graphs, (), BenchSettings(repeat=len(walls[0])), ("a remark",), "laptop-cpu", 1.5)


def printed(capsys, data, **options):
    console = make_console(sys.stdout)
    for each in benching.view(data, **options):
        console.print(each)
    return capsys.readouterr().out


def test_the_slowest_rank_of_each_repetition_counts():
    times = GraphTimes(
        "g", (RankTimes((1, 9, 3), (1, 1, 1), 7), RankTimes((4, 2, 3), (2, 0, 0), None)), None, PREDICTED
    )
    assert times.samples == [4, 9, 3]
    assert (times.wall.median, times.exposed.median, times.peak_bytes) == (4, 1, 7)


def test_one_graph_has_times_and_no_verdict(capsys):
    data = benching.benchmark(["a"], benchmark([2_000_000] * 3))
    out = printed(capsys, data)
    assert "2 ranks on cpu with gloo, 3 repetitions in turns, seed 0" in out
    assert "1  a      2.000 ms  2.000 ms  2.000 ms  1.000 ms  50.0 %      2.0 MiB   0.500 ms" in out
    assert "against" not in out
    assert "- a remark" in out
    assert data["graphs"][0]["predicted"] == {"step_ms": 0.5, "exposed_ms": 0.2, "peak_bytes": 7}
    assert "predicted: simulated for laptop-cpu" in out
    assert benching.brief(data) == "2.000 ms"
    assert printed(capsys, data, ranks=True).count("50.0 %") == 3


# On ranks


@on_ranks
@pytest.mark.full
def test_three_graphs_in_turns(capsys, tmp_path):
    """A graph, the same merged, and one that adds up otherwise: found different, whatever the times say."""
    before, merged = demo_pair(2)
    wrong = copied(merged)
    next(n for n in wrong.graph.nodes if "reduce_scatter" in str(n.target)).update_arg(1, "avg")
    files = [tmp_path / f"{name}.fx.txt" for name in ("before", "merged", "wrong")]
    for program, file in zip((before, merged, wrong), files, strict=True):
        save(program, file)
    code = run(["bench", *map(str, files), "--repeat", "6", "--warmup", "1", "--timeout", "100", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert [each["results"]["status"] for each in found["comparisons"]] == ["equal", "different"]
    assert (found["ranks"], found["repeat"], found["inputs"]) == (2, 6, [str(file) for file in files])
    for graph in found["graphs"]:
        assert len(graph["samples_ms"]) == 6
        assert len(graph["ranks"]) == 2
        for rank in graph["ranks"]:
            assert 0 < rank["exposed_ms"]["median"] < rank["wall_ms"]["median"] <= max(graph["samples_ms"])
    ratio = [b / a for a, b in zip(*(found["graphs"][n]["samples_ms"] for n in (0, 1)), strict=True)]
    assert found["comparisons"][0]["low"] == pytest.approx(min(ratio), rel=1e-3)
    assert found["comparisons"][0]["pairs"] == 6
    predicted = [take(program, load_model("laptop-cpu,fused=no")).prediction.to_json() for program in (before, merged)]
    assert [each["predicted"]["step_ms"] for each in found["graphs"][:2]] == [each["step_ms"] for each in predicted]
    out = printed(capsys, found)
    assert "  the results are the same to the bit (7 values of each rank)" in out
    assert "commcc verify --numeric says where it comes from" in out
    assert "results different" in benching.brief(found)


@on_ranks
@pytest.mark.full
def test_a_node_that_fails_on_the_ranks_is_one_line(capsys, tmp_path):
    """bitwise_not has no float kernel, which shows when it runs."""
    programs = []
    for op in (aten.neg.default, aten.bitwise_not.default):
        g = Graph()
        x = g.input("x", 8)
        programs.append(g.program(g(op, x, val=x.meta["val"])))
    files = [tmp_path / "good.fx.txt", tmp_path / "bad.fx.txt"]
    for program, file in zip(programs, files, strict=True):
        save(program, file)
    code = run(["bench", *map(str, files), "--nproc", "1", "--timeout", "100"])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "graph 2: node 'bitwise_not_default' (aten.bitwise_not) fails" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc", "3"], "the graph is for 2 ranks, not 3"),
        (["--groups", "9=0,1"], "no collective uses '9'"),
        (["--repeat", "0"], "--repeat"),
        (["nothing.fx.txt"], "no such file"),
    ],
)
def test_wrong_use_is_one_line(capsys, arguments, words):
    code = run(["bench", str(BEFORE), *arguments])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


class Silent:
    """A watch that nobody asks."""

    program = device = None

    def progress(self, doing, node):
        pass

    def stage(self, text):
        pass


class Here:
    """Runs emulated ranks in this process."""

    def here(self, world):
        return world

    def __call__(self, graphs, programs, settings):
        return bench_worker.measure(graphs, 0, settings, Silent())


@pytest.mark.parametrize(("host", "told"), [((), False), ((80, 90, 85), False), ((97, 99, 98), True)])
def test_a_device_that_waits_for_its_host(host, told):
    times = GraphTimes("g", (RankTimes((100, 101, 102), (1, 1, 1), 7, host_ns=host),), None, PREDICTED)
    assert [note.split(" took ")[0] for note in _host_bound(2, times)] == ["graph 2: the host"] * told


@pytest.mark.parametrize(
    ("noise", "status"),
    [
        ((0, 1e-5, 2e-5), "within tolerance"),  # as atomic additions of a device do
        ((0, 1e-5, 1), "different"),
        ((0, 0, 1e-4), "different"),  # graph 1 is the same twice
        ((0, 0, 0), "equal"),
    ],
)
def test_a_graph_that_a_device_does_not_run_twice_alike(noise, status, monkeypatch):
    monkeypatch.setattr(bench_worker, "CUDA", "cpu")
    plain, runs = bench_worker.Bench.run, iter(noise)

    def run(self, inputs):
        results = plain(self, inputs)
        return dataclasses.replace(results, outputs=[value + next(runs) for value in results.outputs])

    monkeypatch.setattr(bench_worker.Bench, "run", run)
    settings = BenchSettings(ranks=2, emulated=True, repeat=1, warmup=0)
    result = bench([("a", reduced()), ("b", reduced())], settings, Here())
    (other,) = result.others
    assert other.numeric.status == status
    assert any("differ from one run of it to the next" in note for note in result.notes) is bool(noise[1])
