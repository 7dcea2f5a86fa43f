"""Ranks that come to grief, for the launcher's tests; each is started like a worker, with a folder as argument.

``what.json`` in the folder says, by rank, what happens: ``{"1": "die"}``; ranks that are not named wait for all
others in a barrier, and have no result before it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from commcc.replay.ranks.watch import Watch, write_json


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    told = json.loads((folder / "what.json").read_text())
    if told.get(str(rank)) == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    watch = Watch(told.get("seconds", 3600), folder / f"rank{rank}.json")
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    try:
        meet(rank, told.get(str(rank), ""), watch)
    except Exception as error:  # as a worker does: the others are gone
        write_json(folder / f"rank{rank}.json", watch.words(error=str(error)[:100]))
        sys.exit(3)
    write_json(folder / f"rank{rank}.json", {"rank": rank})
    watch.close()


def meet(rank: int, fate: str, watch: Watch) -> None:
    # Long, so that nobody ends because it has waited: a launcher that does not end the others is waited for in vain.
    dist.init_process_group("gloo", timeout=timedelta(seconds=3600))
    dist.barrier()
    if fate == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "exit":
        print("rank had enough", file=sys.stderr, flush=True)
        os._exit(17)
    if fate == "hang":
        watch.progress("launches", "all_gather_3")
        watch.progress("waits for", "wait_tensor_2")
        time.sleep(600)
    watch.progress("waits for", "wait_tensor_9")
    dist.barrier()


if __name__ == "__main__":
    # A launcher of its own, to be killed: python -m tests.replay_victims FOLDER
    from commcc.replay.ranks.launch import run_ranks

    run_ranks(2, Path(sys.argv[1]), 60, worker="tests.replay_victims")
