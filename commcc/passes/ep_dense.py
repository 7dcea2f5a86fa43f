"""ep-dense: launches FSDP collectives concurrent with attention, off the network that token exchanges use.

    ep-dense{layers=none,reduce_waits=end,strict=no}

Gathers of a layer are launched in the dense part of the layer before it in the same direction, reductions in the
dense part of the layer after it in the backward pass; :mod:`commcc.ep.dense` has the rules one by one. Nodes of chunked
regions keep their order. Values do not change.

Limits: layers are found by what they gather and reduce, like those of ``bucket{modules=transformer_block}``, unless
``layers`` names them; a collective of several layers counts for the first that its metadata names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from commcc.base.errors import FindingError, InputError, OptionError
from commcc.base.options import option
from commcc.base.reasons import Reason
from commcc.base.record import left_out
from commcc.passes.base import Pass, PlanContext
from commcc.passes.options import to_text
from commcc.plan import LeftOut, PassReport, Plan, Reordering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commcc.ep.dense import Blocked, Dense, OrderConstraint, Wanted
    from commcc.graph.collectives import Identification
    from commcc.graph.index import GraphIndex

#: How many blocked collectives an error names.
_SHOWN = 5


@dataclass(frozen=True)
class EpDenseReport(PassReport):
    """Numbers of collectives. Pairs are before and after; they are there where there is a cost model."""

    layers: int
    gathers_placed: int
    reductions_placed: int
    reductions_waited_late: int
    left_in_place: int
    blocked: int
    step_ms: tuple[float, float] | None = left_out()
    exposed_ms: tuple[float, float] | None = left_out()
    peak_bytes: tuple[int, int] | None = left_out()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class EpDense(Pass):
    """Which layers, and what to do where something is in the way; see the module docstring."""

    name: ClassVar[str] = "ep-dense"
    summary: ClassVar[str] = "launch FSDP collectives in the dense parts of neighbouring layers"

    layers: tuple[str, ...] | None = option(None, "layers, as paths or patterns", none="modules that are alike")
    reduce_waits: str = option(
        "end",
        "where reductions are waited for: at the end, or (less memory) where the next layer launches its own",
        choices=("end", "layer"),
    )
    strict: bool = option(False, "a collective that cannot be moved is an error")

    def problems(self) -> Iterator[str]:
        """Patterns that no graph can have."""
        from commcc.graph.modules import syntax_problems

        yield from syntax_problems(self.layers or ())

    def plan(self, context: PlanContext) -> Plan:
        """The order of all nodes.

        Raises :class:`InputError` where no layers are found, and with ``strict`` :class:`FindingError` for what
        cannot be moved.
        """
        from commcc.ep.dense import Dense, placed, wanted_order
        from commcc.graph.annotations import annotations_of

        index, ident = context.index, context.ident
        layers = self._layers(index, ident)
        dense = Dense(index, annotations_of(context.program, index), layers)
        wanted = wanted_order(dense, ident, at_end=self.reduce_waits == "end")
        order = placed(index, wanted.moves)
        blocked = (*wanted.blocked, *_not_met(order, wanted.moves))
        if blocked and self.strict:
            said = "; ".join(
                f"'{index.names[collective.launch]}': {collective.reason}" for collective in blocked[:_SHOWN]
            )
            more = f"; and {len(blocked) - _SHOWN} more" if len(blocked) > _SHOWN else ""
            raise FindingError(
                f"{len(blocked)} collectives cannot be moved: {said}{more}",
                where="pass 'ep-dense'",
                hint="strict=no moves the others",
            )
        return Plan(
            pass_text=to_text(self),
            fingerprint=index.fingerprint,
            rewrite=Reordering.of(order),
            left_out=tuple(LeftOut(collective.launch, collective.reason) for collective in blocked),
            report=_report(context, dense, wanted, order, len(blocked)),
        )

    def _layers(self, index: GraphIndex, ident: Identification) -> tuple[str, ...]:
        from commcc.ep.dense import layers_of
        from commcc.graph.modules import entries_of

        if self.layers is None:
            layers = layers_of(ident)
            if not layers:
                raise InputError(
                    "no layers are alike", where="pass 'ep-dense'", hint="name them, as in layers=layers.*"
                )
            return layers
        known = dict.fromkeys(path for path in index.modules if path is not None)
        selection = entries_of(self.layers, known)
        if selection.problems:
            raise OptionError("; ".join(selection.problems), where="pass 'ep-dense'")
        return tuple(entry.name for entry in selection.entries)


def _not_met(order: Sequence[int], moves: Sequence[OrderConstraint]) -> list[Blocked]:
    """Launches that dependences keep from their place."""
    from commcc.ep.dense import Blocked

    place = {node: at for at, node in enumerate(order)}
    # One that stands earlier than it was to is no failure.
    return [
        Blocked(move.launch, Reason("held_back", move.reason.fields))
        for move in moves
        if move.node == move.launch and move.reason.code == "gathered" and place[move.node] > place[move.at]
    ]


def _report(context: PlanContext, dense: Dense, wanted: Wanted, order: Sequence[int], blocked: int) -> EpDenseReport:
    from commcc.graph.memory import MemoryModel
    from commcc.timing.predict import milliseconds
    from commcc.timing.simulate import Simulator

    index, remarks = context.index, []
    if all(layer >= len(dense.layers) for layer, _ in dense.first):
        remarks.append("no layer has dense products outside of chunked regions: nothing is launched there")
    launched = [move for move in wanted.moves if move.node == move.launch]
    report = EpDenseReport(
        layers=len(dense.layers),
        gathers_placed=sum(move.reason.code == "gathered" for move in launched),
        reductions_placed=sum(move.reason.code == "reduced" for move in launched),
        reductions_waited_late=len(wanted.moves) - len(launched),
        left_in_place=len(wanted.kept),
        blocked=blocked,
        remarks=tuple(remarks),
    )
    if context.model is None:
        return report
    simulator, memory = Simulator(index, context.model.price(index)), MemoryModel(index)
    before, after = simulator.run(), simulator.run(order)
    return replace(
        report,
        step_ms=(milliseconds(before.step_ns), milliseconds(after.step_ns)),
        exposed_ms=(milliseconds(before.exposed_ns), milliseconds(after.exposed_ns)),
        peak_bytes=(memory.live(range(len(index))).peak_bytes, memory.live(order).peak_bytes),
    )
