"""One rank of a replay on gloo: runs both programs and compares them; started by :mod:`commcc.replay.ranks.launch`.

    python -c 'from commcc.replay.ranks.worker import main; main()' FOLDER

FOLDER holds ``before.fx.txt``, ``after.fx.txt`` and ``settings.json``; the rank writes ``rankN.json``: its
comparison, or one line that says what went wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from commcc.base.errors import CommccError
from commcc.graph.ops.allowed import imported_ops
from commcc.replay.numeric.compare import compare_rank
from commcc.replay.numeric.pair import Settings, make_pair
from commcc.replay.place import CpuPlace, DeviceError
from commcc.replay.rank_run import RankRun
from commcc.replay.ranks.failing import out_of_memory
from commcc.replay.ranks.team import join
from commcc.replay.ranks.watch import Watch, write_json
from commcc.replay.virtual import StepError
from commcc.serialization import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.base.terms import Json

S = TypeVar("S", bound=Settings)

EXIT_FAILED = 3


def main() -> None:
    """Run the rank that the environment names, and exit with 0 when there is a comparison."""
    serve(_run, Settings)


def serve(work: Callable[[Path, int, S, Watch], dict[str, Json]], kind: type[S]) -> None:
    """Do one rank's work and write down what it found or why it failed; kind: of the settings in the folder."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    file = folder / f"rank{rank}.json"
    settings = read_settings((folder / "settings.json").read_text(encoding="utf-8"), kind)
    torch.set_num_threads(1)
    # The main thread may be inside a collective, where Python's own handler would not be heard.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    watch = Watch(settings.timeout, file)
    try:
        found = work(folder, rank, settings, watch)
    except Exception as error:
        write_json(file, watch.words(**error_words(error)))
        sys.exit(EXIT_FAILED)
    write_json(file, found)
    watch.close()


def error_words(error: Exception) -> dict[str, Json]:
    """What there is to say about an error that ended a rank's work."""
    if isinstance(error, DeviceError):
        return {"refused": error.what, "hint": error.hint}
    text = error.render() if isinstance(error, CommccError) else f"{type(error).__name__}: {error}"
    node = error.node if isinstance(error, StepError) else None
    return {"error": " ".join(text.split())[:500], "node": node, "memory": out_of_memory(error)}


def _run(folder: Path, rank: int, settings: Settings, watch: Watch) -> dict[str, Json]:
    """Both runs and the comparison."""
    imported_ops(settings.imports)  # before the files that name their ops are read
    programs = [load(folder / f"{name}.fx.txt") for name in ("before", "after")]
    pair = make_pair(programs[0], programs[1], settings)
    made = pair.maker.of_rank(rank)
    team = join(pair.layout, rank, CpuPlace(), settings.timeout, watch)
    results = []
    for name, prepared in (("BEFORE", pair.old), ("AFTER", pair.new)):
        watch.program = name
        run = RankRun(prepared, rank, settings.seed, watch.progress)
        results.append(run(pair.inputs(of=prepared, made=made)))
        watch.stage(f"waiting for the other ranks to end {name}")
        team.barrier()
    gaps = compare_rank(results[0], results[1], rank)
    team.leave()
    return asdict(gaps)


def settings_text(settings: Settings) -> str:
    """Settings as the worker reads them."""
    return json.dumps({**asdict(settings), "groups": dict(settings.groups), "hints": dict(settings.hints)})


def read_settings(text: str, kind: type[S]) -> S:
    """What :func:`settings_text` wrote, of settings of this kind."""
    data: dict[str, Any] = json.loads(text)
    groups = {name: tuple(map(tuple, parts)) for name, parts in data.pop("groups").items()}
    return kind(**{**data, "imports": tuple(data["imports"])}, groups=groups)
