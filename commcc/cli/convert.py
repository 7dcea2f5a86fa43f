"""``commcc convert``: write a graph in another format, and say what that format could not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from commcc.base.errors import EXIT_OK, OptionError
from commcc.base.files import replace_file
from commcc.cli.parameters import (
    GRAPH_HELP,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    output_option,
    reading_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from commcc.cli.session import Session
    from commcc.timing.cost import CostModel

HELP = f"""Write a graph in another format, and say what that format could not hold.

{GRAPH_HELP} Node order, names, arguments and metadata stay as they are.

OUT.et gives execution traces of MLCommons Chakra for simulators of networks: OUT.0.et, OUT.1.et, ..., one for each
rank, with the times of --cost, the bytes and process groups of collectives, and what depends on what.
"""
TRACES = ".et"
#: Ranks that a layout of traces may have.
MOST_RANKS = 1 << 17
#: Options of traces, by parameter.
_OF_TRACES = {"cost": "--cost", "hints": "--hint", "ranks": "--ranks", "groups": "--groups"}


@click.pass_obj
def convert(
    session: Session, /, graph: str, output: str, cost: CostModel | None, hints: dict[str, int], **given: Any
) -> int:
    if output.lower().endswith(TRACES):
        return _traces(session, graph, output, cost, hints, given)
    source = click.get_current_context().get_parameter_source
    typed = [flag for name, flag in _OF_TRACES.items() if source(name) is ParameterSource.COMMANDLINE]
    if typed:
        raise OptionError(f"{', '.join(typed)}: only {TRACES} files have times and ranks", hint="leave it out")
    with session.working("loading PyTorch") as say:
        from commcc import serialization
        from commcc.report import converting

        target = session.output(output, (*serialization.EXTENSIONS, TRACES))
        say(f"reading {graph}")
        program = session.load(graph)
        say(f"writing {target}")
        lost = serialization.save(program, target)
    document = converting.conversion(graph, str(target), program, lost)
    session.emit(document, brief=str(target), view=converting.view)
    return EXIT_OK


def _traces(
    session: Session,
    graph: str,
    output: str,
    cost: CostModel | None,
    hints: Mapping[str, int],
    given: Mapping[str, Any],
) -> int:
    """One file for each rank."""
    if cost is None:
        raise OptionError("traces have times, and need costs", hint="name a device, as in --cost h100")
    target = session.output(output, (TRACES,))
    with session.working("loading PyTorch") as say:
        from commcc.graph.index import build_index
        from commcc.replay.layout import make_layout, read_groups
        from commcc.report import converting
        from commcc.report.chakra import Traces, messages
        from commcc.timing import snapshot

        messages()  # refused before any work is done
        say(f"reading {graph}")
        program = session.load(graph)
        groups = read_groups(given["groups"]) if given["groups"] else {}
        index = build_index(program, hints)
        layout = make_layout([(program, index)], given=groups, most=MOST_RANKS)
        seen = snapshot.Snapshot.of(layout.placed(index, groups)).priced(cost)
        ranks = _ranks(given["ranks"], layout.world)
        traces = Traces.of(seen, layout)
        for number, rank in enumerate(ranks, 1):
            say(f"{number}/{len(ranks)} writing {_named(target, rank)}")
            replace_file(_named(target, rank), lambda stream, rank=rank: traces.write(rank, stream))  # type: ignore[misc]
    for text in layout.assumed:
        session.note(text)
    session.report_costs(hints, seen)
    document = converting.traces(graph, str(target), seen, traces, ranks)
    session.emit(document, brief=[str(_named(target, rank)) for rank in ranks], view=converting.view_traces)
    return EXIT_OK


def _named(target: Path, rank: int) -> Path:
    """``step.3.et``, as simulators look for it."""
    return target.with_name(f"{target.name[: -len(TRACES)]}.{rank}{TRACES}")


def _ranks(text: str | None, world: int) -> tuple[int, ...]:
    """The ranks of ``0-3,8``; all without a text."""
    if text is None:
        return tuple(range(world))
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or not int(first) <= int(last or first) < world:
            raise OptionError(f"--ranks: '{part[:40]}' is no rank of 0 to {world - 1}", hint="as in --ranks 0-3,8")
        ranks.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(ranks))


command = click.Command(
    "convert",
    callback=convert,
    help=HELP,
    short_help="Write a graph in another format, or as traces for network simulators",
    params=[
        graph_argument(),
        output_option(required=True, formats=".fx.txt, .fx.txt.gz, .pt2 or .et"),
        click.Option(["--ranks"], metavar="RANKS", help="Traces of these ranks, as in 0-3,8. [default: all]"),
        click.Option(
            ["--groups"],
            default="",
            metavar="TEXT",
            help="Which ranks each group has, where the graph does not say: '33=0,2|1,3;35=0-1|2-3'.",
        ),
        cost_option(),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
