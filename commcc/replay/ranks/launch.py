"""Starts ranks with PyTorch's elastic launcher, waits for them, and says in one line what went wrong.

    results = run_ranks(4, folder, timeout=300, worker="commcc.replay.bench.worker")       # what each rank wrote

The ranks are told everything through files in a folder. The launcher starts them, redirects what they write, has the
machines meet, and ends the others when a rank dies. Each rank is a command of its own and not a function: a
function's process would import the program that called commcc once more, and only of commands are all exit codes
known.

What the launcher does not do is here. At the deadline every rank ends itself and says what it was at, and ranks that
cannot are killed (:mod:`commcc.replay.ranks.watch`). Why ranks ended is told from all that they left
(:mod:`commcc.replay.ranks.failing`).

With several machines each has a launcher of its own, which knows of its own ranks only.

Limits: starting a rank takes the seconds that importing PyTorch takes.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import fields
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
from commcc.replay.ranks.failing import Evidence, RanksError, explained, kernel_kills
from commcc.replay.ranks.machines import Machines
from commcc.replay.ranks.watch import Board, Guard

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A rank finds modules where this process does; Python itself would look in the current folder first.
_START = "import sys; sys.path[:] = {paths!r}; from {module} import main; main()"
_LAUNCHER = "torch.distributed.elastic."
#: Signals for which the launcher puts handlers of its own in place, and leaves them there.
_HANDLED = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
#: Seconds that the launcher waits for ranks that it has told to end; only those that are stopped do not end at once.
_SHUTDOWN = 5


def run_ranks(
    ranks: int, folder: Path, timeout: float, *, worker: str, machines: Machines | None = None
) -> list[dict[str, Any]]:
    """Start a worker module's ``main`` on each of this machine's ranks with ``folder`` as its argument.

    Returns what each of them wrote to ``rankN.json``, in order. Raises :class:`RanksError`, and
    :class:`InputError` or :class:`OptionError` for machines that cannot meet.
    """
    machines = machines or Machines()
    machines.check()
    paths = [str(Path(commcc.__file__).parents[1]), *sys.path]
    start, kills = _START.format(paths=paths, module=worker), kernel_kills()
    with _silent_launcher(), Guard(folder, timeout) as guard:
        try:
            elastic_launch(_config(ranks, folder, timeout, machines), sys.executable)("-c", start, str(folder))
        except ChildFailedError as error:
            said = _results(folder)
            evidence = Evidence(
                said,
                codes={rank: failure.exitcode for rank, failure in error.failures.items()},
                boards={int(file.stem[len("rank") :]): Board.read(file) for file in folder.glob("rank*.board")},
                output={rank: _last_line(folder, failure.local_rank) for rank, failure in error.failures.items()},
                starved=kernel_kills() > kills,
                stopped=frozenset(guard.stopped - set(said)),
            )
            raise explained(evidence) from None
        except SignalException as error:
            # The launcher has ended the ranks; what is left is what the signal does without it.
            raise KeyboardInterrupt if error.sigval == signal.SIGINT else SystemExit(128 + error.sigval) from None
        except (RendezvousError, DistError, TimeoutError, ValueError, ImportError) as error:
            raise _apart(machines, timeout, error) from None
    results = _results(folder)
    if len(results) < ranks:
        raise RanksError(f"{ranks - len(results)} of {ranks} ranks ended without a result")
    return [words for _, words in sorted(results.items())]


def _config(ranks: int, folder: Path, timeout: float, machines: Machines) -> LaunchConfig:
    limit = max(1, int(timeout))
    meeting = {"timeout": limit, "join_timeout": limit, "read_timeout": min(60, limit)}
    if machines.means == "static":
        meeting["rank"] = machines.node_rank or 0
    # Not every release has it; the others wait for half a minute.
    known = {field.name for field in fields(LaunchConfig)}
    more: dict[str, Any] = {"shutdown_timeout": _SHUTDOWN} if "shutdown_timeout" in known else {}
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
        **more,
    )


def _apart(machines: Machines, timeout: float, error: Exception) -> CommccError:
    """Why the machines did not meet."""
    text = " ".join(str(error.__cause__ or error).split())[:200]
    if isinstance(error, (ValueError, ImportError)):
        return OptionError(f"--rdzv-backend {machines.means}: {text}")
    if isinstance(error, (RendezvousTimeoutError, TimeoutError)) or "imed out" in text or "timeout" in text:
        others = f"the {machines.nnodes} machines did not meet at {machines.store} within {timeout:g} s"
        missed = RanksError(others, hint="every machine runs the same command, and can reach that port")
        missed.late = True
        return missed
    return RanksError(f"the machines cannot meet at {machines.store}: {text}")


def _results(folder: Path) -> dict[int, dict[str, Any]]:
    """What each rank of this machine has written, by rank."""
    results = {}
    for file in folder.glob("rank*.json"):
        with suppress(OSError, ValueError):  # what is not whole says nothing
            results[int(file.stem[len("rank") :])] = json.loads(file.read_text(encoding="utf-8"))
    return results


def _last_line(folder: Path, local_rank: int) -> str:
    """The last line that a rank wrote before it ended."""
    # The launcher has made folders of its own there: logs/RUN_.../attempt_0/LOCAL_RANK.
    for file in sorted((folder / "logs").rglob(f"{local_rank}/stderr.log")):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if last:
            return last[:200]
    return ""


@contextmanager
def _silent_launcher() -> Iterator[None]:
    """The launcher reports a failed rank on many lines; what matters of them is said here, on one.

    It also leaves handlers of signals behind, which are put back.
    """
    # In another thread it sets none, and nobody can.
    here = threading.current_thread() is threading.main_thread()
    handlers = [(number, signal.getsignal(number)) for number in _HANDLED if here]
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
