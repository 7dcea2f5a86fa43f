"""A headless Chromium for tests, driven through the DevTools protocol on two pipes. No network, no packages.

    with Browser() as browser:
        page = browser.open(path)
        page.evaluate("document.title")
        page.wheel(300, 200, -400)

Limits: what the tests of the report page need, no more; every wait has an end.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--force-device-scale-factor=1"),
)
#: Chromium reads commands from descriptor 3 and answers on 4: the pipes are put there on the way.
_WIRING = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE_SECONDS = 180.0


def find_browser() -> str | None:
    """The first Chromium on PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One process; pages are opened one after the other, in the same tab."""

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        wiring = [sys.executable, "-c", _WIRING, str(theirs_in), str(theirs_out)]
        command = [find_browser() or "chromium", *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([*wiring, *command], pass_fds=(theirs_in, theirs_out), **silent)
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._left = b""
        self._events: list[str] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        tab = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        self.send("Page.enable", self.session)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=PATIENCE_SECONDS)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def navigate(self, session: str, url: str) -> None:
        """Load an address; returns when the page has been loaded."""
        self._events.clear()
        self.send("Page.navigate", session, url=url)
        while "Page.loadEventFired" not in self._events:
            self._read()

    def _read(self) -> dict[str, Any]:
        """The next message; names of events are kept until the next page is loaded."""
        message: dict[str, Any] = json.loads(self._next())
        if "method" in message:
            self._events.append(message["method"])
        return message

    def _next(self) -> bytes:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._in, 1 << 16) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return message

    def open(self, path: Path, fragment: str = "", *, size: tuple[int, int] = (1400, 1100), dark: bool = False) -> Page:
        """Load a file; returns once its script is done and a first picture was drawn."""
        page = Page(self, self.session)
        self.navigate(self.session, "about:blank")
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        page.send("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        self.navigate(self.session, path.resolve().as_uri() + fragment)
        page.wait_for("document.documentElement.dataset.draws > 0 || document.documentElement.dataset.errors")
        return page


class Page:
    """A loaded page. Coordinates are CSS pixels of the window."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self.session = session

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until the expression is true; looks again after every picture."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"never true: {expression}"
            self.settle()

    def settle(self) -> None:
        """Until two more pictures have been drawn, so that what was asked for is on the page."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def data(self, key: str) -> str | None:
        """What the page recorded about itself."""
        value: str | None = self.evaluate(f"document.documentElement.dataset[{json.dumps(key)}] ?? null")
        return value

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element, scrolled into sight."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{found}.scrollIntoView({{block: 'nearest', behavior: 'instant'}})")
        self.settle()
        left, top, width, height = self.evaluate(
            f"(({{x, y, width, height}}) => [x, y, width, height])({found}.getBoundingClientRect())"
        )
        return left, top, width, height

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x: float, y: float) -> None:
        self._mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x: float, y: float, count: int = 1) -> None:
        self._mouse("mouseMoved", x, y)
        for clicks in range(1, count + 1):
            self._mouse("mousePressed", x, y, button="left", clickCount=clicks)
            self._mouse("mouseReleased", x, y, button="left", clickCount=clicks)
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float], *, shift: bool = False) -> None:
        held = {"button": "left", "buttons": 1, "modifiers": 8 if shift else 0}
        self._mouse("mousePressed", *start, clickCount=1, **held)
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        for point in (middle, end):
            self._mouse("mouseMoved", *point, **held)
        self._mouse("mouseReleased", *end, clickCount=1, **held)
        self.settle()

    def wheel(self, x: float, y: float, down: float) -> None:
        self._mouse("mouseWheel", x, y, deltaX=0, deltaY=down)
        self.settle()

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)
        self.settle()

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
