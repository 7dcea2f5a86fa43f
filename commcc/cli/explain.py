"""``commcc explain``: why a collective is exposed, and what would have to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_OK, OptionError
from commcc.base.options import value_text
from commcc.cli.parameters import (
    GRAPH_HELP,
    common_options,
    cost_option,
    graph_argument,
    hint_option,
    read_budget,
    reading_options,
)
from commcc.passes.reorder import Reorder

if TYPE_CHECKING:
    from commcc.cli.session import Session
    from commcc.timing.cost import CostModel

HELP = f"""Why COLLECTIVE is exposed: what could hide it, what stops that, what it costs, what would change it.

{GRAPH_HELP} COLLECTIVE is the name of a launch or of its wait; without it, the most exposed
collectives are explained. Savings are simulated: each is the difference to the step in which that one
thing is changed. They do not add up.
"""
WORST = 3
LARGEST = 1e6


@click.pass_obj
def explain_exposed(session: Session, /, graph: str, cost: CostModel, hints: dict[str, int], **chosen: Any) -> int:
    if chosen["collective"] is not None and chosen["worst"] is not None:
        raise OptionError("COLLECTIVE and --worst exclude each other", hint="leave one of them out")
    with session.working("loading PyTorch") as say:
        from commcc.explain import Context, Limits, explain, explain_worst
        from commcc.planning.headroom import budget_bytes, needs_all_sizes
        from commcc.report import explaining
        from commcc.timing import snapshot

        say(f"reading {graph}")
        program = session.load(graph)
        say("simulating")
        seen = snapshot.take(program, cost, hints)
        assert seen.prediction is not None
        window, budget = chosen["max_compute_prefetch"], chosen["memory_budget"]
        if isinstance(budget, (int, float)):
            needs_all_sizes(seen.index, f"memory_budget={budget:g}")
        limits = Limits(
            max_compute_prefetch=None if window is None else round(window),
            max_in_flight_gb=chosen["max_in_flight_gb"],
            memory_budget=budget_bytes(budget, seen.prediction.memory.peak_bytes),
        )
        say("explaining")
        context = Context(seen.index, seen.ident, seen.prediction, cost, limits, program)
        if chosen["collective"] is not None:
            explanations = [explain(context, chosen["collective"])]
        else:
            explanations = explain_worst(context, WORST if chosen["worst"] is None else chosen["worst"])
        document = explaining.explanations(graph, seen, explanations, limits)
    session.report_notes(program.notes)
    session.report_costs(hints, seen, brief_has_times=True)
    session.emit(document, brief=explaining.brief(explanations), view=explaining.view)
    return EXIT_OK


def _limit(ctx: click.Context, parameter: click.Parameter, value: str) -> float | None:
    """A number from 0, or ``none`` for no limit."""
    if value.lower() == "none":
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= LARGEST:
        raise click.BadParameter(f"'{value}' is neither a number from 0 nor 'none'", ctx, parameter)
    return number


command = click.Command(
    "explain",
    callback=explain_exposed,
    help=HELP,
    short_help="Why a collective is exposed, and what would change it",
    params=[
        graph_argument(),
        click.Argument(["collective"], required=False),
        click.Option(
            ["--worst"],
            type=click.IntRange(min=1),
            metavar="N",
            help=f"Explain the N collectives with most exposed time. [default without COLLECTIVE: {WORST}]",
        ),
        click.Option(
            ["--max-compute-prefetch"],
            default=value_text(Reorder.max_compute_prefetch),
            show_default=True,
            metavar="NUMBER",
            callback=_limit,
            help="Compute nodes that may stand between a launch and its wait. 'none': no limit.",
        ),
        click.Option(
            ["--max-in-flight-gb"],
            default=value_text(Reorder.max_in_flight_gb),
            show_default=True,
            metavar="NUMBER",
            callback=_limit,
            help="GiB that may be launched and not yet waited for. 'none': no limit.",
        ),
        click.Option(
            ["--memory-budget"],
            default=f"{Reorder.memory_budget}",
            show_default=True,
            metavar="auto|own|GIB",
            callback=read_budget,
            help="Peak memory of a changed order: the graph's own, auto (that and the larger of 1 GiB and 5 %), or a "
            "number of GiB.",
        ),
        cost_option(required=True),
        hint_option(),
        *reading_options(),
        *common_options(),
    ],
)
