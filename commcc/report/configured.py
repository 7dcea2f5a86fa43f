"""The line that says which defaults of the project's configuration took effect."""

from __future__ import annotations

from typing import Any

from rich.text import Text


def line(effect: Any) -> Text:
    """``defaults from commcc.yaml: cost a100, bucket{bucket_cap_mb=25}``, from ``config`` of a document."""
    said = [_said(key, value) for key, value in effect["used"].items()]
    return Text(f"defaults from {effect['file']}: {', '.join(said)}", style="dim")


def _said(key: str, value: Any) -> str:
    if key == "options":
        return ", ".join(
            f"{name}{{{','.join(f'{k}={_text(v)}' for k, v in each.items())}}}" for name, each in value.items()
        )
    if isinstance(value, dict):
        return f"{key} {' '.join(f'{name}={number}' for name, number in value.items())}"
    return f"{key} {value}"


def _text(value: Any) -> str:
    return ":".join(map(str, value)) if isinstance(value, list) else str(value)
