"""What scripts call; the same names stand on ``commcc`` itself.

    program = commcc.load("bw.fx.txt.gz")
    result = commcc.run(program, preset="auto", cost="h100")
    result.verified                                       # 'proved'
    commcc.simulate(program).timeline.step_ns, commcc.simulate(result.program).timeline.step_ns
    commcc.verify(program, result.program).status, commcc.diff(program, result.program).merged
    commcc.save(result.program, "bw.tuned.fx.txt.gz")

All raise :class:`commcc.base.errors.CommccError`, whose text is one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from commcc.diff import GraphDiff
    from commcc.graph.program import Note, Program
    from commcc.run.pipeline import RunResult
    from commcc.timing.predict import Prediction
    from commcc.timing.snapshot import Snapshot
    from commcc.verify import Verdict

_COST = "h100"


def load(path: str | Path, *, ops: str | Path | None = None) -> Program:
    """A graph from any file that the command line reads, ``FILE::NAME`` too; nothing in it is executed.

    ops: a file that describes ops of other libraries than PyTorch's, as ``--ops``.
    """
    from commcc import serialization

    if ops is None:
        return serialization.load(str(path))
    from commcc.serialization.op_files import read_ops

    return serialization.load(str(path), descriptions=read_ops(ops, frozenset()))


def save(program: Program, path: str | Path) -> list[Note]:
    """Write ``.fx.txt``, ``.fx.txt.gz`` or ``.pt2``; what the format cannot hold."""
    from commcc import serialization

    return list(serialization.save(program, path))


def inspect(program: Program, *, cost: str | None = _COST, hints: Mapping[str, int] | None = None) -> Snapshot:
    """Index, collectives with their roles, metrics, and what a step takes; ``cost`` as ``--cost``."""
    from commcc.timing.cost import load_model
    from commcc.timing.snapshot import take

    return take(program, None if cost is None else load_model(cost), hints)


def simulate(program: Program, *, cost: str = _COST, hints: Mapping[str, int] | None = None) -> Prediction:
    """The predicted step: timeline, bounds, memory."""
    prediction = inspect(program, cost=cost, hints=hints).prediction
    assert prediction is not None
    return prediction


def run(
    program: Program,
    pipeline: str | None = None,
    *,
    preset: str | None = None,
    cost: str | None = _COST,
    hints: Mapping[str, int] | None = None,
) -> RunResult:
    """Passes in a row, as text or a preset (``auto`` without either); every result is verified."""
    from commcc.passes.options import parse_pipeline
    from commcc.run.forms import from_preset
    from commcc.run.pipeline import run as run_passes
    from commcc.timing.cost import load_model

    if pipeline is not None and preset is not None:
        raise OptionError("a pipeline and a preset are given", hint="give one of them")
    passes = parse_pipeline(pipeline) if pipeline is not None else from_preset(preset or "auto")
    return run_passes(program, passes, model=None if cost is None else load_model(cost), hints=hints)


def verify(before: Program, after: Program, *, same_constants: bool = False) -> Verdict:
    """Is ``after`` the same program as ``before``: proved, different, or not decided; as ``--same-constants``."""
    from commcc.verify import verify as compare

    return compare(before, after, same_constants=same_constants)


def diff(before: Program, after: Program, *, cost: str | None = None) -> GraphDiff:
    """What was merged, moved, added and removed."""
    from commcc.diff import diff as compare
    from commcc.timing.cost import load_model

    return compare(before, after, model=None if cost is None else load_model(cost))
