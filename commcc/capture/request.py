"""Capture in a process of its own; this side needs no PyTorch.

answer = capture(Request("train.py:build", (("dp", 8), ("tp", 8)), "graphs/"))
answer["files"][0]["file"]            # graphs/build_joint.fx.txt.gz
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commcc.base.errors import InputError, InternalError, OptionError
from commcc.base.files import output_folder

LEVELS = ("aot", "aot-inductor", "post-grad")
GRAPHS = ("joint", "forward", "backward", "step")
#: What attention of PyTorch's own becomes on a GPU.
KERNELS = ("flash", "efficient", "cudnn", "cpu")
#: What FSDP2, tensor and expert parallelism make of meshes has been tried up to here; a fake world has no other limit.
MAX_RANKS = 1 << 20
#: A terminal's Ctrl-C ends the process without a word: the one that started it says what there is to say.
_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from commcc.capture.worker import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Request:
    """What to capture. graphs: those of GRAPHS that are written. inputs: annotations, as ``i64[1,8192]``.
    attention: one of KERNELS; on a device that is the CPU it is that of the CPU. debug: the process prints the
    traceback of an error.
    """

    target: str
    mesh: tuple[tuple[str, int], ...]
    output: str
    level: str = "aot-inductor"
    graphs: tuple[str, ...] = GRAPHS[:3]
    inputs: tuple[str, ...] = ()
    device: str = "cuda:0"
    extension: str = ".fx.txt.gz"
    attention: str = KERNELS[0]
    debug: bool = False


def read_mesh(text: str) -> tuple[tuple[str, int], ...]:
    """``dp=8,tp=8`` as pairs. Raises :class:`OptionError`."""
    axes: list[tuple[str, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,7})\s*", part)
        if match is None or int(match[2]) < 1:
            raise OptionError(f"--mesh: '{part}' is no axis", hint="write NAME=SIZE,..., as in dp=8,tp=8")
        axes.append((match[1], int(match[2])))
    names = [name for name, _ in axes]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise OptionError(f"--mesh: two axes are called '{twice[0]}'")
    ranks = 1
    for _, size in axes:
        ranks *= size
    if ranks > MAX_RANKS:
        raise OptionError(f"--mesh: {ranks:,} ranks are more than {MAX_RANKS:,}")
    return tuple(axes)


def capture(request: Request) -> dict[str, Any]:
    """Run the capture, and return what it wrote. Raises :class:`CommccError`."""
    _check(request)
    # It is made with the first graph, so that what comes to nothing leaves none.
    output_folder(request.output, "choose another with -o")
    with tempfile.TemporaryDirectory(prefix="commcc-capture-") as work:
        ask, answer = Path(work, "request.json"), Path(work, "answer.json")
        ask.write_text(json.dumps(asdict(request)))
        # What the user's function prints is no result of this command.
        command = [sys.executable, "-c", _START, str(ask), str(answer)]
        done = subprocess.run(command, stdout=2, env=_environment(), check=False)
        if not answer.exists():
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            raise InputError(
                f"the process that captures ended with {how}", where=request.target, hint="its output is above"
            )
        told: dict[str, Any] = json.loads(answer.read_text())
    if "bug" in told:
        raise InternalError(f"bug in commcc, please report: {told['bug']}", where=request.target)
    if "error" in told:
        raise InputError(told["error"]["what"], where=told["error"]["where"], hint=told["error"]["hint"])
    if not told["files"]:
        raise InternalError("a capture without files")
    return told


def _environment() -> dict[str, str]:
    """This package for the process that is started, from wherever it was imported here; and no GPU."""
    home = str(Path(__file__).parents[2])
    paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}


def _check(request: Request) -> None:
    place, colon, name = request.target.rpartition(":")
    if not colon or not place or not name:
        raise OptionError(f"'{request.target}' names no function", hint="write FILE.py:FUNCTION or module:FUNCTION")
    if place.endswith(".py") and not Path(place).is_file():
        raise InputError("no such file", where=place)
    if not re.fullmatch(r"(cpu|cuda|xpu|hpu|mtia|xla)(:\d{1,4})?", request.device):
        raise OptionError(f"--device: '{request.device}' is no device", hint="write cpu, cuda:0 or the like")
    for text in request.inputs:
        if not re.fullmatch(r"[a-z]+\d+\[[\d, ]*\]", text):
            raise OptionError(f"--input: '{text}' is no tensor", hint="write a type and sizes, as in i64[1,8192]")
