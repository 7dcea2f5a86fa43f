"""A pair of graphs of which the verifier and the numbers say different things, made as small as a report needs.

    opinion = asked(before, after, run)             # Opinion(verify='proved', numeric='different')
    small = shrunk(before, after, run, opinion)     # a pair of a few nodes with the same opinion

Whole parts are taken away from both graphs: outputs, what only they need, and what leads to a node of one name and
shape, which becomes an input. A pair counts as long as both the verifier and the numbers say of it what they said of
the whole one, so that what is left is a contradiction by itself.

Limits: launches are not made inputs; a difference that takes all of a graph stays whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commcc.base.errors import CommccError
from commcc.base.progress import detail
from commcc.replay.numeric.verdict import DIFFERENT, EQUAL, WITHIN
from commcc.serialization.sections import with_used_groups
from commcc.verify import TRIES, reduced, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.graph.program import Program
    from commcc.replay.numeric.pair import Settings
    from commcc.replay.numeric.verdict import Numeric

    Run = Callable[[Program, Program], Numeric]


@dataclass(frozen=True)
class Opinion:
    """What the verifier says of a pair, and what the numbers say.

    nodes: where either sees a difference, in AFTER.
    """

    verify: str
    numeric: str
    nodes: tuple[str, ...] = ()

    @property
    def contradiction(self) -> str | None:
        """In which way the two disagree; None where they do not, or the numbers decide nothing."""
        if self.numeric == DIFFERENT and self.verify != "different":
            return "a wrong proof" if self.verify == "proved" else "a difference that the verifier does not decide"
        if self.numeric in (EQUAL, WITHIN) and self.verify != "proved":
            return "a false alarm" if self.verify == "different" else "a gap of the verifier"
        return None

    def same(self, other: Opinion) -> bool:
        """Whether both say the same; equal and within rounding are one."""
        fine = (EQUAL, WITHIN)
        return self.verify == other.verify and (
            self.numeric == other.numeric or (self.numeric in fine and other.numeric in fine)
        )


def asked(before: Program, after: Program, run: Run) -> Opinion:
    """Both opinions. Raises :class:`CommccError` where the graphs cannot be run."""
    verdict = verify(before, after)
    numeric = run(before, after)
    named = [finding.node for finding in (*verdict.findings, *verdict.unproved)]
    # The nearest to where values part come first.
    parted = [name for value in numeric.values for name in (*reversed(value.producers), value.node)]
    return Opinion(verdict.status, numeric.status, tuple(dict.fromkeys((*named[:3], *parted))))


def settings_within(settings: Settings, before: Program, after: Program) -> Settings:
    """How to run a part of a pair: ranks of groups that no collective of it uses are not told."""
    used = {name for program in (before, after) for name in with_used_groups(program.graph, program.root, {})}
    return replace(settings, groups={name: parts for name, parts in settings.groups.items() if name in used})


def shrunk(before: Program, after: Program, run: Run, opinion: Opinion, tries: int = TRIES) -> tuple[Program, Program]:
    """A smaller pair of the same opinion."""
    count = 0

    def shows(old: Program, new: Program) -> bool:
        nonlocal count
        count += 1
        detail(f"try {count} of at most {tries}, {len(old.graph.nodes):,} and {len(new.graph.nodes):,} nodes")
        try:
            # The verifier is asked first: it takes less.
            return verify(old, new).status == opinion.verify and opinion.same(
                Opinion(opinion.verify, run(old, new).status)
            )
        except CommccError:  # cut so that it cannot be run
            return False

    return reduced(before, after, shows, tries, opinion.nodes)
