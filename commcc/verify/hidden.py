"""Memory of values that are no tensors to the verifier, since no shape is known, though they may be or hold some.

::

    def forward(self, x, inputs):          x is written without a shape, inputs is a list
        n: "f32[4]" = inputs[0]
        add_(x, n)

Each input of that kind, and each element of a list of inputs, is in memory of its own, as inputs are. So is what an op
gives without a shape, unless it may be a view, or the op is not known: then it may be in any storage that the op was
handed. Who writes to one such value may write to all that it may hold, and what is made of it is another term once
something was written there.

Limits: inputs are taken not to share memory. An element whose place is counted from the end of a list may be any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commcc.verify.sizes import UNKNOWN
from commcc.verify.terms import Opaque, Tensor, all_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commcc.verify.memory import Memory
    from commcc.verify.terms import Terms

#: Terms of these kinds may be tensors or hold some; others are sub-graphs, constants and objects.
_MAY_HOLD = frozenset({"input", "out", "op", "call", "draw"})
_DOUBT = "which values without a shape share memory"


class Hidden:
    """What is hidden in the values of one graph, by term: a tensor that stands for all of it, and elements of lists."""

    def __init__(self, table: Terms, memory: Memory) -> None:
        self._table, self._memory = table, memory
        # By term, and by number of the call: what two calls give is the same, and in memory of its own.
        self._places: dict[tuple[int, int], Tensor] = {}
        self._elements: dict[tuple[int, int], list[Tensor | Opaque]] = {}
        self._views: set[tuple[int, int]] = set()

    def found_in(self, values: Iterable[Any]) -> list[Opaque]:
        """What may hold tensors without a shape, among arguments."""
        return [value for value in opaque_in(values) if self._table.keys[value.term][0] in _MAY_HOLD]

    def reached_from(self, values: Iterable[Opaque]) -> list[Tensor]:
        """All that these may hold."""
        found: list[Tensor] = []
        for value in values:
            found.append(self._place_of(value))
            for element in self._elements.get(_call_of(value), ()):
                found += [element] if isinstance(element, Tensor) else self.reached_from((element,))
        return list(dict.fromkeys(found))

    def all_in(self, values: Iterable[Any]) -> list[Tensor]:
        """The tensors among arguments, and all that the others may hold."""
        given = tuple(values)
        return [*(tensor for value in given for tensor in all_tensors(value)), *self.reached_from(self.found_in(given))]

    def written(self, values: Iterable[Opaque]) -> tuple[tuple[str, Any], ...]:
        """An argument that says what was written to what these may hold; empty where nothing was."""
        roots = [tensor.root for tensor in self.reached_from(values) if self._memory.at(tensor.root).writes]
        versions = tuple(dict.fromkeys(map(self._memory.version, roots)))
        for version in versions:
            self._table.undecided.setdefault(version, _DOUBT)
        return (("hidden", ("list", tuple(("value", version) for version in versions))),) if versions else ()

    def join(self, value: Opaque, tensors: Iterable[Tensor]) -> None:
        """A value may be in the storage of any of these."""
        self._views.add(_call_of(value))
        self._memory.link(tensor.root for tensor in (self._place_of(value), *tensors))

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is in memory that is hidden in some value."""
        return any(place.root == tensor.root for place in self._places.values())

    def keep(self, of: Opaque, index: int, element: Tensor | Opaque) -> None:
        """One of several values, at this place from the front; counted from the end it may be any of them.

        What is a view is in the memory of that, where every other one may be as well.
        """
        if element.base is not None:
            if isinstance(element, Opaque):
                self.join(element, (element.base,))
            return
        self._elements.setdefault(_call_of(of), []).append(element)
        if isinstance(element, Opaque) and _call_of(of) in self._views:
            self._views.add(_call_of(element))
        if index < 0 or _call_of(of) in self._views:
            self._memory.link(tensor.root for tensor in self.reached_from((of,)))

    @property
    def stays(self) -> dict[int, Tensor]:
        """By term, what is there when the graph has run; of the results of an op nobody but who gets them knows."""
        rows = [
            row
            for (term, made), row in self._elements.items()
            if self._table.keys[term][0] in ("input", "out") and made < 2
        ]
        elements = [each for row in rows for each in row if isinstance(each, Tensor)]
        return {tensor.content: tensor for tensor in (*self._places.values(), *elements)}

    def _place_of(self, value: Opaque) -> Tensor:
        place = self._places.get(_call_of(value))
        if place is None:
            place = self._memory.allocate(self._table.intern(("hidden", *_call_of(value))), UNKNOWN)
            self._memory.suppose(place, "")
            self._places[_call_of(value)] = place
        return place


def _call_of(value: Opaque) -> tuple[int, int]:
    return value.term, value.made


def opaque_in(values: Iterable[Any]) -> list[Opaque]:
    """Values that are neither tensors nor sizes, also those inside of tuples and dicts."""
    found: list[Opaque] = []
    for value in values:
        if type(value) is Opaque:
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(opaque_in(value))
        elif isinstance(value, dict):
            found.extend(opaque_in(value.values()))
    return found
