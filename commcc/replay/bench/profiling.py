"""Times of ops and collectives as they are on this machine, as a cost file, and how well it predicts them.

::

    result = profile([("g", program)], BenchSettings(ranks=2))
    result.text                        # the file for --cost profile=...
    result.cost                        # 'laptop-cpu,fused=no,profile={},launch_us=31.2,free_us=2.1'; {}: the file
    result.graphs[0].with_profile.step.error

An op counts under its name and what it reads, a collective under its kind, the ranks of its group and the bytes that
one rank sends. Ops that nothing can be looked up for (sized by numbers, of sizes known only at run time) are left to
the device of the cost text.

Limits: ops overlap the communication of the same graph, and are slowed by it as in the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

import torch

from commcc.base.errors import InputError
from commcc.replay.bench.benchmark import Elsewhere, bench
from commcc.replay.bench.forecast import model_text, replay_model, with_settings
from commcc.replay.place import CPU, CUDA
from commcc.replay.work_folder import work_folder
from commcc.timing.cost import load_model
from commcc.timing.cost.operations import free_calls, operations
from commcc.timing.cost.profiles.measured import CollectiveKey, Pool
from commcc.timing.cost.profiles.profile_yaml import profile_text
from commcc.timing.cost.profiles.source import op_key
from commcc.timing.predict import predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commcc.base.terms import Json
    from commcc.graph.program import Program
    from commcc.replay.bench.benchmark import Benchmark, GraphTimes, Runner
    from commcc.replay.bench.forecast import Forecast
    from commcc.replay.bench.graph_set import BenchSettings
    from commcc.timing.cost.profiles.measured import Profile


@dataclass(frozen=True)
class Calibrated:
    """One graph predicted without the profile and with it. priced: share of compute time that the profile priced."""

    name: str
    without: Forecast
    with_profile: Forecast
    priced: float

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "without": self.without.to_json(),
            "with_profile": self.with_profile.to_json(),
            "priced_share": round(self.priced, 4),
        }


@dataclass(frozen=True)
class Profiled:
    """A profile and what it is good for. text: of its file. cost: the cost text that uses it, ``{}`` for the file."""

    profile: Profile
    text: str
    cost: str
    graphs: tuple[Calibrated, ...]
    benchmark: Benchmark

    def to_json(self) -> dict[str, Json]:
        how = self.benchmark.how_json()
        return {
            **{key: how[key] for key in ("ranks", "backend", "device", "emulated", "seed")},
            "notes": list(self.benchmark.notes),
            "seconds": round(self.benchmark.seconds, 3),
            "cost": self.cost,
            "ops": [
                {"op": key.op, "inputs": [f"{d}{list(s)}" for d, s in key.inputs], "us": t.ns / 1000, "count": t.count}
                for key, t in self.profile.ops.items()
            ],
            "collectives": [
                {
                    "kind": str(key.kind),
                    "group_size": key.size,
                    "input_bytes": key.input_bytes,
                    "us": t.ns / 1000,
                    "count": t.count,
                }
                for key, t in self.profile.collectives.items()
            ],
            "graphs": [graph.to_json() for graph in self.graphs],
        }


def profile(
    named: Sequence[tuple[str, Program]], settings: BenchSettings, runner: Runner | None = None
) -> Profiled | Elsewhere:
    """Run the graphs and take the times of their nodes; runner: as for :func:`bench`.

    Raises :class:`CommccError` where they cannot be run.
    """
    measured = bench(named, settings, runner)
    if isinstance(measured, Elsewhere):
        return measured
    pooled = _pooled(measured, settings)
    if not pooled.ops and not pooled.collectives:
        raise InputError("the graphs hold no op and no collective that a profile can have a time of")
    alone = "one process for " if settings.emulated else ""
    note = f"commcc profile on {alone}{measured.settings.ranks} ranks"
    # What the file says it was measured on.
    device = torch.cuda.get_device_name() if settings.device == CUDA else settings.device
    text = profile_text(pooled, device=device, note=note)
    plain = f"{model_text(settings.cost, device=settings.device)},profile={{}}"
    cost = with_settings(plain, _host_times(measured.graphs) if settings.device == CPU else {})
    return Profiled(pooled, text, cost, _calibrated(measured, text, cost), measured)


def _pooled(measured: Benchmark, settings: BenchSettings) -> Profile:
    """The times of all graphs, by what ops read and collectives send."""
    model = replay_model(settings.cost, device=settings.device)
    pool = Pool()
    for graph in measured.graphs:
        assert graph.nodes is not None, "a profile is made of recorded runs"
        index, times, count = graph.index, graph.nodes, settings.recorded * len(graph.ranks)
        for node, operation in operations(index, fused=False).items():
            which, ns = op_key(operation), times.ops.get(index.names[node])
            if which is not None and which.inputs and ns is not None:
                pool.median(which, round(ns), count)
        # What emulated collectives take was modelled, not measured.
        for node in index.launches if not settings.emulated else ():
            took = times.transfers.get(index.names[node])
            if took is not None:
                sent, _ = model.transfer_of(index, node)
                pool.collective(CollectiveKey(sent.kind, sent.size, sent.input_bytes), round(took), count=count)
    return pool.profile()


def _host_times(graphs: Sequence[GraphTimes]) -> dict[str, str]:
    """What launches and calls that move no data took, as settings of a cost text: no profile file holds them."""
    launches, free = [], []
    for graph in graphs:
        assert graph.nodes is not None
        ops, names = graph.nodes.ops, graph.index.names
        launches += [ops[names[node]] for node in graph.index.launches if names[node] in ops]
        free += [ops[names[node]] for node in free_calls(graph.index) if names[node] in ops]
    host_ns = {"launch_us": median(launches or [0.0]), "free_us": fmean(free or [0.0])}
    return {key: f"{ns / 1000:.1f}" for key, ns in host_ns.items() if ns}


def _calibrated(measured: Benchmark, text: str, cost: str) -> tuple[Calibrated, ...]:
    with work_folder("profile") as folder:
        file = folder / "profile.yaml"
        file.write_text(text, encoding="utf-8")
        model = load_model(cost.replace("{}", str(file)))
    calibrated = []
    for graph in measured.graphs:
        prediction = predict(graph.index, model)
        without, with_profile = graph.forecast(), graph.forecast(prediction)
        assert without is not None and with_profile is not None
        costs = prediction.costs
        of_all = sum(ns for node, ns in enumerate(costs.ns) if node not in graph.index.launches)
        own = sum(
            ns for node, ns in enumerate(costs.ns) if costs.priced_by[node] == 0 and node not in graph.index.launches
        )
        calibrated.append(Calibrated(graph.name, without, with_profile, own / of_all if of_all else 0.0))
    return tuple(calibrated)
