"""``commcc profile``: times of ops and collectives on this machine, as a cost file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK
from commcc.cli import bench, starting
from commcc.cli.parameters import FILE, GRAPH_HELP, common_options, graphs_argument, reading_options

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = f"""Run graphs on real ranks and write what their ops and collectives take, for --cost profile=OUT.

{GRAPH_HELP} They run as commcc bench runs them. The report says how well the simulator predicts the
step without the file and with it. Without GRAPH, a small graph is run before and after two passes.
"""
DEFAULT_OUTPUT = "costs.yaml"


@click.pass_obj
def measure(session: Session, /, graphs: tuple[str, ...], output: str, recorded: int, **options: Any) -> int:
    me = starting.place(options)
    options["nproc"] = starting.ranks(me, options)
    with session.working("loading PyTorch") as say, starting.runner(me, options) as runner:
        from commcc.base.files import replace_file
        from commcc.replay.bench.benchmark import Elsewhere
        from commcc.replay.bench.profiling import profile

        settings = bench.settings(graphs, options, recorded=recorded)
        named = bench.named(session, graphs, settings, say)
        target = session.output(output, (".yaml", ".yml"))
        say("running the graphs")
        result = profile(named, settings, runner)
        if isinstance(result, Elsewhere):
            return starting.say_where(session, result)
        say(f"writing {target}")
        replace_file(target, lambda stream: stream.write(result.text.encode()))
    from commcc.report import benching

    document = benching.profiled(graphs, str(target), result)
    session.emit(document, brief=str(target), view=benching.view_profile)
    return EXIT_OK


command = starting.RankCommand(
    "profile",
    callback=measure,
    help=HELP,
    short_help="Measure op and collective times for the cost model",
    params=[
        graphs_argument(),
        click.Option(
            ["-o", "--output"],
            type=FILE,
            metavar="OUT",
            default=DEFAULT_OUTPUT,
            show_default=True,
            help="Where to write, .yaml.",
        ),
        *bench.where_options(),
        *bench.repeat_options(repeat=10),
        click.Option(
            ["--recorded"],
            type=click.IntRange(1, 1000),
            default=5,
            show_default=True,
            metavar="R",
            help="Further repetitions, recorded node by node, whose medians are written.",
        ),
        *reading_options(imports=False),
        *common_options(),
    ],
)
