"""Every command that README and docs show is run, or is named here with what it needs that a test has not."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from commcc.cli.main import run as cli
from tests.test_cli_commands import output

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_graphs"
#: Written from the code; its blocks are the texts of --help.
GENERATED = ("cli.md", "api.md")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:\$ )?((?:commcc|torchrun|make|TORCH_\w+=\S+) .*)")

#: What is not run here, and why. Each key is the beginning of a command; each must stand in some document.
NOT_RUN = {
    "make demo": "a target of the Makefile, which installs packages",
    "make test": "a target of the Makefile, which installs packages",
    "commcc bench before.fx.txt after.fx.txt --compile": "compiles for minutes where there is no GPU",
}
#: What takes processes of several ranks, or a compiler: with --full only.
SLOW = (
    "commcc bench",
    "commcc profile",
    "torchrun",
    "commcc capture",
    "commcc tune",
    "commcc verify BEFORE AFTER --num",
)


@dataclass(frozen=True)
class Command:
    """One command. document: where it stands. text: without the prompt, and without what is said behind it."""

    document: str
    text: str


def commands_of(path: Path) -> list[Command]:
    """The commands in the blocks of a document; backslashes join lines, and two spaces or a # end a command."""
    found = []
    for _, language, body in _FENCE.findall(path.read_text(encoding="utf-8")):
        lines = body.replace("\\\n", " ").splitlines() if language in ("", "bash", "console") else ()
        for line in lines:
            matched = _COMMAND.fullmatch(line.strip())
            if matched and not matched[1].startswith("commcc: "):
                text = re.split(r" {2,}(?!--)|\s#\s", re.sub(r" {2,}--", " --", matched[1]))[0]
                found.append(Command(path.relative_to(ROOT).as_posix(), text.strip().removesuffix(" ...")))
    return found


def documents() -> list[Path]:
    docs = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in GENERATED)
    return [ROOT / "README.md", *docs]


def reason(command: Command) -> str | None:
    return next((why for start, why in NOT_RUN.items() if command.text.startswith(start)), None)


COMMANDS = [command for path in documents() for command in commands_of(path)]
#: The tutorial is run in its order, by a test of its own.
TUTORIAL = [command for command in COMMANDS if command.document == "docs/tutorial.md"]
ALONE = list(dict.fromkeys(command for command in COMMANDS if command not in TUTORIAL and reason(command) is None))


def slow_ones() -> list[Command]:
    """Of slow commands that differ in their files alone, the first."""
    first: dict[str, Command] = {}
    for command in ALONE:
        if command.text.startswith(SLOW):
            words = command.text.split()
            options = [word for word in words if word.startswith("--") or word == "-o"]
            first.setdefault(" ".join([*words[:2], *options]), command)
    return list(first.values())


def test_what_is_not_run_is_named():
    """The count is what is reported: commands run, and commands named with what they need."""
    named = [command for command in COMMANDS if reason(command) is not None]
    for start in NOT_RUN:
        assert any(command.text.startswith(start) for command in named), f"no document shows '{start}'"
    assert len(named) < len(COMMANDS) / 5
    assert len(TUTORIAL) >= 7
    shown = [path.name for path in documents()]
    assert {"README.md", "tutorial.md", "gate.md", "pass.md"} <= set(shown)


COLL = """
table: 1
collectives:
- {kind: all_gather, group_size: 2, us: {1 KiB: 20, 1 MiB: 85}}
- {kind: reduce_scatter, group_size: 2, us: {1 KiB: 20, 1 MiB: 85}}
"""
PROFILE = """
profile: 1
collectives:
- {kind: all_gather, group_size: 4, input_bytes: 1024, us: 20}
"""
#: Words that stand for something of the reader's.
WORDS = {"0-7": "0-1", "COLLECTIVE": "all_gather_into_tensor", "OUT": "out/words.fx.txt"}


@pytest.fixture(scope="session")
def stage(tmp_path_factory) -> Path:
    """A folder with everything that documents name: small graphs stand for large ones."""
    folder = tmp_path_factory.mktemp("documents")
    for name in ("out", "traces", "dumps", "graphs", "sample_graphs"):
        (folder / name).mkdir()
    backward, of_four = (SAMPLES / f"tiny_llama_{each}_bw.fx.txt.gz" for each in ("fsdp2", "fsdp4"))
    forward_text = (SAMPLES / "tiny_llama_fsdp2_fw.fx.txt").read_text()
    forward = folder / "fw.fx.txt.gz"
    forward.write_bytes(gzip.compress(forward_text.encode()))
    for path in SAMPLES.glob("*.fx.txt.gz"):
        small = path if not path.name.startswith("llama3") else forward if "_fw" in path.name else backward
        shutil.copy(small, folder / "sample_graphs" / path.name)
        shutil.copy(small, folder / path.name)
    shutil.copy(backward, folder / "tuned.fx.txt.gz")
    text = gzip.decompress(backward.read_bytes()).decode()
    for name in ("before", "after", "a", "b", "c", "g", "bw", "dumps/rank0", "dumps/rank1", "graphs/build_bw"):
        (folder / f"{name}.fx.txt").write_text(text)
    for name in ("fw", "graphs/build_fw"):
        (folder / f"{name}.fx.txt").write_text(forward_text)
    (folder / "run.log").write_text(text)
    for name in ("BEFORE", "AFTER"):
        shutil.copy(of_four, folder / name)
    shutil.copy(SAMPLES / "tiny_deepseek_fsdp4_ep2.fx.txt.gz", folder / "GRAPH")
    for name in ("rank0", "rank1", "rank0_bw"):
        shutil.copy(backward, folder / "dumps" / f"{name}.fx.txt.gz")
    (folder / "coll.yaml").write_text(COLL)
    (folder / "costs.yaml").write_text(PROFILE)
    shutil.copy(ROOT / "examples" / "train_llama.py", folder / "train.py")
    shutil.copy(ROOT / "tests" / "data" / "profiles" / "gloo" / "rank0.pt.trace.json.gz", folder / "traces")
    return folder


def executed(command: Command, folder: Path) -> None:
    """Runs it as a person would, and in this process where that is the same."""
    words = [WORDS.get(word, word) for word in command.text.split(" ")]
    if "nccl" not in words:  # two processes stand for eight
        words = [
            "2" if word == "8" and before.startswith("--nproc") else word for before, word in pairwise(["", *words])
        ]
    arguments = shlex.split(" ".join(words))
    if words[:2] == ["commcc", "bench"]:
        arguments += ["--repeat", "2", "--warmup", "1"]  # what it measures does not matter here
    baseline = folder / "lint-baseline.yaml"
    if baseline.name in words and "--update-baseline" not in words and not baseline.exists():
        cli([*arguments[1:], "--update-baseline"])
    if arguments[0] == "commcc" and not command.text.startswith(SLOW):
        code = cli(arguments[1:])
    else:
        python = [sys.executable, "-m"]
        program = {"commcc": [*python, "commcc"], "torchrun": [*python, "torch.distributed.run", "--standalone"]}
        settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*program[arguments[0]], *arguments[1:]], cwd=folder, env=settings, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip
        code = done.returncode
        print(done.stdout, done.stderr, file=sys.stderr)
    assert code in (0, 1), f"{command.document}: {command.text}: exit code {code}"


def case(command: Command) -> str:
    return f"{command.document} {command.text[:60]}"


@pytest.mark.parametrize("command", [each for each in ALONE if not each.text.startswith(SLOW)], ids=case)
@pytest.mark.sampled(6)
def test_command(command, stage, monkeypatch):
    monkeypatch.chdir(stage)
    executed(command, stage)


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
@pytest.mark.parametrize("command", slow_ones(), ids=case)
def test_command_of_several_ranks(command, stage):
    executed(command, stage)


def python_blocks(path: Path) -> list[tuple[str | None, str]]:
    """Blocks of Python, with the file that the first line names."""
    blocks = [body for _, language, body in _FENCE.findall(path.read_text(encoding="utf-8")) if language == "python"]
    return [(named[1] if (named := re.match(r"# (\w+\.py)\n", body)) else None, body) for body in blocks]


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without distributed")
def test_tutorial(tmp_path, monkeypatch):
    """Its files, then its commands in their order, in an empty folder; the last one says what the text says."""
    monkeypatch.chdir(tmp_path)
    for name, body in python_blocks(ROOT / "docs" / "tutorial.md"):
        assert name is not None
        (tmp_path / name).write_text(body)
    for command in TUTORIAL:
        executed(command, tmp_path)
    assert {"graphs", "tuned", "plan", "before.html", "diff.html"} <= {path.name for path in tmp_path.iterdir()}


def test_the_pass_of_the_guide(stage, monkeypatch, capsys):
    page = ROOT / "docs" / "howto" / "pass.md"
    ((_, body),) = python_blocks(page)
    monkeypatch.chdir(stage)
    shutil.copy(SAMPLES / "tiny_llama_fsdp2_tp2_bw.fx.txt.gz", stage / "graph.fx.txt.gz")
    # A class has to be that of a module for dataclasses to find its annotations.
    (stage / "pass_of_the_guide.py").write_text(body)
    monkeypatch.syspath_prepend(str(stage))
    __import__("pass_of_the_guide")
    assert f"`{output(capsys).strip()}`" in page.read_text()
    assert len([line for line in body.splitlines() if line]) <= 32


def test_ranks_from_python(tmp_path, monkeypatch, capsys):
    """The example of the page, on as many ranks as it has."""
    ((_, body),) = python_blocks(ROOT / "docs" / "rank-agreement.md")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dumps").mkdir()
    for rank in range(8):
        shutil.copy(SAMPLES / "tiny_llama_ddp_bw.fx.txt.gz", tmp_path / "dumps" / f"rank{rank}.fx.txt.gz")
    exec(body, {})
    said = output(capsys).splitlines()
    assert said[0] in {"agree", "disagree", "not decidable"} and said[1].startswith(f"{said[0].upper()}: ")


def test_the_site_has_every_page():
    """And only these: mkdocs itself is not installed for tests."""
    import yaml

    def pages(entry):
        return (
            [entry]
            if isinstance(entry, str)
            else [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)]
        )

    nav = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(nav) == len(set(nav))
    assert set(nav) == {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def test_the_table_of_commands_is_that_of_the_help():
    """The README's groups, in their order, with every command of each."""
    from commcc.cli.main import GROUPS

    table = (ROOT / "README.md").read_text().partition("## Commands")[2].partition("## ")[0]
    parts = re.split(r"^\| \*\*([\w ]+)\*\* \| \|$", table, flags=re.MULTILINE)[1:]
    assert parts[::2] == [name.lower() for name in GROUPS]
    for rows, names in zip(parts[1::2], GROUPS.values(), strict=True):
        cells = " ".join(re.findall(r"^\| (.*?) \|", rows, re.MULTILINE))
        assert set(re.findall(r"`(?:commcc )?([\w-]+)", cells)) == set(names)


def test_links_lead_somewhere():
    """Relative links of README and docs: files that are there, headings that are there."""
    for path in (*documents(), ROOT / "docs" / "api.md", ROOT / "docs" / "cli.md"):
        text = re.sub(r"^( *)```.*?^\1```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"\w+:", target):
                continue
            file, _, heading = target.partition("#")
            found = (path.parent / file).resolve() if file else path
            assert found.exists(), f"{path.relative_to(ROOT)}: {target}"
            if heading:
                assert heading in headings(found), f"{path.relative_to(ROOT)}: {target}"


def headings(path: Path) -> set[str]:
    """Anchors as GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
