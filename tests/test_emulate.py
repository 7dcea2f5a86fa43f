"""One process for all ranks: steps on streams, their times, whole samples, and ``commcc bench --device emulated``."""

from __future__ import annotations

import json
import operator
import threading
import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch

from commcc.base.errors import InputError
from commcc.cli.main import run
from commcc.graph.index.host import early_reads
from commcc.graph.program import ProcessGroup
from commcc.passes.options import parse_pipeline
from commcc.replay.bench import graph_set
from commcc.replay.bench import worker as bench_worker
from commcc.replay.bench.graph_set import BenchSettings, check, make_set
from commcc.replay.bench.recording import NodeRun
from commcc.replay.emulate.streams import CpuStreams
from commcc.replay.emulate.transport import CommTotals, Durations, Transport, remarks, totals_json
from commcc.replay.numeric.compare import compare_rank
from commcc.replay.numeric.pair import own_inputs
from commcc.replay.rank_run import RankRun
from commcc.replay.virtual import StepError, VirtualRun
from commcc.run.pipeline import run as run_passes
from commcc.timing.cost import load_model
from tests.replay_clock import install
from tests.test_bench import Watch, context, on_ranks, reduced
from tests.test_replay_numeric import sample
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
FOUR = {"0": ProcessGroup("0", 4, (0, 1, 2, 3))}
MODEL = load_model("laptop-cpu")


class Recorded:
    """Lanes in which a result arrives with its wait, and not before. log: launches and waits."""

    def __init__(self):
        self.log = []

    def __getitem__(self, name):
        return _Recorded(self.log, name)

    def close(self):
        pass


class _Recorded:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def launch(self, fill, ns, pace):
        self.log.append(f"launch on {self.name}")
        return [fill, ns]

    def wait(self, ticket):
        self.log.append(f"wait on {self.name}")
        if ticket[0] is not None:
            ticket[0]()
        ticket[0] = None

    def took_ns(self, ticket):
        return 2 * ticket[1]


def transport_of(program, streams=None, cost=MODEL, **settings):
    graphs = make_set([program], BenchSettings(emulated=True, **settings))
    return Transport(graphs.prepared[0], graphs.layout, cost, streams or Recorded()), graphs.maker.of_rank(0)


def ran(transport, inputs):
    return RankRun(transport.prepared, 0, 0, lambda *_: None)(own_inputs(transport.prepared, inputs)).outputs


def bench_of(prepared, layout, cost, streams):
    transport = Transport(prepared, layout, cost, streams)
    return bench_worker.Bench(transport.prepared, context(), transport)


# Launches and waits


def test_a_result_is_there_after_its_wait_and_not_before():
    g = Graph()
    launch = g(c10d.all_gather_into_tensor.default, g.input("x", 2), 4, "0")
    transport, made = transport_of(g.program(g(aten.add.Tensor, launch, 0), g.wait(launch), groups=FOUR))
    early, late = ran(transport, made)
    wanted = made["x"].repeat(4)
    assert torch.equal(late, wanted)
    assert not torch.equal(early, wanted)
    assert transport.streams.log == ["launch on 0", "wait on 0"]


def test_waiting_for_a_view_waits_for_what_it_is_a_view_of():
    g = Graph()
    launch = g(c10d.all_gather_into_tensor.default, g.input("x", 2), 4, "0")
    waited = g.wait(g(aten.view.default, launch, [4, 2]))
    transport, made = transport_of(g.program(waited, g.wait(waited), groups=FOUR))
    assert torch.equal(ran(transport, made)[0], made["x"].repeat(4, 1))
    assert transport.streams.log.count("wait on 0") == 1  # the second has nothing to wait for


def test_two_results_in_one_buffer_arrive_with_either_wait():
    g = Graph()
    x, buffer = g.input("x", 2), g.input("buffer", 16)
    halves = [g(aten.slice.Tensor, buffer, 0, 8 * n, 8 * n + 8) for n in range(2)]
    outs = [g(c10d.all_gather_into_tensor_out.default, x, 4, "0", out=half) for half in halves]
    transport, made = transport_of(g.program(g.wait(outs[1]), buffer, groups=FOUR))
    found = ran(transport, made)
    assert torch.equal(found[1], made["x"].repeat(8))
    assert transport.streams.log == ["launch on 0"] * 2 + ["wait on 0"] * 2


def test_of_several_results_each_can_be_waited_for():
    g = Graph()
    x, y = g.input("x", 2), g.input("y", 3)
    launch = g(c10d.all_reduce_coalesced.default, [x, y], "sum", "0")
    second, first = (g(operator.getitem, launch, n) for n in (1, 0))
    transport, made = transport_of(g.program(g.wait(second), first, g(aten.neg.default, second), groups=FOUR))
    found = ran(transport, made)
    assert torch.equal(found[0], made["y"] * 4)
    assert torch.equal(found[1], made["x"] * 4)
    assert transport.streams.log == ["launch on 0", "wait on 0", "wait on 0"]  # the other's is at the end


def test_a_collective_that_does_not_return_before_it_is_done():
    g = Graph()
    x = g.input("x", 4, 2)
    op = torch.ops._dtensor.shard_dim_alltoall.default
    moved = g(op, x, 1, 0, "0", val=g.input("like", 1, 8).meta["val"])
    transport, made = transport_of(g.program(moved, groups=FOUR))
    assert torch.equal(ran(transport, made)[0], made["x"][:1].repeat(1, 4))
    assert transport.streams.log == ["launch on 0", "wait on 0"]


def test_what_nobody_waits_for_ends_with_the_run():
    g = Graph()
    g(c10d.all_reduce_.default, g.input("x", 2), "sum", "0")
    transport, made = transport_of(g.program(groups=FOUR))
    for runs in (1, 2):
        ran(transport, made)
        assert transport.streams.log == ["launch on 0", "wait on 0"] * runs


def test_memory_is_free_after_the_wait():
    g = Graph()
    x = g.input("x", 8)
    sent = g(aten.neg.default, x)
    transport, made = transport_of(g.program(g.reduce(sent, "sum"), groups=FOUR))
    kept = []
    seen = []

    def watched(step):
        if step.name == sent.name:
            return replace(step, call=lambda t: kept.append(weakref.ref(r := aten.neg.default(t))) or r)
        return replace(step, call=_watching(step.call, kept, seen)) if step.waits and step.args else step

    steps = tuple(map(watched, transport.prepared.steps))
    RankRun(replace(transport.prepared, steps=steps), 0, 0, lambda *_: None)(made)
    assert seen == [True, False]


def _watching(call, kept, seen):
    def wait(tensor):
        seen.append(kept[0]() is not None)
        result = call(tensor)
        seen.append(kept[0]() is not None)
        return result

    return wait


def test_a_launch_that_fails_names_its_node():
    g = Graph()
    counts = g.input("counts", 4, dtype=torch.int64)
    launch = g(c10d.all_to_all_single.default, counts, [1] * 4, [1] * 4, "0")
    transport, made = transport_of(g.program(g.wait(launch), groups=FOUR))
    with pytest.raises(StepError, match=r"node 'all_to_all_single.*3 rows"):
        ran(transport, {"counts": made["counts"][:3]})


def test_the_rank_is_the_first_of_its_group_wherever_that_is():
    g = Graph()
    scattered = g.scatter(g.input("x", 8), size=2)
    transport, made = transport_of(g.program(scattered), ranks=4, groups={"0": ((2, 0), (1, 3))})
    assert torch.equal(ran(transport, made)[0], 2 * made["x"][4:])


# Times


def test_prices_are_those_of_the_simulator():
    graphs = make_set([sample("tiny_llama_fsdp2_tp2_bw")], BenchSettings(emulated=True))
    index = graphs.prepared[0].index
    durations, costs = Durations(index, MODEL), MODEL.price(index)
    streams = Recorded()
    transport = Transport(graphs.prepared[0], graphs.layout, MODEL, streams)
    ran(transport, graphs.maker.of_rank(0))
    found = CommTotals.of(transport.take_times())
    assert found.launches == len(index.launches) == 56
    assert found.modelled_ns == sum(costs.ns[node] for node in index.launches)
    assert found.took_ns == 2 * found.modelled_ns
    assert transport.take_times() == {}
    assert {durations.stream(node) for node in index.launches} == {"1", "3"}


def test_a_size_known_at_run_time_is_priced_then():
    """With hints that are wrong, so that the stated price is wrong as well."""
    program = sample("tiny_moe_ep2_fw")
    found = []
    for hints in ({}, {"u*": 3}):
        graphs = make_set([program], BenchSettings(emulated=True, hints=hints))
        transport = Transport(graphs.prepared[0], graphs.layout, MODEL, Recorded())
        ran(transport, graphs.maker.of_rank(0))
        stated = sum(transport.durations.costs.ns[node] for node in transport.durations.index.launches)
        found.append((CommTotals.of(transport.take_times()).modelled_ns, stated))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


def test_a_price_is_of_the_bytes():
    g = Graph()
    program = g.program(g.gather(g.input("x", 1 << 20)), groups=FOUR)
    graphs = make_set([program], BenchSettings(emulated=True))
    durations = Durations(graphs.prepared[0].index, MODEL)
    (node,) = durations.index.launches
    assert durations.ns(node, 4 << 20, 16 << 20) == durations.costs.ns[node]
    assert durations.ns(node, 1 << 20, 4 << 20) < durations.costs.ns[node] / 3
    asked = []
    told = Durations(durations.index, replace(MODEL, sources=(_Fixed(7, asked),)))
    assert [told.ns(node, 1 << 20, 4 << 20) for _ in range(2)] == [7, 7]
    assert [(each.input_bytes, each.output_bytes) for each in asked] == [(1 << 20, 4 << 20)]


@pytest.mark.parametrize(("share", "streams"), [("none", {"1", "3"}), ("all", {"link"})])
def test_groups_that_share_a_link_share_a_stream(share, streams):
    cost = load_model(f"laptop-cpu,share_link={share}")
    transport, made = transport_of(sample("tiny_llama_fsdp2_tp2_fw"), cost=cost)
    ran(transport, made)
    assert {line.removeprefix("launch on ") for line in transport.streams.log if "launch" in line} == streams


# Whole samples


@cache
def merged(name):
    return run_passes(sample(name), parse_pipeline("bucket,reorder"), model=load_model("h100")).program


SAMPLES = ("tiny_llama_fsdp4_bw", "tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_deepseek_ep2")


@pytest.fixture(scope="module")
def streams():
    made = CpuStreams()
    yield made
    made.close()


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.sampled(1)
def test_passes_change_no_bit(name, streams):
    """Reductions too: of what is the same everywhere, every part is one product."""
    graphs = make_set([sample(name), merged(name)], BenchSettings(emulated=True))
    made = graphs.maker.of_rank(0)
    benches = [bench_of(each, graphs.layout, MODEL, streams) for each in graphs.prepared]
    results = [bench.run(own_inputs(bench.prepared, made)) for bench in benches]
    gaps = compare_rank(*results, 0)
    assert gaps.gaps == ()
    assert (gaps.nan, gaps.infinite) == ({}, ())
    assert len(gaps.compared) > 20
    again = benches[0].run(own_inputs(benches[0].prepared, made))
    assert compare_rank(results[0], again, 0).gaps == ()


@pytest.mark.parametrize("name", ["tiny_llama_fsdp4_fw", "tiny_llama_fsdp4_bw", "tiny_llama_ddp_bw", "tiny_moe_ep2_fw"])
def test_as_virtual_ranks_that_are_all_given_the_same(name):
    """What a rank gets back whose peers are like it is what it gets from peers that are."""
    graphs = make_set([sample(name)], BenchSettings(emulated=True))
    prepared, made = graphs.prepared[0], graphs.maker.of_rank(0)
    transport = Transport(prepared, graphs.layout, MODEL, Recorded())
    racing = frozenset(
        prepared.index.names[copy] for _, copy in early_reads(prepared.index, range(len(prepared.index)))
    )
    given = [own_inputs(prepared, made) for _ in range(graphs.layout.world)]
    virtual = VirtualRun(prepared, graphs.layout, blocking=racing)(given)
    _same(ran(transport, made), virtual[0].outputs)


def _same(some, others):
    for one, other in zip(some, others, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)


@pytest.fixture
def clocked(monkeypatch):
    """Streams on a clock that only sleeping and looking moves on."""
    install(monkeypatch)
    made = CpuStreams()
    yield made
    made.close()


def test_what_waits_for_communication_waits_as_long_as_it_is_modelled(clocked):
    """Every wait right after its launch, 20 ms each."""
    g = Graph()
    x = g.input("x", 16)
    for _ in range(3):
        x = g(aten.slice.Tensor, g.gather(x), 0, 0, 16)
    cost = load_model("laptop-cpu,ranks_per_node=1")
    graphs = make_set([g.program(x, groups=FOUR)], BenchSettings(emulated=True))
    slow = replace(cost, sources=(_Fixed(20_000_000),))
    bench = bench_of(graphs.prepared[0], graphs.layout, slow, clocked)
    made = graphs.maker.of_rank(0)
    for keep in (False, True, True):
        bench.sample(made, keep=keep)
    found = bench.to_json()
    assert found["communication"][0]["launches"] == 3
    assert found["communication"][0]["modelled_ns"] == 60_000_000
    # A wait begins a few looks at the clock after its launch, and ends a few after the collective.
    assert found["exposed_ns"] == pytest.approx([60_000_000] * 2, abs=1_000_000)
    assert found["wall_ns"] == pytest.approx([60_000_000] * 2, abs=1_000_000)
    assert all(exposed <= wall for exposed, wall in zip(found["exposed_ns"], found["wall_ns"], strict=True))


class _Fixed:
    """A cost source in which everything takes as long."""

    name, warnings = "fixed", ()

    def __init__(self, ns, asked=None):
        self.ns, self.asked = ns, asked if asked is not None else []

    def facts(self):
        return {"ns": self.ns}

    def operation(self, operation):
        return _price(0)

    def transfer(self, transfer):
        self.asked.append(transfer)
        return _price(self.ns)


def _price(ns):
    from commcc.timing.cost import Price

    return Price(ns, "fixed")


def test_communication_hides_behind_compute_and_the_tail_is_exposed(clocked):
    """Nobody waits for the second one: the run ends when it does."""
    g = Graph()
    x = g.input("x", 16)
    first = g(c10d.all_gather_into_tensor.default, x, 4, "0")
    g(c10d.all_reduce_.default, g.input("y", 4), "sum", "0")
    slow = replace(MODEL, sources=(_Fixed(20_000_000),))
    graphs = make_set([g.program(g.wait(first), groups=FOUR)], BenchSettings(emulated=True))
    bench = bench_of(graphs.prepared[0], graphs.layout, slow, clocked)
    bench.sample(graphs.maker.of_rank(0), keep=True)
    assert bench.wall_ns[0] == pytest.approx(40_000_000, abs=1_000_000)
    # The stream may be at the second one, and the clock with it, before the wait for the first has looked at the clock.
    assert 20_000_000 - 10_000 <= bench.exposed_ns[0] <= bench.wall_ns[0]


# The worker and the report


def test_the_worker_makes_no_process_group(monkeypatch, tmp_path):
    from commcc.serialization import save

    monkeypatch.setattr(bench_worker, "join", None)
    before = set(threading.enumerate())
    for number in (1, 2):
        save(reduced(), tmp_path / f"graph{number}.fx.txt")
    settings = BenchSettings(emulated=True, ranks=2, graphs=2, repeat=2, warmup=0, cost="laptop-cpu")
    (found,) = bench_worker._run(tmp_path, 0, settings, Watch())["ranks"]
    assert [len(graph["wall_ns"]) for graph in found["graphs"]] == [2, 2]
    totals = [graph["communication"][0] for graph in found["graphs"]]
    assert totals[0]["modelled_ns"] == totals[1]["modelled_ns"] > 0
    assert totals[0]["launches"] == 1
    assert found["gaps"][0]["gaps"] == ()
    assert set(threading.enumerate()) <= before


def test_what_is_said_about_it():
    kept = [CommTotals(3, 1_000_000, took) for took in (1_000_000, 1_500_000, 1_050_000)]
    assert totals_json(kept) == {"launches": 3, "modelled_ms": 1.0, "took_ms": 1.05}
    assert totals_json([]) is None
    told = remarks(64, "h100-sxm", [kept, [CommTotals(1, 1_000_000, 2_000_000)], [CommTotals(0, 0, 0)]])
    assert told[0].startswith("one process stands for 64 ranks")
    assert "modelled (h100-sxm)" in told[1]
    assert told[2:] == (
        "graph 2: communication took 2.000 ms where 1.000 ms are modelled: results could not be written in that time"
        " here",
    )


@on_ranks
@pytest.mark.full
def test_through_the_command_line(capsys):
    """The small graph for 64 ranks, of which one is run."""
    arguments = ["bench", "--device", "emulated-cpu", "--nproc", "64", "--repeat", "6", "--warmup", "1"]
    assert run([*arguments, "--cost", "laptop-cpu,ranks_per_node=64", "--timeout", "100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["emulated"], found["backend"], found["device"]) == (64, True, None, "cpu")
    assert [each["results"]["status"] for each in found["comparisons"]] == ["equal"]
    assert found["comparisons"][0]["verdict"] == "faster"  # 17 launches of at least 1.3 ms each, or 2
    first, second = found["graphs"]
    assert (first["emulated"]["launches"], second["emulated"]["launches"]) == (17, 2)
    assert first["emulated"]["took_ms"] >= first["emulated"]["modelled_ms"] > 17
    assert first["wall_ms"]["median"] > first["exposed_ms"]["median"] > 0.5 * first["emulated"]["modelled_ms"]
    assert len(first["ranks"]) == 1
    assert any("one process stands for 64 ranks" in note for note in found["notes"])
    from commcc.report import benching
    from tests.test_bench import printed

    out = printed(capsys, found)
    assert "one process on cpu for 64 ranks, communication modelled (laptop-cpu" in out
    assert "slowest rank" not in out
    assert "graph 1: 17 collectives, " in out
    assert "faster" in benching.brief(found)


@pytest.fixture
def at_home(monkeypatch):
    """The one process is this one."""

    def run_ranks(ranks, folder, timeout, *, worker, machines):
        assert ranks == 1
        settings = BenchSettings.from_text((folder / "settings.json").read_text())
        return [json.loads(json.dumps(bench_worker._run(folder, 0, settings, Watch())))]

    monkeypatch.setattr("commcc.replay.ranks.launch.run_ranks", run_ranks)


def test_a_profile_has_no_collectives_that_were_only_modelled(at_home, capsys, tmp_path):
    out = tmp_path / "costs.yaml"
    arguments = ["--nproc", "3", "--repeat", "2", "--warmup", "1", "--timeout", "100", "-o", str(out)]
    assert run(["profile", "--device", "emulated-cpu", *arguments]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "0 collectives on one process on cpu for 3 ranks, communication modelled" in shown
    text = out.read_text()
    assert "one process for 3 ranks" in text
    assert "aten.mm" in text
    assert "all_gather" not in text


def test_recorded_runs_take_the_times_of_collectives_from_their_streams(at_home, capsys, tmp_path):
    arguments = ["--nproc", "5", "--repeat", "2", "--warmup", "0", "--trace", str(tmp_path / "traces"), "--json"]
    assert run(["bench", "--device", "emulated-cpu", *arguments]) == 0
    graph = json.loads(capsys.readouterr().out)["graphs"][0]
    assert graph["emulated"]["launches"] == len(graph["forecast"]["collectives"]) == 17
    for each in graph["forecast"]["collectives"]:
        assert each["transfer_ms"]["measured"] >= each["transfer_ms"]["predicted"] > 0
    assert graph["forecast"]["launches_ms"]["measured"] > 0
    assert len(list((tmp_path / "traces").iterdir())) == 2


def test_what_a_device_does_for_a_collective_is_no_compute(at_home, monkeypatch, tmp_path):
    """Copies and idle kernels are queued by the launch's node."""
    gathers = NodeRun({"gather_full_1": 5_000_000, "mm_1": 3_000})
    monkeypatch.setattr(bench_worker, "read_runs", lambda file, launches: [gathers] * 5)
    kept = []
    monkeypatch.setattr(bench_worker.RankNodes, "add_runs", lambda self, runs: kept.append(runs))
    arguments = ["--repeat", "1", "--warmup", "0", "--trace", str(tmp_path)]
    assert run(["bench", "-q", "--device", "emulated-cpu", *arguments]) == 0
    assert [each.ops for each in kept[0]] == [{"mm_1": 3_000}] * 5
    assert all(each.transfers["gather_full_1"] > 0 for each in kept[0])


# What is refused, and what is not


def checked(*programs, **settings):
    chosen = BenchSettings(emulated=True, **settings)
    check(make_set(programs, chosen), chosen)


def test_as_many_ranks_as_the_graph_is_for_and_what_gloo_cannot_send(monkeypatch):
    g = Graph()
    groups = {"0": ProcessGroup("0", 512, tuple(range(512)))}
    checked(g.program(g.gather(g.input("x", 8, dtype=torch.float8_e4m3fn), size=512), groups=groups))
    checked(reduced(torch.int64, "avg"))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: reduced(reduction="premul_sum"), "reduces with 'premul_sum', which is not emulated"),
        (lambda: reduced(torch.float8_e4m3fn), "reduces with 'sum' of float8_e4m3fn, which is not emulated"),
    ],
)
def test_refused_with_the_node(program, words):
    with pytest.raises(InputError, match=f"graph 2: node 'all_reduce_default' {words}"):
        checked(reduced(), program())


def test_refused_for_the_memory_of_one_rank(monkeypatch):
    monkeypatch.setattr(graph_set, "free_memory", lambda: 10)
    with pytest.raises(InputError, match=r"one rank needs about 0.0 GiB of memory, and 0.0 GiB are free"):
        checked(reduced())
    monkeypatch.setattr(graph_set, "free_memory", lambda: None)
    checked(reduced())


def test_inputs_are_checked_without_being_made(monkeypatch):
    """Those of a rank can fill the device's memory, which the process that runs it needs."""
    programs = [sample("tiny_llama_fsdp4_bw"), sample("tiny_moe_ep2_fw")]
    monkeypatch.setattr(torch, "randn", None)
    for program in programs:
        checked(program)
    g = Graph()
    g.value("odd", (1, 2))
    with pytest.raises(InputError, match="no value for input 'odd' can be worked out"):
        checked(g.program(g.reduce(g.input("x", 8), "sum"), groups=FOUR))


def test_refused_without_a_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="this machine has no CUDA device"):
        graph_set.check_emulated(None, BenchSettings(emulated=True, device="cuda"))


@pytest.mark.full
def test_which_device_stands_for_all(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "commcc.replay.bench.benchmark.bench", lambda named, settings, runner: asked.append(settings) or 1 / 0
    )
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        for device in ("emulated", "emulated-cpu", "emulated-cuda", "cpu"):
            run(["bench", "-q", "--device", device])
    assert [(each.device, each.emulated) for each in asked] == [
        *(("cpu", True), ("cpu", True), ("cuda", True), ("cpu", False)),
        *(("cuda", True), ("cpu", True), ("cuda", True), ("cpu", False)),
    ]


def test_what_sub_graphs_launch_goes_on_streams(at_home, tmp_path, capsys):
    """Each run of the loop's graph is a collective of its own; what is waited for there is in the step alone."""
    from commcc.serialization import save
    from tests.test_replay_calls import communicating

    save(communicating("scan"), tmp_path / "scan.fx.txt")
    arguments = ["--nproc", "2", "--repeat", "2", "--warmup", "1", "--json"]
    assert run(["bench", str(tmp_path / "scan.fx.txt"), "--device", "emulated-cpu", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    ahead = torch.__version__ < "2.12"  # runs the loop's graph once more, to know what it gives
    assert found["graphs"][0]["emulated"]["launches"] == 3 + ahead
    assert found["graphs"][0]["emulated"]["modelled_ms"] > 0
    assert "waits in sub-graphs are part of the step, not of the exposed time" in found["notes"]
