"""Pipelines as YAML::

    passes:
    - tag
    - bucket:
        bucket_cap_mb: [10, 25]
        max_topo_span: none
    - reorder

The names and values are those of the text form, ``tag,bucket{bucket_cap_mb=10:25,max_topo_span=none},reorder``,
and what is read prints as that text. All mistakes of a file are named in one error, each with its line.

Limits: what the text form cannot say (a name with a comma in it) is refused here too; no anchors, no tags
(:mod:`commcc.base.yaml_file`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from commcc.base.errors import CommccError, closest
from commcc.base.options import options_of
from commcc.base.text import shown
from commcc.base.yaml_file import read_yaml
from commcc.passes import registry
from commcc.passes.options import applicable, build, changed_options, parse_pipeline, to_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from commcc.base.terms import Json
    from commcc.base.yaml_file import Node
    from commcc.passes.base import Pass

    Defaults = Mapping[str, Mapping[str, Any]]

_HINT = "write '- NAME' or '- NAME: {option: value}'"


def read_pipeline(path: str | Path, defaults: Defaults | None = None) -> list[Pass]:
    """The passes of a YAML file; :class:`commcc.base.errors.InputError` names every mistake with its line.

    defaults: options by pass name, for what the file does not say.
    """
    file = read_yaml(path)
    root = file.root
    listed = root if isinstance(root.value, list) else root.mapping(("passes",))["passes"]
    passes = passes_of(listed, defaults)
    file.check()
    return passes


def passes_of(listed: Node, defaults: Defaults | None = None) -> list[Pass]:
    """The passes of a list in YAML; mistakes are noted in its file."""
    entries = listed.items()
    if not entries and isinstance(listed.value, list):
        listed.fail("no pass given")
    return [instance for instance in (_pass(entry, defaults or {}) for entry in entries) if instance is not None]


def pass_class(name: str, node: Node) -> type[Pass] | None:
    """The pass called ``name``, else None, with the mistake noted at ``node``."""
    if name in registry.names():
        return registry.get(name)
    near = closest(name, registry.names()) if len(name) < 100 else ""
    node.fail(f"no pass '{shown(name)}'{near or ' (passes: ' + ', '.join(registry.names()) + ')'}")
    return None


def option_texts(node: Node, cls: type[Pass]) -> dict[str, str | list[str]]:
    """Options of a pass from a mapping, as texts by name; what is wrong is noted with its line and left out."""
    options = options_of(cls)
    texts: dict[str, str | list[str]] = {}
    for raw, given in node.entries().items():
        name = raw.replace("-", "_")
        if name not in options:
            near = closest(name, list(options)) if len(name) < 100 else ""
            given.fail(f"pass '{cls.name}' has no option '{shown(raw)}'{near}")
        elif name in texts:
            given.fail(f"option '{shown(raw)}' is given twice")
        else:
            try:
                text = [_word(part) for part in given.value] if isinstance(given.value, list) else _word(given)
                options[name].read(text)
                texts[name] = text
            except ValueError as error:
                said = str(error)
                given.fail(f"{name}: {said if len(said) < 200 else f'{said[:200]}...'}")
    return texts


def _word(node: Node) -> str:
    if not isinstance(node.value, str):
        raise ValueError("expected a value or a list of values")
    if node.plain and not node.value:
        raise ValueError("has no value; write none, or leave the option out")
    return "none" if node.is_null else node.value


def _pass(node: Node, defaults: Defaults) -> Pass | None:
    """One entry of the list: a name, or a name with its options."""
    if isinstance(node.value, str) and not node.is_null:
        name, options = node.value, None
    elif isinstance(node.value, dict) and len(node.value) == 1:
        ((name, options),) = node.value.items()
    else:
        node.fail(f"a pass must be a name or one name with its options ({_HINT})")
        return None
    # Most likely copied from a command line, where braces hold the options.
    if name.partition("{")[0] in registry.names() and "{" in name:
        node.fail(f"'{shown(name)}' is the text form of a pass ({_HINT})")
        return None
    cls = pass_class(name, node)
    if cls is None:
        return None
    before = len(node.file.mistakes)
    given = {} if options is None or options.is_null else option_texts(options, cls)
    return _built(cls, node, {**applicable(cls, given, defaults.get(name, {})), **given}, before)


def _built(cls: type[Pass], node: Node, values: dict[str, Any], before: int) -> Pass | None:
    if len(node.file.mistakes) > before:
        return None
    try:
        instance = build(cls, values)
    except CommccError as error:
        node.fail(f"{cls.name}: {error.what}")
        return None
    with suppress(CommccError):
        # Every pass has to have a text form, which stored results and messages use.
        if parse_pipeline(to_text(instance)) == [instance]:
            return instance
    node.fail(f"{cls.name}: a value holds a character that the text form uses itself (, ; : {{ }} [ ])")
    return None


def pipeline_text(passes: Sequence[Pass]) -> str:
    """The pipeline as text."""
    return ",".join(map(to_text, passes))


def pipeline_yaml(passes: Sequence[Pass]) -> str:
    """The pipeline as YAML."""
    from commcc.base.yaml_text import dump

    listed: list[Json] = []
    for instance in passes:
        changed = {name: _value(value) for name, value in changed_options(instance).items()}
        listed.append({instance.name: changed} if changed else instance.name)
    return dump({"passes": listed})


def _value(value: Any) -> Json:
    if isinstance(value, tuple):
        return [_value(part) for part in value]
    # As people write it: 25, not 25.0.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value if isinstance(value, (bool, int, float)) else "none" if value is None else str(value)
