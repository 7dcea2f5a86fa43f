"""Rounds of the search: which limits they keep, and what a search leaves out that is not worth finishing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from commcc.graph.index import build_index
from commcc.graph.memory import live_bytes
from commcc.schedule import Limits, Problem, search
from commcc.schedule.first_looks import ENOUGH, GLANCED, Preferred
from commcc.schedule.result import LINE, OWN, SearchResult
from commcc.schedule.rounds import FIRST, Round
from commcc.serialization import load
from commcc.timing.cost import load_model

ROOT = Path(__file__).parents[1]
MODULE = sys.modules["commcc.schedule.search"]  # the package has a function of that name
ROUNDS = sys.modules[Round.__module__]
MODEL = load_model(str(ROOT / "benchmarks" / "costs" / "latency-rich.yaml"))


@pytest.fixture(scope="module")
def experts():
    """A graph of which the step stays far from its bound, and its peak in bytes."""
    index = build_index(load(ROOT / "sample_graphs" / "library_deepseek_fsdp4_ep2.fx.txt.gz"))
    return Problem(index, MODEL.price(index)), live_bytes(index).peak_bytes


def rounds(monkeypatch, problem, limits):
    """Limits of all rounds, and the result."""
    seen = []
    whole = MODULE._Search.round

    def noted(looking, grid, within, *own):
        seen.append((within.prefetch, within.budget))
        return whole(looking, grid, within, *own)

    with monkeypatch.context() as patched:
        patched.setattr(MODULE._Search, "round", noted)
        return seen, search(problem, limits, 50)


def test_where_memory_holds_back_launches_go_closer_to_their_waits_before_the_budget_shrinks(monkeypatch, experts):
    problem, peak = experts
    budget = peak * 105 // 100
    seen, found = rounds(monkeypatch, problem, Limits(budget, None, 200))
    narrow, tighter = seen.index((50, budget)), [within for _, within in seen if within < budget]
    assert narrow >= 1 and all(seen.index((200, within)) > narrow for within in tighter)
    assert found.peak_bytes <= budget and tighter
    assert all(prefetch in (None, 200) for prefetch, _ in rounds(monkeypatch, problem, Limits(None, None, 200))[0])
    seen, found = rounds(monkeypatch, problem, Limits(budget, None, None))
    assert found.peak_bytes <= budget
    first = list(dict.fromkeys(prefetch for prefetch, within in seen if within == budget))
    assert first == [None, 200, 50], "no limit stands for two narrower ones as well"


def test_what_is_not_worth_finishing_has_the_step_that_it_would_have(monkeypatch):
    """Launches closer to their waits may shorten it, so that is never left out."""
    index = build_index(load(ROOT / "sample_graphs" / "llama3_8b_fsdp64_bw.fx.txt.gz"))
    problem, shorter = Problem(index, MODEL.price(index)), SearchResult(b"", 1, 1, 1, 1, ())

    def narrow(looking):
        looking.best = shorter

    monkeypatch.setattr(MODULE._Search, "narrow", narrow)
    monkeypatch.setattr(MODULE._Search, "unfold", lambda _looking: None)
    monkeypatch.setattr(MODULE, "_MOVED_NODES", 0)
    assert search(problem, Limits(None, None, 200), 1, hopeless=0).step_ns == shorter.step_ns


GRID = [(OWN, (number, 0, 0, 0)) for number in range(4)] + [(LINE, (4, 0, 0, 0))]


def made(steps, before=None, patience=3, twice=False):
    """What a round tries, None for its best order, where schedules have these steps; and the round."""

    def result(step, setting):
        return SearchResult(b"", step, 0, 0, 0, setting)

    def rank(step):
        return 0, False, step, 0, step, 0

    going, tried, left = Round(GRID, result(10_000_000, ()), rank(10_000_000), before, 1 << 40), [], list(steps)
    going._patience = patience
    while (following := going.following(twice=twice)) is not None:
        base, setting = following
        tried.append((base, setting[0]))
        step = left.pop(0)
        gained = step < (before or going.best.step_ns)
        going.note(None if base is None else setting, result(step, (setting,)), rank(step), gained=gained)
    return tried, going


def test_a_round_explores_its_list_and_uses_what_did_best_on_the_best_order():
    tried, going = made([7_000_000, 5_000_000, 6_000_000, 8_000_000, 9_000_000])
    assert tried == [(OWN, 0), (OWN, 1), (OWN, 2), (None, 1), (OWN, 3)]
    assert going.best.step_ns == 5_000_000 and not going.tied
    # What did best comes first, and what is tried on the best order is not tried on it again.
    tried, _ = made([7_000_000, 8_000_000, 5_000_000, *[5_000_000] * 6], patience=6)
    assert tried[3] == (None, 2)
    assert len(set(tried)) == len(tried)


def test_a_round_ends_where_nothing_gained_for_long_or_nothing_is_left():
    assert len(made([5_000_000] + [6_000_000] * 9, patience=2)[0]) == 3
    assert len(made([5_000_000] + [6_000_000] * 9, patience=2, twice=True)[0]) == 5
    tried, going = made([10_000_000] * 5, patience=9)
    assert len(tried) == len(GRID) and going.tied
    assert not made([10_000_000] * 2, patience=2)[1].tied


@pytest.mark.parametrize(
    ("nodes", "before", "most"), [(10_000, None, 6), (300, None, 10), (0, None, 3000), (10_000, 1, 4)]
)
def test_on_small_graphs_a_round_has_more_patience(nodes, before, most):
    assert Round((), None, None, before, nodes)._patience == most


@pytest.mark.parametrize(
    ("steps", "length"),
    [
        ([5_000_000, 5_000_400], FIRST),  # as before
        ([5_026_000, 5_030_000], FIRST),  # none near
        ([5_000_000, 5_000_600], 3),
        ([5_000_000, 5_030_000], 3),
        ([5_026_000, 5_024_000], 3),
        ([5_000_000, 4_999_999], 5),
        ([4_000_000, 4_000_000], 4),
    ],
)
def test_a_further_round_ends_early_where_it_leads_nowhere(steps, length):
    tried, _ = made([*steps, *[9_000_000] * 6], before=5_000_000, patience=3)
    first, _ = made([*steps, *[9_000_000] * 6], patience=3)
    assert len(tried) == length
    assert len(first) > FIRST


def test_under_little_memory_launches_go_closer_and_a_round_follows_where_that_gains(monkeypatch, experts):
    """What is closer than the narrower limits is a quarter of these."""
    problem, peak = experts
    budget, calls = peak, []
    looking = MODULE._Search(problem, Limits(budget), 50)
    looking.large = True

    def again(gains):
        def tried(_looking, limits):
            calls.append(("again", limits.prefetch))
            if limits.prefetch in gains:
                looking.best = SearchResult(
                    looking.best.packed, looking.best.step_ns - 1, budget, 1, 1, ((1, 2, 3, 4),)
                )

        return tried

    def asked(gains):
        calls.clear()
        monkeypatch.setattr(MODULE._Search, "_again", again(gains))
        monkeypatch.setattr(MODULE._Search, "round", lambda _l, _grid, limits: calls.append(("round", limits.prefetch)))
        looking.just_in_time(())
        return list(calls)

    looking.best = SearchResult(looking.start.packed, problem.bound * 2, budget, 1, 1, ((1, 2, 3, 4),))
    assert asked([]) == [("again", 50), ("again", 12)]
    assert asked([12]) == [("again", 50), ("again", 12), ("round", 12)]
    assert asked([50]) == [("again", 50), ("round", 50), ("again", 12)]
    looking.large = False
    assert asked([50, 12]) == []
    looking.large, looking.best = True, SearchResult(looking.start.packed, problem.bound * 2, budget // 2, 1, 1, ())
    assert asked([50, 12]) == []


@pytest.mark.parametrize("same", [False, True])
def test_planners_schedules_that_limits_were_chosen_by_are_not_made_again(monkeypatch, experts, same):
    looking, asked = MODULE._Search(experts[0], Limits(), 50), []
    looking.large, looking.first = True, Preferred(Limits() if same else Limits().closer, looking.start)
    monkeypatch.setattr(MODULE, "glance", lambda *args, begun: asked.append((*args, begun)) or looking.start)
    looking.glance(Limits())
    starts, begun = (GLANCED[ENOUGH:], looking.start) if same else (GLANCED, None)
    assert asked == [(looking.units, Limits(), starts, begun)]
    assert looking.tried == len(starts)


@pytest.mark.parametrize("large", [False, True])
def test_on_large_graphs_orders_with_a_longer_step_than_the_best_are_left_behind(monkeypatch, experts, large):
    problem = experts[0]
    looking = MODULE._Search(problem, Limits(), 50)
    bests = [
        replace(looking.start, step_ns=problem.bound * 2 - ns) for ns in (0, problem.bound // 10, problem.bound // 9)
    ]
    looking.large, looking.bests, looking.best = large, bests, bests[-1]
    monkeypatch.setattr(MODULE._Search, "_unfolded", lambda _looking, of: of)
    looking.unfold()
    assert looking.bests == (bests[-1:] if large else bests)
    looking.bests = [*bests, replace(bests[-1], step_ns=bests[-1].step_ns + 1)]  # much the same
    looking.unfold()
    assert len(looking.bests) == (2 if large else 4)


class Same:
    """A round of which all schedules have the step of before, or not."""

    def __init__(self, same):
        self.same = same

    def ended_as_before(self):
        return self.same


@pytest.mark.parametrize(
    ("gains", "same", "shares"),
    [
        ([0, 0, 0, 0, 0, 0], False, [[9, 6, 3], [9], [9]]),
        ([0, 1, 0, 0, 0, 0], False, [[9, 6, 6, 3], [9], [9]]),
        ([0, 0, 0, 1, 0, 0], False, [[9, 6, 3], [9, 9], [9]]),
        ([0, 0, 0], True, [[9], [9], [9]]),
    ],
)
def test_so_much_goes_behind_launches(monkeypatch, experts, gains, same, shares):
    """Less where that gains nothing, behind the last one; once where everything came back. Nothing is exposed then."""
    looking, asked, launches = MODULE._Search(experts[0], Limits(), 50), [], iter([(1, 9), (2, 9), (-1, 9)])
    exposed = 9

    def put_behind(_graph, order, launch, ns):
        asked.append((launch, ns))
        return order

    def round_(_looking, _grid, _limits, _own):
        looking.best = replace(looking.best, step_ns=looking.best.step_ns - left.pop(0))
        return Same(same)

    left = list(gains)
    looking.best = replace(looking.start, step_ns=looking.problem.bound + exposed)
    monkeypatch.setattr(MODULE, "put_behind", put_behind)
    monkeypatch.setattr(MODULE, "last_launch", lambda _graph, _order: 0)
    monkeypatch.setattr(MODULE, "most_exposed", lambda _graph, _order, _most: next(launches))
    monkeypatch.setattr(MODULE._Search, "round", round_)
    monkeypatch.setattr(MODULE._Search, "far", lambda _looking, _permille: True)
    looking.hide(Limits())
    assert [[ns for to, ns in asked if to == launch] for launch in range(3)] == shares


def test_a_first_round_that_misses_the_budget_goes_on_before_that_grows(monkeypatch, experts):
    problem, peak = experts
    looking, within = MODULE._Search(problem, Limits(peak // 2), 50), []
    looking.large = True
    monkeypatch.setattr(
        MODULE._Search, "go_on", lambda _l, _going, limits, *_own, **long: within.append((limits, long))
    )
    monkeypatch.setattr(MODULE._Search, "glance", lambda _l, limits, **_: within.append((limits, "planners")))
    asked, met = looking.first_round(GRID, looking.limits)
    tight, known = Limits(peak // 2), Limits(looking.start.peak_bytes)
    assert (asked, met) == (known, known)
    assert within == [(tight, {"long": False}), (tight, {}), (known, "planners"), (tight, {})]


@pytest.mark.parametrize(("large", "merged"), [(True, True), (True, False), (False, True)])
def test_planners_schedules_of_buckets_are_made_under_either_limits(monkeypatch, experts, large, merged):
    problem, peak = experts
    looking, within = MODULE._Search(problem, Limits(peak), 50), []
    looking.large, looking.merged = large, merged
    monkeypatch.setattr(MODULE._Search, "go_on", lambda *_args, **_long: None)
    monkeypatch.setattr(MODULE._Search, "glance", lambda _looking, *limits, again: within.append((*limits, again)))
    for preferred in (looking.limits, looking.limits.closer):
        within.clear()
        looking.first_round(GRID, preferred)
        other = looking.limits if preferred != looking.limits else looking.limits.closer
        assert within == [(preferred, False), *([(other, True)] if large and merged else [])]


def test_planners_schedules_under_other_limits_are_given_up_once_they_are_longer_than_the_best(monkeypatch, experts):
    looking, asked = MODULE._Search(experts[0], Limits(), 50), []
    whole = replace(looking.start, tried=7)
    looking.merged, looking.best = True, replace(looking.start, tried=8)
    monkeypatch.setattr(MODULE, "glance", lambda *_args, begun: asked.append(begun) or looking.start)
    for again, expected in ((False, [None, None]), (True, [looking.best, whole])):
        asked.clear()
        looking.whole = whole
        looking.glance(Limits().closer, again=again)
        assert asked == expected


@pytest.mark.parametrize("first", [0, 1])
def test_of_planners_schedules_of_all_nodes_the_best_is_kept(monkeypatch, experts, first):
    looking = MODULE._Search(experts[0], Limits(), 50)
    looking.merged = True
    monkeypatch.setattr(MODULE._Search, "_take", lambda _looking, _result: None)
    steps = [looking.start.step_ns - 1, looking.start.step_ns - 2]
    made = [replace(looking.start, step_ns=step) for step in steps]
    made = made[first:] + made[:first]
    monkeypatch.setattr(MODULE, "glance", lambda *_args, **_begun: made[0])
    looking.glance(Limits())
    made.reverse()
    looking.glance(Limits().closer)
    assert looking.whole.step_ns == min(steps)


@pytest.mark.parametrize("better", [False, True])
def test_a_first_round_far_from_the_bound_goes_on_unless_planners_schedules_are_better(monkeypatch, experts, better):
    """On large graphs, where each schedule takes long; on small ones it goes on at once."""
    problem, _ = experts
    seen, following = [], Round.following

    def noted(going, *, twice):
        if going.before is None:
            seen.append(twice)
        return following(going, twice=twice)

    def glance(looking, _limits, **_again):
        seen.append("planners")
        if better:
            looking.best = replace(looking.best, step_ns=looking.best.step_ns - 1)

    def first_rounds(nodes):
        monkeypatch.setattr(MODULE, "_MOVED_NODES", nodes)
        seen.clear()
        search(problem, Limits(), 60)
        at = seen.index("planners")
        return set(seen[:at]), seen[at + 1 :]

    monkeypatch.setattr(Round, "following", noted)
    monkeypatch.setattr(MODULE._Search, "glance", glance)
    monkeypatch.setattr(MODULE._Search, "hide", lambda _looking, _limits: None)
    monkeypatch.setattr(MODULE._Search, "move", lambda _looking, _orders: None)
    monkeypatch.setattr(ROUNDS, "_PATIENT_NODES", 0)
    monkeypatch.setattr(MODULE, "_FARTHER", 0)
    before, after = first_rounds(0)
    assert before == {False} and all(after) and bool(after) == (not better)
    assert True in first_rounds(1 << 30)[0]
