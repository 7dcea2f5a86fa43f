"""Starts ranks with PyTorch's elastic launcher, waits for them, and says in one line what went wrong.

    gaps = run_pair(pair, before, after, settings)         # one RankGaps for each rank

The ranks are told everything through files in a folder of their own, which goes away with them. A rank that dies
takes the others with it: the launcher ends them. At the deadline every rank ends itself and says what it was at
(:mod:`commcc.replay.ranks.watch`).

Limits: one machine. Starting a rank takes the seconds that importing PyTorch takes.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import commcc
from commcc.errors import CommccError, InputError, OptionError
from commcc.replay.compare import RankGaps, ValueGap
from commcc.replay.ranks.worker import settings_text
from commcc.serialization import save

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commcc.program import Program
    from commcc.replay.pair import Pair, Settings

#: The store of the ranks listens on a free port of this machine.
_ENDPOINT = "localhost:0"
_START = "import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"
_WORKER = "commcc.replay.ranks.worker"


class RanksError(CommccError):
    """Ranks that ended without a result: one died, one failed, or the time was up.

    failed: ``(program, node, reason)`` where a node of BEFORE or AFTER raised, None for everything else.
    late: whether the time was up.
    """

    exit_code = 1

    def __init__(self, what: str, *, hint: str | None = None, failed: tuple[str, str, str] | None = None) -> None:
        self.failed = failed
        self.late = False
        super().__init__(what, hint=hint)


def run_pair(pair: Pair, before: Program, after: Program, settings: Settings) -> list[RankGaps]:
    """Both programs on as many gloo ranks as the pair's layout has, and every rank's comparison.

    Raises :class:`RanksError` for ranks that did not come to an end.
    """
    with tempfile.TemporaryDirectory(prefix="commcc-ranks-") as name:
        folder = Path(name)
        save(before, folder / "before.fx.txt")
        save(after, folder / "after.fx.txt")
        (folder / "settings.json").write_text(settings_text(settings), encoding="utf-8")
        return [read_gaps(each) for each in run_ranks(pair.layout.world, folder, settings.timeout)]


def run_ranks(
    ranks: int, folder: Path, timeout: float, *, worker: str = _WORKER, endpoint: str = _ENDPOINT
) -> list[dict[str, Any]]:
    """Start a worker module's ``main`` on each rank with ``folder`` as its argument; what each wrote to ``rankN.json``.

    endpoint: host and port of the ranks' store; port 0 takes a free one. Raises :class:`RanksError`.
    """
    _check_port(endpoint)
    root = str(Path(commcc.__file__).parents[1])
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs={"timeout": max(1, int(timeout))},
        max_restarts=0,
        monitor_interval=0.1,
        local_addr="localhost",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
    )
    start = _START.format(root=root, module=worker)
    with _silent_launcher():
        try:
            elastic_launch(config, sys.executable)("-c", start, str(folder))
        except ChildFailedError as error:
            raise _explained(folder, ranks, error) from None
        except SignalException as error:
            # The launcher has ended the ranks; what is left is what the signal does without it.
            raise KeyboardInterrupt if error.sigval == signal.SIGINT else SystemExit(128 + error.sigval) from None
    found = [_read(folder, rank) for rank in range(ranks)]
    missing = [rank for rank, each in enumerate(found) if each is None]
    if missing:
        raise RanksError(f"rank {missing[0]} ended without a result")
    return [each for each in found if each is not None]


_HINT = "the same run with --virtual-ranks needs no processes and shows values that are used too early"


def read_gaps(data: dict[str, Any]) -> RankGaps:
    """A rank's comparison, as it wrote it."""
    gaps = tuple(ValueGap(**{**gap, "element": tuple(gap["element"])}) for gap in data["gaps"])
    return RankGaps(gaps, tuple(data["compared"]), data["nan"], tuple(data["infinite"]), tuple(data["zero"]))


def _read(folder: Path, rank: int) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _explained(folder: Path, ranks: int, error: ChildFailedError) -> RanksError:
    """Why ranks ended early: the cause, not what it did to the others.

    A rank whose process was killed comes first, then the deadline, then one that ended without a word, then errors.
    The launcher ends all ranks with SIGTERM once one has failed, and those that talk to a rank that is gone fail too.
    """
    said = {rank: words for rank in range(ranks) if (words := _read(folder, rank)) is not None}
    codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
    silent = {rank: code for rank, code in codes.items() if rank not in said and code != -signal.SIGTERM}
    late = {rank: words for rank, words in said.items() if "timeout" in words}
    killed = next((rank for rank, code in silent.items() if code < 0), None)
    if killed is None and late:
        found = RanksError(f"not done after {next(iter(late.values()))['timeout']:g} s{_last_words(late)}", hint=_HINT)
        found.late = True
        return found
    ended = killed if killed is not None else next((rank for rank, code in silent.items() if code > 0), None)
    if ended is not None:
        text = f"rank {ended} {_ended(codes[ended])}{_last_output(folder, ended)}"
        return RanksError(f"{text}; the other ranks were ended", hint=_HINT)
    for rank, words in ((rank, words) for rank, words in said.items() if "error" in words):
        program, node = words.get("program"), words.get("node")
        failed = (program, node, words["error"]) if program and node else None
        return RanksError(
            f"rank {rank}: {program + ': ' if program else ''}{words['error']}", hint=_HINT, failed=failed
        )
    rank, code = next(iter(codes.items()), (0, 0))
    return RanksError(f"rank {rank} {_ended(code)}", hint=_HINT)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _last_words(said: dict[int, dict[str, Any]]) -> str:
    """What each rank was at: ``: rank 0 waits for 'wait_3', last launch 'all_gather_2'; rank 1 ...``."""
    told = [
        f"rank {rank} {words['at']}" + (f", last launch '{words['launched']}'" if words.get("launched") else "")
        for rank, words in sorted(said.items())
        if words.get("at")
    ]
    more = f"; and {len(told) - 4} more" if len(told) > 4 else ""
    return f": {'; '.join(told[:4])}{more}" if told else ""


def _last_output(folder: Path, rank: int) -> str:
    """The last line that a rank wrote before it ended."""
    for file in sorted((folder / "logs").rglob(f"{rank}/stderr.log")):
        lines = [
            line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
        if lines:
            return f" ({lines[-1][:200]})"
    return ""


def _check_port(endpoint: str) -> None:
    """Refuse a port that somebody has: the launcher would take it for its own store and wait."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise OptionError(f"'{endpoint}' is not HOST:PORT", hint="as in localhost:29500; port 0 takes a free one")
    try:
        with socket.create_server((host, int(port)), reuse_port=False):
            return
    except OSError as error:
        raise InputError(
            f"port {port} of {host} cannot be used: {error.strerror}", hint="port 0 takes a free one"
        ) from None


@contextmanager
def _silent_launcher() -> Iterator[None]:
    """The launcher reports a failed rank on many lines; what matters of them is said here, on one.

    It also leaves handlers of signals behind, which are put back.
    """
    logger = logging.getLogger("torch.distributed.elastic")
    level, names = logger.level, ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    handlers = _handlers(names)
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
        for number, handler in handlers:
            signal.signal(number, handler)


def _handlers(names: Sequence[str]) -> list[tuple[signal.Signals, Any]]:
    """Handlers in place; none where they cannot be set again, in a thread."""
    import threading

    if threading.current_thread() is not threading.main_thread():
        return []
    return [(number, signal.getsignal(number)) for name in names if (number := getattr(signal, name, None)) is not None]
