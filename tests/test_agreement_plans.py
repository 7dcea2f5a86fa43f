"""Ranks plan apart and come to the same plan: whatever differs between their files and processes does not matter."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commcc.lint.ranks import Status, agree
from commcc.lint.ranks.show import text
from commcc.lint.ranks.trace import trace_of
from commcc.passes.options import parse_pipeline
from commcc.run.pipeline import run
from commcc.serialization import load
from commcc.timing.cost import load_model
from tests.rank_files import other_rank, planned

ROOT = Path(__file__).parents[1]
PLANS = (
    ("tiny_llama_fsdp2_tp2_bw", "tag,bucket,reorder"),
    ("tiny_llama_fsdp4_bw", "bucket{strategy=auto},reorder"),
    ("tiny_llama_hsdp_bw", "reorder,bucket{strategy=overlap}"),
    ("tiny_moe_fsdp4_ep2_bw", "tag,dedup,groups,cleanup,bucket{strategy=module},reorder"),
    ("tiny_moe_fsdp4_ep2_fw", "bucket{groups=all},reorder,groups"),
)


def rank_file(folder: Path, sample: str, rank: int) -> Path:
    text = gzip.decompress((ROOT / "sample_graphs" / f"{sample}.fx.txt.gz").read_bytes()).decode()
    path = folder / f"host{rank}" / f"rank{rank}.fx.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(other_rank(text, rank))
    return path


@pytest.mark.full
@pytest.mark.parametrize(("sample", "passes"), PLANS)
def test_two_ranks_come_to_the_same_plan(sample, passes, tmp_path, monkeypatch):
    found = []
    for rank in (0, 1):
        path = rank_file(tmp_path, sample, rank)
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("CUDA_VISIBLE_DEVICES", rank), ("WORLD_SIZE", 4)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.chdir(path.parent)
        found.append(planned(passes, path))
    assert found[0] == found[1]


def test_files_of_ranks_differ_in_all_that_may(tmp_path):
    """Or the test above would prove nothing."""
    one, other = (load(rank_file(tmp_path, PLANS[0][0], rank)) for rank in (0, 3))
    assert not set(one.groups) & set(other.groups)
    assert {group.ranks for group in one.groups.values()} != {group.ranks for group in other.groups.values()}
    calls = [{node.name for node in each.graph.nodes if node.op == "call_function"} for each in (one, other)]
    assert not calls[0] & calls[1]
    devices = [
        {str(n.meta["val"].device) for n in p.graph.nodes if hasattr(n.meta.get("val"), "device")} for p in (one, other)
    ]
    assert devices == [{"cuda:7"}, {"cuda:4"}]


@pytest.mark.full
def test_a_process_of_its_own(tmp_path):
    """Another hash seed, environment, folder and process."""
    sample, passes = PLANS[0]
    other = {"PYTHONHASHSEED": "12345", "RANK": "3", "LOCAL_RANK": "3", "PYTHONPATH": str(ROOT), "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-m", "tests.rank_files", passes, str(rank_file(tmp_path, sample, 3))]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=tmp_path, env={**os.environ, **other}
    )
    assert json.loads(done.stdout) == planned(passes, rank_file(tmp_path, sample, 0))


@pytest.mark.parametrize(("sample", "passes"), PLANS[:1])
@pytest.mark.full
def test_planned_ranks_agree(sample, passes, tmp_path):
    model = load_model("h100")
    programs = {
        rank: run(load(rank_file(tmp_path, sample, rank)), parse_pipeline(passes), model=model).program
        for rank in range(4)
    }
    found = agree(programs)
    assert found.status is Status.AGREE, text(found)


def test_ranks_with_other_options_do_not_agree(tmp_path):
    """What a plan of another cap on one rank would do, and that it is told where."""
    sample, _ = PLANS[0]
    programs = {
        rank: run(
            load(rank_file(tmp_path, sample, rank)),
            parse_pipeline("bucket{bucket_cap_mb=0.01}" if rank == 2 else "bucket"),
        ).program
        for rank in range(4)
    }
    found = agree(programs)
    assert found.status is Status.DISAGREE
    assert 2 in found.first.ranks
    assert "number of elements" in found.first.what


@pytest.mark.parametrize("sample", ["tiny_llama_fsdp2_tp2_bw", "tiny_moe_fsdp4_ep2_fw"])
def test_launches_mean_the_same_on_every_rank(sample, tmp_path):
    traces = [trace_of(load(rank_file(tmp_path, sample, rank))) for rank in (0, 3)]
    sent = [[(launch.sent, launch.meaning, launch.splits) for launch in trace.launches] for trace in traces]
    assert sent[0] == sent[1]
    assert len({launch.meaning for launch in traces[0].launches}) > len(sent[0]) / 2
