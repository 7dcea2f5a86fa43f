"""Options of passes, of rules and of cost models: fields of frozen dataclasses, read from texts and values.

    @dataclass(frozen=True)
    class Caps:
        cap_mb: float | tuple[float, ...] | None = option(200.0, "MiB in one bucket", minimum=0, none="no limit")
        groups: str | tuple[str, ...] = option("auto", "groups that take part", choices=("auto", "all"))

    options_of(Caps)["cap_mb"].read("10:25")              # (10.0, 25.0)
    read_options(Caps, {"cap-mb": "-1", "group": "a"})    # {}, ["cap_mb: must be at least 0, got -1",
                                                          #      "no option 'group' (did you mean 'groups'?)"]

What an option may be follows from the annotation of its field:

* ``int``, ``float``, ``bool``: a number, a switch;
* ``str``: one of its ``choices``, or any text where it has none;
* ``tuple[str, ...]``: names, ``a:b`` or ``[a;b]``; ``float | tuple[float, ...]``: a number or several, ``10:25``;
* ``Mapping[str, X]``: an ``X`` for each of some ``keys``;
* ``X | None``: also ``none``. ``choices`` next to numbers or names are words that are taken too.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from commcc.base.errors import closest

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_KINDS = {
    (bool,): "bool",
    (int,): "int",
    (float,): "float",
    (str,): "text",
    (tuple[str, ...],): "names",
    (float, tuple[float, ...]): "floats",
}

#: No option means more than this: bytes and times that follow from it fit into floats and, as integers, print exactly.
LARGEST = 10**15


def value_text(value: Any) -> str:
    """An option's value as it is read again."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        return ":".join(value_text(part) for part in value)
    return str(value)


def option(default: Any, help: str, **more: Any) -> Any:
    """A field of a dataclass that is an option; ``more`` are fields of :class:`Option`."""
    if "strategies" in more:
        help = f"{help} ({', '.join(more['strategies'])} only)"
    return dataclasses.field(default=default, metadata={"option": {"help": help, **more}})


@dataclass(frozen=True)
class Option:
    """One option. kind: ``int``, ``float``, ``floats``, ``bool``, ``choice``, ``names``, ``text`` or ``by key``.

    help: what it is, without a full stop. none: what ``none`` means. optional: whether it may be none. choices: words,
    the only ones or next to the rest. minimum, maximum: of numbers. strategies: the only ones that have it; empty: all.
    keys: of a mapping. one: reads a text in place of the kind's own reader; it is told the key, empty without one.
    takes: for manuals, what ``one`` reads. show: a value as text.
    """

    name: str
    default: Any
    kind: str
    help: str
    optional: bool = False
    none: str | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    strategies: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    one: Callable[[str, str], Any] | None = None
    takes: str = ""
    show: Callable[[Any], str] = value_text

    def read(self, value: Any, key: str = "") -> Any:
        """What a text, or a value, stands for; ``ValueError`` says what was expected. key: of a mapping."""
        if isinstance(value, str) and value in self.choices:
            return value
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            if not self.optional:
                raise ValueError("cannot be none")
            return None
        return self._by_kind(value) if self.one is None else self.one(key, value)

    def _by_kind(self, value: Any) -> Any:
        match self.kind:
            case "int" | "float":
                return self._number(value)
            case "floats":
                numbers = tuple(self._number(part) for part in _parts(value))
                if not numbers:
                    raise ValueError(f"expected a number or a list such as 10:25, got {value!r}")
                return numbers[0] if len(numbers) == 1 else numbers
            case "names":
                names = tuple(map(str, _parts(value)))
                if not names:
                    raise ValueError("expected a name or a list such as a:b")
                return names[0] if len(names) == 1 and names[0] in self.choices else names
            case "bool":
                if str(value).lower() not in _WORDS:
                    raise ValueError(f"expected true or false, got {value!r}")
                return _WORDS[str(value).lower()]
            case "choice":
                known = ", ".join(self.choices)
                raise ValueError(f"expected one of {known}, got {value!r}{closest(str(value), self.choices)}")
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"expected a text, got {value!r}")
        return value

    def _number(self, value: Any) -> float:
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError):
            unit = isinstance(value, str) and re.fullmatch(r"\s*[\d.]+\s*[A-Za-z]+\s*", value)
            words = [*self.choices, f"a number{' without a unit' if unit else ''}"]
            expected = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
            raise ValueError(f"expected {expected}, got {value!r}") from None
        if not math.isfinite(number):
            raise ValueError(f"expected a finite number, got {value!r}")
        if self.minimum is not None and number < self.minimum:
            raise ValueError(f"must be at least {self.minimum}, got {value}")
        most = LARGEST if self.maximum is None else self.maximum
        if number > most:
            raise ValueError(f"must be at most {most:,}, got {value}")
        if self.kind == "int" and number != int(number):
            raise ValueError(f"expected a whole number, got {value!r}")
        return int(number) if self.kind == "int" else number


def _parts(value: Any) -> list[Any]:
    if isinstance(value, str):
        whole = re.fullmatch(r"\s*\[([^\[\]]*)\]\s*", value)
        return [part.strip() for part in re.split(r"[;:]+", whole[1] if whole else value) if part.strip()]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def options_of(cls: type[Any]) -> Mapping[str, Option]:
    """The options of a dataclass by name, in the order of its fields."""
    return _options_of(typing.cast("Any", cls))


@cache
def _options_of(cls: Any) -> Mapping[str, Option]:
    # Modules import Mapping for annotations alone, where type checkers look.
    hints = typing.get_type_hints(cls, localns={"Mapping": Mapping})
    options = {}
    for field in dataclasses.fields(cls):
        said, hint = field.metadata["option"], hints[field.name]
        parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        kind = _kind_of([part for part in parts if part is not types.NoneType], bool(said.get("choices")))
        options[field.name] = Option(field.name, field.default, kind, optional=types.NoneType in parts, **said)
    return options


def _kind_of(parts: list[Any], words: bool) -> str:
    if typing.get_origin(parts[0]) is Mapping:
        return "by key"
    # Words, or one name, stand next to numbers and names: these say what else an option may be.
    others = tuple(part for part in parts if part is not str) or (str,)
    return "choice" if others == (str,) and words else _KINDS[others]


def read_options(cls: type[Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values by name for options of ``cls``, and everything that is wrong with what is given."""
    options = options_of(cls)
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for raw, value in given.items():
        name = raw.replace("-", "_")
        if name not in options:
            wrong.append(f"no option '{raw}'{closest(name, list(options))}")
            continue
        try:
            values[name] = options[name].read(value)
        except ValueError as error:
            wrong.append(f"{name}: {error}")
    return values, wrong
