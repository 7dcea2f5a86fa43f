"""The report page in a browser, for tests: pages to open, where things are on them, what their canvases show."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.browser import NAMES, Page, find_browser
from tests.report_pages import HARMFUL, harmful_side, page, sides

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.browser import Browser

TINY = "tiny_llama_fsdp2_tp2_bw"
LARGE = "llama3_8b_fsdp64_bw"
needs_browser = pytest.mark.skipif(find_browser() is None, reason=f"none of {', '.join(NAMES)} is on PATH")


@dataclass(frozen=True)
class Files:
    """The pages under test."""

    both: Path
    single: Path
    harmful: Path


def make_files(folder: Path) -> Files:
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


def colour_at(shown: Page, x: float, y: float, number: int = 0) -> str:
    """The colour of a canvas at a point of the window, as "#rrggbb"."""
    found = json.dumps([number, x, y])
    return str(
        shown.evaluate(
            f"""(([number, x, y]) => {{
                const canvas = document.querySelectorAll("#tracks canvas")[number];
                const box = canvas.getBoundingClientRect();
                const pixels = canvas.width / box.width;
                const place = [(x - box.left) * pixels, (y - box.top) * pixels, 1, 1];
                const [red, green, blue] = canvas.getContext("2d").getImageData(...place).data;
                return "#" + [red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("");
            }})({found})"""
        )
    )


def style_colour(shown: Page, name: str) -> str:
    found = json.dumps(f"--{name}")
    return str(shown.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue({found}).trim()"))


#: Keeps what is written on each canvas since it was last cleared, with the box of each text in pixels.
_RECORDER = """
const { prototype } = CanvasRenderingContext2D;
const { clearRect, fillText } = prototype;
window.written = new Map();
prototype.clearRect = function (...box) {
  window.written.set(this.canvas, []);
  return clearRect.apply(this, box);
};
prototype.fillText = function (text, x, y) {
  const wide = this.measureText(text);
  const unit = this.getTransform().a;
  const left = x - { left: 0, right: wide.width, center: wide.width / 2 }[this.textAlign];
  const box = [left, y - wide.actualBoundingBoxAscent, left + wide.width, y + wide.actualBoundingBoxDescent];
  window.written.get(this.canvas).push([text, ...box.map((part) => part * unit)]);
  return fillText.call(this, text, x, y);
};
"""


@contextmanager
def recording(browser: Browser) -> Iterator[None]:
    """Pages opened meanwhile keep what they write on canvases."""
    number = browser.send("Page.addScriptToEvaluateOnNewDocument", browser.session, source=_RECORDER)["identifier"]
    yield
    browser.send("Page.removeScriptToEvaluateOnNewDocument", browser.session, identifier=number)


def written(shown: Page) -> list[list[list]]:
    """By canvas, in order on the page, its texts: [text, left, top, right, bottom]."""
    texts: list[list[list]] = shown.evaluate(
        "[...document.querySelectorAll('canvas')].map((canvas) => window.written.get(canvas) ?? [])"
    )
    return texts
