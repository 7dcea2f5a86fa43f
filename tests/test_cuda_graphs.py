"""Graphs recorded as CUDA graphs: what is refused, and the order of what is done, with a stand-in for the device."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import pytest
import torch

from commcc.base.errors import InputError
from commcc.cli.main import run
from commcc.graph.program import ProcessGroup
from commcc.replay.bench import worker as bench_worker
from commcc.replay.bench.graph_set import BenchSettings, Variant, check_variants, make_set
from commcc.replay.calls import CallSettings, Homes
from commcc.replay.compiled.cuda_graphs import WARM_UPS, CapturedRun, require_capturable
from commcc.replay.place import CpuPlace
from commcc.replay.prepare import prepare
from commcc.replay.ranks.worker import Alone
from commcc.replay.values import RankResults
from tests.test_bench import Watch
from tests.test_replay_numeric import sample
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
TWO = {"0": ProcessGroup("0", 2, (0, 1))}


def on_cuda(program, accelerated=False):
    """Prepared as for a CUDA device; with ``accelerated`` what the graph has on the CPU stays there."""
    return dataclasses.replace(prepare(program), settings=CallSettings(Homes("cuda", accelerated=accelerated)))


def summed():
    g = Graph()
    x = g.input("x", 8)
    return g.program(g.reduce(g(aten.add_.Tensor, x, 1), "sum"), groups=TWO)


# What is refused


def test_what_can_be_recorded():
    require_capturable(on_cuda(summed()), "graph 1")
    require_capturable(on_cuda(sample("tiny_llama_fsdp2_bw")), "graph 1")


def test_the_cpu_is_refused():
    with pytest.raises(InputError, match="--cuda-graphs needs a CUDA device"):
        require_capturable(prepare(summed()), "graph 1")


def test_a_tensor_on_the_cpu_is_refused():
    with pytest.raises(
        InputError, match=r"graph 2 cannot be recorded .* at node 'x' a tensor is on the CPU, and 3 more"
    ):
        require_capturable(on_cuda(summed(), accelerated=True), "graph 2")


def test_a_host_that_waits_is_refused():
    with pytest.raises(InputError, match=r"graph 1 cannot be recorded as a CUDA graph: at node '.*' the host waits"):
        require_capturable(on_cuda(sample("tiny_deepseek_ep2"), accelerated=True), "graph 1")


def test_sizes_that_depend_on_data_are_refused():
    g = Graph()
    with g.mode:
        size = g.mode.shape_env.create_unbacked_symint()
        torch._check(size >= 0)
        val = torch.empty(size)
    found = g(aten.mul.Tensor, g.input("x", 8), 2, val=val, name="some")
    with pytest.raises(InputError, match="at node 'some' sizes depend on data"):
        require_capturable(on_cuda(g.program(found)), "graph 1")


def test_emulated_communication_is_refused():
    settings = BenchSettings(ranks=2, emulated=True, captured=True)
    with pytest.raises(InputError, match="--cuda-graphs needs real communication"):
        check_variants(make_set([summed()], settings), settings)


@pytest.mark.parametrize(
    ("more", "words"),
    [([], "needs a CUDA device"), (["--trace", "t"], "--trace and --cuda-graphs cannot go together")],
)
def test_wrong_use_is_one_line(capsys, tmp_path, monkeypatch, more, words):
    monkeypatch.chdir(tmp_path)
    code = run(["bench", "--cuda-graphs", "--device", "cpu", *more])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not list(tmp_path.iterdir())


# The order of what is done


class Device:
    """Runs nothing while a graph is recorded, but keeps what it would run."""

    def __init__(self):
        self.log = []
        self.recording = None

    def stream(self):
        device = self

        class Stream:
            def wait_stream(self, _other):
                device.log.append("stream waits")

        return Stream()

    @contextmanager
    def on(self, _stream):
        self.log.append("on side stream")
        yield
        self.log.append("off side stream")

    def graph(self):
        device = self

        class Recording:
            def __init__(self):
                self.program = None

            def replay(self):
                device.log.append("replay")
                self.program()

            def reset(self):
                device.log.append("reset")

        return Recording()

    @contextmanager
    def record(self, graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.log.append("record")
        self.recording = graph
        yield
        self.recording = None


@pytest.fixture
def device(monkeypatch):
    fake = Device()
    main = fake.stream()
    monkeypatch.setattr(torch.cuda, "Stream", fake.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", fake.on)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: fake.log.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", fake.graph)
    monkeypatch.setattr(torch.cuda, "graph", fake.record)
    return fake


class Adds:
    """Adds 1 to its input and gives back twice that, in buffers of the recording."""

    def __init__(self, device):
        self.device, self.result = device, torch.zeros(2)
        self.seen = []

    @contextmanager
    def running(self):
        self.device.log.append("set up")
        yield
        self.device.log.append("as it was")

    def outputs(self, inputs):
        x = inputs["x"]

        def work():
            self.seen.append(x.tolist())
            x.add_(1)
            torch.mul(x, 2, out=self.result)

        if self.device.recording is None:
            work()
        else:
            self.device.recording.program = work
        return [self.result, inputs["n"]]

    def results(self, outputs, inputs):
        return RankResults(outputs, {"x": inputs["x"]})


def test_it_is_recorded_once_and_replayed_on_the_inputs(device):
    said = []
    captured = CapturedRun(Adds(device), said.append)
    given = {"x": torch.tensor([1.0, 2.0]), "n": 3}
    ready = captured.ready(given)
    assert device.log.index("synchronize") < device.log.index("record")
    assert device.log[:2] == ["stream waits", "set up"] and device.log[2] == "on side stream"
    assert "replay" not in device.log
    assert captured.program.seen == [[1.0, 2.0]] * WARM_UPS  # every warm-up begins anew
    device.log.clear()
    found = captured(ready)
    assert device.log == ["set up", "replay", "as it was"]
    assert found.outputs[0].tolist() == [4.0, 6.0] and found.outputs[1] == 3
    assert found.written["x"].tolist() == [2.0, 3.0]
    other = captured({"x": torch.tensor([5.0, 5.0]), "n": 3})
    assert other.outputs[0].tolist() == [12.0, 12.0]
    assert given["x"].tolist() == [1.0, 2.0]
    assert device.log.count("record") == 0
    assert said == ["records a CUDA graph", "replays a CUDA graph", "replays a CUDA graph"]


def test_samples_of_a_recorded_graph_have_no_exposed_time(device):
    """The copies of inputs come before the barrier, so that they are not timed."""
    graphs = make_set([counting()], BenchSettings())
    made = graphs.maker.of_rank(0)
    bench = bench_worker.make_bench(
        Variant(0, captured=True), graphs.prepared[0], bench_worker.RankContext(0, CpuPlace(), Alone(), Watch(), 0)
    )
    bench._captured.program = Replayable(bench._captured.program, device)
    for keep in (False, True, True):
        bench.sample(made, keep=keep)
    data = bench.to_json()
    assert (len(data["wall_ns"]), data["exposed_ns"], data["order"]) == (2, [], None)
    assert device.log.count("record") == 1
    assert device.log.count("replay") == 3
    assert torch.equal(bench._captured._outputs[0], made["x"] + 1)
    for _ in range(2):
        bench.release()
    assert device.log.count("reset") == 1
    assert not bench._captured._outputs


def counting():
    g = Graph()
    return g.program(g(aten.add_.Tensor, g.input("x", 4), 1), groups=TWO)


class Replayable:
    """An eager program whose recording keeps what it runs."""

    def __init__(self, program, device):
        self.program, self.device = program, device
        self.running, self.results = program.running, program.results

    def outputs(self, inputs):
        if self.device.recording is None:
            return self.program.outputs(inputs)
        self.device.recording.program = lambda: self.program.outputs(inputs)
        return [inputs["x"]]


# On a device


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("more", [[], ["--compile"]])
def test_one_rank_with_nccl(more):
    command = ["bench", "--device", "cuda", "--nproc", "1", "--repeat", "6", "--timeout", "280", "--cuda-graphs"]
    assert run([*command, *more]) == 0
