"""A bench on ranks of two launchers, of torchrun and of SLURM's tasks, and ranks that die while it runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from commcc.cli.main import run
from commcc.replay.ranks.watch import rank_processes
from tests.test_replay_ranks import alive

ROOT = Path(__file__).parents[1]
SHORT = ["bench", "--repeat", "6", "--warmup", "0", "--timeout", "100", "--device", "cpu"]
#: Ends this rank when it is about to run in turns.
KILLED = """
import os, signal
from commcc.replay.bench import worker
worker._in_turns = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from commcc.cli.main import entry
entry()
"""

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed"),
]


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def start(*command: str, **environment: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**kept, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.full
def test_two_launchers_meet_and_one_reports(capsys):
    """The other one is a process of its own; both start one rank."""
    machines = ["--nnodes", "2", "--nproc", "1", "--rdzv-endpoint", f"localhost:{free_port()}"]
    other = start("-m", "commcc", *SHORT, *machines, "--node-rank", "1")
    code = run([*SHORT, *machines, "--node-rank", "0", "--json"])
    out, err = other.communicate(timeout=100)
    assert (code, other.returncode, out) == (0, 0, "")
    assert err == "note: the report is where rank 0 is, on localhost\n"
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == 2
    assert [len(graph["ranks"]) for graph in found["graphs"]] == [2, 2]
    assert found["comparisons"][0]["results"]["status"] == "equal"


@pytest.mark.full
def test_processes_of_torchrun_are_the_ranks():
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    done = start(*launcher, "-m", "commcc", *SHORT, "--json")
    out, err = done.communicate(timeout=100)
    assert done.returncode == 0, err
    found = json.loads(out)  # of one rank alone
    assert found["ranks"] == 2
    assert found["comparisons"][0]["results"]["status"] == "equal"


@pytest.mark.full
def test_a_task_that_dies_ends_the_others():
    """Rank 1 is killed; rank 0 says so on one line."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    step["MASTER_PORT"] = str(free_port())
    tasks = [
        start(*command, *SHORT, **step, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
        for rank, command in enumerate((("-m", "commcc"), ("-c", KILLED)))
    ]
    (out, err), (_, other) = (task.communicate(timeout=100) for task in tasks)
    assert ([task.returncode for task in tasks], out, other) == ([1, -signal.SIGKILL], "", "")
    assert err.startswith("commcc: error: rank 1 ended without a word: rank 0 ")
    assert " of graph " in err
    assert err.count("\n") == 1


@pytest.mark.full
def test_a_rank_that_is_killed_while_it_runs(capsys, monkeypatch, tmp_path):
    """What it was at is on its board; nothing is left of the run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pids = []

    def kill() -> None:
        end = time.monotonic() + 90
        while time.monotonic() < end:
            boards = list(tmp_path.glob("commcc-bench-*/rank?.board"))
            if len(boards) == 2 and all(b"graph 2" in board.read_bytes() for board in boards):
                ranks = rank_processes(boards[0].parent)
                pids.extend(ranks[rank][0] for rank in (0, 1))
                os.kill(pids[1], signal.SIGKILL)
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    code = run(["bench", "--repeat", "10000", "--timeout", "100", "--device", "cpu"])
    killer.join()
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("commcc: error: rank 1 was killed by SIGKILL (")
    assert "last launch '" in err
    assert len(pids) == 2
    assert not any(map(alive, pids))
    assert not list(tmp_path.glob("commcc-*"))


@pytest.mark.full
def test_a_bench_that_is_killed_leaves_nothing_behind_that_the_next_does_not_remove(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    emulated = ["--device", "emulated-cpu", "--warmup", "0", "--timeout", "100"]
    killed = start("-m", "commcc", "bench", *emulated, "--repeat", "10000", TMPDIR=str(tmp_path))
    while not list(tmp_path.glob("commcc-bench-*/rank0.board")):
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    assert len(list(tmp_path.glob("commcc-bench-*"))) == 1
    assert run(["bench", *emulated, "--repeat", "1", "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert not list(tmp_path.glob("commcc-*"))
