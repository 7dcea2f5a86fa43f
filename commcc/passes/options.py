"""Options of passes: a pass is a frozen dataclass and its fields are its options.

The command line, pipeline text, YAML and the object are one and the same::

    build(Bucket, {"bucket_cap_mb": "25"})      -> Bucket(bucket_cap_mb=25.0)
    to_text(Bucket(bucket_cap_mb=25.0))         -> 'bucket{bucket_cap_mb=25}'
    parse_pipeline("tag,bucket{max_topo_span=none}")

All wrong options of a pass are reported in one error.
"""

from __future__ import annotations

import dataclasses
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OptionError, closest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.passes.base import Pass

_PASS_TEXT = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(?:\{([^{}]*)\})?\s*(,|$)")

_PIPELINE_HINT = "write name{option=value},name"


def option(default: Any, help: str, *, type: str, **more: Any) -> Any:
    """A dataclass field that is an option.

    type: ``int``, ``float``, ``floats`` (a number or a list), ``bool``, ``choice``, ``names`` or ``text``.
    more: ``choices`` (words accepted, beside numbers too), ``none`` (what None means; without it None is refused),
    ``minimum`` (smallest number accepted), ``strategies`` (the only ones that have it; None: all of them).
    """
    if "strategies" in more:
        help = f"{help} ({', '.join(more['strategies'])} only)"
    return dataclasses.field(default=default, metadata={"help": help, "type": type, **more})


def build(cls: type[Pass], values: Mapping[str, Any]) -> Pass:
    """Make a pass from option texts or values; :class:`OptionError` names everything that is wrong."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    good: dict[str, Any] = {}
    wrong: list[str] = []
    for raw, value in values.items():
        name = raw.replace("-", "_")
        if name not in fields:
            wrong.append(f"no option '{raw}'{closest(name, list(fields))}")
            continue
        try:
            good[name] = parse_value(fields[name], value)
        except ValueError as error:
            wrong.append(f"{name}: {error}")
    if not wrong:
        made = cls(**good)
        wrong = list(made.problems())
        if not wrong:
            return made
    raise OptionError("; ".join(wrong), where=f"pass '{cls.name}'", hint=f"see 'commcc passes {cls.name}'")


def applicable(cls: type[Pass], given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The ``defaults`` that fit what is ``given``: none of another strategy, none that is given."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    said = {name.replace("-", "_"): value for name, value in given.items()}
    chosen = {**defaults, **said}.get("strategy", fields["strategy"].default if "strategy" in fields else None)
    return {
        name: value
        for name, value in defaults.items()
        if name not in said and chosen in fields[name].metadata.get("strategies", (chosen,))
    }


def parse_value(field: dataclasses.Field[Any], value: Any) -> Any:
    """The typed value of one option; ``ValueError`` says what was expected."""
    meta = field.metadata
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        if "none" not in meta:
            raise ValueError("cannot be none")
        return None
    if isinstance(value, str) and value in meta.get("choices", ()):
        return value
    return _PARSERS[meta["type"]](value, meta)


def _number(value: Any, meta: Mapping[str, Any]) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        raise ValueError(f"expected a number, got {value!r}") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"expected a finite number, got {value!r}")
    if number < meta.get("minimum", number):
        raise ValueError(f"must be at least {meta['minimum']}, got {value}")
    return number


def _integer(value: Any, meta: Mapping[str, Any]) -> int:
    number = _number(value, meta)
    if number != int(number):
        raise ValueError(f"expected a whole number, got {value!r}")
    return int(number)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, str):
        whole = re.fullmatch(r"\s*\[([^\[\]]*)\]\s*", value)
        return [part.strip() for part in re.split(r"[;:]+", whole[1] if whole else value) if part.strip()]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _numbers(value: Any, meta: Mapping[str, Any]) -> float | tuple[float, ...]:
    numbers = tuple(_number(part, meta) for part in _parts(value))
    if not numbers:
        raise ValueError(f"expected a number or a list such as 10:25, got {value!r}")
    return numbers[0] if len(numbers) == 1 else numbers


def _boolean(value: Any, _meta: Mapping[str, Any]) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise ValueError(f"expected true or false, got {value!r}")
    return words[str(value).lower()]


def _choice(value: Any, meta: Mapping[str, Any]) -> str:
    if value not in meta["choices"]:
        raise ValueError(
            f"expected one of {', '.join(meta['choices'])}, got {value!r}{closest(str(value), meta['choices'])}"
        )
    return str(value)


def _names(value: Any, meta: Mapping[str, Any]) -> str | tuple[str, ...]:
    """One of the words in ``choices``, or a tuple of names."""
    parts = tuple(str(part) for part in _parts(value))
    if not parts:
        raise ValueError("expected a name or a list such as a:b")
    return parts[0] if len(parts) == 1 and parts[0] in meta.get("choices", ()) else parts


def _text(value: Any, _meta: Mapping[str, Any]) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {value!r}")
    return value


_PARSERS = {
    "int": _integer,
    "float": _number,
    "floats": _numbers,
    "bool": _boolean,
    "choice": _choice,
    "names": _names,
    "text": _text,
}


def value_text(value: Any) -> str:
    """An option value as :func:`parse_value` reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        return ":".join(value_text(part) for part in value)
    return str(value)


def to_text(made: Pass) -> str:
    """The pass with the options that differ from their defaults, as pipeline text."""
    changed = [
        f"{f.name}={value_text(getattr(made, f.name))}"
        for f in dataclasses.fields(made)
        if getattr(made, f.name) != f.default
    ]
    return f"{made.name}{{{','.join(changed)}}}" if changed else made.name


def parse_pipeline(text: str, defaults: Mapping[str, Mapping[str, Any]] | None = None) -> list[Pass]:
    """Passes from ``name{opt=1,opt=2},name``; one :class:`OptionError` names every unknown name and wrong option.

    defaults: options by pass name, for what the text does not say.
    """
    from commcc.passes import registry

    passes: list[Pass] = []
    wrong: list[OptionError] = []
    for name, options in _written(text):
        with _collecting(wrong):
            cls, given = registry.get(name), _pairs(options)
            passes.append(build(cls, {**applicable(cls, given, (defaults or {}).get(name, {})), **given}))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        said = "; ".join(error.what if error.where is None else f"{error.where}: {error.what}" for error in wrong)
        raise OptionError(said, where="pipeline", hint="see 'commcc passes'")
    return passes


@contextmanager
def _collecting(wrong: list[OptionError]) -> Iterator[None]:
    try:
        yield
    except OptionError as error:
        wrong.append(error)


def _written(text: str) -> list[tuple[str, str]]:
    """Names and option texts of a pipeline text, in order."""
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _PASS_TEXT.match(text, position)
        if match is None:
            raise OptionError(f"cannot read '{text[position:]}'", where="pipeline", hint=_PIPELINE_HINT)
        found.append((match[1], match[2] or ""))
        position = match.end()
    if not found:
        raise OptionError("no pass given", where="pipeline", hint=_PIPELINE_HINT)
    return found


def _pairs(text: str) -> dict[str, str]:
    """Option texts by field name; what has no value or is given twice is an :class:`OptionError`."""
    pairs: dict[str, str] = {}
    wrong: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        raw, equals, value = part.partition("=")
        name = raw.strip().replace("-", "_")
        if not equals:
            wrong.append(f"option '{part}' has no value (write name=value)")
        elif name in pairs:
            wrong.append(f"option '{raw.strip()}' is given twice")
        else:
            pairs[name] = value.strip()
    if wrong:
        raise OptionError("; ".join(wrong), where="pipeline")
    return pairs
