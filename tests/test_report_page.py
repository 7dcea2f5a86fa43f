"""The page of ``simulate --html`` in a real browser: what it shows, and what wheel, drag, click and keys do."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest

from commcc.report.simulation_data import FAMILIES, side
from tests.browser import NAMES, Browser, Page, find_browser
from tests.report_pages import HARMFUL, harmful_side, in_order, page, predicted, sides

if TYPE_CHECKING:
    from pathlib import Path

if find_browser() is None:
    pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is on PATH", allow_module_level=True)

TINY = "tiny_llama_fsdp2_tp2_bw"
LARGE = "llama3_8b_fsdp64_bw"


@pytest.fixture(scope="module")
def browser():
    with Browser() as running:
        yield running


@dataclass(frozen=True)
class Files:
    """The pages under test."""

    both: Path
    single: Path
    harmful: Path
    large: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    before, after = sides(TINY)
    worst = sorted(after.collectives, key=lambda row: -row.exposed)[:3]
    names = [after.nodes.name[row.node] for row in worst]
    reasons = [{"kind": "dependence", "text": f"must follow {names[1]}", "path": [names[2], "nowhere"]}]
    explained = [{"name": name, "exposed_ms": 1.5, "total_ms": 2.0, "reasons": reasons} for name in names]
    explained += [{}, {"name": "nowhere", "knobs": [{"text": "nothing would"}], "reasons": ["a plain text"]}]
    texts = {
        "both": page([before, after], explanations=explained, options={"a": {"b": [1, None]}}),
        "single": page([before]),
        "harmful": page(
            [harmful_side(), harmful_side(label=HARMFUL[0])],
            title=HARMFUL[0],
            options={HARMFUL[0]: HARMFUL[0]},
            explanations=[
                {"name": HARMFUL[0], "kind": HARMFUL[0], "reasons": [{"kind": HARMFUL[0], "text": HARMFUL[0]}]}
            ],
        ),
        "large": page(sides(LARGE)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return Files(**{name: folder / f"{name}.html" for name in texts})


def span_of(shown: Page) -> tuple[float, float]:
    return float(shown.data("t0") or "nan"), float(shown.data("t1") or "nan")


def track_box(shown: Page, number: int = 0) -> tuple[float, float, float, float]:
    return shown.box(f"#tracks figure:nth-of-type({number + 1}) canvas")


def row_middle(shown: Page, label: str, number: int = 0) -> float:
    """The middle of a row of a timeline, in pixels of the window."""
    found = json.dumps([number, label])
    return float(
        shown.evaluate(
            f"""(([number, label]) => {{
                const figure = document.querySelectorAll("#tracks figure")[number];
                const row = [...figure.querySelectorAll(".row-label")].find((each) => each.textContent.includes(label));
                const box = row.getBoundingClientRect();
                return box.top + box.height / 2;
            }})({found})"""
        )
    )


def point_at(shown: Page, ns: float, number: int = 0) -> float:
    """Where a moment is, in pixels of the window."""
    left, _, width, _ = track_box(shown, number)
    t0, t1 = span_of(shown)
    return left + (ns - t0) / (t1 - t0) * width


def text_of(shown: Page, selector: str) -> str:
    return str(shown.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")).replace("\u00a0", " ")


def test_counts_are_those_of_the_model(browser, files):
    shown = browser.open(files.both)
    before, after = sides(TINY)
    assert shown.data("errors") is None
    assert shown.data("ready") == "yes"
    assert shown.data("nodes") == f"{len(before.nodes.name)},{len(after.nodes.name)}"
    assert shown.data("collectives") == f"{len(before.collectives)},{len(after.collectives)}"
    card = text_of(shown, ".card[data-key=step_ms]")
    assert f"{after.step_ns / 1e6:.3f} ms" in card
    assert f"before {before.step_ns / 1e6:.3f} ms" in card
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
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom")
        command = [find_browser(), *flags, f"--user-data-dir={profile}", files.both.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=dict(os.environ))
    head = done.stdout[: done.stdout.index("<head")]
    assert 'data-ready="yes"' in head
    assert "data-errors" not in head


def test_colours_say_what_ran(browser, files):
    """The middle of every wide span has the colour of its family, of an exposed wait the alarm's."""
    before, _ = sides(TINY)
    shown = browser.open(files.both)
    colours = shown.evaluate(
        "Object.fromEntries(['matmul', 'pointwise', 'other', 'exposed'].map((name) => [name,"
        " getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()]))"
    )
    nodes = before.nodes
    ends = list(accumulate(gap + ns for gap, ns in zip(nodes.gap, nodes.ns, strict=True)))
    longest = sorted(range(len(ends)), key=lambda node: -nodes.ns[node])
    for family in ("matmul", "pointwise", "other", "wait"):
        for node in [n for n in longest if FAMILIES[nodes.family[n]] == family][:5]:
            colour = colour_of(shown, ends[node] - nodes.ns[node] * 0.45)
            assert colour == colours["exposed" if family == "wait" else family], nodes.name[node]


def colour_of(shown: Page, ns: float) -> str:
    """What the first timeline has at a moment on its compute row, above where names stand."""
    shown.evaluate(f"location.hash = 't0={(ns - 1e3) / 1e6}&t1={(ns + 1e3) / 1e6}'")
    shown.settle()
    return str(
        shown.evaluate(
            """(() => {
                const canvas = document.querySelector("#tracks canvas");
                const [red, green, blue] = canvas.getContext("2d").getImageData(canvas.width / 2, 22, 1, 1).data;
                return "#" + [red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("");
            })()"""
        )
    )


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
def test_nonsense_in_the_address(browser, files, fragment):
    shown = browser.open(files.both, fragment)
    assert shown.data("errors") is None
    assert span_of(shown) == (0, max(side.step_ns for side in sides(TINY)))


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


def test_overview_moves_the_view(browser, files):
    shown = browser.open(files.both, "#t0=0&t1=0.2")
    left, top, width, height = shown.box("#overview canvas")
    total = max(side.step_ns for side in sides(TINY))
    shown.click(left + width / 2, top + height / 2)
    t0, t1 = span_of(shown)
    assert (t0 + t1) / 2 == pytest.approx(total / 2, rel=0.02)
    assert t1 - t0 == pytest.approx(200_000)


def test_click_selects_a_collective_in_its_lane(browser, files):
    _, after = sides(TINY)
    row = max(after.collectives, key=lambda each: each.end - each.start)
    middle = (row.start + row.end) / 2
    shown = browser.open(files.both, f"#t0={(row.start - 5e4) / 1e6}&t1={(row.end + 5e4) / 1e6}")
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
        shown.settle()
        if "\ud800" not in name:  # half a character cannot stand in an address
            assert shown.data("selected") == name
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


def test_other_orders_and_widths(browser, tmp_path):
    """Waits at the end of the step: nothing stalls before the tail; and no sideways scrolling when narrow."""
    index, ident, prediction = predicted(TINY)
    late = side(index, ident, in_order(index, prediction, range(len(index))), "graph")
    path = tmp_path / "late.html"
    path.write_text(page([late]))
    for width in (1600, 1000, 480):
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


def test_large_graphs_are_drawn_quickly(browser, files):
    shown = browser.open(files.large)
    assert shown.data("errors") is None
    for key in ("+", "+", "ArrowRight", "-", "0", "n", "+", "0"):
        shown.key(key)
    assert int(shown.data("draws") or 0) >= 8
    assert float(shown.data("drawMs") or "inf") < 500, "one picture of two graphs of 9k nodes"
