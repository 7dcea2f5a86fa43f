"""Times that were measured: from Kineto traces of torch.profiler, and from commcc's own YAML profiles.

    source = load_profile(["traces/"])              # a folder with one trace for each rank
    source.operation(Operation(...))                # Price(ns=184320, how='profile, median of 24')
    source.transfer(Transfer(...)), source.warnings

The files are read into a :class:`~commcc.timing.cost.profiles.measured.Profile` (medians by op and input
shapes, and by collective and size), which :class:`ProfileSource` looks prices up in. Nothing is guessed:
an op that was not seen with exactly these inputs has no price here, and the next source is asked.
docs/cost-profiles.md says how to record a trace, and what is matched.
"""

from __future__ import annotations

from commcc.timing.cost.profiles.loading import load_profile
from commcc.timing.cost.profiles.source import ProfileSource

__all__ = ["ProfileSource", "load_profile"]
