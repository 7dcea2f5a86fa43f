"""Settings from a file or from texts of the command line; every mistake is noted at its line.

    baseline: lint-baseline.yaml
    graphs: [dumps/*.fx.txt.gz]
    rules:
      wait-after-launch: off
      peak-memory: {severity: error, max: 60 GiB}
      collective-count: {max: {all_gather: 100, fsdp: 250}}
    overrides:
    - paths: "*_moe_*"
      rules: {peak-memory: {max: 70 GiB}}

The same keys stand under ``lint:`` in the project's configuration. On the command line a layer is written
``peak-memory=warning`` or ``peak-memory.max=60GiB`` or ``collective-count.max.all_gather=100``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.base.errors import OptionError, closest
from commcc.base.options import options_of
from commcc.base.yaml_file import Node, YamlFile
from commcc.lint.options import value_of
from commcc.lint.registry import BY_ID
from commcc.lint.settings import Chosen, Layer, Settings
from commcc.lint.types import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.lint.types import Rule

KEYS = ("rules", "overrides", "baseline", "graphs")
_SEVERITIES = tuple(str(severity) for severity in Severity)


def settings_of(node: Node, path: str) -> Settings:
    """The settings that a mapping of the file ``path`` says."""
    fields = {} if node.is_null else node.mapping((), KEYS)
    folder = Path(path).parent
    layers = [Layer(_rules(fields["rules"]))] if "rules" in fields else []
    layers += _overrides(fields["overrides"]) if "overrides" in fields else []
    baseline = fields["baseline"].text() if "baseline" in fields else ""
    graphs = _texts(fields["graphs"]) if "graphs" in fields else ()
    return Settings(
        tuple(layers),
        tuple(_relative(folder, graph) for graph in graphs),
        _relative(folder, baseline) if baseline else None,
        path,
    )


def _relative(folder: Path, path: str) -> str:
    """A path of the file, as seen from the working folder."""
    joined = folder / path
    return os.path.relpath(joined) if joined.is_absolute() and joined.is_relative_to(Path.cwd()) else str(joined)


def _texts(node: Node) -> tuple[str, ...]:
    nodes = node.items() if isinstance(node.value, list) else [node]
    return tuple(filter(None, (item.text() for item in nodes)))


def _overrides(node: Node) -> list[Layer]:
    layers = []
    for override in node.items():
        fields = override.mapping(("paths", "rules"))
        paths = _texts(fields["paths"])
        if fields["paths"].value == []:
            fields["paths"].fail("'paths' names nothing")
        layers.append(Layer(_rules(fields["rules"]), paths))
    return layers


def _rules(node: Node) -> dict[str, Chosen]:
    rules: dict[str, Chosen] = {}
    for name, child in ({} if node.is_null else node.entries()).items():
        if name not in BY_ID:
            child.fail(f"{unknown_rule(name)}, see lint --rules")
        else:
            rules[name] = _chosen(child, BY_ID[name])
    return rules


def unknown_rule(name: str) -> str:
    """The message for an id that no rule has."""
    return f"no rule '{name[:60]}'{closest(name, tuple(BY_ID))}"


def _chosen(node: Node, rule: Rule) -> Chosen:
    """A severity, or a mapping of severity and options."""
    if not isinstance(node.value, dict):
        text = node.text(_SEVERITIES)
        return Chosen(Severity(text) if text else None)
    options = options_of(rule.options)
    fields = node.mapping((), ("severity", *options))
    severity = fields.pop("severity").text(_SEVERITIES) if "severity" in fields else ""
    values = {name: value_of(options[name], child) for name, child in fields.items()}
    return Chosen(Severity(severity) if severity else None, values)


def layers_of(texts: Iterable[str]) -> tuple[Layer, ...]:
    """Layers from the texts of ``--rule``; one :class:`OptionError` names everything that is wrong with them."""
    wrong: list[str] = []
    layers = []
    for text in texts:
        file = YamlFile("--rule")
        path, equals, value = text.partition("=")
        name, *keys = path.strip().split(".")
        if not equals or not value.strip():
            wrong.append(f"'{text}' is not ID=SEVERITY or ID.OPTION=VALUE")
        elif name not in BY_ID:
            wrong.append(unknown_rule(name))
        else:
            layers.append(Layer({name: _chosen(_nested(file, keys, value.strip()), BY_ID[name])}))
            wrong += [f"'{text}': {what}" for _, what in file.mistakes]
    if wrong:
        raise OptionError("; ".join(wrong), where="--rule", hint="see 'commcc lint --rules'")
    return tuple(layers)


def _nested(file: YamlFile, keys: list[str], value: str) -> Node:
    """``max.all_gather`` and ``100`` as the mapping that a file would have; metrics keep their dots."""
    parts = [*keys[:1], *([".".join(keys[1:])] if len(keys) > 1 else [])]
    node = Node(file, 1, value, plain=True, name=parts[-1] if parts else "severity")
    for at in range(len(parts) - 1, -1, -1):
        above: Any = {parts[at]: node}
        node = Node(file, 1, above, name=parts[at - 1] if at else "")
    return node


def check_ids(ids: Iterable[str], flag: str) -> frozenset[str]:
    """The ids, all of which have to be rules."""
    given = [rule.strip() for text in ids for rule in text.split(",") if rule.strip()]
    wrong = [unknown_rule(rule) for rule in dict.fromkeys(given) if rule not in BY_ID]
    if wrong:
        raise OptionError("; ".join(wrong), where=flag, hint="see 'commcc lint --rules'")
    return frozenset(given)
