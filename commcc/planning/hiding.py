"""Which compute hides which collective: from a simulated order, or from a file.

    hiding = hidden_by_order(index, timeline)
    hiding.by_launch[launch]        # nodes that run while the collective moves its bytes

A file names launches and the nodes that hide them::

    all_gather_into_tensor_3: [mm_7, mm_8]
    reduce_scatter_tensor: [mm_12]
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.errors import closest
from commcc.base.text import shown
from commcc.base.yaml_file import read_yaml
from commcc.plan import Before

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from commcc.graph.index import GraphIndex
    from commcc.timing.simulate import Timeline


@dataclass(frozen=True)
class Hiding:
    """by_launch: for hidden collectives the nodes that hide them, in graph order. waits: their first waits."""

    by_launch: Mapping[int, tuple[int, ...]]
    waits: Mapping[int, int]

    def edges(self) -> Iterator[tuple[int, int]]:
        """Launch before what hides it, before the wait."""
        for launch, nodes in self.by_launch.items():
            for node in nodes:
                yield launch, node
                yield node, self.waits[launch]

    def without(self, nodes: Collection[int]) -> Hiding:
        """The same without some of the nodes that hide."""
        kept = {launch: tuple(n for n in hiding if n not in nodes) for launch, hiding in self.by_launch.items()}
        return Hiding({launch: hiding for launch, hiding in kept.items() if hiding}, self.waits)

    def kept(self, index: GraphIndex) -> tuple[Before, ...]:
        """The same in the terms of a plan, without what follows from direct dependences among the nodes that hide."""
        before: list[Before] = []
        for launch, nodes in self.by_launch.items():
            among = frozenset(nodes)
            before += [Before(launch, n) for n in nodes if among.isdisjoint(index.preds(n))]
            before += [Before(n, self.waits[launch]) for n in nodes if among.isdisjoint(index.users[n])]
        return tuple(before)


def hidden_by_order(index: GraphIndex, timeline: Timeline) -> Hiding:
    """Collectives that the order hides altogether, with what runs on the compute stream meanwhile."""
    communicates = {*index.launches, *index.wait_of}  # what launching takes of the compute stream hides nothing
    running = [n for n in timeline.order if timeline.end[n] > timeline.start[n] and n not in communicates]
    ends = [timeline.end[n] for n in running]
    by_launch: dict[int, tuple[int, ...]] = {}
    for launch, facts in index.launches.items():
        span = timeline.spans[launch]
        if not facts.asynchronous or not facts.waits or not span.ns or timeline.exposed.get(launch, 0):
            continue
        wait = min(facts.waits)
        hiding: list[int] = []
        for node in running[bisect_right(ends, span.start) :]:
            if timeline.start[node] >= span.end:
                break
            if launch < node < wait:  # what stands elsewhere runs meanwhile by chance
                hiding.append(node)
        if hiding:
            by_launch[launch] = tuple(hiding)
    return Hiding(by_launch, {launch: min(index.launches[launch].waits) for launch in by_launch})


def read_hiding(index: GraphIndex, path: str) -> Hiding:
    """Hiding relations from a YAML file.

    Raises :class:`commcc.base.errors.InputError`, with all that is wrong by line, for a file that is no such file, and
    for names that are not in the graph.
    """
    file = read_yaml(path)
    launches = [index.names[launch] for launch in index.launches]
    by_launch: dict[int, tuple[int, ...]] = {}
    for name, said in file.root.entries().items():
        launch = index.position.get(name)
        if launch not in index.launches:
            said.fail(f"no collective '{shown(name)}' in the graph{closest(name, launches)}")
            continue
        nodes: set[int] = set()
        for entry in said.items() if isinstance(said.value, list) else [said]:  # one node may stand without brackets
            word = entry.text()
            if word in index.position:
                nodes.add(index.position[word])
            elif word:
                entry.fail(f"no node '{shown(word)}' in the graph{closest(word, index.names)}")
        if not index.launches[launch].waits:
            said.fail(f"'{name}' is never waited for")
        elif nodes:
            by_launch[launch] = tuple(sorted(nodes))
    file.check()
    return Hiding(by_launch, {launch: min(index.launches[launch].waits) for launch in by_launch})
