"""``commcc lint --fix``: findings that a pass can mend, and what is written of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commcc.cli.main import run
from commcc.lint.registry import RULES
from commcc.passes.options import parse_pipeline
from tests.lint_graphs import findings, graph
from tests.test_cli_commands import document, ok, refused

if TYPE_CHECKING:
    from pathlib import Path

GATHERS = ("g = gather(a)", "w = wait_wide(g)", "h = half(w)", "g2 = gather(a)", "w2 = wait_wide(g2)", "h2 = half(w2)")
TWICE = graph("a", *GATHERS, "m = mm(h, h2)", returns="m")
#: Launches the same, but writes to the second result.
WRITTEN = graph("a", *GATHERS, "p = add_(h2, h)", "m = mm(h, p)", returns="m")
WASTEFUL = graph(
    "a", "g = gather(a)", "w = wait_wide(g)", "again = wait_wide(w)", "h = half(again)", "dead = mm(a, a)", returns="h"
)
ONLY = ("--only", "duplicated-gather,doubled-wait,dead-nodes", "--cost", "none")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rules(doc: dict) -> list[str]:
    return [each["rule"] for result in doc["graphs"] for each in result["rules"] if each["findings"]]


def test_what_nothing_needs_is_found():
    (dead,) = findings("dead-nodes", WASTEFUL)
    assert dead.text == "nothing needs 1 node" and dead.spots[0].node == "dead"
    (again,) = findings("doubled-wait", WASTEFUL)
    assert again.text == "1 wait for what was waited for already" and again.spots[0].node == "again"
    unused = graph("a", "g = gather(a)", "w = wait_wide(g)", "m = mm(a, a)", returns="m")
    assert not findings("dead-nodes", unused)  # other ranks may need what they receive
    assert not findings("dead-nodes", TWICE) and not findings("doubled-wait", TWICE)


def test_fixes_are_pipelines():
    for rule in RULES:
        if rule.fix is not None:
            assert parse_pipeline(rule.fix(rule.options()))


def test_fixed_graphs_are_written_to_a_folder_and_reported(folder, capsys):
    (folder / "wasteful.fx.txt").write_text(WASTEFUL)
    (folder / "twice.fx.txt").write_text(TWICE)
    assert run(["lint", "wasteful.fx.txt", "twice.fx.txt", *ONLY, "--json"]) == 0
    assert rules(document(capsys)) == ["doubled-wait", "dead-nodes", "duplicated-gather"]
    ok("lint", "wasteful.fx.txt", "twice.fx.txt", "--fix", "fixed", *ONLY, "--json")
    doc = document(capsys)
    assert rules(doc) == []
    assert [each["graph"] for each in doc["graphs"]] == ["fixed/wasteful.fx.txt", "fixed/twice.fx.txt"]
    assert [(each["graph"], each["written"]) for each in doc["fixes"]] == [
        ("wasteful.fx.txt", "fixed/wasteful.fx.txt"),
        ("twice.fx.txt", "fixed/twice.fx.txt"),
    ]
    assert ((folder / "wasteful.fx.txt").read_text(), (folder / "twice.fx.txt").read_text()) == (WASTEFUL, TWICE)
    for name in ("wasteful.fx.txt", "twice.fx.txt"):
        assert run(["verify", name, f"fixed/{name}", "-q"]) == 0


def test_in_place_only_when_asked(folder, capsys):
    (folder / "wasteful.fx.txt").write_text(WASTEFUL)
    (folder / "before.fx.txt").write_text(WASTEFUL)
    ok("lint", "wasteful.fx.txt", "--fix-in-place", *ONLY)
    assert "written to wasteful.fx.txt, proved to be the same program" in capsys.readouterr().out
    assert "again" not in (folder / "wasteful.fx.txt").read_text()
    assert run(["verify", "before.fx.txt", "wasteful.fx.txt", "-q"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["before.fx.txt", "wasteful.fx.txt"]
    capsys.readouterr()
    (folder / "two.log").write_text(TWICE + WASTEFUL)
    ok("lint", "two.log", "--fix-in-place", *ONLY, "--json")
    doc = document(capsys)
    assert {each["written"] for each in doc["fixes"]} == {None} and "in place only" in doc["fixes"][0]["reason"]
    assert (folder / "two.log").read_text() == TWICE + WASTEFUL


def test_ranks_do_not_part(folder, capsys):
    """One rank can do without the second gather, the other cannot: both would wait for each other for ever."""
    (folder / "rank0.fx.txt").write_text(TWICE)
    (folder / "rank1.fx.txt").write_text(WRITTEN)
    everything = ("rank0.fx.txt", "rank1.fx.txt", "--cost", "none")
    assert run(["lint", *everything, "--json"]) == 0, capsys.readouterr().out
    assert "duplicated-gather" in rules(document(capsys))
    assert "--fix would cause errors of rank-agreement" in refused(
        capsys, "lint", *everything, "--fix-in-place", code=1
    )
    assert (folder / "rank0.fx.txt").read_text() == TWICE


def test_wrong_use(folder, capsys):
    (folder / "twice.fx.txt").write_text(TWICE)
    assert "contradict" in refused(capsys, "lint", "twice.fx.txt", "--fix", "x", "--fix-in-place")
    assert "is not a folder" in refused(capsys, "lint", "twice.fx.txt", "--fix", "twice.fx.txt")
    assert "--update-baseline" in refused(
        capsys, "lint", "twice.fx.txt", "--fix", "x", "--baseline", "b.yaml", "--update-baseline"
    )
    (folder / "a").mkdir()
    (folder / "a" / "twice.fx.txt").write_text(TWICE)
    said = refused(capsys, "lint", "twice.fx.txt", "a/twice.fx.txt", "--no-ranks", "--fix", "x", "--json")
    assert "two graphs would be written to x/twice.fx.txt" in said
    assert not (folder / "x").exists()
