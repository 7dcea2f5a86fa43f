"""Pairs that differ, or are not proved, are reduced to what shows it, and stored for a report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from torch import fx

from commcc import apply
from commcc.cli.main import run
from commcc.serialization import load
from commcc.verify import reduced, verify
from tests.random_graphs import random_program
from tests.test_cli_commands import FSDP, files, ok, refused
from tests.verify_graphs import Graph, aten

if TYPE_CHECKING:
    from commcc.graph.program import Program


def chain(length: int, *, wrong: int | None) -> Program:
    """``length`` additions of pairs of inputs, one of them a subtraction; every third is returned."""
    g = Graph()
    x, y = g.input("x", 4), g.input("y", 4)
    results = []
    for i in range(length):
        x = g(aten.sub.Tensor if i == wrong else aten.add.Tensor, x, y)
        results.append(g(aten.sin.default, x))
    return g.program(*results[::3], x)


def test_a_difference_is_reduced_to_the_op_that_makes_it():
    small = reduced(chain(60, wrong=None), chain(60, wrong=37))
    said = verify(*small)
    assert said.status == "different" and "value" in {each.rule for each in said.findings}
    for program in small:
        assert len(program.graph.nodes) < 12
    targets = [{node.target for node in program.graph.nodes if node.op == "call_function"} for program in small]
    assert aten.sub.Tensor in targets[1] and aten.sub.Tensor not in targets[0]


def test_equal_programs_are_left_as_they_are():
    pair = chain(6, wrong=None), chain(6, wrong=None)
    assert verify(*reduced(*pair)).status == "proved"


@pytest.mark.parametrize("seed", range(4))
def test_what_is_reduced_shows_the_same(seed):
    before, after = random_program(seed), random_program(seed)
    products = [node for node in after.graph.nodes if len(set(node.all_input_nodes)) > 1 and node.op == "call_function"]
    changed = products[len(products) // 2]
    one, other = list(dict.fromkeys(changed.all_input_nodes))[:2]
    changed.args = fx.node.map_arg(changed.args, lambda node: {one: other, other: one}.get(node, node))
    whole = verify(before, after)
    small = reduced(before, after)
    assert verify(*small).status == whole.status
    assert len(small[0].graph.nodes) <= len(before.graph.nodes)


def break_applied_plans(monkeypatch) -> None:
    """Every plan is applied with the operands of the first matrix product exchanged."""
    original = apply.apply_plan

    def broken(*given):
        result = original(*given)
        node = next(n for n in result.graph.nodes if str(n.target) == "aten.mm.default")
        node.args = tuple(reversed(node.args))
        return result

    monkeypatch.setattr(apply, "apply_plan", broken)


def test_repro_stores_the_pair_of_a_wrong_result(tmp_path, capsys, monkeypatch):
    (tmp_path / "g.fx.txt").write_text(FSDP)
    break_applied_plans(monkeypatch)
    folder = tmp_path / "repro"
    assert run(["bucket", str(tmp_path / "g.fx.txt"), "--repro", str(folder)]) == 3
    err = capsys.readouterr().err.splitlines()
    assert "01-bucket" in err[0] and "nodes" in err[0] and "not the same program" in err[1]
    assert files(folder) == {"01-bucket.before.fx.txt", "01-bucket.after.fx.txt", "01-bucket.verdict.json"}
    stored = json.loads((folder / "01-bucket.verdict.json").read_text())
    assert stored["pass"] == "bucket" and stored["verdict"]["status"] == "different"
    before, after = (load(folder / f"01-bucket.{which}.fx.txt") for which in ("before", "after"))
    verdict = verify(before, after)
    assert verdict.status == "different"
    assert stored["verdict"]["findings"][0]["rule"] in {each.rule for each in verdict.findings}
    assert len(before.graph.nodes) == 8


def test_nothing_is_stored_of_what_is_proved(tmp_path, capsys):
    (tmp_path / "g.fx.txt").write_text(FSDP)
    ok("bucket", tmp_path / "g.fx.txt", "--repro", tmp_path / "repro")
    assert "a pair of" not in capsys.readouterr().err
    assert files(tmp_path) == {"g.fx.txt", "g.bucket.fx.txt"}


@pytest.mark.parametrize(("folder", "words"), [("g.fx.txt", "not a folder"), ("g.fx.txt/such", "is not a folder")])
def test_repro_needs_a_folder(folder, words, tmp_path, capsys):
    (tmp_path / "g.fx.txt").write_text(FSDP)
    assert words in refused(capsys, "bucket", tmp_path / "g.fx.txt", "--repro", tmp_path / folder)
    assert files(tmp_path) == {"g.fx.txt"}
