"""Buckets of unequal sizes along the step."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from commcc.passes.options import parse_pipeline
from commcc.passes.strategies.auto import Tried
from commcc.passes.strategies.uneven import Judged, Shapes
from commcc.run.pipeline import run
from commcc.schedule import Limits, SearchResult
from commcc.schedule.first_looks import Preferred
from commcc.schedule.result import LINE, OWN
from commcc.timing.cost import load_model
from tests.families import backward

auto = importlib.import_module("commcc.passes.strategies.auto")
uneven = importlib.import_module("commcc.passes.strategies.uneven")
importlib.import_module("commcc.schedule.search")  # its name in the package is that of a function
KEY = ("all_gather", "1", "", "bfloat16")


def latency_of_gathers(rows):
    """Gathers before layers that compute for 10 each: 24 for each launch and 7 for each member."""
    free = now = 0
    for members in rows[KEY]:
        free += 24 + 7 * len(members)
        now = max(now, free) + 10 * len(members)
    return Judged(Tried((), (), 0, now * 1000, 0, 0), (), free)


def improved(rows, judge, effort):
    asked = []

    def asks(rows, _best):
        asked.append(rows)
        return judge(rows)

    shapes = Shapes(rows, dict.fromkeys(range(16), 1), asks, judge(rows))
    shapes.improve(effort)
    assert sorted(m for members in shapes.rows[KEY] for m in members) == list(range(16))
    assert len(asked) <= effort
    assert len({tuple(rows.values()) for rows in asked}) == len(asked)
    return shapes


def equal(size):
    return {KEY: tuple(tuple(range(at, at + size)) for at in range(0, 16, size))}


def test_no_size_to_begin_with_ends_worse_than_the_best_equal_one():
    sizes = (1, 2, 4, 8, 16)
    best_equal = min(latency_of_gathers(equal(size)).tried.step_ns for size in sizes)
    found = [improved(equal(size), latency_of_gathers, 40) for size in sizes]
    assert [shapes.best.tried.step_ns for shapes in found] == [best_equal] * len(sizes)
    assert [improved(equal(size), latency_of_gathers, 40).rows for size in sizes] == [each.rows for each in found]


def test_borders_that_no_halving_comes_to_are_drawn():
    """The same ones every time; no more where many brought nothing."""
    best = (0, 1, 2), (3, 4, 5, 6, 7, 8, 9), (10, 11, 12), (13,), (14, 15)

    def judge(rows):
        """Longer for each border too many, and for each one that is missing."""
        borders, wanted = ({members[0] for members in row} for row in (rows[KEY], best))
        return Judged(Tried((), (), 0, (100 + len(borders ^ wanted)) * 1000, 0, 0), None, 0)

    halved = improved(equal(4), judge, 200)
    assert halved.left > 100 and halved.best.tried.step_ns > 100_000
    asked = []
    for _ in range(2):
        shapes = improved(equal(4), judge, 200)
        shapes.judge = lambda rows, _best: asked.append(rows) or judge(rows)
        shapes.wander(200, 40)
        assert shapes.rows[KEY] == best
    assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]
    for effort, patience in ((3, 40), (200, 5)):
        shapes = improved(equal(4), judge, 200)
        shapes.wander(effort, patience)
        assert shapes.left == 0 or shapes.idle == patience


def test_a_change_that_makes_a_long_run_of_compute_longer_has_to_gain_more():
    def bucketing(step, run, busy=10):
        return Judged(Tried((), (), 0, step, 0, 0, run), None, busy)

    now = bucketing(1_000_000, 30)
    assert bucketing(999_500, 30).better(now, now)
    assert not bucketing(999_500, 31).better(now, now)
    assert bucketing(998_500, 31).better(now, now)
    assert bucketing(999_500, 24).better(bucketing(1_000_000, 3), now)  # these are cut
    assert bucketing(1_000_000, 30, 9).better(now, now)
    assert not bucketing(1_000_000, 31, 9).better(now, now)


def test_what_cannot_be_is_left():
    rows = equal(4)
    first = latency_of_gathers(rows)
    shapes = improved(rows, lambda asked: first if asked is rows else None, 40)
    assert shapes.rows == rows and shapes.best is first


@pytest.mark.parametrize("base", [OWN, LINE])
def test_what_is_hopeless_as_the_best_was_is_scheduled_in_another_way(monkeypatch, base):
    """Until that saved none of several in a row; what takes too much memory is not saved."""
    asked = []

    def glanced(steps, peak=0):
        """Steps by how the schedule begins: as the best one did, and in another way."""

        def glance(_problem, _limits, starts, *, hopeless, give_up):
            assert hopeless == 1_001_000 and give_up
            (begun,) = starts
            other, lined = begun != best.start, begun[0] == LINE
            assert (lined == (best.start[0] == LINE)) == (not other)
            asked.append(other)
            return SearchResult(b"", steps[other], peak * other, 0, 1, ((1, 2, 3, 4),), lined)

        return glance

    bucketings = object.__new__(uneven._Bucketings)
    bucketings._preferred, bucketings.unsaved = Preferred(Limits(budget=10), None), 0
    best = Judged(Tried((), (), 0, 1_000_000, 0, 0), (base, (1, 2, 3, 4)), 10)

    def step(steps, peak=0):
        asked.clear()
        monkeypatch.setattr("commcc.schedule.first_looks.glance", glanced(steps, peak))
        return bucketings._schedule(None, best).step_ns

    assert step([1_000_500, 1]) == 1_000_500 and asked == [False]
    assert step([2_000_000, 900_000]) == 900_000 and asked == [False, True]
    assert step([2_000_000, 900_000], peak=11) == 2_000_000
    assert step([2_000_000, 900_000]) == 900_000
    assert [step([2_000_000, 1_900_000]) for _ in range(uneven._UNSAVED)] == [2_000_000] * uneven._UNSAVED
    assert step([2_000_000, 900_000]) == 2_000_000 and asked == [False]


def test_unequal_sizes_make_the_step_of_layers_shorter(monkeypatch):
    """Against the same without them; proved, and said in the report."""
    model = load_model("h100")
    passes = parse_pipeline("bucket{strategy=auto},reorder")
    steps = {}
    for shapes in (0, 1):
        with monkeypatch.context() as patched:
            if not shapes:
                patched.setattr(auto.Search, "_uneven", lambda _search, best: [best])
            result = run(backward(layers=4), passes, model=model)
        steps[shapes] = result.last.prediction.timeline.step_ns
        report = result.steps[0].report
        assert ("unequal" in report["caps_mb"].values()) == bool(shapes)
        assert (report["unequal_tried"] > 0) == bool(shapes)
        assert result.verified == "proved"
    assert steps[1] < 0.99 * steps[0]


def test_where_no_stream_is_busy_all_the_time_more_are_tried_only_if_a_few_gain(monkeypatch):
    """The first bucket, or the last, may hold up compute all the same."""
    model = load_model("h100")
    passes = parse_pipeline("bucket{strategy=auto,form=copy,effort=12},reorder")

    def both(shape):
        """The steps without unequal sizes and with them, and how many were tried."""
        results = []
        for without in (True, False):
            with monkeypatch.context() as patched:
                patched.setattr(auto, "_BUSY", 1 << 30)  # no stream is so busy
                if without:
                    patched.setattr(auto.Search, "_uneven", lambda _search, best: [best])
                results.append(run(backward(**shape), passes, model=model))
        steps = (result.last.prediction.timeline.step_ns for result in results)
        return *steps, results[1].steps[0].report["unequal_tried"]

    without, with_them, tried = both({"tokens": 8192, "tensor": 4})
    assert with_them == without and tried <= 12
    without, with_them, tried = both({"layers": 6, "shards": 16, "tensor": 8})
    assert with_them < 0.99 * without and tried > 12


def test_from_several_bucketings_no_step_is_longer_and_one_is_shorter(monkeypatch):
    """Against the best bucketing as the only one to begin from; orders of both as schedules have them."""
    monkeypatch.setattr(sys.modules["commcc.schedule.search"], "_TRIALS", 0)
    model = load_model("h100")
    passes = parse_pipeline("bucket{strategy=auto},reorder")
    gains = []
    for shape in ({"layers": 2}, {"layers": 3}, {"layers": 4}, {"layers": 6, "shards": 16}):
        steps = []
        for starts, parts in ((1, ()), (uneven._STARTS, uneven._PARTS)):
            with monkeypatch.context() as patched:
                patched.setattr(uneven, "_STARTS", starts)
                patched.setattr(uneven, "_PARTS", parts)
                result = run(backward(**shape), passes, model=model)
            steps.append(result.last.prediction.timeline.step_ns)
            assert result.verified == "proved"
        gains.append(1 - steps[1] / steps[0])
    assert min(gains) >= 0
    assert max(gains) > 0.01


def test_buckets_of_further_streams_have_other_sizes_too(monkeypatch):
    """All-reduces of gradients that were reduce-scattered before, of which the last ones are waited for at the end."""
    monkeypatch.setattr(sys.modules["commcc.schedule.search"], "_TRIALS", 0)
    passes, gains = parse_pipeline("bucket{strategy=auto},reorder"), []
    for shape in ({"layers": 8, "replicas": 8}, {"layers": 16, "replicas": 4, "width": 1024, "tokens": 2048}):
        steps = []
        for others in (uneven.on_further_streams, lambda _search, best: best):
            with monkeypatch.context() as patched:
                patched.setattr(auto, "on_further_streams", others)
                result = run(backward(**shape), passes, model=load_model("h100"))
            assert result.verified == "proved"
            steps.append(result.last.prediction.timeline.step_ns)
        gains.append(1 - steps[0] / steps[1])
    assert min(gains) >= 0
    assert max(gains) > 0.02


@pytest.mark.parametrize("effort", [1, 20])
def test_further_streams_get_more_where_a_few_other_sizes_gain(monkeypatch, effort):
    """The busiest of all had its turn; one without buckets has none."""
    buckets = [SimpleNamespace(members=(launch,)) for launch in range(3)]
    best, steps, asked = (
        Tried((), tuple(buckets), 3, 1_000_000, 0, 0),
        {"dp": 999_001, "tp": 900_000, "ep": 800_000},
        [],
    )

    def improved(_search, starts, stream, effort):
        asked.append((stream, effort, starts[0].step_ns))
        return [replace(starts[0], step_ns=min(starts[0].step_ns, steps[stream]))]

    monkeypatch.setattr(uneven, "improved", improved)
    search = SimpleNamespace(
        options=SimpleNamespace(effort=effort),
        busy=lambda _best: {"fsdp": 9, "dp": 5, "tp": 5, "ep": 7, "pp": 8},
        unmerged=SimpleNamespace(stream={0: "fsdp", 1: "dp", 2: "ep"}),
    )
    found = uneven.on_further_streams(search, best)
    if effort == 1:
        assert not asked and found is best
    else:
        assert asked == [("ep", 20, 1_000_000), ("ep", 60, 800_000), ("dp", 20, 800_000)]
        assert found.step_ns == 800_000
    asked.clear()
    search.unmerged.stream[2] = "fsdp"
    found = uneven.on_further_streams(search, best)  # too little is gained to go on
    assert asked == [("dp", 20, 1_000_000)][: effort > 1] and found.step_ns == (999_001 if asked else 1_000_000)
    assert uneven.gained(replace(best, step_ns=999_000), best)
    assert not uneven.gained(replace(best, step_ns=999_001), best)
    assert uneven.gained(replace(best, step_ns=2_000_000), replace(best, over=1))
    assert not uneven.gained(replace(best, over=1, step_ns=1), best)


def test_parts_of_the_same_bytes():
    """Each member is in the part that its middle lies in; members that are larger than a part leave others empty."""
    assert uneven._cut(tuple(range(8)), 4, dict.fromkeys(range(8), 3)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert uneven._cut((1, 2, 3), 2, {1: 10, 2: 1, 3: 9}) == ((1,), (2, 3))
    assert uneven._cut((4, 5), 8, {4: 1, 5: 1}) == ((4,), (5,))
    assert uneven._cut((4, 5), 2, {4: 0, 5: 0}) == ((4, 5),)


def settled(estimates, real):
    """What is taken of bucketings, the first two found and the rest spare, and which of them were searched."""
    search, asked = object.__new__(auto.Search), []

    def with_effort(tried, _best):
        asked.append(tried.members)
        return replace(tried, step_ns=real[tried.members])

    search._with_effort = with_effort
    tried = [Tried((), (), number, step, 0, 0) for number, step in enumerate(estimates)]
    return search._calmest(tried[:2], tried[2:]).members, asked


def test_where_estimates_do_not_hold_the_next_ones_are_searched_too():
    assert settled([1000, 1010, 1020, 1030], real=[1001, 1010, 900, 900]) == (0, [0, 1])
    assert settled([1000, 1010, 1020, 1030], real=[1200, 1300, 1040, 1030]) == (3, [0, 1, 2, 3])
    assert settled([1000, 1010, 1020, 1030], real=[1200, 1300, 1025, 900]) == (2, [0, 1, 2])
