"""Temporary folders: removed at the end, or by whoever comes next; those of others are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from commcc.replay.work_folder import remove_stale_folders, work_folder

ROOT = Path(__file__).parents[1]
#: Makes a folder, says so, and waits to be killed.
OWNER = """
import sys
from commcc.replay.work_folder import work_folder
with work_folder("bench") as folder:
    (folder / "inside").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def owner(home):
    """A process with a folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_removed_at_the_end(home):
    with work_folder("trace") as folder:
        assert folder.parent == home
        assert folder.name.startswith("commcc-trace-")
        (folder / "file").write_text("x")
    assert list(home.iterdir()) == []
    with pytest.raises(ZeroDivisionError), work_folder("trace"):
        raise ZeroDivisionError
    assert list(home.iterdir()) == []


def test_what_a_killed_process_leaves_is_removed_by_the_next(home):
    killed, left = owner(home)
    living, used = owner(home)
    try:
        killed.kill()
        killed.wait()
        assert left.exists()
        with work_folder("ranks") as own:
            assert sorted(home.iterdir()) == sorted([used, own])
            remove_stale_folders()  # its own is in use too
            assert own.exists()
        assert list(home.iterdir()) == [used]
        assert (used / "inside").exists()
    finally:
        living.communicate("")
    assert list(home.iterdir()) == []


def test_folders_of_others_are_left_alone(home, monkeypatch):
    killed, left = owner(home)
    killed.kill()
    killed.wait()
    (home / "commcc-bench-nolock").mkdir()
    (home / "commcc-bench-file").write_text("x")
    (home / "commcc-bench-link").symlink_to(left)
    left.rename(home / "else")
    remove_stale_folders()
    assert sorted(path.name for path in home.iterdir()) == [
        "commcc-bench-file",
        "commcc-bench-link",
        "commcc-bench-nolock",
        "else",
    ]
    (home / "commcc-bench-link").unlink()
    (home / "else").rename(left)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    remove_stale_folders()
    assert left.exists()
    monkeypatch.setattr(os, "getuid", lambda: user)
    remove_stale_folders()
    assert not left.exists()
