"""Reads a cost text: ``h100,table=coll.yaml,profile=run.json,fused=no,skew=1.3``.

    parse("h100,fused=no")      # CostText("h100", (), (), Settings(fused=False))

The first word is a device by name or a device file; every other part is ``key=value``. ``table`` and
``profile`` may be given several times; what else there is, :class:`commcc.timing.cost.types.Settings` says. All
mistakes are named at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commcc.base.errors import OptionError, closest
from commcc.base.options import options_of
from commcc.timing.cost.types import Settings


@dataclass(frozen=True)
class CostText:
    """A cost text in parts. device: name or path. tables, profiles: paths, in the order given."""

    device: str
    tables: tuple[str, ...]
    profiles: tuple[str, ...]
    settings: Settings


def parse(text: str) -> CostText:
    """Take a cost text apart; :class:`OptionError` names everything that is wrong with it."""
    device = ""
    files: dict[str, list[str]] = {"table": [], "profile": []}
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for position, part in enumerate(piece.strip() for piece in text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and not position and key:
            device = key
        elif not equals or not value:
            wrong.append(f"'{part}' is not key=value" if part else "an empty part")
        elif key == "device":
            wrong += ["device is given twice"] if device else []
            device = value
        elif key in files:
            files[key].append(value)
        else:
            _setting(key, value, values, wrong)
    if not device and not wrong:
        wrong.append("no device is named first")
    if wrong:
        raise OptionError(f"cost '{text}': {'; '.join(wrong)}", hint="as in 'h100,table=coll.yaml,fused=no'")
    return CostText(device, tuple(files["table"]), tuple(files["profile"]), Settings(**values))


def _setting(key: str, value: str, values: dict[str, Any], wrong: list[str]) -> None:
    options = options_of(Settings)
    if key not in options:
        known = [*options, "table", "profile", "device"]
        wrong.append(f"no setting is called '{key}'{closest(key, known)}; known: {', '.join(sorted(known))}")
    elif key in values:
        wrong.append(f"{key} is given twice")
    else:
        try:
            values[key] = options[key].read(value)
        except ValueError as error:
            wrong.append(f"{key}: {error}")
