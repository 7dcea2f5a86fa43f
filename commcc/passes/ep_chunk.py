"""ep-chunk: cuts the tokens of modules in chunks, so that exchanges of one chunk run while another computes.

One step through a layer of experts exchanges tokens with other ranks, computes, and exchanges them back; nothing
else of the layer can run meanwhile. With the tokens in N chunks there are N such steps that do not depend on each
other::

    route -> dispatch -> experts -> combine        ->    route0 -> dispatch0 -> experts0 -> combine0
                                                         route1 -> dispatch1 -> experts1 -> combine1

This pass makes the chunks and leaves them where the whole stood; ``ep-schedule`` puts them in order. It takes graphs
as they are dumped: sizes may be plain numbers.

1. Tokens are cut along dimension 0 (``batch``: samples, or rows where batch and sequence are folded together) or along
   the sequence (``seq``), also where the module itself folds it with the samples. Parameters are shared.
2. Values that leave a module are concatenated where the chunks are slices, and added up where each has a part of a
   sum; gradients of parameters are added up once, before their one reduction. What is neither is refused.
3. With ``chunks=auto`` two and four chunks are tried, each ordered as ``ep-schedule{order=auto}`` would, and the
   shorter simulated step wins; nothing is cut where none is shorter than that of the input graph.
4. Sums added up chunk by chunk are rounded in another order than in one piece.

Limits: the modules must treat tokens one by one, up to sums over them: attention over a dimension that is cut, random
numbers and collectives inside a module other than all-to-alls, and all-reduces of tokens, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commcc.base.errors import OptionError, closest
from commcc.base.options import option
from commcc.base.record import Record, left_out
from commcc.graph.modules import syntax_problems
from commcc.passes.base import Pass, PlanContext
from commcc.passes.options import to_text
from commcc.plan import Chunking, HostCopy, PassReport, Plan, Reordering

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.ep.chunk import Chunks
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.plan import ChunkedRegion
    from commcc.timing.cost import CostModel

DIMS = ("batch", "seq")
_NO_BACKWARD = (
    "nothing in the graph tells its backward pass: it is cut as forward, so that a backward pass begins with the wrong "
    "chunk and hides less; dump it with additional_meta=['autograd_backward']"
)
#: Numbers of chunks that ``auto`` compares.
CANDIDATES = (2, 4)


@dataclass(frozen=True)
class CutRegion(Record):
    """One region that is cut: units of each chunk, nodes and exchanges in its body, and how many values are split
    on their way in, and concatenated or added up on their way out.
    """

    module: str
    direction: str
    sizes: tuple[int, ...]
    body: int
    exchanges: int
    split: int
    concatenated: int
    added: int

    @classmethod
    def of(cls, index: GraphIndex, region: ChunkedRegion) -> CutRegion:
        """A region as the plan has it."""
        how = [join.how for join in region.joins]
        return cls(
            module=region.root,
            direction="backward" if region.backward else "forward",
            sizes=region.sizes,
            body=len(region.body),
            exchanges=sum(node in index.launches for node in region.body),
            split=len(region.cuts),
            concatenated=how.count("rows"),
            added=how.count("sum"),
        )


@dataclass(frozen=True)
class EpChunkReport(PassReport):
    """skipped: modules without exchanges. by_annotation: no all-to-all is in the graph, and modules were told by their
    annotations. tried_ms: steps by number of chunks, where the pass had to choose.
    """

    chunks: int
    regions: tuple[CutRegion, ...]
    skipped: tuple[str, ...]
    by_annotation: bool
    tried_ms: Mapping[str, float] | None = left_out()
    remarks: tuple[str, ...] | None = left_out()


@dataclass(frozen=True)
class EpChunk(Pass):
    """Which modules to cut, and in how many chunks; see the module docstring."""

    name: ClassVar[str] = "ep-chunk"
    summary: ClassVar[str] = "cut the tokens of modules with expert parallelism in chunks"

    modules: str | tuple[str, ...] | None = option(
        None, "modules to cut: paths, '*' for any name, '[0-5]' for numbers", none="those that exchange tokens"
    )
    chunks: int | str = option(2, "in how many chunks; auto lets the simulator choose", minimum=1, choices=("auto",))
    dim: str = option("batch", "what is cut: batch (dimension 0) or seq (the sequence)", choices=DIMS)

    def problems(self) -> Iterator[str]:
        """Patterns that no module can match."""
        yield from (f"modules: {problem}" for problem in syntax_problems(self._modules()))
        if self.modules is not None and not self._modules():
            yield "modules: name at least one"
        if self.dim not in DIMS:  # of a pass that no text said
            yield f"dim: no '{self.dim}'{closest(self.dim, list(DIMS))}"

    def plan(self, context: PlanContext) -> Plan:
        """The regions to cut; none when there is to be one chunk.

        Raises :class:`OptionError` where ``chunks=auto`` has no cost model to choose by, and :class:`InputError`
        where the modules cannot be cut.
        """
        from commcc.ep.chunk import plan_chunks

        index = context.index
        tried: dict[str, float] | None = None
        if isinstance(self.chunks, int):
            cut = plan_chunks(context.program, index, self._modules(), self.chunks, self.dim)
            chunks = self.chunks
        else:
            chunks, cut, tried = self._best(context)
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Chunking(cut.regions) if chunks > 1 else None,
            report=EpChunkReport(
                chunks=chunks,
                regions=tuple(CutRegion.of(index, region) for region in cut.regions),
                skipped=tuple(cut.skipped),
                by_annotation=cut.annotated,
                tried_ms=tried,
                remarks=(*((_NO_BACKWARD,) if cut.directionless else ()), *cut.left) or None,
            ),
        )

    def _best(self, context: PlanContext) -> tuple[int, Chunks, dict[str, float]]:
        """How many chunks make the step shortest, the regions, and the steps that were compared in ms."""
        from commcc.ep.chunk import plan_chunks
        from commcc.timing.predict import milliseconds
        from commcc.timing.simulate import Simulator

        program, index, model = context.program, context.index, context.model
        if model is None:
            raise OptionError("chunks=auto needs a cost model", where="pass 'ep-chunk'", hint="as in --cost h100")
        # One chunk is the graph as it is, in the order that it has.
        own = Simulator(index, model.price(index)).run().step_ns
        cuts = {n: plan_chunks(program, index, self._modules(), n, self.dim) for n in CANDIDATES}
        steps = {1: own, **{n: _step_ns(program, index, model, cuts[n].regions) for n in CANDIDATES}}
        chunks = min(steps, key=lambda n: (steps[n], n))
        # The report names regions that could be cut even where nothing is.
        return chunks, cuts.get(chunks, cuts[CANDIDATES[0]]), {str(n): milliseconds(ns) for n, ns in steps.items()}

    def _modules(self) -> tuple[str, ...]:
        return (self.modules,) if isinstance(self.modules, str) else self.modules or ()


def _step_ns(program: Program, index: GraphIndex, model: CostModel, regions: tuple[ChunkedRegion, ...]) -> int:
    """The simulated step of the graph cut into these regions, in the best order that ``ep-schedule`` finds."""
    from commcc.apply.chunk import chunked
    from commcc.graph.collectives import identify
    from commcc.graph.index import build_index
    from commcc.graph.index.host import with_copies
    from commcc.passes.ep_schedule import EpSchedule
    from commcc.timing.simulate import Simulator

    cut = chunked(program, index, regions)
    # Hints that people gave hold for the chunks too; others are taken anew from the smaller graph.
    after = build_index(cut, index.estimates.given)
    plan = EpSchedule(order="auto").plan(PlanContext(cut, after, identify(after), model))
    # Whether a copy blocks the host is part of its price.
    priced = with_copies(after, {copy.node: copy.non_blocking for copy in plan.of(HostCopy)})
    order = plan.rewrite.order if isinstance(plan.rewrite, Reordering) else None
    return Simulator(after, model.price(priced)).run(order).step_ns
