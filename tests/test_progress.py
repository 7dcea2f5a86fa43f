"""What a command on a terminal says of work that takes long."""

from __future__ import annotations

from pathlib import Path

from commcc.base.jit import kernel
from commcc.base.progress import detail, detailed, shown
from commcc.cli.main import run

ROOT = Path(__file__).parents[1]


def test_details_come_behind_what_the_command_does():
    told: list[str] = []
    with shown(told.append) as say:
        say("reorder: planning")
        detail("schedule 1")
        with detailed("compiling"):
            pass
        say("writing")
        with detailed("compiling"):
            pass
    detail("nobody listens")
    with detailed("nor here"):
        pass
    parts = ("", ": schedule 1", ": compiling", ": schedule 1")
    assert told == [*("reorder: planning" + part for part in parts), "writing", "writing: compiling", "writing"]


def test_the_first_call_of_a_kernel_says_that_it_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("COMMCC_CACHE_DIR", str(tmp_path))

    def _double(number):
        return number + number

    told: list[str] = []
    double = kernel(_double)
    with shown(told.append) as say:
        say("planning")
        assert (double(3), double(4)) == (6, 8)
    assert told == ["planning", "planning: compiling kernel 'double'", "planning"]
    with shown(told.append) as say:
        say("planning")
        assert kernel(_double)(3) == 6
    assert told[3:] == ["planning"]


def test_passes_and_schedules_are_counted(monkeypatch, tmp_path):
    """Through the command, with a spinner in place of a terminal's."""
    told: list[str] = []
    monkeypatch.setattr("commcc.cli.session._Spinner.update", lambda _self, text: told.append(text))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    graph = ROOT / "sample_graphs" / "tiny_llama_fsdp2_fw.fx.txt"
    assert run(["run", str(graph), "--preset", "auto", "-o", str(tmp_path / "o.fx.txt")]) == 0
    assert "4/5 bucket: planning" in told and "5/5 reorder: planning" in told
    assert "4/5 bucket: planning: bucketing 2 of at most 16" in told
    assert any(text.startswith("5/5 reorder: planning: schedule 1 of at most 76") for text in told)
    told.clear()
    assert run(["lint", str(graph), str(graph).replace("_fw.fx.txt", "_bw.fx.txt.gz"), "--only", "never-waited"]) == 0
    assert [text.split()[0] for text in told] == ["1/2", "2/2"]
