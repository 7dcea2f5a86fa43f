"""What a configuration file says. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.lint.settings import Settings


@dataclass(frozen=True)
class Named:
    """How a pipeline is named. kind: ``passes`` (text), ``pipeline`` (a YAML file), ``preset`` or ``plan``."""

    kind: str
    value: str


@dataclass(frozen=True)
class Config:
    """Defaults of a project. path: the file. options: by pass, texts or lists of texts as pipelines have them.

    lint: settings of the gate.
    """

    path: str
    cost: str | None = None
    hints: Mapping[str, int] = field(default_factory=dict)
    pipeline: Named | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lint: Settings | None = None
