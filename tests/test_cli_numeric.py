"""``commcc verify --numeric``: what it prints and returns, and one line for all that cannot be run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from commcc.cli.main import run
from commcc.serialization import save
from tests.test_replay_numeric import MERGED, copied, lose_a_wait, reduce_otherwise, rewritten, sample

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
BEFORE = SAMPLES / "tiny_llama_fsdp2_bw.fx.txt.gz"
FOUR = SAMPLES / "tiny_llama_fsdp4_bw.fx.txt.gz"


def called(capsys, *arguments: object) -> tuple[int, str, str]:
    code = run([str(a) for a in ("verify", *arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "merged.fx.txt"
    save(rewritten("tiny_llama_fsdp2_bw", MERGED), path)
    return path


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "wrong.fx.txt"
    program = copied(rewritten("tiny_llama_fsdp2_bw", MERGED))
    reduce_otherwise(program.graph)
    save(program, path)
    return path


def test_equal(capsys, merged):
    code, out, err = called(capsys, BEFORE, merged, "--numeric")
    assert code == 0
    assert "proved: the same program" in out
    assert "numeric: the same to the bit on 2 virtual ranks" in out
    assert "45 values of each rank: 45 equal, seed 0" in out
    assert err == ""


def test_different(capsys, wrong):
    code, out, _ = called(capsys, BEFORE, wrong, "--numeric", "--seed", 3)
    assert code == 1
    assert out.index("different: not the same program") < out.index("numeric: different numbers on 2 virtual ranks")
    assert "seed 3" in out
    assert "no sum on the way to it changed, so rounding is no excuse" in out
    assert "reduce_scatter_bucket_0_out20_copy" in out


def test_json(capsys, merged, wrong):
    code, out, _ = called(capsys, BEFORE, merged, "--json")
    assert (code, json.loads(out)["numeric"]) == (0, None)
    code, out, _ = called(capsys, BEFORE, merged, "--json", "--numeric", "--float64", "--virtual-ranks", 2)
    found = json.loads(out)
    assert (code, found["verified"]) == (0, "proved")
    assert (found["numeric"]["status"], found["numeric"]["precision"]) == ("equal", "float64")
    code, out, _ = called(capsys, BEFORE, wrong, "--json", "--numeric")
    found = json.loads(out)["numeric"]
    assert (code, found["status"]) == (1, "different")
    assert found["values"][0]["producers"][-1] == "reduce_scatter_bucket_0"


def test_quiet(capsys, merged, wrong):
    assert called(capsys, BEFORE, merged, "-q", "--numeric")[:2] == (0, "proved, numeric: equal\n")
    assert called(capsys, BEFORE, wrong, "-q", "--numeric")[:2] == (1, "different, numeric: different\n")
    assert called(capsys, BEFORE, merged, "-q")[:2] == (0, "proved\n")


def test_tolerance_is_asked_for(capsys, wrong):
    code, out, _ = called(capsys, BEFORE, wrong, "--numeric", "--tolerance", 2)
    assert "numeric: the same within rounding" in out
    assert code == 1  # the structure still says different


def test_a_lost_wait_is_named(capsys, tmp_path):
    program = copied(rewritten("tiny_llama_fsdp2_bw", "bucket{bucket_cap_mb=0.01}"))
    lose_a_wait(program.graph)
    save(program, tmp_path / "lost.fx.txt")
    code, out, _ = called(capsys, BEFORE, tmp_path / "lost.fx.txt", "--numeric")
    assert code == 1
    assert "brings before a wait" in out
    assert "is the first that differs, on rank 0" in out


@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
@pytest.mark.full
def test_processes(capsys, merged):
    code, out, _ = called(capsys, BEFORE, merged, "--numeric", "--nproc", 2, "--timeout", 100)
    assert code == 0
    assert "numeric: the same to the bit on 2 gloo processes" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc", 2], "--nproc needs --numeric"),
        (["--seed", 1, "--float64", "--hint", "u0=3"], "--seed, --float64, --hint needs --numeric"),
        (["--numeric", "--nproc", 2, "--virtual-ranks", 2], "--nproc and --virtual-ranks cannot go together"),
        (["--numeric", "--virtual-ranks", 4], "the graph is for 2 ranks, not 4"),
        (["--numeric", "--nproc", 3], "the graph is for 2 ranks, not 3"),
        (["--numeric", "--groups", "0=0"], "group '0'"),
        (["--numeric", "--groups", "9=0,1"], "no collective uses '9'; the graphs use 0"),
        (["--numeric", "--groups", "x"], "'x' is not NAME=RANKS|RANKS"),
        (["--numeric", "--hint", "u0"], "'u0' is not SYMBOL=NUMBER"),
        (["--numeric", "--virtual-ranks", 0], "virtual-ranks"),
        (["--numeric", "--tolerance", -1], "tolerance"),
    ],
)
def test_wrong_use_is_one_line(capsys, arguments, words):
    code, out, err = called(capsys, BEFORE, BEFORE, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_an_op_of_another_library_is_named(capsys, tmp_path):
    text = (
        BEFORE.with_name("tiny_llama_fsdp2_fw.fx.txt")
        .read_text()
        .replace("torch.ops.aten.amax.", "torch.ops.mine.amax.")
    )
    path = tmp_path / "mine.fx.txt"
    path.write_text(text)
    code, _, err = called(capsys, path, path, "--numeric")
    assert code == 2
    assert "mine.amax is not registered with this PyTorch" in err
    assert err.count("error") == 1


def test_inputs_that_after_made_up(capsys, tmp_path):
    program = copied(sample("tiny_llama_fsdp2_bw"))
    program.graph.find_nodes(op="placeholder")[0].name = "primals_9x"
    save(program, tmp_path / "renamed.fx.txt")
    code, _, err = called(capsys, BEFORE, tmp_path / "renamed.fx.txt", "--numeric")
    assert code == 2
    assert "AFTER has an input 'primals_9x' that BEFORE has not" in err
