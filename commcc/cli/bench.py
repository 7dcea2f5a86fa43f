"""``commcc bench``: graphs timed against each other on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_FINDINGS, EXIT_OK, OptionError, OutputError
from commcc.cli import numeric, starting
from commcc.cli.parameters import FILE, GRAPH_HELP, common_options, graphs_argument, reading_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.replay.bench.graph_set import BenchSettings

HELP = f"""Run graphs on real ranks, in turns and on the same inputs, and say which is faster.

{GRAPH_HELP} The first one is what the others are compared with. The ranks are processes on this
machine, each with a CUDA device of its own and NCCL, or on its CPU with gloo; with --device emulated
one process stands for all of them, and communication takes the time that --cost models. Without
GRAPH, a small graph is run before and after two passes: that checks an installation.

For several machines run the same on each, with --nnodes and --rdzv-endpoint. Under torchrun or srun
each process is one of the ranks.

Exits with 0 when all graphs return the same, to the bit or but for the rounding of sums that one of
them adds up from other parts; whichever is faster.
"""
MOST_REPETITIONS = 10_000
_EMULATED = "emulated"
DEVICES = ("auto", "cpu", "cuda", _EMULATED, f"{_EMULATED}-cpu", f"{_EMULATED}-cuda")
#: Repetitions that are recorded for a trace: enough for a median, few enough for a file that opens.
RECORDED = 5
#: Ranks of the small graph when nobody says how many.
_DEMO_RANKS = 2


@click.pass_obj
def time_graphs(session: Session, /, graphs: tuple[str, ...], per_rank: bool, collectives: int, **options: Any) -> int:
    trace, captured = options.pop("trace"), options.pop("captured")
    if trace is not None and captured:
        hint = "a trace is of launches, and the replay of a CUDA graph has none"
        raise OptionError("--trace and --cuda-graphs cannot go together", hint=hint)
    me = starting.place(options)
    options["nproc"] = starting.ranks(me, options)
    with session.working("loading PyTorch") as say, starting.runner(me, options) as runner:
        from commcc.replay.bench.benchmark import Elsewhere, bench
        from commcc.report import benching

        ways = {"compiled": options.pop("compiled"), "captured": captured}
        if trace is not None:
            ways |= {"trace": str(trace_folder(trace)), "recorded": RECORDED}
        chosen = settings(graphs, options, **ways)
        programs = named(session, graphs, chosen, say)
        say("running the graphs")
        result = bench(programs, chosen, runner)
    if isinstance(result, Elsewhere):
        return starting.say_where(session, result)
    document = benching.benchmark(list(graphs), result)
    session.emit(
        document,
        brief=benching.brief(document),
        view=lambda shown: benching.view(shown, ranks=per_rank, collectives=collectives),
    )
    return EXIT_OK if result.fine else EXIT_FINDINGS


def settings(graphs: tuple[str, ...], options: dict[str, Any], **more: Any) -> BenchSettings:
    """What was asked for; more: settings that are no options of every command."""
    from commcc.replay.bench.graph_set import BenchSettings
    from commcc.replay.layout import read_groups

    device = options["device"].removeprefix(_EMULATED).removeprefix("-")
    if device in ("", "auto"):
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    return BenchSettings(
        ranks=options["nproc"] or (None if graphs else _DEMO_RANKS),
        seed=options["seed"],
        timeout=options["timeout"],
        groups=read_groups(options["groups"]) if options["groups"] else {},
        hints=options["size_hints"],
        imports=options["imports"],
        ops=click.get_current_context().obj.ops_file,
        repeat=options["repeat"],
        warmup=options["warmup"],
        device=device,
        emulated=options["device"].startswith(_EMULATED),
        cost=options["cost"],
        **more,
    )


def trace_folder(path: str) -> Path:
    """A folder for traces, made if it is not there."""
    folder = Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "is a file" if folder.exists() else f"cannot be made: {error.strerror or error}"
        raise OutputError(what, where=path, hint="name a folder with --trace") from None
    return folder


def named(
    session: Session, graphs: tuple[str, ...], chosen: BenchSettings, say: Callable[[str], None]
) -> list[tuple[str, Program]]:
    """The graphs with the names to show; the small one, before and after two passes, if none is given."""
    if not graphs:
        from commcc.replay.bench.demo import PASSES, demo_pair

        say("building a graph")
        before, after = demo_pair(chosen.ranks or _DEMO_RANKS)
        return [("a small graph", before), (f"after {PASSES}", after)]
    numeric.import_ops(chosen.imports)
    programs = []
    for graph in graphs:
        say(f"reading {graph}")
        program = session.load(graph)
        session.report_notes(program.notes, f"{graph}: ")
        programs.append((graph, program))
    return programs


def where_options() -> list[click.Parameter]:
    """Ranks, their device, their inputs and the cost model."""
    return [
        *numeric.run_options(),
        *starting.options(),
        click.Option(
            ["--device"],
            type=click.Choice(DEVICES),
            default="auto",
            show_default=True,
            help="Where ranks run; auto is cuda where there is one. emulated: one process there stands for all.",
        ),
        click.Option(
            ["--cost"],
            default="",
            metavar="TEXT",
            help="Cost model that predicts, as for commcc simulate; emulated communication takes its times."
            " [default: the device; laptop-cpu on the CPU]",
        ),
    ]


def repeat_options(*, repeat: int) -> list[click.Parameter]:
    """How often graphs are run; repeat: by default."""
    return [
        click.Option(
            ["--repeat"],
            type=click.IntRange(1, MOST_REPETITIONS),
            default=repeat,
            show_default=True,
            metavar="R",
            help="Repetitions of each graph that count; fewer than 6 decide nothing.",
        ),
        click.Option(
            ["--warmup"],
            type=click.IntRange(0, MOST_REPETITIONS),
            default=3,
            show_default=True,
            metavar="W",
            help="Repetitions before those.",
        ),
    ]


command = starting.RankCommand(
    "bench",
    callback=time_graphs,
    help=HELP,
    short_help="Time graphs against each other on real ranks",
    params=[
        graphs_argument(),
        *where_options(),
        *repeat_options(repeat=20),
        click.Option(
            ["--compile", "compiled"],
            is_flag=True,
            help="Run each graph through Inductor as well, which keeps its order, and compare those with each other.",
        ),
        click.Option(
            ["--cuda-graphs", "captured"],
            is_flag=True,
            help="Record each graph once as a CUDA graph and replay that; for graphs without host syncs.",
        ),
        click.Option(
            ["--trace"],
            type=FILE,
            metavar="DIR",
            help=f"Record {RECORDED} more repetitions: traces of every rank for Perfetto in DIR, and what was "
            "measured of every collective next to what was predicted.",
        ),
        click.Option(
            ["--collectives"],
            type=click.IntRange(0),
            default=5,
            show_default=True,
            metavar="N",
            help="With --trace: list the N collectives with the largest error.",
        ),
        click.Option(["--ranks", "per_rank"], is_flag=True, help="Show every rank."),
        *reading_options(imports=False),
        *common_options(),
    ],
)
