"""What explanations of one graph share, and the surroundings of one collective in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from commcc.base.sequences import closure
from commcc.explain.types import Limits, Side
from commcc.graph.memory import MemoryModel
from commcc.planning.merge_order import MergeOrder
from commcc.timing.simulate import Simulator
from commcc.timing.simulate.bound import Jobs, Reach, longest_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from commcc.graph.collectives import Collective, Identification
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.timing.cost import CostModel, Costs
    from commcc.timing.predict import Prediction
    from commcc.timing.simulate import Timeline


@dataclass(frozen=True)
class Context:
    """One graph with its prediction (in graph order), prepared once for many explanations. program: None where it is
    not known, as then no collective is cut.
    """

    index: GraphIndex
    ident: Identification
    prediction: Prediction
    model: CostModel
    limits: Limits = field(default_factory=Limits)
    program: Program | None = None

    @property
    def costs(self) -> Costs:
        return self.prediction.costs

    @property
    def timeline(self) -> Timeline:
        return self.prediction.timeline

    @cached_property
    def simulator(self) -> Simulator:
        return Simulator(self.index, self.costs)

    @cached_property
    def memory(self) -> MemoryModel:
        """What tells the live bytes of any order of the graph."""
        return MemoryModel(self.index)

    @cached_property
    def preds(self) -> list[tuple[int, ...]]:
        return [self.index.preds(node) for node in range(len(self.index))]

    @cached_property
    def succs(self) -> list[list[int]]:
        result: list[list[int]] = [[] for _ in self.preds]
        for node, preds in enumerate(self.preds):
            for before in preds:
                result[before].append(node)
        return result

    @cached_property
    def works(self) -> list[bool]:
        """Whether a node takes time on the compute stream and is neither launch nor wait."""
        index = self.index
        return [bool(ns) and n not in index.launches and n not in index.wait_of for n, ns in enumerate(self.costs.ns)]

    @cached_property
    def has_compute(self) -> bool:
        return any(self.index.compute)

    def stall_elsewhere(self, wait: int, stream: str) -> int:
        """How long the compute stream stalls at a wait for a collective of another queue."""
        stall = self.timeline.stalls.get(wait, 0)
        span = self.timeline.spans.get(self.index.awaited(wait))
        return stall if stall and (span is None or span.stream != stream) else 0

    @cached_property
    def stream_members(self) -> dict[str, list[int]]:
        """Launches of each queue, in graph order."""
        members: dict[str, list[int]] = {}
        for launch, span in self.timeline.spans.items():
            members.setdefault(span.stream, []).append(launch)
        return members

    @cached_property
    def first(self) -> int:
        """The first place after the graph's inputs."""
        return 1 + max(self.index.placeholders, default=-1)

    @cached_property
    def last(self) -> int:
        """The last place ahead of the output: the output's own position."""
        count = len(self.index)
        return count - 1 if count and self.index.ops[-1] == "output" else count

    @cached_property
    def budget(self) -> int:
        return self.limits.budget(self.prediction.memory.peak_bytes)

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs.of(self.index, self.costs)

    @cached_property
    def paths(self) -> Reach:
        return longest_paths(self.index, self.jobs)

    @cached_property
    def merges(self) -> MergeOrder:
        """What tells which collectives have to come before which others, merged with nothing yet."""
        return MergeOrder(self.index, ())

    def stream(self, launch: int) -> str:
        group = self.index.launches[launch].group
        return self.costs.streams.get(group, group)

    def names(self, nodes: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.index.names[node] for node in nodes)

    @cached_property
    def fed(self) -> list[bool]:
        """Whether a compute node comes before the node; without any in the graph, whether work does."""
        own = self.index.compute if self.has_compute else self.works
        fed = [False] * len(self.index)
        for node, preds in enumerate(self.preds):
            fed[node] = own[node] or any(fed[p] for p in preds)
        return fed

    def stops(self, node: int) -> bool:
        """Whether a launch or a wait does not take this node along when it moves: compute nodes, other
        collectives, host syncs, barriers and the ends of the graph."""
        index = self.index
        if index.compute[node] or node in index.launches or node in index.wait_of:
            return True
        return node in index.host_syncs or node in index.barriers or not self.first <= node < self.last


@dataclass(frozen=True)
class Scene:
    """One collective in its graph.

    before: what its launch must come after. after: what must come after its first wait, the waits
    included; after the launch when it is synchronous. first_wait: position of the first wait, None when
    there is none. blocker: the last node that stops the launch; a collective that no compute node feeds, such as the
    gather of a parameter, does not, since it can move up too. need: the first node that stops the
    waits. None at the ends of the graph.
    """

    collective: Collective
    before: frozenset[int]
    after: frozenset[int]
    first_wait: int | None
    blocker: int | None
    need: int | None

    @property
    def launch(self) -> int:
        return self.collective.launch


def scene_of(context: Context, collective: Collective) -> Scene:
    """Look around one collective."""
    index, launch = context.index, collective.launch
    waits = collective.waits
    before = closure(context.preds, [launch]) - {launch}
    after = closure(context.succs, waits)
    # A synchronous launch is its own wait.
    if not index.launches[launch].asynchronous:
        after = closure(context.succs, [launch]) - {launch}
    own = {launch, *waits}
    first_wait = min(waits, default=None)
    start = launch if first_wait is None else first_wait
    ahead = range(launch - 1, context.first - 1, -1)

    def free(node: int) -> bool:
        """Whether this is a collective that no compute node feeds."""
        other = index.wait_of.get(node, node)
        return other in index.launches and not context.fed[other]

    behind = range(start + 1, context.last + 1) if after else range(0)
    return Scene(
        collective=collective,
        before=before,
        after=after,
        first_wait=first_wait,
        blocker=next((n for n in ahead if n in before and context.stops(n) and not free(n)), None),
        need=next((n for n in behind if n in after and n not in own and context.stops(n)), None),
    )


def launch_side(context: Context, scene: Scene) -> Side:
    """How far the launch could go up."""
    blocker = scene.blocker
    position = context.first if blocker is None else blocker + 1
    path = () if blocker is None else shortest_path(context.succs, [blocker], scene.launch)
    passed = [n for n in range(position, scene.launch) if n not in scene.before]
    return _side(context, (position, blocker), path, passed)


def wait_side(context: Context, scene: Scene) -> Side:
    """How far the wait could go down; for collectives without a wait, nowhere."""
    need = scene.need
    if scene.first_wait is None:
        # Nobody waits, so there is nothing to put later.
        position, passed = scene.launch, []
        starts: tuple[int, ...] = (scene.launch,)
    else:
        position = context.last if need is None else need
        passed = [n for n in range(scene.first_wait, position) if n not in scene.after]
        starts = scene.collective.waits
    path = () if need is None else shortest_path(context.succs, starts, need)
    return _side(context, (position, need), path, passed)


def _side(context: Context, place: tuple[int, int | None], path: tuple[int, ...], passed: list[int]) -> Side:
    position, limit = place
    index = context.index
    work = [n for n in passed if context.works[n]]
    return Side(
        position=position,
        limit=None if limit is None else index.names[limit],
        path=context.names(path),
        compute_nodes=sum(index.compute[n] for n in work),
        ns=sum(context.costs.ns[n] for n in work),
    )


def shortest_path(neighbours: Sequence[Sequence[int]], starts: Iterable[int], goal: int) -> tuple[int, ...]:
    """A path with the fewest nodes from a start to the goal, both included; empty when there is none.

    Among equally short ones the first by the order of the neighbours, so that the answer never changes.
    """
    came: dict[int, int | None] = dict.fromkeys(starts)
    queue = deque(came)
    while queue and goal not in came:
        node = queue.popleft()
        for near in neighbours[node]:
            if near not in came:
                came[near] = node
                queue.append(near)
    path: list[int] = []
    at: int | None = goal if goal in came else None
    while at is not None:
        path.append(at)
        at = came[at]
    return tuple(reversed(path))
