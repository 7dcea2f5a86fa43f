"""Finds the configuration file of a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commcc.base.yaml_file import read_text, read_yaml
from commcc.cli.config.reading import read_config

if TYPE_CHECKING:
    from pathlib import Path

    from commcc.cli.config.types import Config

YAML_NAME = "commcc.yaml"
TOML_NAME = "pyproject.toml"


def find_config(folder: Path) -> Config | None:
    """The nearest configuration at ``folder`` or above; None when there is none.

    Raises :class:`commcc.base.errors.InputError` for a file that is wrong.
    """
    for place in (folder, *folder.parents):
        if (place / YAML_NAME).is_file():
            return read_config(read_yaml(place / YAML_NAME))
        found = _from_toml(place / TOML_NAME)
        if found is not None:
            return found
    return None


def _from_toml(path: Path) -> Config | None:
    """What ``[tool.commcc]`` says; None without that table. A file that never says commcc is not even parsed."""
    if not path.is_file():
        return None
    text = read_text(path)
    if "commcc" not in text or "tool" not in text:
        return None
    from commcc.cli.config.toml_file import parse_table

    file = parse_table(text, str(path), ("tool", "commcc"))
    return None if file is None else read_config(file)
