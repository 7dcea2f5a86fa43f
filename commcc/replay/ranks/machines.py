"""The machines of a run whose ranks are started by PyTorch's elastic launcher, in torchrun's terms.

    Machines()                                               # this one
    Machines(nnodes=2, node_rank=0, endpoint="node1:29500")  # this is one of two; the other is told the same

The machine at the endpoint holds the store where they meet. With ``static`` that is the one of node rank 0, and every
machine says which it is; with ``c10d`` numbers are given in the order in which they come.

Limits: a fixed number of machines with equally many ranks; ranks are not started again.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from commcc.base.errors import InputError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_LOCAL = ("localhost", "127.0.0.1", "::1")
#: Name of threads that wait for an answer.
WITHIN = "commcc-within"
#: Seconds that a store on this machine has to answer.
_ANSWER = 5.0


@dataclass(frozen=True)
class Machines:
    """nnodes: how many machines. The others are those of torchrun; endpoint is ``HOST:PORT``, None for a free port of
    this machine. backend: None for ``static`` where a node rank is given, else ``c10d``.
    """

    nnodes: int = 1
    node_rank: int | None = None
    endpoint: str | None = None
    backend: str | None = None
    run_id: str | None = None

    @property
    def store(self) -> str:
        """Where the machines meet."""
        return self.endpoint or "localhost:0"

    @property
    def means(self) -> str:
        """How they meet: the backend that was asked for, or that follows."""
        return self.backend or ("static" if self.node_rank is not None else "c10d")

    @property
    def local(self) -> bool:
        """Whether the store is on this machine by its very name, so that all machines are this one."""
        return self.store.rpartition(":")[0] in _LOCAL

    def of(self, world: int) -> int:
        """Ranks on each machine. Raises :class:`OptionError` for a number that cannot be shared equally."""
        if world % self.nnodes:
            raise OptionError(
                f"the graph is for {world} ranks, which {self.nnodes} machines cannot share equally",
                hint="--nnodes times --nproc is the number of ranks",
            )
        return world // self.nnodes

    def check(self) -> None:
        """Refuse what cannot meet. Raises :class:`OptionError`, and :class:`InputError` for a port that is taken."""
        numbers = f"0 to {self.nnodes - 1}"
        if self.nnodes > 1 and (self.endpoint is None or self.endpoint.endswith(":0")):
            raise OptionError(
                f"--nnodes {self.nnodes} needs --rdzv-endpoint HOST:PORT", hint="the same on every machine"
            )
        if self.node_rank is not None and not 0 <= self.node_rank < self.nnodes:
            raise OptionError(
                f"--node-rank {self.node_rank} is not one of {numbers}", hint="each machine has a number of its own"
            )
        if self.means == "static" and self.node_rank is None and self.nnodes > 1:
            raise OptionError(
                "--rdzv-backend static needs --node-rank", hint=f"each machine has a number of its own, {numbers}"
            )
        if self.means in ("c10d", "static"):
            host, _, port = self.store.rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise OptionError(f"'{self.store}' is not HOST:PORT", hint="as in localhost:29500")
            self._check_port(host, int(port))

    def _check_port(self, host: str, port: int) -> None:
        """Refuse a port that somebody else has: the launcher would take it for its own store and wait."""
        if self.means == "static" and self.node_rank:
            return  # another machine's
        problem = port_problem(host, port)
        if problem is None:
            return
        if self.nnodes > 1 and self.means == "c10d" and (problem.absent or is_store(host, port)):
            return  # the port of another machine, or of another launcher on this one
        other = "port 0 takes a free one" if self.nnodes == 1 else "every machine must be given another one"
        raise InputError(f"port {port} of {host} cannot be used: {problem.text}", hint=other)


@dataclass(frozen=True)
class PortProblem:
    """Why nothing can listen at an address. absent: because it is not this machine's."""

    text: str
    absent: bool


def port_problem(host: str, port: int) -> PortProblem | None:
    """What is in the way of a store at this address; None where one can listen."""
    try:
        with socket.create_server((host, port), reuse_port=False):
            return None
    except socket.gaierror as error:
        return PortProblem(f"{host} is not known: {error.strerror}", absent=True)
    except OSError as error:
        # EADDRNOTAVAIL: an address of another machine.
        return PortProblem(os.strerror(error.errno or 0), absent=error.errno == errno.EADDRNOTAVAIL)


def is_store(host: str, port: int) -> bool:
    """Whether who listens there is a store of PyTorch."""

    def asked() -> None:
        # mypy: it is not among what PyTorch exports by name.
        stores: Any = torch._C._distributed_c10d
        stores.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_ANSWER))

    try:
        within(_ANSWER, asked)
    except (RuntimeError, TimeoutError):
        return False
    return True


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` gives or raises; :class:`TimeoutError` if it is not done in time.

    A connection to somebody who listens and does not answer is waited for without end, whatever timeout it is given.
    """
    done: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, name=WITHIN, daemon=True)
    thread.start()
    # A little more, so that work with the same limit says itself what was in the way.
    thread.join(seconds + 1)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no answer after {seconds:g} s")
    return done[0]
