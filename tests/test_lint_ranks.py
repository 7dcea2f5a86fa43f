"""``commcc lint`` on the graphs of several ranks: the rule rank-agreement."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from commcc.cli.main import run
from commcc.serialization import load, save
from tests.agreement_damage import DAMAGES
from tests.agreement_ranks import copied, programs

SAMPLE = Path(__file__).parents[1] / "sample_graphs" / "tiny_llama_fsdp2_tp2_fw.fx.txt.gz"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory) -> Path:
    """Four ranks that agree, the damaged last one beside them, and the last one with another header."""
    folder = tmp_path_factory.mktemp("dumps")
    ranks = programs(load(SAMPLE))
    for rank, program in ranks.items():
        for name in ("good", "bad", "folders"):
            (folder / name / f"rank_{rank}").mkdir(parents=True)
        save(program, folder / "good" / f"rank{rank}.fx.txt")
        save(program, folder / "folders" / f"rank_{rank}" / "fw.fx.txt")
        damaged, graph = copied(program)
        if rank == 3:
            DAMAGES["swapped"](graph, random.Random(1))
        save(damaged, folder / "bad" / f"fw-r{rank}.fx.txt")
        named = replace(program, header={**program.header, "rank": rank})
        save(named, folder / f"header{'abcd'[rank]}.fx.txt")
    return folder


@pytest.fixture
def lint(capsys):
    """Runs the rule alone: the exit code, and its findings or the error."""

    def ran(*arguments: str | Path):
        capsys.readouterr()
        code = run(["lint", "--no-config", "--only", "rank-agreement", "--json", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, [f for each in json.loads(out)["across"] for f in each["findings"]] if code in (0, 1) else err

    return ran


def test_ranks_that_agree(lint, dumps):
    assert lint(dumps / "good") == (0, [])
    assert lint(dumps / "folders") == (0, [])


def test_a_rank_that_differs(lint, dumps):
    code, (finding,) = lint(dumps / "bad")
    assert code == 1
    assert finding["severity"] == "error"
    assert finding["text"].startswith(f"{dumps}/bad/fw-*.fx.txt: the group of ranks ")
    assert [Path(node["graph"]).name for node in finding["nodes"]] == ["fw-r1.fx.txt", "fw-r3.fx.txt"]
    for node in finding["nodes"]:
        text = Path(node["graph"]).read_text().splitlines()
        assert text[node["line"] - 1].strip().startswith(f"{node['node']}:")
    block = "\n".join(finding["details"])
    assert "rank 1, which calls the group" in block
    assert "rank 3, which calls the group" in block
    assert block.count("> ") == 2


def test_ranks_in_headers(lint, dumps):
    assert lint(*sorted(dumps.glob("header*"))) == (0, [])
    code, (finding,) = lint(dumps / "headera.fx.txt", dumps / "headerd.fx.txt")
    assert code == 0
    assert "no file of ranks 1 and 2" in finding["text"]


def test_some_ranks(lint, dumps):
    code, (finding,) = lint(dumps / "good" / "rank0.fx.txt", dumps / "good" / "rank1.fx.txt")
    assert code == 0
    assert finding["severity"] == "info"
    assert "nothing wrong, but not proved: no file of ranks 2 and 3" in finding["text"]


def test_no_ranks(capsys, dumps):
    assert run(["lint", "--no-config", "--no-ranks", "--json", str(dumps / "bad")]) == 0
    assert json.loads(capsys.readouterr().out)["across"] == []


def test_all_graphs_are_ranks(lint, dumps, tmp_path):
    """Names that tell no rank: not compared, unless that is asked for."""
    for place, name in enumerate("wxyz"):
        (tmp_path / f"{name}.fx.txt").write_text((dumps / "bad" / f"fw-r{place}.fx.txt").read_text())
    assert lint(tmp_path) == (0, [])
    code, (finding,) = lint(tmp_path, "--ranks")
    assert code == 1
    assert [Path(node["graph"]).name for node in finding["nodes"]] == ["x.fx.txt", "z.fx.txt"]


def test_one_rank_twice(lint, dumps):
    (dumps / "twice").mkdir(exist_ok=True)
    for name in ("rank1.fx.txt", "rank_1.fx.txt"):
        (dumps / "twice" / name).write_text((dumps / "good" / "rank1.fx.txt").read_text())
    code, (finding,) = lint(dumps / "twice")
    assert (code, finding["severity"]) == (0, "warning")
    assert "are both rank 1" in finding["text"]


def test_one_rank_twice_in_one_of_two_programs(lint, dumps):
    """The other program is compared all the same."""
    (dumps / "both" / "bw").mkdir(parents=True)
    for file in (dumps / "bad").glob("fw-r*"):
        (dumps / "both" / file.name).write_bytes(file.read_bytes())
    for name in ("rank1.fx.txt", "rank_1.fx.txt"):
        (dumps / "both" / "bw" / name).write_bytes((dumps / "good" / "rank1.fx.txt").read_bytes())
    code, findings = lint(dumps / "both")
    assert (code, sorted(finding["severity"] for finding in findings)) == (1, ["error", "warning"])


def test_ranks_of_groups_that_the_files_do_not_tell(lint, dumps, tmp_path):
    """What print_readable gives has no table: a difference is a warning, and is shown as any other."""
    for rank in range(4):
        lines = (dumps / "bad" / f"fw-r{rank}.fx.txt").read_text().splitlines(keepends=True)
        (tmp_path / f"rank{rank}.fx.txt").write_text("".join(line for line in lines if '"groups"' not in line))
    code, findings = lint(tmp_path)
    assert (code, {finding["severity"] for finding in findings}) == (0, {"warning", "info"})
    assert "ranks that are in one group may differ: group '" in findings[0]["text"]
    assert [Path(node["graph"]).name for node in findings[0]["nodes"]][-1] == "rank3.fx.txt"
    assert "more cannot be decided: " in findings[-1]["text"] and "nothing wrong" not in findings[-1]["text"]


def test_options_in_a_file(lint, dumps, tmp_path):
    settings = tmp_path / "lint.yaml"
    settings.write_text("rules:\n  rank-agreement: {severity: warning, around: 0}\n")
    code, (finding,) = lint(dumps / "bad", "--config", settings)
    assert (code, finding["severity"]) == (0, "warning")
    assert len([line for line in finding["details"] if "layers" in line or "'" in line]) <= 6
    settings.write_text("rules:\n  rank-agreement: {ranks: some}\n")
    code, message = lint(dumps / "bad", "--config", settings)
    assert code == 2
    assert "'ranks': expected one of names, all, got 'some'" in message
