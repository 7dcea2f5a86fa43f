"""How ``commcc bench`` comes to its ranks: options of torch's launcher, or a place among ranks that are there already.

    with runner(place(options), options) as run:
        bench(named, settings, run)

Limits: what is said while the arguments themselves are read is said by every rank of other starters than these.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK, CommccError, OptionError
from commcc.base.text import one_line
from commcc.cli.numeric import MOST_RANKS
from commcc.replay.ranks.launcher_env import SLURM, Joined, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.cli.session import Session
    from commcc.replay.bench.benchmark import Elsewhere, Runner

#: Options that are about machines, by parameter.
_MACHINES = ("nnodes", "node_rank", "rdzv_endpoint", "rdzv_backend", "rdzv_id")


class RankCommand(click.Command):
    """A command that may be one of many ranks; only rank 0 of them is heard."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but in silence on other ranks."""
        session: Any = ctx.obj
        try:
            me = joined(os.environ)
        except CommccError:
            me = None  # said later, when it matters
        if me is not None and session is not None:
            # With --nnodes tasks of SLURM are launchers, one on each machine, and no ranks themselves.
            launcher = me.starter == SLURM and any(arg.partition("=")[0] == "--nnodes" for arg in args)
            session.silent = me.rank > 0 and not launcher
        return super().parse_args(ctx, args)


def place(given: dict[str, Any]) -> Joined | None:
    """This process among ranks that have been started; None where it starts them.

    Raises :class:`OptionError` for options that contradict the ranks there are.
    """
    me = joined(os.environ)
    wrong = ["--" + name.replace("_", "-") for name in _MACHINES if given[name] is not None]
    if given["device"].startswith("emulated"):  # one process stands for all ranks
        one = f"--device {given['device']} is one process"
        if me is not None and me.world > 1:
            raise OptionError(f"{one}, and {me.starter} has started {me.world}", hint="run it without")
        if wrong:
            raise OptionError(f"{', '.join(wrong)}: {one}", hint="leave it out")
        return None
    if me is None or (me.starter == SLURM and given["nnodes"] is not None):
        return None
    if wrong:
        raise OptionError(f"{', '.join(wrong)}: {me.starter} has started the ranks already", hint="leave it out")
    if given["nproc"] not in (None, me.world):
        raise OptionError(
            f"--nproc {given['nproc']}, and {me.starter} has started {me.world} ranks",
            hint="leave it out: each process is a rank",
        )
    return me


def ranks(me: Joined | None, given: dict[str, Any]) -> int | None:
    """All ranks together; None where only the graphs say how many."""
    if me is not None:
        return me.world
    return None if given["nproc"] is None else given["nproc"] * (_nnodes(given) or 1)


@contextmanager
def runner(me: Joined | None, given: dict[str, Any]) -> Iterator[Runner]:
    """What runs the graphs. Raises :class:`CommccError` where the ranks cannot meet."""
    # What PyTorch's C++ code says about connections is many lines; what matters of it is said here, on one. It is
    # read as PyTorch is loaded.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    if me is not None:
        from commcc.replay.ranks.joined import together

        def say(text: str) -> None:
            """An error of a process that ends before its session can speak."""
            print(f"commcc: error: {one_line(' '.join(text.split()))}", file=sys.stderr, flush=True)

        with together(me, given["timeout"], say) as run:
            yield run
        return
    from commcc.replay.bench.benchmark import Launched
    from commcc.replay.ranks.machines import Machines

    machines = Machines(
        nnodes=_nnodes(given) or 1,
        node_rank=given["node_rank"],
        endpoint=given["rdzv_endpoint"],
        backend=given["rdzv_backend"],
        run_id=given["rdzv_id"],
    )
    yield Launched(machines)


def say_where(session: Session, elsewhere: Elsewhere) -> int:
    """What there is to say on a machine without rank 0, and its exit code."""
    session.note(f"the report is where rank 0 is, on {elsewhere.machine}")
    return EXIT_OK


def _nnodes(given: dict[str, Any]) -> int | None:
    text = given["nnodes"]
    if text is None:
        return None
    if not text.isdigit() or not 1 <= int(text) <= MOST_RANKS:
        raise OptionError(f"--nnodes is '{text}', not a number of machines", hint="a bench has as many all the time")
    return int(text)


def options() -> list[click.Option]:
    """Options of torchrun that pass through to PyTorch's launcher."""
    return [
        click.Option(["--nnodes"], metavar="M", help="Machines; --nproc is then ranks on each. [default: 1]"),
        click.Option(
            ["--node-rank"], type=click.IntRange(0), metavar="I", help="Number of this machine, for backend static."
        ),
        click.Option(
            ["--rdzv-endpoint"], metavar="HOST:PORT", help="Where machines meet. [default: a free port of this one]"
        ),
        click.Option(
            ["--rdzv-backend"],
            metavar="NAME",
            help="How machines meet, as in torchrun. [default: static with --node-rank, else c10d]",
        ),
        click.Option(["--rdzv-id"], metavar="TEXT", help="Name of the run, for machines that meet in several."),
    ]
