"""Where ranks run: programs prepared for a CUDA device, its clock and memory, with a stand-in for the device."""

from __future__ import annotations

import pytest
import torch

from commcc.base.errors import InputError
from commcc.cli.main import run
from commcc.replay import prepare as preparing
from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.calls import Homes
from commcc.replay.place import CpuPlace, CudaPlace, make_place
from commcc.replay.prepare import prepare
from commcc.replay.rank_run import RankRun
from tests.test_replay_numeric import sample
from tests.verify_graphs import Graph

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NO_DEVICE = "there is no CUDA device"


@pytest.fixture
def kernels(monkeypatch):
    """All ops have a CUDA kernel, as in a build for CUDA."""
    monkeypatch.setattr(
        preparing.torch._C, "_dispatch_has_computed_kernel_for_dispatch_key", lambda _name, key: key == "CUDA"
    )


def test_accelerators_become_the_current_device_and_the_cpu_stays(kernels):
    prepared = prepare(sample("tiny_moe_fsdp4_ep2_fw"), device="cuda")
    devices = {leaf for step in prepared.steps for leaf in step.kwargs.values() if isinstance(leaf, torch.device)}
    assert devices == {CPU, CUDA}
    homes = {prepared.home(node) for node in prepared.inputs if isinstance(node.meta["val"], torch.Tensor)}
    assert homes == {CUDA}
    assert all(step.call is step.node.target for step in prepared.steps)


def test_a_graph_that_is_all_on_the_cpu_moves_as_a_whole(kernels):
    g = Graph()
    made = g(aten.zeros_like.default, g.input("x", 8), device=CPU)
    prepared = prepare(g.program(made), device="cuda")
    assert prepared.home(prepared.inputs[0]) == CUDA
    assert [step.kwargs for step in prepared.steps] == [{"device": CUDA}]


def test_on_the_cpu_everything_is_there():
    assert Homes("cpu", accelerated=True).of(torch.device("cuda", 3)) == CPU
    assert Homes("cuda", accelerated=True).of(torch.device("cuda", 3)) == CUDA
    assert Homes("cuda", accelerated=True).of(CPU) == CPU
    assert Homes("cuda", accelerated=False).of(CPU) == CUDA


def test_what_has_no_kernel_on_the_device_is_said(monkeypatch):
    monkeypatch.setattr(
        preparing.torch._C, "_dispatch_has_computed_kernel_for_dispatch_key", lambda name, _key: name != "aten::exp"
    )
    g = Graph()
    program = g.program(g(aten.exp.default, g.input("x", 8), name="grown"))
    with pytest.raises(InputError, match=r"node 'grown' cannot be run on a CUDA device: aten\.exp has no CUDA kernel"):
        prepare(program, device="cuda")


class FakeEvent:
    """An event that counts in the order of the device's work."""

    clock = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        FakeEvent.clock += 1.5
        self.at = FakeEvent.clock

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def fake_cuda(monkeypatch):
    said = []
    for name in ("set_device", "synchronize", "reset_peak_memory_stats", "set_rng_state"):
        monkeypatch.setattr(torch.cuda, name, lambda *args, name=name: said.append((name, *args)))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _device: "state")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: 12345)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    return said


def test_a_cuda_place_asks_the_device(fake_cuda):
    device = torch.device("cuda", 2)
    place = make_place("cuda", 2)
    assert isinstance(place, CudaPlace)
    start, end = place.stamp(), place.stamp()
    assert place.elapsed_ns(start, end) == 1_500_000
    assert place.forget_peak()
    assert place.peak_bytes() == 12345
    place.synchronize()
    assert fake_cuda == [("set_device", device), ("reset_peak_memory_stats", device), ("synchronize", device)]
    before = torch.get_rng_state()
    with place.running(7):
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(7).get_state())
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert fake_cuda[3:] == [("set_rng_state", "state", device)]


def test_ranks_have_random_numbers_of_their_own():
    g = Graph()
    prepared = make_set([g.program(g(aten.rand_like.default, g.input("x", 8)))], BenchSettings(ranks=1)).prepared[0]
    first, again, other = (RankRun(prepared, rank, 3, print, CpuPlace())({"x": torch.zeros(8)}) for rank in (0, 0, 1))
    assert torch.equal(first.outputs[0], again.outputs[0])
    assert not torch.equal(first.outputs[0], other.outputs[0])


# On a device


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_DEVICE)
@pytest.mark.parametrize("command", [["bench", "--trace", "traces"], ["profile"]])
def test_one_rank_with_nccl(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run([*command, "--device", "cuda", "--nproc", "1", "--repeat", "3", "--timeout", "200"]) == 0


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices")
def test_two_ranks_with_nccl(tmp_path):
    assert run(["bench", "--device", "cuda", "--nproc", "2", "--repeat", "3", "--trace", str(tmp_path / "t")]) == 0
