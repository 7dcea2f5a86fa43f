"""Sweeps: one pipeline on one graph with many settings of its options, and which of them no other beats.

    grid = make_grid("tag,bucket,reorder", ["bucket.max_topo_span=500,1000,none"], {})
    result = sweep(grid, Task(path, False, model, {}), jobs=2, progress=print)
    result.best.text, result.front            # 'tag,bucket{max_topo_span=500},reorder', (0, 2)

Every combination of the values is run, in the order in which they are given, each result verified as
always. A setting is on the Pareto front when no other is as good in step time, peak memory and longest
run of compute nodes between collectives, and better in one of them. The best has the shortest step; among
equals the least memory, then the shortest run, then the one that comes first.

Limits: results depend on the cost model; the number of processes changes nothing but the time it takes.
"""

from __future__ import annotations

from commcc.run.sweep.grid import Grid, Point, make_grid
from commcc.run.sweep.outcome import Outcome, SweepResult
from commcc.run.sweep.running import Task, sweep

__all__ = ["Grid", "Outcome", "Point", "SweepResult", "Task", "make_grid", "sweep"]
