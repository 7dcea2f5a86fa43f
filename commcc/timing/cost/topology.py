"""Where the ranks of a group sit, and which groups have to share a link.

    placement(8, (0, 8, 16, 24, 32, 40, 48, 56), ranks_per_node=8)   # Placement(nodes=8, per_node=1, ...)
    placement(8, None, ranks_per_node=8)                             # one node, assumed=True
    streams(index.groups, 8, "topology")                             # {'0': 'network', '9': 'node links'}

Rank ``r`` is on node ``r // ranks_per_node``, as torchrun, Slurm's block distribution and mpirun number
them. Limits: no racks, rails or oversubscribed switches; every node has the same number of devices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.graph.index.graph import GroupEntry

NETWORK = "network"
NODE_LINKS = "node links"
ONE_LINK = "link"


@dataclass(frozen=True)
class Placement:
    """nodes: how many the group touches. per_node, least_per_node: most and fewest of its ranks in one of
    them. assumed: the ranks are not known and were taken to fill node after node.
    """

    nodes: int
    per_node: int
    least_per_node: int
    assumed: bool = False

    @property
    def crosses(self) -> bool:
        """Whether bytes go over the network between nodes."""
        return self.nodes > 1


def placement(size: int, ranks: tuple[int, ...] | None, ranks_per_node: int) -> Placement:
    """Placement of a group of ``size`` ranks. Ranks that do not fit the size count as unknown."""
    if ranks is not None and len(set(ranks)) == size:
        filled = Counter(rank // ranks_per_node for rank in ranks).values()
        return Placement(len(filled), max(filled), min(filled))
    full, rest = divmod(size, ranks_per_node)
    # Fewer ranks than a node has: all in one.
    if not full:
        return Placement(1, size, size, assumed=True)
    return Placement(full + bool(rest), ranks_per_node, rest or ranks_per_node, assumed=True)


def streams(groups: Mapping[str, GroupEntry], ranks_per_node: int, share: str) -> dict[str, str]:
    """For every group the queue that its collectives wait in; ``share`` as in ``Settings.share_link``.

    With ``topology`` a group of unknown size counts as one that crosses nodes.
    """
    if share == "none":
        return {name: name for name in groups}
    if share == "all":
        return dict.fromkeys(groups, ONE_LINK)
    queues: dict[str, str] = {}
    for name, entry in groups.items():
        size = entry.size if entry.size is not None else len(entry.ranks or ())
        # A group of unknown size may cross nodes, and then it shares the network.
        inside = size > 0 and not placement(size, entry.ranks, ranks_per_node).crosses
        queues[name] = NODE_LINKS if inside else NETWORK
    return queues
