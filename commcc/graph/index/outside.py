"""What the rest of a step does to a graph: collectives that it begins, memory that it holds.

    Outside(ends_ns={"reduce_scatter_tensor_31": 250_000})      # this input is in flight for 250 us
    ends_given({"reduce_scatter*": 250, "u*": 512}, names)      # the same from hints, by names of inputs

Nothing of it decides what may be done to the graph; it changes estimates only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from commcc.graph.index.graph import Estimates

_NS_PER_US = 1000
#: A name, or the part of a pattern ahead of the first wildcard; patterns with a shorter one (``u*``) are for symbols.
_HEAD = re.compile(r"[^*?\[]{3,}|[^*?\[]+\Z")


@dataclass(frozen=True)
class Outside:
    """ends_ns: when a collective that another graph launched has ended, from the start of this graph, by the name of
    the input. buffers: of inputs that another graph made a number, the same for those in one buffer, and its bytes.
    freed: inputs that nobody else holds, so that they end with their last use. resident_bytes: what is live throughout
    for other graphs. sizes: numbers that stand for symbols in the rest of the step.
    """

    ends_ns: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    freed: frozenset[str] = frozenset()
    resident_bytes: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)


def ends_given(hints: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """For inputs in flight the ns that hints say in microseconds; the first pattern that fits decides."""
    patterns = [(pattern, us) for pattern, us in hints.items() if _HEAD.match(pattern)]
    times = ((name, next((us for pattern, us in patterns if fnmatchcase(name, pattern)), None)) for name in names)
    return {name: us * _NS_PER_US for name, us in times if us is not None}


def in_step(
    estimates: Estimates,
    inputs: Mapping[str, int],
    in_flight: frozenset[int],
    hints: Mapping[str, int],
    outside: Outside | None,
) -> Estimates:
    """Estimates of a graph in its step. inputs: node numbers by name; in_flight: those in flight at the start."""
    given = ends_given(hints, (name for name, i in inputs.items() if i in in_flight))
    if outside is None:
        return replace(estimates, arrivals={inputs[name]: ns for name, ns in given.items()}) if given else estimates
    first: dict[int, int] = {}
    joined: dict[int, int] = {}
    size = list(estimates.buffer_bytes)
    for name, (number, bytes_) in outside.buffers.items():
        own = estimates.buffers[inputs[name]] if name in inputs else ()
        if len(own) == 1:
            joined[own[0]] = first.setdefault(number, own[0])
            size[joined[own[0]]] = bytes_
    ends = {**outside.ends_ns, **given}
    return replace(
        estimates,
        buffers=tuple(tuple(joined.get(b, b) for b in row) for row in estimates.buffers),
        buffer_bytes=tuple(size),
        arrivals={inputs[name]: ns for name, ns in ends.items() if inputs.get(name) in in_flight},
        freed=frozenset(inputs[name] for name in outside.freed if name in inputs),
        resident_bytes=outside.resident_bytes,
    )
