"""What a pass is: a frozen dataclass whose fields are options, and a ``plan`` method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.graph.memory import Memory
    from commcc.graph.program import Program
    from commcc.plan import Plan
    from commcc.timing.cost import CostModel, Costs
    from commcc.timing.predict import Prediction


@dataclass(frozen=True)
class PlanContext:
    """What a pass plans from: a program, its index, what its collectives are for, and what prices it, if anything.

    first: the index of the graph that the pipeline began with, if that is another one. prediction: what the model says
    of this graph, if that is known. behind: names of the passes that run after this one.
    """

    program: Program
    index: GraphIndex
    ident: Identification
    model: CostModel | None = None
    first: GraphIndex | None = None
    prediction: Prediction | None = None
    behind: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: Program, model: CostModel | None = None) -> PlanContext:
        """The context of a program that is not indexed yet."""
        from commcc.graph.collectives import identify
        from commcc.graph.index import build_index

        index = build_index(program)
        return cls(program, index, identify(index), model)

    @property
    def costs(self) -> Costs | None:
        """What everything takes; None without a model."""
        if self.prediction is not None:
            return self.prediction.costs
        return None if self.model is None else self.model.price(self.index)

    @cached_property
    def memory(self) -> Memory:
        """Live bytes over the graph's order."""
        from commcc.graph.memory import live_bytes

        return live_bytes(self.index) if self.prediction is None else self.prediction.memory

    def budget(self, value: str | float | None, *, ordered_by: str = "") -> int | None:
        """Bytes that an option ``memory_budget`` stands for; None for no limit.

        ``auto`` and ``own`` are of the graph that the pipeline began with: else each pass would allow a little more
        than the one before it used. ordered_by: the pass whose order is to meet it. Raises :class:`OptionError` for
        a number of bytes where sizes are not known, as what is live cannot be compared with it; with such a pass also
        for fewer bytes than inputs take, which no order meets.
        """
        from commcc.graph.memory import live_bytes
        from commcc.planning.headroom import budget_bytes, needs_all_sizes, needs_inputs

        if value is None:
            return None
        if isinstance(value, str):
            first = self.first or self.index
            return budget_bytes(value, (self.memory if first is self.index else live_bytes(first)).peak_bytes)
        asked = f"memory_budget={value:g}"
        needs_all_sizes(self.index, asked)
        # A number is of the whole device, where the rest of the step may hold something too.
        budget = max(0, (budget_bytes(value, 0) or 0) - self.index.estimates.resident_bytes)
        if ordered_by:
            needs_inputs(self.memory, budget, f"{asked} GiB", f"pass '{ordered_by}'")
        return budget


class Pass(ABC):
    """Graph in, plan out. Subclasses are frozen dataclasses; see :mod:`commcc.passes.options`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @abstractmethod
    def plan(self, context: PlanContext) -> Plan:
        """Decide what to change. Reads only; the same graph, options and cost model give the same plan.

        A pass that needs prices raises :class:`commcc.base.errors.OptionError` without a model.
        """

    def problems(self) -> Iterator[str]:
        """Contradictions between options, one message each."""
        return iter(())
