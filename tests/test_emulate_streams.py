"""Emulated streams: one collective after the other, beside the compute; as threads, and on a device that is played."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from commcc.passes.options import parse_pipeline
from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.emulate.streams import CpuStreams, CudaStreams, Pace, cycles_per_ns, make_streams
from commcc.replay.emulate.transport import Transport
from commcc.replay.place import CpuPlace
from commcc.replay.rank_run import RankRun
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator
from tests.replay_clock import install
from tests.test_replay_numeric import sample

MS = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    return install(monkeypatch)


@pytest.fixture
def streams(clock):
    made = CpuStreams()
    yield made
    made.close()


def nothing():
    pass


# Threads


def test_one_after_the_other_in_a_stream(streams, clock):
    done = []
    tickets = [streams["0"].launch(lambda n=n: done.append(n), 5 * MS, Pace()) for n in range(3)]
    streams["0"].wait(tickets[2])
    assert clock.perf_counter_ns() >= tickets[2].end
    assert done == [0, 1, 2]
    assert [streams["0"].took_ns(ticket) for ticket in tickets[:2]] == [5 * MS] * 2
    assert [later.start - earlier.end for earlier, later in pairwise(tickets)] == [0, 0]
    assert tickets[0].start == tickets[0].launched


def test_a_result_is_written_when_it_is_its_turn(streams, clock):
    seen = []
    first = streams["0"].launch(nothing, 10 * MS, Pace())
    streams["0"].wait(streams["0"].launch(lambda: seen.append(clock.perf_counter_ns()), 0, Pace()))
    assert seen[0] >= first.end


def test_two_streams_at_once(streams):
    a, b = (streams[name].launch(nothing, 50 * MS, Pace()) for name in "ab")
    streams["b"].wait(b)
    streams["a"].wait(a)
    assert b.start == b.launched < a.end


def test_a_launch_does_not_wait(streams):
    gate = threading.Event()
    ticket = streams["0"].launch(gate.wait, 0, Pace())
    behind = streams["0"].launch(nothing, 0, Pace())
    assert not ticket.filled.is_set()
    gate.set()
    streams["0"].wait(behind)
    assert ticket.filled.is_set()


def test_filling_may_take_longer_than_the_model_says(streams, clock):
    ticket = streams["0"].launch(lambda: clock.sleep(0.01), 1 * MS, Pace())
    streams["0"].wait(ticket)
    assert streams["0"].took_ns(ticket) == pytest.approx(10 * MS, abs=MS)


def test_a_wait_ends_when_the_time_is_over_and_can_be_repeated(streams, clock):
    ticket = streams["0"].launch(nothing, 3 * MS, Pace())
    for _ in range(2):
        streams["0"].wait(ticket)
        assert clock.perf_counter_ns() >= ticket.end
    late = streams["0"].launch(nothing, 0, Pace())
    assert late.launched >= ticket.end


def test_what_goes_wrong_is_raised_by_the_wait_and_the_stream_goes_on(streams):
    def fails():
        raise RuntimeError("no such row")

    bad, good = streams["0"].launch(fails, 0, Pace()), streams["0"].launch(nothing, 0, Pace())
    with pytest.raises(RuntimeError, match="no such row"):
        streams["0"].wait(bad)
    streams["0"].wait(good)


def test_a_stream_is_not_kept_waiting_by_op_after_op():
    """A thread that never sleeps has Python to itself for 5 ms at a time, unless it is told otherwise."""
    streams = CpuStreams()
    assert sys.getswitchinterval() <= 1e-4
    streams.close()


def test_nothing_is_left_behind():
    before = sys.getswitchinterval(), threading.active_count()
    made = make_streams(CpuPlace())
    made["0"].wait(made["0"].launch(nothing, 0, Pace()))
    assert made["0"] is made["0"]
    assert sys.getswitchinterval() < before[0]
    made.close()
    assert (sys.getswitchinterval(), threading.active_count()) == before


def test_the_median_of_some_runs_is_made_up_for():
    pace = Pace()
    assert pace.idle_ns(1000) == 1000
    for took in (9000, 1300, 1300):  # the first run loads kernels
        pace.learn(took, 1000)
    assert pace.idle_ns(1000) == 700
    assert pace.idle_ns(200) == 0
    for _ in range(5):
        pace.learn(600, 600)
    assert pace.idle_ns(1000) == 1000


# A device that is played: streams are clocks


class Device:
    """A CUDA device whose streams only know what time it is on them. log: what was queued, in order."""

    per_ns = 1.7  # cycles
    launch_ns = 2000  # of an idle kernel

    def __init__(self):
        self.log, self.main, self.now = [], Stream(self, priority=0, name="main"), None
        self.now = self.main

    @contextmanager
    def on(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before

    def works(self, ns, what="work"):
        self.log.append((self.now.name, what))
        self.now.at += ns


class Stream:
    def __init__(self, device, priority, name=None):
        self.device, self.priority, self.at = device, priority, 0
        self.name = name or "stream"

    def wait_stream(self, other):
        self.device.log.append((self.name, f"after {other.name}"))
        self.at = max(self.at, other.at)

    def wait_event(self, event):
        self.device.log.append((self.name, "after an event"))
        self.at = max(self.at, event.at)


class Event:
    def __init__(self, device):
        self.device, self.at = device, None

    def record(self, stream=None):
        stream = stream or self.device.now
        self.device.log.append((stream.name, "event"))
        self.at = stream.at

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e6


@pytest.fixture
def device(monkeypatch):
    made = Device()
    fakes = {
        "Stream": lambda priority=0: Stream(made, priority),
        "Event": lambda enable_timing: Event(made),
        "stream": made.on,
        "current_stream": lambda: made.now,
        "_sleep": lambda cycles: made.works(cycles / made.per_ns + made.launch_ns, "idle"),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return made


def test_the_clock_of_the_idle_kernel_without_its_launch(device):
    assert cycles_per_ns() == pytest.approx(1.7)


def test_what_is_queued_for_a_collective(device):
    streams = CudaStreams()
    device.log.clear()
    ticket = streams["0"].launch(lambda: device.works(10, "fill"), 5000, Pace())
    assert device.log == [
        ("stream", "after main"),
        ("stream", "event"),
        ("stream", "fill"),
        ("stream", "idle"),
        ("stream", "event"),
    ]
    assert device.now is device.main
    device.log.clear()
    streams["0"].wait(ticket)
    assert device.log == [("main", "after an event")]
    assert streams["0"]._stream.priority < 0


def test_the_device_keeps_to_the_model_once_it_has_run(device):
    streams, pace = CudaStreams(), Pace()
    took = []
    for _ in range(3):
        ticket = streams["0"].launch(lambda: device.works(30_000), 100_000, pace)
        took.append(streams["0"].took_ns(ticket))
    assert took[0] > 130_000
    assert took[1:] == pytest.approx([100_000] * 2, abs=2)


def test_a_slower_clock_is_made_up_for(device):
    streams, pace = CudaStreams(), Pace()
    device.per_ns = 1.2  # hot
    for _ in range(8):
        ticket = streams["0"].launch(nothing, 1 * MS, pace)
        took = streams["0"].took_ns(ticket)
    assert took == pytest.approx(1 * MS, rel=0.1)


def test_a_fill_that_takes_longer_than_the_model_says(device):
    streams, pace = CudaStreams(), Pace()
    device.log.clear()
    for _ in range(2):
        ticket = streams["0"].launch(lambda: device.works(30_000, "fill"), 10_000, pace)
        assert streams["0"].took_ns(ticket) >= 30_000
    assert [what for _, what in device.log].count("idle") == 1  # the second time it need not


def test_a_ticket_teaches_once(device):
    streams, pace = CudaStreams(), Pace()
    ticket = streams["0"].launch(nothing, 10_000, pace)
    assert streams["0"].took_ns(ticket) == streams["0"].took_ns(ticket)
    assert len(pace._besides_ns) == 1


def test_compute_goes_on_beside_streams(device):
    """Two collectives in one stream, one in another, compute meanwhile: the wait ends with the later of both."""
    streams, paces = CudaStreams(), [Pace() for _ in range(3)]
    for _ in range(2):  # the first time shows what idling takes besides
        start = max(streams["a"]._stream.at, streams["b"]._stream.at, device.main.at)
        device.main.at = start
        device.works(50_000)
        tickets = [streams[name].launch(nothing, 100_000, pace) for name, pace in zip("aab", paces, strict=True)]
        device.works(120_000)
        streams["b"].wait(tickets[2])
        free = device.main.at - start
        streams["a"].wait(tickets[1])
        for name, ticket in zip("aab", tickets, strict=True):
            streams[name].took_ns(ticket)
    assert free == pytest.approx(170_000, abs=2)  # compute hid it
    assert device.main.at - start == pytest.approx(250_000, abs=2)


@pytest.mark.parametrize("share", ["none", "topology", "all"])
@pytest.mark.parametrize("passes", ["", "reorder", "bucket{bucket_cap_mb=0.01},reorder"])
@pytest.mark.sampled(3)
def test_a_step_takes_as_long_as_it_is_simulated_to(device, share, passes):
    """Where compute takes what the model says, on the device that is played: launches, waits, links, the tail."""
    device.launch_ns = 0
    model = load_model(f"laptop-cpu,ranks_per_node=2,share_link={share}")
    program = sample("tiny_llama_hsdp_bw")
    if passes:
        program = run(program, parse_pipeline(passes), model=model).program
    graphs = make_set([program], BenchSettings(emulated=True))
    (prepared,) = graphs.prepared
    costs, index = model.price(prepared.index), prepared.index
    transport = Transport(prepared, graphs.layout, model, CudaStreams())

    def played(step):
        node = index.position.get(step.name)
        if node is None or step.waits:
            return step
        ns, call = costs.launch_ns if node in index.launches else costs.ns[node], step.call
        return replace(step, call=lambda *args, **kwargs: device.works(ns) or call(*args, **kwargs))

    steps = tuple(map(played, transport.prepared.steps))
    start = device.main.at
    RankRun(replace(transport.prepared, steps=steps), 0, 0, lambda *_: None)(graphs.maker.of_rank(0))
    timeline = Simulator(index, costs).run()
    assert device.main.at - start == pytest.approx(timeline.step_ns, abs=2 * len(index.launches))
    assert 0 < timeline.exposed_ns < timeline.communication_ns or not passes


# A real one


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_device():
    streams, pace = CudaStreams(), Pace()
    x, out = torch.ones(1 << 20, device="cuda"), torch.zeros(4, 1 << 20, device="cuda")
    took = []
    for _ in range(6):
        out.zero_()
        ticket = streams["0"].launch(lambda: out.copy_(x), 500_000, pace)
        streams["0"].wait(ticket)
        total = out.sum()
        torch.cuda.synchronize()
        took.append(streams["0"].took_ns(ticket))
        assert total.item() == 4 << 20
    assert sorted(took)[3] == pytest.approx(500_000, rel=0.05)
