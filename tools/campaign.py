"""Fuzzes the whole command line for a bounded time and prints what happened.

    python tools/campaign.py --seconds 600 --seed 1 [--samples] [--keep FOLDER]

Random commands with random options, valid and not, on damaged graphs, archives, configurations, plans, tables and
profiles. The exit code is 1 after a crash or a hang; the inputs of both are kept in FOLDER. With ``--verdicts N``
it asks the verifier about N damaged graphs as well, and runs them on virtual ranks; with ``--kills N`` it kills N
commands at random moments, and starts N pairs of commands that write one file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.campaign import Campaign, limit_memory, make_seeds
from tests.campaign_kills import kills, two_at_once
from tests.campaign_verdicts import verdicts

SAMPLES = (
    "tiny_llama_fsdp2_fw.pt2",
    "tiny_llama_fsdp2_tp2_bw.fx.txt.gz",
    "tiny_moe_fsdp4_ep2_fw.fx.txt.gz",
    "tiny_deepseek_ep2.fx.txt.gz",
)


def main(arguments: list[str]) -> int:
    """Run the campaign; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60, help="seconds for one command")
    parser.add_argument("--memory", type=float, default=12, help="GiB of address space")
    parser.add_argument("--samples", action="store_true", help="sample graphs too, which take longer")
    parser.add_argument("--keep", type=Path, help="folder for inputs that crash")
    parser.add_argument("--verdicts", type=int, default=0, help="damaged graphs to verify")
    parser.add_argument("--kills", type=int, default=0, help="commands to kill, and pairs to start at once")
    given = parser.parse_args(arguments)
    limit_memory(given.memory)
    with tempfile.TemporaryDirectory() as folder:
        seeds = make_seeds(Path(folder) / "seeds", SAMPLES if given.samples else ())
        campaign = Campaign(Path(folder), given.seed, seeds, limit=given.limit, keep=given.keep)
        end = time.monotonic() + given.seconds
        while time.monotonic() < end:
            campaign.once()
        print(campaign.figures())
        wrong = [*campaign.crashes, *campaign.hangs, *_others(Path(folder), given)]
    return 1 if wrong else 0


def _others(folder: Path, given: argparse.Namespace) -> list[str]:
    """What is asked for besides; what went wrong."""
    told: list[Any] = [verdicts(given.seed, given.verdicts)] if given.verdicts else []
    if given.kills:
        told += [kills(folder, given.seed, given.kills), two_at_once(folder, given.kills)]
    for each in told:
        print(each.figures())
    return [problem for each in told for problem in each.wrong]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
