"""inline: the nodes of regions stand in the place of their calls, so that their collectives can move.

    called = invoke_subgraph(self.body, 'key', x, w)              called_ag = all_gather(w)
    y = called[0]                                       ->        called_wait = wait(called_ag)
                                                                  called_mm = mm(x, called_wait)

``torch.compiler.nested_compile_region`` has a module that is used many times compiled once: graphs then hold a
sub-graph for it, and calls. A collective in a sub-graph starts and ends within its call, and hides behind nothing
outside.

With ``what=communicating`` calls go whose sub-graphs communicate, with ``what=all`` all calls. A call stays

1. whose operands or results are not known to have the sizes, strides and devices that its sub-graph has on record;
2. whose sub-graph has sizes that are known only when it runs, or holds a constant;
3. whose result is used as a whole.

Regions called within a region go with it. Limits: branches, loops and other sub-graphs stay as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.passes.base import Pass, PlanContext
from commcc.passes.options import to_text
from commcc.plan import Inlining, PassReport, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMUNICATING, ALL = "communicating", "all"


@dataclass(frozen=True)
class InlineReport(PassReport):
    """calls: of regions that go. regions: different sub-graphs among them. launches: collectives by kind that are part
    of the graph then. left: calls that stay, by reason.
    """

    calls: int
    regions: int
    launches: Mapping[str, int]
    left: Mapping[str, int]


@dataclass(frozen=True)
class Inline(Pass):
    """Which calls; see the module docstring."""

    name: ClassVar[str] = "inline"
    summary: ClassVar[str] = "put the nodes of regions that are compiled once in the place of their calls"

    what: str = option(
        COMMUNICATING,
        "calls that go: communicating (whose sub-graphs launch collectives or wait), or all",
        choices=(COMMUNICATING, ALL),
    )

    def plan(self, context: PlanContext) -> Plan:
        """The calls of regions that go."""
        from commcc.graph.regions import Region, obstacle, region_of

        index, root = context.index, context.program.root
        regions: dict[int, Region] = {}
        left = Counter[str]()
        for number, node in enumerate(context.program.graph.nodes):
            region = region_of(node, root)
            if region is None:
                continue
            quiet = self.what == COMMUNICATING and number not in index.inside and number not in index.barriers
            why = Reason.of("region_quiet") if quiet else obstacle(node, region)
            if why is None:
                regions[number] = region
            else:
                left[why.general] += 1
        launches = Counter[str]()
        for number in regions:
            launches.update(index.inside[number].kinds if number in index.inside else {})
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Inlining(tuple(regions)),
            report=InlineReport(
                calls=len(regions),
                regions=len({id(region.body) for region in regions.values()}),
                launches=dict(sorted(launches.items())),
                left=dict(left.most_common()),
            ),
        )
