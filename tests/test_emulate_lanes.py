"""Lanes: one collective after the other, beside the compute; as threads, and as streams of a device that is played."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from commcc.passes.options import parse_pipeline
from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.emulate.cuda_lanes import CudaLanes, cycles_per_ns
from commcc.replay.emulate.lanes import CpuLanes, Pace
from commcc.replay.emulate.transport import Transport, make_lanes
from commcc.replay.place import CpuPlace
from commcc.replay.serial import RankRun
from commcc.run.pipeline import run
from commcc.timing.cost import load_model
from commcc.timing.simulate import Simulator
from tests.test_replay_numeric import sample

MS = 1_000_000


@pytest.fixture
def lanes():
    made = CpuLanes()
    yield made
    made.close()


def nothing():
    pass


# Threads


def test_one_after_the_other_in_a_lane(lanes):
    done = []
    tickets = [lanes["0"].launch(lambda n=n: done.append(n), 5 * MS, Pace()) for n in range(3)]
    lanes["0"].wait(tickets[2])
    assert time.perf_counter_ns() >= tickets[2].end
    assert done == [0, 1, 2]
    assert [lanes["0"].took_ns(ticket) for ticket in tickets[:2]] == [5 * MS] * 2
    assert [later.start - earlier.end for earlier, later in pairwise(tickets)] == [0, 0]
    assert tickets[0].start == tickets[0].launched


def test_a_result_is_written_when_it_is_its_turn(lanes):
    seen = []
    first = lanes["0"].launch(nothing, 10 * MS, Pace())
    lanes["0"].wait(lanes["0"].launch(lambda: seen.append(time.perf_counter_ns()), 0, Pace()))
    assert seen[0] >= first.end


def test_two_lanes_at_once(lanes):
    a, b = (lanes[name].launch(nothing, 50 * MS, Pace()) for name in "ab")
    lanes["b"].wait(b)
    assert b.start == b.launched < a.end
    lanes["a"].wait(a)


def test_a_launch_does_not_wait(lanes):
    gate = threading.Event()
    ticket = lanes["0"].launch(gate.wait, 0, Pace())
    behind = lanes["0"].launch(nothing, 0, Pace())
    assert not ticket.filled.is_set()
    gate.set()
    lanes["0"].wait(behind)
    assert ticket.filled.is_set()


def test_filling_may_take_longer_than_the_model_says(lanes):
    ticket = lanes["0"].launch(lambda: time.sleep(0.01), 1 * MS, Pace())
    lanes["0"].wait(ticket)
    assert lanes["0"].took_ns(ticket) >= 10 * MS


def test_a_wait_ends_when_the_time_is_over_and_can_be_repeated(lanes):
    ticket = lanes["0"].launch(nothing, 3 * MS, Pace())
    for _ in range(2):
        lanes["0"].wait(ticket)
        assert time.perf_counter_ns() >= ticket.end
    late = lanes["0"].launch(nothing, 0, Pace())
    assert late.launched >= ticket.end


def test_what_goes_wrong_is_raised_by_the_wait_and_the_lane_goes_on(lanes):
    def fails():
        raise RuntimeError("no such row")

    bad, good = lanes["0"].launch(fails, 0, Pace()), lanes["0"].launch(nothing, 0, Pace())
    with pytest.raises(RuntimeError, match="no such row"):
        lanes["0"].wait(bad)
    lanes["0"].wait(good)


def test_a_lane_is_not_kept_waiting_by_op_after_op(lanes):
    """A thread that never sleeps has Python to itself for 5 ms at a time, unless it is told otherwise."""
    late, x = [], torch.zeros(64)
    for _ in range(20):
        ticket = lanes["0"].launch(nothing, 0, Pace())
        until = time.perf_counter_ns() + 20 * MS
        while not ticket.filled.is_set() and time.perf_counter_ns() < until:
            x.add_(1)
        lanes["0"].wait(ticket)
        late.append(lanes["0"].took_ns(ticket))
    assert sorted(late)[10] < 4 * MS


def test_nothing_is_left_behind():
    before = sys.getswitchinterval(), threading.active_count()
    made = make_lanes(CpuPlace())
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
        self.name = name or "lane"

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
    lanes = CudaLanes()
    device.log.clear()
    ticket = lanes["0"].launch(lambda: device.works(10, "fill"), 5000, Pace())
    assert device.log == [
        ("lane", "after main"),
        ("lane", "event"),
        ("lane", "fill"),
        ("lane", "idle"),
        ("lane", "event"),
    ]
    assert device.now is device.main
    device.log.clear()
    lanes["0"].wait(ticket)
    assert device.log == [("main", "after an event")]
    assert lanes["0"]._stream.priority < 0


def test_the_device_keeps_to_the_model_once_it_has_run(device):
    lanes, pace = CudaLanes(), Pace()
    took = []
    for _ in range(3):
        ticket = lanes["0"].launch(lambda: device.works(30_000), 100_000, pace)
        took.append(lanes["0"].took_ns(ticket))
    assert took[0] > 130_000
    assert took[1:] == pytest.approx([100_000] * 2, abs=2)


def test_a_slower_clock_is_made_up_for(device):
    lanes, pace = CudaLanes(), Pace()
    device.per_ns = 1.2  # hot
    for _ in range(8):
        ticket = lanes["0"].launch(nothing, 1 * MS, pace)
        took = lanes["0"].took_ns(ticket)
    assert took == pytest.approx(1 * MS, rel=0.1)


def test_a_fill_that_takes_longer_than_the_model_says(device):
    lanes, pace = CudaLanes(), Pace()
    device.log.clear()
    for _ in range(2):
        ticket = lanes["0"].launch(lambda: device.works(30_000, "fill"), 10_000, pace)
        assert lanes["0"].took_ns(ticket) >= 30_000
    assert [what for _, what in device.log].count("idle") == 1  # the second time it need not


def test_a_ticket_teaches_once(device):
    lanes, pace = CudaLanes(), Pace()
    ticket = lanes["0"].launch(nothing, 10_000, pace)
    assert lanes["0"].took_ns(ticket) == lanes["0"].took_ns(ticket)
    assert len(pace._besides_ns) == 1


def test_compute_goes_on_beside_lanes(device):
    """Two collectives in one lane, one in another, compute meanwhile: the wait ends with the later of both."""
    lanes, paces = CudaLanes(), [Pace() for _ in range(3)]
    for _ in range(2):  # the first time shows what idling takes besides
        start = max(lanes["a"]._stream.at, lanes["b"]._stream.at, device.main.at)
        device.main.at = start
        device.works(50_000)
        tickets = [lanes[name].launch(nothing, 100_000, pace) for name, pace in zip("aab", paces, strict=True)]
        device.works(120_000)
        lanes["b"].wait(tickets[2])
        free = device.main.at - start
        lanes["a"].wait(tickets[1])
        for name, ticket in zip("aab", tickets, strict=True):
            lanes[name].took_ns(ticket)
    assert free == pytest.approx(170_000, abs=2)  # compute hid it
    assert device.main.at - start == pytest.approx(250_000, abs=2)


@pytest.mark.parametrize("share", ["none", "topology", "all"])
@pytest.mark.parametrize("passes", ["", "reorder", "bucket{bucket_cap_mb=0.01},reorder"])
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
    transport = Transport(prepared, graphs.layout, model, CudaLanes())

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
    lanes, pace = CudaLanes(), Pace()
    x, out = torch.ones(1 << 20, device="cuda"), torch.zeros(4, 1 << 20, device="cuda")
    took = []
    for _ in range(6):
        out.zero_()
        ticket = lanes["0"].launch(lambda: out.copy_(x), 500_000, pace)
        lanes["0"].wait(ticket)
        total = out.sum()
        torch.cuda.synchronize()
        took.append(lanes["0"].took_ns(ticket))
        assert total.item() == 4 << 20
    assert sorted(took)[3] == pytest.approx(500_000, rel=0.05)
