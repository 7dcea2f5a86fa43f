"""The settings of a sweep: every combination of the values of each parameter."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.errors import CommccError, OptionError, closest
from commcc.base.options import options_of, value_text
from commcc.passes.options import build, to_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commcc.base.options import Option
    from commcc.passes.base import Pass

#: More settings than this are refused: nobody reads them, and they take hours.
LARGEST = 2000
_NAMED = re.compile(r"\s*([\w-]+(?:#\d+)?)\.([\w-]+)\s*=(.*)", re.DOTALL)
_HINT = "as in --param bucket.max_topo_span=500,1000,none"


@dataclass(frozen=True)
class Parameter:
    """One option that is varied. place: of the pass in the pipeline, from 0. values: as texts, ``10:25`` a list."""

    name: str
    place: int
    option: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One setting. values: of the parameters, in their order. passes: the pipeline with them."""

    values: tuple[str, ...]
    passes: tuple[Pass, ...]

    @property
    def text(self) -> str:
        """The pipeline as text."""
        return ",".join(map(to_text, self.passes))


@dataclass(frozen=True)
class Grid:
    """All settings, the last parameter changing fastest. fixed: passes at the start that no parameter concerns."""

    parameters: tuple[Parameter, ...]
    points: tuple[Point, ...]
    fixed: int


def make_grid(passes: Sequence[Pass], params: Sequence[str]) -> Grid:
    """Settings of ``passes`` from texts ``PASS.OPTION=VALUE,VALUE``; ``bucket#2`` is the second pass of that name.

    Raises :class:`OptionError` that names everything that is wrong, impossible combinations too.
    """
    places = _places(passes)
    wrong: list[str] = []
    parameters = [p for p in (_parameter(text, passes, places, wrong) for text in params) if p is not None]
    names = [parameter.name for parameter in parameters]
    wrong += [f"{name} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    count = 1
    for parameter in parameters:
        count *= len(parameter.values)
    if count > LARGEST:
        wrong.append(f"{count:,} settings are more than {LARGEST:,}")
    if not params:
        wrong.append(f"no parameter is given: name an option of {', '.join(places)}, which 'commcc passes' lists")
    if wrong:
        raise OptionError(f"sweep: {'; '.join(wrong)}", hint=_HINT)
    points = [
        _point(passes, parameters, values, wrong) for values in itertools.product(*(p.values for p in parameters))
    ]
    if wrong:
        raise OptionError(f"sweep: {'; '.join(dict.fromkeys(wrong))}", hint="leave such values out")
    return Grid(tuple(parameters), tuple(p for p in points if p is not None), min(p.place for p in parameters))


def _places(passes: Sequence[Pass]) -> dict[str, int]:
    """Where each pass stands: ``bucket``, and ``bucket#2`` for the second of that name."""
    places: dict[str, int] = {}
    for place, instance in enumerate(passes):
        number = 1 + sum(earlier.name == instance.name for earlier in passes[:place])
        places[instance.name if number == 1 else f"{instance.name}#{number}"] = place
    return places


def _parameter(text: str, passes: Sequence[Pass], places: Mapping[str, int], wrong: list[str]) -> Parameter | None:
    match = _NAMED.fullmatch(text)
    if match is None:
        wrong.append(f"'{text}' is not PASS.OPTION=VALUE,VALUE")
        return None
    name, option = match[1], match[2].replace("-", "_")
    if name not in places:
        known = tuple(places)
        others = closest(name, known) or f" (passes: {', '.join(known)})"
        wrong.append(f"no pass '{name}' in the pipeline{others}")
        return None
    options = options_of(type(passes[places[name]]))
    if option not in options:
        wrong.append(f"pass '{name}' has no option '{match[2]}'{closest(option, list(options))}")
        return None
    values = _values(match[3], options[option], f"{name}.{option}", wrong)
    return Parameter(f"{name}.{option}", places[name], option, values) if values else None


def _values(text: str, option: Option, name: str, wrong: list[str]) -> tuple[str, ...]:
    """The values as options print them, each once."""
    values: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        try:
            value = value_text(option.read(part)) if part else None
        except ValueError as error:
            wrong.append(f"{name}: {error}")
            continue
        if value is None:
            wrong.append(f"{name}: an empty value")
        elif value in values:
            wrong.append(f"{name}: {value} is given twice")
        else:
            values.append(value)
    return tuple(values)


def _point(
    passes: Sequence[Pass], parameters: Sequence[Parameter], values: Sequence[str], wrong: list[str]
) -> Point | None:
    changed_passes = list(passes)
    by_place: dict[int, dict[str, str]] = {}
    for parameter, value in zip(parameters, values, strict=True):
        by_place.setdefault(parameter.place, {})[parameter.option] = value
    for place, changed in by_place.items():
        old = passes[place]
        kept = {name: getattr(old, name) for name in options_of(type(old))}
        try:
            changed_passes[place] = build(type(old), {**kept, **changed})
        except CommccError as error:
            wrong.append(
                f"{old.name} with {', '.join(f'{key}={value}' for key, value in changed.items())}: {error.what}"
            )
            return None
    return Point(tuple(values), tuple(changed_passes))
