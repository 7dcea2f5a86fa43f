"""Traces of runs: which node an event belongs to; times of nodes over ranks; predictions beside what was measured."""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest
import torch

from commcc.base.terms import Kind
from commcc.replay.bench.demo import demo_pair
from commcc.replay.bench.forecast import Compared, forecast
from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.bench.recording import (
    NodeRun,
    NodeTimes,
    RankNodes,
    gather_times,
    marked,
    medians,
    read_runs,
    record,
)
from commcc.replay.place import CpuPlace
from commcc.replay.rank_run import RankRun
from commcc.timing.cost import load_model
from commcc.timing.predict import predict
from tests.verify_graphs import Graph

aten = torch.ops.aten
LAUNCHES = {
    "gather": Kind.ALL_GATHER,
    "scatter": Kind.REDUCE_SCATTER,
    "joined": Kind.ALL_GATHER,
    "swap": Kind.ALL_TO_ALL,
}


def event(name, ts, dur, cat="cpu_op", **args):
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "args": args}


def node(name, ts, dur):
    return event(f"node {name}", ts, dur)


def sends(op, ts, *dims):
    return event(f"_c10d_functional::{op}", ts, 1, **{"Input Dims": list(dims)})


def gloo(name, ts, dur, *shape):
    return event(f"gloo:{name}", ts, dur, "user_annotation", **{"Input Dims": [list(shape)]})


def run_mark(ts, dur):
    return event("commcc run", ts, dur, "user_annotation")


def read(tmp_path, *events):
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": [{"ph": "M", "name": "x"}, *events]}).encode()))
    return read_runs(file, LAUNCHES)


def test_gloo_events_go_to_launches_of_their_kind_and_size_in_order(tmp_path):
    (run,) = read(
        tmp_path,
        run_mark(0, 1000),
        node("gather", 10, 20),
        sends("all_gather_into_tensor", 12, [8, 4]),
        node("scatter", 40, 20),
        sends("reduce_scatter_tensor", 42, [64]),
        gloo("all_reduce", 70, 300, 64),  # how gloo scatters
        gloo("all_gather", 90, 200, 32),
        gloo("all_gather", 95, 7, 33),  # another size
        gloo("barrier", 96, 7),
    )
    assert run == NodeRun(transfers={"gather": 200_000, "scatter": 300_000})


def test_what_began_before_a_launch_is_not_its_work(tmp_path):
    first, second = read(
        tmp_path,
        run_mark(0, 100),
        gloo("all_to_all", 5, 50, 16),
        node("swap", 10, 5),
        sends("all_to_all_single", 11, [16]),
        gloo("all_to_all", 20, 1.5, 16),
        run_mark(200, 100),
        node("swap", 210, 5),
        sends("all_to_all_single", 211, [16]),
    )
    assert first.transfers == {"swap": 1500}
    assert not second.transfers


def test_several_tensors_of_one_launch(tmp_path):
    (run,) = read(
        tmp_path,
        run_mark(0, 1000),
        node("joined", 10, 20),
        sends("all_gather_into_tensor_coalesced", 12, [[4], [2, 3]]),
        gloo("all_gather", 40, 10, 2, 3),
        gloo("all_gather", 30, 5, 4),
    )
    assert run.transfers == {"joined": 20_000}


def test_device_work_goes_to_the_node_that_queued_it(tmp_path):
    def queued(ts, number):
        return event("cudaLaunchKernel", ts, 2, "cuda_runtime", correlation=number)

    def kernel(name, ts, dur, number, cat="kernel"):
        return event(name, ts, dur, cat, correlation=number)

    (run,) = read(
        tmp_path,
        run_mark(0, 1000),
        node("gather", 10, 20),
        queued(15, 1),
        queued(17, 2),
        node("mm", 40, 20),
        queued(45, 3),
        queued(50, 4),
        queued(80, 5),  # between nodes
        kernel("elementwise", 100, 3, 1),
        kernel("ncclDevKernel_AllGather_RING_LL", 110, 90, 2),
        kernel("gemm", 120, 60.5, 3),
        kernel("Memcpy DtoD", 190, 2, 4, "gpu_memcpy"),
        kernel("fill", 200, 7, 5, "gpu_memset"),
        kernel("stray", 300, 7, 99),
    )
    assert run.transfers == {"gather": 90_000}
    assert run.ops == {"gather": 3_000, "mm": 62_500}


def test_a_recorded_run_has_its_nodes(tmp_path):
    g = Graph()
    x = g.input("x", 8)
    prepared = make_set([g.program(g(aten.exp.default, x, name="grown"))], BenchSettings(ranks=1)).prepared[0]
    steps = tuple(map(marked, prepared.steps))
    run = RankRun(dataclasses.replace(prepared, steps=steps), 0, 0, print)
    begun = []

    def runs():
        for number in range(3):
            begun.append(number)
            yield lambda: run({"x": torch.zeros(8)})

    file = tmp_path / "graph1.rank0.pt.trace.json.gz"
    record(CpuPlace(), runs(), file)
    trace = json.loads(gzip.decompress(file.read_bytes()))
    names = [each.get("name") for each in trace["traceEvents"]]
    assert (names.count("node grown"), names.count("commcc run"), begun) == (3, 3, [0, 1, 2])
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    assert read_runs(file, {}) == [NodeRun()] * 3


# Over ranks


def test_medians_are_of_the_runs_that_have_the_node():
    assert medians([{"a": 1, "b": 7}, {"a": 9}, {"a": 2}]) == {"a": 2.0, "b": 7.0}


def test_a_collective_takes_what_the_last_rank_to_come_saw():
    g = Graph()
    x = g.input("x", 8)
    graphs = make_set([g.program(g.gather(x, size=2))], BenchSettings(ranks=4, groups={"0": ((0, 2), (1, 3))}))
    index = graphs.prepared[0].index
    (name,) = (index.names[node] for node in index.launches)
    seen = ([50, 70], [900, 100], [10, 90], [40, 400])
    ranks = [RankNodes({"mm": 10.0 * n}, {"w": 1.0}, {name: list(times)}) for n, times in enumerate(seen)]
    found = gather_times(index, graphs.layout, [RankNodes.of(json.loads(json.dumps(r.to_json()))) for r in ranks])
    assert found.transfers == {name: 55.0}  # of 10, 70 in one group and 40, 100 in the other
    assert found.late == {name: 207.5 - 55.0}  # the mean of all
    assert found.ops == {"mm": 15.0}
    assert found.waits == {"w": 1.0}
    ranks[0].transfers[name].append(5)
    assert gather_times(index, graphs.layout, ranks).transfers == {name: 70.0}  # the first group did not see the same
    assert gather_times(index, graphs.layout, ranks[:1]).transfers == {name: 50.0}  # one that stands for all


# Predictions


def test_errors():
    assert Compared(200.0, 150.0).error == -0.25
    assert Compared(0.0, 150.0).error is Compared(None, 1.0).error is Compared(2.0, None).error is None
    assert Compared(2e6, 3e6).to_json() == {"measured": 2.0, "predicted": 3.0, "error": 0.5}


@pytest.fixture(scope="module")
def small():
    index = make_set([demo_pair(2)[1]], BenchSettings(ranks=2)).prepared[0].index
    return index, predict(index, load_model("laptop-cpu,fused=no"))


def test_a_forecast_that_comes_true_has_no_error(small):
    """Times as they were predicted come out as they were: every error is 0."""
    index, prediction = small
    timeline, launches = prediction.timeline, index.launches
    names = index.names
    ops = {names[node]: prediction.costs.ns[node] for node in range(len(index)) if node not in launches}
    ops |= {names[node]: prediction.costs.launch_ns for node in launches}
    times = NodeTimes(
        ops,
        {names[launch.waits[0]]: timeline.exposed.get(node, 0) for node, launch in launches.items()},
        {names[node]: timeline.spans[node].ns for node in launches},
    )
    found = forecast(index, prediction, times, step_ns=timeline.step_ns, exposed_ns=timeline.exposed_ns)
    parts = (found.step, found.compute, found.launches, found.exposed, found.communication, found.hidden_share)
    assert [part.error or 0.0 for part in parts] == pytest.approx([0.0] * 6)
    assert found.rest.measured == 0
    assert found.typical_error == 0
    assert [(kind.count, kind.of, kind.transfer.error) for kind in found.kinds] == [(1, 1, 0.0)] * 2
    assert all(each.exposed.measured == each.exposed.predicted for each in found.collectives)


def test_what_was_not_measured_is_not_made_up(small):
    index, prediction = small
    first = next(iter(index.launches))
    times = NodeTimes({}, {}, {index.names[first]: 1e6})
    found = forecast(index, prediction, times, step_ns=5e6, exposed_ns=1e6)
    assert found.communication.measured is found.hidden_share.measured is None
    assert sorted((kind.count, kind.of) for kind in found.kinds) == [(0, 1), (1, 1)]
    assert found.rest.measured == 4e6
    assert found.to_json()["collectives"][1]["transfer_ms"]["measured"] is None
    assert found.collectives[1].exposed.measured is None
