"""Predictions: figures in JSON, what each source priced, and where the time of a step goes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.graph.ops.kernels import Work
from commcc.serialization import load
from commcc.timing.cost import load_model
from commcc.timing.predict import Prediction, milliseconds, predict
from commcc.timing.simulate import Simulator, lower_bound
from commcc.timing.simulate.breakdown import COMPUTE, Family, Stream, families, family_of, streams
from tests.index_maker import IndexMaker, Shape, random_costs, random_maker

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
TINY = ("tiny_llama_fsdp2_tp2_bw.fx.txt.gz", "tiny_moe_ep2_fw.fx.txt.gz", "tiny_llama_ddp_bw.fx.txt.gz")


def made(make, **costs):
    """A prediction of an index made by hand."""
    index, priced = make.index(), make.costs(**costs)
    return index, Prediction(priced, Simulator(index, priced).run(), live_bytes(index), lower_bound(index, priced))


def small():
    """Two gathers on one lane, the first exposed in part, and a reduction on another that nobody waits for."""
    make = IndexMaker()
    x = make.input(size=100)
    first, second = make.launch(2_000_000, "dp", x, size=400), make.launch(1_000_000, "dp", x, size=200)
    a = make.op(500_000, make.wait(first), size=50)
    b = make.op(2_000_000, make.wait(second), a, size=60)
    make.launch(250_000, "tp", b, size=60)
    return make


def test_figures_in_json():
    _, prediction = made(small(), launch_ns=1000)
    assert prediction.to_json() == {
        "step_ms": 5.252,
        "compute_ms": 2.5,
        "communication_ms": 3.25,
        "exposed_ms": 2.749,
        "hidden_share": round(1 - 2.749 / 3.25, 6),
        "lower_bound_ms": 5.252,
        "peak_bytes": 700,
        "in_flight_bytes": 600,
    }


def test_without_communication_there_is_no_share():
    make = IndexMaker()
    make.op(7)
    _, prediction = made(make)
    figures = prediction.to_json()
    assert figures["hidden_share"] is None
    assert (figures["step_ms"], figures["exposed_ms"], figures["communication_ms"]) == (7e-06, 0, 0)


@pytest.mark.parametrize(("ns", "ms"), [(0, 0), (1, 1e-06), (1_234_567, 1.234567), (10**15 + 1, 1_000_000_000.000001)])
def test_milliseconds_are_exact(ns, ms):
    assert milliseconds(ns) == ms
    assert round(milliseconds(ns) * 1e6) == ns


def test_what_each_source_priced():
    make = small()
    _, prediction = made(make)
    by = [0 if ns >= 2_000_000 else 1 if ns else -1 for ns in make.ns]
    costs = replace(prediction.costs, sources=("table", "device", "never asked"), priced_by=tuple(by), hash="abc")
    assert replace(prediction, costs=costs).model_json() == {
        "name": "made",
        "hash": "abc",
        "sources": [
            {"name": "table", "nodes": 2, "ms": 4.0},
            {"name": "device", "nodes": 3, "ms": 1.75},
            {"name": "never asked", "nodes": 0, "ms": 0.0},
        ],
    }


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("text", ["h100", "cpu,slowdown=1.3,share_link=all,launch_us=3", "a100,fused=no"])
def test_a_graph_of_a_file(name, text):
    """The parts agree with each other, and JSON of two runs is the same to the byte."""
    index, model = build_index(load(SAMPLES / name)), load_model(text)
    prediction = predict(index, model)
    figures = prediction.to_json()
    assert json.dumps(figures) == json.dumps(predict(index, model).to_json())
    assert (prediction.costs.model, prediction.costs.hash) == (model.name, model.hash)
    assert prediction.timeline.order == tuple(range(len(index)))
    assert prediction.timeline == Simulator(index, prediction.costs).run()
    assert prediction.memory == live_bytes(index)
    assert prediction.bound == lower_bound(index, prediction.costs)
    assert 0 < figures["lower_bound_ms"] <= figures["step_ms"]
    assert 0 <= figures["hidden_share"] <= 1
    told = prediction.model_json()
    assert sum(source["nodes"] for source in told["sources"]) == sum(by >= 0 for by in prediction.costs.priced_by)
    assert sum(source["ms"] for source in told["sources"]) == pytest.approx(sum(prediction.costs.ns) / 1e6)
    check_breakdown(index, prediction)


# Where the time goes


def check_breakdown(index, prediction):
    """Streams and families add up to the step's figures."""
    timeline, costs = prediction.timeline, prediction.costs
    compute, *lanes = streams(index, costs, timeline)
    assert compute.busy_ns == timeline.compute_ns + timeline.launch_ns + timeline.slowed_ns
    assert sum(lane.busy_ns for lane in lanes) == timeline.communication_ns
    assert sum(lane.exposed_ns for lane in lanes) == timeline.exposed_ns
    assert compute.busy_ns + timeline.exposed_ns == timeline.step_ns
    assert sum(lane.jobs for lane in lanes) == len(index.launches)
    assert {group for lane in lanes for group in lane.groups} == {launch.group for launch in index.launches.values()}
    found = families(index, costs)
    working = [n for n, ns in enumerate(costs.ns) if ns and n not in index.launches and n not in index.wait_of]
    assert sum(family.ns for family in found) == timeline.compute_ns
    assert sum(family.nodes for family in found) == compute.jobs == len(working)
    assert [family.ns for family in found] == sorted((family.ns for family in found), reverse=True)
    assert all(0 < sum(ns for _, ns in family.largest) <= family.ns for family in found)


def test_streams_by_hand():
    index, prediction = made(small(), launch_ns=1000)
    assert streams(index, prediction.costs, prediction.timeline) == (
        Stream(COMPUTE, (), 2, 2_503_000, 0),
        Stream("dp", ("dp",), 2, 3_000_000, 2_499_000),
        Stream("tp", ("tp",), 1, 250_000, 250_000),
    )


def test_groups_of_one_lane_in_order_of_use():
    make = IndexMaker()
    x = make.input()
    for group in ("tp", "dp", "tp", "ep"):
        make.launch(10, group, x)
    lanes = {"tp": "link", "dp": "link", "ep": "other"}
    index, prediction = made(make, streams=lanes)
    _, *found = streams(index, prediction.costs, prediction.timeline)
    assert found == [Stream("link", ("tp", "dp"), 3, 30, 20), Stream("other", ("ep",), 1, 10, 10)]


def families_made():
    make = IndexMaker()
    names = ("mm", "mm", "_grouped_mm", "mul", "add", "cat", "item", "exp", "neg")
    ops = [f"aten.{name}" for name in names]
    for ns in (5, 0, 7, 4, 3, 9, 11, 3, 1):
        make.op(ns)
    make.ops[:] = ops
    index, costs = make.index(), make.costs()
    fusable = {"aten.mul", "aten.add", "aten.exp", "aten.neg"}
    work = tuple(Work.FUSABLE if op in fusable else Work.KERNEL for op in ops)
    estimates = replace(index.estimates, work=work)
    compute = tuple(op.endswith("mm") for op in ops)
    return replace(index, compute=compute, host_syncs=frozenset([6]), estimates=estimates), costs


def test_families_by_hand():
    """The longest first, equal ones by name; zero times are left out; three ops of a family are named."""
    index, costs = families_made()
    assert families(index, costs) == (
        Family("host", 1, 11, (("aten.item", 11),)),
        Family("pointwise, reductions", 4, 11, (("aten.mul", 4), ("aten.add", 3), ("aten.exp", 3))),
        Family("other kernels", 1, 9, (("aten.cat", 9),)),
        Family("grouped matmul", 1, 7, (("aten._grouped_mm", 7),)),
        Family("matmul", 1, 5, (("aten.mm", 5),)),
    )
    assert family_of(index, 1) == "matmul"


@pytest.mark.parametrize("seed", range(40))
def test_they_add_up(seed):
    make = random_maker(seed, Shape(nodes=40, groups=("a", "b", "c"), depth=6))
    index, costs = make.index(), random_costs(seed, make)
    check_breakdown(
        index, Prediction(costs, Simulator(index, costs).run(), live_bytes(index), lower_bound(index, costs))
    )
