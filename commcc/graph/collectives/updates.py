"""Whether a reduction's result updates graph inputs: parameters and moments, with the optimizer in the graph.

    gradient -> reduce_scatter -> wait -> mul -> add_(moment, .)                      nothing is computed behind it
    gradient -> all_reduce -> wait -> lerp_(moment, .) -> mm, mm, mm -> add_(parameter, .)          Muon
    gradient -> all_reduce -> wait -> sub_(parameter, .) -> cast -> gather -> mm      a second step in the same graph

In the two last ones compute comes behind. It is a gradient all the same where what it updates has as many elements and
is made of its own old value, and where all that is behind leads only to updated inputs. An activation leads to an
output, or to a gradient through compute; a mean of activations, as of a batch norm, does both. What is gathered in the
last one is the parameter's new value.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING

from commcc.graph.collectives.pieces import REDUCTIONS
from commcc.graph.ops.constants import OVERWRITES
from commcc.graph.ops.views import PASSING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from commcc.graph.index import GraphIndex

#: How many nodes are looked at behind a collective, or before an update, nearest first: an update is near.
_NEAR = 400


def updates_input(index: GraphIndex, starts: Sequence[int]) -> bool:
    """Whether values, or parts of them, lead through no compute node to what is written over a graph input of as many
    elements. A single number is no gradient but a norm of them.
    """
    largest = max((_elements(index, node) for node in starts), default=0)
    queue, seen = deque(starts), set(starts)
    while queue and len(seen) < _NEAR:
        node = queue.popleft()
        for target in index.writes.get(node, ()):
            reads = [_elements(index, read) for read in index.data_preds[node] if read in seen and read != target]
            given = _inputs_at(index, target)
            if given and 1 < (count := _elements(index, target)) <= largest and count in reads:
                return True
        fresh = [user for user in index.users[node] if user not in seen and not index.compute[user]]
        seen.update(fresh)
        queue.extend(fresh)
    return False


class Updates:
    """new_values: the nodes that hold a new value of a graph input, made of the old one, with that input."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self.new_values = dict(_new_values(index))
        self._leads_out = self._reaching(index.compute) if self.new_values else []

    def _reaching(self, compute: Sequence[bool]) -> list[bool]:
        """For every node, whether it leads to an output, other than by an updated input, or by a single number that no
        compute node comes before: a norm of gradients.
        """
        index = self.index
        computed, told = [False] * len(index), [False] * len(index)
        computed[-1] = told[-1] = True
        for node in range(len(index) - 2, -1, -1):
            users = [user for user in index.users[node] if user not in self.new_values]
            computed[node] = any(computed[user] for user in users)
            followed = computed if compute[node] else told
            told[node] = _elements(index, node) != 1 and any(followed[user] for user in users)
        return told

    @cached_property
    def _ends(self) -> list[tuple[bool, bool]]:
        """For every node, whether it leads to what is written over a graph input, and whether to anything else: an
        output, the host, a collective that reduces nothing. A single number that is told besides is a norm, and behind
        a write is the input's new value, which the caller has in any case.
        """
        index = self.index
        sent = {node for node, launch in index.launches.items() if launch.kind not in REDUCTIONS}
        ends = [(False, False)] * len(index)
        for node in range(len(index) - 1, -1, -1):
            written = [bool(_inputs_at(index, target)) for target in index.writes.get(node, ())]
            if written and all(written):
                ends[node] = True, False
                continue
            behind = [ends[user] for user in index.users[node]]
            told = node == len(index) - 1 or node in sent or node in index.host_syncs or any(end[1] for end in behind)
            ends[node] = any(written) or any(end[0] for end in behind), told and _elements(index, node) != 1
        return ends

    def are_all_behind(self, starts: Sequence[int]) -> bool:
        """Whether all that is made of values is written over graph inputs, as what the norm of a parameter scales."""
        return bool(starts) and all(self._ends[node] == (True, False) for node in starts)

    def are_made_of(self, starts: Sequence[int]) -> bool:
        """Whether values update inputs of as many elements, and lead elsewhere only by way of updated inputs."""
        if not self.new_values or any(self._leads_out[node] for node in starts):
            return False
        index = self.index
        queue, seen = deque(starts), set(starts)
        while queue and len(seen) < _NEAR:
            node = queue.popleft()
            for user in index.users[node]:
                as_many = 1 < _elements(index, node) == _elements(index, user)
                if as_many and user in self.new_values:
                    return True
                if user not in seen and (as_many or index.ops[user] in PASSING) and not index.compute[user]:
                    seen.add(user)
                    queue.append(user)
        return False


def _new_values(index: GraphIndex) -> Iterator[tuple[int, int]]:
    """Nodes that hold a new value of a graph input, and the input: ops in place on it, and all that lies, by ops that
    do not compute, between it and what is copied over it.
    """
    for node, targets in index.writes.items():
        for given in {storage for target in targets for storage in _inputs_at(index, target)}:
            made = {node}
            if index.ops[node] in OVERWRITES:
                before = _near(index, [read for read in index.data_preds[node] if read != given], index.data_preds)
                made = _near(index, [user for user in index.users[given] if user in before], index.users, before)
            yield from ((new, given) for new in made)


def _near(
    index: GraphIndex, starts: Sequence[int], neighbours: Sequence[Sequence[int]], within: set[int] | None = None
) -> set[int]:
    """``starts``, and what ops that neither compute nor communicate lead to from there."""
    stops = index.launches.keys() | index.wait_of.keys()
    queue = deque(node for node in starts if not index.compute[node])
    seen = set(queue)
    while queue and len(seen) < _NEAR:
        for node in neighbours[queue.popleft()]:
            if (
                node not in seen
                and not index.compute[node]
                and node not in stops
                and (within is None or node in within)
            ):
                seen.add(node)
                queue.append(node)
    return seen


def _inputs_at(index: GraphIndex, target: int) -> list[int]:
    """Graph inputs in whose memory a node's result lives."""
    return [storage for storage in index.storages[target] if index.ops[storage] == "placeholder"]


def _elements(index: GraphIndex, node: int) -> int:
    tensor = index.tensors[node]
    return 0 if tensor is None else tensor.numel or 0
