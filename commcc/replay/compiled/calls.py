"""What compiled code does of communication: which node each call stands for, and whether the order is the graph's.

::

    with Recorder(carry, told) as seen:            # of one run
        compiled(inputs)
    order = match(prepared, seen.calls)
    order.kept.moved                             # ('wait_tensor_3',): before or behind another launch, wait or mm
    with Listener(order, wrap):                    # every call goes through wrap(step).call
        compiled(inputs)

Code that Inductor makes calls launches and waits as ``torch.ops._c10d_functional.NAME.default(...)``, and leaves
large ops such as matrix products whole; those are the landmarks that a launch or a wait stands before or behind. It
has no branches, so every run makes the same calls.

Limits: what Inductor fuses into kernels of its own makes no call, so that what has moved past it goes unnoticed.
Launches of one kind in one group are told apart by their order. A :class:`Listener` holds for the whole process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from commcc.base.sequences import longest_increasing
from commcc.base.text import listed
from commcc.graph.index.waits import awaited, waits_again
from commcc.graph.ops import WAIT, argument_names, collective_of, is_wait, op_name
from commcc.graph.ops.collective_table import COLLECTIVES
from commcc.graph.ops.products import WITH_ADDITION
from commcc.replay.values import extent, overlap, storage, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from commcc.base.terms import Json
    from commcc.replay.prepare import Prepared, Step


@dataclass(frozen=True)
class Call:
    """One call of an op. group: of a launch. waits_for: the number of the call whose result a wait waits for.

    again: it has been waited for before.
    """

    op: Any
    group: str | None = None
    waits_for: int | None = None
    again: bool = False

    @property
    def name(self) -> str:
        """The op, wherever it puts its result: ``all_reduce`` also for ``all_reduce_``."""
        return _plain(self.op)

    @property
    def communicates(self) -> bool:
        return self.group is not None or is_wait(self.op)


@dataclass(frozen=True)
class OrderKept:
    """Whether compiled code has launches and waits where the graph has them.

    compared: launches and waits. whole: ops that are left whole, which they are before or behind. moved: names of
    launches and waits that stand elsewhere. missing: names of those that are not called.
    """

    compared: int
    whole: int
    moved: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @staticmethod
    def of(data: Mapping[str, Any]) -> OrderKept:
        """What :meth:`to_json` made."""
        return OrderKept(data["compared"], data["whole"], tuple(data["moved"]), tuple(data["missing"]))

    @property
    def text(self) -> str:
        """What is not as in the graph, on one line."""
        told = []
        if self.moved:
            told.append(
                f"puts {len(self.moved)} of {self.compared} launches and waits elsewhere among them and the "
                f"{self.whole} ops that it leaves whole: {listed(self.moved)}"
            )
        if self.missing:
            told.append(f"leaves out {listed(self.missing)}")
        return f"Inductor {' and '.join(told) or 'keeps the order'}"

    def to_json(self) -> dict[str, Json]:
        return {
            "compared": self.compared,
            "whole": self.whole,
            "moved": list(self.moved),
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class Order:
    """Compiled calls against the graph.

    steps: the step that each communication stands for, in the order of the calls; None for one that the graph has
    not. ops: what is called there.
    """

    steps: tuple[Step | None, ...]
    ops: tuple[Any, ...]
    kept: OrderKept


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every op that is called.

    carry: calls launches and waits, as ``carry(op, *args, **kwargs)``. told: called before them, as a rank's progress.
    """

    def __init__(self, carry: Callable[..., Any], told: Callable[[str, str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._carry, self._told = carry, told
        self._flights: dict[int, list[_Flight]] = {}

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_wait(func):
            self._told("waits for", _plain(func))
            self.calls.append(self._wait(func, args[0]))
            return self._carry(func, *args, **kwargs)
        if collective_of(func) is None:
            self.calls.append(Call(func))
            return func(*args, **kwargs)
        self._told("launches", _plain(func))
        result = self._carry(func, *args, **kwargs)
        for tensor in tensors_in(result):
            self._flights.setdefault(storage(tensor), []).append(_Flight(len(self.calls), extent(tensor), tensor))
        self.calls.append(Call(func, group=_group(func, args, kwargs)))
        return result

    def _wait(self, func: Any, tensor: Any) -> Call:
        """For the newest launch into these bytes, else the newest into their storage: PyTorch waits for all of it."""
        flights = self._flights.get(storage(tensor), [])
        if not flights:
            return Call(func)
        place = extent(tensor)
        here = [flight for flight in flights if overlap(flight.place, place)]
        flight = (here or flights)[-1]
        again, flight.held = flight.held is None, None
        return Call(func, waits_for=flight.number, again=again)


@dataclass
class _Flight:
    """What a launch writes. number: of its call. place: bytes of the storage.

    held: the tensor until it has been waited for, so that no other one gets its address.
    """

    number: int
    place: range
    held: Any


def match(prepared: Prepared, calls: Sequence[Call]) -> Order:
    """Which step each call of communication stands for, and what stands elsewhere."""
    return order_of(prepared.steps, calls)


def order_of(steps: Sequence[Step], calls: Sequence[Call]) -> Order:
    """As :func:`match`, of steps in the order of a graph."""
    graph, code = _graph_marks(steps), _code_marks(calls)
    # Ops that are called as often as the graph has them are left whole.
    ours, theirs = (Counter(mark[1] for mark in marks if mark[0] == _OP) for marks in (graph, code))
    whole = {name for name, count in ours.items() if theirs[name] == count}
    here, there = _before(graph, whole), _before(code, whole)
    both = [mark for mark in there if mark in here]
    rank = {mark: place for place, mark in enumerate(here)}
    stays = {both[at] for at in longest_increasing([rank[mark] for mark in both])}
    moved = (graph[mark].name for mark in both if mark not in stays or here[mark] != there[mark])
    # Some releases leave out a wait of what has been waited for, which does nothing.
    missing = (graph[mark].name for mark in here if mark not in there and mark[0] != _AGAIN)
    return Order(
        tuple(graph.get(mark) for mark in there),
        tuple(call.op for call in calls if call.communicates),
        OrderKept(len(both), sum(ours[name] for name in whole), tuple(moved), tuple(missing)),
    )


#: A launch by its op and group, a wait by its launch, any other op by its name; then how many like it came before.
_Mark = tuple[Any, ...]
_OP = "op"
_AGAIN = "wait again"


class _Marks(Counter[_Mark]):
    """Numbers what is alike."""

    def of(self, *key: Any) -> _Mark:
        self[key] += 1
        return (*key, self[key])


def _graph_marks(steps: Sequence[Step]) -> dict[_Mark, Step]:
    """Steps by their marks, in order."""
    marks, launches = _Marks(), dict[str, _Mark]()
    marked: dict[_Mark, Step] = {}
    for step in steps:
        if step.waits:
            source = awaited(step.node)
            kind = _AGAIN if waits_again(step.node) else "wait"
            mark = marks.of(kind, launches.get(source.name) if source is not None else None)
        elif step.fact is not None:
            group = _group(step.node.target, step.args, step.kwargs)
            mark = launches[step.name] = marks.of("launch", _plain(step.node.target), group)
        else:
            mark = marks.of(_OP, _plain(step.node.target))
        marked[mark] = step
    return marked


def _code_marks(calls: Sequence[Call]) -> list[_Mark]:
    marks, launches = _Marks(), dict[int, _Mark]()
    result: list[_Mark] = []
    for number, call in enumerate(calls):
        if is_wait(call.op):
            kind = _AGAIN if call.again else "wait"
            result.append(marks.of(kind, launches.get(call.waits_for if call.waits_for is not None else -1)))
        elif call.group is not None:
            launches[number] = marks.of("launch", call.name, call.group)
            result.append(launches[number])
        else:
            result.append(marks.of(_OP, call.name))
    return result


def _before(marks: Iterable[_Mark], whole: set[str]) -> dict[_Mark, tuple[int, ...]]:
    """Launches and waits in order, with how many whole ops of each name come before them."""
    counts = dict.fromkeys(sorted(whole), 0)
    result: dict[_Mark, tuple[int, ...]] = {}
    for mark in marks:
        if mark[0] != _OP:
            result[mark] = tuple(counts.values())
        elif mark[1] in counts:
            counts[mark[1]] += 1
    return result


def _plain(op: Any) -> str:
    name = op_name(op).removesuffix("_out").rstrip("_")
    return WITH_ADDITION.get(name, name)


def _group(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    names = argument_names(op)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return str(given.get("group_name"))


class Listener:
    """Within it every communication of compiled code goes through ``wrap`` of the step that it stands for.

    The code looks its ops up when it calls them, in this one place; nothing else of PyTorch is changed, and all of it
    is as it was afterwards.
    """

    def __init__(self, order: Order, wrap: Callable[[Step], Step]) -> None:
        self._calls = [
            op if step is None else wrap(replace(step, call=op, fact=collective_of(op))).call
            for step, op in zip(order.steps, order.ops, strict=True)
        ]
        self._next: Iterator[Any] = iter(())
        # The ops of communication that this PyTorch has.
        names = [(getattr(torch.ops, home), op) for home, op in (name.split(".") for name in (*COLLECTIVES, WAIT))]
        packets = [getattr(library, op) for library, op in names if hasattr(library, op)]
        self._ops = {packet: packet.default for packet in packets}
        self._heard = {packet: partial(self._called, op) for packet, op in self._ops.items()}

    def __enter__(self) -> None:
        self._next = iter(self._calls)
        for packet, call in self._heard.items():
            packet.default = call

    def __exit__(self, *_error: object) -> None:
        for packet, op in self._ops.items():
            packet.default = op

    def _called(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        return next(self._next, op)(*args, **kwargs)
