"""``commcc verify``: is AFTER the same program as BEFORE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commcc.base.errors import EXIT_FINDINGS, EXIT_OK
from commcc.cli import numeric
from commcc.cli.parameters import common_options, graph_argument, trust_option

if TYPE_CHECKING:
    from commcc.cli.session import Session
    from commcc.graph.program import Program
    from commcc.verify.peak import Peak

HELP = """Is AFTER the same program as BEFORE, whoever rewrote it.

Exits with 0 when that is proved. Exits with 1 when the two differ, and also when they could not be
proved equal: the first line says which, and --json has it under "verified" (proved, different,
unproved).

With --numeric both graphs are run as well, on inputs worked out from BEFORE, and everything they give
back is compared to the bit. Exits with 0 when the structure shows no difference and the numbers are
equal, or differ by no more than the rounding of sums that AFTER makes of other parts.

With --memory-budget the peak memory of both graphs is worked out anew; exits with 1 when AFTER passes
the budget.
"""


@click.pass_obj
def _verify(session: Session, /, before: str, after: str, memory_budget: str | float | None, **options: Any) -> int:
    hints = dict(options["size_hints"])
    request = numeric.read(click.get_current_context(), options)
    with session.working("loading PyTorch") as say:
        from commcc.report import documents, verifying
        from commcc.verify import verify

        if request is not None:
            numeric.import_ops(request.imports)
        say(f"reading {before}")
        old = session.load(before)
        say(f"reading {after}")
        new = session.load(after)
        say("verifying")
        verdict = verify(old, new)
        if request is not None:
            say("running both graphs")
        ran = numeric.run(request, old, new) if request is not None else None
        peak = None if memory_budget is None else _peak(old, new, memory_budget, hints)
    session.report_notes(old.notes, f"{before}: ")
    session.report_notes(new.notes, f"{after}: ")
    document = documents.verification(before, after, verdict, ran, peak)
    session.emit(document, brief=verdict.status + _brief(document), view=verifying.view)
    fine = verdict.status == "proved" if ran is None else verdict.status != "different" and ran.fine
    return EXIT_OK if fine and (peak is None or peak.within) else EXIT_FINDINGS


def _peak(old: Program, new: Program, budget: str | float, hints: dict[str, int]) -> Peak:
    from commcc.planning.headroom import budget_bytes
    from commcc.verify.peak import compare_peaks

    return compare_peaks(old, new, lambda own: budget_bytes(budget, own) or 0, hints)


def _budget(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | float | None:
    if text is None or text in ("auto", "own"):
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise click.BadParameter(f"'{text}' is neither auto nor own nor a number of GiB.")
    return value


def _brief(document: dict[str, Any]) -> str:
    from commcc.report.numeric import brief

    return brief(document["numeric"])


command = click.Command(
    "verify",
    callback=_verify,
    help=HELP,
    short_help="Is AFTER the same program as BEFORE",
    params=[
        graph_argument("before"),
        graph_argument("after"),
        click.Option(
            ["--memory-budget"],
            metavar="auto|own|GIB",
            callback=_budget,
            help="Also require that AFTER's peak memory stays within: BEFORE's own, auto (that and the larger of "
            "1 GiB and 5 %), or a number of GiB.",
        ),
        *numeric.options(),
        trust_option(),
        *common_options(),
    ],
)
