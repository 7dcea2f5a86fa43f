"""How much damage to results of passes the verifier finds, by kind of damage.

    python benchmarks/verify_mutations.py [SAMPLE...] [--each 1] [--torch] [--seed 0]

For each sample graph and each result (passes and presets of commcc; with ``--torch`` PyTorch's own passes
as well) the verifier must call the result the same program, and each damaged copy of it another one. Prints
a table: damaged graphs made, called different, called not proved, and called proved. The last are named: misses,
unless two tensors of the graph happen to hold the same elements.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from commcc.graph.program import Program

#: What is made of every sample.
PIPELINES = (
    "bucket",
    "bucket{strategy=greedy,groups=all,bucket_cap_mb=none}",
    "bucket{strategy=module,modules=layers.*}",
    "bucket{strategy=auto},reorder",
    "tag,dedup,bucket{groups=all},reorder",
    "groups,reorder,cleanup",
)
EXPERTS = ("ep-chunk{modules=layers.*.moe,chunks=2}", "ep-chunk{modules=layers.*.moe,chunks=3},ep-schedule,reorder")


def results(program: Program, name: str, *, with_torch: bool) -> Iterator[tuple[str, Program, Program]]:
    """Name of the result, what it was made from, and the result."""
    from commcc.passes.options import parse_pipeline
    from commcc.run.pipeline import run
    from commcc.timing.cost.model import load_model

    model = load_model("h100")
    for text in (*PIPELINES, *(EXPERTS if "deepseek" in name else ())):
        yield text, program, run(program, parse_pipeline(text), model=model).program
    if with_torch and "deepseek" not in name:
        yield from _peers(program)


def _peers(program: Program) -> Iterator[tuple[str, Program, Program]]:
    from tests.step_graphs import on_cpu
    from tests.torch_passes import PASSES, groups_of, run_pass

    before = on_cpu(program)
    with groups_of(before):
        for name in PASSES:
            after = _tried(run_pass, before, name)
            if after is not None:
                yield f"torch: {name}", before, after


def _tried(run: Callable[[Program, str], Program], program: Program, name: str) -> Program | None:
    """What a pass of PyTorch makes of a program; it does not take every graph."""
    try:
        return run(program, name)
    except Exception as error:  # what other people's code raises is not ours to name
        print(f"  torch: {name}: {type(error).__name__}", file=sys.stderr)
        return None


def damaged(program: Program, kind: str, rng: random.Random) -> Program | None:
    """A copy of the program with one thing wrong."""
    from tests.corruptions import copied
    from tests.verify_mutants import KINDS

    graph = copied(program.graph)
    return replace(program, graph=graph) if KINDS[kind](graph, rng) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", nargs="*", default=["tiny_*"])
    parser.add_argument("--each", type=int, default=1, help="damaged graphs of each kind for each result")
    parser.add_argument("--torch", action="store_true", help="results of PyTorch's own passes as well")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    paths = sorted({p for text in options.samples for p in (ROOT / "sample_graphs").glob(f"{text}.fx.txt*")})
    count = Count()
    for path in paths:
        name = path.name.split(".")[0]
        for text, before, after in results(_load(path), name, with_torch=options.torch):
            count.judge(f"{name}: {text}", before, after)
            for kind in _kinds() * options.each:
                count.damage((name, text, kind), (before, after), options.seed)
    count.show()


@dataclass
class Count:
    """Verdicts so far. table: by kind of damage. refused: correct results that were not proved."""

    table: dict[str, Counter[str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    correct: int = 0
    seconds: float = 0.0

    def judge(self, what: str, before: Program, after: Program) -> None:
        """Count a correct result. Chunks of tokens are never proved whole, so they may be left undecided."""
        start = time.process_time()
        status = _status(before, after)
        self.seconds += time.process_time() - start
        self.correct += 1
        if status != "proved" and not (status == "unproved" and "ep-chunk" in what):
            self.refused.append(f"{what}: {status}")

    def damage(self, what: tuple[str, str, str], pair: tuple[Program, Program], seed: int) -> None:
        """Damage a result once more in one way, and count the verdict."""
        counts = self.table.setdefault(what[2], Counter())
        counts["tried"] += 1
        broken = damaged(pair[1], what[2], random.Random(f"{seed} {' '.join(what)} {counts['tried']}"))
        if broken is None:
            return
        status = _status(pair[0], broken)
        counts["made"] += 1
        counts[status] += 1
        if status == "proved":
            print("  called proved:", *what, counts["tried"], file=sys.stderr)

    def show(self) -> None:
        """Print the table."""
        width = max(map(len, self.table))
        print(f"{'damage':<{width}}  made  different  not proved  proved")
        total: Counter[str] = Counter()
        for kind, counts in self.table.items():
            total.update(counts)
            print(_row(kind, counts, width))
        print(_row("all", total, width))
        each = 1000 * self.seconds / max(self.correct, 1)
        print(f"{self.correct} correct results, {len(self.refused)} not proved, {each:.0f} ms each")
        for line in self.refused:
            print("  refused:", line)


def _load(path: Path) -> Program:
    from commcc.serialization import load

    return load(path)


def _kinds() -> list[str]:
    from tests.verify_mutants import KINDS

    return list(KINDS)


def _status(before: Program, after: Program) -> str:
    from commcc.verify import verify

    return verify(before, after).status


def _row(kind: str, counts: Counter[str], width: int) -> str:
    figures = (counts["made"], counts["different"], counts["unproved"], counts["proved"])
    return f"{kind:<{width}}" + "".join(f"{n:>{w}}" for n, w in zip(figures, (6, 11, 12, 8), strict=True))


if __name__ == "__main__":
    main()
