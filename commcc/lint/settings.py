"""What is checked how: layers of settings, and what they come to for one graph.

    settings = Settings(layers=(Layer(rules={"peak-memory": Chosen(options={"max": 60 << 30})}),))
    chosen = settings.of("dumps/bw.fx.txt.gz")
    chosen.severity["peak-memory"], chosen.options["peak-memory"].max

A later layer wins, option by option and key by key. A layer with patterns is for graphs whose path fits one of
them: the path as it was given, the same relative to the folder of the configuration, or, for a pattern without
a slash, the name of the file alone. ``*`` matches across slashes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.lint.options import built
from commcc.lint.registry import RULES
from commcc.lint.types import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Chosen:
    """What one layer says of one rule. options: those it sets; None takes a limit away."""

    severity: Severity | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """Settings of rules by id, for graphs whose path fits one of ``paths``; for all graphs where that is None."""

    rules: Mapping[str, Chosen] = field(default_factory=dict)
    paths: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Effective:
    """Severity and options of every rule, by id."""

    severity: Mapping[str, Severity]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """A whole configuration. graphs: what to check where the command line names nothing. baseline: its file.

    file: where the settings come from; paths in it are relative to its folder. only, ignore: ids of rules that
    alone are to run, and of rules that are not to run.
    """

    layers: tuple[Layer, ...] = ()
    graphs: tuple[str, ...] = ()
    baseline: str | None = None
    file: str | None = None
    only: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()

    def of(self, graph: str | None) -> Effective:
        """What holds for one graph; for all of them together where ``graph`` is None."""
        severity, options = {}, {}
        layers = [layer for layer in self.layers if layer.paths is None or self._fits(graph, layer.paths)]
        for rule in RULES:
            given = [layer.rules[rule.id] for layer in layers if rule.id in layer.rules]
            severity[rule.id] = self._severity(rule.id, rule.severity, given)
            options[rule.id] = built(rule.options, _merged(given))
        return Effective(severity, options)

    def _severity(self, rule: str, usual: Severity, given: Iterable[Chosen]) -> Severity:
        said = [choice.severity for choice in given if choice.severity is not None]
        if rule in self.ignore or (self.only and rule not in self.only):
            return Severity.OFF
        chosen = said[-1] if said else usual
        return usual if chosen is Severity.OFF and self.only else chosen

    def _fits(self, graph: str | None, patterns: Iterable[str]) -> bool:
        if graph is None:
            return False
        names = {graph, Path(graph).as_posix()}
        folder = Path(self.file).absolute().parent if self.file is not None else None
        absolute = Path(graph).absolute()
        if folder is not None and absolute.is_relative_to(folder):
            names.add(absolute.relative_to(folder).as_posix())
        return any(
            fnmatchcase(name, pattern) or ("/" not in pattern and fnmatchcase(Path(name).name, pattern))
            for pattern in patterns
            for name in names
        )


def _merged(given: Iterable[Chosen]) -> dict[str, Any]:
    """The options of all layers, mappings key by key."""
    merged: dict[str, Any] = {}
    for choice in given:
        for name, value in choice.options.items():
            old = merged.get(name)
            merged[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
