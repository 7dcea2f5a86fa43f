"""Pairs that differ, or of which one cannot run, though they were called the same once: none is proved.

Each was run, BEFORE and AFTER, where a CPU can: ``tests/data/wrong_pairs.txt`` has them by what is wrong.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commcc.serialization import load
from commcc.verify import verify

TEXT = (Path(__file__).parent / "data" / "wrong_pairs.txt").read_text()
PAIRS = dict(re.findall(r"^\[([^\n]+)\]\n(.*?)(?=^\[|\Z)", TEXT, re.MULTILINE | re.DOTALL))
#: What is said wrongly is not even proved itself.
UNPROVED = ("a dtype said wrongly", "said wrongly", "a broadcast of")


@pytest.mark.parametrize("name", PAIRS)
def test_no_wrong_pair_is_proved(tmp_path, name):
    programs = []
    for which, text in zip(("before", "after"), PAIRS[name].split("\n---\n"), strict=True):
        (tmp_path / f"{which}.fx.txt").write_text(text)
        programs.append(load(tmp_path / f"{which}.fx.txt"))
    assert verify(*programs).status != "proved"
    itself = verify(programs[0], programs[0]).status
    assert itself == ("unproved" if name.startswith(UNPROVED) else "proved")


def test_there_are_pairs():
    assert len(PAIRS) > 60
