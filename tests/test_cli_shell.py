"""The shell around the commands: what is imported, exit codes, streams, messages. No graph is read."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest

from commcc.base.errors import InputError
from commcc.cli import main, parameters
from commcc.cli.main import COMMANDS, run
from commcc.cli.session import OutputClosedError, Session
from commcc.passes import registry

ROOT = Path(__file__).parents[1]

SOME_FILE = str(ROOT / "README.md")

LIGHT = [
    ["--help"],
    ["--version"],
    *([name, "--help"] for name in COMMANDS),
    ["passes"],
    ["passes", "bucket", "--json"],
    ["bukcet"],
    ["bucket"],
    ["bucket", SOME_FILE, "--bucket-cap-mb", "many"],
    ["bucket", SOME_FILE, "--bucket-cap", "3"],
    ["tag", SOME_FILE, "--no-such-flag"],
    ["simulate", SOME_FILE, "--cost", "h10"],
    ["simulate", SOME_FILE, "--trace", "trace.txt"],
    ["inspect", SOME_FILE, "--hint", "u0"],
    ["convert", SOME_FILE],
    ["verify", SOME_FILE],
    ["passes", "buckt"],
    ["inspect", "no-such-file.pt2"],
]


@pytest.mark.parametrize("arguments", LIGHT, ids=lambda words: " ".join(words).replace(SOME_FILE, "FILE"))
@pytest.mark.sampled(10)
def test_light_commands_do_not_import_torch(arguments):
    code = (
        "import sys\n"
        "from commcc.cli.main import run\n"
        f"code = run({arguments!r})\n"
        "heavy = {'torch', 'numpy', 'sympy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "imported" not in done.stderr
    assert "Traceback" not in done.stderr
    helpful = (
        "--help" in arguments or "--version" in arguments or arguments in (["passes"], ["passes", "bucket", "--json"])
    )
    assert done.returncode == (0 if helpful else 2), done.stderr
    assert bool(done.stdout) == helpful
    assert len(done.stderr.splitlines()) == (0 if helpful else 1), done.stderr


def test_help_imports_little():
    """Of other packages only click, and of commcc no more than commands, passes and options take."""
    code = "import sys; from commcc.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stderr.split()
    assert not {"torch", "numpy", "llvmlite", "sympy", "rich", "yaml"} & set(modules)
    assert sum(name.startswith("commcc.") for name in modules) < 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bukcet"], ["commcc: error: no such command 'bukcet'", "did you mean 'bucket'?", "commcc -h"]),
        (["zzz"], ["no such command 'zzz';"]),
        (["bucket", SOME_FILE, "--bucket-cap-md", "3"], ["commcc: error: ", "--bucket-cap-mb", "commcc bucket -h"]),
        (["bucket"], ["commcc: error: Missing argument 'GRAPH'", "commcc bucket -h"]),
        (
            ["bucket", SOME_FILE, "--bucket-cap-mb", "x", "--max-topo-span=-3"],
            ["bucket_cap_mb", "max_topo_span", "'x'", "-3"],
        ),
        (["bucket", SOME_FILE, "--strategy", "gredy"], ["did you mean 'greedy'?"]),
        (["passes", "buckt"], ["no pass 'buckt'", "did you mean 'bucket'?"]),
        (["inspect", SOME_FILE, "--top", "-1"], ["--top"]),
        (["bucket", SOME_FILE, "--cost", "h10"], ["unknown device 'h10'", "did you mean 'h100'?"]),
    ],
    ids=lambda words: " ".join(words).replace(SOME_FILE, "FILE"),
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments, words, capsys):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    ("arguments", "code", "command", "kind"),
    [
        (["inspect", "no-such-file.pt2", "--json"], 2, "inspect", "input"),
        (["bucket", "--json"], 2, "bucket", "option"),
        (["--json", "bukcet"], 2, "commcc", "option"),
        (["bucket", SOME_FILE, "--no-such-flag", "--json"], 2, "bucket", "option"),
    ],
    ids=lambda words: " ".join(words).replace(SOME_FILE, "FILE") if isinstance(words, list) else str(words),
)
def test_errors_are_documents_with_json(arguments, code, command, kind, capsys):
    assert run(arguments) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    error = document["error"]
    assert (document["command"], error["kind"], error["exit_code"]) == (command, kind, code)
    assert err == f"commcc: error: {error['message']}\n"
    parts = f"{error['where']}: {error['what']}" if error["where"] else error["what"]
    assert error["message"] == (f"{parts}; {error['hint']}" if error["hint"] else parts)


def test_bugs_are_documents_with_json_and_results_stay_alone(monkeypatch, capsys):
    raising(monkeypatch, ValueError("odd"))
    assert run(["boom", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "internal"
    session = Session()
    session.json = True
    session.emit({"a": 1}, brief="x", view=list)
    session.emit_error("boom", InputError("too late"))
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_commands_are_grouped_as_in_the_readme(capsys):
    assert run(["--help"]) == 0
    shown, group = {}, ""
    for line in capsys.readouterr().out.splitlines():
        group = line[:-1].lower() if line[:1].isalpha() and line.endswith(":") else group
        if match := re.match(r"  ([a-z][a-z-]*)  ", line):
            shown[match[1]] = group
    assert list(shown) == list(COMMANDS)
    table = (ROOT / "README.md").read_text().split("## Commands")[1].split("## ")[0]
    for line in table.splitlines():
        if match := re.match(r"\| \*\*([a-z ]+)\*\*", line):
            group = match[1]
        elif line.startswith("| `"):
            for name in re.findall(r"`(?:commcc )?([a-z-]+)", line.split("|")[1]):
                assert shown[name] == group, name


def test_no_arguments_shows_help_on_standard_error(capsys):
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: commcc" in err
    assert run(["--help"]) == 0
    assert capsys.readouterr().out == err


def test_short_help_flag(capsys):
    assert run(["bucket", "-h"]) == 0
    assert "--max-topo-span" in capsys.readouterr().out


def test_every_pass_has_a_command():
    assert set(registry.names()) <= set(COMMANDS)


def test_flags_are_the_fields_of_the_pass():
    cls = registry.get("bucket")
    options = {option.name: option for option in parameters.pass_options(cls)}
    assert list(options) == [field.name for field in dataclasses.fields(cls)]
    assert options["bucket_cap_mb"].opts == ["--bucket-cap-mb"]
    assert options["multi_dtype"].secondary_opts == ["--no-multi-dtype"]
    assert "[default: 1500]" in options["max_topo_span"].help
    assert "'none'" in options["max_topo_span"].help


def test_completion_offers_the_choices():
    option = next(o for o in parameters.pass_options(registry.get("bucket")) if o.name == "groups")
    items = option.shell_complete(click.Context(click.Command("x")), "")
    assert [item.value for item in items] == ["auto", "primary", "all"]


def completions(words: str, at: int) -> list[str]:
    environment = {**os.environ, "_COMMCC_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    code = "from commcc.cli.main import entry; entry()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return [line.split(",", 1)[1] for line in done.stdout.splitlines()]


def test_shell_completion():
    assert completions("commcc b", 1) == ["bucket", "bench"]
    assert completions("commcc bucket --max-t", 2) == ["--max-topo-span"]
    assert completions("commcc bucket --groups p", 3) == ["primary"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_in_bash(tmp_path):
    """Words with characters at which bash splits: what it gets is what follows the last of them."""
    program = tmp_path / "commcc"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m commcc "$@"\n')
    program.chmod(0o755)
    entry = "class GraphModule(torch.nn.Module):\n    def forward(self, a):\n        return (a,)\n"
    (tmp_path / "two.log").write_text("".join(f" ===== {name} =====\n {entry}\n" for name in ("one", "two")))
    lines = {
        "commcc run x --passes tag,bu": ["tag,bucket"],
        "commcc run x --passes 'tag,bucket{strategy=gr": ["tag,bucket{strategy=greedy"],
        "commcc run x --passes bucket{strategy=gr": ["greedy"],
        "commcc run x --passes bucket{str": ["bucket{strategy=", "bucket{strict="],
        "commcc passes a": ["async-tp", "autoparallel", "auto", "auto-split"],
        "commcc inspect two.log::one": ["one"],
    }
    ask = 'COMP_LINE="%s"; COMP_POINT=${#COMP_LINE}; _commcc_completion commcc 2> /dev/null; echo "${COMPREPLY[*]}"\n'
    script = 'eval "$(_COMMCC_COMPLETE=bash_source commcc)"\n' + "".join(ask % line for line in lines)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert [line.split() for line in done.stdout.splitlines()] == list(lines.values()), done.stderr


def test_passes_json(capsys):
    assert run(["passes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"]) == (1, "passes")
    bucket = next(each for each in document["passes"] if each["name"] == "bucket")
    span = next(option for option in bucket["options"] if option["name"] == "max_topo_span")
    assert (span["type"], span["default"]) == ("int", 1500)
    assert span["none"]


def test_passes_tables(capsys):
    assert run(["passes"]) == 0
    assert {"tag", "bucket"} <= set(capsys.readouterr().out.split())
    assert run(["passes", "bucket"]) == 0
    out = capsys.readouterr().out
    assert "max_topo_span" in out and "1500" in out
    assert run(["passes"]) == 0
    assert max(map(len, (out + capsys.readouterr().out).splitlines())) <= 100  # in a pipe too
    assert run(["passes", "-q"]) == 0
    assert capsys.readouterr().out.split() == list(registry.names())


def raising(monkeypatch, error: BaseException) -> None:
    def build(name: str) -> click.Command:
        @click.command(name, params=parameters.common_options())
        def command() -> None:
            raise error

        return command

    monkeypatch.setattr(main, "COMMANDS", {"boom": f"{__name__}:BOOM"})
    monkeypatch.setattr(sys.modules[__name__], "BOOM", build, raising=False)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("broken", where="f.txt:3", hint="dump it again"), 2, "f.txt:3: broken; dump it again"),
        (ValueError("two\nlines"), 3, "bug in commcc, please report; run with --debug"),
        (RecursionError("deep"), 3, "bug in commcc"),
        (PermissionError(13, "Permission denied", "f.txt"), 2, "f.txt: Permission denied"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, "PyTorch is not installed"),
        (ModuleNotFoundError("No module named 'x'", name="x"), 3, "bug in commcc"),
        (KeyboardInterrupt(), 130, ""),
        (click.ClickException("said by click"), 2, "said by click"),
    ],
    ids=repr,
)
def test_exit_codes(error, code, words, monkeypatch, capsys):
    raising(monkeypatch, error)
    assert run(["boom"]) == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 1


@pytest.mark.parametrize("error", [InputError("broken"), ValueError("odd")], ids=repr)
def test_debug_shows_the_traceback(error, monkeypatch, capsys):
    raising(monkeypatch, error)
    assert run(["boom", "--debug"]) == error.__dict__.get("exit_code", 2 if isinstance(error, InputError) else 3)
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "test_cli_shell.py" in err


def test_reader_of_stdout_goes_away():
    code = "import sys; from commcc.cli.main import run; sys.exit(run(['passes']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def heard():
    """Interrupts are ignored by all that a shell starts in the background, and so by its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_while_pytorch_is_loaded(tmp_path):
    """PyTorch's C++ code swallows it, and fails in other ways later."""
    (tmp_path / "torch.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    sum(range(1000))\n"
        "except KeyboardInterrupt:\n    raise RecursionError from None\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from commcc.cli.main import entry; entry()"
    graph = next((Path(__file__).parents[1] / "sample_graphs").glob("tiny_*.gz"))
    command = [sys.executable, "-c", code, "inspect", graph]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=heard, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_an_interrupt_while_a_model_is_captured(tmp_path):
    """Ctrl-C reaches the process that captures as well, while it runs the user's code."""
    model = "import os, signal, time\ndef build(mesh):\n    os.killpg(0, signal.SIGINT)\n    time.sleep(60)\n"
    (tmp_path / "train.py").write_text(model)
    command = [sys.executable, "-m", "commcc", "capture", "train.py:build", "--mesh", "dp=2", "-o", "graphs"]
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        start_new_session=True,
        preexec_fn=heard,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")
    assert not (tmp_path / "graphs").exists()


def test_odd_file_names_are_printed_not_crashed_on(tmp_path):
    code = "from commcc.cli.main import entry; entry()"
    for encoding in ("utf-8", "ascii"):
        done = subprocess.run(
            [sys.executable, "-c", code, "inspect", os.fsencode(tmp_path) + b"/\xff\xc3\xa9.pt2"],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 2
        assert b"no such file" in done.stderr and len(done.stderr.splitlines()) == 1


def test_closed_output_is_reported_once(monkeypatch):
    class Closed:
        def write(self, _text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stdout", Closed())
    session = Session()
    session.quiet = True
    with pytest.raises(OutputClosedError):
        session.emit({}, brief="x", view=list)


def test_streams(capsys):
    session = Session()
    session.note("a note\non two lines\x1b[0m")
    session.warn("a warning")
    session.emit({"a": 1}, brief="brief", view=lambda _: ["a table"])
    out, err = capsys.readouterr()
    assert out == "a table\n"
    assert err == "note: a note on two lines\\x1b[0m\nwarning: a warning\n"
    session.quiet = True
    session.note("not said")
    session.warn("said")
    session.emit({"a": 1}, brief="brief", view=lambda _: ["a table"])
    out, err = capsys.readouterr()
    assert (out, err) == ("brief\n", "warning: said\n")
    session.json = True
    session.emit({"a": [1.5, None]}, brief="brief", view=lambda _: ["a table"])
    assert json.loads(capsys.readouterr().out) == {"a": [1.5, None]}


def test_progress_is_for_terminals_only(capsys):
    with Session().working("thinking") as say:
        say("still")
    assert capsys.readouterr() == ("", "")


def test_lazy_group_imports_nothing_until_asked(monkeypatch):
    group = main.LazyGroup(table={"x": "no_such_module_at_all:command"}, name="g", help="")
    context = click.Context(group)
    assert group.list_commands(context) == ["x"]
    assert group.get_command(context, "y") is None
    with pytest.raises(ModuleNotFoundError):
        group.get_command(context, "x")


@pytest.mark.skipif(
    f"click=={metadata.version('click')}" not in (ROOT / "constraints.txt").read_text().split(),
    reason="help texts differ between click versions",
)
def test_reference_is_up_to_date():
    done = subprocess.run(
        [sys.executable, "tools/cli_docs.py", "--check", "docs/cli.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
