"""What every way into a training job takes for options, checked once."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OptionError, closest
from commcc.timing.cost import DEFAULT_MODEL, CostModel

if TYPE_CHECKING:
    from pathlib import Path

KEEP, RAISE = "keep", "raise"
#: What is done with a graph that no plan was made for.
ERROR, REPLAN, SKIP = "error", "replan", "skip"
#: What is read as text or as a path; the other options are compared with what they may be.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("pipeline", "preset"), ((str,), "text")),
    **dict.fromkeys(("plan", "ops", "report_dir"), ((str, os.PathLike), "a path")),
    "cost": ((str, CostModel), "text, or a cost model"),
}


@dataclass(frozen=True)
class Options:
    """pipeline, preset: as ``--passes`` and ``--preset`` of ``commcc run``; the preset ``auto`` without either.

    cost: as ``--cost``, the same on all ranks.
    plan: a plan file, or a folder of them, that ``commcc run --plan-out`` wrote; each is applied to the graph that it
    was made for. on_mismatch: with plans, what becomes of a graph that communicates and has none: ``error``,
    ``replan`` by pipeline or preset, or ``skip``.
    on_refusal: ``keep`` leaves a graph that cannot be rewritten, or whose result is not proved, as it is and says so
    in the log; ``raise`` raises.
    ops: a file that describes ops of other libraries than PyTorch's, as ``--ops`` (:func:`read_ops`); the same on all
    ranks.
    report_dir: where each graph is kept before and after it is rewritten, for every command that reads graphs.
    """

    pipeline: str | None = None
    preset: str | None = None
    cost: str | CostModel = DEFAULT_MODEL
    plan: str | Path | None = None
    on_mismatch: str = ERROR
    on_refusal: str = KEEP
    ops: str | Path | None = None
    report_dir: str | Path | None = None

    @staticmethod
    def of(given: dict[str, Any]) -> Options:
        """Raises :class:`OptionError` for options that there are not, or that contradict each other."""
        known = [field.name for field in dataclasses.fields(Options)]
        unknown = [name for name in given if name not in known]
        if unknown:
            hint = f"there are {', '.join(known)}"
            raise OptionError(f"no option '{unknown[0]}'{closest(unknown[0], known)}", hint=hint)
        for name, value in given.items():
            kinds, words = _KINDS.get(name, ((object,), ""))
            if value is not None and not isinstance(value, kinds):
                raise OptionError(f"{name} is {words}, not {value!r}")
        options = Options(**given)
        planned = options.pipeline is not None or options.preset is not None
        if options.pipeline is not None and options.preset is not None:
            raise OptionError("a pipeline and a preset are given", hint="give one of them")
        if options.on_refusal not in (KEEP, RAISE):
            raise OptionError(f"on_refusal is '{KEEP}' or '{RAISE}', not {options.on_refusal!r}")
        if options.on_mismatch not in (ERROR, REPLAN, SKIP):
            raise OptionError(f"on_mismatch is '{ERROR}', '{REPLAN}' or '{SKIP}', not {options.on_mismatch!r}")
        if options.plan is not None and options.on_mismatch != REPLAN and planned:
            raise OptionError("a plan and a pipeline are given", hint="on_mismatch='replan' uses both")
        return options
