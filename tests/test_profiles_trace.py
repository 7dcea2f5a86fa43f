"""Kineto traces as a source of prices: real ones of the CPU, and of GPUs by hand."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from math import prod
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from commcc.base.terms import Kind
from commcc.graph.index import Tensor
from commcc.timing.cost.profiles import ProfileSource, load_profile
from commcc.timing.cost.profiles.measured import CollectiveKey, OpKey
from commcc.timing.cost.profiles.trace import read_trace
from commcc.timing.cost.types import Operation
from tests.trace_files import BF16, F32, TraceFile, gpu_trace, record_rank

GLOO = Path(__file__).parent / "data" / "profiles" / "gloo"


def tensor(dtype: str, *shape: int | str) -> Tensor:
    return Tensor(dtype, torch.empty(0, dtype=getattr(torch, dtype)).itemsize, shape, "cpu", None)


def price(source: ProfileSource, op: str, *tensors: Tensor) -> int | None:
    found = source.operation(Operation(op, tensors, ()))
    return None if found is None else found.ns


def collectives(source: ProfileSource) -> dict[tuple[str, int, int], int]:
    return {(str(key.kind), key.size, key.input_bytes): time.ns for key, time in source.profile.collectives.items()}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A real trace of a few ops of this machine's CPU."""
    path = tmp_path_factory.mktemp("cpu") / "run.json"
    a, b, c = torch.randn(16, 32), torch.randn(32, 48), torch.randn(48)
    half = a.bfloat16()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        for _ in range(4):
            torch.mm(a, b)
            torch.nn.functional.linear(a, b.t(), c)
            torch.mm(half, half.t())
            a * 2.0
        torch.mm(a, b)
    prof.export_chrome_trace(str(path))
    return path


def durations(path: Path, name: str, dims: list[list[int]], types: list[str]) -> list[float]:
    events = json.loads(path.read_text())["traceEvents"]
    named = [e for e in events if e.get("name") == name and e.get("cat") == "cpu_op"]
    return [e["dur"] for e in named if e["args"]["Input Dims"] == dims and e["args"]["Input type"] == types]


def test_real_cpu_trace_gives_the_medians(recorded: Path):
    source = load_profile([str(recorded)])
    f32, bf16 = (lambda *s: tensor("float32", *s)), (lambda *s: tensor("bfloat16", *s))
    mm = durations(recorded, "aten::mm", [[16, 32], [32, 48]], ["float", "float"])
    assert len(mm) == 5
    assert price(source, "aten.mm", f32(16, 32), f32(32, 48)) == round(statistics.median(mm) * 1000)
    linear = durations(recorded, "aten::linear", [[16, 32], [48, 32], [48]], ["float"] * 3)
    assert len(linear) == 4
    # An even number: the middle of two, in ns, halves up.
    low, high = sorted(round(us * 1000) for us in linear)[1:3]
    assert price(source, "aten.linear", f32(16, 32), f32(48, 32), f32(48)) == (low + high + 1) // 2
    # addmm has scalars beside its tensors, mul has a Python number as a tensor without dimensions.
    assert price(source, "aten.addmm", f32(48), f32(16, 32), f32(32, 48)) is not None
    assert price(source, "aten.mul", f32(16, 32)) == price(source, "aten.mul", f32(16, 32), f32())
    assert price(source, "aten.mm", bf16(16, 32), bf16(32, 16)) is not None
    assert price(source, "aten.mm", bf16(16, 32), bf16(32, 48)) is None
    assert price(source, "aten.mm", f32(32, 48), f32(16, 32)) is None
    assert price(source, "aten.bmm", f32(16, 32), f32(32, 48)) is None


def test_gzip_list_and_order_of_files_change_nothing(recorded: Path, tmp_path: Path):
    content = json.loads(recorded.read_text())
    packed = tmp_path / "run.json.gz"
    packed.write_bytes(gzip.compress(recorded.read_bytes()))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(content["traceEvents"]))
    shuffled = tmp_path / "shuffled.json"
    shuffled.write_text(json.dumps({**content, "traceEvents": content["traceEvents"][::-1]}))
    facts = load_profile([str(recorded)]).facts()
    assert all(load_profile([str(path)]).facts() == facts for path in (packed, bare, shuffled))
    together = [str(recorded), str(packed)]
    assert load_profile(together).facts() == load_profile(together[::-1]).facts()


def test_a_folder_as_the_handler_writes_it(tmp_path: Path):
    a = torch.randn(4, 8)
    handler = tensorboard_trace_handler(str(tmp_path), use_gzip=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=2, repeat=2),
        on_trace_ready=handler,
    ) as prof:
        for _ in range(6):
            torch.mm(a, a.t())
            prof.step()
    assert len(list(tmp_path.iterdir())) == 2
    source = load_profile([str(tmp_path)])
    assert source.profile.ops[OpKey("aten.mm", (("float32", (4, 8)), ("float32", (8, 4))))].count == 4


def test_every_dtype_of_a_real_trace_is_known(tmp_path: Path):
    names = "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64"
    names += " complex32 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        for name in names.split():
            torch.empty(3, 5, dtype=getattr(torch, name)).view(5, 3)
    prof.export_chrome_trace(str(tmp_path / "run.json"))
    source = load_profile([str(tmp_path / "run.json")])
    assert all(price(source, "aten.view", tensor(name, 3, 5)) is not None for name in names.split())


def test_gloo_minimum_over_real_ranks():
    """Two ranks recorded by PyTorch 2.13; expected figures taken from the files with plain json here."""
    by_rank = []
    for path in sorted(GLOO.glob("*.gz")):
        found = defaultdict(list)
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        for event in sorted((e for e in events if e.get("ph") == "X"), key=lambda e: e["ts"]):
            if event["name"] in ("gloo:all_gather", "gloo:all_reduce", "gloo:all_to_all"):
                sent = sum(4 * prod(dims) for dims in event["args"]["Input Dims"])
                found[event["name"].removeprefix("gloo:"), 2, sent].append(round(event["dur"] * 1000))
        by_rank.append(found)
    assert len(by_rank) == 2
    assert by_rank[0].keys() == by_rank[1].keys()
    assert len(by_rank[0]) >= 4
    source = load_profile([str(GLOO)])
    for which, first in by_rank[0].items():
        shortest = [min(pair) for pair in zip(first, by_rank[1][which], strict=True)]
        assert collectives(source)[which] == int(statistics.median(shortest) + 0.5), which
    assert source.profile.collectives[CollectiveKey(Kind.ALL_REDUCE, 2, 8192)].ranks == 2
    assert source.warnings == ()


@pytest.mark.ranks
@pytest.mark.full
def test_gloo_of_the_installed_pytorch(tmp_path: Path):
    torch.multiprocessing.spawn(record_rank, args=(str(tmp_path),), nprocs=2)
    source = load_profile([str(tmp_path)])
    assert set(collectives(source)) == {("all_reduce", 2, 8192), ("all_gather", 2, 8192)}
    assert {(time.count, time.ranks) for time in source.profile.collectives.values()} == {(3, 2)}
    assert price(source, "aten.mm", tensor("float32", 64, 32), tensor("float32", 32, 64)) is not None


ADDMM = [tensor("bfloat16", 32), tensor("bfloat16", 8, 16), tensor("bfloat16", 16, 32)]
LINEAR = [tensor("bfloat16", 8, 16), tensor("bfloat16", 32, 16), tensor("bfloat16", 32)]


def test_kernels_count_for_the_op_and_for_what_called_it(tmp_path: Path):
    source = load_profile([str(gpu_trace().write(tmp_path / "gpu.json"))])
    assert price(source, "aten.addmm", *ADDMM) == 522_000
    assert price(source, "aten.linear", *LINEAR) == 522_000
    assert source.profile.ops[OpKey("aten.linear", tuple((t.dtype, t.shape) for t in LINEAR))].count == 3
    assert price(source, "aten.t", LINEAR[1]) is None  # launched nothing
    assert read_trace(tmp_path / "gpu.json").on_device


def test_ops_of_all_ranks_are_pooled(tmp_path: Path):
    for rank, scale in enumerate((1.0, 3.0)):
        gpu_trace(scale, rank).write(tmp_path / f"rank{rank}.pt.trace.json.gz")
    source = load_profile([str(tmp_path)])
    # 502, 522, 542 and three times that: the middle of 542 and 1506.
    assert price(source, "aten.addmm", *ADDMM) == 1_024_000
    assert source.name == f"profile {tmp_path.name}"


def test_an_op_in_itself_counts_once(tmp_path: Path):
    trace = TraceFile()
    outer = trace.op("aten::sum", 0, 100, (F32, [64]))
    trace.kernel(200, 3, outer)
    trace.kernel(210, 7, trace.op("aten::sum", 10, 50, (F32, [64]), scalars=2))
    trace.kernel(230, 11, trace.op("aten::sum", 20, 5, (F32, [8])))
    source = load_profile([str(trace.write(tmp_path / "run.json"))])
    times = {key.inputs: (time.ns, time.count) for key, time in source.profile.ops.items()}
    assert times == {(("float32", (64,)),): (21_000, 1), (("float32", (8,)),): (11_000, 1)}


def test_ops_that_touch_in_time(tmp_path: Path):
    """One that begins when another ends is not inside it; of two that begin together the longer is outside."""
    trace = TraceFile()
    trace.kernel(200, 3, trace.op("aten::neg", 0, 10, (F32, [2])))
    trace.kernel(210, 5, trace.op("aten::neg", 10, 10, (F32, [4])))
    source = load_profile([str(trace.write(tmp_path / "run.json"))])
    assert sorted(time.ns for time in source.profile.ops.values()) == [3_000, 5_000]
    trace = TraceFile()
    for us in (50, 100):
        trace.op("aten::sum", 0, us, (F32, [4]))
        del trace.events[-1]["args"]["External id"]
    source = load_profile([str(trace.write(tmp_path / "run.json"))])
    assert [(time.ns, time.count) for time in source.profile.ops.values()] == [(100_000, 1)]


def test_launch_links_a_kernel_without_external_id(tmp_path: Path):
    """As for what autograd's thread launches; and ids of PyTorch 1, which repeat the correlation."""
    trace = TraceFile()
    decoy = trace.op("aten::add", 0, 10, (F32, [4]), (F32, [4]))
    for tid in (100, 101):
        trace.op("autograd::engine::evaluate_function: MmBackward0", 100, 90, shapes=False, tid=tid)
        trace.op("MmBackward0", 105, 80, (F32, [8, 8]), tid=tid)
        trace.op("aten::mm", 110, 20, (F32, [8, 8]), (F32, [8, tid]), tid=tid)
    trace.launch(77, 115, tid=100)
    trace.kernel(300, 5, None, 77)
    trace.launch(decoy, 116, decoy, tid=101)
    trace.kernel(310, 6, decoy, decoy)
    trace.kernel(320, 8, None, 78)  # its launch was not recorded
    trace.kernel(330, 9, None)
    source = load_profile([str(trace.write(tmp_path / "run.json"))])
    times = {key.inputs[-1][1]: time.ns for key, time in source.profile.ops.items()}
    assert times == {(8, 100): 5_000, (8, 101): 6_000}


def test_nccl_kernels_belong_to_no_op(tmp_path: Path):
    trace = TraceFile(0)
    op = trace.op("aten::mul", 0, 100, (BF16, [4]), (BF16, [4]))
    trace.kernel(10, 5, op)
    trace.kernel(20, 50, op, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    source = load_profile([str(trace.write(tmp_path / "run.json"))])
    assert [time.ns for time in source.profile.ops.values()] == [5_000]
    assert source.warnings == ("run.json: 1 collectives are left out, their size is not recorded",)


def test_collectives_take_the_shortest_rank_then_the_median(tmp_path: Path):
    names = {"_allgather_base": (100, 200), "reduce_scatter_tensor_coalesced": (200, 100), "allreduce": (300, 300)}
    for rank, early in enumerate((0.0, 40.0)):
        trace = TraceFile(rank)
        for i, (name, nelems) in enumerate(names.items()):
            for n, us in enumerate((100.0, 130.0, 110.0)):
                late = 40.0 - early if n == 2 else early
                trace.collective(1000 * i + 200 * n + 100, us + late, name, nelems, on_kernel=name != "allreduce")
        trace.collective(5000, 60 + early, "all_to_allv", (64, 48), dtype="Long", kernels=2)
        trace.collective(6000, 10, "barrier", (1, 1))
        trace.collective(7000, 70 + early, "broadcast", (64, 64), group="7")
        if rank:
            trace.collective(7500, 90, "broadcast", (64, 64), group="7")
        trace.events = trace.events[:: -1 if rank else 1]  # time decides, not the order in the file
        trace.write(tmp_path / f"rank{rank}.pt.trace.json")
    source = load_profile([str(tmp_path)])
    assert collectives(source) == {
        ("all_gather", 2, 200): 110_000,
        ("reduce_scatter", 2, 400): 110_000,
        ("all_reduce", 2, 600): 110_000,
        ("all_to_all", 2, 512): 60_000,
        ("broadcast", 2, 128): 70_000,  # seen once by one rank and twice by the other: the shortest of all
    }
    assert source.profile.collectives[CollectiveKey(Kind.BROADCAST, 2, 128)].count == 1
    assert source.warnings == ()


def test_traces_of_one_rank_are_one_rank(tmp_path: Path):
    for part, us in ((1, 100.0), (2, 300.0)):
        trace = TraceFile(0)
        trace.collective(100, us, "allreduce", (8, 8))
        trace.write(tmp_path / f"worker0.{part}.pt.trace.json")
    assert collectives(load_profile([str(tmp_path)])) == {("all_reduce", 2, 16): 200_000}


def test_a_rank_without_device_is_left_out(tmp_path: Path):
    host = TraceFile(1)
    host.op("aten::addmm", 0, 9, (BF16, [32]), (BF16, [8, 16]), (BF16, [16, 32]))
    host.op("aten::relu", 20, 9, (BF16, [32]))
    paths = [host.write(tmp_path / "host.json"), gpu_trace(1.0, 0).write(tmp_path / "gpu.json")]
    source = load_profile([str(path) for path in paths])
    assert price(source, "aten.addmm", *ADDMM) == 522_000
    assert price(source, "aten.relu", tensor("bfloat16", 32)) is None
    assert source.warnings == ("host.json is left out: nothing ran on a device there",)


def test_gloo_in_groups_of_several_sizes(tmp_path: Path):
    trace = TraceFile(0, groups=(4, 2))
    trace.op("aten::relu", 0, 9, (F32, [32]))
    trace.op("gloo:all_reduce", 10, 20, (F32, [8]), tid=5, cat="user_annotation")
    path = trace.write(tmp_path / "run.json")
    source = load_profile([str(path)])
    assert collectives(source) == {}
    assert "the process groups have several sizes (2, 4)" in source.warnings[0]
    trace.head["distributedInfo"]["pg_config"].pop()
    trace.write(path)
    assert collectives(load_profile([str(path)])) == {("all_reduce", 4, 32): 20_000}


def test_what_does_not_identify_an_op_is_left_out(tmp_path: Path):
    trace = TraceFile()
    trace.op("aten::full", 0, 9, concrete=["[3, 3]"], scalars=2)  # no tensor at all
    trace.op("aten::cat", 10, 9, ("TensorList", [[2], [3]]))  # dtypes are not recorded  # type: ignore[list-item]
    trace.op("aten::_foreach_neg", 15, 9, (F32, [4]), ("TensorList", []))
    trace.op("aten::quantize", 20, 9, ("c10::qint8", [4]))
    trace.op("c10d::allreduce_", 30, 9, (F32, [4]))
    trace.op("_c10d_functional::all_reduce", 40, 9, (F32, [4]))
    trace.op("Optimizer.step#SGD.step", 50, 9, (F32, [4]))
    trace.op("aten::relu", 60, 9, (F32, [4]))
    source = load_profile([str(trace.write(tmp_path / "run.json"))])
    assert list(source.profile.ops) == [OpKey("aten.relu", (("float32", (4,)),))]
