"""Reads a cost text: ``h100,table=coll.yaml,profile=run.json,fused=no,skew=1.3``.

    parse("h100,fused=no")      # CostText("h100", (), (), Settings(fused=False))

The first word is a device by name or a device file; every other part is ``key=value``. ``table`` and
``profile`` may be given several times. All mistakes are named at once.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OptionError, closest
from commcc.timing.cost.types import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

SHARES = ("none", "topology", "all")
ALGORITHMS = ("auto", "ring", "tree", "nvls")


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
    read = _READERS.get(key)
    if read is None:
        known = [*_READERS, "table", "profile", "device"]
        wrong.append(f"no setting is called '{key}'{closest(key, known)}; known: {', '.join(sorted(known))}")
    elif key in values:
        wrong.append(f"{key} is given twice")
    else:
        try:
            values[key] = read(value)
        except ValueError as error:
            wrong.append(f"{key}: {error}")


def _switch(text: str) -> bool:
    words = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}
    if text.lower() not in words:
        raise ValueError(f"'{text}' is not yes or no")
    return words[text.lower()]


def _number(least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"'{text}' is not a number") from None
        if not math.isfinite(value) or value < least or value > 1e6:
            raise ValueError(f"{text} is not a number from {least:g} to 1e6")
        return value

    return read


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise ValueError(f"'{text}' is not a whole number above 0")
    return int(text)


def _word(words: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"'{text}' is not one of {', '.join(words)}{closest(text, words)}")
        return text

    return read


_READERS: dict[str, Callable[[str], Any]] = {
    "fused": _switch,
    "skew": _number(1.0),
    "slowdown": _number(1.0),
    "share_link": _word(SHARES),
    "launch_us": _number(0.0),
    "free_us": _number(0.0),
    "ranks_per_node": _count,
    "algorithm": _word(ALGORITHMS),
}
assert set(_READERS) == {field.name for field in dataclasses.fields(Settings)}
