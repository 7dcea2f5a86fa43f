"""The option ``memory_budget`` of passes that trade memory for time."""

from __future__ import annotations

from typing import Any

from commcc.passes.options import option

GIB = 1 << 30


def budget_option(help: str) -> Any:
    """The field of a pass: GiB, ``auto``, ``own``, or none for no limit."""
    text = f"{help} in GiB; auto is the graph's own peak and the larger of 1 GiB and 5 %, own is no more than that peak"
    return option("auto", text, type="float", minimum=0, choices=("auto", "own"), none="no limit")


def budget_bytes(value: str | float | None, peak: int) -> int | None:
    """Bytes that the option stands for on a graph with this peak; None for no limit."""
    if value is None or value == "own":
        return None if value is None else peak
    return peak + max(GIB, peak // 20) if value == "auto" else int(float(value) * GIB)
