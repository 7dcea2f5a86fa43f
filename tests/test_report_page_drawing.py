"""The page of ``simulate --html``: the pictures, at any width, in light and dark, and how long they take."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, combinations
from typing import TYPE_CHECKING

import pytest

from commcc.graph.collectives import Identification
from commcc.graph.memory import live_bytes
from commcc.report.simulation_page import FAMILIES, side
from commcc.timing.predict import Prediction
from commcc.timing.simulate import Simulator, lower_bound
from tests.index_maker import IndexMaker
from tests.page_driver import (
    LARGE,
    TINY,
    colour_at,
    needs_browser,
    point_at,
    recording,
    row_middle,
    style_colour,
    text_of,
    track_box,
    written,
)
from tests.report_pages import in_order, page, predicted, sides

if TYPE_CHECKING:
    from commcc.report.simulation_page import NodeColumns, Side
    from tests.browser import Page

pytestmark = needs_browser


def zoom_to(shown: Page, ns: float, around: float = 1e3) -> None:
    shown.evaluate(f"location.hash = 't0={(ns - around) / 1e6}&t1={(ns + around) / 1e6}'")
    shown.settle()


def ends_of(nodes: NodeColumns) -> list[int]:
    return list(accumulate(gap + ns for gap, ns in zip(nodes.gap, nodes.ns, strict=True)))


def compute_colour(shown: Page, ns: float, number: int = 0) -> str:
    """What a timeline has at a moment on its compute row, above where names stand."""
    return colour_at(shown, point_at(shown, ns, number), row_middle(shown, "compute", number) - 13, number)


def test_colours_say_what_ran(browser, files):
    """Every wide span has the colour of its family, and an exposed wait the alarm's."""
    before, _ = sides(TINY)
    shown = browser.open(files.both)
    nodes = before.nodes
    ends = ends_of(nodes)
    longest = sorted(range(len(ends)), key=lambda node: -nodes.ns[node])
    for family in ("matmul", "pointwise", "other", "wait"):
        for node in [n for n in longest if FAMILIES[nodes.family[n]] == family][:5]:
            moment = ends[node] - nodes.ns[node] * 0.45
            zoom_to(shown, moment)
            expected = style_colour(shown, "exposed" if family == "wait" else family)
            assert compute_colour(shown, moment) == expected, nodes.name[node]


def test_before_and_after_have_one_axis(browser, files):
    """A moment is at the same place in both; the pointer over one graph is marked in the other."""
    before, after = sides(TINY)
    shown = browser.open(files.both)
    first, second = track_box(shown, 0), track_box(shown, 1)
    assert (first[0], first[2]) == (second[0], second[2])
    for number, side_ in enumerate((before, after)):
        stall = max(side_.nodes.stall, key=side_.nodes.stall.get)
        moment = ends_of(side_.nodes)[stall] - side_.nodes.stall[stall] / 2
        zoom_to(shown, moment)
        assert compute_colour(shown, moment, number) == style_colour(shown, "exposed")
    shown.key("0")
    x, y = first[0] + first[2] * 0.31, row_middle(shown, "live memory", 1)
    plain = {colour_at(shown, x + k, y - 25, 1) for k in range(-2, 3)}
    shown.move(x, row_middle(shown, "compute", 0))
    assert style_colour(shown, "muted") in {colour_at(shown, x + k, y - 25, 1) for k in range(-2, 3)} - plain


def test_bytes_are_in_flight_until_the_wait_is_over(browser, files):
    _, after = sides(TINY)
    nodes, ends = after.nodes, ends_of(after.nodes)
    launch = max((row.node for row in after.collectives), key=lambda node: nodes.in_flight[node])
    wait = next(row.waits[0] for row in after.collectives if row.node == launch)
    idle = next(n for n in range(wait + 1, len(ends)) if nodes.ns[n] > 500 and not nodes.in_flight[n - 1])
    shown = browser.open(files.both)
    above_the_ground = row_middle(shown, "in flight", 1) + 17
    looks = []
    for moment in (ends[wait] - nodes.stall[wait] / 2, ends[idle] - nodes.ns[idle] / 2):
        zoom_to(shown, moment, 50)
        looks.append(colour_at(shown, point_at(shown, moment, 1), above_the_ground, 1))
    assert looks[0] != looks[1] == style_colour(shown, "grid")


@pytest.mark.parametrize("width", [1000, 1600, 3840])
@pytest.mark.sampled(1)
def test_no_two_texts_of_a_picture_overlap(browser, files, width):
    """At the whole step, at its end, at a selection near the edge, and with the pointer on the axis."""
    _, after = sides(TINY)
    last = after.collectives[-1]
    name = after.nodes.name[last.node]
    end = after.step_ns / 1e6
    views = (
        "",
        f"#t0={end - 0.02}&t1={end + 0.02}",
        f"#select={name}&side=after",
        f"#t0={end - 0.3}&t1={end + 0.01}&select={name}",
    )
    for fragment in views:
        with recording(browser):
            shown = browser.open(files.both, fragment, size=(width, 1000))
        left, top, box_width, _ = track_box(shown)
        for place in (0.01, 0.5, 0.99):
            shown.move(left + box_width * place, top + 30)
            canvases = written(shown)
            assert sum(map(len, canvases)) > 8
            assert [pair for texts in canvases for pair in overlaps(texts)] == [], (fragment, place)


def test_no_text_of_a_picture_is_cut_off_on_a_telephone(browser, tmp_path):
    before, after = sides(TINY)
    path = tmp_path / "narrow.html"
    for longer in (2, 3, 5):  # the step takes less and less of the picture
        path.write_text(page([replace(before, step_ns=longer * after.step_ns), after]))
        with recording(browser):
            shown = browser.open(path, size=(390, 900))
        assert [text for texts in written(shown) for text, left, *_ in texts if left < 0] == []


def overlaps(texts: list[list]) -> list[tuple[str, str]]:
    return [
        (one, other)
        for (one, left, top, right, bottom), (other, *box) in combinations(texts, 2)
        if left < box[2] and box[0] < right and top < box[3] and box[1] < bottom
    ]


def test_other_orders_and_widths(browser, tmp_path):
    """Waits at the end of the step: nothing stalls before the tail; and no sideways scrolling when narrow."""
    index, ident, prediction = predicted(TINY)
    late = side(index, ident, in_order(index, prediction, range(len(index))), "graph")
    path = tmp_path / "late.html"
    path.write_text(page([late]))
    for width in (3840, 2300, 1600, 1000, 480):
        shown = browser.open(path, size=(width, 900), dark=width == 1000)
        assert shown.data("errors") is None
        assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark(browser, files):
    page_colour = "getComputedStyle(document.body).backgroundColor"
    picture = "document.querySelector('#tracks canvas').toDataURL()"
    looks = []
    for dark in (False, True):
        shown = browser.open(files.single, dark=dark)
        looks.append((shown.evaluate(page_colour), shown.evaluate(picture)))
    assert looks[0][0] != looks[1][0]
    assert looks[0][1] != looks[1][1]
    shown.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    shown.settle()
    assert shown.evaluate(picture) == looks[0][1]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.html"
    path.write_text(page(sides(LARGE)))
    return path


@pytest.mark.parametrize("size", [(1600, 1000), (3840, 2100)])
@pytest.mark.full
def test_large_graphs_are_drawn_quickly(browser, large, size):
    """Two graphs of 9,000 nodes each: no picture takes more than half a second, on a machine without a GPU."""
    shown = browser.open(large, size=size)
    assert shown.data("errors") is None
    assert min(map(int, (shown.data("nodes") or "").split(","))) > 8_500
    for key in ("+", "+", "ArrowRight", "-", "0", "n", "+", "0"):
        shown.key(key)
    assert int(shown.data("draws") or 0) >= 8
    assert float(shown.data("drawMs") or "inf") < 500


def made_side(make: IndexMaker) -> Side:
    index = make.index()
    costs = make.costs(launch_ns=5)
    prediction = Prediction(costs, Simulator(index, costs).run(), live_bytes(index), lower_bound(index, costs))
    return side(index, Identification((), (), None), prediction, "graph")


@pytest.mark.full
def test_graphs_without_collectives_memory_or_nodes(browser, tmp_path):
    busy = IndexMaker()
    busy.op(9_000, busy.op(5_000, busy.input()))
    for number, make in enumerate((busy, IndexMaker())):
        path = tmp_path / f"{number}.html"
        path.write_text(page([made_side(make)]))
        shown = browser.open(path, dark=bool(number))
        for key in ("n", "p", "+", "0"):
            shown.key(key)
        left, top, width, height = track_box(shown)
        shown.move(left + width / 2, top + height / 2)
        shown.click(left + width / 2, top + height / 2)
        assert shown.data("errors") is None
        assert shown.data("nodes") == ("3", "0")[number]
        assert "no communication" in text_of(shown, "figcaption")
        assert text_of(shown, "#collectives-table") == "No collectives."
        assert not shown.evaluate("document.getElementById('stalls').checkVisibility()")
        assert "NaN" not in text_of(shown, "body") and "undefined" not in text_of(shown, "body")


@pytest.mark.parametrize("step_ms", [3.1, 149, 199.9, 399, 498])
def test_an_axis_has_two_labels_on_a_telephone(browser, tmp_path, step_ms):
    """One alone does not tell how long a stretch is."""
    path = tmp_path / "narrow.html"
    path.write_text(page([replace(sides(TINY)[0], step_ns=round(step_ms * 1e6))]))
    with recording(browser):
        shown = browser.open(path, size=(400, 900))
    axis = next(texts for texts in written(shown) if texts)
    assert len(axis) >= 2 and overlaps(axis) == []
