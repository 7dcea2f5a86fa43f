"""How a bench comes to its ranks and what is said when it does not: all of it in this process."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from commcc.base.errors import CommccError, InputError, OptionError
from commcc.cli.main import run
from commcc.graph.program import ProcessGroup
from commcc.replay.bench import benchmark as bench_run
from commcc.replay.bench.graph_set import BenchSettings, check, check_device_memory, make_set
from commcc.replay.bench.recording import StepTimes
from commcc.replay.place import CpuPlace, CudaPlace
from commcc.replay.ranks import failing, launch, watch
from commcc.replay.ranks import joined as joining
from commcc.replay.ranks.failing import Evidence, RanksError, explained, out_of_memory
from commcc.replay.ranks.joined import Meeting, SharedError, UnheardError
from commcc.replay.ranks.launcher_env import first_host, joined
from commcc.replay.ranks.machines import WITHIN, Machines, is_store, port_problem
from commcc.replay.ranks.watch import Board, Guard, Watch, board_file, rank_processes, write_json
from commcc.replay.ranks.worker import error_words
from commcc.replay.virtual import StepError
from tests.verify_graphs import Graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
TWO = {"0": ProcessGroup("0", 2, (0, 1))}
able = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}


@pytest.fixture(autouse=True)
def nobody_waits():
    """Threads that wait for an answer have given up: none is inside a store when the interpreter goes."""
    yield
    for thread in threading.enumerate():
        if thread.name in (WITHIN, "commcc-listen"):
            thread.join(30)
            assert not thread.is_alive()


# What the environment says


def test_under_torchrun_a_process_is_a_rank():
    me = joined(TORCHRUN)
    assert (me.starter, me.rank, me.world, me.local_rank, me.address, me.port) == ("torchrun", 1, 4, 0, "node1", 29500)
    assert me.local_world is None
    assert joined({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}).local_world == 2
    # srun may start torchrun, whose ranks count then.
    assert joined({**STEP, **TORCHRUN}).starter == "torchrun"


def test_a_task_of_slurm_is_a_rank():
    me = joined(STEP)
    assert (me.starter, me.rank, me.world, me.local_rank, me.local_world) == ("srun", 5, 8, 1, 4)
    assert me.address == "gpu03"
    assert me.environment == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": str(me.port),
    }
    others = [joined({**STEP, "SLURM_PROCID": str(rank)}).port for rank in range(8)]
    assert set(others) == {me.port}
    assert 15000 <= me.port < 30000
    assert joined({**STEP, "SLURM_JOB_ID": "4712"}).port != me.port
    assert joined({**STEP, "MASTER_ADDR": "login", "MASTER_PORT": "77"}).address == "login"
    assert joined({**STEP, "MASTER_PORT": "77"}).port == 77
    own = joined({**STEP, "CUDA_VISIBLE_DEVICES": "3"})
    assert (own.rank, own.local_rank, own.local_world) == (5, 0, 1)
    assert joined({**STEP, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}).local_rank == 1
    # The job has more tasks than the step.
    assert joined({**STEP, "SLURM_STEP_NUM_TASKS": "6"}).world == 6
    assert joined({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4,3"}).local_world is None


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "8"},  # a shell inside salloc
        {**STEP, "SLURM_STEP_ID": ""},  # a batch script has a SLURM_PROCID too
        {**STEP, "SLURM_STEP_ID": str(0xFFFFFFFB)},  # a batch script of another version
        {**STEP, "SLURM_STEP_ID": str(0xFFFFFFFA)},  # an interactive step
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},  # srun --pty bash
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "1"},  # pods, each to run torchrun
        {**TORCHRUN, "MASTER_PORT": ""},
    ],
)
def test_nobody_is_joined(environment):
    assert joined(environment) is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**TORCHRUN, "RANK": "x"}, "RANK is 'x', not a number"),
        ({**TORCHRUN, "RANK": "4"}, "torchrun says that this is rank 4 of 4"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT 70000 is no port"),
        ({**STEP, "SLURM_LOCALID": ""}, "SLURM_LOCALID is ''"),
        ({**STEP, "SLURM_STEP_NODELIST": ""}, "which names no machine; set MASTER_ADDR"),
    ],
)
def test_contradictions(environment, words):
    with pytest.raises(OptionError, match=words):
        joined(environment)


def test_the_first_machine_of_a_list():
    lists = {"n1": "n1", "n1,n2": "n1", "gpu[03-05,9],login": "gpu03", "r[1-2]n[02,04]-ib": "r1n02-ib", "": ""}
    assert {nodes: first_host(nodes) for nodes in lists} == lists


# The command line


@pytest.fixture
def alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in TORCHRUN:
            monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def refused(capsys, *arguments):
    code = run(["bench", *arguments])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nnodes", "1:4"], "--nnodes is '1:4', not a number of machines; a bench has as many all the time"),
        (["--nnodes", "0"], "--nnodes is '0'"),
        (["--nnodes", "2"], "--nnodes 2 needs --rdzv-endpoint HOST:PORT; the same on every machine"),
        (["--nnodes", "2", "--rdzv-endpoint", "localhost:0"], "needs --rdzv-endpoint HOST:PORT"),
        (["--nnodes", "2", "--rdzv-endpoint", "localhost"], "'localhost' is not HOST:PORT"),
        (["--node-rank", "1"], "--node-rank 1 is not one of 0 to 0"),
        (["--nnodes", "2", "--rdzv-endpoint", "a:1", "--rdzv-backend", "static"], "static needs --node-rank"),
        (["--rdzv-backend", "smoke"], "--rdzv-backend smoke: "),
        (["--nnodes", "2", "--device", "emulated"], "--nnodes: --device emulated is one process"),
        (["--device", "cuda"], "1 rank needs a device, and this machine has no CUDA devices; --device emulated"),
    ],
)
@able
def test_wrong_machines_are_one_line(alone, capsys, arguments, words):
    assert words in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc", "2"], "--nproc 2, and torchrun has started 4 ranks; leave it out: each process is a rank"),
        (["--nnodes", "2", "--rdzv-id", "x"], "--nnodes, --rdzv-id: torchrun has started the ranks already"),
        (["--device", "emulated"], "--device emulated is one process, and torchrun has started 4"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_all_ranks_refuse_and_rank_0_says_it(monkeypatch, capsys, arguments, words):
    for name, value in {**TORCHRUN, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert words in refused(capsys, *arguments)
    monkeypatch.setenv("RANK", "3")
    assert run(["bench", *arguments]) == 2
    assert capsys.readouterr() == ("", "")


def test_with_nnodes_tasks_of_slurm_are_launchers(alone, monkeypatch, capsys):
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    assert "needs --rdzv-endpoint" in refused(capsys, "--nnodes", "2")


@able
def test_a_machine_without_rank_0_says_where_the_report_is(alone, monkeypatch, capsys):
    asked = []

    def run_ranks(ranks, folder, timeout, *, worker, machines):
        asked.append((ranks, json.loads((folder / "settings.json").read_text())["ranks"], machines))
        return [{"elsewhere": "node1"}] * ranks

    monkeypatch.setattr(launch, "run_ranks", run_ranks)
    endpoint = ["--rdzv-endpoint", "node1:29500", "--rdzv-id", "x"]
    assert run(["bench", "--nnodes", "2", "--nproc", "1", "--node-rank", "1", *endpoint]) == 0
    assert capsys.readouterr() == ("", "note: the report is where rank 0 is, on node1\n")
    assert asked == [(1, 2, Machines(2, 1, "node1:29500", None, "x"))]
    assert asked[0][2].means == "static"


# Machines


def test_machines_share_ranks_equally():
    assert Machines(2, endpoint="a:1").of(8) == 4
    with pytest.raises(OptionError, match="8 ranks, which 3 machines cannot share equally"):
        Machines(3, endpoint="a:1").of(8)


@able
def test_a_port_that_is_taken_is_refused_where_it_would_be_needed():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert port_problem("localhost", port).text == "Address already in use"
        for machines in (
            Machines(endpoint=f"localhost:{port}"),
            Machines(2, 0, f"localhost:{port}"),
        ):
            with pytest.raises(InputError, match=f"port {port} of localhost cannot be used: Address already in use"):
                machines.check()
        Machines(2, 1, f"localhost:{port}").check()  # it is the other machine's
    assert port_problem("localhost", port) is None


@able
def test_a_store_is_told_from_somebody_elses_port(monkeypatch):
    monkeypatch.setattr("commcc.replay.ranks.machines._ANSWER", 1.0)
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    assert is_store("localhost", store.port)
    Machines(2, endpoint=f"localhost:{store.port}").check()  # the other launcher on this machine was first
    with socket.create_server(("", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(InputError, match="cannot be used"):
            Machines(2, endpoint=f"localhost:{port}").check()


@able
@pytest.mark.parametrize("node_rank", [None, 0])
def test_machines_that_do_not_come(tmp_path, node_rank):
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RanksError, match=f"the 2 machines did not meet at localhost:{port} within 1 s") as caught:
        launch.run_ranks(1, tmp_path, 1, worker="nobody", machines=Machines(2, node_rank, f"localhost:{port}"))
    assert caught.value.late


# Why ranks ended


def at(node, **more):
    return {"at": f"waits for '{node}'", "launched": "gather_2", "waited": "wait_1", "program": "graph 2", **more}


LOST = "graph 1: node fails: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:3: Connection reset by peer. GLHF"
AT = "waits for 'wait_2' of graph 2, last launch 'gather_2', last wait ended 'wait_1'"
CASES = {
    "killed": (
        Evidence({0: at("x", error=LOST)}, {0: 3, 1: -9}, {1: at("wait_2")}),
        f"rank 1 was killed by SIGKILL ({AT}); the other ranks were ended; the kernel does that when memory runs out",
    ),
    "killed by the kernel": (Evidence({}, {1: -9}, starved=True), "the kernel did, for memory had run out"),
    "killed, and words that are not known": (
        Evidence({0: {"error": "NCCL is upset"}}, {0: 3, 1: -9}),
        "rank 1 was killed by SIGKILL; the other ranks were ended",
    ),
    "memory, and words that are not known": (
        Evidence({0: {"error": "NCCL is upset"}, 1: {"error": "no room", "memory": True}}),
        "rank 1 ran out of memory: no room",
    ),
    "its own error": (
        Evidence({0: {"error": LOST}, 1: {"error": "node 'mm' fails: bad", "node": "mm", "program": "graph 2"}}),
        "rank 1: graph 2: node 'mm' fails: bad",
    ),
    "its own error, and others are late": (
        Evidence({0: at("x", timeout=9), 1: {"error": "node 'mm' fails: bad"}}),
        "rank 1: node 'mm' fails: bad",
    ),
    "memory, and another was aborted": (
        Evidence(
            {1: {"error": "CUDA out of memory.", "memory": True, "at": "making its inputs"}}, {0: -6, 1: 3, 2: -9}
        ),
        "rank 1 ran out of memory (making its inputs): CUDA out of memory.; fewer ranks on this machine",
    ),
    "aborted": (Evidence({1: {"error": LOST}}, {0: -6, 1: 3}), "rank 0 was killed by SIGABRT; the other ranks"),
    "late": (
        Evidence({0: at("wait_2", timeout=9), 1: at("wait_2", timeout=9, stuck=True, device="wait_0")}),
        f"not done after 9 s: rank 0 {AT}; rank 1 does not answer, {AT}, the device is past 'wait_0'",
    ),
    "late, some silent": (
        Evidence({0: at("wait_2", timeout=9)}, missing=(1, 2, 3, 4, 5)),
        f"not done after 9 s: rank 0 {AT}; nothing from ranks 1, 2, 3, 4 and 1 more",
    ),
    "quit": (
        Evidence({0: {"error": LOST}}, {0: 3, 1: 17}, output={1: "had enough"}),
        "rank 1 ended with exit code 17 (had enough); the other ranks were ended",
    ),
    "lost": (
        Evidence({0: at("wait_2", error=LOST)}, {0: 3, 1: -15}),
        f"rank 0 lost another one: rank 0 {AT} (graph 1: node fails: [gloo/transport/tcp/pair.cc:537] Read error",
    ),
    "gone": (Evidence({0: at("wait_2", error=LOST)}, missing=(1,)), f"rank 1 ended without a word: rank 0 {AT}"),
    "told to end": (
        Evidence({0: {"at": "waiting for the others"}, 1: at("wait_2", signal="SIGTERM")}),
        f"rank 1 ended by SIGTERM: rank 0 was waiting for the others; rank 1 {AT}",
    ),
    "stopped, and others miss it": (
        Evidence({0: at("wait_2", error=LOST)}, {0: 3, 1: -9}, stopped=frozenset({1})),
        f"rank 1 was stopped (SIGSTOP) and did not answer: rank 0 {AT}",
    ),
    "stopped early, and others are late": (
        Evidence({0: at("wait_2", timeout=9)}, {0: 124, 1: -9}, stopped=frozenset({1})),
        f"not done after 9 s: rank 0 {AT}; rank 1 is stopped, was starting",
    ),
    "refused": (Evidence({1: {"refused": "too small", "hint": "shrink"}}, {0: -9}), "rank 1: too small; shrink"),
    "nothing": (Evidence({}, {1: 1}), "rank 1 ended with exit code 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_said(name):
    evidence, text = CASES[name]
    error = explained(evidence)
    assert str(error).startswith(text) or (name == "killed by the kernel" and text in str(error))
    assert "\n" not in str(error)
    assert error.exit_code == (2 if name == "refused" else 1)
    if name != "refused":
        assert error.late == ("timeout" in next(iter(evidence.said.values()), {}) and "own" not in name)
        assert error.memory == ("memory" in name or "killed" in name)


def test_what_to_do_in_a_bench():
    late = explained(CASES["late"][0])
    assert "--timeout allows more seconds; commcc verify" in str(bench_run.hinted(late))
    killed = explained(CASES["killed"][0])
    assert bench_run.hinted(killed) is killed


def test_memory_that_ran_out_is_known():
    def step_error(error):
        try:
            try:
                raise error
            except Exception as caught:
                raise StepError("mm", "aten.mm", str(caught)) from caught
        except StepError as raised:
            return raised

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 52)
    for error in (caught.value, MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried")):
        assert out_of_memory(error)
        words = error_words(step_error(error))
        assert (words["node"], words["memory"]) == ("mm", True)
    assert not out_of_memory(step_error(ValueError("out of memory, says a value")))
    text = str(explained(Evidence({1: {**error_words(step_error(caught.value)), "program": "graph 2"}})))
    assert text.startswith("rank 1 ran out of memory: graph 2: node 'mm' (aten.mm) fails: ")
    assert text.endswith("fewer ranks on this machine, or a smaller model: its graph has the same structure")


def test_kills_of_the_kernel_are_counted(tmp_path, monkeypatch):
    file = tmp_path / "memory.events"
    file.write_text("low 0\noom 4\noom_kill 3\noom_group_kill 1\n")
    assert failing.kernel_kills() >= 0
    monkeypatch.setattr(failing, "_KERNEL_COUNTS", (file, tmp_path / "none"))
    assert failing.kernel_kills() == 3


# What a rank is at


def test_a_rank_says_what_it_launched_and_what_it_has_waited_for(tmp_path):
    file = tmp_path / "rank0.json"
    watch = Watch(60, file)
    watch.program = "graph 1"
    watch.progress("launches", "gather_1")
    watch.progress("waits for", "wait_1")
    assert watch.words()["waited"] is None
    watch.progress("launches", "gather_2")
    assert watch.words() == {
        "at": "launches 'gather_2'",
        "launched": "gather_2",
        "waited": "wait_1",
        "program": "graph 1",
    }
    watch.progress("waits for", "wait_2")
    watch.stage("waiting")
    expected = {"at": "waiting", "launched": "gather_2", "waited": "wait_2", "program": "graph 1"}
    # Also where a process that was killed can be read.
    assert watch.words() == Board.read(board_file(file)) == expected
    watch.device = lambda: "wait_1"
    assert watch.words(timeout=3) == {**expected, "device": "wait_1", "timeout": 3}
    watch.device = lambda: 1 / 0
    assert watch.words() == expected
    watch.stage("x" * 9999)
    assert len(Board.read(board_file(file))["at"]) == 4095
    assert Board.read(tmp_path / "none") == {}
    watch.close()


def test_a_device_says_how_far_it_has_come():
    class Event:
        def __init__(self, done):
            self.done = done

        def query(self):
            return self.done

    place = SimpleNamespace(reached=lambda stamp: CudaPlace.reached(None, stamp))
    times = StepTimes(place)
    assert times.newest() is None
    times._stamps += [(name, None, Event(done)) for name, done in (("a", True), ("b", True), ("c", False))]
    assert times.newest() == "b"
    times = StepTimes(CpuPlace())
    times._stamps.append(("a", 1, 2))
    assert times.newest() == "a"


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def rank_process(tmp_path):
    """Starts processes that look like ranks of a run in the test's folder."""
    started = []

    def start(rank):
        process = subprocess.Popen([*SLEEPER, str(tmp_path)], env={**os.environ, "RANK": str(rank)})
        started.append(process)
        while rank not in rank_processes(tmp_path):  # until then it is a copy of this process
            time.sleep(0.01)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def stop(process):
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


needs_proc = pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="knows ranks on Linux only")


@needs_proc
def test_ranks_are_known_among_children(tmp_path, rank_process):
    """Neither other children are ranks, nor finished ones, nor processes of others."""
    one, two = rank_process(1), rank_process(2)
    other = subprocess.Popen([*SLEEPER, str(tmp_path / "else")], env={**os.environ, "RANK": "0"})
    # Its parent ends at once, so that it is nobody's child here.
    command = f"RANK=3 {shlex.join([*SLEEPER, str(tmp_path)])} > /dev/null 2>&1 & echo $!"
    stranger = int(subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True).stdout)
    try:
        stop(two)
        found = rank_processes(tmp_path)
        assert {rank: pid for rank, (pid, _) in found.items()} == {1: one.pid, 2: two.pid}
        assert found[2][1] in "Tt"
        one.kill()
        while rank_processes(tmp_path).keys() != {2}:  # it is there for its parent to see how it ended
            time.sleep(0.01)
        assert one.wait() == -signal.SIGKILL
    finally:
        other.kill()
        other.wait()
        os.kill(stranger, signal.SIGKILL)


@pytest.fixture
def clock(monkeypatch):
    """What time it is for guards."""
    made = SimpleNamespace(now=100)
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@needs_proc
def test_a_rank_that_does_not_end_itself_is_killed_after_its_deadline(tmp_path, rank_process, clock):
    """Stopped ones are told from those that only do not answer; one that never began is at its start."""
    hanging, stopped, early = (rank_process(rank) for rank in range(3))
    for rank in (0, 1):
        Board(board_file(tmp_path / f"rank{rank}.json")).write(("waits for 'w'", "g", None, None))
    stop(stopped)
    stop(early)
    guard = Guard(tmp_path, 8)
    for clock.now in (100, 109.9):
        guard._look()
    assert guard.stopped == {1, 2}
    assert not list(tmp_path.glob("*.json"))
    clock.now = 110.1
    guard._look()
    assert [each.wait(60) for each in (hanging, stopped, early)] == [-signal.SIGKILL] * 3
    words = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    at_wait = {"at": "waits for 'w'", "launched": "g", "waited": None, "program": None}
    ended = {"timeout": 8, "stuck": True}
    assert words == [
        {**at_wait, **ended, "stopped": False},
        {**at_wait, **ended, "stopped": True},
        {"at": "starting", **ended, "stopped": True},
    ]
    text = str(explained(Evidence(dict(enumerate(words)), dict.fromkeys(range(3), -9))))
    assert text.startswith(
        "not done after 8 s: rank 0 does not answer, waits for 'w', last launch 'g'; rank 1 is stopped, waits for 'w',"
        " last launch 'g'; rank 2 is stopped, was starting"
    )


@needs_proc
def test_the_time_of_a_rank_counts_from_when_it_begins_to_watch_itself(tmp_path, rank_process, clock):
    process = rank_process(0)
    guard = Guard(tmp_path, 8)
    guard._look()
    clock.now = 105
    Board(board_file(tmp_path / "rank0.json"))
    for clock.now in (105, 114.9):
        guard._look()
    assert process.poll() is None
    stop(process)
    guard._look()
    os.kill(process.pid, signal.SIGCONT)
    while rank_processes(tmp_path)[0][1] in "Tt":
        time.sleep(0.01)
    guard._look()
    assert guard.stopped == set()
    clock.now = 115.1
    guard._look()
    assert process.wait(60) == -signal.SIGKILL


@needs_proc
def test_results_of_a_rank_that_is_killed_are_kept(tmp_path, rank_process):
    write_json(tmp_path / "rank0.json", {"ranks": []})
    process = rank_process(0)
    with Guard(tmp_path, -watch.GRACE):
        assert process.wait(60) == -signal.SIGKILL
    assert json.loads((tmp_path / "rank0.json").read_text()) == {"ranks": []}


# Before any rank starts


def preflight(program, **settings):
    chosen = BenchSettings(ranks=2, **settings)
    check(make_set([program], chosen), chosen)


def test_what_gloo_cannot_send_is_refused():
    g = Graph()
    x = g.input("x", 8, dtype=torch.complex64)
    exchanged = g.wait(g(c10d.all_to_all_single.default, x, [4, 4], [4, 4], "0", val=x.meta["val"]))
    with pytest.raises(InputError, match="sends complex64 from all to all, which gloo cannot"):
        preflight(g.program(exchanged, groups=TWO))
    g = Graph()
    with pytest.raises(InputError, match="sends a premul_sum"):
        preflight(g.program(g.reduce(g.input("x", 8), "premul_sum"), groups=TWO))


def test_devices_are_counted(monkeypatch):
    g = Graph()
    graphs = make_set([g.program(g.reduce(g.input("x", 8), "sum"), groups=TWO)], BenchSettings(ranks=2))
    settings = BenchSettings(ranks=2, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="2 ranks need a device each, and this machine has 1 CUDA device;"):
        check(graphs, settings)
    check(graphs, settings, 1)  # the other rank is on another machine
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check(graphs, settings)


def test_a_rank_refuses_a_device_that_is_too_small(monkeypatch):
    g = Graph()
    graphs = make_set([g.program(g.reduce(g.input("x", 1 << 28), "sum"), groups=TWO)], BenchSettings(ranks=2))
    check_device_memory(graphs, None)
    check_device_memory(graphs, 3 << 30)
    with pytest.raises(InputError, match=r"its device needs about 2.0 GiB of memory, and 1.0 GiB are free") as caught:
        check_device_memory(graphs, 1 << 30)
    assert error_words(caught.value)["refused"] == caught.value.what
    assert CpuPlace().free_bytes() is None
    for name, size in (("mem_get_info", (5, 9)), ("memory_reserved", 4), ("memory_allocated", 3)):
        monkeypatch.setattr(torch.cuda, name, lambda _device, size=size: size)
    place = object.__new__(CudaPlace)
    place._device = None
    assert place.free_bytes() == 6


# Ranks that have been started by others


@pytest.fixture
def ranks(monkeypatch):
    """Meetings of so many ranks, each in a thread of this process."""
    monkeypatch.setattr(joining, "_COLLECT", 1.0)
    monkeypatch.setattr(joining, "_HEARD", 2.0)
    for name in TORCHRUN:
        monkeypatch.setenv(name, "")  # to be put back
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])

    def meet(count, work):
        found, held = [None] * count, []

        def one(rank):
            environment = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0"}
            me = joined({**TORCHRUN, **environment, "MASTER_ADDR": "localhost", "MASTER_PORT": port})
            try:
                meeting = Meeting(me, 5)
                held.append(meeting)  # that of rank 0 has the store of all
                found[rank] = work(meeting)
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    return meet


@able
def test_all_agree_to_run(ranks):
    assert ranks(3, lambda meeting: meeting.agree(None)) == [None] * 3


@able
def test_what_all_are_refused_for_is_said_as_it_is(ranks):
    found = ranks(3, lambda meeting: meeting.agree(InputError("no such file", where="g.fx.txt")))
    assert [(type(error), str(error)) for error in found] == [(InputError, "g.fx.txt: no such file")] * 3


@able
def test_what_one_is_refused_for_ends_all(ranks):
    problems = {1: ZeroDivisionError("oh"), 2: RanksError("not here")}
    zero, one, two = ranks(3, lambda meeting: meeting.agree(problems.get(meeting.me.rank)))
    assert isinstance(zero, SharedError)
    assert str(zero) == str(two) == "rank 1: ZeroDivisionError: oh"
    assert (zero.exit_code, two.exit_code) == (3, 3)
    assert one is problems[1]


@able
def test_last_words_meet_at_rank_0(ranks):
    words = {0: at("wait_2", error=LOST), 2: {"error": "node 'mm' fails: bad"}}

    def end(meeting):
        done = threading.Event()
        meeting.listen(done)
        found = meeting.told(words[meeting.me.rank]) if meeting.me.rank in words else None
        limit = time.monotonic() + 10
        while not meeting.ending and time.monotonic() < limit:
            time.sleep(0.05)
        done.set()
        return meeting.ending, found

    (_, zero), one, two = ranks(3, end)
    assert str(zero) == f"rank 2: node 'mm' fails: bad; {failing.HINT}"
    assert one == (True, None)  # it hears that others end
    assert two[1] is None  # rank 0 speaks for it


@able
def test_without_rank_0_the_others_speak(ranks):
    def end(meeting):
        return meeting.told(at("wait_2", error=LOST)) if meeting.me.rank else meeting

    _, one = ranks(2, end)
    assert str(one).startswith(f"rank 0 ended without a word: rank 1 {AT}")


@able
def test_the_port_of_rank_0_is_taken(monkeypatch):
    for name in TORCHRUN:
        monkeypatch.setenv(name, "")
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        here = {**TORCHRUN, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        with pytest.raises(InputError, match=f"port {port} of this machine cannot be used: Address already in use"):
            Meeting(joined({**here, "RANK": "0"}), 1)
    with pytest.raises(UnheardError, match=f"rank 1: rank 0 does not answer at localhost:{port}: ") as caught:
        Meeting(joined(here), 1)
    assert isinstance(caught.value, CommccError)
    assert caught.value.exit_code == 2


def test_a_rank_that_is_ended_before_its_own_deadline_is_told_about_from_its_board():
    found = explained(
        Evidence(
            {0: {"timeout": 8.0, "at": "waits for 'w'", "launched": "g"}},
            {0: 124, 1: -15},
            {0: {"at": "old"}, 1: {"at": "waits for 'v'", "launched": "h", "waited": None}},
        )
    )
    assert "rank 0 waits for 'w', last launch 'g'; rank 1 waits for 'v', last launch 'h'" in str(found)
    assert found.late
