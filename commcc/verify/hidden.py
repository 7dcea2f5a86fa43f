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
        self._places: dict[int, Tensor] = {}
        self._elements: dict[int, list[Tensor | Opaque]] = {}
        self._views: set[int] = set()

    def found_in(self, values: Iterable[Any]) -> list[Opaque]:
        """What may hold tensors without a shape, among arguments."""
        return [value for value in opaque_in(values) if self._table.keys[value.term][0] in _MAY_HOLD]

    def reached_from(self, values: Iterable[Opaque]) -> list[Tensor]:
        """All that these may hold."""
        found: list[Tensor] = []
        for value in values:
            found.append(self._place_of(value))
            for element in self._elements.get(value.term, ()):
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
        self._views.add(value.term)
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
        self._elements.setdefault(of.term, []).append(element)
        if isinstance(element, Opaque) and of.term in self._views:
            self._views.add(element.term)
        if index < 0 or of.term in self._views:
            self._memory.link(tensor.root for tensor in self.reached_from((of,)))

    @property
    def stays(self) -> dict[int, Tensor]:
        """By term, what is there when the graph has run."""
        elements = [each for row in self._elements.values() for each in row if isinstance(each, Tensor)]
        return {tensor.content: tensor for tensor in (*self._places.values(), *elements)}

    def _place_of(self, value: Opaque) -> Tensor:
        place = self._places.get(value.term)
        if place is None:
            place = self._memory.allocate(self._table.intern(("hidden", value.term)), UNKNOWN)
            self._memory.suppose(place, "")
            self._places[value.term] = place
        return place


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
