"""Durations of nodes, from models that are named, hashed and handed in.

    model = load_model("h100,table=coll.yaml,profile=run.yaml")
    costs = model.price(index)
    costs.ns[i], costs.sources[costs.priced_by[i]]      # 184320, 'h100-sxm'
    model.transfer(Transfer(...)), model.operation(Operation(...))   # of what is not in a graph yet

The sources are asked in turn, the most specific first: profile, table, device. Nothing here reads a
device, a clock or a rank, and importing it does not import torch.
"""

from __future__ import annotations

from commcc.timing.cost.model import DEFAULT_MODEL, CostModel, load_model
from commcc.timing.cost.types import Costs, Operation, Price, Settings, Source, Transfer

__all__ = [
    "DEFAULT_MODEL",
    "CostModel",
    "Costs",
    "Operation",
    "Price",
    "Settings",
    "Source",
    "Transfer",
    "load_model",
]
