"""Orders of chunked regions in which the exchanges of one chunk run while another one computes.

::

    local = Local.of(index, region)
    local_order = in_waves(local, depth=2)        # one order of the region's nodes, see commcc.ep.schedule.waves
    order = arranged(index, [local_order.order])  # all nodes of the graph

The order inside a region is soft: nothing but time depends on it. What is hard is in the index.
"""

from __future__ import annotations

from commcc.ep.schedule.local import Local
from commcc.ep.schedule.strip import events_of, strip_of
from commcc.ep.schedule.waves import RegionOrder, host_copies, in_waves
from commcc.ep.schedule.whole import arranged

__all__ = ["Local", "RegionOrder", "arranged", "events_of", "host_copies", "in_waves", "strip_of"]
