"""Starts ranks with PyTorch's elastic launcher, waits for them, and says in one line what went wrong.

    gaps = run_pair(pair, before, after, settings)         # one RankGaps for each rank

The ranks are told everything through files in a folder of their own, which goes away with them. A rank that dies
takes the others with it: the launcher ends them. At the deadline every rank ends itself and says what it was at
(:mod:`commcc.replay.ranks.watch`).

With several machines each has a launcher of its own, which knows of its own ranks only.

Limits: starting a rank takes the seconds that importing PyTorch takes.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousTimeoutError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import commcc
from commcc.base.errors import CommccError, OptionError
from commcc.replay.numeric.compare import RankGaps
from commcc.replay.ranks.failing import Evidence, RanksError, explained, kernel_kills
from commcc.replay.ranks.guard import Guard
from commcc.replay.ranks.machines import Machines
from commcc.replay.ranks.watch import Board
from commcc.replay.ranks.worker import settings_text
from commcc.replay.work_folder import work_folder
from commcc.serialization import save

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commcc.graph.program import Program
    from commcc.replay.numeric.pair import Pair, Settings

#: A rank finds modules where this process does; Python itself would look in the current folder first.
_START = "import sys; sys.path[:] = {paths!r}; from {module} import main; main()"
_WORKER = "commcc.replay.ranks.worker"
_LAUNCHER = "torch.distributed.elastic."


def run_pair(pair: Pair, before: Program, after: Program, settings: Settings) -> list[RankGaps]:
    """Both programs on as many gloo ranks as the pair's layout has, and every rank's comparison.

    Raises :class:`RanksError` for ranks that did not come to an end.
    """
    with work_folder("ranks") as folder:
        save(before, folder / "before.fx.txt")
        save(after, folder / "after.fx.txt")
        (folder / "settings.json").write_text(settings_text(settings), encoding="utf-8")
        return [RankGaps.of(each) for each in run_ranks(pair.layout.world, folder, settings.timeout)]


def run_ranks(
    ranks: int, folder: Path, timeout: float, *, worker: str = _WORKER, machines: Machines | None = None
) -> list[dict[str, Any]]:
    """Start a worker module's ``main`` on each of this machine's ranks with ``folder`` as its argument.

    Gives what each of them wrote to ``rankN.json``, in order. Raises :class:`RanksError`, and
    :class:`InputError` or :class:`OptionError` for machines that cannot meet.
    """
    machines = machines or Machines()
    machines.check()
    paths = [str(Path(commcc.__file__).parents[1]), *sys.path]
    start, starved = _START.format(paths=paths, module=worker), kernel_kills()
    with _silent_launcher(), Guard(folder, timeout):
        try:
            elastic_launch(_config(ranks, folder, timeout, machines), sys.executable)("-c", start, str(folder))
        except ChildFailedError as error:
            raise explained(_evidence(folder, error, kernel_kills() > starved)) from None
        except SignalException as error:
            # The launcher has ended the ranks; what is left is what the signal does without it.
            raise KeyboardInterrupt if error.sigval == signal.SIGINT else SystemExit(128 + error.sigval) from None
        except (RendezvousError, DistError, TimeoutError, ValueError, ImportError) as error:
            raise _apart(machines, timeout, error) from None
    found = _results(folder)
    if len(found) < ranks:
        raise RanksError(f"{ranks - len(found)} of {ranks} ranks ended without a result")
    return [each for _, each in sorted(found.items())]


def _config(ranks: int, folder: Path, timeout: float, machines: Machines) -> LaunchConfig:
    limit = max(1, int(timeout))
    meeting = {"timeout": limit, "join_timeout": limit, "read_timeout": min(60, limit)}
    if machines.means == "static":
        meeting["rank"] = machines.node_rank or 0
    return LaunchConfig(
        min_nodes=machines.nnodes,
        max_nodes=machines.nnodes,
        nproc_per_node=ranks,
        run_id=machines.run_id or (folder.name if machines.nnodes == 1 else "commcc"),
        rdzv_backend=machines.means,
        rdzv_endpoint=machines.store,
        rdzv_configs=meeting,
        max_restarts=0,
        monitor_interval=0.1,
        local_addr="localhost" if machines.local else None,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
    )


def _apart(machines: Machines, timeout: float, error: Exception) -> CommccError:
    """Why the machines did not meet."""
    text = " ".join(str(error.__cause__ or error).split())[:200]
    if isinstance(error, (ValueError, ImportError)):
        return OptionError(f"--rdzv-backend {machines.means}: {text}")
    if isinstance(error, (RendezvousTimeoutError, TimeoutError)) or "imed out" in text or "timeout" in text:
        others = f"the {machines.nnodes} machines did not meet at {machines.store} within {timeout:g} s"
        found = RanksError(others, hint="every machine runs the same command, and can reach that port")
        found.late = True
        return found
    return RanksError(f"the machines cannot meet at {machines.store}: {text}")


def _results(folder: Path) -> dict[int, dict[str, Any]]:
    """What each rank of this machine has written, by rank."""
    files = [(int(file.stem[len("rank") :]), file) for file in folder.glob("rank*.json")]
    return {rank: words for rank, file in files if (words := _read(file)) is not None}


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _evidence(folder: Path, error: ChildFailedError, starved: bool) -> Evidence:
    """What the ranks of this machine have left."""
    boards = {int(file.stem[len("rank") :]): Board.read(file) for file in folder.glob("rank*.board")}
    output = {rank: _last_output(folder, failure.local_rank) for rank, failure in error.failures.items()}
    codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
    return Evidence(_results(folder), codes, boards, output, starved=starved)


def _last_output(folder: Path, local_rank: int) -> str:
    """The last line that a rank wrote before it ended."""
    for file in sorted((folder / "logs").rglob(f"{local_rank}/stderr.log")):
        lines = [
            line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
        if lines:
            return lines[-1][:200]
    return ""


@contextmanager
def _silent_launcher() -> Iterator[None]:
    """The launcher reports a failed rank on many lines; what matters of them is said here, on one.

    It also leaves handlers of signals behind, which are put back.
    """
    handlers = _handlers(("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
    # Each of its modules has a logger with a level of its own.
    names = [name for name in logging.root.manager.loggerDict if f"{name}.".startswith(_LAUNCHER)]
    levels = [(logger, logger.level) for logger in map(logging.getLogger, {*names, _LAUNCHER.rstrip(".")})]
    for logger, _ in levels:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)
        for number, handler in handlers:
            signal.signal(number, handler)


def _handlers(names: Sequence[str]) -> list[tuple[signal.Signals, Any]]:
    """Handlers in place; none where they cannot be set again, in a thread."""
    import threading

    if threading.current_thread() is not threading.main_thread():
        return []
    return [(number, signal.getsignal(number)) for name in names if (number := getattr(signal, name, None)) is not None]
