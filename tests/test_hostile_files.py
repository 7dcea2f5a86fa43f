"""Files that were written to do harm: each is refused in one line, or harmless, by every command that reads graphs."""

from __future__ import annotations

import pytest
import torch

from commcc.cli.main import run
from tests.hostile_archives import archives, packed
from tests.hostile_files import COMMANDS, calling, every, tried

#: Where a mark is named that is in another folder each time.
MARK = "/MARK"


#: Every file is read, proved and run; one of the other commands in turn gets it as well.
ALWAYS, IN_TURN = COMMANDS[:3], COMMANDS[3:]


@pytest.fixture(scope="module", autouse=True)
def everything_is_loaded(tmp_path_factory):
    """Children of this process find the modules loaded that a harmless file needs: more than a second for each."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("harmless")
    (folder / "G.fx.txt").write_text(calling('h: "f32[4][1]cpu" = torch.ops.aten.neg.default(x)'))
    (folder / "G.pt2").write_bytes(packed())
    for file, commands in (("G.fx.txt", COMMANDS), ("G.pt2", OF_ARCHIVES[1:])):
        for command in commands:
            names = {"G": str(folder / file), "out.fx.txt": str(folder / "o.fx.txt"), "out.pt2": str(folder / "o.pt2")}
            if command[0] != "bench":  # which starts processes of its own
                assert run([names.get(word, word) for word in command]) == 0, command


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("number", "name"), list(enumerate(every(MARK))))
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


#: What an archive goes through; with another copy of the model that it was made of beside it.
OF_ARCHIVES = (
    ("verify", "good.pt2", "G"),
    ("inspect", "G", "--all"),
    ("verify", "G", "G", "--numeric", "--virtual-ranks", "2"),
    ("convert", "G", "-o", "out.pt2"),
)


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("number", "name"), list(enumerate(archives())))
def test_a_hostile_archive_does_nothing(tmp_path, number, name):
    torch.set_num_threads(1)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "kept").write_text("precious")
    (folder / "good.pt2").write_bytes(packed())
    commands = (OF_ARCHIVES[0], OF_ARCHIVES[1 + number % 3])
    outcomes = tried(folder, "evil.pt2", archives()[name](), commands)
    assert {outcome.command: problems for outcome in outcomes if (problems := outcome.problems())} == {}
    assert outcomes[0].status == (0 if name in HARMLESS else 1 if name in READ else 2)
    assert (folder / "kept").read_text() == "precious"
    assert {path.name for path in folder.iterdir()} == {"kept", "good.pt2", "evil.pt2"}


#: Archives that hold the same program all the same, and those that can be read and hold another one.
HARMLESS = ("many entries", "terminal commands in a name", "symlink sidecar", "a stack trace with commands")
READ = (
    *("symlink weight", "weight of another dtype", "weight of an unknown dtype", "huge weight", "weight of no size"),
    *("strides into the void", "negative strides", "offset into the void", "weight too short", "weight too long"),
    *("constant too short", "a tree of any class", "two entries at one place"),
)
