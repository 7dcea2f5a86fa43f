"""Traces of simulated steps: the format, and that they say what the timeline says."""

from __future__ import annotations

import gzip
import io
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.graph.index.graph import GroupEntry
from commcc.graph.memory import live_bytes
from commcc.report.perfetto import TAIL, Track, microseconds, write_trace
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.predict import Prediction
from commcc.timing.simulate import Simulator, lower_bound
from commcc.timing.snapshot import Snapshot, take
from tests.counting import at_most
from tests.effort import examples
from tests.index_maker import IndexMaker, Shape, random_costs, random_maker, random_order
from tests.trace_checker import Trace, inside, read_trace

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
TINY = ("tiny_llama_fsdp2_tp2_bw", "tiny_llama_hsdp_bw", "tiny_moe_fsdp4_ep2_fw", "tiny_moe_fsdp4_ep2_bw")


def predicted(make: IndexMaker, costs=None, order=None) -> Snapshot:
    index = make.index()
    groups = dict.fromkeys(launch.group for launch in index.launches.values())
    index = replace(index, groups={name: GroupEntry(name, 2, None, "") for name in groups})
    costs = replace(costs or make.costs(), sources=("made",), priced_by=(0,) * len(index))
    timeline = Simulator(index, costs).run(order)
    prediction = Prediction(costs, timeline, live_bytes(index, order), lower_bound(index, costs))
    return replace(Snapshot.of(index), prediction=prediction)


def written(*tracks: Track) -> bytes:
    stream = io.BytesIO()
    write_trace(stream, tracks)
    return stream.getvalue()


def traced(make: IndexMaker, **costs) -> tuple[Snapshot, Trace]:
    seen = predicted(make, make.costs(**costs))
    return seen, checked(seen)


def checked(seen: Snapshot) -> Trace:
    """The trace of one graph, compared with its timeline."""
    trace = read_trace(written(Track("graph", seen)))
    compare(trace, 1, seen)
    return trace


def compare(trace: Trace, pid: int, seen: Snapshot) -> None:
    """Every sum and every peak is that of the prediction, and every collective has its place."""
    timeline, memory = seen.prediction.timeline, seen.prediction.memory
    stream = trace.thread(pid, "compute")
    total = {kind: sum(s.ns for s in stream if s.category == kind) for kind in ("compute", "launch", "stall")}
    assert {each.category for each in stream} <= set(total)
    assert total["compute"] == timeline.compute_ns + timeline.slowed_ns
    assert total["launch"] == timeline.launch_ns
    assert total["stall"] == timeline.exposed_ns
    assert max((each.end for each in stream), default=0) == timeline.step_ns
    lanes = trace.lanes(pid)
    assert sum(each.ns for lane in lanes for each in lane) == timeline.communication_ns
    found = {each.name: (each.start, each.end) for lane in lanes for each in lane}
    assert found == {seen.index.names[n]: (s.start, s.end) for n, s in timeline.spans.items() if s.ns}
    for name, peak in (("live", memory.peak_bytes), ("in flight", timeline.in_flight_bytes)):
        values = trace.counters.get((pid, name), [(0, 0)])
        assert max(value for _, value in values) == peak
        assert values[-1][0] <= timeline.step_ns
    flows = [flow for flow in trace.flows if flow[0][0] == pid]
    assert len(flows) <= len(seen.index.wait_of) + len(timeline.spans)
    for wait, launch in seen.index.wait_of.items():
        begins_somewhere = timeline.spans[launch].ns or seen.prediction.costs.launch_ns
        if timeline.stalls.get(wait) and begins_somewhere:
            assert any(ends_in(trace, flow, f"wait for {seen.index.names[launch]}") for flow in flows)


def ends_in(trace: Trace, flow, name: str) -> bool:
    return inside(trace, *flow[-1]).name == name


@pytest.mark.parametrize("name", TINY)
def test_samples(name):
    seen = take(load(SAMPLES / f"{name}.fx.txt.gz"), load_model("h100,slowdown=1.2,share_link=topology"))
    trace = checked(seen)
    model = seen.prediction.model_json()
    assert trace.other["cost model"] == model["name"] and trace.other["cost model hash"] == model["hash"]
    assert trace.processes[1]["process_name"] == "graph"
    assert model["hash"] in trace.processes[1]["process_labels"]
    known = {c.launch: c for c in seen.ident.collectives}
    by_name = {seen.index.names[launch]: facts for launch, facts in known.items()}
    for each in (each for lane in trace.lanes(1) for each in lane):
        facts = by_name[each.name]
        assert each.args["role"] == str(facts.role) and each.args["group"] == facts.group
        assert each.args["bytes on the wire"] == facts.wire_bytes
        assert each.args["priced by"] == "h100-sxm" and each.args["how"]
        assert 0 <= each.args["exposed ms"] <= each.args["ms"]
    assert any(each.args.get("module") for each in trace.thread(1, "compute"))
    work = [each.args for each in trace.thread(1, "compute") if each.category == "compute"]
    assert all(args["op"] and args["priced by"] == "h100-sxm" for args in work)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_random_graphs(seed, shuffled):
    make = random_maker(seed, Shape(nodes=14))
    order = random_order(make.index(), random.Random(seed)) if shuffled else None
    checked(predicted(make, random_costs(seed, make), order))


def test_a_launch_its_collective_and_its_wait_are_one_arrow():
    make = IndexMaker()
    gather = make.launch(5_000_123, "dp", make.input())
    make.op(1_000_001)
    make.op(3, make.wait(gather))
    seen, trace = traced(make, launch_ns=2_500)
    (arrow,) = trace.flows
    assert [inside(trace, *point).name for point in arrow] == ["launch n1", "n1", "wait for n1"]
    stream = [(each.name, each.start, each.ns) for each in trace.thread(1, "compute")]
    assert stream == [
        ("launch n1", 0, 2_500),
        ("n2", 2_500, 1_000_001),
        ("wait for n1", 1_002_501, 4_000_122),
        ("n4", 5_002_623, 3),
    ]
    assert '"ts":1002.501,"dur":4000.122' in written(Track("graph", seen)).decode()


def test_a_wait_that_is_free_points_at_what_runs_next():
    make = IndexMaker()
    gather = make.launch(5, "dp", make.input())
    make.op(100)
    wait = make.wait(gather)
    make.view(wait)
    make.op(7, wait)
    _, trace = traced(make)
    (arrow,) = trace.flows
    assert [inside(trace, *point).name for point in arrow] == ["n1", "n5"]
    assert arrow[-1][2] == 100


def test_a_wait_at_the_very_end_leaves_an_arrow_to_the_collective():
    make = IndexMaker()
    gather = make.launch(5, "dp", make.input())
    make.op(100)
    make.wait(gather)
    _, trace = traced(make, launch_ns=1)
    (arrow,) = trace.flows
    assert [inside(trace, *point).name for point in arrow] == ["launch n1", "n1"]


def test_what_nobody_waits_for_stalls_the_end():
    make = IndexMaker()
    make.launch(50, "dp", make.input())
    make.op(10)
    _, trace = traced(make, launch_ns=1)
    assert [(each.name, each.ns) for each in trace.thread(1, "compute")] == [("launch n1", 1), ("n2", 10), (TAIL, 40)]
    assert len(trace.flows) == 1


def test_a_synchronous_collective_is_a_launch_and_a_stall():
    make = IndexMaker()
    make.launch(50, "dp", make.input(), synchronous=True)
    _, trace = traced(make, launch_ns=2)
    assert [(each.name, each.category, each.ns) for each in trace.thread(1, "compute")] == [
        ("launch n1", "launch", 2),
        ("wait for n1", "stall", 50),
    ]
    assert len(trace.flows[0]) == 3


def test_a_graph_without_collectives_and_an_empty_one():
    make = IndexMaker()
    make.op(10, make.input(8), size=4)
    _, trace = traced(make)
    assert not trace.flows and trace.counters[1, "live"] == [(0, 12)]
    assert traced(IndexMaker())[1].slices == {}


def test_a_peak_that_takes_no_time_is_shown():
    make = IndexMaker()
    large = make.op(0, make.input(1), size=1000)
    make.op(0, large)
    make.op(5, size=2)
    _, trace = traced(make)
    assert trace.counters[1, "live"] == [(0, 1001), (0, 3)]


def test_lanes_are_named_after_groups():
    seen = take(load(SAMPLES / "tiny_llama_fsdp2_tp2_bw.fx.txt.gz"), load_model("h100"))
    names = [about["thread_name"] for about in checked(seen).threads.values()]
    assert names[0] == "compute" and len(names) == 3
    assert all(name.startswith("group ") for name in names[1:])
    shared = take(load(SAMPLES / "tiny_llama_fsdp2_tp2_bw.fx.txt.gz"), load_model("h100,share_link=all"))
    _, lane = (about["thread_name"] for about in checked(shared).threads.values())
    assert ": groups " in lane


def test_before_and_after_are_two_processes():
    model = load_model("h100")
    seen = [take(load(SAMPLES / f"{name}.fx.txt.gz"), model) for name in TINY[:2]]
    trace = read_trace(written(Track("before", seen[0]), Track("after", seen[1])))
    assert [about["process_name"] for about in trace.processes.values()] == ["before", "after"]
    for pid, each in enumerate(seen, 1):
        compare(trace, pid, each)


def test_the_same_graph_gives_the_same_bytes():
    def once() -> bytes:
        return written(Track("graph", take(load(SAMPLES / f"{TINY[2]}.fx.txt.gz"), load_model("h100"))))

    assert once() == once()


def test_names_of_a_file_stay_data():
    make = IndexMaker()
    make.op(10, make.input())
    seen = predicted(make)
    evil = 'x"}]}\u2028\x00<script>'
    index = replace(seen.index, names=("n0", evil), modules=(None, evil))
    (found,) = checked(replace(seen, index=index)).thread(1, "compute")
    assert found.name == found.args["module"] == 'x"}]}\\u2028\\x00<script>'


def test_microseconds_are_exact():
    assert [microseconds(ns) for ns in (0, 1, 999, 1000, 123_456_789_012_345)] == [
        *("0.000", "0.001", "0.999", "1.000", "123456789012.345"),
    ]


@pytest.mark.full
def test_a_production_graph_is_written_in_a_moment():
    seen = take(load(SAMPLES / "llama3_8b_fsdp64_bw.fx.txt.gz"), load_model("h100"))
    with at_most(600_000):
        data = written(Track("graph", seen))
    compare(read_trace(data), 1, seen)
    assert len(gzip.compress(data)) < 400_000


def test_the_checker_is_strict():
    make = IndexMaker()
    gather = make.launch(50, "dp", make.input())
    make.op(10, make.wait(gather))
    good = written(Track("graph", predicted(make, make.costs(launch_ns=2)))).decode()
    read_trace(good.encode())
    for old, new in (
        ('"ts":0.000,"dur":0.002', '"ts":0.000,"dur":0.003'),  # overlaps what comes next
        ('"ts":0.000,"dur":0.002', '"ts":0.0,"dur":0.002'),
        ('"ph":"f"', '"ph":"t"'),
        ('"ts":0.051', '"ts":0.099'),  # an arrow into nothing
        ('"thread_name"', '"thread_label"'),
        ('"dur":0.010', '"dur":0.000'),
    ):
        assert old in good, old
        with pytest.raises((AssertionError, KeyError)):
            read_trace(good.replace(old, new, 1).encode())
