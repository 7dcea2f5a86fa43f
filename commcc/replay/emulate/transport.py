"""The steps of a program with their collectives on lanes instead of process groups.

::

    transport = Transport(prepared, layout, model, lanes)
    transport.prepared                   # to be run as rank 0
    place.synchronize()
    transport.settle()                   # {'all_gather_3': Took(modelled_ns=250_000, took_ns=250_000), ...}

A launch returns its result at once; a wait for it, or for a view of it, waits for all that is on its way to that
storage. A collective that returns only when it is done is launched and waited for. A last step waits for what nobody
has waited for, so that a run ends when all of its communication has.

Limits: one process, which is rank 0 and whose peers send what it sends (:mod:`commcc.replay.emulate.fills`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from commcc.graph.ops import collective_of
from commcc.replay.emulate.crossing import Took
from commcc.replay.emulate.cuda_lanes import CudaLanes
from commcc.replay.emulate.durations import Fares
from commcc.replay.emulate.fills import Landing, Peers, arriving
from commcc.replay.emulate.lanes import CpuLanes, Pace
from commcc.replay.place import CUDA
from commcc.replay.prepare import Step
from commcc.replay.values import storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from commcc.replay.bench.graph_set import GraphSet
    from commcc.replay.emulate.lanes import Lane, Lanes
    from commcc.replay.layout import Layout
    from commcc.replay.place import Place
    from commcc.replay.prepare import Prepared
    from commcc.timing.cost import CostModel

_RANK = 0
_END = "end_of_communication"


class _Done(NamedTuple):
    """A launch of the run."""

    name: str
    lane: Lane
    ticket: Any
    ns: int


@dataclass(frozen=True)
class _Flight:
    """A launch on its way. landing: keeps what is sent and received until it has been waited for."""

    lane: Lane
    ticket: Any
    landing: Landing

    def wait(self) -> None:
        self.lane.wait(self.ticket)


@dataclass
class Transport:
    """Collectives of one program; lanes may be shared with others. real: the program with its own collectives."""

    real: Prepared
    layout: Layout
    model: CostModel
    lanes: Lanes
    _flights: dict[int, list[_Flight]] = field(default_factory=dict)
    _run: list[_Done] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fares = Fares(self.real.index, self.model)
        node = fx.Graph().create_node("call_function", self._join, name=_END)
        self.end = Step(node, self._join, (), {}, None, (node,), waits=True)
        steps = (*map(self.step, self.real.steps), self.end)
        self.prepared = replace(self.real, steps=steps, nodes=(*self.real.nodes, node))

    def settle(self) -> dict[str, Took]:
        """What each collective of the last run took, by node; the place must have been synchronized."""
        found = {name: Took(ns, lane.took_ns(ticket)) for name, lane, ticket, ns in self._run}
        self._run.clear()
        return found

    def step(self, step: Step) -> Step:
        """A step as it is, or on a lane if it communicates."""
        if step.fact is not None:
            return replace(step, call=self._launching(step))
        return replace(step, call=self._wait) if step.waits else step

    def at_once(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """What a launch or a wait gives back, with everything there at once and no lane."""
        fact = collective_of(op)
        if fact is None:
            return args[0]
        call = dict(zip(fact.arguments, args, strict=False)) | kwargs
        landing = arriving(fact, call, self._peers(call["group_name"]))
        landing.fill()
        return landing.results if fact.coalesced else landing.results[0]

    def _join(self) -> None:
        """Wait for what is still on its way."""
        flights = [flight for each in self._flights.values() for flight in each]
        self._flights.clear()
        for flight in flights:
            flight.wait()

    def _launching(self, step: Step) -> Callable[..., Any]:
        fact = step.fact
        assert fact is not None
        index = self.real.index
        node = index.position[step.name]
        lane = self.lanes[self.fares.lane(node)]
        peers, pace = self._peers(index.launches[node].group), Pace()
        fares, run, name = self.fares, self._run, step.name

        def launch(*args: Any, **kwargs: Any) -> Any:
            landing = arriving(fact, dict(zip(fact.arguments, args, strict=False)) | kwargs, peers)
            ns = fares.ns(node, *landing.nbytes)
            flight = _Flight(lane, lane.launch(landing.fill, ns, pace), landing)
            run.append(_Done(name, lane, flight.ticket, ns))
            if fact.asynchronous:
                self._take_off(flight)
            else:
                flight.wait()
            return landing.results if fact.coalesced else landing.results[0]

        return launch

    def _take_off(self, flight: _Flight) -> None:
        for result in flight.landing.results:
            self._flights.setdefault(storage(result), []).append(flight)

    def _wait(self, tensor: Any) -> Any:
        """Wait for what comes into this storage; for anything else it does nothing."""
        for flight in self._flights.pop(storage(tensor), ()) if isinstance(tensor, torch.Tensor) else ():
            flight.wait()
        return tensor

    def _peers(self, group: str) -> Peers:
        part = self.layout.mine(group, _RANK)
        return Peers(len(part), part.index(_RANK))


def make_lanes(place: Place) -> Lanes:
    """Lanes beside what runs at this place."""
    return CudaLanes() if place.name == CUDA else CpuLanes()


def make_transports(graphs: GraphSet, place: Place, model: CostModel) -> list[Transport]:
    """One for each graph, with lanes in common."""
    lanes = make_lanes(place)
    return [Transport(prepared, graphs.layout, model, lanes) for prepared in graphs.prepared]
