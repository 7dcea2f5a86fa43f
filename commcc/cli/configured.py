"""Defaults from the project's configuration: the command line wins, and what took effect is remembered.

cost(session, "h100")               # the configuration's cost text, if it has one
session.used                        # {'cost': 'a100', 'options': {'bucket': {'bucket_cap_mb': '25'}}}
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.passes.options import applicable, build, parse_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.base.terms import Json
    from commcc.cli.config import Config
    from commcc.cli.session import Session
    from commcc.passes.base import Pass


def find(session: Session) -> Config | None:
    """The configuration of the working folder; its file counts as one that the command reads."""
    from commcc.cli.config import find_config

    try:
        folder = Path.cwd()
    except OSError:  # the folder is gone
        return None
    found = find_config(folder)
    if found is not None:
        session.inputs.append(Path(found.path))
    return found


def cost(session: Session, usual: str, *, none_allowed: bool) -> str:
    """The cost text for a command that was given none."""
    config = session.config
    if config is None or config.cost is None or (config.cost == "none" and not none_allowed):
        return usual
    session.used["cost"] = config.cost
    return config.cost


def with_hints(session: Session, given: dict[str, int]) -> dict[str, int]:
    """The hints that were given, then those of the configuration for other symbols."""
    config = session.config
    more = {} if config is None else {key: value for key, value in config.hints.items() if key not in given}
    if more:
        session.used["hints"] = dict(more)
    return {**given, **more}


def defaults(session: Session) -> Mapping[str, Mapping[str, Any]]:
    """Options by pass."""
    return {} if session.config is None else session.config.options


def build_pass(session: Session, cls: type[Pass], given: Mapping[str, Any]) -> Pass:
    """A pass from the options that were given, and defaults for the others."""
    made = build(cls, {**applicable(cls, given, defaults(session).get(cls.name, {})), **given})
    remember(session, [made])
    return made


def remember(session: Session, passes: Iterable[Pass]) -> None:
    """Note which defaults are the effective options of these passes."""
    effective: dict[str, Json] = {}
    for made in passes:
        said = defaults(session).get(made.name, {})
        fields = {field.name: field for field in dataclasses.fields(made)}
        held = {key: text for key, text in said.items() if parse_value(fields[key], text) == getattr(made, key)}
        if held:
            effective[made.name] = held
    if effective:
        session.used["options"] = effective
