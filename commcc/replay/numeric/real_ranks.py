"""Both programs on real gloo ranks, and what each rank says of them.

    gaps = run_pair(pair, before, after, settings)         # one RankGaps for each rank

Every rank is a process that runs :func:`main` in a folder with ``before.fx.txt``, ``after.fx.txt`` and
``settings.json``, and writes its comparison to ``rankN.json``.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from commcc.replay.numeric.compare import RankGaps, compare_rank
from commcc.replay.numeric.pair import Settings, make_pair
from commcc.replay.place import CpuPlace
from commcc.replay.rank_run import RankRun
from commcc.replay.ranks.worker import join, serve
from commcc.replay.work_folder import work_folder
from commcc.serialization import load, save
from commcc.serialization.op_files import read_with

if TYPE_CHECKING:
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.replay.numeric.pair import Pair
    from commcc.replay.ranks.watch import Watch


def run_pair(pair: Pair, before: Program, after: Program, settings: Settings) -> list[RankGaps]:
    """Both programs on as many gloo ranks as the pair's layout has, and every rank's comparison.

    Raises :class:`RanksError` for ranks that did not come to an end.
    """
    # Imported here: a rank needs no launcher.
    from commcc.replay.ranks.launch import run_ranks

    with work_folder("ranks") as folder:
        save(before, folder / "before.fx.txt")
        save(after, folder / "after.fx.txt")
        (folder / "settings.json").write_text(settings.to_text(), encoding="utf-8")
        written = run_ranks(pair.layout.world, folder, settings.timeout, worker=__name__)
    return [RankGaps.of(words) for words in written]


def main() -> None:
    """Run the rank that the environment names, and exit with 0 when there is a comparison."""
    serve(_run, Settings)


def _run(folder: Path, rank: int, settings: Settings, watch: Watch) -> dict[str, Json]:
    """Both runs and the comparison."""
    known = read_with(settings.ops, settings.imports)
    programs = [load(folder / f"{name}.fx.txt", descriptions=known) for name in ("before", "after")]
    pair = make_pair(programs[0], programs[1], settings)
    rank_inputs = pair.maker.of_rank(rank)
    team = join(pair.layout, rank, CpuPlace(), settings.timeout, watch)
    results = []
    for name, prepared in (("BEFORE", pair.old), ("AFTER", pair.new)):
        watch.program = name
        run = RankRun(prepared, rank, settings.seed, watch.progress)
        results.append(run(pair.inputs(of=prepared, rank_inputs=rank_inputs)))
        watch.stage(f"waiting for the other ranks to end {name}")
        team.barrier()
    gaps = compare_rank(results[0], results[1], rank)
    team.leave()
    raised = tuple({**pair.old.settings.raised, **pair.new.settings.raised})
    return asdict(replace(gaps, raised=raised))
