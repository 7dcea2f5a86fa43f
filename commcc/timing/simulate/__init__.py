"""Simulates a step: an index and the cost of its nodes become a timeline.

    simulator = Simulator(index, costs)
    timeline = simulator.run()              # graph order; simulator.run(order) for any other legal one
    timeline.step_ns, timeline.exposed_ns, timeline.spans[launch].start
    lower_bound(index, costs).ns            # no legal order is faster

One compute stream runs the nodes in order. Each other stream (one for each process group, or several groups
that share a link) runs its collectives in order of launch: one starts when the compute stream has
launched it and the stream is free. A wait holds the compute stream until its collective has ended.
"""

from __future__ import annotations

from commcc.timing.simulate.bound import Bound, lower_bound
from commcc.timing.simulate.simulator import Simulator
from commcc.timing.simulate.timeline import Span, Timeline

__all__ = ["Bound", "Simulator", "Span", "Timeline", "lower_bound"]
