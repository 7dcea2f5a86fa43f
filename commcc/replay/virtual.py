"""Runs a program on virtual ranks: one process, all ranks node by node, every collective computed for all.

::

    run = VirtualRun(prepared, layout)
    results = run(inputs)                # inputs by name, for each rank; results[rank].outputs

    received(fact, calls)                # of one launch: what each rank receives from what each of them sends

What a collective launches is not there before its wait: its result holds poison until then (not-a-number, the largest
integer), and so does a copy to the host that does not block, until the host next waits. A value that is used too
early so shows as a difference, and the first such use is kept in ``early``. What is sent must stay unchanged until
the wait; where it does not, the rank gets what is there at the wait, and ``early`` says so. Values are freed with
their last use. Each rank has its own random numbers. A sum is made rank after rank in the dtype of the tensors, so
that merging launches changes no bit.

Where sub-graphs of a higher-order op communicate, each rank runs that op in a thread, one at a time, and they meet in
its launches (:mod:`commcc.replay.meeting`).

Limits: ranks run one after the other, so nothing here is timed. A launch that is neither waited for nor
returned stays poison.
``premul_sum`` and reductions of float8 are not there (nor are they on gloo).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import map_arg

from commcc.base.errors import CommccError
from commcc.base.terms import Kind
from commcc.graph.ops import collective_of, op_name
from commcc.replay.meeting import Meeting, StuckError
from commcc.replay.prepare import Step
from commcc.replay.values import (
    RankResults,
    bits_equal,
    extent,
    leaves,
    overlap,
    poison,
    quiet_cpu,
    storage,
    tensors_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from commcc.graph.ops.collective_table import CollectiveOp
    from commcc.replay.layout import Layout
    from commcc.replay.meeting import Part
    from commcc.replay.prepare import Prepared

Tensor = torch.Tensor
#: Inputs of one rank by name, and the arguments of one rank's launch.
Inputs = dict[str, Any]
Call = dict[str, Any]
#: Early uses that are kept; the first ones tell the story.
_KEPT = 20
_PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


class StepError(CommccError):
    """A node that failed when it was run."""

    def __init__(self, node: str, op: str, reason: str) -> None:
        self.node = node
        super().__init__(f"node '{node}' ({op}) fails: {reason}")

    @staticmethod
    def of(step: Step, error: Exception) -> StepError:
        """What an op raised, in one line."""
        reason = str(error).strip().split("\n")[0][:300] or type(error).__name__
        return StepError(step.name, op_name(step.node.target), reason)


class DisagreementError(ValueError):
    """Ranks of one group whose launches do not fit together."""


def rank_seed(seed: int, rank: int) -> int:
    """What the random numbers of one rank begin with."""
    return seed * 4099 + rank


@dataclass(eq=False)
class _Flight:
    """One tensor of a launch that has not been waited for.

    calls: each rank's arguments, or those of the one rank whose sub-graph launched it. which: the tensor, of a
    coalesced launch. held: buffers of each of them. real: what they will hold. versions: how often what the first
    sends had been written, None when it is the buffer itself. single: whether it is one rank's.
    """

    step: Step
    calls: list[dict[str, Any]]
    which: int
    held: list[torch.Tensor]
    real: list[torch.Tensor]
    versions: list[int] | None
    single: bool = False

    @property
    def overwritten(self) -> bool:
        """Whether what is sent has been written since, perhaps with the same values."""
        return self.versions is not None and [tensor._version for tensor in self.sent()] != self.versions

    def writes(self, home: int, place: range) -> bool:
        """Whether it comes into some of these bytes of a storage."""
        return any(storage(buffer) == home and overlap(extent(buffer), place) for buffer in self.held)

    def sent(self) -> list[torch.Tensor]:
        """What rank 0 sends."""
        fact = self.step.fact
        return tensors_in(self.calls[0][fact.tensor]) if fact is not None else []


@dataclass
class VirtualRun:
    """One run of one program; use it once.

    blocking: copies to the host that are to be there at once, although they do not block.
    early: what was read before it was there, one line each. unwaited: launches nobody waited for. returned: those
    of them that the program returns, for another graph to wait for; what they brought is compared.
    """

    prepared: Prepared
    layout: Layout
    seed: int = 0
    blocking: frozenset[str] = frozenset()
    watch: Callable[[Step, list[Any]], None] | None = None
    early: list[str] = field(default_factory=list)
    unwaited: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._env: dict[fx.Node, list[Any]] = {}
        # By storage, in order: PyTorch waits for all that comes into one.
        self._flights: dict[int, list[_Flight]] = {}
        self._copies: list[tuple[Step, list[torch.Tensor], list[torch.Tensor]]] = []
        self._meeting, self._drawing = Meeting(self._exchanged_inside), False
        self._random = [torch.Generator().manual_seed(rank_seed(self.seed, rank)).get_state() for rank in self._ranks]

    @property
    def _ranks(self) -> range:
        return range(self.layout.world)

    def __call__(self, inputs: Sequence[Inputs]) -> list[RankResults]:
        """Run on these inputs, which are written where the program writes them. Raises :class:`StepError`."""
        with quiet_cpu(), torch.random.fork_rng(devices=[]):
            for node in self.prepared.inputs:
                self._env[node] = [given[node.name] for given in inputs]
            views = [self._seen_by(rank) for rank in self._ranks]
            for node in self.prepared.constants:
                self._env[node] = [view.constant(node) for view in views]
            for step in self.prepared.steps:
                self._run(step)
            self.returned = self._land_returned()
            self.unwaited = list(dict.fromkeys(flight.step.name for each in self._flights.values() for flight in each))
            written = sorted(self.prepared.written)
            return [
                RankResults(leaves(self._resolve(self.prepared.output, rank)), {name: given[name] for name in written})
                for rank, given in enumerate(inputs)
            ]

    def _land_returned(self) -> list[str]:
        """Whoever takes what is returned in flight waits for it; the names of such launches."""
        flights = self._coming([self._resolve(self.prepared.output, rank) for rank in self._ranks])
        for flight in flights:
            self._arrive(flight)
        return list(dict.fromkeys(flight.step.name for flight in flights))

    def _coming(self, values: Any) -> list[_Flight]:
        """What is on its way to the storages of these values."""
        keys = dict.fromkeys(map(storage, tensors_in(values)))
        return list(dict.fromkeys(flight for key in keys for flight in self._flights.get(key, ())))

    def _arrive(self, flight: _Flight, only: int | None = None) -> None:
        """Write what was received; only: to this storage, where one rank alone waits."""
        for buffer, value in zip(flight.held, flight.real, strict=True):
            key = storage(buffer)
            coming = self._flights.get(key, [])
            if only in (None, key) and flight in coming:
                buffer.copy_(value)
                coming.remove(flight)
                if not coming:
                    del self._flights[key]

    def _run(self, step: Step) -> None:
        try:
            results = self._evaluate(step)
        except CommccError:
            raise
        except Exception as error:
            raise StepError.of(step, error) from error
        self._env[step.node] = results
        if self.watch is not None:
            self.watch(step, results)
        for node in step.frees:
            self._env.pop(node, None)

    def _resolve(self, argument: Any, rank: int) -> Any:
        return map_arg(argument, lambda node: self._env[node][rank])

    def _evaluate(self, step: Step) -> list[Any]:
        calls = [self._resolve((step.args, step.kwargs), rank) for rank in self._ranks]
        if step.waits:
            return self._wait(step, [(*args, *kwargs.values())[0] for args, kwargs in calls])
        if not (step.looks or step.asks):
            self._note_early(step, calls[0])
        if step.fact is not None:
            return self._launch(step, calls)
        if step.host_wait:
            for _, held, real in self._copies:
                for buffer, value in zip(held, real, strict=True):
                    buffer.copy_(value)
            self._copies.clear()
        runs = [partial(self._call, step, rank, *call) for rank, call in zip(self._ranks, calls, strict=True)]
        results = self._meet(step, runs) if step.meets else [call() for call in runs]
        if step.looks and (self._flights or self._copies):
            shared = set(map(storage, tensors_in(results[0]))) <= set(map(storage, tensors_in(calls[0])))
            if not shared:  # a reshape that had to copy
                self._note_early(step, calls[0])
        if step.host_copy and step.name not in self.blocking:
            return self._copy(step, results)
        return results

    def _call(self, step: Step, rank: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not step.random:
            return step.call(*args, **kwargs)
        torch.set_rng_state(self._random[rank])
        result = step.call(*args, **kwargs)
        self._random[rank] = torch.get_rng_state()
        return result

    def _note_early(self, step: Step, call: Any) -> None:
        """Keep the first uses of what is still on its way; those of rank 0 stand for all."""
        if not self._flights and not self._copies:
            return
        coming = {storage(held[0]): copy.name for copy, held, _ in self._copies}
        said: dict[str, None] = {}
        for tensor in tensors_in(call):
            key, place = storage(tensor), extent(tensor)
            flights = [flight for flight in self._flights.get(key, ()) if flight.writes(key, place)]
            if flights:
                said[f"'{step.name}' uses what '{flights[-1].step.name}' brings before a wait"] = None
            elif key in coming:
                said[f"'{step.name}' uses the copy '{coming[key]}' before the host has waited for it"] = None
        for text in said:
            self._say(text)

    def _say(self, text: str) -> None:
        if len(self.early) < _KEPT:
            self.early.append(text)

    def _launch(self, step: Step, calls: list[Any]) -> list[Any]:
        fact = step.fact
        assert fact is not None
        bound = [dict(zip(fact.arguments, args, strict=False)) | kwargs for args, kwargs in calls]
        real = self._exchange(step, bound)
        if not fact.asynchronous:
            return [tensors[0] for tensors in real]
        return self._begin(step, bound, real)

    def _begin(self, step: Step, calls: list[Call], real: list[list[Tensor]], *, single: bool = False) -> list[Any]:
        """Put what ranks will receive on its way; what the launch returns to each of them."""
        fact = step.fact
        assert fact is not None
        if fact.out is None:
            held = [[torch.empty_like(tensor) for tensor in tensors] for tensors in real]
        else:
            held = [tensors_in(call[fact.out]) for call in calls]
        versions = None if fact.out is not None else [t._version for t in tensors_in(calls[0][fact.tensor])]
        for which in range(len(real[0])):
            buffers, values = [tensors[which] for tensors in held], [tensors[which] for tensors in real]
            flight = _Flight(step, calls, which, buffers, values, versions, single)
            for buffer, value in zip(buffers, values, strict=True):
                poison(buffer, value)
                self._flights.setdefault(storage(buffer), []).append(flight)
        return [tensors if fact.coalesced else tensors[0] for tensors in held]

    def _exchange(self, step: Step, calls: list[dict[str, Any]]) -> list[list[torch.Tensor]]:
        """What each rank receives, group by group."""
        fact = step.fact
        assert fact is not None
        results: list[list[torch.Tensor]] = [[] for _ in self._ranks]
        for part in self.layout.parts[calls[0]["group_name"]]:
            try:
                results_of_part = received(fact, [calls[rank] for rank in part])
            except DisagreementError as error:
                raise StepError(step.name, op_name(step.node.target), f"ranks {list(part)}: {error}") from error
            for rank, tensors in zip(part, results_of_part, strict=True):
                results[rank] = tensors
        return results

    def _wait(self, step: Step, held: list[Any]) -> list[Any]:
        """Values arrive. Waiting for a view waits for its launch; for anything else it does nothing."""
        for flight in self._coming(held):
            if flight.overwritten and flight.single:
                # What the others sent is not known any more, so that it stays poison.
                self._say_written(flight, step.name)
                continue
            if flight.overwritten:
                # A late sender sends what is there now.
                fresh = [tensors[flight.which] for tensors in self._exchange(flight.step, flight.calls)]
                if not all(map(bits_equal, fresh, flight.real)):
                    self._say_written(flight, step.name)
                    flight.real = fresh
            self._arrive(flight)
        return held

    def _say_written(self, flight: _Flight, wait: str) -> None:
        self._say(f"what '{flight.step.name}' sends is written before '{wait}' waits for it")

    def _copy(self, step: Step, real: list[Any]) -> list[Any]:
        """A copy to the host that does not block: it is there once the host has waited for the device."""
        held = [torch.empty_like(tensor) for tensor in real]
        for buffer, value in zip(held, real, strict=True):
            poison(buffer, value)
        self._copies.append((step, held, real))
        return held

    # Sub-graphs that communicate

    def _seen_by(self, rank: int) -> Prepared:
        """The program with sub-graphs whose launches are those of one rank."""
        if not any(step.meets for step in self.prepared.steps):
            return self.prepared
        return replace(self.prepared, network=partial(self._inside, rank))

    def _meet(self, step: Step, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of a step on each rank, which goes on until it launches something."""
        self._meeting, self._drawing = Meeting(self._exchanged_inside), step.random
        try:
            return self._meeting.run(calls)
        except (StuckError, DisagreementError) as error:
            raise StepError(step.name, op_name(step.node.target), f"in a sub-graph, {error}") from error

    def _inside(self, rank: int, node: fx.Node, call: Callable[..., Any]) -> Callable[..., Any]:
        """What a launch or a wait of a sub-graph calls on one rank."""
        fact = collective_of(node.target)
        if fact is None:
            return partial(self._wait_inside, node.name)
        step = Step(node, call, (), {}, fact, ())

        def launch(*args: Any, **kwargs: Any) -> Any:
            bound = dict(zip(fact.arguments, args, strict=False)) | kwargs
            part = self.layout.mine(bound["group_name"], rank)
            if self._drawing:
                self._random[rank] = torch.get_rng_state()
            real = self._meeting.arrive(rank, part, (fact, bound))
            if self._drawing:
                torch.set_rng_state(self._random[rank])
            return self._begin(step, [bound], [real], single=True)[0] if fact.asynchronous else real[0]

        return launch

    def _exchanged_inside(self, part: Part, arrivals: Sequence[tuple[CollectiveOp, Call]]) -> list[list[Tensor]]:
        """What ranks receive that have met in launches of sub-graphs, which may be different nodes."""
        if len({(fact.kind, call.get("reduce_op"), call["group_name"]) for fact, call in arrivals}) > 1:
            raise DisagreementError(f"ranks {list(part)} launch different collectives")
        return received(arrivals[0][0], [call for _, call in arrivals])

    def _wait_inside(self, name: str, held: Any) -> Any:
        for flight in self._coming(held):
            if flight.overwritten:
                self._say_written(flight, name)
            else:
                self._arrive(flight, storage(held))
        return held


# What ranks receive. Plain tensors, no process groups


def received(fact: CollectiveOp, calls: Sequence[Call]) -> list[list[Tensor]]:
    """For each rank the tensors that it receives: one, or one for each of a coalesced launch's inputs."""
    sent = [call[fact.tensor] if fact.coalesced else [call[fact.tensor]] for call in calls]
    if len({len(tensors) for tensors in sent}) > 1:
        raise DisagreementError("ranks send different numbers of tensors")
    size = calls[0].get("group_size", len(calls))
    if size != len(calls):
        raise DisagreementError(f"the launch is for {size} ranks, its group has {len(calls)}")
    columns = [_one(fact, calls, list(tensors)) for tensors in zip(*sent, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _one(fact: CollectiveOp, calls: Sequence[Call], tensors: list[Tensor]) -> list[Tensor]:
    """Results of one tensor of each rank."""
    if "gather_dim" in fact.arguments:
        # DTensor's change of the sharded dimension: everybody's piece along one, joined along the other.
        pieces = [tensor.chunk(len(tensors), calls[0]["shard_dim"]) for tensor in tensors]
        return [torch.cat([piece[rank] for piece in pieces], calls[0]["gather_dim"]) for rank in range(len(tensors))]
    if fact.kind is Kind.ALL_TO_ALL:
        return _exchanged(tensors, calls)
    shapes = {(tuple(tensor.shape), tensor.dtype) for tensor in tensors}
    if len(shapes) > 1:
        raise DisagreementError(
            f"ranks send different shapes: {' and '.join(str(list(s)) for s, _ in sorted(shapes, key=str))}"
        )
    if fact.kind is Kind.ALL_GATHER:
        whole = torch.cat([tensor.reshape(1) if not tensor.dim() else tensor for tensor in tensors])
        return [whole, *(whole.clone() for _ in tensors[1:])]
    if fact.kind is Kind.BROADCAST:
        return [tensors[calls[0]["src"]].clone() for _ in tensors]
    whole = _reduced(calls[0]["reduce_op"], tensors)
    if fact.kind is Kind.ALL_REDUCE:
        return [whole, *(whole.clone() for _ in tensors[1:])]
    if whole.shape[0] % len(tensors):
        raise DisagreementError(f"{whole.shape[0]} rows cannot be scattered to {len(tensors)} ranks")
    return [part.clone(memory_format=torch.contiguous_format) for part in whole.chunk(len(tensors))]


def _reduced(operation: str, tensors: list[Tensor]) -> Tensor:
    combine = _PAIRWISE.get(operation.lower())
    if combine is None:
        raise DisagreementError(f"reduction '{operation}' cannot be replayed")
    whole = tensors[0].clone(memory_format=torch.contiguous_format)
    for tensor in tensors[1:]:
        whole = combine(whole, tensor)
    return whole / len(tensors) if operation.lower() == "avg" else whole


def _exchanged(tensors: list[Tensor], calls: Sequence[Call]) -> list[Tensor]:
    """All-to-all along the first dimension; empty split sizes stand for equal shares."""
    ranks = range(len(tensors))
    leaving = [
        splits(call["input_split_sizes"], tensor.shape[0], len(tensors))
        for call, tensor in zip(calls, tensors, strict=True)
    ]
    pieces = [torch.split(tensor, sizes) for tensor, sizes in zip(tensors, leaving, strict=True)]
    results = []
    for rank in ranks:
        wanted = list(calls[rank]["output_split_sizes"])
        for other in ranks:
            if wanted and leaving[other][rank] != wanted[other]:
                raise DisagreementError(
                    f"number {other} of the group sends {leaving[other][rank]} rows to number {rank}, which expects"
                    f" {wanted[other]}"
                )
        results.append(torch.cat([pieces[other][rank] for other in ranks]))
    return results


def splits(given: Sequence[int], rows: int, ranks: int) -> list[int]:
    """Rows for each rank of an all-to-all: as given, or in equal shares. Raises :class:`DisagreementError`."""
    if not given:
        if rows % ranks:
            raise DisagreementError(f"{rows} rows cannot be split among {ranks} ranks")
        return [rows // ranks] * ranks
    if sum(given) != rows or len(given) != ranks or min(given) < 0:
        raise DisagreementError(f"split sizes {list(given)} are not those of {rows} rows for {ranks} ranks")
    return list(given)
