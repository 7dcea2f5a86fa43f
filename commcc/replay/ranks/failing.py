"""Why ranks did not come to an end, in one line: the cause, not what it did to the others.

    raise explained(Evidence(said={0: {"error": "..."}}, codes={0: 3, 1: -9}))

Whoever watches the ranks ends all of them once one has failed, and those that talk to a rank that is gone fail too.
So what is said about is, in this order: a rank that refused its device, one that ran out of memory or was killed, an
error that no other rank can have caused, one that was aborted, the deadline, one that ended without a word, one that
was stopped, an error that comes of a lost connection.

Limits: which errors come of a lost connection is told by their words, those of gloo and NCCL.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.errors import CommccError, InputError
from commcc.base.text import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json

Words = dict[str, Any]

HINT = "the same run with --virtual-ranks needs no processes and shows values that are used too early"
_MEMORY_HINT = "fewer ranks on this machine, or a smaller model: its graph has the same structure"
#: What gloo and NCCL say when another rank is gone.
_LOST_WORDS = (
    *("gloo/transport", "Connection closed", "Connection reset", "Connection refused", "Broken pipe"),
    *("Timed out waiting", "Wait timeout"),
    *("remote process exited", "ncclRemoteError", "NCCL communicator was aborted"),
)
#: What errors of no type of their own say when memory has run out.
_STARVED = ("can't allocate memory", "out of memory", "Cannot allocate memory")
#: Ranks that are told about when there are many.
_SHOWN = 4
#: Where Linux counts the processes that it has killed for memory.
_KERNEL_COUNTS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events")


class RanksError(CommccError):
    """Ranks that ended without a result: one died, one failed, or the time was up.

    failed: ``(program, node, reason)`` where a node of BEFORE or AFTER raised, None for everything else.
    late: whether the time was up. memory: whether there was not enough of it, or may not have been.
    """

    exit_code = 1

    def __init__(self, what: str, *, hint: str | None = None, failed: tuple[str, str, str] | None = None) -> None:
        self.failed = failed
        self.late = False
        self.memory = False
        super().__init__(what, hint=hint)


@dataclass(frozen=True)
class Evidence:
    """What is left of ranks, by rank.

    said: last words, or results. codes: how processes ended, as far as that is known. boards: what ranks were at,
    also those that said nothing. output: the last line that they wrote. missing: ranks of which nothing is known but
    that they say nothing. starved: whether the kernel has killed processes for memory meanwhile. stopped: those
    that said nothing and were stopped (SIGSTOP) when they were last seen, whatever has ended them.
    """

    said: Mapping[int, Words]
    codes: Mapping[int, int] = field(default_factory=dict)
    boards: Mapping[int, Words] = field(default_factory=dict)
    output: Mapping[int, str] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    starved: bool = False
    stopped: frozenset[int] = frozenset()

    @property
    def silent(self) -> dict[int, int]:
        """Exit codes of those that said nothing and were not merely told to end, in order of ranks."""
        heard = {*self.said, *self.stopped}
        return {n: code for n, code in sorted(self.codes.items()) if n not in heard and code != -signal.SIGTERM}

    def with_words(self, key: str) -> dict[int, Words]:
        return {rank: words for rank, words in sorted(self.said.items()) if key in words}


def explained(evidence: Evidence) -> CommccError:
    """The error to raise: :class:`InputError` where a rank refused its device, else :class:`RanksError`."""
    for rank, words in evidence.with_words("refused").items():
        return InputError(f"rank {rank}: {words['refused']}", hint=words.get("hint"))
    # Errors but for those that a rank sees when another one is gone.
    own = {
        rank: words
        for rank, words in evidence.with_words("error").items()
        if words.get("memory") or not any(text in words["error"] for text in _LOST_WORDS)
    }
    late, silent = evidence.with_words("timeout"), evidence.silent
    starved = [rank for rank, words in own.items() if words.get("memory")]
    killed = [rank for rank, code in silent.items() if code == -signal.SIGKILL]
    aborted = [rank for rank, code in silent.items() if code < 0]
    if killed and not starved:
        return _ended(killed[0], evidence)
    if own:
        rank = (starved or list(own))[0]
        return _failed(rank, own[rank])
    if aborted:
        return _ended(aborted[0], evidence)
    if late:
        return _late(late, evidence)
    return _ended(next(iter(silent)), evidence) if silent else _lost(evidence)


def _failed(rank: int, words: Words) -> RanksError:
    program, node = words.get("program"), words.get("node")
    failed = (program, node, words["error"]) if program and node else None
    where = f"{program}: " if program else ""
    if not words.get("memory"):
        return RanksError(f"rank {rank}: {where}{words['error']}", hint=HINT, failed=failed)
    at = "" if node or not words.get("at") else f" ({words['at']})"
    error = RanksError(f"rank {rank} ran out of memory{at}: {where}{words['error']}", hint=_MEMORY_HINT, failed=failed)
    error.memory = True
    return error


def _late(late: Mapping[int, Words], evidence: Evidence) -> RanksError:
    gone = f"; nothing from {_numbers(evidence.missing)}" if evidence.missing else ""
    # A rank whose time is up a moment later is ended before it can say anything; its board says it.
    told = {rank: board for rank, board in evidence.boards.items() if rank not in evidence.said} | dict(late)
    for rank in evidence.stopped:
        told[rank] = {"at": "starting", **told.get(rank, {}), "stopped": True}
    error = RanksError(f"not done after {next(iter(late.values()))['timeout']:g} s{last_words(told)}{gone}", hint=HINT)
    error.late = True
    return error


def _ended(rank: int, evidence: Evidence) -> RanksError:
    code = evidence.codes[rank]
    board = evidence.boards.get(rank, {})
    at = f" ({_at(board)})" if board.get("at") else ""
    output = evidence.output.get(rank)
    text = f"rank {rank} {_how(code)}{at}{f' ({output})' if output else ''}; the other ranks were ended"
    if code != -signal.SIGKILL:
        return RanksError(text, hint=HINT)
    known = (
        "the kernel did, for memory had run out" if evidence.starved else "the kernel does that when memory runs out"
    )
    error = RanksError(text, hint=f"{known}: {_MEMORY_HINT}")
    error.memory = True
    return error


def _lost(evidence: Evidence) -> RanksError:
    """Nothing but ranks that miss others, or that were told to end."""
    signals = {rank: str(words["signal"]) for rank, words in evidence.with_words("signal").items()}
    if evidence.stopped:
        ranks = tuple(sorted(evidence.stopped))
        text = f"{_numbers(ranks)} {'was' if len(ranks) == 1 else 'were'} stopped (SIGSTOP) and did not answer"
    elif evidence.missing:
        text = f"{_numbers(evidence.missing)} ended without a word"
    elif signals:
        text = f"{_numbers(tuple(signals))} ended by {next(iter(signals.values()))}"
    elif errors := evidence.with_words("error"):
        rank, words = next(iter(errors.items()))
        reason = words["error"].partition(". ")[0]
        return RanksError(f"rank {rank} lost another one{last_words({rank: words})} ({reason[:200]})", hint=HINT)
    else:
        rank, code = next(iter(sorted(evidence.codes.items())), (0, 0))
        return RanksError(f"rank {rank} {_how(code)}", hint=HINT)
    return RanksError(f"{text}{last_words(evidence.said)}", hint=HINT)


def _numbers(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks], _SHOWN)}"


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def last_words(said: Mapping[int, Mapping[str, Json]]) -> str:
    """What each rank was at: ``: rank 0 waits for 'wait_3', last launch 'all_gather_2'; rank 1 ...``."""
    told = [f"rank {rank} {_at(words)}" for rank, words in sorted(said.items()) if words.get("at")]
    more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return f": {'; '.join(told[:_SHOWN])}{more}" if told else ""


def _at(words: Mapping[str, Json]) -> str:
    """What one rank was at, the last collective that it launched and the last one that it has waited for."""
    at = f"was {words['at']}" if str(words["at"]).partition(" ")[0].endswith("ing") else str(words["at"])
    program = words.get("program")
    parts = [
        "is stopped" if words.get("stopped") else "does not answer" if words.get("stuck") else "",
        f"{at}{f' of {program}' if program else ''}",
        f"last launch '{words['launched']}'" if words.get("launched") else "",
        f"last wait ended '{words['waited']}'" if words.get("waited") else "",
        f"the device is past '{words['device']}'" if words.get("device") else "",
    ]
    return ", ".join(filter(None, parts))


def out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, on the host or on a device, also where that is the cause of the error."""
    while error is not None:
        starved = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if starved or (isinstance(error, RuntimeError) and any(words in str(error) for words in _STARVED)):
            return True
        error = error.__cause__
    return False


def kernel_kills() -> int:
    """How many processes the kernel has killed for memory, here and in this container; 0 where it does not say."""
    result = 0
    for file in _KERNEL_COUNTS:
        with suppress(OSError, ValueError):
            lines = Path(file).read_text(encoding="ascii").splitlines()
            result += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return result
