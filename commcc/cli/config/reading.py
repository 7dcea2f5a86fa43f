"""Finds the configuration of a folder, and reads it from values that know their line, in whichever format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.base.errors import CommccError
from commcc.base.yaml_file import read_text, read_yaml
from commcc.cli.config.types import Config, Named
from commcc.graph.hint_text import hint_problem
from commcc.passes.options import parse_pipeline
from commcc.run.forms.presets import from_preset
from commcc.run.forms.yaml_form import option_texts, pass_class, passes_of, pipeline_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commcc.base.yaml_file import Node, YamlFile
    from commcc.lint.settings import Settings

KEYS = ("cost", "hints", "passes", "pipeline", "preset", "options", "lint")
YAML_NAME = "commcc.yaml"
TOML_NAME = "pyproject.toml"
_PIPELINES = ("passes", "pipeline", "preset")


def find_config(folder: Path) -> Config | None:
    """The nearest configuration at ``folder`` or above; None when there is none.

    Raises :class:`commcc.base.errors.InputError` for a file that is wrong.
    """
    for place in (folder, *folder.parents):
        if (place / YAML_NAME).is_file():
            return read_config(read_yaml(place / YAML_NAME))
        text = read_text(place / TOML_NAME) if (place / TOML_NAME).is_file() else ""
        if "commcc" in text and "tool" in text:  # most files never say commcc, and need not be parsed
            from commcc.cli.config.toml_file import parse_table

            file = parse_table(text, str(place / TOML_NAME), ("tool", "commcc"))
            if file is not None:
                return read_config(file)
    return None


def read_config(file: YamlFile) -> Config:
    """The configuration in a file; :class:`commcc.base.errors.InputError` names every mistake with its line."""
    fields = {} if file.root.is_null else file.root.mapping((), KEYS)
    folder = Path(file.path).parent
    readers: Mapping[str, Callable[[Node], Any]] = {
        "cost": lambda node: _cost(node, folder),
        "hints": _hints,
        "passes": _passes,
        "pipeline": lambda node: Named("pipeline", _file(node, node.text(), folder)),
        "preset": _preset,
        "options": _options,
        "lint": lambda node: _lint(node, file.path),
    }
    values = {key: readers[key](node) for key, node in fields.items()}
    chosen = [key for key in _PIPELINES if key in fields]
    for key in chosen[1:]:
        fields[key].fail(f"'{chosen[0]}' (line {fields[chosen[0]].line}) and '{key}' both say what to run; leave one")
    file.check()
    pipeline = values[chosen[0]] if chosen else None
    return Config(
        file.path,
        values.get("cost"),
        values.get("hints", {}),
        pipeline,
        values.get("options", {}),
        values.get("lint"),
    )


def read_lint_settings(path: str) -> Settings:
    """The lint settings in a file of their own, or under ``lint`` in a file of the project's configuration.

    Raises :class:`commcc.base.errors.InputError` that names every mistake with its line.
    """
    file = read_yaml(path)
    if isinstance(file.root.value, dict) and "lint" in file.root.value:
        from commcc.lint.settings import Settings

        return read_config(file).lint or Settings(file=path)
    settings = _lint(file.root, path)
    file.check()
    return settings


def _lint(node: Node, path: str) -> Settings:
    """The settings of rules; the rules are imported where a file has any, since every command reads this module."""
    from commcc.lint.reading import settings_of

    return settings_of(node, path)


def _cost(node: Node, folder: Path) -> str:
    """A cost text whose paths are relative to the working folder, or absolute."""
    from commcc.timing.cost.devices import load_device
    from commcc.timing.cost.settings import parse

    text = node.text()
    if not text or text == "none":
        return text
    try:
        chosen = parse(text)
        if not _is_file(chosen.device):
            load_device(chosen.device)
    except CommccError as error:
        node.fail(error.what)
        return ""
    parts = [part.strip() for part in text.split(",")]
    return ",".join(_placed(node, part, folder) for part in parts)


def _placed(node: Node, part: str, folder: Path) -> str:
    key, equals, value = (piece.strip() for piece in part.partition("="))
    if equals and key in ("table", "profile"):
        return f"{key}={_file(node, value, folder)}"
    device = value if equals and key == "device" else part if not equals else ""
    return f"device={_file(node, device, folder)}" if _is_file(device) else part


def _is_file(device: str) -> bool:
    return device.lower().endswith((".yaml", ".yml"))


def _file(node: Node, value: str, folder: Path) -> str:
    """A path that is written relative to the configuration file."""
    if not value:
        return ""
    path = folder / value
    try:
        there = path.exists()
    except (OSError, ValueError):
        there = False
    if not there:
        node.fail(f"no such file: {value} (paths are relative to the folder of this file)")
        return ""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _hints(node: Node) -> dict[str, int]:
    hints: dict[str, int] = {}
    for symbol, child in node.entries().items():
        number = child.text()
        problem = hint_problem(symbol, number) if number else None
        if problem is not None:
            child.fail(problem)
        elif number:
            hints[symbol] = int(number)
    return hints


def _passes(node: Node) -> Named:
    """A pipeline text, or a list as in a pipeline file."""
    if isinstance(node.value, list):
        return Named("passes", pipeline_text(passes_of(node)))
    text = node.text()
    if text:
        try:
            parse_pipeline(text)
        except CommccError as error:
            node.fail(error.what if error.where is None else f"{error.where}: {error.what}")
    return Named("passes", text)


def _preset(node: Node) -> Named:
    name = node.text()
    if name:
        try:
            from_preset(name)
        except CommccError as error:
            node.fail(f"{error.what} ({error.hint})")
    return Named("preset", name)


def _options(node: Node) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {}
    for name, child in node.entries().items():
        cls = pass_class(name, child)
        if cls is not None:
            options[name] = option_texts(child, cls)
    return options
