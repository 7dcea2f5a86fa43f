"""A forward and its backward as one step, cut by PyTorch's own partitioners, with launches in flight between them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from commcc.base.errors import InputError
from commcc.cli.main import run as command_line
from commcc.graph.index import build_index
from commcc.graph.index.outside import Outside
from commcc.graph.memory import live_bytes
from commcc.passes.base import PlanContext
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import Rules, run
from commcc.run.step import is_backward_of, join, link, run_both
from commcc.schedule.judge import judge
from commcc.schedule.problem import Problem
from commcc.serialization import propagate
from commcc.serialization.fx import parse_text
from commcc.timing import snapshot
from commcc.timing.cost.model import load_model
from commcc.timing.simulate import Simulator
from tests.counted_memory import counted_peak
from tests.cut_pairs import PARTITIONS, pair

MODEL = load_model("h100,ranks_per_node=2")
IN_FLIGHT = {"plain": 0, "views": 0, "scattered": 2, "gathered": 3, "fetched": 1}


def graph(text):
    return propagate(parse_text(text, "step"))


def halves(how):
    return tuple(map(graph, pair(how)))


def step_of(how):
    forward, backward = halves(how)
    step = join(forward, backward, link(forward, backward))
    return step, snapshot.take(step.program, MODEL)


@pytest.mark.parametrize("how", PARTITIONS)
def test_both_are_one_graph(how):
    forward, backward = halves(how)
    assert is_backward_of(forward, backward)
    assert not is_backward_of(forward, forward) and not is_backward_of(backward, forward)
    step, seen = step_of(how)
    assert step.fresh == ("tangents_1",)
    assert len(build_index(backward).begun_elsewhere) == IN_FLIGHT[how]
    assert seen.index.begun_elsewhere == {}, "the forward launched it"
    assert seen.prediction.memory.peak_bytes == counted_peak(step.program)
    launches = [len(build_index(half).launches) for half in (forward, backward)]
    assert len(seen.index.launches) == sum(launches)


def test_what_is_in_flight_between_carries_over():
    forward, backward = (snapshot.take(half, MODEL).prediction.timeline for half in halves("fetched"))
    _, seen = step_of("fetched")
    tail = forward.step_ns - max(forward.end)
    assert tail > 0, "of the forward alone it sticks out at the end"
    whole = seen.prediction.timeline
    assert whole.step_ns < forward.step_ns + backward.step_ns
    assert whole.exposed_ns < forward.exposed_ns + backward.exposed_ns


@pytest.mark.parametrize("how", PARTITIONS)
def test_the_backward_alone_in_its_step_has_the_memory_of_the_step(how):
    _, backward = halves(how)
    step, seen = step_of(how)
    outside = step.outside(seen)
    index = build_index(backward, outside=outside)
    lone, whole = live_bytes(index).live, live_bytes(seen.index).live
    for name, inner in step.inner.items():
        if name not in step.fresh:
            own = lone[index.position[name]] + outside.resident_bytes
            if how == "fetched" and own != whole[seen.index.position[inner]]:
                # The backward does not see what a launch of the forward sends, which is there until it is waited for.
                assert own < whole[seen.index.position[inner]]
                continue
            assert own == whole[seen.index.position[inner]], name
    # PyTorch's other partitioner saves views next to what they are views of.
    shared = len(outside.buffers) - len(set(outside.buffers.values()))
    assert bool(shared) is (how == "views")
    assert live_bytes(build_index(backward)).peak_bytes >= live_bytes(index).peak_bytes


def test_the_forwards_timeline_says_when_a_collective_has_ended():
    _, backward = halves("fetched")
    step, seen = step_of("fetched")
    outside = step.outside(seen)
    assert set(outside.ends_ns) == {"all_gather_into_tensor_4"}
    timeline = snapshot.take(backward, MODEL).prediction.timeline
    index = build_index(backward, outside=Outside({"all_gather_into_tensor_4": 10**9}))
    late = Simulator(index, MODEL.price(index)).run()
    (wait,) = index.begun_elsewhere
    assert not timeline.stalls.get(wait)
    assert late.end[wait] == 10**9 and late.exposed_ns > timeline.exposed_ns
    assert late.step_ns == late.compute_ns + late.launch_ns + late.slowed_ns + late.exposed_ns


@pytest.mark.parametrize("us", [0, 3, 40, 1000])
def test_kernels_know_it_too(us):
    index = build_index(halves("gathered")[1], {"all_gather*": us})
    costs = MODEL.price(index)
    timeline = Simulator(index, costs).run()
    judged = judge(Problem(index, costs).graph, np.arange(len(index)))
    assert judged.step_ns == timeline.step_ns
    assert timeline.in_flight[0] == sum(index.tensors[i].bytes for i in set(index.begun_elsewhere.values()))


def test_reorder_places_the_wait():
    _, backward = halves("gathered")
    hints = {"all_gather_into_tensor_4": 60}
    result = run(backward, parse_pipeline("reorder"), model=MODEL, hints=hints)
    assert result.verified == "proved"
    (old, new) = (each.timeline for each in result.predictions)
    stalls = []
    for timeline, seen in ((old, result.first), (new, result.last)):
        source = seen.index.position["all_gather_into_tensor_4"]
        stalls += [timeline.stalls.get(wait, 0) for wait, s in seen.index.begun_elsewhere.items() if s == source]
    assert stalls[0] > 0 and stalls[1] < stalls[0]


def test_a_number_of_bytes_is_of_the_whole_device():
    _, backward = halves("plain")
    index = build_index(backward, outside=Outside(resident_bytes=1 << 29))
    context = PlanContext.of(backward)
    assert PlanContext(backward, index, context.ident).budget(1.0) == 1 << 29
    assert context.budget(1.0) == 1 << 30


def test_passes_run_on_both():
    forward, backward = halves("fetched")
    asked = []

    def run_one(program, outside):
        asked.append(outside)
        rules = Rules(outside=outside)
        return run(program, parse_pipeline("bucket{groups=all},reorder"), model=MODEL, rules=rules)

    both = run_both(forward, backward, run_one, lambda program: snapshot.take(program, MODEL))
    assert both.verified == "proved"
    assert both.last.prediction.timeline.step_ns < both.first.prediction.timeline.step_ns
    assert asked[0] == Outside() and asked[1].freed and asked[1].buffers


def test_names_that_were_lost():
    texts = pair("plain")
    forward, backward = halves("plain")
    names = [node.name for node in backward.graph.nodes if node.op == "placeholder" and node.name != "tangents_1"]
    for node in backward.graph.nodes:
        if node.name in names:
            node.name = f"arg{names.index(node.name)}"
    assert list(link(forward, backward).values()) == list(link(*map(graph, texts)).values())


def test_what_fits_nowhere():
    forward, backward = halves("plain")
    wrong = graph(pair("plain")[1].replace('relu: "f32[64, 32]', 'relu: "f32[32, 64]'))
    said = r"input 'relu' is f32\[32, 64\].*, and 'relu' of the forward is f32\[64, 32\]"
    with pytest.raises(InputError, match=said):
        link(forward, wrong)
    with pytest.raises(InputError, match=r"takes nothing that the first one returns|too few|is no output"):
        link(backward, forward)


def write(tmp_path, how):
    names = [tmp_path / f"{half}.txt" for half in ("fw", "bw")]
    for name, text in zip(names, pair(how), strict=True):
        name.write_text(text)
    return list(map(str, names))


def test_simulate(tmp_path, capsys):
    files = write(tmp_path, "fetched")
    assert command_line(["simulate", *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["label"] for each in document["graphs"]] == ["step"] and document["backward"] == files[1]
    assert document["carried_over"] == ["all_gather_into_tensor_4"]
    assert document["graphs"][0]["in_flight_at_start"] == document["graphs"][0]["in_flight_at_end"] == []
    assert command_line(["simulate", *files, "--no-step", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["label"] for each in document["graphs"]] == ["before", "after"]
    before, after = document["graphs"]
    assert before["in_flight_at_end"] == ["all_gather_into_tensor_4"] and before["tail_ms"] > 0
    assert after["in_flight_at_start"] == [{"input": "all_gather_into_tensor_4", "wait": "wait_tensor_6"}]
    assert command_line(["simulate", *files, "--passes", "reorder", "-q"]) == 0
    assert "->" in capsys.readouterr().out


def test_a_hint_says_when_it_has_ended(tmp_path, capsys):
    _, backward = write(tmp_path, "fetched")
    assert command_line(["simulate", backward, "--hint", "all_gather*=70", "--html", str(tmp_path / "p.html")]) == 0
    shown = capsys.readouterr()
    assert "in flight at the start, the last until 0.070 ms: 1 input" in shown.out
    assert "fits no size" not in shown.err
    trace = tmp_path / "t.json"
    assert command_line(["simulate", backward, "--hint", "all_gather*=70", "--trace", str(trace), "-q"]) == 0
    assert "wait for all_gather_into_tensor_4" in trace.read_text()


def test_run(tmp_path, capsys):
    files = write(tmp_path, "gathered")
    assert command_line(["run", *files, "--preset", "auto", "-o", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verified"] == "proved" and document["carried_over"] == []
    assert document["after"]["step_ms"] < document["before"]["step_ms"]
    assert document["after"]["peak_bytes"] <= document["before"]["peak_bytes"] + (1 << 30)
    for name, source in zip(("fw.run.txt", "bw.run.txt"), files, strict=True):
        assert command_line(["verify", source, str(tmp_path / "out" / name), "-q"]) == 0
    assert command_line(["run", *files, "--passes", "reorder", "--plan-out", str(tmp_path / "p.yaml")]) == 2
    assert "plans and --dump-after-each are of one graph" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["gathered", "fetched"])
@pytest.mark.parametrize("half", [0, 1], ids=["forward", "backward"])
def test_results_are_run(how, half, tmp_path, capsys):
    """What is in flight at either end is an input or a result like others where both graphs are run."""
    source = write(tmp_path, how)[half]
    target = str(tmp_path / "new.txt")
    assert command_line(["run", source, "--passes", "bucket{groups=all},reorder,cleanup", "-o", target, "-q"]) == 0
    capsys.readouterr()
    assert command_line(["verify", source, target, "--numeric", "-q"]) == 0
    assert capsys.readouterr().out == "proved, numeric: equal\n"
    assert command_line(["diff", source, target, "-q"]) == 0


def test_lint_knows_what_is_saved_in_flight(tmp_path, capsys):
    forward, backward = write(tmp_path, "fetched")
    assert command_line(["lint", forward, backward, "--only", "never-waited,use-before-wait", "--no-ranks"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "'all_gather_into_tensor_4' is in flight at the end, saved for the backward, which has to wait for it" in said
    )
    ranks = [tmp_path / f"rank{rank}.txt" for rank in range(2)]
    for path in ranks:
        path.write_text(pair("fetched")[1])
    assert command_line(["lint", *map(str, ranks), "--only", "rank-agreement"]) == 0


def test_merging_leaves_what_is_in_flight_alone(tmp_path, capsys):
    forward, _ = write(tmp_path, "gathered")
    assert command_line(["bucket", forward, "--groups", "all", "-o", str(tmp_path / "o.txt")]) == 0
    assert "its result is returned before it is waited for" in " ".join(capsys.readouterr().out.split())
