"""The page of ``simulate --html``: what wheel, drag, click, search and keys do."""

from __future__ import annotations

import pytest

from tests.page_driver import TINY, needs_browser, point_at, row_middle, span_of, text_of, track_box
from tests.report_pages import sides

pytestmark = needs_browser


def test_wheel_zooms_around_the_pointer(browser, files):
    shown = browser.open(files.both)
    left, top, width, _ = track_box(shown)
    t0, t1 = span_of(shown)
    at = t0 + (t1 - t0) / 4
    shown.wheel(left + width / 4, top + 40, -600)
    z0, z1 = span_of(shown)
    assert z1 - z0 < (t1 - t0) / 2
    assert z0 + (z1 - z0) / 4 == pytest.approx(at, rel=0.01)
    shown.wheel(left + width / 4, top + 40, 200)
    assert z1 - z0 < span_of(shown)[1] - span_of(shown)[0] < t1 - t0
    shown.wait_for("location.hash.includes('t0=')")


def test_wheel_scrolls_the_page_where_nothing_is_left_to_zoom(browser, files):
    shown = browser.open(files.both)
    left, top, width, _ = track_box(shown)
    whole = span_of(shown)
    shown.wheel(left + width / 2, top + 40, 300)
    shown.wait_for("scrollY > 0")
    assert span_of(shown) == whole


def test_drag_zooms_to_a_stretch_and_shift_drag_moves(browser, files):
    shown = browser.open(files.both)
    left, top, width, _ = track_box(shown)
    total = span_of(shown)[1]
    shown.drag((left + width * 0.2, top + 40), (left + width * 0.4, top + 40))
    t0, t1 = span_of(shown)
    assert (t0, t1) == (pytest.approx(total * 0.2, rel=0.02), pytest.approx(total * 0.4, rel=0.02))
    shown.drag((left + width * 0.5, top + 40), (left + width * 0.75, top + 40), shift=True)
    assert span_of(shown)[0] == pytest.approx(t0 - (t1 - t0) / 4, rel=0.02)
    assert span_of(shown)[1] - span_of(shown)[0] == pytest.approx(t1 - t0, rel=1e-6)
    assert shown.data("selected") in (None, "")


@pytest.mark.parametrize("size", [(1400, 1100), (3840, 2100)])
@pytest.mark.sampled(1)
def test_overview_moves_the_view(browser, files, size):
    shown = browser.open(files.both, "#t0=0&t1=0.2", size=size)
    left, top, width, height = shown.box("#overview canvas")
    total = max(side.step_ns for side in sides(TINY))
    shown.click(left + width / 2, top + height / 2)
    t0, t1 = span_of(shown)
    assert (t0 + t1) / 2 == pytest.approx(total / 2, rel=0.02)
    assert t1 - t0 == pytest.approx(200_000)


@pytest.mark.parametrize("size", [(1400, 1100), (3840, 2100)])
@pytest.mark.sampled(1)
def test_click_selects_a_collective_in_its_lane(browser, files, size):
    _, after = sides(TINY)
    row = max(after.collectives, key=lambda each: each.end - each.start)
    middle = (row.start + row.end) / 2
    shown = browser.open(files.both, f"#t0={(row.start - 5e4) / 1e6}&t1={(row.end + 5e4) / 1e6}", size=size)
    group = next(each["description"] for each in after.groups if each["name"] == row.group)
    blank = shown.evaluate("document.querySelectorAll('#tracks canvas')[1].toDataURL()")
    x = point_at(shown, middle, 1)
    shown.click(x, row_middle(shown, str(group), 1))
    name = after.nodes.name[row.node]
    assert shown.data("selected") == name
    facts = text_of(shown, "#details")
    assert after.nodes.name[row.waits[0]] in facts
    assert row.how in facts
    assert shown.evaluate("document.querySelectorAll('#tracks canvas')[1].toDataURL()") != blank
    tip = text_of(shown, ".tooltip")
    assert name in tip
    shown.wait_for(f"location.hash.includes('select={name}')")
    shown.key("Escape")
    assert shown.data("selected") == ""
    assert text_of(shown, "#details") == ""


def test_double_click_zooms_and_a_click_beside_deselects(browser, files):
    before, _ = sides(TINY)
    row = max(before.collectives, key=lambda each: each.exposed)
    shown = browser.open(files.both)
    stalled = row.waits[0]
    end = sum(before.nodes.gap[: stalled + 1]) + sum(before.nodes.ns[: stalled + 1])
    x, y = point_at(shown, end - before.nodes.stall[stalled] / 2), row_middle(shown, "compute")
    shown.click(x, y, count=2)
    assert shown.data("selected") == before.nodes.name[stalled]
    t0, t1 = span_of(shown)
    assert t0 < row.start < row.end < t1 < before.step_ns
    shown.click(x, row_middle(shown, "compute") - 25)  # the strip of the markers
    assert shown.data("selected") == ""


def test_search(browser, files):
    _, after = sides(TINY)
    name = after.nodes.name[after.collectives[-1].node]
    shown = browser.open(files.both)
    shown.key("/")
    assert shown.evaluate("document.activeElement.type") == "search"
    shown.type(name[:-1])
    assert shown.evaluate("document.querySelectorAll('#found [role=option]').length") >= 1
    shown.type(name[-1])
    shown.key("Enter")
    assert shown.data("selected") == name
    assert span_of(shown) != (0, max(side.step_ns for side in sides(TINY)))
    assert shown.evaluate("document.getElementById('found').hidden")
    shown.key("/")
    shown.type("no such node")
    assert "no node has this" in text_of(shown, "#found")


def test_keys(browser, files):
    shown = browser.open(files.both)
    whole = span_of(shown)
    shown.key("+")
    shown.key("+")
    t0, t1 = span_of(shown)
    assert t1 - t0 == pytest.approx(0.36 * (whole[1] - whole[0]))
    shown.key("ArrowRight")
    assert span_of(shown)[0] == pytest.approx(t0 + 0.2 * (t1 - t0))
    shown.key("ArrowLeft")
    assert span_of(shown) == (pytest.approx(t0), pytest.approx(t1))
    shown.key("-")
    assert span_of(shown)[1] - span_of(shown)[0] == pytest.approx(0.6 * (whole[1] - whole[0]))
    shown.key("0")
    assert span_of(shown) == whole


def test_keys_go_through_exposed_waits(browser, files):
    _, after = sides(TINY)
    stalls = [after.nodes.name[node] for node in sorted(after.nodes.stall)]
    shown = browser.open(files.both)
    for name in (stalls[0], stalls[1]):
        shown.key("n")
        assert shown.data("selected") == name
    shown.key("p")
    assert shown.data("selected") == stalls[0]


def test_legend_hides_a_kind(browser, files):
    shown = browser.open(files.both)
    picture = "document.querySelector('#tracks canvas').toDataURL()"
    button = "[...document.querySelectorAll('#legend button')].find((each) => each.textContent === 'matmul')"
    full = shown.evaluate(picture)
    shown.evaluate(f"{button}.click()")
    shown.settle()
    assert shown.evaluate(f"{button}.ariaPressed") == "false"
    assert shown.evaluate(picture) != full
    shown.evaluate(f"{button}.click()")
    shown.settle()
    assert shown.evaluate(picture) == full
