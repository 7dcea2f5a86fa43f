"""What commands say on standard error about costs: hints that were used, and what the model assumed."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from commcc.base.errors import closest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.cli.session import Session
    from commcc.timing.snapshot import Snapshot


def report_costs(
    session: Session, hints: Mapping[str, int], *snapshots: Snapshot, brief_has_times: bool = False
) -> None:
    """One note on the sizes that hints stand for, a warning for each assumption and each useless hint.

    What the model assumed is not said with ``--quiet``, unless the one line that it prints has times.
    """
    from commcc.report import costs
    from commcc.timing.snapshot import cost_warnings, hints_used

    used = hints_used(*snapshots)
    note = costs.hints_note({"source": hint.source} for hint in used)
    if note is not None:
        session.note(note)
    symbols = [hint.symbol for hint in used]
    for pattern in hints:
        if pattern not in session.used_hints and not any(fnmatchcase(symbol, pattern) for symbol in symbols):
            near = closest(pattern, symbols)
            session.warn(f"hint '{pattern}' fits no size that is known only at run time{near}")
    for warning in () if session.quiet and not brief_has_times else cost_warnings(*snapshots):
        session.warn(f"cost model: {warning}")
