"""Attack the verifier: random small graphs, edited at random, both run on two ranks; a wrong `proved` is a failure.

    python tools/attack_verify.py --pairs 20000 [--seed 0] [--edits 3] [--kinds move,operand] [--jsonl FILE]

For each pair the truth is what both graphs leave (outputs, inputs, constants, strides, shared memory) on four sets of
inputs, with launches that read their inputs at once and ones that read them when they are waited for, bit for bit; but
for the last bits where the verifier remarks that an op reads the same elements with other strides. Prints a row for
each kind of edit: pairs, how many are really the same, and what the verifier says of both. Exits with 1 when a pair is
called proved and is not the same, or when the verifier crashes. A pair that is called different and is the same on all
inputs is a false alarm: it is counted by the rule that was named, not a failure (work that is done twice, and a launch
that nobody waits for, are such).
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from commcc.graph.program import Program
    from commcc.verify import Verdict

RUNS = 4


@dataclass
class Attack:
    """One pair. same: whether both leave the same; None when BEFORE itself is a race or does not run."""

    seed: int
    kinds: tuple[str, ...]
    before: Program
    after: Program
    same: bool | None
    verdict: Verdict

    @property
    def wrong(self) -> bool:
        return self.verdict.status == "crash" or (self.same is False and self.verdict.status == "proved")

    @property
    def false_alarm(self) -> bool:
        return self.same is True and self.verdict.status == "different"


def attack(seed: int, kinds: tuple[str, ...], edits: int) -> Attack | None:
    """The pair with this number; None where nothing came of it."""
    from commcc.verify import Finding, Verdict, verify
    from tests.attack_edits import EDITS, edited
    from tests.attack_graphs import random_program

    rng = random.Random(f"attack {seed}")
    try:
        before = random_program(rng)
    except Exception:  # PyTorch does not take every random graph
        return None
    after, done = before, []
    wanted = rng.randint(1, edits)
    for _ in range(4 * edits):  # many kinds have nothing to edit in a small graph
        kind = rng.choice(kinds or EDITS)
        made = edited(after, kind, rng)
        if made is not None:
            after = made
            done.append(kind)
        if len(done) == wanted:
            break
    if not done:
        return None
    try:
        verdict = verify(before, after)
    except Exception as error:
        verdict = Verdict("crash", (Finding("order", "", repr(error)),))
    # Sums of elements that lie in another way may be rounded in another way, as the remark says.
    rounded = any("with other strides" in note.text for note in verdict.notes)
    return Attack(seed, tuple(done), before, after, really_same(before, after, rounded=rounded), verdict)


def really_same(before: Program, after: Program, *, rounded: bool = False) -> bool | None:
    """Whether both programs leave the same, but for rounding if ``rounded``; None when that says nothing."""
    from tests.attack_graphs import random_inputs
    from tests.attack_world import World, equal, fits

    same = None  # as long as no input fits
    for number in range(RUNS):
        inputs = random_inputs(before, number)
        if not all(fits(each.graph, inputs[0]) for each in (before, after)):
            continue
        try:
            old = World(before, inputs).run()
            if not equal(old, World(before, inputs, late=True).run()):
                return None
        except Exception:  # an index out of range, a view that strides or this size do not allow
            if number:
                continue
            return None
        same = all(_run_same(old, after, inputs, late, rounded) for late in (False, True))
        if not same:
            break
    return same


def _run_same(old: Any, after: Program, inputs: Any, late: bool, rounded: bool) -> bool:
    from tests.attack_world import World, equal

    try:
        return equal(old, World(after, inputs, late=late).run(), rounded=rounded)
    except Exception:  # what does not run is not the same
        return False


@dataclass
class Table:
    """Counts by kind of edit, and the pairs worth looking at."""

    tried: int = 0
    rows: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[int] = field(default_factory=list)
    alarms: Counter[str] = field(default_factory=Counter)

    def count(self, found: Attack) -> None:
        self.tried += 1
        name = found.kinds[0] if len(found.kinds) == 1 else "several"
        what = {True: "same", False: "other", None: "race"}[found.same]
        for row in (name, "all"):
            counts = self.rows.setdefault(row, Counter())
            counts["pairs"] += 1
            counts[what] += 1
            counts[f"{what} {found.verdict.status}"] += 1
        if found.wrong:
            self.wrong.append(found.seed)
        if found.false_alarm:
            first = found.verdict.findings[0]
            seen = any(finding.way for finding in found.verdict.findings)
            self.alarms[first.rule if seen else f"{first.rule}, which nothing depends on"] += 1

    def show(self) -> None:
        columns = ("pairs", "same", "same proved", "same unproved", "same different")
        columns += ("other", "other proved", "other unproved", "other different", "race")
        print(f"{'edit':<12}" + "".join(f"{name:>16}" for name in columns))
        for name, counts in sorted(self.rows.items(), key=lambda row: row[0] == "all"):
            print(f"{name:<12}" + "".join(f"{counts[column]:>16}" for column in columns))
        print("same and called different, by rule:", ", ".join(f"{n} {rule}" for rule, n in self.alarms.most_common()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--edits", type=int, default=3, help="at most so many edits of one graph")
    parser.add_argument("--kinds", default="", help="only these, by name")
    parser.add_argument("--show", action="store_true", help="print the graphs of wrong pairs and false alarms")
    parser.add_argument("--jsonl", help="write a line for each pair that is wrong or a false alarm")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    table, seed = Table(), options.seed
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # stopped early, it still shows its table
        signal.signal(number, lambda number, _frame: stopped.append(number))
    while table.tried < options.pairs and not stopped:
        found = attack(seed, tuple(filter(None, options.kinds.split(","))), options.edits)
        seed += 1
        if found is not None:
            table.count(found)
            _tell(found, options)
    if stopped:
        print(f"stopped before pair {seed}")
    table.show()
    return 1 if table.wrong else 0


def _tell(found: Attack, options: argparse.Namespace) -> None:
    """Log a pair that is wrong or a false alarm."""
    if not (found.wrong or found.false_alarm):
        return
    first = next(iter((*found.verdict.findings, *found.verdict.unproved)), "")
    line = json.dumps({"seed": found.seed, "kinds": found.kinds, "wrong": found.wrong, "said": str(first)})
    if found.wrong:
        print(f"WRONG: pair {found.seed} ({', '.join(found.kinds)}) is called {found.verdict.status}", flush=True)
    if options.show:
        print(line, found.before.graph, found.after.graph, sep="\n")
    if options.jsonl:
        with Path(options.jsonl).open("a") as log:
            log.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
