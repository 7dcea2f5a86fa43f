"""ep-chunk: cuts the tokens of modules in chunks, so that exchanges of one chunk run while another computes.

One step through a layer of experts exchanges tokens with other ranks, computes, and exchanges them back; nothing
else of the layer can run meanwhile. With the tokens in N chunks there are N such steps that do not depend on each
other::

    route -> dispatch -> experts -> combine        ->    route0 -> dispatch0 -> experts0 -> combine0
                                                         route1 -> dispatch1 -> experts1 -> combine1

This pass makes the chunks and leaves them where the whole stood; ``ep-schedule`` puts them in order. It takes graphs
as they are dumped: sizes may be plain numbers.

1. Tokens are cut along dimension 0 (``batch``: samples, or rows where batch and sequence are folded together) or along
   the sequence (``seq``). Parameters are shared.
2. Values that leave a module are concatenated where the chunks are slices, and added up where each has a part of a
   sum; gradients of parameters are added up once, before their one reduction. What is neither is refused.
3. Sums added up chunk by chunk are rounded in another order than in one piece.

Limits: the modules must treat tokens one by one, up to sums over them: attention over a dimension that is cut, random
numbers and collectives other than all-to-alls inside a module are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commcc.errors import InternalError, closest
from commcc.modules import syntax_problems
from commcc.passes.base import Pass
from commcc.passes.options import option, to_text
from commcc.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.collectives import Identification
    from commcc.cost import CostModel
    from commcc.ep.chunk import Chunks
    from commcc.index import GraphIndex
    from commcc.plan import ChunkedRegion
    from commcc.program import Program
    from commcc.terms import Json

DIMS = ("batch", "seq")


@dataclass(frozen=True)
class EpChunk(Pass):
    """Which modules to cut, and in how many chunks; see the module docstring."""

    name: ClassVar[str] = "ep-chunk"
    summary: ClassVar[str] = "cut the tokens of modules with expert parallelism in chunks"

    modules: str | tuple[str, ...] = option(
        ("layers.*.moe",), "modules to cut: paths, '*' for any name, '[0-5]' for numbers", type="names", choices=()
    )
    chunks: int = option(2, "in how many chunks", type="int", minimum=1)
    dim: str = option("batch", "what is cut: batch (dimension 0) or seq (the sequence)", type="choice", choices=DIMS)

    def problems(self) -> Iterator[str]:
        """Patterns that no module can match."""
        yield from (f"modules: {problem}" for problem in syntax_problems(self._modules()))
        if not self._modules():
            yield "modules: name at least one"
        if self.dim not in DIMS:
            yield f"dim: no '{self.dim}'{closest(self.dim, list(DIMS))}"

    def plan(self, index: GraphIndex, ident: Identification, model: CostModel | None = None) -> Plan:
        """Not used: values are needed too."""
        raise InternalError("ep-chunk plans on the whole program")

    def plan_program(
        self, program: Program, index: GraphIndex, ident: Identification, model: CostModel | None = None
    ) -> Plan:
        """The regions to cut; none when there is to be one chunk."""
        from commcc.ep.chunk import plan_chunks

        found = plan_chunks(program, index, self._modules(), self.chunks, self.dim)
        regions = found.regions if self.chunks > 1 else ()
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            chunked=regions,
            report=_report(index, found, self.chunks),
        )

    def _modules(self) -> tuple[str, ...]:
        return (self.modules,) if isinstance(self.modules, str) else self.modules


def _report(index: GraphIndex, found: Chunks, chunks: int) -> dict[str, Json]:
    return {
        "chunks": chunks,
        "regions": [_region(index, region) for region in found.regions],
        "skipped": list(found.skipped),
        "by_annotation": found.annotated,
    }


def _region(index: GraphIndex, region: ChunkedRegion) -> dict[str, Json]:
    exchanges = [node for node in region.body if node in index.launches]
    how = [join.how for join in region.joins]
    return {
        "module": region.root,
        "direction": "backward" if region.backward else "forward",
        "sizes": list(region.sizes),
        "body": len(region.body),
        "exchanges": len(exchanges),
        "split": len(region.cuts),
        "concatenated": how.count("rows"),
        "added": how.count("sum"),
    }
