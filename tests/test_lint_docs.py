"""What is written about the gate is true: manual, hooks, the workflow, and the examples in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import yaml

from commcc.cli.config import find_config
from commcc.cli.config.reading import read_lint_settings
from commcc.cli.lint import command
from commcc.lint.registry import rule_ids
from commcc.lint.types import Severity
from tools.lint_docs import wanted

ROOT = Path(__file__).parents[1]
MANUAL = (ROOT / "docs" / "lint.md").read_text()


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", MANUAL, re.DOTALL)[number]


def test_the_manual_has_the_rules_as_they_are():
    assert wanted(MANUAL) == MANUAL, "run 'make docs'"
    for rule in rule_ids():
        assert f"### {rule}\n" in MANUAL


def test_a_manual_that_is_out_of_date_is_seen():
    assert wanted(MANUAL.replace("| `below` |", "| `under` |")) == MANUAL
    assert "| `under` |" not in MANUAL


def test_the_settings_in_the_manual_are_valid(tmp_path):
    path = tmp_path / "lint.yaml"
    path.write_text(block("yaml"))
    chosen = read_lint_settings(str(path)).of("a_moe_b.pt2")
    assert chosen.severity["wait-after-launch"] is Severity.OFF
    assert chosen.options["peak-memory"].max == 70 << 30


def test_the_projects_configuration_in_the_manual_is_valid(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "pipelines.md").read_text()
    example = next(each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "lint:" in each)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "commcc.yaml").write_text(example)
    (tmp_path / "coll.yaml").write_text("")
    config = find_config(tmp_path)
    assert config is not None and config.lint is not None
    assert config.lint.of("x").options["peak-memory"].max == 60 << 30


def commands(text: str) -> list[list[str]]:
    """The arguments of every ``commcc lint`` in a text."""
    found = re.findall(r"commcc lint ([^\n`#|]*)", text)
    return [shlex.split(line.split("   ")[0]) for line in found if "GRAPH..." not in line and "FILE" not in line]


def test_commands_in_manual_and_workflow_have_only_flags_that_there_are():
    known = {
        flag for each in command.params if isinstance(each, click.Option) for flag in (*each.opts, *each.secondary_opts)
    }
    listed = commands(MANUAL) + commands((ROOT / "docs" / "lint.github.yml").read_text())
    assert len(listed) > 6
    for arguments in listed:
        flags = [each for each in arguments if each.startswith("-")]
        assert set(flags) <= known, arguments


def test_hooks_take_graphs_and_nothing_else():
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in hooks] == ["commcc-lint", "commcc-lint-system"]
    for hook in hooks:
        assert hook["entry"] == "commcc lint" and hook["language"] in ("python", "system")
        takes = re.compile(hook["files"])
        samples = [path.name for path in (ROOT / "sample_graphs").iterdir()]
        assert {name for name in samples if takes.search(name)} == {
            name for name in samples if ".fx." in name or name.endswith(".pt2")
        }
        assert not any(takes.search(name) for name in ("a.txt", "model.pt", "x.fx.txt.md", "run.log"))
    assert "commcc-lint-system" in MANUAL


def test_the_workflow_is_one():
    flow = yaml.safe_load((ROOT / "docs" / "lint.github.yml").read_text())
    assert set(flow) == {"name", True, "permissions", "env", "jobs"}  # YAML 1.1 reads 'on' as true
    steps = flow["jobs"]["lint"]["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    gate = next(step["run"] for step in steps if "--format github" in step.get("run", ""))
    assert "|| true" not in gate
    assert flow["permissions"]["security-events"] == "write"
