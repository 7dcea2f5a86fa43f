"""Reasons: every one that commcc makes has words for its fields, and the words say what is counted as one."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

from commcc.base.reasons import WORDS, Reason

PACKAGE = Path(__file__).parents[1] / "commcc"


def made() -> list[tuple[str, str, set[str] | None]]:
    """Where, code and fields of every reason that the source makes; None for fields that stand nowhere in the call."""
    found = []
    using = [path for path in PACKAGE.rglob("*.py") if "commcc.base.reasons import Reason" in path.read_text()]
    for path in using:
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if not ast.unparse(call.func).startswith("Reason") or not call.args:
                continue
            codes = [node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)]
            given = {keyword.arg for keyword in call.keywords}
            fields = None if None in given or len(call.args) > 1 else {name for name in given if name is not None}
            where = f"{path.name}:{call.lineno}"
            found += [(where, code, fields) for code in codes if isinstance(code, str)]
    return found


def fields_of(words: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(words) if name is not None}


def test_every_reason_has_words_for_its_fields():
    found = made()
    assert len(found) > 50
    for where, code, fields in found:
        assert code in WORDS, f"{where}: no words for '{code}'"
        assert fields is None or fields == fields_of(WORDS[code]), f"{where}: '{code}' has other fields"


def test_there_are_no_words_that_nothing_says():
    assert set(WORDS) == {code for _, code, _ in made()}


def test_words():
    assert str(Reason.of("used_early", node="mm_3")) == "its result is used by 'mm_3' before it is waited for"
    closed = Reason.of("closed", members=3, bytes=21 << 20, span=7, closed_by="bytes")
    assert str(closed) == "3 members, 21.0 MiB, span 7; closed for bytes"
    assert "384 bytes" in str(Reason.of("shorter_step", members=2, bytes=384))
    ahead = Reason.of("launched_ahead", entry="layers.1")
    both = Reason(closed.code, closed.fields, ahead)
    assert str(both) == "3 members, 21.0 MiB, span 7; closed for bytes; launched before the wait of layers.1"
    assert str(Reason.of("stated", text="{any} text, 'as it was'")) == "{any} text, 'as it was'"


def test_reasons_that_are_alike_are_counted_as_one():
    assert Reason.of("written", node="a").general == Reason.of("written", node="b").general
    assert Reason.of("symbolic", node="a", symbols="'s0'").general == "the size of '...' is symbolic ('s0')"
    assert Reason.of("group_left_out", group="dp").general == "group 'dp' does not take part"
    assert Reason.of("far_apart", nodes=3, node="a").general == Reason.of("far_apart", nodes=9, node="b").general
