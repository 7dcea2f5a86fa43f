"""Project configuration: the nearest file counts, all mistakes at once with file and line, nothing is ever run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commcc.base.errors import CommccError, InputError
from commcc.cli.config import Named, find_config
from tests.effort import examples

YAML = """\
cost: a100,fused=no
hints: {"u*": 512, s0: 4096}
preset: pre-overlap
options:
  bucket: {bucket_cap_mb: 25, groups: [dp, tp]}
  reorder:
    memory-budget: none
"""
TOML = """\
[project]
name = "x"

[tool.commcc]
cost = "a100,fused=no"
hints = {"u*" = 512, s0 = 4_096}
preset = "pre-overlap"

[tool.commcc.options]
bucket = {bucket_cap_mb = 25, groups = ["dp", "tp"]}
reorder.memory-budget = "none"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return tmp_path


@pytest.mark.parametrize(("name", "text"), [("commcc.yaml", YAML), ("pyproject.toml", TOML)])
def test_both_formats_say_the_same(name, text, project):
    (project / name).write_text(text)
    config = find_config(Path.cwd())
    assert config is not None and config.path == str(project / name)
    assert (config.cost, config.hints) == ("a100,fused=no", {"u*": 512, "s0": 4096})
    assert config.pipeline == Named("preset", "pre-overlap")
    assert config.options == {
        "bucket": {"bucket_cap_mb": "25", "groups": ["dp", "tp"]},
        "reorder": {"memory_budget": "none"},
    }


def test_the_nearest_file_counts(project):
    (project / "commcc.yaml").write_text("cost: a100")
    (project / "a" / "pyproject.toml").write_text("[tool.commcc]\ncost = 'h100'")
    (project / "a" / "b" / "pyproject.toml").write_text("[tool.other]\ncommcc = 1")
    assert find_config(Path.cwd()).cost == "h100"
    (project / "a" / "commcc.yaml").write_text("cost: b200")
    assert find_config(Path.cwd()).cost == "b200"
    (project / "a" / "b" / "commcc.yaml").write_text("")
    assert find_config(Path.cwd()).cost is None


def test_without_a_file(project):
    assert find_config(Path.cwd()) is None or not find_config(Path.cwd()).path.startswith(str(project))


def test_paths_are_relative_to_the_file(project):
    for name in ("coll.yaml", "run.json", "dev.yaml", "a/p.yaml"):
        (project / name).write_text("x: 1")
    (project / "commcc.yaml").write_text("cost: dev.yaml,table=coll.yaml,profile=run.json,skew=1.5\npipeline: a/p.yaml")
    config = find_config(Path.cwd())
    assert config.cost == f"device={project}/dev.yaml,table={project}/coll.yaml,profile={project}/run.json,skew=1.5"
    assert config.pipeline == Named("pipeline", f"{project}/a/p.yaml")


def test_pipelines_in_place(project):
    (project / "commcc.yaml").write_text("passes: [tag, bucket: {bucket_cap_mb: [1, 2]}]")
    assert find_config(project).pipeline == Named("passes", "tag,bucket{bucket_cap_mb=1:2}")
    (project / "commcc.yaml").write_text("passes: 'tag,bucket{bucket_cap_mb=1:2}'")
    assert find_config(project).pipeline == Named("passes", "tag,bucket{bucket_cap_mb=1:2}")


BAD_TOML = """\
[tool.other]
text = '''
[tool.commcc]
cost = "nothing"
'''
[tool.commcc]
cost = "h1000"
prest = "auto"
preset = "pre-overlp"
pipeline = "p.yaml"
[tool.commcc.options.bucket]
bucket_cap = 25
max_topo_span = "x"
[tool.commcc.hints]
"u 0" = 1
u1 = 1.5
u2 = true
"""
BAD_YAML = """\
# first


# fourth
tool:
 x: 1
cost: h1000
prest: auto
preset: pre-overlp
pipeline: p.yaml
options: {bucket:
    {bucket_cap: 25,
    max_topo_span: x}}
hints:
    "u 0": 1
    u1: 1.5
    u2: true
"""
SAID = {
    7: "unknown device 'h1000' (did you mean 'h100'?)",
    8: "unknown key 'prest' (did you mean 'preset'?)",
    9: "no preset 'pre-overlp' (did you mean 'pre-overlap'?)",
    10: "no such file: p.yaml",
    12: "pass 'bucket' has no option 'bucket_cap' (did you mean 'bucket_cap_mb'?)",
    13: "max_topo_span: expected a number, got 'x'",
    15: "'u 0=1' is not SYMBOL=NUMBER",
    16: "u1: '1.5' is not a whole number",
    17: "u2: 'true' is not a whole number",
}


@pytest.mark.parametrize(("name", "text"), [("commcc.yaml", BAD_YAML), ("pyproject.toml", BAD_TOML)])
def test_all_mistakes_with_their_lines(name, text, project):
    (project / name).write_text(text)
    with pytest.raises(InputError) as caught:
        find_config(Path.cwd())
    assert str(caught.value).startswith(f"{project / name}:")
    said = str(caught.value).replace(f"{project / name}:", "line ").split("line ")
    for line, words in SAID.items():
        assert any(part.startswith(f"{line}: ") and words in part for part in said), (line, said)
    assert any("'pipeline' (line 10) and 'preset' both say" in part or "both say what to run" in part for part in said)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pyproject.toml", "[tool.commcc]\ncost = ", "pyproject.toml:2: not TOML"),
        ("pyproject.toml", "[tool]\ncommcc = 3", "must be a mapping"),
        ("pyproject.toml", "[tool.commcc]\nhints.a.b.c = 1", "pyproject.toml:2: 'a' must be a text"),
        ("pyproject.toml", "[tool.commcc]\ncost = 1979-05-27", "pyproject.toml:2:"),
        ("pyproject.toml", "[tool.commcc]\ncost = " + "[" * 3000, "not TOML|nested"),
        ("pyproject.toml", "[tool.commcc]\nx = " + "[" * 60 + "]" * 60, "unknown key 'x'|nested"),
        ("commcc.yaml", "- a", "commcc.yaml:1: the file must be a mapping"),
        ("commcc.yaml", "cost: [h100]", "'cost' must be a text"),
        ("commcc.yaml", "options: {bukcet: {}}", "no pass 'bukcet' .did you mean 'bucket'"),
        ("commcc.yaml", "options: {bucket: 3}", "'bucket' must be a mapping"),
        ("commcc.yaml", "passes: 'tagg'", "commcc.yaml:1: no pass 'tagg'"),
        ("commcc.yaml", "passes: []", "no pass given"),
        ("commcc.yaml", "cost: 'h100,table=none.yaml'", "no such file: none.yaml"),
        ("commcc.yaml", "cost: 'h100,tabel=x'", "no setting is called 'tabel' .did you mean 'table'"),
        ("commcc.yaml", 'pipeline: "a\\0b"', "no such file|not YAML"),
        ("commcc.yaml", "\x01", "control characters"),
        ("commcc.yaml", "cost: !!python/name:os.system", "tags are not allowed"),
    ],
)
def test_files_that_are_wrong(name, text, words, project):
    (project / name).write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        find_config(Path.cwd())
    assert str(caught.value).startswith(str(project / name))


WORDS = st.sampled_from(
    [
        "[tool.commcc]\n",
        "[",
        "]",
        "cost",
        "hints",
        "options",
        "bucket",
        "=",
        " = ",
        '"',
        "'",
        '"""',
        "{",
        "}",
        "\n",
        ",",
        *(
            "1",
            "1.5",
            "true",
            "inf",
            "nan",
            "1979-05-27",
            "a.b",
            "#",
            "\t",
            "preset",
            "passes",
            "'tag'",
            '"pre-overlap"',
        ),
    ]
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(WORDS, max_size=30).map("".join))
def test_any_table_is_a_configuration_or_an_error(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text("[tool.commcc]\n" + text)
    try:
        find_config(folder)
    except CommccError as error:
        assert "pyproject.toml" in str(error)
