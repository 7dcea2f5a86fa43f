"""A graph of two ranks as Inductor compiles it, in this process alone: its groups are stand-ins.

with compiled_alone(program, inputs) as (prepared, compiled):
    results = compiled(inputs)
"""

from __future__ import annotations

from contextlib import contextmanager

import torch

from commcc.replay.bench.graph_set import BenchSettings, make_set
from commcc.replay.compiled.inductor import Compiled
from commcc.replay.ranks.worker import stand_in_groups


@contextmanager
def compiled_alone(program, inputs):
    graphs = make_set([program], BenchSettings(ranks=2))
    stand_in_groups(graphs.layout)
    try:
        (prepared,) = graphs.prepared
        yield prepared, Compiled(prepared, inputs)
    finally:
        torch.distributed.destroy_process_group()
