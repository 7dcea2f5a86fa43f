"""Which collectives to split, with what around them, and in how many parts: by the simulated time of that piece alone.

A collective and what may be cut with it are taken out of the graph as a small graph of their own, cut in every way that
is to be tried, and simulated before and after. Pieces that are alike are tried once. What a split gains is at most what
is exposed of the collective; what it costs (launches, copies, slices that are read apart) it costs anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import fx

from commcc.apply.chunk import chunked
from commcc.base.errors import CommccError
from commcc.base.reasons import Reason
from commcc.base.terms import Kind
from commcc.graph.copying import copy_node
from commcc.graph.index import build_index
from commcc.plan import ChunkedRegion, LeftOut
from commcc.planning.eligibility import result_obstacle, writers
from commcc.splitting.body import Bodies, marked
from commcc.splitting.slices import Slices, is_static
from commcc.timing.simulate import Simulator
from commcc.verify.clones import Rows, shape_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.splitting.body import Side
    from commcc.timing.cost import CostModel, Costs

#: How many ends of what is behind a collective are tried.
ENDS = 3


@dataclass(frozen=True)
class Split:
    """One collective that is split, or two of which the second sends on what the first receives.

    gain_ns: what the piece by itself gains. exposed_ns: of what is split, before.
    """

    launch: int
    region: ChunkedRegion
    gain_ns: int
    exposed_ns: int


@dataclass
class Splitter:
    """Plans the regions of one graph. counts: numbers of parts to try."""

    program: Program
    index: GraphIndex
    model: CostModel
    counts: Sequence[int]
    costs: Costs
    left: list[LeftOut] = field(default_factory=list)
    tried: dict[object, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = tuple(self.program.graph.nodes)
        self.writers = writers(self.index)
        self.bodies = Bodies(self.nodes, self.index, Slices(), self._follows)

    def splits(self, exposed: Mapping[int, int], smallest: float, among: Collection[int] | None = None) -> list[Split]:
        """A split for every exposed collective, or every one among some, that gains by it, in graph order.

        exposed: ns of each. smallest: bytes of one.
        """
        splits = []
        for launch in sorted(exposed if among is None else among):
            if launch in self.bodies.taken:  # with one before it
                continue
            reason = self._obstacle(launch, smallest)
            if reason is None:
                split = self._best(launch, exposed)
                if isinstance(split, Split):
                    splits.append(split)
                    self.bodies.taken.update(self.bodies.places(split.region))
                    continue
                reason = split
            self.left.append(LeftOut(launch, reason))
        return splits

    def cut(self, splits: Sequence[Split]) -> Program:
        """The program with these splits made."""
        return chunked(self.program, self.index, tuple(split.region for split in splits))

    def _obstacle(self, launch: int, smallest: float) -> Reason | None:
        """Why a collective cannot be split whatever is around it."""
        index, facts = self.index, self.index.launches[launch]
        if facts.kind not in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE):
            return Reason.of("split_kind", kind=str(facts.kind))
        if facts.coalesced or facts.writes_to or not facts.asynchronous or len(facts.inputs) != 1:
            return Reason.of("coalesced" if facts.coalesced else "writes_buffer" if facts.writes_to else "split_form")
        held = index.held.intersection((launch, *facts.inputs, *facts.waits))
        if held:
            return Reason.of("control_edge")
        if marked(self.nodes[launch]):
            return Reason.of("in_chunk")
        reason = result_obstacle(index, launch, self.writers)
        if reason is not None:
            return reason
        source = self.nodes[facts.inputs[0]]
        if not is_static(source) or not is_static(self.nodes[launch]):
            return Reason.of("split_sizes")
        size = max(tensor.bytes for tensor in (index.tensors[facts.inputs[0]], index.tensors[launch]) if tensor)
        return Reason.of("split_small", bytes=size) if size < smallest else None

    def _follows(self, launch: int) -> bool:
        """Whether a collective may be cut with one whose result it reduces: shards that are all-reduced then."""
        return self.index.launches[launch].kind is Kind.ALL_REDUCE and self._obstacle(launch, 0) is None

    def _best(self, launch: int, exposed: Mapping[int, int]) -> Split | Reason:
        """The split of a collective that gains most, or why there is none."""
        best: tuple[int, Split] | None = None
        possible = False
        for front, back in self._drafts(launch):
            for count in self.counts:
                region = self.bodies.region(launch, front, back, count)
                if region is None:
                    continue
                possible = True
                gain, cost = self._gain(region)
                waited = sum(exposed.get(node, 0) for node in region.body)
                kept = min(gain + cost, waited) - cost
                if kept > (0 if best is None else best[0]):
                    best = kept, Split(launch, region, gain, waited)
        if best is not None:
            return best[1]
        return Reason.of("split_pays_not" if possible else "split_no_rows")

    def _drafts(self, launch: int) -> Iterator[tuple[Side, Side]]:
        """What may be cut with a collective: in front, behind, and on both sides; never nothing."""
        source = self.nodes[self.index.launches[launch].inputs[0]]
        for dim, size in enumerate(shape_of(source)):
            start = Rows(("tokens", size), dim)
            front = self.bodies.in_front(launch, start) if size > 1 else None
            if front is None:
                continue
            behind = self.bodies.behind(launch, front)
            for back in self._ends(behind):
                # Of what is computed with a collective, all but one part can run concurrently with the others.
                if self._work(front) + self._work(back) > self.costs.launch_ns:
                    yield front, back

    def _work(self, side: Side) -> int:
        return sum(self.costs.ns[node] for node in side.body if node not in self.index.wait_of)

    def _ends(self, behind: Sequence[Side]) -> list[Side]:
        """Where to end what is cut behind a collective: at once, where little has to be put together, and late."""
        longest: dict[int, Side] = {}
        for side in behind:
            inside = set(side.body)
            ends = [n for n in side.body if any(user not in inside for user in self.index.users[n])]
            tensors = [self.index.tensors[n] for n in ends]
            if all(tensor is not None and tensor.contiguous for tensor in tensors):
                longest[sum(tensor.bytes for tensor in tensors if tensor is not None)] = side
        chosen = [*behind[:1], *(longest[size] for size in sorted(longest)[:ENDS]), *list(longest.values())[-1:]]
        return list({len(side.body): side for side in chosen}.values())

    def _gain(self, region: ChunkedRegion) -> tuple[int, int]:
        """Nanoseconds that a split gains where all of the collective is exposed, and what it costs otherwise."""
        body = [self.nodes[number] for number in region.body]
        inside = set(body)
        outside = sorted(
            {used for node in body for used in node.all_input_nodes} - inside, key=self.bodies.number.__getitem__
        )
        at = {node: place for place, node in enumerate((*outside, *body))}

        def moved(entries: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(replace(entry, node=at[self.nodes[entry.node]]) for entry in entries)

        own = replace(
            region,
            root="split",
            body=tuple(at[node] for node in body),
            cuts=moved(region.cuts),
            joins=moved(region.joins),
            resized=moved(region.resized),
        )
        key = (own, *(_meta_text(node) for node in outside), *(_text(node, at) for node in body))
        if key not in self.tried:
            self.tried[key] = self._simulated(_piece(outside, body, own), own)
        return self.tried[key]

    def _simulated(self, piece: fx.Graph, region: ChunkedRegion) -> tuple[int, int]:
        program = replace(self.program, graph=piece, carrier=None, provenance=())
        index = build_index(program)
        before = Simulator(index, self.model.price(index)).run()
        try:
            cut = chunked(program, index, (region,))
        except CommccError:
            return -1, 0
        after_index = build_index(cut)
        if any(
            not _is_dense(after_index, operand) for launch in after_index.launches.values() for operand in launch.inputs
        ):
            return -1, 0
        after = Simulator(after_index, self.model.price(after_index)).run()
        work = after.compute_ns + after.launch_ns - before.compute_ns - before.launch_ns
        return before.step_ns - after.step_ns, max(0, work)


def _piece(outside: Sequence[fx.Node], body: Sequence[fx.Node], region: ChunkedRegion) -> fx.Graph:
    """What a region consists of as a graph of its own."""
    graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in outside:
        place = env[node] = graph.placeholder(node.name)
        place.name, place.meta = node.name, {"val": node.meta.get("val")}
    for node in body:
        env[node] = copy_node(graph, node, env)
    copies = list(env.values())
    graph.output(tuple(copies[join.node] for join in region.joins))
    return graph


def _is_dense(index: GraphIndex, node: int) -> bool:
    tensor = index.tensors[node]
    return tensor is not None and tensor.contiguous


def _meta_text(node: fx.Node) -> str:
    """The shapes of what a node gives."""
    val = node.meta.get("val")
    parts: list[Any] = list(val) if isinstance(val, (list, tuple)) else [val]
    return str([(str(p.dtype), tuple(p.shape), p.stride(), str(p.device)) for p in parts if hasattr(p, "shape")])


def _text(node: fx.Node, at: Mapping[fx.Node, int]) -> str:
    """A node of a piece without names: pieces of equal texts take equal times. at: places in the piece."""
    arguments = fx.node.map_arg((node.args, dict(node.kwargs)), lambda used: f"%{at[used]}")
    return f"{node.target} {arguments} {_meta_text(node)}"
