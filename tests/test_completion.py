"""The completion scripts in zsh and fish themselves; that of bash is in test_cli_shell."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What is typed, and what zsh makes of it with one Tab.
TYPED = {
    "commcc buck": "commcc bucket ",
    "commcc run g --passes tag,bu": "commcc run g --passes tag,bucket ",
    "commcc run g --passes 'tag,bucket{strat": "commcc run g --passes 'tag,bucket{strategy=",
    "commcc run g --passes tag,bucket{strat": "commcc run g --passes tag,bucket{strat",
    "commcc simulate x --cost h100,tab": "commcc simulate x --cost h100,table=",
    "commcc inspect --cost=h10": "commcc inspect --cost=h100-sxm ",
    "commcc inspect wi": "commcc inspect with\\ space.txt ",
    "commcc run g --pipeline=wi": "commcc run g --pipeline=with\\ space.txt ",
    "commcc nobody --xx": "commcc nobody --xx",
}
ZSH = r"""PS1=; unsetopt beep zle_bracketed_paste; stty cols 200
autoload -U compinit; compinit -D -u
eval "$(_COMMCC_COMPLETE=zsh_source commcc)"
shown() { print -r -- "[[$BUFFER]]"; BUFFER=; zle .redisplay }; zle -N shown; bindkey '^G' shown
bindkey '^I' complete-word
echo RE""ADY
"""


@pytest.fixture
def place(tmp_path) -> dict[str, str]:
    """A folder with the program and a file; the environment for a shell in it."""
    program = tmp_path / "commcc"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m commcc "$@"\n')
    program.chmod(0o755)
    (tmp_path / "with space.txt").touch()
    changed = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    return {**os.environ, **changed, "TERM": "xterm"}


def read_until(terminal: int, mark: str, seconds: float = 60) -> str:
    text, end = "", time.monotonic() + seconds
    while mark not in text:
        assert time.monotonic() < end, f"no {mark!r} in {text!r}"
        if select.select([terminal], [], [], 0.5)[0]:
            text += os.read(terminal, 65536).decode()
    return text


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh(place, tmp_path):
    terminal, of_shell = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=tmp_path, env=place, stdin=of_shell, stdout=of_shell, stderr=of_shell,
        start_new_session=True,
    )  # fmt: skip
    os.close(of_shell)
    try:
        os.write(terminal, ZSH.encode())
        read_until(terminal, "READY\r\n")
        found = {}
        for line in TYPED:
            os.write(terminal, f"{line}\t\a".encode())
            text = read_until(terminal, "]]")
            found[line] = re.findall(r"\[\[(.*)\]\]", text)[-1]
            assert "error" not in text
        assert found == TYPED
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish(place, tmp_path):
    offered = {
        "commcc buck": ["bucket\tMerge collectives of one kind, group, reduction and dtype"],
        "commcc run g --preset a": ["auto", "autoparallel", "auto-split"],
        "commcc run g --passes tag,bu": ["tag,bucket"],
        "commcc run g --passes 'tag,bucket{str": ["tag,bucket{strategy=", "tag,bucket{strict="],
        "commcc inspect --cost=h10": ["--cost=h100-sxm"],
        "commcc inspect wi": ["with space.txt"],
        "commcc nobody --xx": [],
    }
    asks = "".join(f'complete -C "{line}"\necho ==\n' for line in offered)
    script = f"_COMMCC_COMPLETE=fish_source commcc | source\n{asks}"
    done = subprocess.run(["fish", "-c", script], cwd=tmp_path, env=place, capture_output=True, text=True, check=False)
    blocks = [block.split("\n")[:-1] for block in done.stdout.split("==\n")[:-1]]
    assert dict(zip(offered, blocks, strict=True)) == offered, done.stderr
