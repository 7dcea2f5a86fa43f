"""Where a difference between two runs comes from: sums in another order, and the first node whose value is another.

::

    explain = Explainer(pair, real=True)
    explain("output[3]").reasons
    # ('reduce_scatter_bucket_0 (reduce_scatter_tensor of [4096], merged from reduce_scatter_tensor_3, ...)',)
    first_difference(pair, seed)
    # "'mm_7' (aten.mm) is the first that differs, on rank 1; its operands are the same"

A difference of rounding is excused only by a reason. For an output these are the nodes that it depends on, which
add numbers up, which BEFORE has not under that name, and of whose kind and operands' shapes AFTER has more, such as
``mm_7_chunk_0 (mm of [30, 32] and [32, 64])``. A reduction over other parts is a reason on real ranks only: backends
choose the order of its sum by its size. Virtual ranks add in the order of ranks, whatever is merged.

For the first difference both programs run once more on virtual ranks, and a digest of every value is kept.

Limits: sums whose operands changed but not their shapes, and a sum in place of an equal one, are no reasons. Nodes
are told by name; what a rewrite renamed or made new is seen where it meets an old name again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from commcc.base.terms import Kind
from commcc.graph.ops import op_name
from commcc.graph.ops.arithmetic import SUMS
from commcc.replay.numeric.pair import producers
from commcc.replay.numeric.verdict import About
from commcc.replay.values import is_freed, leaves, tensors_in
from commcc.replay.virtual import StepError, VirtualRun
from commcc.serialization.attributes import element_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commcc.graph.index import GraphIndex
    from commcc.replay.numeric.pair import Pair
    from commcc.replay.prepare import Prepared, Step

#: The largest difference that another order of sums explains, of the largest number of a value: a few roundings
#: of 2^-53, 2^-24, 2^-11 and 2^-8. Sums in chunks were seen to differ by 1e-15, 1.2e-6 and, in bfloat16, 0.006.
TOLERANCES = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 4e-3,
    "bfloat16": 2e-2,
}
#: Reasons that are kept for one value, and producers that are shown for it.
_KEPT, _SHOWN = 3, 6


class Explainer:
    """What is known about a value by its name: node, reasons, producers."""

    def __init__(self, pair: Pair, real: bool) -> None:
        self._pair = pair
        self._reasons = Reasons(pair.old.index, pair.new.index, reductions=real)
        self._producers = producers(pair.new)

    def __call__(self, name: str) -> About:
        places = self._places(name)
        if not places:
            return About()
        tolerance = self._reasons.tolerance(places)
        if tolerance is not None and self._pair.old.wide:
            tolerance = TOLERANCES["float64"]
        # What leads there: first operands, up to the nearest collective.
        index, node, chain = self._pair.new.index, places[-1], [places[-1]]
        while len(chain) < _SHOWN and node not in index.launches and index.data_preds[node]:
            node = index.data_preds[node][0]
            chain.append(node)
        names = tuple(index.names[place] for place in chain)
        return About(names[0], self._reasons.of(places), names, tolerance)

    def _places(self, name: str) -> tuple[int, ...]:
        """The node behind an output; the nodes that write an input, which is then no output."""
        index = self._pair.new.index
        if name.startswith("output["):
            number = int(name[len("output[") : -1])
            node = self._producers[number] if number < len(self._producers) else None
            return (index.position[node.name],) if node is not None else ()
        place = index.position.get(name.partition(" ")[2])
        own = set(index.storages[place]) if place is not None else set()
        return tuple(node for node, written in index.writes.items() if own & set(written))


class Reasons:
    """Finds changed sums; answers for one value after the other. reductions: whether those of collectives count.

    changed: the nodes of AFTER that are reasons, in graph order.
    """

    def __init__(self, before: GraphIndex, after: GraphIndex, *, reductions: bool) -> None:
        self._after = after
        old = [(before.names[node], key) for node, key in _sums(before)]
        new = list(_sums(after))
        # Nodes of sub-graphs may stand in the place of their calls, under other names.
        mine, theirs = (Counter(k for g in i.with_inside() for _, k in _sums(g)) for i in (after, before))
        more = mine - theirs
        known = frozenset(old)
        self.changed = tuple(
            node
            for node, key in new
            if more[key] and (after.names[node], key) not in known and (reductions or node not in after.launches)
        )
        self._changed = frozenset(self.changed)

    def of(self, places: tuple[int, ...]) -> tuple[str, ...]:
        """Reasons for a value that AFTER makes at these nodes."""
        changed = [node for node in upstream(self._after, places) if node in self._changed]
        more = [f"and {len(changed) - _KEPT} more"] if len(changed) > _KEPT else []
        return (*map(self.said, changed[:_KEPT]), *more)

    def said(self, node: int) -> str:
        """A sum in words."""
        index = self._after
        merged = index.merged_from.get(node, ())
        origin = f", merged from {', '.join(merged[:3])}{', ...' if len(merged) > 3 else ''}" if merged else ""
        op, shapes = index.ops[node].partition(".")[2], " and ".join(_shapes(index, node))
        return f"{index.names[node]} ({op} of {shapes}{origin})"

    def tolerance(self, places: tuple[int, ...]) -> float | None:
        """What changed sums explain in a value: that of the coarsest dtype from the sums to the value; None without."""
        index = self._after
        touched: set[int] = set()
        for node in reversed(upstream(index, places)):
            if node in self._changed or touched.intersection(index.needs(node)):
                touched.add(node)
        return coarsest(tensor.dtype for node in touched if (tensor := index.tensors[node]) is not None)


def coarsest(dtypes: Iterable[str]) -> float | None:
    """The largest tolerance of these dtypes; None where none of them rounds."""
    return max((TOLERANCES[dtype] for dtype in dtypes if dtype in TOLERANCES), default=None)


def upstream(index: GraphIndex, starts: tuple[int, ...]) -> list[int]:
    """Everything that some nodes depend on, themselves included, latest first."""
    seen, stack = set(starts), list(starts)
    while stack:
        fresh = [p for p in index.needs(stack.pop()) if p not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return sorted(seen, reverse=True)


def _sums(index: GraphIndex) -> Iterator[tuple[int, tuple[str, tuple[str, ...]]]]:
    """Nodes that add numbers up, each with its op and the shapes of its operands."""
    for node in range(len(index)):
        launch = index.launches.get(node)
        reduces = launch is not None and launch.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
        if reduces or index.compute[node] or index.ops[node] in SUMS:
            yield node, (index.ops[node], _shapes(index, node))


def _shapes(index: GraphIndex, node: int) -> tuple[str, ...]:
    operands = (index.tensors[p] for p in index.data_preds[node])
    return tuple(f"[{', '.join(map(str, t.shape))}]" for t in operands if t is not None)


def first_difference(pair: Pair, seed: int) -> str | None:
    """Where values part, as a sentence; None when no node of the same name has another value."""
    old, new = _digests(pair, pair.old, seed), _digests(pair, pair.new, seed)
    for step in pair.new.steps:
        if step.name in new and step.name in old and new[step.name] != old[step.name]:
            rank = next(i for i, digest in enumerate(new[step.name]) if digest != old[step.name][i])
            op = op_name(step.node.target)
            return f"'{step.name}' ({op}) is the first that differs, on rank {rank}; {_why(pair, step)}"
    return None


def _why(pair: Pair, step: Step) -> str:
    """What a node uses that its namesake in BEFORE does not use."""
    namesake = next(old_step.node for old_step in pair.old.steps if old_step.name == step.name)
    there = [node.name for node in namesake.all_input_nodes]
    other = [(new.name, old) for new, old in zip(step.node.all_input_nodes, there, strict=False) if new.name != old]
    if other:
        return f"it uses '{other[0][0]}' where BEFORE uses '{other[0][1]}'"
    if op_name(namesake.target) != op_name(step.node.target):
        return f"BEFORE has {op_name(namesake.target)} there"
    return "it uses the same nodes as in BEFORE"


def _digests(pair: Pair, prepared: Prepared, seed: int) -> dict[str, list[bytes]]:
    """Of every node's value, by its name: one digest for each rank."""
    digests: dict[str, list[bytes]] = {}

    def keep(step: Step, results: list[Any]) -> None:
        if step.fact is None:
            digests[step.name] = [_digest(result) for result in results]

    world = range(pair.layout.world)
    given = [pair.inputs(of=prepared, rank_inputs=pair.maker.of_rank(rank)) for rank in world]
    with suppress(StepError):  # what came before it is what we are after
        VirtualRun(prepared, pair.layout, seed, pair.blocking, watch=keep)(given)
    return digests


def _digest(value: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors_in(value):
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if not is_freed(tensor):
            digest.update(element_bytes(tensor).numpy().tobytes())
    plain = [leaf for leaf in leaves(value) if not isinstance(leaf, torch.Tensor)]
    digest.update(repr(plain).encode())
    return digest.digest()
