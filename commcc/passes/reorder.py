"""reorder: changes the order of nodes so that compute runs while collectives move bytes, within memory.

    reorder{max_in_flight_gb=4,memory_budget=none,effort=12}

Gathers of parameters are launched early enough to be there when they are needed, and the casts that
feed them come along; results of reductions are waited for late; independent compute moves into the
shadow of activation collectives (tensor and expert parallelism). :mod:`commcc.schedule` finds the
order; this pass sets its limits and reports. Values do not change: dependences of data, memory, random
numbers and effects all hold.

With ``control_deps`` the overlap is written into the graph for a backend that orders nodes anew
(:mod:`commcc.passes.control_edges`). It is off by default, since a backend cannot fuse across such edges.

Limits: the order is judged by the simulator under the given cost model; a better order in it is better
on a machine as far as the costs are right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from commcc.base.errors import OptionError
from commcc.base.options import option
from commcc.base.record import left_out
from commcc.base.sequences import longest_increasing_length
from commcc.base.terms import GIB
from commcc.passes.base import Pass, PlanContext
from commcc.passes.budget import budget_option
from commcc.passes.control_edges import control_edges
from commcc.passes.options import to_text
from commcc.plan import PassReport, Plan, Reordering
from commcc.planning.headroom import in_gib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from commcc.schedule import Limits, Problem, SearchResult


@dataclass(frozen=True)
class ReorderReport(PassReport):
    """Pairs are before and after. moved_nodes: those that did not keep their order among the others. settings: of
    each round of the search (:class:`commcc.schedule.SearchResult`); none where the graph's own order is best.
    unknown_sizes: values of unknown size, which no peak counts; None where all are known.
    """

    cost_model: Mapping[str, str]
    step_ms: tuple[float, float]
    exposed_ms: tuple[float, float]
    lower_bound_ms: float
    over_bound: float
    peak_bytes: tuple[int, int]
    memory_budget_bytes: int | None
    in_flight_bytes: tuple[int, int]
    moved_nodes: int
    moved_launches: int
    schedules_tried: int
    settings: tuple[tuple[int, ...], ...]
    remarks: tuple[str, ...]
    control_edges: int | None = left_out()
    unknown_sizes: int | None = left_out()


@dataclass(frozen=True)
class Reorder(Pass):
    """Limits of the schedule, and how long to look for one; see the module docstring."""

    name: ClassVar[str] = "reorder"
    summary: ClassVar[str] = "schedule for overlap within a memory budget"

    max_compute_prefetch: int | None = option(
        None,
        "compute nodes between a launch and its first wait, or what the graph has already if that is more",
        minimum=0,
        none="no limit",
    )
    max_in_flight_gb: float | None = option(
        None,
        "GiB of collectives launched and not yet waited for, or what the graph has already if that is more",
        minimum=0,
        none="no limit",
    )
    memory_budget: str | float | None = budget_option("peak memory")
    effort: int = option(
        76,
        "schedules to try at most; on graphs of 3000 nodes or more 400 moves for each of them, too, more far from the "
        "lower bound; more take longer and are hardly ever worse",
        minimum=1,
    )
    control_deps: bool = option(
        False, "write the order into the graph as control edges, for a backend that would reorder again"
    )

    def problems(self) -> Iterator[str]:
        """A limit that no launch could keep, while launches are to move."""
        if self.max_in_flight_gb == 0 and self.max_compute_prefetch != 0:
            yield "max_in_flight_gb=0 leaves room for no collective; give a size, or max_compute_prefetch=0 as well"

    def plan(self, context: PlanContext) -> Plan:
        """The best order found."""
        from commcc.schedule import Problem, search_once

        index, costs = context.index, context.costs
        if costs is None:
            raise OptionError("reorder needs a cost model", where="pass 'reorder'", hint="name one, as in --cost h100")
        problem = Problem(index, costs, known=context.prediction)
        budget = context.budget(self.memory_budget, ordered_by=self.name)
        limits = self.limits(budget)
        best = search_once(problem, limits, self.effort)
        edges, left = control_edges(index, best.order) if self.control_deps else ((), ())
        report = _report(problem, limits, best, context.memory.peak_bytes)
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Reordering.of(best.order),
            edits=edges,
            left_out=left,
            report=replace(report, control_edges=len(edges)) if self.control_deps else report,
        )

    def limits(self, budget: int | None) -> Limits:
        """What the options allow a schedule, with a budget in bytes."""
        from commcc.schedule import Limits

        in_flight = None if self.max_in_flight_gb is None else int(self.max_in_flight_gb * GIB)
        return Limits(budget, in_flight, self.max_compute_prefetch)


def _report(problem: Problem, limits: Limits, best: SearchResult, peak: int) -> ReorderReport:
    from commcc.timing.predict import milliseconds

    before, after = problem.before, problem.figures(best.nodes)
    place = {node: at for at, node in enumerate(best.order)}
    launches = [n for n in problem.index.launches if place[n] != n]
    remarks = []
    if limits.budget is not None and best.peak_bytes > limits.budget:
        over = best.peak_bytes - limits.budget
        remarks.append(
            f"no order found meets the memory budget of {in_gib(limits.budget)}: this one passes it by {in_gib(over)}"
        )
    return ReorderReport(
        cost_model={"name": problem.costs.model, "hash": problem.costs.hash},
        step_ms=(milliseconds(before.step_ns), milliseconds(after.step_ns)),
        exposed_ms=(milliseconds(before.exposed_ns), milliseconds(after.idle_ns)),
        lower_bound_ms=milliseconds(problem.bound),
        over_bound=round(after.step_ns / problem.bound - 1, 6) if problem.bound else 0.0,
        peak_bytes=(peak, best.peak_bytes),
        memory_budget_bytes=limits.budget,
        in_flight_bytes=(before.in_flight_bytes, after.in_flight_bytes),
        # What is not on one longest run that kept its order had to be moved.
        moved_nodes=len(best.order) - longest_increasing_length(best.order),
        moved_launches=len(launches),
        schedules_tried=best.tried,
        settings=best.settings,
        remarks=tuple(remarks),
        unknown_sizes=len(problem.index.estimates.unknown) or None,
    )
