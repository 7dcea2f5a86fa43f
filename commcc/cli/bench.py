"""``commcc bench``: graphs timed beside each other on real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.cli import numeric
from commcc.cli.parameters import GRAPH_HELP, common_options, graphs_argument, trust_option
from commcc.errors import EXIT_FINDINGS, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.cli.session import Session
    from commcc.program import Program
    from commcc.replay.bench import Benchmark

HELP = f"""Run graphs on real ranks, in turns and on the same inputs, and say which is faster.

{GRAPH_HELP} The first one is what the others are compared with. The ranks are processes on this
machine, each with a CUDA device of its own and NCCL, or on its CPU with gloo. Without GRAPH, a small
graph is run before and after two passes: that checks an installation.

Exits with 0 when all graphs give back the same, to the bit or but for the rounding of sums that one of
them makes of other parts; whichever is faster.
"""
MOST_REPETITIONS = 10_000
DEVICES = ("auto", "cpu", "cuda")
#: Ranks of the small graph when nobody says how many.
_DEMO_RANKS = 2
#: Options that mean the same as those of ``verify --numeric``.
_SHARED = ("nproc", "seed", "timeout", "groups", "size_hints")


@click.pass_obj
def _bench(session: Session, /, graphs: tuple[str, ...], per_rank: bool, **options: Any) -> int:
    with session.working("loading PyTorch") as say:
        found = _run(session, graphs, options, say)
    from commcc.report import benching

    document = benching.benchmark(list(graphs), found)
    session.emit(document, brief=benching.brief(document), view=lambda: benching.view(document, ranks=per_rank))
    return EXIT_OK if found.fine else EXIT_FINDINGS


def _run(session: Session, graphs: tuple[str, ...], options: dict[str, Any], say: Callable[[str], None]) -> Benchmark:
    from commcc.replay import read_groups
    from commcc.replay.bench import bench
    from commcc.replay.bench_set import BenchSettings

    settings = BenchSettings(
        ranks=options["nproc"] or (None if graphs else _DEMO_RANKS),
        seed=options["seed"],
        timeout=options["timeout"],
        groups=read_groups(options["groups"]) if options["groups"] else {},
        hints=options["size_hints"],
        repeat=options["repeat"],
        warmup=options["warmup"],
        device=_device(options["device"]),
        cost=options["cost"],
    )
    named = _named(session, graphs, settings.ranks or _DEMO_RANKS, say)
    say("running the graphs")
    return bench(named, settings)


def _device(asked: str) -> str:
    """The device that was asked for; ``auto`` is a CUDA device where there is one."""
    if asked != "auto":
        return asked
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _named(
    session: Session, graphs: tuple[str, ...], ranks: int, say: Callable[[str], None]
) -> list[tuple[str, Program]]:
    if not graphs:
        from commcc.replay.demo import PASSES, demo_pair

        say("making a graph")
        before, after = demo_pair(ranks)
        return [("a small graph", before), (f"after {PASSES}", after)]
    named = []
    for graph in graphs:
        say(f"reading {graph}")
        program = session.load(graph)
        session.report_notes(program.notes, f"{graph}: ")
        named.append((graph, program))
    return named


def _options() -> list[click.Option]:
    shared = {option.name: option for option in numeric.options()}
    return [
        *(shared[name] for name in _SHARED),
        click.Option(
            ["--device"],
            type=click.Choice(DEVICES),
            default="auto",
            show_default=True,
            help="Where ranks run; auto is cuda where there is such a device.",
        ),
        click.Option(
            ["--cost"],
            default="",
            metavar="TEXT",
            help="Cost model that predicts, as for commcc simulate. [default: the device; laptop-cpu on the CPU]",
        ),
        click.Option(
            ["--repeat"],
            type=click.IntRange(1, MOST_REPETITIONS),
            default=20,
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
        click.Option(["--ranks", "per_rank"], is_flag=True, help="Show every rank."),
    ]


command = click.Command(
    "bench",
    callback=_bench,
    help=HELP,
    short_help="Time graphs beside each other on real ranks",
    params=[graphs_argument(), *_options(), trust_option(), *common_options()],
)
