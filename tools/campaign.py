"""Fuzzes the whole command line for a bounded time and prints what happened.

    python tools/campaign.py --seconds 600 --seed 1 [--samples] [--keep FOLDER]

Random commands with random options, valid and not, on damaged graphs, archives, configurations, plans, tables and
profiles. The exit code is 1 after a crash or a hang; the inputs of both are kept in FOLDER. With ``--verdicts N``
it asks the verifier about N damaged graphs as well, and runs those that it calls proved on virtual ranks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.campaign import Campaign, limit_memory, make_seeds
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
    given = parser.parse_args(arguments)
    limit_memory(given.memory)
    with tempfile.TemporaryDirectory() as folder:
        seeds = make_seeds(Path(folder) / "seeds", SAMPLES if given.samples else ())
        campaign = Campaign(Path(folder), given.seed, seeds, limit=given.limit, keep=given.keep)
        end = time.monotonic() + given.seconds
        while time.monotonic() < end:
            campaign.once()
    print(campaign.figures())
    wrong = 0
    if given.verdicts:
        told = verdicts(given.seed, given.verdicts)
        print(told.figures())
        wrong = len(told.wrong)
    return 1 if campaign.crashes or wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
