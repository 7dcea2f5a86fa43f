"""What a release says of itself: version, changelog, metadata, and files that name each other."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

import commcc

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Names that stand for somebody who is not there.
PLACEHOLDERS = re.compile(r"(?i)your[-_ ]?(org|name)|example\.(com|org)|<org>|\bOWNER/|TODO|FIXME")


def test_the_version_heads_the_changelog():
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == commcc.__version__
    assert versions == sorted(versions, key=lambda each: [int(part) for part in each.split(".")], reverse=True)


def test_the_metadata_is_whole():
    assert PROJECT["license"] == "BSD-3-Clause" and not any("License ::" in each for each in PROJECT["classifiers"])
    pythons = [each.rsplit(" ", 1)[1] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert pythons == ["3.10", "3.11", "3.12", "3.13"] and PROJECT["requires-python"] == ">=3.10,<3.14"
    assert PROJECT["authors"] and PROJECT["keywords"] and "Typing :: Typed" in PROJECT["classifiers"]


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "Dockerfile"]
)
def test_nobody_is_made_up(name):
    assert not PLACEHOLDERS.search((ROOT / name).read_text())


def test_the_workflow_runs_what_is_there():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert set(workflow["jobs"]) == {"all", "wheel", "tests"}
    runs = "\n".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in runs.splitlines():
        if line.startswith("make "):
            assert set(line.split()[1:]) <= set(targets)
    assert (ROOT / ".ci" / "run").is_file() and (ROOT / "tools" / "smoke.py").is_file()


def test_files_that_contributors_are_sent_to_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = {
        *re.findall(r"\]\(([^)#]+)\)", text),
        *re.findall(r"`((?:commcc|tests|tools)/[\w./]+\.(?:py|yaml))`", text),
    }
    assert len(paths) > 6
    assert not [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    for command in re.findall(r"`commcc ([a-z-]+)", text):
        from commcc.cli.main import COMMANDS

        assert command in COMMANDS
