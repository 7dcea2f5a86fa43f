"""The whole job on every small sample graph: inspect, bucket, verify and diff agree with one another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commcc.cli.main import run

SAMPLES = Path(__file__).parents[1] / "sample_graphs"
SMALL = sorted(SAMPLES.glob("tiny_*.fx.txt*")) + sorted(SAMPLES.glob("tiny_*.pt2"))


def answer(capsys, *arguments: object) -> dict:
    assert run([str(a) for a in (*arguments, "--json")]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_there_are_samples():
    assert len(SMALL) >= 10


@pytest.mark.parametrize("sample", SMALL, ids=lambda path: path.name)
@pytest.mark.sampled(1)
def test_job(sample, tmp_path, capsys):
    after = tmp_path / f"after{'.pt2' if sample.suffix == '.pt2' else '.fx.txt.gz'}"
    seen = answer(capsys, "inspect", sample)
    made = answer(capsys, "bucket", sample, "--groups", "all", "-o", after)
    assert made["verified"] == "proved"
    assert made["before"] == seen["graph"]
    assert answer(capsys, "inspect", after)["graph"] == made["after"]
    assert made["before"]["bytes"] == made["after"]["bytes"]
    assert made["before"]["compute_nodes"] == made["after"]["compute_nodes"]

    found = answer(capsys, "diff", sample, after)
    report = made["passes"][0]["report"]
    assert len(found["merged"]) == report["buckets"]
    members = [member for merge in found["merged"] for member in merge["members"]]
    assert len(members) == len(set(members)) == report["members"]
    assert found["before"] == made["before"] and found["after"] == made["after"]
    assert not found["split"] and not found["replaced"] and not found["changed"]
    if not report["buckets"]:
        assert found["identical"]

    assert answer(capsys, "verify", sample, after)["verified"] == "proved"


@pytest.mark.full
@pytest.mark.parametrize("sample", SMALL[:4], ids=lambda path: path.name)
def test_bucketing_again_changes_nothing(sample, tmp_path, capsys):
    once, twice = tmp_path / "once.fx.txt", tmp_path / "twice.fx.txt"
    answer(capsys, "bucket", sample, "-o", once)
    again = answer(capsys, "bucket", once, "-o", twice)
    assert not again["passes"][0]["changed"]
    assert answer(capsys, "diff", once, twice)["identical"]
