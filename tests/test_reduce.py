"""``commcc reduce``: pairs on which the verifier and the numbers disagree become small, and still disagree."""

from __future__ import annotations

import json

import pytest

from commcc.cli.main import run
from commcc.replay.numeric import reduction
from commcc.replay.numeric.reduction import Opinion
from commcc.serialization import save
from commcc.verify import Verdict
from tests.test_cli_commands import document, files, ok, refused
from tests.verify_graphs import Graph, aten


def chain(length: int, *, odd: int | None, other: bool):
    """Sums and sines; at ``odd`` a square, by multiplication or as a power: the same numbers, other terms."""
    g = Graph()
    x, y = g.input("x", 4), g.input("y", 4)
    results = []
    for i in range(length):
        if i == odd:
            x = g(aten.pow.Tensor_Scalar, x, 2) if other else g(aten.mul.Tensor, x, x)
        x = g(aten.add.Tensor, x, y)
        results.append(g(aten.sin.default, x))
    return g.program(*results[::3], x)


@pytest.fixture
def pair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(chain(30, odd=17, other=False), tmp_path / "before.fx.txt")
    save(chain(30, odd=17, other=True), tmp_path / "after.fx.txt")
    return tmp_path


def test_a_false_alarm_is_reduced_to_the_op(pair, capsys):
    assert run(["verify", "before.fx.txt", "after.fx.txt", "--numeric", "-q"]) == 1
    assert capsys.readouterr().out == "different, numeric: equal\n"
    ok("reduce", "before.fx.txt", "after.fx.txt", "-o", "small", "--json")
    doc = document(capsys)
    assert (doc["shows"], doc["kept"], doc["nodes"]["from"]) == ("a false alarm", True, [64, 64])
    assert max(doc["nodes"]["to"]) < 8
    assert json.loads((pair / "small" / "verdict.json").read_text()) == doc
    assert files(pair / "small") == {"before.fx.txt", "after.fx.txt", "verdict.json"}
    texts = [(pair / "small" / f"{which}.fx.txt").read_text() for which in ("before", "after")]
    assert "aten.mul" in texts[0] and "aten.pow" in texts[1] and "aten.sin" not in texts[0] + texts[1]
    assert run(["verify", "small/before.fx.txt", "small/after.fx.txt", "--numeric", "-q"]) == 1
    assert capsys.readouterr().out == "different, numeric: equal\n"


def test_a_wrong_proof_is_reduced(pair, capsys, monkeypatch):
    """With a verifier that proves whatever it is asked."""
    save(chain(30, odd=None, other=True), pair / "wrong.fx.txt")
    monkeypatch.setattr(reduction, "verify", lambda *_: Verdict("proved"))
    ok("reduce", "before.fx.txt", "wrong.fx.txt", "-o", "small")
    out = capsys.readouterr().out
    assert out.startswith("a wrong proof: verify says proved, the numbers are different\n")
    assert (pair / "small" / "before.fx.txt").read_text().count(" = torch.ops") <= 3


SUM = "{out}: \"f32[4, 4][4, 1]cpu\" = torch.ops._c10d_functional.all_reduce.default({of}, 'sum', '{group}')"
WAIT = '{out}: "f32[4, 4][4, 1]cpu" = torch.ops._c10d_functional.wait_tensor.default({of})'
PRODUCT = 'm: "f32[4, 4][4, 1]cpu" = torch.ops.aten.{op}.default(w, w)'


def test_collectives_go_with_what_groups_says_of_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = [SUM.format(out="a", of="x", group="7"), WAIT.format(out="w", of="a")]
    last = [SUM.format(out="b", of="m", group="8"), WAIT.format(out="v", of="b")]
    for name, op in (("before", "mm"), ("after", "matmul")):
        lines = [*first, PRODUCT.format(op=op), *last, "return (v,)"]
        head = 'class G(torch.nn.Module):\n    def forward(self, x: "f32[4, 4][4, 1]cpu"):'
        (tmp_path / f"{name}.fx.txt").write_text("\n        ".join([head, *lines]) + "\n")
    given = ["before.fx.txt", "after.fx.txt", "-o", "small", "--virtual-ranks", "4"]
    ok("reduce", *given, "--groups", "7=0,2|1,3;8=0,1|2,3", "--json")
    assert document(capsys)["nodes"] == {"from": [7, 7], "to": [3, 3]}
    assert "no collective uses '9'" in refused(capsys, "reduce", *given, "--groups", "7=0,1|2,3;8=0,1|2,3;9=0,1|2,3")


def test_agreement_is_said_and_nothing_is_written(pair, capsys):
    said = refused(capsys, "reduce", "before.fx.txt", "before.fx.txt", "-o", "small", code=1)
    assert "do not contradict each other: verify says proved, the numbers are equal; nothing was written" in said
    assert "is not a folder" in refused(capsys, "reduce", "before.fx.txt", "after.fx.txt", "-o", "after.fx.txt")
    inside = refused(capsys, "reduce", "before.fx.txt", "after.fx.txt", "-o", "after.fx.txt/where")
    assert "'after.fx.txt' is not a folder" in inside
    assert not (pair / "small").exists()


@pytest.mark.parametrize(
    ("verify", "numeric", "shows"),
    [
        ("proved", "equal", None),
        ("proved", "within tolerance", None),
        ("proved", "different", "a wrong proof"),
        ("proved", "inconclusive", None),
        ("different", "different", None),
        ("different", "within tolerance", "a false alarm"),
        ("unproved", "equal", "a gap of the verifier"),
        ("unproved", "different", "a difference that the verifier does not decide"),
    ],
)
def test_what_counts_as_a_contradiction(verify, numeric, shows):
    assert Opinion(verify, numeric).contradiction == shows
    assert Opinion(verify, "equal").same(Opinion(verify, "within tolerance"))
    assert not Opinion(verify, "equal").same(Opinion(verify, "different"))
