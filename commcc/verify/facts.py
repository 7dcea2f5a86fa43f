"""What tracing one graph yields, ready to be compared with another graph: terms and names only.

::

    trace = trace_program(table, program)
    trace.steps          # every op and launch, with its term and the terms of its operands
    trace.outputs        # what the graph returns
    trace.events         # what is illegal in the graph taken alone

Limits: filled by :mod:`commcc.verify.trace`; comparing is left to :mod:`commcc.verify.compare`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commcc.verify.memory import Memory
    from commcc.verify.sizes import Size
    from commcc.verify.values import Meta, Shape, Value

OP = "op"
VIEW = "view"
CAST = "cast"
LAUNCH = "launch"


@dataclass(slots=True)
class Step:
    """One op that is not mere regrouping.

    sort: ``op``, ``view`` (opaque views cost nothing), ``cast`` or ``launch``.
    term: what it computes; plain: the same without its place among the random ops.
    arguments: keys by argument name. operands: contents of all tensors that it reads.
    made: sources that casts and launches are made of, empty for the rest.
    strides: strides of the tensors that it reads.
    """

    node: str
    path: str
    sort: str
    term: int
    plain: int
    arguments: tuple[tuple[str, tuple[Any, ...]], ...]
    operands: tuple[int, ...]
    made: tuple[int, ...] = ()
    strides: tuple[Shape | None, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Event:
    """Something illegal; ``key`` is equal for the same mistake in another graph."""

    rule: str
    node: str
    text: str
    key: tuple[Any, ...]


@dataclass(frozen=True)
class Output:
    """One leaf of what the graph returns; ``path`` is its place in the nested tuple."""

    path: str
    node: str
    value: Value | None
    constant: tuple[Any, ...] | None = None


@dataclass
class Trace:
    """All facts about one graph.

    names: first node that holds a content. sources, versions: all that occur. work: elements moved or
    converted, by source; workers: the first node that did it. random, effects: term and node, in order.
    constants: what ``get_attr`` nodes read, by name. writers: the node that made each version.
    rows: rank in each group as gathers in place take it to be, and the first that does.
    written: contents that were read after a write had put them there, and the last node that wrote there.
    """

    steps: list[Step] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    sources: set[int] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)
    work: dict[int, Size] = field(default_factory=dict)
    workers: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    random: list[tuple[int, str]] = field(default_factory=list)
    effects: list[tuple[int, str]] = field(default_factory=list)
    inputs: list[tuple[str, Value]] = field(default_factory=list)
    metas: dict[str, Meta] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    structure: str = ""
    writers: dict[int, str] = field(default_factory=dict)
    written: dict[int, str] = field(default_factory=dict)
    rows: dict[str, tuple[int, str]] = field(default_factory=dict)
    constants: dict[str, Value] = field(default_factory=dict)
    copies: int = 0
    launches: int = 0
    waits: int = 0
    nodes: int = 0
    memory: Memory | None = None
