"""identify: what every collective in a graph is for, with the evidence.

Example, a sharded parameter that is gathered before use::

    primals_3 -> _to_copy -> all_gather_into_tensor -> wait_tensor      role fsdp
        evidence: "gathers primals_3 through 1 op"

Roles are told from the shape of the dataflow, from placeholder descriptors and from annotations
(:mod:`commcc.graph.collectives.derive`), never from group names. Reads the index only; no torch.
"""

from commcc.graph.collectives.facts import Collective, GroupFacts, Identification
from commcc.graph.collectives.identify import identify

__all__ = ["Collective", "GroupFacts", "Identification", "identify"]
