"""Names of ops stand in commcc/graph/ops alone; the tool that counts tables elsewhere finds them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "op_tables.py"))


def test_no_tables_outside_their_home():
    assert TOOL["all_tables"]() == []


@pytest.mark.parametrize(
    ("text", "ops"),
    [
        ('A = {"aten.mm", "aten.bmm"}', 2),
        ('A = frozenset(f"aten.{n}" for n in ("mm", "bmm"))', 1),
        ('A: dict[str, int] = {"aten::mm.out": 1}', 1),
        ("A = (torch.ops.aten.mm.default,)", 1),
        ("A = [aten.mm.default, c10d.wait_tensor.default]", 2),
        ('A = ("mm", "bmm", "addmm")', 3),
        ('class C:\n    A = ("prims.iota",)', 1),
        ('def f(op):\n    return op in ("aten.mm", "aten.bmm")', 2),
        ('def f(op):\n    return op == "aten.mm"', 0),
        ('A = "aten.mm"', 0),
        ('A = {"mm": 1, "cat": 2, "dog": 3, "mouse": 4}', 0),
        ('A = ("sum", "avg")', 0),
    ],
)
def test_what_a_table_is(tmp_path, monkeypatch, text, ops):
    file = tmp_path / "module.py"
    file.write_text(text)
    monkeypatch.setitem(TOOL["tables"].__globals__, "ROOT", tmp_path)
    found = TOOL["tables"](file, frozenset({"mm", "bmm", "addmm", "cat", "sum"}))
    assert sum(table.ops for table in found) == ops
