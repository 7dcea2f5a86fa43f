"""Text for people: figures and units, and that no name in a file drives a terminal, a report or a runner of jobs."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from commcc.base.text import (
    Lines,
    change,
    count,
    duration,
    escaped,
    json_text,
    listed,
    one_line,
    plural,
    sentence,
    share,
    short_names,
    short_size,
    shown,
    size,
    without_commands,
)
from commcc.cli.main import run
from commcc.serialization import load, save
from tests.test_cli_commands import FSDP

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (26214400, "25.0 MiB"),
        (-26214400, "-25.0 MiB"),
        (1536 * 2**20, "1.5 GiB"),
        (2**30 - 4096, "1.0 GiB"),
        (2**60, "1,024.0 PiB"),
        (None, "?"),
    ],
)
def test_size(number, text):
    assert size(number) == text


def test_files_are_told_apart_by_as_few_parts_as_that_takes():
    assert short_names(["out/graphs/bw.fx.txt", "out/graphs/fw.fx.txt"]) == ["bw.fx.txt", "fw.fx.txt"]
    assert short_names(["/a/graphs/bw.fx.txt", "/a/tuned/bw.fx.txt"]) == ["graphs/bw.fx.txt", "tuned/bw.fx.txt"]
    assert short_names(["bw.fx.txt", "out/bw.fx.txt"]) == ["bw.fx.txt", "out/bw.fx.txt"]
    assert short_names(["g.fx.txt", "g.fx.txt"]) == ["g.fx.txt", "g.fx.txt"]
    assert short_names([]) == []


def test_short_size():
    sizes = (0, 1023, 1536, 1 << 20, 3 << 40, 5 << 50)
    assert [*map(short_size, sizes)] == ["0 B", "1023 B", "1.5 KiB", "1 MiB", "3 TiB", "5120 TiB"]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [(4, 4, "="), (0, 3, "new"), (290, 98, "-66.2 %"), (4, 12, "+200.0 %"), (3, 0, "-100.0 %"), (None, 1, "")],
)
def test_change(before, after, text):
    assert change(before, after) == text


def test_times_and_shares():
    assert [duration(ns) for ns in (0, 999, -999, 1000, 1_234_567_890)] == [
        *("0 ns", "999 ns", "-999 ns", "0.001 ms", "1,234.568 ms"),
    ]
    assert (share(0.123), share(None)) == ("12.3 %", "")


def test_counts_and_nouns():
    assert (count(12345), count(0.25), count(None)) == ("12,345", "0.250", "?")
    assert (plural(1, "bucket"), plural(1200, "bucket")) == ("1 bucket", "1,200 buckets")
    nouns = ("launch", "process", "entry", "array", "index", "all-to-all")
    assert [plural(2, noun)[2:] for noun in nouns] == [
        *("launches", "processes", "entries", "arrays", "indexes", "all-to-alls"),
    ]
    assert sentence("no limit") == sentence("No limit.") == "No limit."
    assert [listed("abcde"[:n]) for n in range(5)] == ["", "a", "a and b", "a, b and c", "a, b, c and 1 more"]
    assert listed("abcde", None) == "a, b, c, d and e"


EVIL = "x\n::error::y\r\x1b[31m\x85\u2028\u202e\ud800\0\N{NO-BREAK SPACE}##[error]##vso[task.x]"


def test_a_name_is_one_line_that_drives_nothing():
    safe = one_line(EVIL)
    assert safe.isprintable() and safe.startswith("x\\n::error::y\\r\\x1b[31m\\x85\\u2028\\u202e\\ud800\\x00\\xa0")
    assert safe.endswith("\\x23#[error]\\x23#vso[task.x]")
    assert one_line("läuft ## gut [1]") == "läuft ## gut [1]"
    assert shown("a" * 61) == "a" * 60 + "..." and shown("a\nb") == "a\\nb"
    assert without_commands("a\n::error::\n  ::b\nc::d") == "a\n\\x3a:error::\n  \\x3a:b\nc::d"


def test_documents_keep_their_shape():
    document = {"a\n": ["b\x1b", ("c\n",), None, 1.5], "yaml": Lines("x: 1\n\x1by: 2\n")}
    safe = escaped(document)
    assert safe == {"a\\n": ["b\\x1b", ["c\\n"], None, 1.5], "yaml": "x: 1\n\\x1by: 2\n"}
    assert escaped(safe) == {**safe, "yaml": one_line(safe["yaml"])}


#: What is dangerous somewhere: at the start of a line, in markup, in a terminal, in a file name, in a template.
PIECES = st.sampled_from(
    [
        *("\n", "\r", "\r\n", "\x1b[31m", "\x1b]0;x\x07", "\x85", "\u2028", "\u202e", "\ud800", "\0", "\t", "\x0b"),
        *("::error::x", "::stop-commands::x", "##[error]x", "##vso[x]", "##teamcity[x]", "[bold]", "[/]", ":smile:"),
        *("<b>", "&amp;", "]]>", "%0A", "{x}", "%s", "a", " ", "ß", "'", "\\n", "|", ","),
    ]
)
NAMES = st.lists(PIECES, min_size=1, max_size=5).map("".join)


@given(NAMES)
def test_any_name_is_one_line_and_json_is_exact(name):
    safe = one_line(name)
    assert safe.isprintable() and not re.search(r"##\w*\[", safe) and one_line(safe) == safe
    text = json_text({name: [name]})
    assert json.loads(text) == {name: [name]} and not re.search(r"##\w*\[", text) and "\x1b" not in text


def hostile(folder: Path, name: str, group: str, module: str) -> Path:
    """A graph whose group, description of it and modules are called so."""
    facts = {"groups": {group: {"size": 2, "ranks": [0, 1], "description": module}}}
    first, path = folder / f"{name}.txt", folder / f"{name}.fx.txt"
    first.write_text(f'# commcc: {{"fx_text": 1}}\n# commcc: {json.dumps(facts)}\n' + FSDP.replace("'0'", repr(group)))
    program = load(str(first))
    for node in program.graph.nodes:
        if node.op == "call_function":
            node.meta["custom"] = {"module_fqn": module}
            node.meta["stack_trace"] = f'  File "{module}", line 3, in f\n    x\n'
    save(program, path)
    return path


COMMANDS = {
    "inspect": ("inspect", "G"),
    "inspect all": ("inspect", "G", "--all"),
    "inspect brief": ("inspect", "G", "-q"),
    "simulate": ("simulate", "G", "--passes", "bucket"),
    "explain": ("explain", "G"),
    "explain one": ("explain", "G", "rs"),
    "explain brief": ("explain", "G", "-q"),
    "lint": ("lint", "G"),
    "lint github": ("lint", "G", "--format", "github"),
    "lint junit": ("lint", "G", "--format", "junit"),
    "lint sarif": ("lint", "G", "--format", "sarif"),
    "bucket": ("bucket", "G", "-o", "OUT", "--groups", "all"),
    "groups": ("groups", "G", "-o", "OUT"),
    "run": ("run", "G", "-o", "OUT", "--passes", "tag,bucket,reorder"),
    "diff": ("diff", "G", "OUT"),
    "diff all": ("diff", "G", "OUT", "--all"),
    "verify": ("verify", "G", "OUT"),
    "json": ("inspect", "G", "--json"),
}


def said(arguments: tuple[str, ...], graph: Path, *, refused: bool = False) -> str:
    """Both streams of a command."""
    places = {"G": str(graph), "OUT": str(graph.with_name(graph.name.replace(".fx", ".out.fx")))}
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        code = run([places.get(argument, argument) for argument in arguments])
    assert code == (2 if refused else 0), stream.getvalue()
    return stream.getvalue()


def harmless(text: str, *, commands: bool) -> bool:
    lines = text.split("\n")
    driven = any(line.lstrip().startswith("::") for line in lines) and not commands
    return all(line.isprintable() for line in lines) and not driven and not re.search(r"##\w*\[", text)


@settings(max_examples=8, deadline=None, phases=[Phase.generate])
@given(group=NAMES, module=NAMES)
@pytest.mark.full
def test_names_of_a_graph_reach_no_stream_as_they_are(group, module, tmp_path_factory):
    """A line end in a name is followed by a word that no line starts with."""
    folder = tmp_path_factory.mktemp("names")
    group, module = (re.sub(r"([\n\r])", r"\1AFTER", name) for name in (group, module))
    graph = hostile(folder, "g", group, module)
    for label, arguments in COMMANDS.items():
        text = said(arguments, graph)
        assert harmless(text, commands=label == "lint github"), (label, text)
        assert not re.search(r"^\s*AFTER", text, re.MULTILINE), (label, text)
        if label == "lint junit":
            ElementTree.fromstring(text[: text.rindex(">") + 1])


@pytest.mark.full
def test_names_of_files_reach_no_stream_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "d\n::error::d\x1b[31m##[error]"
    folder.mkdir()
    graph = hostile(folder, "[bold]g", "dp", "layers.0")
    for label, arguments in COMMANDS.items():
        text = said(arguments, graph.relative_to(tmp_path))
        assert harmless(text, commands=label == "lint github"), (label, text)
    for arguments in (("inspect", "no\n::error::\x1b"), ("run", "G", "--passes", "x\n::error::"), ("\n::error::",)):
        assert harmless(said(arguments, graph, refused=True), commands=False)
    assert harmless(said(("inspect", "no\n::error::\x1b", "--debug"), graph, refused=True), commands=False)


def test_names_reach_no_report_as_they_are(tmp_path):
    evil = "dp\n::error::\x1b[31m\u202e"
    graph = hostile(tmp_path, "g", evil, evil)
    page, trace, text = tmp_path / "p.html", tmp_path / "t.json", tmp_path / "l.txt"
    assert run(["simulate", str(graph), "--html", str(page), "--trace", str(trace), "-q"]) == 0
    assert run(["lint", str(graph), "-o", str(text)]) == 0
    for path in (page, trace, text):
        assert "::error::" in path.read_text() and "dp\n" not in path.read_text()
        assert "\\u001b" not in path.read_text() and "\x1b" not in path.read_text()
