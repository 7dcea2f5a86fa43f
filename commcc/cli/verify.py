"""``commcc verify``: is AFTER the same program as BEFORE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_FINDINGS, EXIT_OK
from commcc.base.gc_pause import no_collection
from commcc.cli import numeric
from commcc.cli.parameters import common_options, graph_argument, read_budget, reading_options

if TYPE_CHECKING:
    from commcc.cli.session import Session

HELP = """Is AFTER the same program as BEFORE, whoever rewrote it.

Exits with 0 when that is proved. Exits with 1 when the two differ, and also when they could not be
proved equal: the first line says which, and --json has it under "verified" (proved, different,
unproved).

With --numeric both graphs are run as well, on virtual ranks in this process or with --nproc on processes
with gloo. Their inputs are worked out from BEFORE, and everything they return is compared to the bit.
Exits with 0 when the structure shows no difference and the numbers are equal, or differ by no more than
the rounding of sums that AFTER adds up from other parts.

With --memory-budget the peak memory of both graphs is worked out anew; exits with 1 when AFTER passes
the budget.
"""


@click.pass_obj
def verify_pair(
    session: Session,
    /,
    before: str,
    after: str,
    memory_budget: str | float | None,
    same_constants: bool,
    **options: Any,
) -> int:
    hints = dict(options["size_hints"])
    request = numeric.read(click.get_current_context(), options)
    with session.working("loading PyTorch") as say:
        from commcc.planning.headroom import budget_bytes
        from commcc.report import verifying
        from commcc.run.sized import verify_sized
        from commcc.verify import compare_peaks

        if request is not None:  # ahead of the graphs, which may hold these ops
            numeric.import_ops(request.imports)
        else:
            click.get_current_context().with_resource(no_collection(stays=True))
        say(f"reading {before}")
        old = session.load(before)
        say(f"reading {after}")
        new = session.load(after)
        say("verifying")
        verdict, new = verify_sized(old, new, same_constants=same_constants)
        ran = peak = None
        if request is not None:
            say("running both graphs")
            ran = numeric.run(request, old, new)
        if memory_budget is not None:
            peak = compare_peaks(old, new, lambda own: budget_bytes(memory_budget, own) or 0, hints)
    session.report_notes(old.notes, f"{before}: ")
    session.report_notes(new.notes, f"{after}: ")
    document = verifying.verification(before, after, verdict, ran, peak)
    session.emit(document, brief=verifying.brief(document), view=verifying.view)
    # Numbers that agree are no proof, but they settle what the structure left open.
    fine = verdict.status == "proved" if ran is None else verdict.status != "different" and ran.fine
    return EXIT_OK if fine and (peak is None or peak.within) else EXIT_FINDINGS


command = click.Command(
    "verify",
    callback=verify_pair,
    help=HELP,
    short_help="Is AFTER the same program as BEFORE",
    params=[
        graph_argument("before"),
        graph_argument("after"),
        click.Option(
            ["--memory-budget"],
            metavar="auto|own|GIB",
            callback=read_budget,
            help="Also require that AFTER's peak memory stays within: BEFORE's own, auto (that and the larger of "
            "1 GiB and 5 %), or a number of GiB.",
        ),
        click.Option(
            ["--same-constants"],
            is_flag=True,
            help="Take constants of one name to be the same where neither file has their values: dumps of graphs say "
            "their shapes alone.",
        ),
        *numeric.options(),
        *reading_options(imports=False),
        *common_options(),
    ],
)
