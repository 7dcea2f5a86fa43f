"""The option ``memory_budget`` of passes that trade memory for time."""

from __future__ import annotations

from typing import Any

from commcc.base.options import option


def budget_option(help: str, **more: Any) -> Any:
    """The field of a pass: GiB, ``auto``, ``own``, or none for no limit; see :mod:`commcc.planning.headroom`."""
    own = "the peak of the graph that the pipeline begins with"
    text = f"{help} in GiB; auto is {own} and the larger of 1 GiB and 5 %, own is that peak"
    return option("auto", text, minimum=0, choices=("auto", "own"), none="no limit", **more)
