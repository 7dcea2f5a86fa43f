"""Passes as texts: a pass is a frozen dataclass and its fields are its options (:mod:`commcc.base.options`).

The command line, pipeline text, YAML and the object are one and the same::

    build(Bucket, {"bucket_cap_mb": "25"})      -> Bucket(bucket_cap_mb=25.0)
    to_text(Bucket(bucket_cap_mb=25.0))         -> 'bucket{bucket_cap_mb=25}'
    parse_pipeline("tag,bucket{max_topo_span=none}")

All wrong options of a pass are reported in one error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OptionError
from commcc.base.options import options_of, read_options, value_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.passes.base import Pass

_PASS_TEXT = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(?:\{([^{}]*)\})?\s*(,|$)")

#: A list of values as other tools write it.
_SEVERAL = re.compile(r"=\s*\[")

_PIPELINE_HINT = "write name{option=value},name"
_SWEEP_HINT = "commcc sweep tries several, as in --param bucket.bucket_cap_mb=25,100"


def build(cls: type[Pass], values: Mapping[str, Any]) -> Pass:
    """Make a pass from option texts or values; :class:`OptionError` names everything that is wrong."""
    good, wrong = read_options(cls, values)
    if not wrong:
        instance = cls(**good)
        wrong = list(instance.problems())
        if not wrong:
            return instance
    raise OptionError("; ".join(wrong), where=f"pass '{cls.name}'", hint=f"see 'commcc passes {cls.name}'")


def applicable(cls: type[Pass], given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The ``defaults`` that fit what is ``given``: none of another strategy, none that is given."""
    options = options_of(cls)
    said = {name.replace("-", "_"): value for name, value in given.items()}
    strategy = options["strategy"].default if "strategy" in options else None
    chosen = {**defaults, **said}.get("strategy", strategy)
    return {
        name: value
        for name, value in defaults.items()
        if name not in said and (not options[name].strategies or chosen in options[name].strategies)
    }


def to_text(instance: Pass) -> str:
    """The pass with the options that differ from their defaults, as pipeline text."""
    changed = [f"{name}={value_text(value)}" for name, value in changed_options(instance).items()]
    return f"{instance.name}{{{','.join(changed)}}}" if changed else instance.name


def changed_options(instance: Pass) -> dict[str, Any]:
    """The options that differ from their defaults."""
    values = {name: getattr(instance, name) for name in options_of(type(instance))}
    return {name: value for name, value in values.items() if value != options_of(type(instance))[name].default}


def parse_pipeline(text: str, defaults: Mapping[str, Mapping[str, Any]] | None = None) -> list[Pass]:
    """Passes from ``name{opt=1,opt=2},name``; one :class:`OptionError` names every unknown name and wrong option.

    defaults: options by pass name, for what the text does not say.
    """
    from commcc.passes import registry

    passes: list[Pass] = []
    wrong: list[OptionError] = []
    position = 0
    while position < len(text):
        match = _PASS_TEXT.match(text, position)
        if match is None:
            raise OptionError(f"cannot read '{text[position:]}'", where="pipeline", hint=_PIPELINE_HINT)
        position = match.end()
        try:
            cls, given = registry.get(match[1]), _pairs(match[2] or "")
            passes.append(build(cls, {**applicable(cls, given, (defaults or {}).get(match[1], {})), **given}))
        except OptionError as error:
            wrong.append(error)
    if not passes and not wrong:
        raise OptionError("no pass given", where="pipeline", hint=_PIPELINE_HINT)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        places = ["" if error.where in (None, "pipeline") else f"{error.where}: " for error in wrong]
        said = "; ".join(place + error.what for place, error in zip(places, wrong, strict=True))
        raise OptionError(said, where="pipeline", hint="see 'commcc passes'")
    return passes


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
    if wrong and _SEVERAL.search(text):
        raise OptionError("an option takes one value, no '[...]'", where="pipeline", hint=_SWEEP_HINT)
    if wrong:
        raise OptionError("; ".join(wrong), where="pipeline")
    return pairs
