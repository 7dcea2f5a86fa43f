"""ep-schedule: an order of chunked regions in which token exchanges run while other chunks compute.

    ep-schedule{order=auto,in_flight=2,modules=layers.*.moe}

The graph has to be chunked: by ``ep-chunk``, or by anything that writes the same annotations. The order by
phases launches one exchange of all chunks before it waits for any; by wavefront, no more than ``in_flight`` chunks
hold received tokens at a time; ``auto`` lets the simulator choose, forward and backward apart, within
``memory_budget``. :mod:`commcc.ep.schedule.waves` has the order step by step. Copies of token counts to the host
are grouped, so that the host waits once. Waits for exchanges are annotated as such (``EP_token_exchange_wait``), which
traces do not tell from launches. Values do not change.

The order is soft: it lasts as the order of nodes, and whatever moves nodes later need not keep it. The report names
the launches and waits that follow each other in each region.

Limits: nodes outside of regions are not scheduled; they move only where a region needs them earlier or later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from commcc.base.errors import InputError, OptionError
from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.base.record import Record, left_out
from commcc.passes.base import Pass, PlanContext
from commcc.passes.budget import budget_option
from commcc.passes.options import to_text
from commcc.plan import HostCopy, PassReport, Plan, Reordering, WaitLabel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from commcc.ep.regions import Region
    from commcc.ep.schedule import Local
    from commcc.ep.schedule.choose import Tried
    from commcc.graph.annotations import Annotation
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.timing.cost.types import Costs

    #: Prices of the graph as it is, and with the copies to the host that will not block.
    BeforeAfter = tuple[Costs, Costs]


@dataclass(frozen=True)
class ScheduledRegion(Record):
    """One region: nodes of each chunk, labels of its exchanges, its strip (:func:`commcc.ep.schedule.strip_of`), and
    its soft order: launches and waits, each behind the one before.
    """

    root: str
    direction: str
    body_nodes: tuple[int, ...]
    exchanges: tuple[str, ...]
    strip: str
    soft_order: tuple[str, ...]

    @classmethod
    def of(cls, index: GraphIndex, region: Region, chosen: Tried) -> ScheduledRegion:
        """A region in the order that was chosen."""
        from commcc.ep.schedule import events_of, strip_of

        events = events_of(region)
        flags = {node: free for local in chosen.region_orders for node, free in local.host_copies.items()}
        return cls(
            root=region.root,
            direction="backward" if region.backward else "forward",
            body_nodes=tuple(len(body) for body in region.bodies),
            exchanges=tuple(region.labels),
            strip=strip_of(index, region, chosen.order, flags),
            soft_order=tuple(index.names[node] for node in chosen.order if node in events),
        )


@dataclass(frozen=True)
class TriedOrder(Record):
    """An order that the simulator judged."""

    in_flight: Mapping[str, int]
    step_ms: float
    peak_bytes: int | None


@dataclass(frozen=True)
class EpScheduleReport(PassReport):
    """in_flight: chunks that hold received tokens at a time, by direction. tried: with ``order=auto``. Times and bytes
    are there where there is a cost model; pairs are before and after.
    """

    chunks: int
    in_flight: Mapping[str, int]
    regions: tuple[ScheduledRegion, ...]
    tried: tuple[TriedOrder, ...] | None = left_out()
    step_ms: tuple[float, float] | None = left_out()
    exchange_ms: float | None = left_out()
    exposed_exchange_ms: tuple[float, ...] | None = left_out()
    hidden_share_of_exchanges: tuple[float | None, ...] | None = left_out()
    peak_bytes: tuple[int, int] | None = left_out()
    remarks: tuple[str, ...] | None = left_out()


@dataclass(frozen=True)
class EpSchedule(Pass):
    """Which order, and for which regions; see the module docstring."""

    name: ClassVar[str] = "ep-schedule"
    summary: ClassVar[str] = "order chunked expert-parallel regions so that exchanges overlap with compute"

    order: str = option(
        "phase",
        "by phases, by wavefront, or the simulator's choice",
        choices=("phase", "wavefront", "auto"),
    )
    in_flight: int = option(2, "with order wavefront: chunks that hold received tokens at a time", minimum=1)
    modules: tuple[str, ...] | None = option(
        None, "roots of the regions to schedule, as paths or patterns", none="all regions"
    )
    memory_budget: str | float | None = budget_option("with order auto: peak memory")

    def problems(self) -> Iterator[str]:
        """Patterns that no graph can have."""
        from commcc.graph.modules import syntax_problems

        yield from syntax_problems(self.modules or ())

    def plan(self, context: PlanContext) -> Plan:
        """The order of all nodes, and which copies of token counts block.

        Raises :class:`InputError` where annotations contradict each other or no region is there.
        """
        from commcc.ep.regions import regions_of
        from commcc.ep.schedule import Local, host_copies
        from commcc.graph.annotations import annotations_of
        from commcc.graph.index.host import with_copies

        program, index, model = context.program, context.index, context.model
        if model is None and self.order == "auto":
            raise OptionError("order=auto needs a cost model", where="pass 'ep-schedule'", hint="as in --cost h100")
        notes = annotations_of(program, index)
        regions = regions_of(index, notes, self.modules or ())
        if not regions and _left_whole(program):
            remark = "nothing to order: ep-chunk has found that chunks do not pay"
            nothing = EpScheduleReport(1, {"forward": 1, "backward": 1}, (), remarks=(remark,))
            return Plan(to_text(self), index.fingerprint, report=nothing)
        if not regions:
            raise InputError(
                "no chunked region exchanges tokens", where="pass 'ep-schedule'", hint="run ep-chunk first"
            )
        locals_ = [Local.of(index, region) for region in regions]
        flags = {node: free for region in regions for node, free in host_copies(region).items()}
        # Whether a copy blocks the host is part of its price.
        costs = None if model is None else (model.price(index), model.price(with_copies(index, flags)))
        chosen, tried = self._chosen(context, locals_, costs and costs[1])
        # A copy that blocks as before needs no edit.
        reasons = {free: Reason.of("host_waits" if free else "last_copy") for free in (True, False)}
        changed = [(node, free) for node, free in sorted(flags.items()) if index.host_copies[node] != free]
        copies = [HostCopy(node, free, reasons[free]) for node, free in changed]
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Reordering.of(chosen.order),
            edits=(*copies, *_labels(regions, notes)),
            report=_report(index, locals_, costs, chosen, tried),
        )

    def _chosen(
        self, context: PlanContext, locals_: Sequence[Local], costs: Costs | None
    ) -> tuple[Tried, Sequence[Tried]]:
        from commcc.ep.schedule.choose import Chooser, Depths, planned

        index = context.index
        if self.order == "auto" and costs is not None:
            chooser = Chooser(index, locals_, costs, context.budget(self.memory_budget))
            return chooser.best(), tuple(chooser.tried.values())
        depth = max(local.region.chunks for local in locals_) if self.order == "phase" else self.in_flight
        return planned(index, locals_, Depths(depth, depth)), ()


def _left_whole(program: Program) -> bool:
    """Whether ``ep-chunk{chunks=auto}`` ran on this program, and cut nothing."""
    # All that a pass leaves behind where it changes nothing is its entry in the program's history.
    seen = [entry for entry in program.provenance if str(entry.get("pass", "")).startswith("ep-chunk")]
    options = seen[-1].get("options") if seen else None
    return isinstance(options, dict) and options.get("chunks") == "auto"


def _labels(regions: Sequence[Region], notes: Sequence[Annotation]) -> tuple[WaitLabel, ...]:
    """Waits that are annotated like their launches, or not at all."""
    waits = [
        (wait, label)
        for region in regions
        for own in region.waits
        for wait, label in zip(own, region.labels, strict=True)
    ]
    # A wait that carries a wait's annotation, and no launch's, is labelled already.
    return tuple(
        WaitLabel(wait, label)
        for wait, label in sorted(waits)
        if notes[wait].exchange is not None or notes[wait].exchange_wait is None
    )


def _report(
    index: GraphIndex, locals_: Sequence[Local], costs: BeforeAfter | None, chosen: Tried, tried: Sequence[Tried]
) -> EpScheduleReport:
    from commcc.timing.predict import milliseconds

    report = EpScheduleReport(
        chunks=max(local.region.chunks for local in locals_),
        in_flight=_in_flight(chosen),
        regions=tuple(ScheduledRegion.of(index, local.region, chosen) for local in locals_),
        tried=tuple(
            TriedOrder(_in_flight(order), milliseconds(order.step_ns or 0), order.peak_bytes) for order in tried
        )
        or None,
    )
    if costs is None:
        return report
    from commcc.graph.memory import MemoryModel
    from commcc.timing.simulate import Simulator

    launches = [launch for local in locals_ for own in local.region.exchanges for launch in own]
    memory = MemoryModel(index)
    before, after = Simulator(index, costs[0]).run(), Simulator(index, costs[1]).run(chosen.order)
    exposed = [sum(timeline.exposed.get(n, 0) for n in launches) for timeline in (before, after)]
    total = sum(after.spans[n].ns for n in launches)
    return replace(
        report,
        step_ms=(milliseconds(before.step_ns), milliseconds(after.step_ns)),
        exchange_ms=milliseconds(total),
        exposed_exchange_ms=tuple(milliseconds(ns) for ns in exposed),
        hidden_share_of_exchanges=tuple(round(1 - ns / total, 6) if total else None for ns in exposed),
        peak_bytes=(memory.live(range(len(index))).peak_bytes, memory.live(chosen.order).peak_bytes),
    )


def _in_flight(tried: Tried) -> dict[str, int]:
    return {"forward": tried.depths.forward, "backward": tried.depths.backward}
