"""What a pass is: a frozen dataclass whose fields are options, and a ``plan`` method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.plan import Plan
    from commcc.timing.cost import CostModel


@dataclass(frozen=True)
class PlanContext:
    """What a pass plans from: a program, its index, what its collectives are for, and what prices it, if anything."""

    program: Program
    index: GraphIndex
    ident: Identification
    model: CostModel | None = None

    @classmethod
    def of(cls, program: Program, model: CostModel | None = None) -> PlanContext:
        """The context of a program that is not indexed yet."""
        from commcc.graph.collectives import identify
        from commcc.graph.index import build_index

        index = build_index(program)
        return cls(program, index, identify(index), model)


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

    @property
    def kernels(self) -> str | None:
        """The package whose kernels planning runs; they are compiled the first time."""
        return None

    def problems(self) -> Iterator[str]:
        """Contradictions between options, one message each."""
        return iter(())
