"""Real ranks: the same verdicts as on virtual ones; and one message, no orphans, when ranks come to grief."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from commcc.base.errors import CommccError, InputError
from commcc.graph.program import ProcessGroup
from commcc.replay.numeric import Settings, verify_numeric
from commcc.replay.ranks.launch import RanksError, run_ranks
from commcc.replay.ranks.machines import Machines
from commcc.replay.ranks.watch import rank_processes
from tests.test_replay_numeric import (
    MERGED,
    SMALL,
    copied,
    numeric,
    reduce_otherwise,
    rewritten,
    sample,
    swap_members,
)
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed"),
]


def on_gloo(before, after, **settings):
    return verify_numeric(before, after, Settings(real=True, timeout=300, **settings))


def alive(pid: int) -> bool:
    """Whether a process runs; one that is only waiting to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(folder: Path, seconds: float = 10) -> bool:
    """Whether all ranks that wrote down their process ids end within some seconds."""
    pids = [int(file.read_text()) for file in folder.glob("pid*")]
    assert pids
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(alive, pids)):
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.full
def test_a_rewritten_sample_gives_the_same_bits():
    before, after = sample("tiny_moe_fsdp4_ep2_bw"), rewritten("tiny_moe_fsdp4_ep2_bw", SMALL)
    found = on_gloo(before, after)
    assert (found.status, found.real, found.failure, found.ranks) == ("equal", True, None, 4)
    assert found.compared == numeric(before, after).compared


@pytest.mark.full
def test_a_wrong_graph_differs_as_on_virtual_ranks():
    before, after = sample("tiny_llama_fsdp2_bw"), copied(rewritten("tiny_llama_fsdp2_bw", MERGED))
    swap_members(after.graph)
    reduce_otherwise(after.graph)
    real, virtual = on_gloo(before, after), numeric(before, after)
    assert real.status == virtual.status == "different"
    assert [value.name for value in real.values] == [value.name for value in virtual.values]
    # Two ranks add two numbers: no order to choose, so that the differences are the very same.
    assert [value.gap for value in real.values] == [value.gap for value in virtual.values]
    assert real.values[0].producers == virtual.values[0].producers


def every_kind():
    """A graph with every kind of collective, on a group named like PyTorch's own default group and on pairs."""
    g = Graph()
    x = g.input("x", 8, 6)
    pair = g.gather(x, "7", 2)
    gathered, reduced = g.gather(pair, "0"), g.reduce(x, "max", "0")
    scattered = g.scatter(gathered, "avg", "0")
    exchanged = g.wait(g(c10d.all_to_all_single.default, scattered, [8, 8], [8, 8], "7"))
    sent = g.wait(g(c10d.broadcast.default, g(aten.neg.default, x), 1, "7"))
    buffer = g(aten.new_empty.default, x, [32, 6])
    g.wait(g(c10d.all_gather_into_tensor_out.default, reduced, 4, "0", out=buffer))
    doubled = g(aten.mul.Tensor, x, 2)
    g.wait(g(c10d.all_reduce_.default, doubled, "sum", "1"))
    groups = {"0": ProcessGroup("0", 4), "1": ProcessGroup("1", 2, (0, 2)), "7": ProcessGroup("7", 2, (0, 1))}
    return g.program(scattered, exchanged, sent, buffer, doubled, groups=groups)


@pytest.mark.full
def test_every_kind_on_groups_that_have_the_names_of_pytorchs_own():
    """All but one output are the same on every rank; that one is the other rank's, where it was not before."""
    changed = every_kind()
    node = next(n for n in changed.graph.nodes if n.target is c10d.broadcast.default)
    node.update_arg(1, 0)
    for run in (on_gloo, numeric):
        found = run(every_kind(), changed)
        assert found.compared == 5
        assert [(value.name, value.gap.rank) for value in found.values] == [("output[2]", 0)]


@pytest.mark.full
def test_float64_and_other_settings_reach_the_ranks():
    settings = Settings(4, True, 3, True, 0.5, 7.0, {"3": ((0, 2), (1, 3))}, {"u*": 9})
    assert Settings.from_text(settings.to_text()) == settings
    found = on_gloo(sample("tiny_moe_ep2_fw"), rewritten("tiny_moe_ep2_fw", MERGED), wide=True, seed=3)
    assert (found.status, found.wide, found.seed) == ("equal", True, 3)


@pytest.mark.full
def test_a_node_that_fails_on_all_ranks_is_one_line():
    """bitwise_not has no float kernel, which shows when it runs."""
    g = Graph()
    x = g.input("x", 4)
    bad = g.program(
        g.reduce(g(aten.bitwise_not.default, x, val=x.meta["val"]), "sum"), groups={"0": ProcessGroup("0", 2)}
    )
    with pytest.raises(InputError) as caught:
        on_gloo(bad, bad, ranks=2)
    assert "BEFORE cannot be run: node 'bitwise_not_default' (aten.bitwise_not) fails" in str(caught.value)
    assert "\n" not in str(caught.value)
    g = Graph()
    x = g.input("x", 4)
    good = g.program(g.reduce(g(aten.neg.default, x), "sum"), groups={"0": ProcessGroup("0", 2)})
    found = on_gloo(good, bad, ranks=2)
    assert found.status == "different"
    assert found.failure.startswith("AFTER: node 'bitwise_not_default' (aten.bitwise_not) fails")


# The launcher, with ranks that only come to grief


def victims(folder: Path, ranks: int, timeout: float = 60, **what: object) -> str:
    """What is said about ranks that end badly."""
    (folder / "what.json").write_text(json.dumps({name.removeprefix("r"): fate for name, fate in what.items()}))
    with pytest.raises(RanksError) as caught:
        run_ranks(ranks, folder, timeout, worker="tests.replay_victims")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1
    return str(caught.value)


@pytest.mark.full
def test_a_rank_that_is_killed_ends_the_run(tmp_path):
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    text = victims(tmp_path, 3, r1="die")
    assert text.startswith("rank 1 was killed by SIGKILL")
    assert "the other ranks were ended" in text
    assert gone(tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert logging.getLogger("torch.distributed.elastic").level <= logging.CRITICAL


@pytest.mark.full
def test_a_rank_that_gives_up_is_quoted(tmp_path):
    text = victims(tmp_path, 2, r0="exit")
    assert "rank 0 ended with exit code 17" in text
    assert "rank had enough" in text
    assert gone(tmp_path)


@pytest.mark.full
def test_a_deadline_says_what_every_rank_was_at(tmp_path):
    """The time that processes take to start is part of it; where 8 s are too short for that, 20 or 60 are not."""
    for seconds in (8, 20, 60):
        folder = tmp_path / str(seconds)
        folder.mkdir()
        text = victims(folder, 2, r1="hang", seconds=seconds)
        assert f"not done after {seconds} s" in text
        assert gone(folder)
        if "rank 1" in text:
            break
    assert "rank 1 waits for 'wait_tensor_2', last launch 'all_gather_3'" in text


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="knows ranks on Linux only")
@pytest.mark.full
def test_a_rank_that_was_stopped_before_it_began_is_named(tmp_path):
    text = victims(tmp_path, 2, timeout=8, seconds=8, r1="stop")
    assert "not done after 8 s" in text
    assert "rank 1 is stopped, was starting" in text
    assert rank_processes(tmp_path) == {}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.sampled(1)
def test_ranks_end_with_whoever_started_them(number, tmp_path):
    (tmp_path / "what.json").write_text(json.dumps({"1": "hang"}))
    command = [sys.executable, "-m", "tests.replay_victims", str(tmp_path)]
    launcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while len(list(tmp_path.glob("pid*"))) < 2 and time.monotonic() < end and launcher.poll() is None:
            time.sleep(0.05)
        os.kill(launcher.pid, number)
        # SIGTERM becomes the exit code that a shell shows for it: the launcher tidies up first.
        assert launcher.wait(60) == (128 + number if number == signal.SIGTERM else -number)
    finally:
        launcher.kill()
    assert gone(tmp_path)


def test_a_port_that_somebody_has(tmp_path):
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommccError, match=f"port {port} of localhost cannot be used") as caught:
            run_ranks(2, tmp_path, 30, worker="nobody", machines=Machines(endpoint=f"localhost:{port}"))
    assert "port 0 takes a free one" in str(caught.value)
    for endpoint in ("localhost", ":1", "localhost:x", "localhost:99999"):
        with pytest.raises(CommccError, match="is not HOST:PORT"):
            run_ranks(2, tmp_path, 30, worker="nobody", machines=Machines(endpoint=endpoint))
