"""Options of ``verify --numeric``, and the run that they ask for.

    commcc verify BEFORE AFTER --numeric --virtual-ranks 4 --seed 1 --float64

Limits: an option without ``--numeric`` is an error, as are ranks of both kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from commcc.base.errors import OptionError
from commcc.cli.parameters import FiniteRange, import_option
from commcc.graph.hint_text import read_hints

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.replay.numeric import Numeric, Settings

MOST_RANKS = 4096
#: Names of the options that only ``--numeric`` uses.
_NEEDED_BY = ("nproc", "virtual_ranks", "seed", "float64", "tolerance", "timeout", "groups", "size_hints", "imports")
#: Options whose names are not those of their parameters.
_FLAGS = {"size_hints": "--hint", "imports": "--import"}


@dataclass(frozen=True)
class Request:
    """What was asked for; the fields are those of :class:`commcc.replay.Settings` as they were typed."""

    nproc: int | None
    virtual_ranks: int | None
    seed: int
    float64: bool
    tolerance: float | None
    timeout: float
    groups: str
    size_hints: dict[str, int]
    imports: tuple[str, ...]


def read(ctx: click.Context, given: dict[str, Any]) -> Request | None:
    """The request, None without ``--numeric``; takes its options out of ``given``."""
    wanted = given.pop("numeric")
    request = Request(**{name: given.pop(name) for name in _NEEDED_BY})
    if wanted:
        if request.nproc is not None and request.virtual_ranks is not None:
            raise OptionError("--nproc and --virtual-ranks cannot go together", hint="real ranks, or virtual ones")
        return request
    shared = {"size_hints"} if ctx.params.get("memory_budget") is not None else set()
    names = [name for name in _NEEDED_BY if name not in shared]
    typed = [name for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if typed:
        flags = ", ".join(_FLAGS.get(name, "--" + name.replace("_", "-")) for name in typed)
        raise OptionError(f"{flags} needs --numeric")
    return None


def import_ops(modules: tuple[str, ...]) -> None:
    """Import the modules that were named, before graphs that name their ops are read."""
    if modules:
        from commcc.graph.ops.allowed import imported_ops

        imported_ops(modules)


def settings_of(request: Request) -> Settings:
    """How to run; raises :class:`commcc.base.errors.OptionError` for groups that cannot be read."""
    from commcc.replay.layout import read_groups
    from commcc.replay.numeric import Settings

    return Settings(
        ranks=request.nproc or request.virtual_ranks,
        real=request.nproc is not None,
        seed=request.seed,
        wide=request.float64,
        tolerance=request.tolerance,
        timeout=request.timeout,
        groups=read_groups(request.groups) if request.groups else {},
        hints=request.size_hints,
        imports=request.imports,
        ops=click.get_current_context().obj.ops_file,
    )


def run(request: Request, before: Program, after: Program) -> Numeric:
    """Run both graphs; raises :class:`commcc.base.errors.CommccError` where they cannot be run."""
    from commcc.replay.numeric import verify_numeric

    return verify_numeric(before, after, settings_of(request))


def options() -> list[click.Option]:
    """``--numeric`` and what goes with it."""
    return [
        click.Option(
            ["--numeric"], is_flag=True, help="Also run both graphs on the same inputs and compare what they return."
        ),
        click.Option(
            ["--virtual-ranks"],
            type=click.IntRange(1, MOST_RANKS),
            metavar="N",
            help="Run N ranks in this process. [default: as many as the graphs are for, if these are 8 or fewer]",
        ),
        *run_options(),
        click.Option(
            ["--float64"], is_flag=True, help="Compute everything in float64: what still differs is not rounding."
        ),
        click.Option(
            ["--tolerance"],
            type=FiniteRange(0.0, 1e6),
            metavar="T",
            help="Largest difference to accept, relative to the largest number of a value. "
            "[default: none, but rounding where AFTER adds up other parts]",
        ),
    ]


def run_options() -> list[click.Option]:
    """Ranks and their inputs, for every command that runs graphs."""
    return [
        click.Option(
            ["--nproc"],
            type=click.IntRange(1, MOST_RANKS),
            metavar="N",
            help="Run on N processes, each of them a rank.",
        ),
        click.Option(
            ["--seed"],
            type=click.IntRange(0, 2**31),
            default=0,
            show_default=True,
            metavar="S",
            help="Seed of the synthetic inputs.",
        ),
        click.Option(
            ["--timeout"],
            type=FiniteRange(1.0, 86400.0),
            default=300.0,
            show_default=True,
            metavar="SECONDS",
            help="End processes that are not done by then.",
        ),
        click.Option(
            ["--groups"],
            default="",
            metavar="TEXT",
            help="Which ranks each group has, where the graph does not say: '33=0,2|1,3;35=0-1|2-3'.",
        ),
        click.Option(
            ["--hint", "size_hints"],
            multiple=True,
            metavar="SYMBOL=NUMBER",
            callback=lambda _ctx, _option, texts: read_hints(texts),
            help="A number for an input's size that is known only at run time; SYMBOL may be a pattern.",
        ),
        import_option(
            "Import a Python module and run the ops that it registers; only PyTorch's own run otherwise.", given=True
        ),
    ]
