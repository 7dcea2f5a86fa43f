"""Whole commands killed at random moments, and two at once on one output, as processes of their own.

told = kills(folder, seed=1, count=40)      # Told(killed=31, finished=9, wrong=[])
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.campaign_files import FSDP, TOKENS

if TYPE_CHECKING:
    from pathlib import Path

_COMMAND = (sys.executable, "-c", "from commcc.cli.main import entry; entry()")
_EARLIER = b"what was there before"


@dataclass
class Told:
    """left: temporary files that a kill left behind. wrong: outputs that are neither old nor new, changed inputs."""

    killed: int = 0
    finished: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)

    def figures(self) -> str:
        return (
            f"processes: {self.killed:,} killed, {self.finished:,} finished, {self.left:,} temporary files left; "
            f"wrong: {len(self.wrong)} {self.wrong[:3]}"
        )


def kills(folder: Path, seed: int, count: int) -> Told:
    """Start ``count`` commands that write a file, and kill each after a random part of the time that one takes."""
    chance = random.Random(seed)
    told = Told()
    source, target = folder / "in.fx.txt", folder / "out.fx.txt"
    source.write_text(FSDP)
    started = time.monotonic()
    _start(source, target).wait()
    took, new = time.monotonic() - started, target.read_bytes()
    for number in range(count):
        target.write_bytes(_EARLIER)
        running = _start(source, target)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(timeout=took * chance.uniform(0.3, 1.1))
        running.send_signal(signal.SIGKILL)
        code = running.wait()
        told.killed += code == -signal.SIGKILL
        told.finished += code == 0
        content = target.read_bytes()
        if content not in ((new,) if code == 0 else (_EARLIER, new)) or source.read_text() != FSDP:
            told.wrong.append(f"kill {number}: {len(content)} bytes")
        told.left += _cleared(folder)
    return told


def two_at_once(folder: Path, count: int) -> Told:
    """Two commands write one file from different graphs; it is the result of one of them."""
    told = Told()
    sources = [folder / "one.fx.txt", folder / "two.fx.txt"]
    results = []
    for source, text in zip(sources, (FSDP, TOKENS), strict=True):
        source.write_text(text)
        _start(source, folder / "alone.fx.txt").wait()
        results.append((folder / "alone.fx.txt").read_bytes())
    target = folder / "both.fx.txt"
    for number in range(count):
        codes = [each.wait() for each in [_start(source, target) for source in sources]]
        told.finished += codes.count(0)
        if codes != [0, 0] or target.read_bytes() not in results:
            told.wrong.append(f"two at once {number}: exit codes {codes}")
        told.left += _cleared(folder)
    return told


def _start(source: Path, target: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*_COMMAND, "convert", str(source), "-o", str(target), "-q"], stdout=subprocess.DEVNULL)


def _cleared(folder: Path) -> int:
    left = list(folder.glob(".commcc-*"))
    for path in left:
        path.unlink()
    return len(left)
