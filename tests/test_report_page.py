"""The page of ``simulate --html`` in a real browser: what it shows, what its address does, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile

import pytest

from tests.browser import find_browser
from tests.page_driver import TINY, needs_browser, span_of, text_of, track_box
from tests.report_pages import HARMFUL, harmful_side, sides

pytestmark = needs_browser


def test_counts_are_those_of_the_model(browser, files):
    shown = browser.open(files.both)
    before, after = sides(TINY)
    assert shown.data("errors") is None
    assert shown.data("ready") == "yes"
    assert shown.data("nodes") == f"{len(before.nodes.name)},{len(after.nodes.name)}"
    assert shown.data("collectives") == f"{len(before.collectives)},{len(after.collectives)}"
    times = re.findall(r"([\d.,]+) (.)s", text_of(shown, ".card[data-key=step_ms]"))
    step, earlier, _compute = (float(number) * {"m": 1e6, "\u00b5": 1e3}[unit] for number, unit in times)
    assert (step, earlier) == (pytest.approx(after.step_ns, rel=1e-3), pytest.approx(before.step_ns, rel=1e-3))
    assert f"{len(after.collectives)} of {len(after.collectives)} collectives" in text_of(shown, "#collectives-tools")
    assert str(after.metrics["nodes"]) in text_of(shown, "#figures-table").replace(",", "")
    assert text_of(shown, "#options-table").split() == ["option", "value", "a.b", "1,", "none"]
    assert span_of(shown) == (0, max(before.step_ns, after.step_ns))


def test_one_graph(browser, files):
    shown = browser.open(files.single)
    assert shown.data("errors") is None
    assert shown.evaluate("document.querySelectorAll('#tracks figure').length") == 1
    assert shown.evaluate("document.querySelectorAll('.badge, .card-change').length") == 0
    assert "change" not in text_of(shown, "#figures-table")
    worst = max(sides(TINY)[0].collectives, key=lambda row: row.exposed)
    assert sides(TINY)[0].nodes.name[worst.node] in text_of(shown, "#worst-table")


def test_dumped_page_has_no_errors(files):
    """Chromium's own way to load a page and print it, without our driver."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom")
        command = [find_browser(), *flags, f"--user-data-dir={profile}", files.both.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=dict(os.environ))
    head = done.stdout[: done.stdout.index("<head")]
    assert 'data-ready="yes"' in head
    assert "data-errors" not in head


def test_address_sets_the_view(browser, files):
    _, after = sides(TINY)
    name = after.nodes.name[after.collectives[5].node]
    shown = browser.open(files.both, f"#t0=0.25&t1=0.75&select={name}&side=after")
    assert span_of(shown) == (250_000, 750_000)
    assert shown.data("selected") == name
    assert text_of(shown, "#details h3") == name
    assert text_of(shown, "#details .chip") == "after"
    alone = browser.open(files.both, f"#select={name}")
    row = after.collectives[5]
    t0, t1 = span_of(alone)
    assert t0 <= row.queued <= row.end <= t1 < after.step_ns


@pytest.mark.parametrize(
    "fragment", ["#t0=5&t1=1", "#t0=x&t1=y", "#select=nobody", "#figures", "#t0=-5&t1=1e9", "#%ff"]
)
@pytest.mark.sampled(2)
def test_nonsense_in_the_address(browser, files, fragment):
    shown = browser.open(files.both, fragment)
    assert shown.data("errors") is None
    assert span_of(shown) == (0, max(side.step_ns for side in sides(TINY)))


def test_worst_exposed_lead_to_the_timeline(browser, files):
    _, after = sides(TINY)
    worst = sorted(after.collectives, key=lambda row: -row.exposed)[:3]
    names = [after.nodes.name[row.node] for row in worst]
    shown = browser.open(files.both)
    assert shown.evaluate("document.querySelectorAll('.worst tbody tr').length") == 5
    assert "nothing would" in text_of(shown, ".worst")
    assert "a plain text" in text_of(shown, ".worst")
    row = "document.querySelectorAll('.worst tbody tr')[0]"
    links = shown.evaluate(f"[...{row}.querySelectorAll('button.link')].map((each) => each.textContent)")
    assert links == [names[0], names[1], names[2]]
    shown.evaluate(f"{row}.querySelector('button.link').click()")
    shown.settle()
    assert shown.data("selected") == names[0]
    t0, t1 = span_of(shown)
    assert t0 <= worst[0].start <= worst[0].end <= t1 < after.step_ns


def test_collectives_sort_and_filter(browser, files):
    _, after = sides(TINY)
    shown = browser.open(files.both)
    head = (
        "[...document.querySelectorAll('#collectives-table th button')].find((each) => each.textContent === 'exposed')"
    )
    shown.evaluate(f"{head}.click()")
    first = text_of(shown, "#collectives-table tbody th")
    assert first == after.nodes.name[max(after.collectives, key=lambda row: row.exposed).node]
    assert shown.evaluate(f"{head}.closest('th').ariaSort") == "descending"
    shown.evaluate("document.querySelector('#collectives-tools input').focus()")
    shown.type("reduce-scatter fsdp")
    wanted = [row for row in after.collectives if row.kind == "reduce_scatter" and row.role == "fsdp"]
    assert text_of(shown, "#collectives-tools .range").startswith(f"{len(wanted)} of ")
    shown.evaluate("document.querySelector('#collectives-tools button').click()")
    before = [row for row in sides(TINY)[0].collectives if row.kind == "reduce_scatter" and row.role == "fsdp"]
    assert text_of(shown, "#collectives-tools .range").startswith(f"{len(before)} of ")


@pytest.mark.parametrize("size", [(1400, 900), (420, 800)])
@pytest.mark.sampled(1)
def test_details_of_a_selection_are_in_sight_beside_it(browser, files, size):
    shown = browser.open(files.both, size=size)
    left, top, width, _ = track_box(shown, 1)
    shown.evaluate(f"window.scrollBy(0, {top + 60 - size[1]})")  # the click is at the lower edge of the window
    shown.settle()
    top = shown.evaluate("document.querySelectorAll('#tracks canvas')[1].getBoundingClientRect().top")
    assert top + 30 < size[1]
    shown.click(left + width / 2, top + 30)
    assert shown.data("selected")
    # The rows are scrolled up from under the panel, which appears over them.
    shown.wait_for(
        """(() => {
            const panel = document.querySelector('#details').getBoundingClientRect();
            const rows = document.querySelectorAll('#tracks canvas')[1].getBoundingClientRect();
            return panel.height > 60 && panel.bottom <= innerHeight && rows.top > 0 && rows.top + 90 <= panel.top;
        })()"""
    )
    assert shown.data("errors") is None


def test_selection_marks_the_other_graph(browser, files):
    before, after = sides(TINY)
    merged = next(row for row in after.collectives if len(row.merged) > 1)
    shown = browser.open(files.both, f"#select={after.nodes.name[merged.node]}&side=after")
    listed = text_of(shown, "#details .elsewhere")
    assert listed.startswith("before")
    assert merged.merged[0] in listed
    shown.evaluate("document.querySelector('#details .elsewhere button').click()")
    shown.settle()
    assert shown.data("selected") == merged.merged[0]
    assert after.nodes.name[merged.node] in text_of(shown, "#details .elsewhere")
    assert merged.merged[0] in before.nodes.name


def test_harmful_names_do_nothing(browser, files):
    shown = browser.open(files.harmful)
    made = harmful_side()
    assert shown.data("errors") is None
    assert text_of(shown, "h1") == HARMFUL[0]
    for row in made.collectives[: len(HARMFUL)]:
        name = made.nodes.name[row.node]
        shown.evaluate(f"location.hash = new URLSearchParams({{select: {json.dumps(name)}}})")
        if "\ud800" not in name:  # half a character cannot stand in an address
            shown.wait_for(f"document.documentElement.dataset.selected === {json.dumps(name)}")
    shown.key("/")
    shown.type("onerror")
    left, top, width, _ = track_box(shown)
    for part in (0.2, 0.5, 0.8):
        shown.move(left + part * width, top + 60)
    assert shown.evaluate("window.harmed") is None
    assert shown.evaluate("document.images.length + document.querySelectorAll('script').length") == 2
    assert HARMFUL[0] in text_of(shown, "#warnings-list")


def test_policy_stops_what_got_into_the_markup(browser, files):
    shown = browser.open(files.single)
    shown.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.harmed=1\">')")
    shown.wait_for("document.documentElement.dataset.errors")
    assert "blocked" in (shown.data("errors") or "")
    assert shown.evaluate("window.harmed") is None
