"""Measured times of collectives as a source of prices: from commcc's YAML, nccl-tests, or a table of sizes.

    table = load_table("coll.yaml")
    table.transfer(Transfer(...))      # Price(ns=143200, how='table, 1 MiB to 4 MiB', ...), or None

What the file is, is seen from what is in it. docs/cost-collectives.md describes the three formats and
which row is taken for which collective. Nothing is guessed: what the table does not hold, the next
source is asked for.
"""

from __future__ import annotations

from commcc.timing.cost.tables.loading import load_table
from commcc.timing.cost.tables.source import Row, TableSource

__all__ = ["Row", "TableSource", "load_table"]
