"""Files that were written to do harm: each is refused in one line, or harmless, by every command that reads graphs."""

from __future__ import annotations

import importlib

import pytest
import torch

from tests.hostile_files import COMMANDS, every, tried

#: Children of this process find everything loaded.
for module in ("inspect", "verify", "lint", "diff", "simulate", "convert", "numeric"):
    importlib.import_module(f"commcc.cli.{module}")
importlib.import_module("commcc.replay.virtual")
#: Where a mark is named that is in another folder each time.
MARK = "/MARK"


#: Every file is read, proved and run; one of the other commands in turn gets it as well.
ALWAYS, IN_TURN = COMMANDS[:3], COMMANDS[3:]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("number", "name"), enumerate(every(MARK)))
def test_a_hostile_file_does_nothing(tmp_path, number, name):
    torch.set_num_threads(1)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "kept").write_text("precious")
    content = every(str(folder / "kept"))[name]
    outcomes = tried(folder, "evil.fx.txt", content, (*ALWAYS, IN_TURN[number % len(IN_TURN)]))
    assert {outcome.command: problems for outcome in outcomes if (problems := outcome.problems())} == {}
    assert (folder / "kept").read_text() == "precious"
    assert {path.name for path in folder.iterdir()} == {"kept", "evil.fx.txt"}
