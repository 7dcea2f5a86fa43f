"""What a pass is: a frozen dataclass whose fields are options, and a ``plan`` method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from commcc.base.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program
    from commcc.plan import Plan
    from commcc.timing.cost import CostModel


class Pass(ABC):
    """Index in, plan out. Subclasses are frozen dataclasses; see :mod:`commcc.passes.options`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @abstractmethod
    def plan(self, index: GraphIndex, ident: Identification, model: CostModel | None = None) -> Plan:
        """Decide what to change. Reads only; the same index, options and cost model give the same plan.

        A pass that needs prices raises :class:`commcc.base.errors.OptionError` without a model.
        """

    def plan_program(
        self, program: Program, index: GraphIndex, ident: Identification, model: CostModel | None = None
    ) -> Plan:
        """As :meth:`plan`, for passes that need more of the graph than the index holds; what is run."""
        del program
        return self.plan(index, ident, model)

    @property
    def kernels(self) -> str | None:
        """The package whose kernels planning runs; they are compiled the first time."""
        return None

    def problems(self) -> Iterator[str]:
        """Contradictions between options, one message each."""
        return iter(())


class ProgramPass(Pass):
    """A pass that needs more of the graph than the index holds: values, annotations, arguments."""

    def plan(self, index: GraphIndex, ident: Identification, model: CostModel | None = None) -> Plan:
        """Not enough for it: :class:`InternalError`."""
        raise InternalError(f"{self.name} plans on a program", where=f"pass '{self.name}'")

    @abstractmethod
    def plan_program(
        self, program: Program, index: GraphIndex, ident: Identification, model: CostModel | None = None
    ) -> Plan:
        """As :meth:`Pass.plan`, which see."""
